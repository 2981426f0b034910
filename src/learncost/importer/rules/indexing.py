"""Reads and writes at indices: embeddings, gathers, scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from learncost.importer.axes import AxisClass, Size, equal
from learncost.importer.equations import Equation, NamedView
from learncost.importer.nodes import shape_of
from learncost.importer.opaque import opaque
from learncost.importer.operands import ChosenPlaces, GivenTensor
from learncost.importer.reader import AS_RUN, GraphReader
from learncost.importer.rule import index_rule
from learncost.importer.rules.views import called, merged, narrowed
from learncost.importer.views import At, Index, View, ViewAxis


def at_index(reader: GraphReader, x: View, dim: int, places: View, dims: Sequence[int]) -> View:
    """Return the view indexed along a dimension; `dims` are the positions of the index's dimensions in the result."""
    slot = x.dims[dim][0]
    slot.axis.keep_whole()
    index = tuple(At(places) if each is slot else each for each in x.index)
    if not any(each is slot for each in x.index):  # it is indexed already: copy first
        x = reader.recorder.regrouped_whole(x)
        return at_index(reader, x, dim, places, dims)
    rows = [row for number, row in enumerate(x.dims) if number != dim]
    for place, row in zip(dims, places.dims, strict=True):
        rows.insert(place, row)
    return View(x.stored, index, tuple(rows), x.spread | places.spread)


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
    letters: list[Any] = (
        [("chosen" if number == dim else number) for number in range(len(x.dims))] if chosen else list(others)
    )
    if (len(places.dims) == 1 and not chosen and len(x.dims) != 2) or (
        len(places.dims) == 1 and places.dims[0] and places.stored.kind == "places"
    ):
        letters = ["chosen"]
    names = list(range(len(x.dims)))
    # The axes of the index and those of the value are the same.
    for letter, row in zip(letters, places.dims, strict=True):
        if letter != "chosen" and row and x.dims[letter]:
            reader.recorder.same(row, x.dims[letter], x, places)
    x, places = x.fresh(), places.fresh()
    swap: dict[ViewAxis, ViewAxis] = {}
    for letter, row in zip(letters, places.dims, strict=True):
        if letter != "chosen" and row and x.dims[letter]:
            swap |= dict(zip(row, x.dims[letter], strict=True))
    places = places.swapped(swap)
    slot = x.dims[dim][0]
    slot.axis.keep_whole()
    if not any(each is slot for each in x.index):
        return read_at(reader, reader.recorder.regrouped_whole(x), dim, places)
    index = tuple(At(places) if each is slot else each for each in x.index)
    rows = [x.dims[name] for name in names if name != dim]
    if "chosen" in letters:
        rows.insert(dim, places.dims[letters.index("chosen")])
    along = {each for row in places.dims for each in row if each not in places.spread}
    return taken(reader, View(x.stored, index, tuple(rows), x.spread - along))


def only(reader: GraphReader, x: View, dim: int, sizes: Sequence[Size]) -> View:
    """Return the only position of a dimension, broadcast to these sizes."""
    new = [() if equal(size, 1) else (ViewAxis(AxisClass(size)),) for size in sizes]
    dims = (*x.dims[:dim], *new, *x.dims[dim + 1 :])
    return taken(reader, View(x.stored, x.index, dims, x.spread | {slot for row in new for slot in row}))


@index_rule("embedding")
def embedding(
    reader: GraphReader, weight: Any, tokens: Any, padding: int = -1, by_frequency: bool = False, *_: Any
) -> View:
    if by_frequency:
        raise reader.refusal("an embedding with scale_grad_by_freq")
    weight = merged(reader, reader.view(weight), 0)
    called(weight, "v", "d")
    if not weight.dims[0]:
        row = only(reader, weight, 0, shape_of(reader.node)[:-1])
        return reader.op("stop_gradient", row) if padding == 0 else row
    if (start := reader.start(tokens)) is not None:  # consecutive positions: a part of the rows
        shape = list(shape_of(reader.node))
        rows = weight.dims[0][0].axis.size
        if isinstance(rows, int):
            reader.limits[shape[-2]] = min(rows - start, reader.limits.get(shape[-2], rows))
        new = tuple(ViewAxis(AxisClass(size)) for size in shape[:-1] if not equal(size, 1))
        dims = [(new[0],) if not equal(size, 1) else () for size in shape[:-1]]
        read = weight.at(weight.dims[0][0], tuple((1, slot) for slot in new), start)
        return taken(reader, read.with_dims([*dims, weight.dims[1]]), "E")
    places = reader.index(tokens, weight.dims[0][0].axis)
    rows = taken(reader, at_index(reader, weight, 0, places, range(len(places.dims))), "E")
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
    together = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if together else 0
    rows_of_index: list[tuple[ViewAxis, ...]] | None = None
    result = x
    for dim in dims:
        result = merged(reader, result, dim)
        if not result.dims[dim]:  # of size one
            continue
    slots = {dim: (result.dims[dim][0] if result.dims[dim] else None) for dim in dims}
    if any(slot is not None and not any(each is slot for each in result.index) for slot in slots.values()):
        result = reader.recorder.regrouped_whole(result)
        slots = {dim: (result.dims[dim][0] if result.dims[dim] else None) for dim in dims}
    bound = []
    for dim in dims:
        slot = slots[dim]
        if slot is None:
            continue
        bound.append((slot, reader.index(indices[dim], slot.axis)))
    reads = [NamedView(view, tuple(range(most - len(view.dims), most))) for _, view in bound]
    reads = reader.recorder.bound(reads)  # type: ignore[assignment]
    rows_of_index = [() for _ in range(most)]
    for read in reads:
        for letter, row in zip(read.letters, read.view.dims, strict=True):
            if row and not rows_of_index[letter]:  # type: ignore[call-overload]
                rows_of_index[letter] = row  # type: ignore[call-overload]
    for letter, size in enumerate(shape_of(reader.node)[first : first + most]):
        if not rows_of_index[letter] and not equal(size, 1):  # many read the only position
            rows_of_index[letter] = (ViewAxis(AxisClass(size)),)
    index = list(result.index)
    real: set[ViewAxis] = set()
    for (slot, _), read in zip(bound, reads, strict=True):
        swap = {
            old: new
            for letter, row in zip(read.letters, read.view.dims, strict=True)
            for old, new in zip(row, rows_of_index[letter], strict=bool(row))  # type: ignore[call-overload]
        }
        places = read.view.swapped(swap)
        real.update(each for row in places.dims for each in row if each not in places.spread)
        index[next(place for place, each in enumerate(index) if each is slot)] = At(places)
    rows = [row for dim, row in enumerate(result.dims) if dim not in dims]
    rows[first:first] = rows_of_index
    spread = result.spread | {slot for row in rows_of_index for slot in row if slot not in real}
    return taken(reader, View(result.stored, tuple(index), tuple(rows), spread))


def _dims(value: Any) -> Any:
    return value.view.dims if isinstance(value, ChosenPlaces) else value.shape


@index_rule("masked_select")
def masked_select(reader: GraphReader, *_: Any) -> View:
    raise reader.refusal("a selection by a mask", AS_RUN)


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
    recorder = reader.recorder
    whole = AxisClass(shape[dim], whole=True)
    index = reader.index(places, whole)
    if len(index.dims) > 1 and source.dims[dim] and index.spread.issuperset(index.dims[dim]):  # all at one position
        total = reader.along("sum", source, [dim], keep=False)
        source = total.with_dims([*total.dims[:dim], (), *total.dims[dim:]])
        index = index.with_dims([() if place == dim else row for place, row in enumerate(index.dims)])
    if len(index.dims) == 1:  # one index for each row
        letters: list[Any] = [dim]
    else:
        letters = list(range(len(shape)))
    reads = recorder.bound([NamedView(source, tuple(range(len(shape)))), NamedView(index, tuple(letters))])
    source_read, index_read = reads
    assert isinstance(source_read, NamedView)
    assert isinstance(index_read, NamedView)
    swap = {
        old: new
        for letter, row in zip(index_read.letters, index_read.view.dims, strict=True)
        for old, new in zip(row, source_read.view.dims[letter], strict=True)  # type: ignore[call-overload]
    }
    at = At(index_read.view.swapped(swap))
    axes: list[AxisClass] = []
    write_index: list[Index] = []
    read_index: list[Index] = []
    rows: list[tuple[ViewAxis, ...]] = []
    for number, row in enumerate(source_read.view.dims):
        if number == dim:
            axes.append(whole)
            write_index.append(at)
            slot = ViewAxis(whole)
            read_index.append(slot)
            rows.append((slot,))
            continue
        new = tuple(ViewAxis(slot.axis) for slot in row)
        rows.append(new)
        axes += [slot.axis for slot in row]
        write_index += list(row)
        read_index += list(new)
    stored = recorder.stored(axes)
    left = View(stored, tuple(write_index), source_read.view.dims)
    recorder.add(Equation("product", (NamedView(left, source_read.letters),), (source_read,)))
    result = View(stored, tuple(read_index), tuple(rows))
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
    shape = places.view.shape if isinstance(places, ChosenPlaces) else places.shape
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
    reader: GraphReader,
    base: Any,
    dim: int,
    places: Any,
    source: Any,
    reduce: str = "",
    *,
    include_self: bool = True,
) -> View:
    """Record values scattered along a dimension: added, averaged, or replacing the base.

    If several values replace the same element, PyTorch leaves the result undefined; here they are added.
    """
    name = reader.recorder.operator
    if reduce not in ("", "sum", "add", "mean"):
        return opaque(reader, reader.node, [base, places, source])  # type: ignore[no-any-return]
    dim %= max(1, len(reader.node.meta["val"].shape))
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
    if not any(values.dims):  # the same number, however often a position is written
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
    recorder = reader.recorder
    wholes = {dim: AxisClass(shape[dim], whole=True) for dim in dims}
    index_views = [
        each if isinstance(each, View) else reader.index(each, wholes[dim])
        for dim, each in zip(dims, places, strict=True)
    ]
    most = max(len(view.dims) for view in index_views)
    sizes: list[Size] = [1] * most
    for view in index_views:
        for place, size in enumerate(view.shape, most - len(view.dims)):
            if not equal(size, 1):
                sizes[place] = size
    first = dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0
    others = [dim for dim in range(len(shape)) if dim not in dims]
    before = [dim for dim in others if dim < first] if first else []
    after = [dim for dim in others if dim not in before]
    letters: list[Any] = [*(("o", dim) for dim in before), *range(most), *(("o", dim) for dim in after)]
    values = reader.view(source).expanded([*(shape[d] for d in before), *sizes, *(shape[d] for d in after)])
    values = recorder.whole_spread(values, range(len(values.dims)))
    reads = recorder.bound(
        [
            NamedView(values, tuple(letters)),
            *(NamedView(view, tuple(range(most - len(view.dims), most))) for view in index_views),
        ]
    )
    source_read = reads[0]
    assert isinstance(source_read, NamedView)
    rows_of = dict(zip(letters, source_read.view.dims, strict=True))
    write: dict[int, list[Index]] = {}
    axes: dict[int, list[AxisClass]] = {}
    rows: dict[int, tuple[ViewAxis, ...]] = {}
    for dim, read in zip(dims, reads[1:], strict=True):
        assert isinstance(read, NamedView)
        swap = {
            old: new
            for letter, row in zip(read.letters, read.view.dims, strict=True)
            for old, new in zip(row, rows_of[letter], strict=bool(row))
        }
        write[dim], axes[dim], rows[dim] = [At(read.view.swapped(swap))], [wholes[dim]], (ViewAxis(wholes[dim]),)
    for dim in others:
        row = rows_of["o", dim]
        write[dim], axes[dim] = list(row), [slot.axis for slot in row]
        rows[dim] = tuple(ViewAxis(slot.axis) for slot in row)
    order = range(len(shape))
    stored = recorder.stored([axis for dim in order for axis in axes[dim]])
    left = View(stored, tuple(index for dim in order for index in write[dim]), source_read.view.dims)
    recorder.add(Equation("product", (NamedView(left, source_read.letters),), (source_read,)))
    result = View(stored, tuple(slot for dim in order for slot in rows[dim]), tuple(rows[dim] for dim in order))
    if base is None or (isinstance(base, GivenTensor) and reader.constant(base) == 0.0):
        return result
    return reader.add(base, result)
