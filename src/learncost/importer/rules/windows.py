"""Convolutions and pooling: indexed reads by positions and window offsets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from learncost.importer.axes import AxisClass, Size, equal, product
from learncost.importer.equations import NamedView, NumberOperand, WrittenAxis
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.normalization import channels, scaled
from learncost.importer.rules.reductions import extreme, summed
from learncost.importer.rules.views import called, merged, reshaped
from learncost.importer.unit_dims import along, at_only_position, matrix_product, written
from learncost.importer.views import AxisIndex, Dimension, View, ViewAxis
from learncost.ir.dataclass import dataclass

SIDES = {1: "x", 2: "yx", 3: "zyx"}
"""The names of the spatial dimensions of signals, images and volumes."""

WINDOWS = {1: "u", 2: "uw", 3: "uwj"}


def several(value: Any, count: int) -> list[Any]:
    """Return a number for each side, repeated if only one is given."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or of pooling, with a number for each side."""

    sizes: Sequence[int]
    strides: Sequence[int]
    paddings: Sequence[int]
    dilations: Sequence[int]

    def along(self, place: int) -> tuple[int, int, int, int]:
        """Return the size, stride, padding and dilation along a side."""
        return self.sizes[place], self.strides[place], self.paddings[place], self.dilations[place]


def windowed(
    reader: GraphReader, x: View, first: int, outs: Sequence[Size], windows: Windows
) -> tuple[View, list[tuple[ViewAxis, ...]]]:
    """Return the view with each side, from dimension `first` on, read at `stride i + dilation u - padding`.

    Its sides become the window positions; the second result has the slots of each window's side.
    """
    rows_of_windows: list[tuple[ViewAxis, ...]] = []
    for dim in range(first, first + len(outs)):  # all sides first: a copy has no windows yet
        x = merged(reader, x, dim)
        if not x.dims[dim]:  # a side of size one, of which a window may read more
            x = written(reader.recorder, x, dim, "x")
        place = dim - first
        size, stride, padding, dilation = windows.along(place)
        if padding or not _inside(x.shape[dim], outs[place], size, stride, dilation):
            x = reader.recorder.bounded(x, dim)
    for place, out in enumerate(outs):
        dim = first + place
        size, stride, padding, dilation = windows.along(place)
        at = () if equal(out, 1) else (ViewAxis(AxisClass(out, x.dims[dim][0].axis.root.letter)),)
        window = () if size == 1 else (ViewAxis(AxisClass(size, WINDOWS[len(outs)][place])),)
        if not (size == 1 and stride == 1 and padding == 0) or not at:
            parts = [(stride, each) for each in at] + [(dilation, each) for each in window]
            x = x.read(dim, at, tuple(parts), -padding)
        rows_of_windows.append(window)
    return x, rows_of_windows


def _inside(side: Size, out: Size, size: int, stride: int, dilation: int) -> bool:
    """Return whether all windows are known to be inside the side."""
    last = (out - 1) * stride + (size - 1) * dilation
    return last < side if isinstance(last, int) and isinstance(side, int) else equal(last, side - 1)


def _in_groups(reader: GraphReader, x: View, weight: View, groups: int) -> tuple[View, View]:
    """Return a convolution's operands with their channels in groups."""
    if groups == 1:
        return x, weight
    x = reshaped(reader, x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    return x, reshaped(reader, weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])


def _depthwise(weight: View, groups: int) -> bool:
    """Return whether each group has one channel in and one out, so that its weight, in groups, is not a matrix."""
    return groups > 1 and all(equal(size, 1) for size in weight.shape[1:3])


@rule("convolution")
def convolution(reader: GraphReader, x: Any, weight: Any, bias: Any, *_: Any, **__: Any) -> View:
    settings = reader.settings
    x, weight = reader.view(x), reader.view(weight)
    count = len(weight.dims) - 2
    reader.recorder.operator = f"conv{'_transpose' if settings.transposed else ''}{count}d"
    unbatched = len(x.dims) == count + 1
    if unbatched:
        x = x.with_dims([(), *x.dims])
    if settings.transposed:
        result = _transposed(reader, x, weight, settings)
    else:
        result = _convolved(reader, x, weight, settings)
    if settings.groups > 1:
        channels_out = result.shape[1] * result.shape[2]
        result = reshaped(reader, result, [result.shape[0], channels_out, *result.shape[3:]])
    result = scaled(reader, result, None, channels(bias, reader, len(result.dims)))
    return result.with_dims(result.dims[1:]) if unbatched else result


def _convolved(reader: GraphReader, x: View, weight: View, settings: SimpleNamespace) -> View:
    count, groups = len(weight.dims) - 2, settings.groups
    windows = Windows(
        [size_of(size) for size in weight.shape[2:]],
        *(several(each, count) for each in (settings.stride, settings.padding, settings.dilation)),
    )
    shape = list(shape_of(reader.node))
    outs = shape[-count:]
    called(x, "c", *SIDES[count])
    called(weight, "e", "c", *WINDOWS[count])
    x, weight = _in_groups(reader, x, weight, groups)
    first = 3 if groups > 1 else 2
    x, rows = windowed(reader, x, first, outs, windows)
    sides = [f"o{place}" for place in range(count)]
    inside = [f"u{place}" for place in range(count)]
    x = x.with_dims([*x.dims, *rows])
    group = ["g"] if groups > 1 else []
    letters = ["B", *group, "c", *sides, *inside]
    letters_weight, out = [*group, "e", "c", *inside], ["B", *group, "e", *sides]
    if _depthwise(weight, groups):
        return reader.recorder.matmul([(x, letters), (weight, letters_weight)], out)
    return matrix_product(reader.recorder, x, weight, letters, letters_weight, out)


def _transposed(reader: GraphReader, x: View, weight: View, settings: SimpleNamespace) -> View:
    """Record a transposed convolution: each input element adds a window, written at y = stride i + dilation u -
    padding.
    """
    count, groups = len(weight.dims) - 2, settings.groups
    for place in range(2, count + 2):  # a side that is several axes becomes one: it is written along it
        x, weight = (each if len(each.dims[place]) < 2 else merged(reader, each, place) for each in (x, weight))
    called(x, "c", *SIDES[count])
    called(weight, "c", "e", *WINDOWS[count])
    shape = list(shape_of(reader.node))
    outs = shape[-count:]
    x, weight = _in_groups(reader, x, weight, groups)
    lone = groups > 1 and not _depthwise(weight, groups) and not any((x.dims[0], *x.dims[-count:]))
    if lone:  # the matrix of a group has one row
        x = along(reader.recorder, x, 0, "B")
    sides, windows = [f"o{place}" for place in range(count)], [f"u{place}" for place in range(count)]
    group = ["g"] if groups > 1 else []
    recorder = reader.recorder
    letters = ["B", *group, "c", *sides]
    reads = recorder.bound([NamedView(x, tuple(letters)), NamedView(weight, (*group, "c", "e", *windows))])
    plain = recorder.result(reads, ["B", *group, "e", *sides, *windows])
    strides, paddings, dilations = (
        several(each, count) for each in (settings.stride, settings.padding, settings.dilation)
    )
    kept = len(plain.dims) - 2 * count
    rows: list[Dimension | WrittenAxis] = [*plain.dims[:kept]]
    for place in range(count):
        parts = [(strides[place], slot) for slot in plain.dims[kept + place]]
        parts += [(dilations[place], slot) for slot in plain.dims[kept + count + place]]
        whole = AxisClass(outs[place], SIDES[count][place], whole=True)
        rows.append(WrittenAxis(whole, AxisIndex(tuple(parts), -paddings[place])))
    if plain.spread:
        raise reader.refusal("a transposed convolution of a broadcast value")
    result = recorder.placed(reads, NamedView(plain, ("B", *group, "e", *sides, *windows)), rows)
    for dim in (*([0] if lone else []), *(kept + place for place, out in enumerate(outs) if equal(out, 1))):
        result = at_only_position(result, dim)
    return result


def pool_windows(count: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    sizes = several(kernel, count)
    strides = several(stride, count) if stride not in (None, []) else sizes
    return Windows(sizes, strides, several(padding, count), several(dilation, count))


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    reader: GraphReader,
    x: View,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Any:
    """Record the maximum of each window; the padding is minus infinity."""
    count = int(reader.recorder.operator[8])
    shape = [size_of(size) for size in reader.node.meta["val"][0].shape]
    windows = pool_windows(count, kernel, stride, padding, dilation)
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    view, rows = windowed(reader, x, first, shape[-count:], windows)
    view = view.with_dims([*view.dims, *rows])
    return [extreme(reader, "max", view, range(first + count, len(view.dims)), False), None]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(reader: GraphReader, x: View, kernel: Any, stride: Any = None, padding: Any = 0, *_: Any) -> View:
    """Record the mean of each window; of windows that reach out of the sides, PyTorch decomposes the mean before."""
    count = int(reader.recorder.operator[8])
    windows = pool_windows(count, kernel, stride, padding)
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    view, rows = windowed(reader, x, first, shape_of(reader.node)[-count:], windows)
    view = view.with_dims([*view.dims, *rows])
    share = NumberOperand(1.0 / (getattr(reader.settings, "divisor_override", None) or product(windows.sizes)))
    return summed(reader, view, range(first + count, len(view.dims)), share)
