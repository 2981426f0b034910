"""Reads and writes at indices: embeddings, gathers, scatters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from learncost.importer.axes import AxisClass, Size, equal
from learncost.importer.equations import NamedView, WrittenAxis
from learncost.importer.nodes import shape_of
from learncost.importer.opaque import opaque
from learncost.importer.reader import AS_RUN, GraphReader
from learncost.importer.rule import index_rule
from learncost.importer.rules.views import called, merged, narrowed
from learncost.importer.views import Dimension, GivenTensor, IndexedAxis, SelectedPositions, View, ViewAxis


def at_indices(
    reader: GraphReader,
    x: View,
    places: Mapping[int, tuple[View, Sequence[Any]]],
    out: Sequence[Any],
    shape: Sequence[Size] = (),
) -> View:
    """Return the view indexed along dimensions of one axis each.

    places  the index of a dimension, with a letter for each dimension of the index: the number of the dimension of x
            that it goes along, or a new letter
    out     the letters of the result
    shape   the sizes of the result, where it has dimensions along which many read the only position
    """
    if any(not any(each is slot for each in x.index) for dim in places for slot in x.dims[dim]):
        x = reader.recorder.regrouped_whole(x)  # it is indexed already: copy first
    letters = tuple(("at", dim) if dim in places else dim for dim in range(len(x.dims)))
    reads = reader.recorder.bound(
        [NamedView(x, letters), *(NamedView(view, tuple(names)) for view, names in places.values())]
    )
    views = [(each.view, each.letters) for each in reads if isinstance(each, NamedView)]
    rows = dict[Any, Dimension]()
    real = set[ViewAxis]()
    for view, names in views:
        for name, row in zip(names, view.dims, strict=True):
            rows[name] = rows.get(name) or row
            pairs = zip(rows[name], row, strict=bool(row))
            real.update(mine for mine, slot in pairs if slot not in view.spread)
    for name, size in zip(out, shape, strict=False):
        if not rows.get(name) and not equal(size, 1):
            rows[name] = (ViewAxis(AxisClass(size)),)
    (x, _), *others = views
    index = list(x.index)
    for dim, (view, names) in zip(places, others, strict=True):
        (slot,) = x.dims[dim]
        slot.axis.keep_whole()
        index[next(place for place, each in enumerate(index) if each is slot)] = _along(view, names, rows)
    dims = tuple(rows.get(name, ()) for name in out)
    return View(x.stored, tuple(index), dims, frozenset(slot for row in dims for slot in row if slot not in real))


def _along(view: View, letters: Sequence[Any], rows: Mapping[Any, Dimension]) -> IndexedAxis:
    """Return an index that goes along the rows of its letters."""
    pairs = ((row, rows[name]) for name, row in zip(letters, view.dims, strict=True) if row)
    return IndexedAxis(view.swapped({old: new for row, known in pairs for old, new in zip(row, known, strict=True)}))


def taken(reader: GraphReader, view: View, hint: str = "") -> View:
    """Record an indexed read as a line."""
    letters = tuple(range(len(view.dims)))
    return reader.recorder.line([(view, letters)], letters, hint=hint)


def read_at(reader: GraphReader, x: View, dim: int, places: View) -> View:
    """Record `gather` with one index for each of the other dimensions: P[B M v=targets[B M]]; the index keeps its
    shape.
    """
    x = merged(reader, x, dim)
    others = [number for number in range(len(x.dims)) if number != dim]
    chosen = len(places.dims) == len(x.dims)  # as many elements as the index has along this dimension
    letters: list[Any] = [*others[:dim], "chosen", *others[dim:]] if chosen else list(others)
    if len(places.dims) == 1 and not chosen and len(x.dims) != 2:
        letters = ["chosen"]
    out = [*others[:dim], *["chosen"][: "chosen" in letters], *others[dim:]]
    return taken(reader, at_indices(reader, x, {dim: (places, letters)}, out))


@index_rule("embedding")
def embedding(
    reader: GraphReader, weight: Any, tokens: Any, padding: int = -1, by_frequency: bool = False, *_: Any
) -> View:
    if by_frequency:
        raise reader.refusal("an embedding with scale_grad_by_freq")
    weight = merged(reader, reader.view(weight), 0)
    called(weight, "v", "d")
    if not weight.dims[0]:
        shape = shape_of(reader.node)
        names = [("i", place) for place in range(len(shape) - 1)]
        row = taken(reader, at_indices(reader, weight, {}, [*names, 1], shape))
        return reader.op("stop_gradient", row) if padding == 0 else row
    start = reader.constants.start(tokens.node) if isinstance(tokens, GivenTensor) else None
    if start is not None:  # consecutive positions: a part of the rows
        shape = shape_of(reader.node)
        rows = weight.dims[0][0].axis.size
        if isinstance(rows, int):
            reader.limits[shape[-2]] = min(rows - start, reader.limits.get(shape[-2], rows))
        new = tuple(ViewAxis(AxisClass(size)) for size in shape[:-1] if not equal(size, 1))
        dims = [(new[0],) if not equal(size, 1) else () for size in shape[:-1]]
        read = weight.at(weight.dims[0][0], tuple((1, slot) for slot in new), start)
        return taken(reader, read.with_dims([*dims, weight.dims[1]]), "E")
    places = reader.index(tokens, weight.dims[0][0].axis)
    names = [("i", place) for place in range(len(places.dims))]
    rows = taken(reader, at_indices(reader, weight, {0: (places, names)}, [*names, 1]), "E")
    if padding < 0 or not isinstance(tokens, GivenTensor):
        return rows
    # The row of the padding is read, and has no gradient (torch.nn.Embedding's padding_idx).
    kept = reader.outside(tokens, f"unlike {padding}")
    return reader.op("select", kept.with_dims([*kept.dims, ()]), rows, reader.op("stop_gradient", rows))


@index_rule("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(reader: GraphReader, x: Any, indices: Sequence[Any]) -> View:
    x = reader.view(x)
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = [node for node in reader.node.args[1] if node is not None]
    if any(node.meta["val"].dtype == torch.bool for node in given):
        raise reader.refusal("a selection by a mask", AS_RUN)
    most = max(len(_dims(indices[dim])) for dim in dims)
    for dim in dims:
        x = merged(reader, x, dim)
    if any(not any(each is slot for each in x.index) for dim in dims for slot in x.dims[dim]):
        x = reader.recorder.regrouped_whole(x)
    views = {dim: reader.index(indices[dim], slot.axis) for dim in dims for slot in x.dims[dim]}
    names = [("i", place) for place in range(most)]
    places = {dim: (view, names[most - len(view.dims) :]) for dim, view in views.items()}
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    out: list[Any] = [dim for dim in range(len(x.dims)) if dim not in dims]
    out[first:first] = names
    return taken(reader, at_indices(reader, x, places, out, shape_of(reader.node)))


def _dims(value: Any) -> Any:
    return value.view.dims if isinstance(value, SelectedPositions) else value.shape


@index_rule("gather")
def gather(reader: GraphReader, x: Any, dim: int, places: Any, **_: Any) -> View:
    x = reader.view(x)
    dim %= max(1, len(x.dims))
    if not x.dims[dim]:  # all indices are the only position
        return reader.view(x).expanded(list(shape_of(reader.node)))
    x = merged(reader, x, dim)
    index = reader.index(places, x.dims[dim][0].axis)
    for other in range(len(x.dims)):  # a gather may read a part of the other dimensions
        if other != dim and not equal(x.shape[other], index.shape[other]):
            x = narrowed(reader, x, other, 0, index.shape[other])
    return read_at(reader, x, dim, index)


def written(reader: GraphReader, base: Any, dim: int, places: Any, source: Any) -> View:
    """Record a sum of a base and a source that is scattered along a dimension."""
    source = reader.view(source)
    shape = list(shape_of(reader.node))
    axis = AxisClass(shape[dim], whole=True)
    index = reader.index(places, axis)
    if len(index.dims) > 1 and source.dims[dim] and index.spread.issuperset(index.dims[dim]):  # all at one position
        total = reader.along("sum", source, [dim], keep=False)
        source = total.with_dims([*total.dims[:dim], (), *total.dims[dim:]])
        index = index.with_dims([() if place == dim else row for place, row in enumerate(index.dims)])
    letters = [("i", number) if number == dim else number for number in range(len(shape))]
    names = [("i", dim)] if len(index.dims) == 1 else letters  # one index for each row
    return _added(reader, base, shape, {dim: (axis, index, names)}, source, letters)


def _added(
    reader: GraphReader,
    base: Any,
    shape: Sequence[Size],
    places: Mapping[int, tuple[AxisClass, View, Sequence[Any]]],
    source: View,
    letters: Sequence[Any],
) -> View:
    """Record a sum of a base and a source that is written at indices of some dimensions.

    places   the axis of a dimension, its index, and the letters of that
    letters  those of the source: of an index, or the numbers of the other dimensions
    """
    named = [NamedView(view, tuple(names)) for _, view, names in places.values()]
    reads = reader.recorder.bound([NamedView(source, tuple(letters)), *named])
    value, *indices = [each for each in reads if isinstance(each, NamedView)]
    rows = dict(zip(value.letters, value.view.dims, strict=True))
    dims: list[Dimension | WrittenAxis] = [rows.get(number, ()) for number in range(len(shape))]
    for (dim, (axis, *_)), each in zip(places.items(), indices, strict=True):
        dims[dim] = WrittenAxis(axis, _along(each.view, each.letters, rows))
    result = reader.recorder.placed([value], value, dims)
    if base is None or (isinstance(base, GivenTensor) and reader.constant(base) == 0.0):
        return result
    return reader.add(base, result)


def hits(reader: GraphReader, dim: int, places: Any, source: View) -> View:
    """Return how often each position is written."""
    return written(reader, None, dim, places, reader.filled(source.shape, 1.0))


def over(reader: GraphReader, base: Any, count: View, new: View) -> View:
    """Return new values where something is written, and the base elsewhere."""
    for dim, row in enumerate(new.dims):
        if isinstance(base, View) and len(row) == 1 and row[0].axis.root.whole:  # as both others are read along it
            base = merged(reader, base, dim)
    return reader.op("select", count, new, base)  # no product with zeros: a base may be infinite


def _fitting(reader: GraphReader, source: Any, places: Any) -> View:
    """Return a source narrowed to the index if that is smaller; a number is broadcast to the index."""
    shape = places.view.shape if isinstance(places, SelectedPositions) else places.shape
    if isinstance(source, int | float):
        return reader.multiply(reader.filled(shape, 1.0), float(source))
    view = reader.view(source)
    for dim, size in enumerate(shape):
        if not equal(view.shape[dim], size):
            view = narrowed(reader, view, dim, 0, size)
    return reader.recorder.whole_spread(view, range(len(view.dims)))


@index_rule("scatter_add", "scatter.src", "scatter.value")
@index_rule("scatter_reduce.two", "scatter.reduce", "scatter.value_reduce")
def scatter(
    reader: GraphReader, base: Any, dim: int, places: Any, source: Any, reduce: str = "", *, include_self: bool = True
) -> View:
    """Record values scattered along a dimension: added, averaged, or replacing the base.

    If several values replace the same element, PyTorch leaves the result undefined; here they are added.
    """
    name = reader.recorder.operator
    shape, index = (shape_of(node) for node in (reader.node, reader.node.args[2]))
    dim %= max(1, len(shape))
    sides = enumerate(zip(shape, index, strict=False))
    writes_a_part = any(not equal(*pair) for other, pair in sides if other != dim)
    if reduce not in ("", "sum", "add", "mean") or writes_a_part:
        return opaque(reader, reader.node, [base, places, source])  # type: ignore[no-any-return]
    number, source = source, _fitting(reader, source, places)
    if name == "scatter_add" or (reduce in ("sum", "add") and include_self):
        return written(reader, base, dim, places, source)
    if reduce == "mean":
        return _averaged(reader, base, dim, places, source, include_self)
    new, count = written(reader, None, dim, places, source), hits(reader, dim, places, source)
    if isinstance(number, int | float):  # the same number, however often a position is written
        new = reader.multiply(reader.op("at_most", count, 1.0), float(number))
    return over(reader, base, count, new)


def _averaged(reader: GraphReader, base: Any, dim: int, places: Any, source: View, include_self: bool) -> View:
    new, count = written(reader, None, dim, places, source), hits(reader, dim, places, source)
    if include_self:
        return reader.op("divide", reader.add(base, new), reader.add(count, 1.0))
    return over(reader, base, count, reader.op("divide", new, reader.op("maximum", count, 1.0)))


@index_rule("index_put", "_unsafe_index_put")
def index_put(reader: GraphReader, base: Any, indices: Sequence[Any], source: Any, accumulate: bool = False) -> View:
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    masks = [indices[dim] for dim in dims if _is_truth(indices[dim])]
    if masks:
        (mask,) = masks if len(masks) == 1 else (None,)
        values = reader.view(source)
        if mask is None or len(dims) != 1 or dims[0] != 0 or any(row for row in values.dims) or accumulate:
            raise reader.refusal("a write of several values at a mask", AS_RUN)
        rest = len(reader.node.meta["val"].shape) - len(_dims(mask))
        held = reader.view(mask)
        return reader.op("select", held.with_dims([*held.dims, *[()] * rest]), values.with_dims([]), base)
    shape = list(shape_of(reader.node))
    places = [indices[dim] for dim in dims]
    if accumulate:
        return put(reader, base, shape, dims, places, source)
    count = put(reader, None, shape, dims, places, reader.filled((), 1.0))
    values = reader.view(source)
    if all(slot in values.spread for row in values.dims for slot in row):  # one number, however often it is written
        new = reader.multiply(reader.op("at_most", count, 1.0), values.with_dims([]))
    else:
        new = put(reader, None, shape, dims, places, source)
    return over(reader, base, count, new)


def _is_truth(value: Any) -> bool:
    if isinstance(value, View):
        return value.stored.kind == "truth"
    return isinstance(value, GivenTensor) and value.node.meta["val"].dtype == torch.bool


def put(
    reader: GraphReader, base: Any, shape: Sequence[Size], dims: Sequence[int], places: Sequence[Any], source: Any
) -> View:
    """Record a source added at indices of several dimensions, which are broadcast against each other."""
    axes = [AxisClass(shape[dim], whole=True) for dim in dims]
    views = [reader.index(each, axis) for each, axis in zip(places, axes, strict=True)]
    most = max(len(view.dims) for view in views)
    sizes: list[Size] = [1] * most
    for view in views:
        for place, size in enumerate(view.shape, most - len(view.dims)):
            if not equal(size, 1):
                sizes[place] = size
    first = dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0
    others = [dim for dim in range(len(shape)) if dim not in dims]
    names = [("i", place) for place in range(most)]
    letters = [*others[:first], *names, *others[first:]]
    values = reader.view(source).expanded(
        [*(shape[d] for d in others[:first]), *sizes, *(shape[d] for d in others[first:])]
    )
    values = reader.recorder.whole_spread(values, range(len(values.dims)))
    at = {dim: (axis, view, names[most - len(view.dims) :]) for dim, axis, view in zip(dims, axes, views, strict=True)}
    return _added(reader, base, shape, at, values, letters)
