"""Convolutions and pooling: indexed reads by positions and window offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from learncost.importer.axes import AxisClass, Size, equal, product
from learncost.importer.equations import Equation, NamedView, NumberOperand
from learncost.importer.nodes import shape_of, size_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.enlargements import by_shares, places_of, shares_of
from learncost.importer.rules.movement import joined
from learncost.importer.rules.normalization import channels, scaled
from learncost.importer.rules.reductions import extreme, mean_of, summed
from learncost.importer.rules.views import called, merged, narrowed, reshaped
from learncost.importer.sized import settled
from learncost.importer.unit_dims import along, at_its_place, matrix_product, written
from learncost.importer.views import AxisIndex, View, ViewAxis

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
        row = x.dims[dim]
        size, stride, padding, dilation = windows.along(place)
        slot = row[0]
        letter = slot.axis.root.letter
        at = () if equal(out, 1) else (ViewAxis(AxisClass(out, letter)),)
        window = () if size == 1 else (ViewAxis(AxisClass(size, WINDOWS[len(outs)][place])),)
        if not (size == 1 and stride == 1 and padding == 0) or not at:
            parts = [(stride, each) for each in at] + [(dilation, each) for each in window]
            x = x.at(slot, tuple(parts), -padding)
            rows = list(x.dims)
            rows[dim] = at
            x = x.with_dims(rows)
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


def _joined_groups(reader: GraphReader, result: View, bias: Any, groups: int, unbatched: bool) -> View:
    """Return the result of a convolution with groups merged to channels, bias added, and without an added batch."""
    if groups > 1:
        result = reshaped(reader, result, [result.shape[0], result.shape[1] * result.shape[2], *result.shape[3:]])
    result = scaled(reader, result, None, channels(bias, reader, len(result.dims)))
    return result.with_dims(result.dims[1:]) if unbatched else result


class ConvolutionSettings(NamedTuple):
    """The settings of `conv1d`, `conv2d` and `conv3d`."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class EitherConvolutionSettings(NamedTuple):
    """The settings of `convolution`, which can be transposed."""

    stride: Any
    padding: Any
    dilation: Any
    transposed: bool
    output_padding: Any
    groups: int


class TransposedConvolutionSettings(NamedTuple):
    """The settings of `conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d`."""

    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    dilation: Any = 1


@rule("convolution", "_convolution", settings=EitherConvolutionSettings)
def either_convolution(
    reader: GraphReader, x: Any, weight: Any, bias: Any, *, settings: EitherConvolutionSettings
) -> View:
    either = transposed_convolution if settings.transposed else convolution
    taken = ConvolutionSettings(settings.stride, settings.padding, settings.dilation, settings.groups)
    return either(reader, x, weight, bias, settings=taken)


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", settings=TransposedConvolutionSettings)
def conv_transpose(
    reader: GraphReader, x: Any, weight: Any, bias: Any = None, *, settings: TransposedConvolutionSettings
) -> View:
    taken = ConvolutionSettings(settings.stride, settings.padding, settings.dilation, settings.groups)
    return transposed_convolution(reader, x, weight, bias, settings=taken)


@rule(
    *("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding"),
    settings=ConvolutionSettings,
)
def convolution(reader: GraphReader, x: Any, weight: Any, bias: Any = None, *, settings: ConvolutionSettings) -> View:
    stride, padding, dilation, groups = settings
    x, weight = reader.view(x), reader.view(weight)
    count = len(weight.dims) - 2
    unbatched = len(x.dims) == count + 1
    if unbatched:
        x = x.with_dims([(), *x.dims])
    sizes = [size_of(size) for size in weight.shape[2:]]
    dilations = several(dilation, count)
    if padding == "valid":
        paddings = [0] * count
    elif padding == "same":
        paddings = [d * (s - 1) // 2 for s, d in zip(sizes, dilations, strict=True)]
    else:
        paddings = several(padding, count)
    shape = list(shape_of(reader.node))
    outs = shape[-count:]
    called(x, "c", *SIDES[count])
    called(weight, "e", "c", *WINDOWS[count])
    x, weight = _in_groups(reader, x, weight, groups)
    first = 3 if groups > 1 else 2
    x, rows = windowed(reader, x, first, outs, Windows(sizes, several(stride, count), paddings, dilations))
    sides = [f"o{place}" for place in range(count)]
    windows = [f"u{place}" for place in range(count)]
    x = x.with_dims([*x.dims, *rows])
    group = ["g"] if groups > 1 else []
    letters = ["B", *group, "c", *sides, *windows]
    letters_weight, out = [*group, "e", "c", *windows], ["B", *group, "e", *sides]
    if _depthwise(weight, groups):
        result = reader.recorder.matmul([(x, letters), (weight, letters_weight)], out)
    else:
        result = matrix_product(reader.recorder, x, weight, letters, letters_weight, out)
    return _joined_groups(reader, result, bias, groups, unbatched)


def transposed_convolution(
    reader: GraphReader, x: Any, weight: Any, bias: Any, *, settings: ConvolutionSettings
) -> View:
    """Record a transposed convolution: each input element adds a window, written at y = stride i + dilation u -
    padding.
    """
    stride, padding, dilation, groups = settings
    x, weight = reader.view(x), reader.view(weight)
    count = len(weight.dims) - 2
    unbatched = len(x.dims) == count + 1
    if unbatched:
        x = x.with_dims([(), *x.dims])
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
    strides, paddings, dilations = several(stride, count), several(padding, count), several(dilation, count)
    kept = len(plain.dims) - 2 * count
    axes, index, rows = [], [], []
    for row in plain.dims[:kept]:
        rows.append(tuple(ViewAxis(slot.axis) for slot in row))
        for slot in row:
            axes.append(slot.axis)
            index.append(slot)
    read_index: list[Any] = [slot for row in rows for slot in row]
    for place in range(count):
        parts = [(strides[place], slot) for slot in plain.dims[kept + place]]
        parts += [(dilations[place], slot) for slot in plain.dims[kept + count + place]]
        whole = AxisClass(outs[place], SIDES[count][place], whole=True)
        axes.append(whole)
        index.append(AxisIndex(tuple(parts), -paddings[place]))  # type: ignore[arg-type]
        slot = ViewAxis(whole)
        read_index.append(slot)
        rows.append((slot,))
    if plain.spread:
        raise reader.refusal("a transposed convolution of a broadcast value")
    stored = recorder.stored(axes)
    left = View(stored, tuple(index), plain.dims)
    recorder.add(Equation("product", (NamedView(left, ("B", *group, "e", *sides, *windows)),), tuple(reads)))
    result = View(stored, tuple(read_index), tuple(rows))
    for dim in (*([0] if lone else []), *(kept + place for place, out in enumerate(outs) if equal(out, 1))):
        result = at_its_place(result, dim)
    return _joined_groups(reader, result, bias, groups, unbatched)


def _pool_windows(count: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    sizes = several(kernel, count)
    strides = several(stride, count) if stride not in (None, []) else sizes
    return Windows(sizes, strides, several(padding, count), several(dilation, count))


@rule(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool1d_with_indices",
)
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
    value = reader.node.meta["val"]
    with_indices = isinstance(value, tuple | list)
    shape = [size_of(size) for size in (value[0] if with_indices else value).shape]
    windows = _pool_windows(count, kernel, stride, padding, dilation)
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    view, rows = windowed(reader, x, first, shape[-count:], windows)
    view = view.with_dims([*view.dims, *rows])
    acts = [dim for dim in range(first + count, len(view.dims)) if view.dims[dim]]
    result = (
        reader.along("max", view, range(first + count, len(view.dims)), keep=False)
        if acts
        else view.with_dims(view.dims[: first + count])
    )
    return [result, None] if with_indices else result


class AveragePoolSettings(NamedTuple):
    """The settings of `avg_pool1d`, `avg_pool2d` and `avg_pool3d`."""

    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", settings=AveragePoolSettings)
def avg_pool(reader: GraphReader, x: View, kernel: Any, *, settings: AveragePoolSettings) -> View:
    stride, padding, ceil, with_border, divisor = settings
    count = int(reader.recorder.operator[8])
    windows = _pool_windows(count, kernel, stride, padding)
    sizes, paddings = windows.sizes, windows.paddings
    shape = list(shape_of(reader.node))
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    outs = shape[-count:]
    inside = not ceil or all(
        isinstance(s, int) and (o - 1) * t + z - p <= s + p
        for s, o, t, z, p in zip(x.shape[first:], outs, windows.strides, sizes, paddings, strict=True)
    )
    view, rows = windowed(reader, x, first, outs, windows)
    view = view.with_dims([*view.dims, *rows])
    along = range(first + count, len(view.dims))
    if divisor is None and ((any(paddings) and not with_border) or not inside):
        # Each window is divided by its number of elements inside, which is counted outside of the table's step.
        total = summed(reader, view, along)
        return reader.multiply(total, _inside_shares(reader, x, first, outs, windows, with_border))
    return summed(reader, view, along, NumberOperand(1.0 / (divisor or product(sizes))))


def _inside_shares(
    reader: GraphReader, x: View, first: int, outs: Sequence[Size], windows: Windows, with_border: bool
) -> View:
    """Return one over the number of elements of each window inside the input, as a product over the sides."""
    shares: View | None = None
    for place, out in enumerate(outs):
        size, stride, padding, _ = windows.along(place)
        function = partial(_inside_share, size, stride, padding, padding if with_border else 0)
        numbers = settled(reader, "a pool over a border", function, x.shape[first + place], out)
        given = reader.given_numbers(numbers, AxisClass(out))
        rows: list[Any] = [()] * (first + len(outs))
        rows[first + place] = given.dims[0] if given.dims else ()
        given = given.with_dims(rows)
        shares = given if shares is None else reader.multiply(shares, given)
    assert shares is not None
    return shares


def _inside_share(size: int, stride: int, padding: int, border: int, side: int, out: int) -> list[float]:
    """Return one over the number of elements inside for each of `out` windows of a side, counting the padding if it
    counts.
    """
    starts = [i * stride - padding for i in range(out)]
    return [1.0 / (min(start + size, side + border) - max(start, -border)) for start in starts]


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
def adaptive_avg_pool(reader: GraphReader, x: View, sizes: Any) -> View:
    return _adaptive(reader, x, sizes, "mean")


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(reader: GraphReader, x: View, sizes: Any) -> list[Any]:
    return [_adaptive(reader, x, sizes, "max"), None]


def _adaptive(reader: GraphReader, x: View, sizes: Any, how: str) -> View:
    """Record adaptive pooling: along evenly divisible sides at once, then side by side along the others."""
    outs = [size_of(size) for size in (sizes if isinstance(sizes, list) else [sizes])]
    first = len(x.dims) - len(outs)
    shape: list[Size] = list(x.shape[:first])
    along, uneven = [], []
    for dim, out in enumerate(outs, first):
        side = x.shape[dim]
        if not equal(out, 1) and not isinstance(side, int):
            raise reader.refusal("adaptive pooling of a side of symbolic size")
        if not equal(out, 1) and side % out:
            uneven.append(dim)
            shape.append(side)
            continue
        along.append(len(shape) + 1)
        shape += [out, side // out if isinstance(side, int) else side]
    if along:
        parted = reshaped(reader, x, shape)
        x = mean_of(reader, parted, along) if how == "mean" else extreme(reader, "max", parted, along, False)
    for dim in uneven:
        x = (_mean_uneven if how == "mean" else _largest_uneven)(reader, x, dim, outs[dim - first])
    return x


def _windows_of(side: int, out: int) -> list[range]:
    """Return the windows of adaptive pooling: their starts are rounded down, their ends up, and they may overlap."""
    return [range(i * side // out, -(-(i + 1) * side // out)) for i in range(out)]


def _mean_uneven(reader: GraphReader, x: View, dim: int, out: int) -> View:
    """Record the mean of windows of different lengths."""
    side = size_of(x.shape[dim])
    if side == 1:  # each window has the only element
        return x.expanded([*x.shape[:dim], out, *x.shape[dim + 1 :]])
    rows = [dict.fromkeys(window, 1.0 / len(window)) for window in _windows_of(side, out)]
    most = max(map(len, rows))
    return by_shares(reader, x, dim, places_of(rows, most), shares_of(rows, most), (out, most))


def _largest_uneven(reader: GraphReader, x: View, dim: int, out: int) -> View:
    """Record the maximum of windows of different lengths."""
    parts = []
    for window in _windows_of(size_of(x.shape[dim]), out):
        part = narrowed(reader, x, dim, window.start, len(window), parts=False)
        parts.append(extreme(reader, "max", part, [dim], True))
    return joined(reader, parts, dim, [*x.shape[:dim], out, *x.shape[dim + 1 :]])


@rule("im2col")
def im2col(reader: GraphReader, x: View, kernel: Any, dilation: Any, padding: Any, stride: Any) -> View:
    sizes = list(kernel)
    shape = x.shape
    outs = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, d, p, t in zip(
            shape[2:], sizes, several(dilation, 2), several(padding, 2), several(stride, 2), strict=True
        )
    ]
    windows = Windows(sizes, several(stride, 2), several(padding, 2), several(dilation, 2))
    view, rows = windowed(reader, x, 2, outs, windows)
    channel = (*view.dims[1], *rows[0], *rows[1])
    return view.with_dims([view.dims[0], channel, (*view.dims[2], *view.dims[3])])
