"""The planner: the choice of a step's plans by a short list of rules and the predicted memory and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import gcd, isqrt, prod
from typing import TYPE_CHECKING, TypeAlias

from learncost.cost_models import Book, price
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import size_of
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.layers.active import NORM, is_norm
from learncost.liveness import Live, live
from learncost.models.purposes import activates, attentions, layers_with
from learncost.passes.plan import applies, planned
from learncost.passes.recompute import AFFINE, SEGMENTS
from learncost.program.calls import IN_KERNELS

if TYPE_CHECKING:
    from learncost.backends.placed import InPlaceLayout

RECOMPUTATION_BUDGET = 0.01
"""The largest share of the step's FLOPs that recomputation may cost under plan auto."""

PEAK_TOLERANCE = 0.01
"""Peaks that differ by less, as a share, are the same: a moment earlier or later in which an array goes."""

ROWS = 64
"""Rows that a product needs for its other matrix to be worth reading: a sequence's tokens, in the head's iterations."""

TIMED_ON = "H100-SXM"
"""The GPU for which plans are timed where none is named."""

TIMED = 2**15
"""The most lines of a step whose plans are timed, of all iterations: a recurrence over positions has more."""

_RUN = Book("run", "", "", "executed")


Widths: TypeAlias = Mapping[str, int]


def chosen(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", budget: int | None = None, widths: Widths | None = None
) -> str:
    """Return the plan for a step of these sizes, as `planned` accepts it.

    widths  bytes of an element by role or name, where they are not the type's (`live`)
    budget  bytes that the step may take at its peak, weights and states included; None: nothing beyond what is nearly
            free. Where nothing meets it, the plan that takes least.
    """
    plan: list[str] = []
    if applies(table, "flash") and _share(table, plan, ["flash"], sizes, dtype, widths) <= 1 + PEAK_TOLERANCE:
        plan.append("flash")  # not where more is kept to make scores again than scores are, as in DeBERTa
    if applies(table, "fused"):
        plan.append("fused")  # fewer bytes are moved, for no operation more
    if applies(table, "fused-update"):
        plan.append("fused-update")  # the same operations; refused where clipping or sums over microbatches wait
    if (
        _has_long_sequences(table, sizes)
        and _share(table, plan, ["chunked-loss"], sizes, dtype, widths) < 1 - PEAK_TOLERANCE
    ):
        # an addition of the head's gradient a sequence, where batch x vocabulary makes the peak
        plan.append("chunked-loss")
    cheap = cheap_recomputation(table)
    if budget is None:
        tables = (planned(table, ",".join(names)) for names in (plan, (*plan, *cheap)))
        before, after = (price(each, sizes, _RUN).flops for each in tables)
        is_cheap = bool(after <= (1 + RECOMPUTATION_BUDGET) * before)
        is_worth = is_cheap and _share(table, plan, cheap, sizes, dtype, widths) < 1 - PEAK_TOLERANCE
        return ",".join((*plan, *cheap) if is_worth else plan)
    needs: dict[str, int] = {}
    # no gradient of a product stored, for no FLOP more
    endings = ("", "epilogue-update") if "fused-update" in plan else ("",)
    for more, ending in product(_ladder(table, sizes), endings):
        text = ",".join((*plan, *filter(None, (ending, more))))
        needs[text] = memory(planned(table, text), sizes, dtype, widths).peak
        if needs[text] <= budget:
            return text
    return min(needs, key=lambda text: needs[text])


def smallest(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", budget: int | None = None, widths: Widths | None = None
) -> str:
    """The plan that the engine takes on a processor. The rules count arrays, so that the arena itself says whether the
    head takes turns; not under a budget, as for `chosen`."""
    from learncost.backends.placed import laid_out  # imported when used, for a fast start

    plan = chosen(table, sizes, dtype, budget, widths)
    names = plan.split(",")
    other = plan.replace(",chunked-loss", "") if "chunked-loss" in names else f"{plan},chunked-loss"
    try:
        if budget is None and "fused-update" in names and sizes["B"] > 1:
            return min(plan, other, key=lambda text: laid_out(planned(table, text), sizes, dtype).bytes)
    except InputError:
        pass  # what cannot be in place has no arena, and takes the plan as it is
    return plan


def fastest(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", budget: int | None = None, on: str = ""
) -> str:
    """Return the plan of a step in Triton: of those that fit and are within a hundredth of the fastest, the smallest.

    A plan takes its arena and more (`needed`), and the time of its kernels. Where plans cannot be timed,
    and for a step of more lines than `TIMED`, it is that of the rules (`chosen`).

    budget  bytes that a GPU has for the step, weights and states included. Where nothing meets it, what takes least.
    on      the name of the GPU; where its kernels cannot be timed, it is `TIMED_ON`
    """
    from learncost.backends import triton  # imported when used, for a fast start

    needs: dict[str, int] = {}
    seconds: dict[str, float] = {}
    try:
        for plans in candidates(table, sizes, dtype):
            fitting: dict[str, float] = {}
            for plan in plans:
                layout = triton.laid_out(planned(table, plan), sizes, dtype)
                needs[plan] = triton.needed(layout)
                if (budget is None or needs[plan] <= budget) and triton.longest(layout)[1] <= triton.LONGEST:
                    fitting[plan] = _seconds(layout, on)
            if seconds and fitting and min(fitting.values()) > (1 + RECOMPUTATION_BUDGET) * min(seconds.values()):
                break  # what follows recomputes more
            seconds |= fitting
        near = [plan for plan in seconds if seconds[plan] <= (1 + RECOMPUTATION_BUDGET) * min(seconds.values())]
        return min(near or needs, key=lambda plan: needs[plan])
    except InputError:
        return chosen(table, sizes, dtype, budget)


def candidates(table: Table, sizes: Mapping[str, int], dtype: str) -> list[list[str]]:
    """Return the plans of `fastest`, from nothing recomputed to several blocks, each for the whole head and in parts.

    Raises `InputError` for a step of more lines than `TIMED`.
    """
    if sum(prod(size_of(loop.count, sizes) for loop in nest.loops) for _, nest in walk(table.lines)) > TIMED:
        raise InputError("the step has too many lines to be timed")
    usual = chosen(table, sizes, dtype).replace("fused-update", "multi-tensor-update").split(",")
    kernels = [name for name in usual if name in ("flash", "fused", "multi-tensor-update")]
    heads = ("", "chunked-loss") if _has_long_sequences(table, sizes) else ("",)
    first, *others = _ladder(table, sizes)
    # a norm's normalized value in bf16 takes half of the residual stream from which it would be made again
    affine = [choice.replace(NORM, AFFINE) for choice in cheap_recomputation(table) if choice.endswith(NORM)]
    ladder = dict.fromkeys((first, *(f"recompute={AFFINE}" for _ in affine), *affine, *others))
    return [[",".join(filter(None, (*kernels, head, more))) for head in heads] for more in ladder]


def _seconds(layout: InPlaceLayout, on: str) -> float:
    """Return the seconds of a step's kernels on a GPU."""
    from learncost.backends.triton.program import launched
    from learncost.devices.device import device
    from learncost.devices.gpus import gpu
    from learncost.timing.kernels import KernelModel

    def on_gpu(name: str) -> float:
        model = KernelModel(gpu(device(name)), program)
        return sum(kernel.seconds for op in program.ops for kernel in model.kernels(op))

    program = launched(layout)
    try:
        return on_gpu(on)
    except InputError:
        return on_gpu(TIMED_ON)


def smallest_arena_plan(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", budget: int | None = None, widths: Widths | None = None
) -> str:
    """Return the plan of a step on a microcontroller: the one of a few with the smallest arena.

    budget, widths  as for `chosen`
    """
    from learncost.backends.c99 import alone  # imported when used, for a fast start

    usual = chosen(table, sizes, dtype, budget, widths)
    ended = (
        usual.replace("fused-update", "epilogue-update")
        if "epilogue-update" not in usual
        else usual.replace(",fused-update", "")
    )
    without = ",".join(item for item in ended.split(",") if item != "fused")
    arenas: dict[str, int] = {}
    for text in dict.fromkeys((ended, without, usual, "")):
        try:
            arenas[text] = alone(planned(table, text), sizes, dtype).bytes
        except InputError:
            continue
    return min(arenas, key=lambda text: arenas[text], default=usual)


def cheap_recomputation(table: Table) -> tuple[str, ...]:
    """Return the recomputation of the blocks' activations and norms; "" if they have neither."""
    lines = _of_blocks(table)
    attending = frozenset().union(*attentions(lines))
    ops = [line for line in lines if isinstance(line, Op) and activates(line)]
    parts = dict.fromkeys(line.op for line in ops if line.meta.layer not in attending)
    norms = [NORM] if any(is_norm(line.meta.layer) for line in lines) else []
    return (f"recompute={'+'.join((*parts, *norms))}",) if parts or norms else ()


def _has_long_sequences(table: Table, sizes: Mapping[str, int]) -> bool:
    """Return whether the head may take one sequence after the other."""
    return sizes["B"] > 1 and sizes["M"] >= ROWS and applies(table, "chunked-loss")


def _ladder(table: Table, sizes: Mapping[str, int]) -> list[str]:
    """Return what a step may compute again, from nothing to several blocks."""
    cheap, lines = cheap_recomputation(table), _of_blocks(table)
    without_attention = layers_with(lines, activates) - frozenset().union(*attentions(lines))
    networks = "".join(f"+{layer}" for layer in sorted(without_attention))
    more = [choice + networks for choice in cheap if networks]
    return ["", *cheap, *more, "recompute=all", *segments(table, sizes)]


def _of_blocks(table: Table) -> list[Line]:
    return [line for line, nest in walk(table.lines) if nest.loops and line.meta.phase == "forward"]


def segments(table: Table, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the recomputations of several blocks: alone, with the cheap ones, and nested in all blocks.

    k of L blocks: k divides the blocks of every repeat, and is at most the root of L, where L/k + k inputs are fewest.
    """
    blocks = gcd(*(size_of(line.count, sizes) for line in table.repeats if line.reverse))
    several = [k for k in range(2, isqrt(blocks) + 1) if blocks % k == 0]
    within = ["", *(choice.replace("recompute=", "+") for choice in cheap_recomputation(table)), "+all"]
    return tuple(f"recompute={SEGMENTS}{k}{more}" for more in within for k in several)


def _share(
    table: Table, plan: list[str], more: Sequence[str], sizes: Mapping[str, int], dtype: str, widths: Widths | None
) -> float:
    """Return the ratio of a step's peaks with and without further plans."""
    before, after = (planned(table, ",".join(names)) for names in (plan, (*plan, *more)))
    return float(memory(after, sizes, dtype, widths).peak / memory(before, sizes, dtype, widths).peak)


def memory(table: Table, sizes: Mapping[str, int], dtype: str = "fp32", widths: Widths | None = None) -> Live:
    """Return the live intervals of a step with in-place updates; values inside of a kernel take no memory."""
    return live(table, sizes, precision_of(dtype).values, widths, IN_KERNELS)
