"""Diagonals: two axes that are read or written at the same index."""

from __future__ import annotations

from typing import Any

from learncost.importer.axes import AxisClass, equal
from learncost.importer.equations import Equation, NamedView
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.movement import with_side
from learncost.importer.views import AxisIndex, View, ViewAxis


def diagonal_of(reader: GraphReader, x: View, first: int, second: int, offset: int = 0, size: Any = None) -> View:
    """Return the view without two of its dimensions, read at (i, i + offset) along a new last one."""
    x = with_side(reader, with_side(reader, x, first), second)
    if any(_at_places(x, slot) or slot in x.spread for dim in (first, second) for slot in x.dims[dim]):
        x = reader.recorder.whole_spread(x, [first, second])
        x = reader.recorder.regrouped_whole(x)
        x = with_side(reader, with_side(reader, x, first), second)
    size = x.shape[first] if size is None else size
    new = ViewAxis(AxisClass(size))
    parts = () if equal(size, 1) else ((1, new),)
    (first_axis,), (second_axis,) = x.dims[first], x.dims[second]
    rows = [row for dim, row in enumerate(x.dims) if dim not in (first, second)]
    read = x.at(first_axis, parts, max(0, -offset)).at(second_axis, parts, max(0, offset))
    return read.with_dims([*rows, (new,) if parts else ()])


def _at_places(x: View, slot: ViewAxis) -> bool:
    return not any(each is slot for each in x.index)


@rule("diagonal", "diagonal_copy")
def diagonal(reader: GraphReader, x: View, offset: int = 0, first: int = 0, second: int = 1) -> View:
    count = len(x.dims)
    size = size_of(reader.node.meta["val"].shape[-1])
    return diagonal_of(reader, x, first % count, second % count, offset, size)


@rule("diag_embed")
def diag_embed(reader: GraphReader, x: View, offset: int = 0, first: int = -2, second: int = -1) -> View:
    """Record a matrix with values written at (i, i + offset)."""
    shape = list(shape_of(reader.node))
    count = len(shape)
    x = with_side(reader, x, -1 % len(x.dims))
    x = reader.recorder.whole_spread(x, range(len(x.dims))).fresh()
    if len(x.dims[-1]) != 1:
        x = with_side(reader, reader.recorder.regrouped_whole(x), len(x.dims) - 1)
    (slot,) = x.dims[-1]
    sides = [AxisClass(shape[-1], whole=True), AxisClass(shape[-1], whole=True)]
    front = [s for row in x.dims[:-1] for s in row]
    new = {s: ViewAxis(s.axis) for s in front}
    stored = reader.recorder.stored([*(s.axis for s in front), *sides])
    places = (AxisIndex(((1, slot),), max(0, -offset)), AxisIndex(((1, slot),), max(0, offset)))
    left = View(stored, (*front, *places), x.dims)
    letters = tuple(range(len(x.dims)))
    reader.recorder.add(Equation("product", (NamedView(left, letters),), (NamedView(x, letters),)))
    last = [ViewAxis(side) for side in sides]
    result = View(
        stored,
        (*new.values(), *last),
        (*(tuple(new[s] for s in row) for row in x.dims[:-1]), (last[0],), (last[1],)),
    )
    order = [place for place in range(count) if place not in (first % count, second % count)]
    where = {dim: place for place, dim in enumerate([*order, first % count, second % count])}
    return result.permuted([where[dim] for dim in range(count)])
