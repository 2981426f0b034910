"""Engines: the executors of a step, their memory use, and the rules that decide it; and the memory at every line of a
recorded program, with the phases and lines of the model's table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.loop import walk
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.value import RANDOM
from learncost.liveness import FIXED, LiveArray, LiveInterval, ProgramPoint
from learncost.ops.optimizers import OPTIMIZERS
from learncost.program.arena import Arena
from learncost.program.program import (
    BACKWARD,
    CLIP,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    RECOMPUTE,
    Buffer,
    Program,
    TimelineLine,
    intervals,
    timeline,
)
from learncost.reports.memory.step import MemoryStep, by_lines

TYPES = ("fp32", "fp64")
"""The types that every engine supports."""

RULES = ("new weights and states", "gradients", "saved for backward", "temporaries")
"""The subjects of an engine's rules: where the optimizer writes its results, how long gradients live, which tensors are
saved for the backward pass, and the temporaries of an op."""


IN_PLACE: Mapping[str, str] = {
    "new weights and states": "over the old ones",
    "gradients": "until read",
    "saved for backward": "what lines read",
    "temporaries": "over operands",
}
"""The rules of a step in place."""


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a step: the peak, its line, its parts and its live arrays.

    lines  returns the bytes at every line, if known, and the live intervals of the arrays, which sum to them
    convention  the convention, if it differs from the engine's
    flash  bytes in flash, for an engine that counts them; None: those of frozen weights, with flash
    arena  the offsets of arrays in the arena, for an engine that plans memory ahead
    rules  the rules, if they differ from the engine's
    buffers  the most bytes that kernel libraries additionally allocate; None: unknown
    host   bytes in the memory of the host, of what is offloaded
    moved  bytes that a step copies to the host, and back
    reserved  returns what PyTorch's allocator reserves, with expandable segments or without; None: it is not simulated
    unfit  why it does not fit the regions of a device's RAM; empty if it fits, or no regions are known
    """

    bytes: int
    peak_at: ProgramPoint
    split: Mapping[str, int]
    live_at_peak: tuple[LiveArray, ...]
    lines: Callable[[], tuple[tuple[ProgramPoint, ...], Iterable[LiveInterval]]] = lambda: ((), ())
    convention: str = ""
    flash: int | None = None
    arena: Arena | None = None
    rules: Mapping[str, str] | None = None
    unfit: str = ""
    buffers: int | None = None
    host: int = 0
    moved: tuple[int, int] = (0, 0)
    reserved: Callable[[bool], int] | None = None


@dataclass(frozen=True)
class Engine:
    """The executor of a step.

    name        the name in --engine
    peak        the peak memory of a step, at the sizes of a microbatch
    takes       the full memory use of a step
    rules       the rules by subject (`RULES`)
    convention  what is counted, and what is not
    refuses     why it does not support what is asked of a step, as a verb phrase after its name; empty if it does
    outside     why it has no step of a model, procedure, type or device, whatever else is asked; empty if it has
    plan        the default plan of a table, if it is not none; `planner` chooses it if this is auto
    plans       the plans that are tried by default
    largest     the largest batch within a budget, if there is a closed form
    is_of_every_plan  whether `largest` is that of all plans among which `planner` chooses
    lengths     whether it is fast enough for many lengths
    module      whether it simulates a named module
    passes      the peak memory of an inference pass, for a table, sizes and a type
    arrays      the bytes of every array in RAM in that pass, for an engine that assigns them to regions
    stored      the bytes in flash in that pass, for an engine that counts them
    trains      whether learncost train uses it: over a mesh, a vocabulary that does not divide is not sharded
    alone       why it does not support meshes; empty if it does
    """

    name: str
    peak: Callable[[MemoryStep, Mapping[str, int]], int]
    takes: Callable[[MemoryStep, Mapping[str, int]], MemoryUse]
    rules: Mapping[str, str]
    convention: str
    refuses: Callable[[MemoryStep], str] = lambda step: ""
    outside: Callable[[MemoryStep], str] = lambda step: ""
    plan: Callable[[Table], str] | None = None
    planner: Callable[[MemoryStep, Mapping[str, int]], str] = by_lines
    plans: tuple[str | None, ...] | None = None
    largest: Callable[[MemoryStep, int], int] | None = None
    is_of_every_plan: Callable[[MemoryStep], bool] = lambda step: False
    lengths: bool = False
    module: bool = False
    passes: Callable[[Table, Mapping[str, int], str], int] | None = None
    arrays: Callable[[Table, Mapping[str, int], str], Mapping[str, int]] | None = None
    stored: Callable[[Table, Mapping[str, int], str], int] | None = None
    trains: bool = False
    alone: str = ""


def refusal(step: MemoryStep, dtypes: Collection[str], with_flash: bool = False) -> str:
    """Return why no program supports a step: its types, optimizer, microbatches or weights in flash.

    dtypes      those that the program has; none for a module, whose optimizer may also store states of 8 bits
    with_flash  whether frozen weights may be in flash, also quantized
    """
    if dtypes and (step.kind.computed if with_flash else step.kind.name) not in dtypes:
        return f"supports only {' or '.join(dtypes)}"
    supported = [name for name, optimizer in OPTIMIZERS.items() if not (dtypes and optimizer.states)]
    if step.optimizer.name not in supported:
        return f"supports only the optimizers {', '.join(supported)}"
    if step.accumulate > 1:
        return "does not support --accumulate"
    return "does not support --flash-size" if step.in_flash and not with_flash else ""


def grouped(allocations: Iterable[tuple[int, str]]) -> tuple[LiveArray, ...]:
    """Group identical allocations: their number and bytes."""
    counted = sorted(
        Counter(allocations).items(), key=lambda counted_allocation: -counted_allocation[0][0] * counted_allocation[1]
    )
    return tuple(LiveArray(line, (), (number, size), number * size) for (size, line), number in counted)


def of_parts(parts: Mapping[str, int], convention: str = "", **more: Any) -> MemoryUse:
    """Return the memory of a program whose parts are there throughout."""
    size, arrays = sum(parts.values()), grouped((part_bytes, name) for name, part_bytes in parts.items() if part_bytes)
    return MemoryUse(size, at_line("", size), parts, arrays, convention=convention, **more)


def at_line(line: str, size: int) -> ProgramPoint:
    """Return the moment of a line."""
    return ProgramPoint(line, "", "", size)


def bytes_of(table: Table, names: Iterable[str], sizes: Mapping[str, Any], width: Callable[[str], int]) -> int:
    """Return the bytes of tensors of a table, given the width of an element."""
    return sum(width(name) * prod(shape_of(table.axes[name], sizes)) for name in names)


def given_bytes(step: MemoryStep, table: Table, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of a program's inputs: weights, optimizer states, the batch."""
    width = {"fp64": 8}.get(step.kind.name, 4)
    states, fixed = (
        [name for name in table.inputs if table.values[name].role in roles] for roles in (("state",), RANDOM)
    )
    others = [name for name in table.inputs if name not in (*states, *fixed)]
    parts = {
        "weights": bytes_of(table, table.weights, sizes, lambda _: width),
        "optimizer state": bytes_of(table, states, sizes, lambda _: width),
        "batch": bytes_of(table, others, sizes, lambda name: 8 if name in table.indices else width),
    }
    return parts | ({FIXED: bytes_of(table, fixed, sizes, lambda _: width)} if fixed else {})


PHASES = {
    FORWARD: "forward",
    RECOMPUTE: "recomputation",
    BACKWARD: "backward",
    CLIP: "optimizer_step",
    OPTIMIZER: "optimizer_step",
}
"""The phases of a table's lines by those of a program's ops."""

SUFFIX = ", backward"
"""The end of a label of what is made in the backward pass of a line."""


def curve_of(
    program: Program, table: Table, counts: Mapping[int, str]
) -> tuple[tuple[ProgramPoint, ...], tuple[LiveInterval, ...]]:
    """Return the bytes and live arrays at every line of a program, whose labels are names of a forward table.

    counts  the table's sizes that say how often blocks run, by how often that is
    """
    lines = timeline(program)
    metas = {term.name: line.meta for line, _ in walk(table.lines) for term in line.left}
    moments = []
    for line in lines:
        meta = metas.get(line.label.removesuffix(SUFFIX).partition("+")[0])
        loops = ((line.loop, counts.get(line.iterations, ""), line.iterations),) if line.iterations > 1 else ()
        layer, block = (meta.layer, meta.block) if meta else ("", None)
        moments.append(ProgramPoint(line.label, layer, PHASES[program.ops[line.op].phase], line.bytes, block, loops))
    return tuple(moments), tuple(_intervals(program, lines))


def _intervals(program: Program, lines: Sequence[TimelineLine]) -> Iterator[LiveInterval]:
    """Return the arrays over the lines, with equal ones merged."""
    identical: dict[tuple[str, int, str, str, int, int], list[Buffer]] = {}
    for buffer, first, last in intervals(program, lines):
        key = (buffer.label, buffer.bytes // buffer.count, buffer.role, _phase(program, buffer), first, last)
        identical.setdefault(key, []).append(buffer)
    for (label, size, role, phase, first, last), buffers in identical.items():
        name = f"d{label.removesuffix(SUFFIX)}" if label.endswith(SUFFIX) else label
        number = sum(buffer.count for buffer in buffers)
        yield LiveInterval(name, (), (size,), number, number * size, first, last, phase, part=role)


def _phase(program: Program, buffer: Buffer) -> str:
    """Return the phase that makes a buffer."""
    if buffer.first < 0:
        return "given"
    return "weight_update" if buffer.role == GRADIENTS else PHASES[program.ops[buffer.first].phase]
