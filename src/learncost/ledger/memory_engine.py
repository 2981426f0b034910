"""The memory of a step as an engine executes it: NumPy, PyTorch on one arena or by operators, PyTorch's autograd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from learncost.equation.count import shape_of
from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.ledger.memory import Memory, described
from learncost.ledger.memory_step import Step
from learncost.models.module import module_of
from learncost.readings.live import Held, Moment
from learncost.schedule.autograd import Asked, Tape, run_step
from learncost.vocabulary.optimizers import OPTIMIZERS

TYPES = ("fp32", "fp64")
"""The types that every engine computes in."""
TRAINED = ("fp32", "fp64", "bf16", "fp16")
"""The types of values that PyTorch trains in."""
AUTOGRAD = "autograd"
"""How the names of its engines begin."""


@dataclass(frozen=True)
class Engine:
    """Who executes a step: what it takes at the sizes of its axes, with a split where the last argument is true.

    dtypes  the precisions that it computes in; none are named where it is a matter of the values' type
    """

    takes: Callable[[Step, Mapping[str, int], bool], _Peak]
    dtypes: Collection[str]
    convention: str


@dataclass(frozen=True)
class _Peak:
    """A peak, where it is, what it holds, and the arrays: what makes them and their bytes."""

    bytes: int
    line: str
    split: Mapping[str, int]
    rooms: tuple[tuple[int, str], ...]
    said: str = ""


def executed_by(name: str, step: Step) -> Memory:
    """The memory of a step as an engine executes it, which it must be able to (`refuse`)."""
    engine = ENGINES[name]
    found = engine.takes(step, step.sizes(), True)
    return Memory(
        **described(step),
        peak=found.bytes,
        moment=Moment(found.line, "", "", found.bytes),
        split=found.split,
        witnesses=_held(found.rooms),
        curve=(),
        engine=name,
        convention=found.said or engine.convention,
        module=step.module if name.startswith(AUTOGRAD) else "",
    )


def refuse(name: str, step: Step) -> None:
    """Raise `InputError` for a step that an engine does not execute."""
    engine = ENGINES[name]
    if name.startswith(AUTOGRAD) and (step.kind.values not in TRAINED or step.model.quantized):
        raise InputError(f"--engine {name} has values in {', '.join(TRAINED)}, and weights that are not quantized")
    if engine.dtypes and step.kind.name not in engine.dtypes:
        raise InputError(f"--engine {name} computes in {' or '.join(engine.dtypes)}")
    if step.optimizer.name not in OPTIMIZERS:
        raise InputError(f"--engine {name} executes the optimizers {', '.join(OPTIMIZERS)}")
    if step.accumulate > 1:
        raise InputError(f"--engine {name} takes the whole batch at once: leave --accumulate out")
    if step.in_flash:
        raise InputError(f"--engine {name} has all weights in RAM: leave --flash out")
    if name.startswith(AUTOGRAD):
        if step.plan:
            raise InputError(f"--engine {name} knows no plans; --procedure recompute is torch.utils.checkpoint")
        if step.procedure not in ("bp", "recompute"):
            raise InputError(f"--engine {name} learns by bp, or by recompute: torch.utils.checkpoint of every block")


def _held(rooms: Iterable[tuple[int, str]]) -> tuple[Held, ...]:
    """Arrays of one kind together: how many, and their bytes."""
    counted = sorted(Counter(rooms).items(), key=lambda one: -one[0][0] * one[1])
    return tuple(Held(line, (), (number, size), number * size) for (size, line), number in counted)


def _sum(table: Table, names: Iterable[str], sizes: Mapping[str, int], width: Callable[[str], int]) -> int:
    """The bytes of names of a table."""
    return sum(width(name) * prod(shape_of(table.axes[name], sizes)) for name in names)


def _by_operators(library: str, step: Step, sizes: Mapping[str, int], split: bool) -> _Peak:
    """The emitted program for a library, run on arrays without values."""
    from learncost.plans.executed import executed  # emits programs: only where it is asked for

    table = step.whole()
    found = executed(table, sizes, step.kind.name, rooms=split, library=library)
    given = _given(step, table, sizes)
    rest = found.peak - sum(given.values())
    rooms = tuple((one.bytes, one.line or "given") for one in found.rooms)
    return _Peak(found.peak, found.line, {**given, "values and temporaries": rest}, rooms)


def _given(step: Step, table: Table, sizes: Mapping[str, int]) -> dict[str, int]:
    width = {"fp64": 8}.get(step.kind.name, 4)
    states = [name for name in table.inputs if f"{name}.new" in table.outputs]
    others = [name for name in table.inputs if name not in states]
    return {
        "weights": _sum(table, table.weights, sizes, lambda _: width),
        "optimizer state": _sum(table, states, sizes, lambda _: width),
        "batch": _sum(table, others, sizes, lambda name: 8 if name in table.indices else width),
    }


def _on_torch(step: Step, sizes: Mapping[str, int], split: bool) -> _Peak:
    """In place, where every line can be: what is given, and the arena that all else lies in."""
    from learncost.readings.emit.placed import WIDTHS, placed  # emits programs: only where it is asked for

    table = step.whole()
    try:
        found = placed(table, sizes, step.kind.name)
    except InputError as error:
        peak = _by_operators("torch", step, sizes, split)
        return _Peak(peak.bytes, peak.line, peak.split, peak.rooms, f"{_OPERATORS} Not in place, as {error}.")
    given = _given(step, table, sizes)
    kinds = {name: kind for name, (_, kind) in found.given.items()}
    read = [name for name in table.inputs if name in kinds and f"{name}.new" not in table.outputs]
    given["batch"] = _sum(table, read, sizes, lambda name: WIDTHS[kinds[name]])
    parts = {**given, "arena": found.bytes}
    return _Peak(sum(parts.values()), "", parts, tuple((size, name) for name, size in parts.items() if size))


def _by_autograd(implementation: str, step: Step, sizes: Mapping[str, int], split: bool) -> _Peak:
    """The model's forward table as calls of PyTorch's operators, on a tape."""
    model, kind = step.model, step.kind
    table, recompute = model.table, step.procedure == "recompute"
    module = module_of(model, step.module, recompute)
    asked = Asked(
        module,
        step.state + step.master,
        kind.weight,
        frozenset(model.learning),
        frozenset(name for name in model.masks if table.values[name].role == "mask"),
        "frames" if recompute else "",
        implementation if step.optimizer.name == "adamw" else "",
    )
    weights = _sum(table, table.weights, sizes, lambda _: kind.weight)

    def run(stop_at: int | None = None) -> Tape:
        tape = Tape(kind.value, stop_at)
        run_step(tape, table, sizes, asked)
        return tape

    key = implementation, step.module, *sorted(sizes.items())
    if key not in step.taped:
        account = run().account
        step.taped[key] = account.peak, str(account.line)
    peak, line = step.taped[key]
    if not split:
        return _Peak(peak, line, {}, ())
    tape = run(peak)
    rooms = tuple((size, str(label)) for size, label in tape.account.rooms)
    made = sum(size for size, label in rooms if label.endswith("backward") or label == "optimizer step")
    parts = {"weights": weights, "gradients": tape.gradients, "optimizer state": step.state}
    if step.master:
        parts["master weights"] = step.master
    parts["workspace"] = made - tape.gradients
    parts["activations"] = peak - sum(parts.values())
    return _Peak(peak, line, parts, rooms, _AUTOGRAD.format(module.said, _ADAMW[implementation]))


_OPERATORS = (
    "Predicted: the allocator's bytes when PyTorch's operators run the emitted program on a processor, new weights "
    "beside the old ones. Not in it: buffers inside of operators."
)
_AUTOGRAD = (
    "Predicted: the allocator's bytes when PyTorch's autograd trains {} on a processor, all gradients kept to the end, "
    "every operator keeping what its derivative reads. Not in it: buffers inside of kernels. {}"
)
_ADAMW = {
    "fused": "AdamW with fused=True.",
    "foreach": "AdamW with foreach=True.",
    "for-loop": "AdamW one weight after the other.",
}

ENGINES: Mapping[str, Engine] = {
    "numpy": Engine(
        partial(_by_operators, "numpy"),
        TYPES,
        "Predicted: what tracemalloc sees when NumPy runs the emitted program, new weights beside the old ones.",
    ),
    "torch": Engine(
        _on_torch,
        (*TYPES, "bf16"),
        "Predicted: the allocator's bytes when the step runs in place on compiled kernels: what stays from step to "
        "step, the batch, and the arena. Weights and state are fp32 with bf16 too; their copies lie in the arena.",
    ),
    "torch-operators": Engine(partial(_by_operators, "torch"), (*TYPES, "bf16"), _OPERATORS),
    **{
        AUTOGRAD if name == "fused" else f"{AUTOGRAD}-{name}": Engine(partial(_by_autograd, name), (), _AUTOGRAD)
        for name in _ADAMW
    },
}
"""Who executes steps; the functions say how it is known."""
