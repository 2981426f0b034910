"""Pad sizes that the mesh does not divide, such as a vocabulary, to the next multiple."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from learncost.ir.affine import Affine
from learncost.ir.line import Condition, Line, Op
from learncost.ir.loop import map_lines, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.models.model import Model
from learncost.ops import entry, is_log_softmax
from learncost.sharding.clauses import Clause, parts_of
from learncost.sharding.mesh import Mesh


def with_padded(table: Table, axis: str, size: int) -> Table:
    """Return the forward table with an axis masked to its first `size` positions."""
    inside = Condition(axis, str(size), "<")

    def change(line: Line) -> tuple[Line]:
        return (line.with_changed(where=(*line.where, inside)) if axis in line.loops else line,)

    return replace(table, lines=map_lines(table.lines, change))


def paddable(table: Table) -> frozenset[str]:
    """Return the axes that may be padded: axes of weights that lines read at an index or that a log-softmax acts on.

    These are the vocabulary of a language model and the classes of a classifier. A softmax masks the padding, and no
    index points to it; an operator that selects the largest, reads at affine indices or divides by the size would
    include it.
    """
    lines = [line for line, _ in walk(table.lines)]
    acted = {axis for line in lines if is_log_softmax(line) for axis in line.axes}
    read = {axis for line in lines for axis in _read(line)}
    of_weights = {axis for name in table.weights for axis in table.axes[name]}
    axes_used = (acted | read) & of_weights
    return frozenset(axes_used - {axis for line in lines for axis in _counted(line)})


def _read(line: Line) -> Iterator[str]:
    """Yield the axes that a line reads at an index array."""
    for term in line.right:
        for axis in term.axes:
            if isinstance(axis, Read) and isinstance(axis.at, Term):
                yield axis.axis


def _counted(line: Line) -> Iterator[str]:
    """Yield the axes whose size affects a line's result, or whose padding would unbalance a choice."""
    if isinstance(line, Op) and not entry(line.op).pointwise:
        yield from line.axes if entry(line.op).outside is None or entry(line.op).kind == "choice" else ()
    for operand in (*line.left, *line.right):
        if isinstance(operand, Literal):
            yield from map(base, operand.sizes)
        for axis in operand.axes if isinstance(operand, Term) else ():
            if isinstance(axis, Read) and isinstance(axis.at, Affine):
                yield axis.axis
            elif isinstance(axis, str) and base(axis) != axis:
                yield base(axis)


@dataclass(frozen=True)
class Padded:
    """A padded axis: its size, and the next divisible size."""

    axis: str
    size: int
    filled: int

    def __str__(self) -> str:
        return (
            f"{self.axis} is {self.size:,} and padded to {self.filled:,}, which is divisible by the mesh: the "
            f"padding is computed, but excluded from the softmax"
        )


def filled_up(
    model: Model, table: Table, mesh: Mesh, chosen: Iterable[Clause], sizes: Mapping[str, int]
) -> tuple[Model, dict[str, int], tuple[Padded, ...]]:
    """Return the model and the sizes with padding, where it is allowed and needed, and the padded axes.

    table  the step of the model, whose values the clauses shard
    """
    axes = {axis for clause in chosen for axis in clause.axes} & paddable(model.table)
    parts = parts_of(table, mesh, chosen, sizes) if axes else {}
    padded = padded_of((axis, sizes[axis], parts[axis]) for axis in sorted(axes & parts.keys()))
    return with_filled(model, padded), {**sizes, **sizes_of(padded)}, padded


def padded_of(cut: Iterable[tuple[str, int, int]]) -> tuple[Padded, ...]:
    """Return the axes that need padding, given the sizes of axes and their numbers of shards."""
    return tuple(Padded(axis, size, -(-size // parts) * parts) for axis, size, parts in cut if size % parts)


def sizes_of(padded: Iterable[Padded]) -> dict[str, int]:
    """Return the sizes with those of padded axes replaced."""
    return {each.axis: each.filled for each in padded}


def with_filled(model: Model, padded: Iterable[Padded]) -> Model:
    """Return the model with padded positions masked."""
    table, sizes = model.table, sizes_of(padded := tuple(padded))
    for each in padded:
        table = with_padded(table, each.axis, each.size)
    return replace(model, table=table, sizes={**model.sizes, **sizes}) if padded else model
