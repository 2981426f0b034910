"""Concatenation, padding, shifts and triangles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from learncost.importer.axes import AxisClass, Size, equal, product
from learncost.importer.equations import DimensionCondition, Equation, NamedView
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.indexing import over, put, read_at
from learncost.importer.rules.views import bound, merged, narrowed, reshaped
from learncost.importer.sized import settled
from learncost.importer.unit_dims import written
from learncost.importer.views import AxisIndex, View, ViewAxis


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
        (old,) = view.dims[dim]
        rows = list(view.dims)
        rows[dim] = (slot,)
        moved = view.at(old, ((1, slot),), _negative(start)).with_dims(rows)
        reads.append(NamedView(moved, tuple(range(len(rows)))))
        start = start + size
    bound = recorder.bound(reads)
    letters = tuple(range(len(shape)))
    result = recorder.result(bound, letters)
    recorder.add(Equation("sum", (NamedView(result, letters),), tuple(bound), (1,) * len(bound)))
    return result


def _negative(size: Size) -> Size:
    return -size


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
        (old,) = x.dims[dim]
        new = ViewAxis(AxisClass(size, old.axis.root.letter))
        rows = list(x.dims)
        rows[dim] = (new,)
        moved = x.at(old, ((1, new),), -before).with_dims(rows)
        letters = tuple(range(len(rows)))
        result = reader.recorder.result([NamedView(moved, letters)], letters)
        # A copy: an index into the view would read beyond its ends.
        reader.recorder.add(Equation("product", (NamedView(result, letters),), (NamedView(moved, letters),)))
        x = result
    return x


@rule("constant_pad_nd", "pad")
def pad(reader: GraphReader, x: View, pads: Sequence[int], mode: Any = 0, value: Any = None) -> View:
    if isinstance(mode, str) and mode != "constant":
        return _mirrored(reader, x, pads, mode)
    fill = (value or 0.0) if isinstance(mode, str) else mode
    if fill in (0, None, False):
        return padded(reader, x, pads)
    inside = padded(reader, reader.filled(x.shape, 1.0), pads)
    return reader.op("select", inside, padded(reader, x, pads), float(fill))


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(reader: GraphReader, x: View, pads: Sequence[int]) -> View:
    return _mirrored(reader, x, pads, "reflect")


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(reader: GraphReader, x: View, pads: Sequence[int]) -> View:
    return _mirrored(reader, x, pads, "replicate")


def _mirrored(reader: GraphReader, x: View, pads: Sequence[int], mode: str) -> View:
    for place in range(len(pads) // 2):
        before, after = pads[2 * place : 2 * place + 2]
        dim = len(x.dims) - 1 - place
        side = x.shape[dim]
        if not before and not after:
            continue
        function = partial(_mirrored_places, mode, before, after)
        places = settled(reader, f"a border that is made by {mode}", function, side)
        x = read_at(reader, x, dim, reader.given_places(places, AxisClass(side + before + after)))
    return x


def _mirrored_places(mode: str, before: int, after: int, side: int) -> list[int]:
    """Return the input position of each position of a padded side."""
    every = range(-before, side + after)
    if mode == "reflect":
        return [-at if at < 0 else 2 * (side - 1) - at if at >= side else at for at in every]
    return [min(max(at, 0), side - 1) if mode == "replicate" else at % side for at in every]


@rule("roll")
def roll(reader: GraphReader, x: View, shifts: Any, dims: Any = ()) -> View:
    shifts = [size_of(s) for s in (shifts if isinstance(shifts, list) else [shifts])]
    dims = dims if isinstance(dims, list) else [dims] if dims != () else []
    if not dims:
        shape = x.shape
        flat = reshaped(reader, x, [product(shape)])
        return reshaped(reader, _rolled(reader, flat, shifts, [0]), shape)
    return _rolled(reader, x, shifts, dims)


def _rolled(reader: GraphReader, x: View, shifts: Sequence[Size], dims: Sequence[int]) -> View:
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= len(x.dims)
        size = x.shape[dim]
        if isinstance(size, int) and isinstance(shift, int):
            shift %= size
        elif isinstance(shift, int) and shift < 0:
            shift = shift + size
        if equal(shift, 0):
            continue
        shape = list(x.shape)
        x = joined(
            reader,
            [narrowed(reader, x, dim, size - shift, shift), narrowed(reader, x, dim, 0, size - shift)],
            dim,
            shape,
        )
    return x


def triangle(reader: GraphReader, x: View, below: bool, diagonal: int) -> View:
    rows, columns = x.dims[-2:]
    recorder = reader.recorder
    if diagonal == 0 and len(rows) == 1 and len(columns) == 1:
        letters = tuple(range(len(x.dims)))
        last, first = letters[-1], letters[-2]
        where = DimensionCondition(last, "<=", first) if below else DimensionCondition(first, "<=", last)
        return recorder.line([(x, letters)], letters, signs=[1], where=[where])
    sizes = x.shape[-2:]
    kept = settled(reader, "a triangle of the diagonal", partial(_triangle, below, diagonal), *sizes)
    return reader.multiply(x, reader.given_numbers(kept, AxisClass(sizes[0]), AxisClass(sizes[1])))


def _triangle(below: bool, diagonal: int, rows: int, columns: int) -> list[list[float]]:
    """Return a matrix with 1 in a triangle and 0 elsewhere."""
    return [[float(j - i <= diagonal if below else j - i >= diagonal) for j in range(columns)] for i in range(rows)]


@rule("tril")
def tril(reader: GraphReader, x: View, diagonal: int = 0) -> View:
    return triangle(reader, x, True, diagonal)


@rule("triu")
def triu(reader: GraphReader, x: View, diagonal: int = 0) -> View:
    return triangle(reader, x, False, diagonal)


@rule("slice_scatter", "select_scatter")
def slice_scatter(
    reader: GraphReader, base: Any, part: Any, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> View:
    """Record a slice that replaces a part of the base: the base before it, the slice, and the base behind it."""
    base, part = reader.view(base), reader.view(part)
    dim %= len(base.dims)
    size = base.shape[dim]
    if reader.recorder.operator == "select_scatter":
        at = size_of(start)
        start, step = (at + size if isinstance(at, int) and at < 0 else at), 1
        part = part.with_dims([*part.dims[:dim], (), *part.dims[dim:]])
        width: Size = 1
    else:
        start = bound(start, size, 0)
        width = part.shape[dim]
    if step != 1:
        if not isinstance(start, int) or not isinstance(width, int):
            raise reader.refusal("a strided slice write along a side of symbolic size")
        places = [reader.given_places([start + step * place for place in range(width)], AxisClass(width))]
        new = put(reader, None, base.shape, [dim], places, part)
        return over(reader, base, put(reader, None, base.shape, [dim], places, reader.filled((), 1.0)), new)
    pieces = []
    if not equal(start, 0):
        pieces.append(narrowed(reader, base, dim, 0, start))
    pieces.append(part)
    after = size - start - width
    if not equal(after, 0):
        pieces.append(narrowed(reader, base, dim, start + width, after))
    return joined(reader, pieces, dim, list(base.shape))


@rule("copy")
def copy(reader: GraphReader, base: Any, source: Any, *_: Any) -> View:
    view = reader.view(source)
    return view.expanded(list(shape_of(reader.node)))


# Diagonals: two axes that are read or written at the same index


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
