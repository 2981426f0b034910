"""Operators that only change a shape and need no lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from learncost.importer.axes import AxisClass, AxisSplitError, Size, equal, product, quotient, simple
from learncost.importer.equations import NamedView, WrittenAxis
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import RULES, rule, view_rule
from learncost.importer.rules.elementwise import trunc
from learncost.importer.tried import has_fraction
from learncost.importer.views import AxisIndex, GivenTensor, IntegerValue, View, ViewAxis, in_one
from learncost.ir.dataclass import replace


def sizes(values: Sequence[Any]) -> list[Size]:
    return [size_of(value) for value in values]


def called(view: View, *letters: str) -> View:
    """Return the view with names for its last axes, if they have none yet."""
    for row, letter in zip(view.dims[len(view.dims) - len(letters) :], letters, strict=True):
        for slot in row[-1:]:
            root = slot.axis.root
            root.letter = root.letter or letter
    return view


def reshaped(reader: GraphReader, view: View, shape: Sequence[Size]) -> View:
    """Return a view under another shape, of a copy if its axes cannot be split so."""
    try:
        return view.reshaped(shape)
    except AxisSplitError:
        pass
    moved = reader.recorder.regrouped(view)
    try:
        return moved.reshaped(shape)
    except AxisSplitError:
        return regrouped_to(reader, moved, shape)


def regrouped_to(reader: GraphReader, view: View, shape: Sequence[Size]) -> View:
    """Return a copy for a shape without common factors: all dimensions become one axis, which is split into the new
    shape.
    """
    view = reader.recorder.whole_spread(view.fresh(), range(len(view.dims)))
    slots = [slot for row in view.dims for slot in row]
    whole = AxisClass(product([slot.axis.root.size for slot in slots]), whole=True)
    read = NamedView(view, tuple(range(len(view.dims))))
    flat = reader.recorder.placed([read], read, [WrittenAxis(whole, AxisIndex(in_one(slots)))], "flat")
    rows = [() if equal(size, 1) else (ViewAxis(AxisClass(size)),) for size in shape]
    return flat.at(flat.dims[0][0], in_one([slot for row in rows for slot in row])).with_dims(rows)


@view_rule("view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze")
def _reshape_to_result(reader: GraphReader, x: View, *_: Any) -> View:
    return reshaped(reader, x, list(shape_of(reader.node)))


@view_rule("clone", "alias", "lift_fresh_copy", "lift_fresh", "_to_copy", "type_as", "_assert_tensor_metadata")
def _same(reader: GraphReader, x: View, *_: Any, **__: Any) -> Any:
    val = reader.node.meta["val"]
    if has_fraction(val) or x.stored.kind in ("truth", "chosen"):
        return x
    return RULES["ne"](reader, x, 0.0) if val.dtype == torch.bool else IntegerValue(trunc(reader, x), reader.node)


@view_rule("permute", "permute_copy")
def _permute(reader: GraphReader, x: View, order: Sequence[int]) -> View:
    return x.permuted([place % len(x.dims) for place in order])


@view_rule("transpose")
def _transpose(reader: GraphReader, x: View, first: int, second: int) -> View:
    order = list(range(len(x.dims)))
    if not order:
        return x
    first, second = first % len(order), second % len(order)
    order[first], order[second] = order[second], order[first]
    return x.permuted(order)


@view_rule("t")
def _t(reader: GraphReader, x: View) -> View:
    return x if len(x.dims) < 2 else _transpose(reader, x, -2, -1)


@view_rule("expand", "expand_copy")
def _expand(reader: GraphReader, x: View, *_: Any, **__: Any) -> View:
    return x.expanded(list(shape_of(reader.node)))


@view_rule("repeat")
def _repeat(reader: GraphReader, x: View, repeats: Sequence[Any]) -> View:
    counts = sizes(repeats)
    rows = [() for _ in range(len(counts) - len(x.dims))] + list(x.dims)
    counts = [1] * (len(rows) - len(counts)) + counts
    spread = set(x.spread)
    for place, count in enumerate(counts):
        if not equal(count, 1):
            slot = ViewAxis(AxisClass(count))
            spread.add(slot)
            rows[place] = (slot, *rows[place])
    return replace(x, dims=tuple(rows), spread=frozenset(spread))


def narrowed(
    reader: GraphReader, view: View, dim: int, start: Size, size: Size, step: int = 1, parts: bool = True
) -> View:
    """Return a slice of a dimension: `size` elements from a start, with a step. It selects a part of a split axis if
    the sizes divide.
    """
    view = view.fresh()
    dim %= len(view.dims)
    total = view.shape[dim]
    if equal(total, size) and step == 1:
        return view
    row = view.dims[dim]
    if equal(size, 0) or not row:
        raise reader.refusal("an empty slice")
    if step == 1 and parts and (short := _of_parts(view, dim, start, size)) is not None:
        return short
    if row and all(slot in view.spread for slot in row):
        only = ViewAxis(AxisClass(size))
        rows = [*view.dims]
        rows[dim] = () if equal(size, 1) else (only,)
        return replace(view, dims=tuple(rows), spread=view.spread | {only})
    view = merged(reader, view, dim)
    new = ViewAxis(AxisClass(size, view.dims[dim][0].axis.root.letter))
    return view.read(dim, (), (), start) if equal(size, 1) else view.read(dim, (new,), ((step, new),), start)


def _of_parts(view: View, dim: int, start: Size, size: Size) -> View | None:
    """Return the slice as one part of a split axis, such as a third of fused query, key and value rows; None if it is
    not one.
    """
    row = view.dims[dim]
    total = product([slot.axis.root.size for slot in row])
    if not row or quotient(total, size) is None or quotient(start, size) is None:
        return None
    count = quotient(total, size)
    if not isinstance(count, int):
        return None
    try:
        unflattened = view.reshaped([*view.shape[:dim], count, size, *view.shape[dim + 1 :]])
    except AxisSplitError:
        return None
    outer = unflattened.dims[dim]
    rows = [*unflattened.dims[:dim], *unflattened.dims[dim + 1 :]]
    if len(outer) > 1:
        return None
    number = quotient(start, size)
    if equal(number, 0) and not outer:
        return unflattened.with_dims(rows)
    return unflattened.at(outer[0], (), number).with_dims(rows) if isinstance(number, int) else None


def merged(reader: GraphReader, view: View, dim: int) -> View:
    """Return the same values with a dimension that is one axis."""
    return reader.recorder.merged(view, dim)


@view_rule("select", "select_copy.int")
def _select(reader: GraphReader, x: View, dim: int, place: Any) -> View:
    dim %= len(x.dims)
    taken = narrowed(reader, x, dim, _from_front(place, x.shape[dim]), 1)
    rows = [*taken.dims]
    rows.pop(dim)
    return taken.with_dims(rows)


def _from_front(value: Any, total: Size) -> Size:
    """Convert an index that may count from the end; if symbols cannot decide, as in the example, which the graph
    guards.
    """
    at = size_of(value)
    if isinstance(at, int):
        return at + total if at < 0 else at
    negative = at.is_negative
    if negative is None and (hint := getattr(getattr(value, "node", None), "hint", None)) is not None:
        negative = int(hint) < 0
    return simple(at + total) if negative else at


def bound(value: Any, total: Size, default: Size) -> Size:
    """Convert a bound of a slice to an index from the front, clamped to the axis."""
    if value is None:
        return default
    at = _from_front(value, total)
    if isinstance(at, int) and isinstance(total, int):
        at = min(at, total)
    elif isinstance(at, int) and at >= 2**62:
        at = total
    if isinstance(at, int) and isinstance(total, int):
        return max(0, at)
    return at


@view_rule("slice", "slice_copy.Tensor")
def _slice(reader: GraphReader, x: View, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Any:
    dim %= len(x.dims)
    total = x.shape[dim]
    shape = list(shape_of(reader.node))
    if equal(shape[dim], 0):  # nothing of it is read
        return GivenTensor(reader.node)
    return narrowed(reader, x, dim, bound(start, total, 0), shape[dim], step)


@view_rule("split", "split_with_sizes", "split_with_sizes_copy", "unsafe_split.Tensor")
def _split(reader: GraphReader, x: View, _: Any, dim: int = 0, **__: Any) -> list[View | None]:
    dim %= len(x.dims)
    parts: list[View | None] = []
    start: Size = 0
    sizes_of_parts = [size_of(value.shape[dim]) for value in reader.node.meta["val"]]
    identical = all(equal(size, sizes_of_parts[0]) for size in sizes_of_parts)
    if not identical:
        x = merged(reader, x, dim)
    for size in sizes_of_parts:
        parts.append(None if equal(size, 0) else narrowed(reader, x, dim, start, size, parts=identical))
        start = start + size
    return parts


@view_rule("unbind")
def _unbind(reader: GraphReader, x: View, dim: int = 0) -> list[View]:
    return [_select(reader, x, dim, place) for place in range(len(reader.node.meta["val"]))]


@view_rule("flip")
def _flip(reader: GraphReader, x: View, dims: Sequence[int]) -> View:
    for dim in dims:
        if not x.dims[dim]:
            continue
        x = merged(reader, x, dim).fresh()
        axis = x.dims[dim][0].axis.root
        new = ViewAxis(AxisClass(axis.size, axis.letter))
        x = x.read(dim, (new,), ((-1, new),), axis.size - 1)
    return x


@view_rule("unfold")
def _unfold(reader: GraphReader, x: View, dim: int, size: int, step: int) -> View:
    dim %= len(x.dims)
    shape = list(shape_of(reader.node))
    if not x.dims[dim]:  # a window of one element over one element
        return x.with_dims([*x.dims, ()])
    x = merged(reader, x, dim)
    at = () if equal(shape[dim], 1) else (ViewAxis(AxisClass(shape[dim], x.dims[dim][0].axis.root.letter)),)
    window = () if size == 1 else (ViewAxis(AxisClass(size, "u")),)
    x = x.read(dim, at, (*((step, each) for each in at), *((1, each) for each in window)))
    return x.with_dims([*x.dims, window])


NEAREST = tuple(f"{name}{count}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for count in (1, 2, 3))
"""Operators that copy the nearest position."""


def is_uneven(node: Any) -> bool:
    """Return whether some position is not repeated as often as the others."""
    before, after = shape_of(node.args[0])[2:], shape_of(node)[2:]
    factors = node.args[2:]
    scales = [*(factors[0] if factors and isinstance(factors[0], list | tuple) else factors), *(None for _ in after)]
    times = [quotient(new, old) for new, old in zip(after, before, strict=True)]
    return not all(isinstance(n, int) and scale in (None, n) for n, scale in zip(times, scales, strict=False))


@rule(*NEAREST)
def nearest(reader: GraphReader, x: View, *_: Any) -> View:
    x = x.fresh()  # once: another call would make other slots
    rows, spread = list(x.dims), set(x.spread)
    for dim, (new, old) in enumerate(zip(shape_of(reader.node), x.shape, strict=True)):
        if not equal(new, old):
            slot = ViewAxis(AxisClass(quotient(new, old)))
            spread.add(slot)
            rows[dim] = (*rows[dim], slot)
    return replace(x, dims=tuple(rows), spread=frozenset(spread))
