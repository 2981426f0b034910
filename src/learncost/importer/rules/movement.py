"""Concatenation, padding, shifts and triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learncost.importer.axes import AxisClass, Size, equal
from learncost.importer.equations import DimensionCondition, Equation, NamedView
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.views import merged, narrowed
from learncost.importer.unit_dims import written
from learncost.importer.views import GivenTensor, View, ViewAxis


@rule("cat")
def cat(reader: GraphReader, several: Sequence[Any], dim: int = 0) -> View:
    """Record arrays concatenated: each is read at an offset, and is zero outside."""
    shape = list(shape_of(reader.node))
    dim %= len(shape)
    views = [
        reader.view(each)
        for each in several
        if not (isinstance(each, GivenTensor | View) and any(equal(size, 0) for size in each.shape))
    ]
    return joined(reader, views, dim, shape)


def joined(reader: GraphReader, views: Sequence[View], dim: int, shape: Sequence[Size]) -> View:
    if len(views) == 1:
        return views[0]
    recorder = reader.recorder
    whole = AxisClass(shape[dim], next((s.axis.root.letter for v in views for s in v.dims[dim][-1:]), ""))
    slot = ViewAxis(whole)
    reads: list[NamedView] = []
    start: Size = 0
    for view in views:
        size = view.shape[dim]
        view = recorder.bounded(with_side(reader, view, dim), dim)
        reads.append(NamedView(view.read(dim, (slot,), ((1, slot),), -start), tuple(range(len(shape)))))
        start = start + size
    bound = recorder.bound(reads)
    letters = tuple(range(len(shape)))
    result = recorder.result(bound, letters)
    recorder.add(Equation("sum", (NamedView(result, letters),), tuple(bound), (1,) * len(bound)))
    return result


def with_side(reader: GraphReader, view: View, dim: int) -> View:
    """Return the view with a dimension that is one stored axis, also if its size is one."""
    view = merged(reader, view, dim)
    if view.dims[dim]:
        return view
    return written(reader.recorder, view, dim, "x")


@rule("stack")
def stack(reader: GraphReader, several: Sequence[Any], dim: int = 0) -> View:
    shape = list(shape_of(reader.node))
    dim %= len(shape)
    views = []
    for each in several:
        view = reader.view(each)
        views.append(view.with_dims([*view.dims[:dim], (), *view.dims[dim:]]))
    return joined(reader, views, dim, shape)


def padded(reader: GraphReader, x: View, pads: Sequence[int]) -> View:
    """Record x with padding, a pair for each dimension from the last one on; negative numbers crop."""
    for place in range(len(pads) // 2):
        before, after = (size_of(p) for p in pads[2 * place : 2 * place + 2])
        dim = len(x.dims) - 1 - place
        if equal(before, 0) and equal(after, 0):
            continue
        size = size_of(x.shape[dim] + before + after)
        if isinstance(before, int) and isinstance(after, int) and before <= 0 and after <= 0:
            x = narrowed(reader, x, dim, -before, size)
            continue
        x = reader.recorder.bounded(with_side(reader, x, dim), dim)
        new = ViewAxis(AxisClass(size, x.dims[dim][0].axis.root.letter))
        # A copy: an index into the view would read beyond its ends.
        x = reader.recorder.copied(x.read(dim, (new,), ((1, new),), -before))
    return x


@rule("constant_pad_nd")
def pad(reader: GraphReader, x: View, pads: Sequence[int], fill: Any = 0) -> View:
    if fill in (0, None, False):
        return padded(reader, x, pads)
    inside = padded(reader, reader.filled(x.shape, 1.0), pads)
    return reader.op("select", inside, padded(reader, x, pads), float(fill))


@rule("tril", "triu")
def triangle(reader: GraphReader, x: View, *_: Any) -> View:
    """Record the triangle up to the diagonal; PyTorch decomposes the others."""
    x = merged(reader, merged(reader, x, len(x.dims) - 1), len(x.dims) - 2)
    letters = range(len(x.dims))
    row, column = letters[-2:]
    lower, upper = (column, row) if reader.recorder.operator == "tril" else (row, column)
    where = DimensionCondition(lower, "<=", upper)
    return reader.recorder.line([(x, letters)], letters, signs=[1], where=[where])


@rule("copy")
def copy(reader: GraphReader, base: Any, source: Any, *_: Any) -> View:
    view = reader.view(source)
    return view.expanded(list(shape_of(reader.node)))


# Diagonals: two axes that are read or written at the same index


def diagonal_of(reader: GraphReader, x: View, first: int, second: int, offset: int = 0, size: Any = None) -> View:
    """Return the view without two of its dimensions, read at (i, i + offset) along a new last one."""
    x = with_side(reader, with_side(reader, x, first), second)
    if any(slot not in x.index or slot in x.spread for dim in (first, second) for slot in x.dims[dim]):
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


@rule("diagonal", "diagonal_copy")
def diagonal(reader: GraphReader, x: View, offset: int = 0, first: int = 0, second: int = 1) -> View:
    count = len(x.dims)
    size = size_of(reader.node.meta["val"].shape[-1])
    return diagonal_of(reader, x, first % count, second % count, offset, size)
