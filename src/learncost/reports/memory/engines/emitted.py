"""The engines of emitted programs: numpy, run without values; torch and cuda, in place, which write into one arena.

The program of `torch` is PyTorch's products and kernels in C, that of `cuda` kernels in Triton; a step that cannot run
in place on a CPU runs in PyTorch's operators, without values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.ir.value import RANDOM
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.plan import CHOSEN
from learncost.reports.memory.engine import (
    IN_PLACE,
    TYPES,
    Engine,
    MemoryUse,
    at_line,
    bytes_of,
    given_bytes,
    grouped,
    of_parts,
    refusal,
)
from learncost.reports.memory.largest import largest_batch
from learncost.reports.memory.planner import candidates, fastest, smallest
from learncost.reports.memory.step import MemoryStep, by_lines
from learncost.reports.request import GPU

if TYPE_CHECKING:
    from learncost.backends.placed import InPlaceLayout, InPlaceProgram


def _operators_peak(library: str, step: MemoryStep, sizes: Mapping[str, int]) -> int:
    """Return the peak bytes of the emitted program."""
    return _peak_of(library, step.executed_table(), sizes, step.kind.name, _mesh(step))


def _peak_of(
    library: str, table: Table, sizes: Mapping[str, int], dtype: str, mesh: Mapping[str, int] | None = None
) -> int:
    """Return the peak bytes of the program emitted for a table."""
    from learncost.backends.executed import executed  # emits programs: only where it is asked for

    return executed(table, sizes, dtype, library, mesh).peak


def _mesh(step: MemoryStep) -> Mapping[str, int] | None:
    """Return the number of devices along each mesh axis."""
    return step.over.placed.mesh.sizes if step.over else None


def _operators_take(library: str, step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    """Return the peak of the emitted program with its live arrays."""
    from learncost.backends.executed import executed

    table = step.executed_table()
    execution = executed(table, sizes, step.kind.name, library, _mesh(step))
    parts = given_bytes(step, table, sizes)
    parts["new weights and states"] = sum(
        allocation.bytes for allocation in execution.allocations if allocation.function in OPTIMIZERS
    )
    parts["activations and workspace"] = execution.peak - sum(parts.values())
    allocations = ((allocation.bytes, allocation.line or "given") for allocation in execution.allocations)
    moment = at_line(execution.line, execution.peak)
    return MemoryUse(
        execution.peak,
        moment,
        parts,
        grouped(allocations),
        rules=_OF_OPERATORS | {"temporaries": _TEMPORARIES[library]},
    )


_OF_OPERATORS = {
    "new weights and states": "new arrays",
    "gradients": "to the end",
    "saved for backward": "what lines read",
}
_TEMPORARIES = {"numpy": "results, buffers", "torch": "results, copies"}

OPERATORS = (
    "Peak allocated memory of the emitted program in PyTorch's operators on a CPU, as torch's allocator would report "
    "it. New weights are separate arrays. Temporary buffers inside operators are not included."
)


def _parts(step: MemoryStep, layout: InPlaceLayout | InPlaceProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of the peak."""
    from learncost.backends.placed import WIDTHS

    table, given = step.executed_table(), layout.given
    parts = given_bytes(step, table, sizes)
    batch = [name for name in table.inputs if name in given and table.values[name].role not in ("state", *RANDOM)]
    parts["batch"] = bytes_of(table, batch, sizes, lambda name: WIDTHS[given[name][1]])
    return parts | {"arena": layout.bytes}


def _on_cpu(step: MemoryStep, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of the peak. Raises `InputError` for a line that cannot be in place."""
    from learncost.backends.placed import laid_out, placed  # emits programs: only where it is asked for

    if not step.over:
        return _parts(step, laid_out(step.executed_table(), sizes, step.kind.name), sizes)
    program = placed(step.executed_table(), sizes, step.kind.name)
    parts = _parts(step, program, sizes)
    if program.meets:
        from learncost.backends.executed import communication_buckets

        parts["messages"] = communication_buckets(program, sizes, step.over.placed.mesh.sizes)
    return parts


def _peak(step: MemoryStep, sizes: Mapping[str, int]) -> int:
    try:
        return sum(_on_cpu(step, sizes).values())
    except InputError:
        return _operators_peak("torch", step, sizes)


def _takes(step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    try:
        parts = _on_cpu(step, sizes)
    except InputError as error:
        needs = _operators_take("torch", step, sizes)
        return replace(needs, convention=f"{OPERATORS} The step cannot run in place: {error}.")
    return of_parts(parts, f"{DESCRIPTION} {MESSAGES}" if step.over else "")


def _on_gpu(step: MemoryStep, sizes: Mapping[str, int], layout: InPlaceLayout) -> dict[str, int]:
    from learncost.backends.triton import WORKSPACES

    copies = {"bf16 copies of weights": layout.copied} if layout.copied else {}
    return _parts(step, layout, sizes) | copies | {"workspaces": WORKSPACES + layout.allocates}


def laid_out_on_gpu(
    step: MemoryStep, sizes: Mapping[str, int], check: bool = True, plan: str | None = None
) -> InPlaceLayout:
    """Return the layout of a step in Triton. Raises `InputError` for a step that has none, with an engine that has.

    check  whether the length of arrays is checked, which is not where the largest batch is searched
    """
    from learncost.backends import triton

    try:
        layout = triton.laid_out(step.executed_table(plan=plan), sizes, step.kind.name)
        if check:
            triton.check_lengths(layout)
        return layout
    except InputError as error:
        raise InputError(f"--engine {GPU} cannot run this step, as {error}: give --engine graph") from None


def _peak_on_gpu(step: MemoryStep, sizes: Mapping[str, int]) -> int:
    from learncost.backends.triton import needed

    return needed(laid_out_on_gpu(step, sizes, check=False))


def _largest_on_gpu(step: MemoryStep, budget: int) -> int:
    """Return the largest batch that fits and whose arrays kernels can index, under the plan or one of the planner's."""
    from learncost.backends.triton import LONGEST, longest, needed

    largest = 0
    for plan in (step.run.plan == CHOSEN and _choices(step)) or (step.plan,):

        @cache
        def taken(batch: int, plan: str = plan) -> tuple[int, int]:
            layout = laid_out_on_gpu(step, step.sizes(batch), False, plan)
            return needed(layout), longest(layout)[1]

        if largest and (taken(largest + 1)[0] > budget or taken(largest + 1)[1] > LONGEST):
            continue
        if batch := largest_batch(lambda batch: taken(batch)[0], budget):
            elements = taken(batch)[1]
            largest = max(largest, batch if elements <= LONGEST else batch * LONGEST // elements)
    return largest


def _choices(step: MemoryStep) -> list[str]:
    """Return the plans among which the planner chooses, the smallest first; none where it does not time them."""
    try:
        found = candidates(step.executed_table(plan=""), {**step.sizes(), "B": 2}, step.kind.name)
    except InputError:
        return []
    return [plan for plans in found for plan in plans][::-1]


DESCRIPTION = (
    "Peak allocated memory of the step in place with compiled kernels: weights and optimizer states, the batch, and "
    "the arena. With bf16-masters, weights and states are fp32 and their bf16 copies are in the arena."
)
MESSAGES = (
    "This is one process of learncost train --mesh. Communication buckets are included; memory of the communication "
    "library is not."
)

DESCRIPTION_ON_GPU = (
    "The step of learncost emit --backend triton: weights and optimizer states, with bf16-masters bf16 copies of "
    "weights, the batch, the arena, and 64 MiB of cuBLAS (16 MiB before Hopper). CUDA's context and the buffers of "
    "index_put_ are not included. It has never been measured on a GPU."
)

ENGINES = (
    Engine(
        "torch",
        _peak,
        _takes,
        IN_PLACE,
        DESCRIPTION,
        lambda step: refusal(step, (*TYPES, "bf16-masters")),
        plan=lambda table: CHOSEN,
        planner=partial(by_lines, planner=smallest),
        plans=(CHOSEN,),
        passes=partial(_peak_of, "torch"),
        trains=True,
    ),
    Engine(
        GPU,
        _peak_on_gpu,
        lambda step, sizes: of_parts(_on_gpu(step, sizes, laid_out_on_gpu(step, sizes))),
        IN_PLACE,
        DESCRIPTION_ON_GPU,
        lambda step: (
            "requires a GPU in --on, such as --on H100-SXM"
            if step.regions and step.eager.device != GPU
            else refusal(step, (*TYPES, "bf16-masters"))
        ),
        plan=lambda table: CHOSEN,
        planner=lambda step, sizes: fastest(step.executed_table(), sizes, step.kind.name, step.budget, step.eager.gpu),
        largest=_largest_on_gpu,
        is_of_every_plan=lambda step: bool(_choices(step)),
        plans=(CHOSEN,),
        alone="its program is for one GPU, without communication",
    ),
    Engine(
        "numpy",
        partial(_operators_peak, "numpy"),
        partial(_operators_take, "numpy"),
        _OF_OPERATORS | {"temporaries": _TEMPORARIES["numpy"]},
        "Peak memory of the emitted program in NumPy, as tracemalloc would report it. New weights are separate arrays.",
        lambda step: refusal(step, TYPES),
        passes=partial(_peak_of, "numpy"),
    ),
)
