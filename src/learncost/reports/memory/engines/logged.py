"""The memory at every line of a recorded program, with the phases and lines of the model's table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.liveness import LiveInterval, Moment
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

ENGINES = ()
"""Return nothing: this module has none."""

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
) -> tuple[tuple[Moment, ...], tuple[LiveInterval, ...]]:
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
        moments.append(Moment(line.label, layer, PHASES[program.ops[line.op].phase], line.bytes, block, loops))
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
