"""Convolutions, pools and enlargements: reads at places that positions and windows give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from learncost.models.imported.axes import Axis, Size, equal, product, quotient
from learncost.models.imported.equations import Number
from learncost.models.imported.nodes import shape_of, size_of
from learncost.models.imported.ones import at_its_place, matrix_product, written
from learncost.models.imported.reader import Reader
from learncost.models.imported.rule import rule
from learncost.models.imported.rules.normalization import channels, scaled
from learncost.models.imported.rules.products import called
from learncost.models.imported.rules.reductions import summed
from learncost.models.imported.rules.views import merged, reshaped
from learncost.models.imported.settled import settled
from learncost.models.imported.views import Place, Slot, View

SIDES = {1: "x", 2: "yx", 3: "zyx"}
"""What the sides of signals, images and volumes are called."""

WINDOWS = {1: "u", 2: "uw", 3: "uwj"}


def several(value: Any, count: int) -> list[Any]:
    """A number for each side, one for all where only one is given."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values


def windowed(
    reader: Reader,
    x: View,
    first: int,
    outs: Sequence[Size],
    sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    windows: Sequence[Slot] = (),
) -> tuple[View, list[tuple[Slot, ...]]]:
    """The view with each side, from dimension `first` on, read at `stride i + dilation u - padding`.

    Its sides become the positions of the windows; the second result is the row of slots of each window's side.
    """
    rows_of_windows: list[tuple[Slot, ...]] = []
    for dim in range(first, first + len(outs)):  # all sides first: what is written anew has no windows yet
        x = merged(reader, x, dim)
        if not x.dims[dim]:  # a side of one place, of which a window may take more
            x = written(reader.recorder, x, dim, "x")
        place = dim - first
        if paddings[place] or not _inside(x.shape[dim], outs[place], sizes[place], strides[place], dilations[place]):
            x = reader.recorder.bounded(x, dim)
    for place, out in enumerate(outs):
        dim = first + place
        row = x.dims[dim]
        size, stride, padding, dilation = sizes[place], strides[place], paddings[place], dilations[place]
        slot = row[0]
        letter = slot.axis.root.letter
        at = () if equal(out, 1) else (Slot(Axis(out, letter)),)
        if windows and windows[place] is not None:
            window: tuple[Slot, ...] = (windows[place],)
        else:
            window = () if size == 1 else (Slot(Axis(size, WINDOWS[len(outs)][place])),)
        if not (size == 1 and stride == 1 and padding == 0) or not at:
            parts = [(stride, each) for each in at] + [(dilation, each) for each in window]
            x = x.at(slot, tuple(parts), -padding)
            rows = list(x.dims)
            rows[dim] = at
            x = x.with_dims(rows)
        rows_of_windows.append(window)
    return x, rows_of_windows


def _inside(side: Size, out: Size, size: int, stride: int, dilation: int) -> bool:
    """Whether all windows are known to end inside of a side."""
    last = (out - 1) * stride + (size - 1) * dilation
    return last < side if isinstance(last, int) and isinstance(side, int) else equal(last, side - 1)


def _in_groups(reader: Reader, x: View, weight: View, groups: int) -> tuple[View, View]:
    """The channels of a convolution's operands in groups."""
    if groups == 1:
        return x, weight
    x = reshaped(reader, x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    return x, reshaped(reader, weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])


def _joined_groups(reader: Reader, result: View, bias: Any, groups: int, unbatched: bool) -> View:
    """What a convolution gives: groups as channels again, the bias added, without the batch that was not there."""
    if groups > 1:
        result = reshaped(reader, result, [result.shape[0], result.shape[1] * result.shape[2], *result.shape[3:]])
    result = scaled(reader, result, None, channels(bias, reader, len(result.dims)))
    return result.with_dims(result.dims[1:]) if unbatched else result


@rule("convolution", "conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding", "_convolution")
def convolution(
    reader: Reader,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *more: Any,
    groups: int = 1,
) -> View:
    x, weight = reader.view(x), reader.view(weight)
    if reader.recorder.operator in ("convolution", "_convolution"):
        transposed, extra, groups = more[:3]
        if transposed:
            return transposed_convolution(reader, x, weight, bias, stride, padding, extra, groups, dilation)
    elif more:
        groups = more[0]
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
    x, rows = windowed(reader, x, first, outs, sizes, several(stride, count), paddings, dilations)
    sides = [f"o{place}" for place in range(count)]
    windows = [f"u{place}" for place in range(count)]
    x = x.with_dims([*x.dims, *rows])
    group = ["g"] if groups > 1 else []
    letters = ["B", *group, "c", *sides, *windows]
    letters_weight, out = [*group, "e", "c", *windows], ["B", *group, "e", *sides]
    if groups > 1:
        result = reader.recorder.line("product", [(x, letters), (weight, letters_weight)], out, every=True)
    else:
        result = matrix_product(reader.recorder, x, weight, letters, letters_weight, out)
    return _joined_groups(reader, result, bias, groups, unbatched)


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    reader: Reader,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    extra: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> View:
    return transposed_convolution(
        reader, reader.view(x), reader.view(weight), bias, stride, padding, extra, groups, dilation
    )


def transposed_convolution(
    reader: Reader, x: View, weight: View, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
) -> View:
    """Each place adds its window, written on the left: y = stride i + dilation u - padding."""
    from learncost.models.imported.equations import Equation, Read

    count = len(weight.dims) - 2
    unbatched = len(x.dims) == count + 1
    if unbatched:
        x = x.with_dims([(), *x.dims])
    for place in range(2, count + 2):  # of a side that is read as several axes one is made: it is written along
        x, weight = (each if len(each.dims[place]) < 2 else merged(reader, each, place) for each in (x, weight))
    called(x, "c", *SIDES[count])
    called(weight, "c", "e", *WINDOWS[count])
    shape = list(shape_of(reader.node))
    outs = shape[-count:]
    x, weight = _in_groups(reader, x, weight, groups)
    sides, windows = [f"o{place}" for place in range(count)], [f"u{place}" for place in range(count)]
    group = ["g"] if groups > 1 else []
    recorder = reader.recorder
    letters = ["B", *group, "c", *sides]
    reads = recorder.bound([Read(x, tuple(letters)), Read(weight, (*group, "c", "e", *windows))])
    plain = recorder.result(reads, ["B", *group, "e", *sides, *windows])
    strides, paddings, dilations = several(stride, count), several(padding, count), several(dilation, count)
    kept = len(plain.dims) - 2 * count
    axes, index, rows = [], [], []
    for row in plain.dims[:kept]:
        rows.append(tuple(Slot(slot.axis) for slot in row))
        for slot in row:
            axes.append(slot.axis)
            index.append(slot)
    read_index: list[Any] = [slot for row in rows for slot in row]
    for place in range(count):
        parts = [(strides[place], slot) for slot in plain.dims[kept + place]]
        parts += [(dilations[place], slot) for slot in plain.dims[kept + count + place]]
        whole = Axis(outs[place], SIDES[count][place], whole=True)
        axes.append(whole)
        index.append(Place(tuple(parts), -paddings[place]))  # type: ignore[arg-type]
        slot = Slot(whole)
        read_index.append(slot)
        rows.append((slot,))
    if plain.spread:
        raise reader.refusal("a transposed convolution of what is only spread")
    stored = recorder.stored(axes)
    left = View(stored, tuple(index), plain.dims)
    recorder.add(Equation("product", (Read(left, ("B", *group, "e", *sides, *windows)),), tuple(reads)))
    result = View(stored, tuple(read_index), tuple(rows))
    if any(equal(out, 1) for out in outs):
        for place, out in enumerate(outs):
            if equal(out, 1):
                result = at_its_place(result, kept + place)
    return _joined_groups(reader, result, bias, groups, unbatched)


def _pool_sizes(
    reader: Reader, count: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> tuple[list[int], ...]:
    sizes = several(kernel, count)
    strides = several(stride, count) if stride not in (None, []) else sizes
    return sizes, strides, several(padding, count), several(dilation, count)


@rule(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool1d_with_indices",
)
def max_pool(
    reader: Reader, x: View, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """The largest of each window; beyond the border there is minus infinity."""
    count = int(reader.recorder.operator[8])
    value = reader.node.meta["val"]
    with_indices = isinstance(value, tuple | list)
    shape = [size_of(size) for size in (value[0] if with_indices else value).shape]
    sizes, strides, paddings, dilations = _pool_sizes(reader, count, kernel, stride, padding, dilation)
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    view, rows = windowed(reader, x, first, shape[-count:], sizes, strides, paddings, dilations)
    view = view.with_dims([*view.dims, *rows])
    acts = [dim for dim in range(first + count, len(view.dims)) if view.dims[dim]]
    result = (
        reader.along("max", view, range(first + count, len(view.dims)), keep=False)
        if acts
        else view.with_dims(view.dims[: first + count])
    )
    return [result, None] if with_indices else result


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    reader: Reader,
    x: View,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    with_border: bool = True,
    divisor: int | None = None,
) -> View:
    count = int(reader.recorder.operator[8])
    sizes, strides, paddings, dilations = _pool_sizes(reader, count, kernel, stride, padding)
    shape = list(shape_of(reader.node))
    first = len(x.dims) - count
    called(x, "c", *SIDES[count])
    outs = shape[-count:]
    inside = not ceil or all(
        isinstance(s, int) and (o - 1) * t + z - p <= s + p
        for s, o, t, z, p in zip(x.shape[first:], outs, strides, sizes, paddings, strict=True)
    )
    view, rows = windowed(reader, x, first, outs, sizes, strides, paddings, dilations)
    view = view.with_dims([*view.dims, *rows])
    along = range(first + count, len(view.dims))
    if divisor is None and ((any(paddings) and not with_border) or not inside):
        # Each window is divided by the places of it that lie inside, which are counted outside of the table's step.
        total = summed(reader, view, along)
        return reader.multiply(total, _inside_shares(reader, x, first, outs, sizes, strides, paddings, with_border))
    return summed(reader, view, along, Number(1.0 / (divisor or product(sizes))))


def _inside_shares(
    reader: Reader,
    x: View,
    first: int,
    outs: Sequence[Size],
    sizes: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    with_border: bool,
) -> View:
    """One over the places of each window that lie inside, as the pool of ones gives it: side by side a product."""
    shares: View | None = None
    for place, out in enumerate(outs):
        border = paddings[place] if with_border else 0
        function = partial(_inside_share, sizes[place], strides[place], paddings[place], border)
        numbers = settled(reader, "a pool over a border", function, x.shape[first + place], out)
        given = reader.given_numbers(numbers, Axis(out))
        rows: list[Any] = [()] * (first + len(outs))
        rows[first + place] = given.dims[0] if given.dims else ()
        given = given.with_dims(rows)
        shares = given if shares is None else reader.multiply(shares, given)
    assert shares is not None
    return shares


def _inside_share(size: int, stride: int, padding: int, border: int, side: int, out: int) -> list[float]:
    """One over the places of each of `out` windows of a side that lie inside, those of a border among them."""
    starts = [i * stride - padding for i in range(out)]
    return [1.0 / (min(start + size, side + border) - max(start, -border)) for start in starts]


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"
)
def adaptive_avg_pool(reader: Reader, x: View, sizes: Any) -> View:
    return _adaptive(reader, x, sizes, "mean")


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(reader: Reader, x: View, sizes: Any) -> list[Any]:
    return [_adaptive(reader, x, sizes, "max"), None]


def _adaptive(reader: Reader, x: View, sizes: Any, how: str) -> View:
    outs = [size_of(size) for size in (sizes if isinstance(sizes, list) else [sizes])]
    first = len(x.dims) - len(outs)
    shape: list[Size] = list(x.shape[:first])
    along = []
    for place, out in enumerate(outs):
        side = x.shape[first + place]
        if not equal(out, 1) and (not isinstance(side, int) or side % out):
            return _adaptive_uneven(reader, x, outs, how)
        along.append(len(shape) + 1)
        shape += [out, side // out if isinstance(side, int) else side]
    parted = reshaped(reader, x, shape)
    if how == "mean":
        from learncost.models.imported.rules.reductions import mean_of

        return mean_of(reader, parted, along)
    from learncost.models.imported.rules.reductions import extreme

    return extreme(reader, "max", parted, along, False)


def _adaptive_uneven(reader: Reader, x: View, outs: Sequence[int], how: str) -> View:
    """Windows of unequal sizes: a product with shares that are given, side by side."""
    first = len(x.dims) - len(outs)
    if how != "mean":
        return _largest_uneven(reader, x, first, outs)
    for place, out in enumerate(outs):
        side = x.shape[first + place]
        if not isinstance(side, int):
            raise reader.refusal("an adaptive pool of a side without a fixed size")
        rows = []
        for i in range(out):
            start, stop = i * side // out, -(-(i + 1) * side // out)
            rows.append([1.0 / (stop - start) if start <= j < stop else 0.0 for j in range(side)])
        letters: list[Any] = list(range(len(x.dims)))
        shares = reader.given_numbers(rows, Axis(out), Axis(side))
        new = [*letters]
        new[first + place] = "out"
        x = reader.recorder.whole_spread(x, [first + place])
        x = reader.recorder.line("product", [(x, letters), (shares, ["out", first + place])], new)
    return x


def _largest_uneven(reader: Reader, x: View, first: int, outs: Sequence[int]) -> View:
    """The largest of each window, side by side, window by window."""
    from learncost.models.imported.rules.movement import joined
    from learncost.models.imported.rules.reductions import extreme
    from learncost.models.imported.rules.views import narrowed

    for place, out in enumerate(outs):
        dim = first + place
        side = x.shape[dim]
        if not isinstance(side, int):
            raise reader.refusal("an adaptive pool of a side without a fixed size")
        parts = []
        for i in range(out):
            start, stop = i * side // out, -(-(i + 1) * side // out)
            part = narrowed(reader, x, dim, start, stop - start, parts=False)
            parts.append(extreme(reader, "max", part, [dim], True))
        shape = [*x.shape]
        shape[dim] = out
        x = joined(reader, parts, dim, shape)
    return x


@rule(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
def nearest(reader: Reader, x: View, *_: Any) -> View:
    shape = list(shape_of(reader.node))
    rows = list(x.fresh().dims)
    spread = set(x.spread)
    old = x.shape
    for dim in range(2, len(shape)):
        if equal(shape[dim], old[dim]):
            continue
        times = quotient(shape[dim], old[dim])
        if not isinstance(times, int) or not _repeats(reader, old, shape, dim, times):
            return _nearest_uneven(reader, x, shape)
        slot = Slot(Axis(times))
        spread.add(slot)
        rows[dim] = (*rows[dim], slot)
    return replace(x.fresh(), dims=tuple(rows), spread=frozenset(spread))


def _nearest_uneven(reader: Reader, x: View, shape: Sequence[Size]) -> View:
    from learncost.models.imported.rules.indexing import read_at

    before = x.shape
    for dim in range(2, len(shape)):
        if not equal(shape[dim], before[dim]):
            places = _side_matrix_places(reader, before, shape, dim)
            x = read_at(reader, x, dim, reader.given_places(places, Axis(shape[dim])))
    return x


def _side_matrix_places(reader: Reader, before: Sequence[Size], after: Sequence[Size], dim: int) -> Any:
    """Which place each place of the enlarged side takes."""
    mode = "nearest-exact" if "exact" in reader.recorder.operator else "nearest"
    return settled(
        reader, _ENLARGEMENT, partial(_places_taken, _enlargement(reader, mode, dim)), before[dim], after[dim]
    )


def _repeats(reader: Reader, before: Sequence[Size], after: Sequence[Size], dim: int, times: int) -> bool:
    """Whether each place of a side is taken so many times, one beside the other; of an open side a few places tell."""
    side = before[dim] if isinstance(before[dim], int) else _FEW
    sides = [*before[:dim], side, *before[dim + 1 :]]
    places = _side_matrix_places(reader, sides, [*after[:dim], side * times, *after[dim + 1 :]], dim)
    return bool(places == [i // times for i in range(side * times)])


_FEW = 7
"""Places of a side that stand for any number of them, where each is taken a whole number of times."""

_ENLARGEMENT = "an enlargement"


def _enlargement(reader: Reader, mode: str, dim: int) -> tuple[str, float | None, bool, bool]:
    """How the node enlarges one side: its mode, its factor where one is told, whether corners meet, and smoothing."""
    told = {
        argument.name: value
        for argument, value in zip(reader.node.target._schema.arguments, reader.node.args, strict=False)
    } | dict(reader.node.kwargs)
    count, place = len(shape_of(reader.node)) - 2, dim - 2
    factors = told.get("scale_factors") or [
        told.get(name) for name in (["scales"] if count == 1 else ["scales_d", "scales_h", "scales_w"][3 - count :])
    ]
    factor = None if factors[place] is None else float(factors[place])
    return mode, factor, bool(told.get("align_corners", False)), reader.recorder.operator.endswith("_aa")


def _side_matrix(how: tuple[str, float | None, bool, bool], side: int, out: int) -> list[list[float]]:
    """What PyTorch makes of a unit matrix along one side: out by in."""
    import torch

    mode, factor, corners, smooth = how
    # Two columns: of one alone, smoothing takes another way through PyTorch, along the wrong side.
    unit = torch.eye(side, dtype=torch.float64)[None, :, :, None].expand(1, side, side, 2).contiguous()
    sizes: dict[str, Any] = {"size": (out, 2)} if factor is None else {"scale_factor": (factor, 1.0)}
    if not mode.startswith("nearest"):
        sizes["align_corners"] = corners
    with torch.no_grad():
        made = torch.nn.functional.interpolate(unit, mode=mode, antialias=smooth, **sizes)
    if made.shape[2] != out:
        raise ValueError(f"an enlargement by {factor} of {side} places to {out}")
    rows: list[list[float]] = made[0, :, :, 0].T.tolist()
    return rows


def _places_taken(how: tuple[str, float | None, bool, bool], side: int, out: int) -> list[int]:
    """The place of which each place of an enlarged side is a copy."""
    return [row.index(1.0) for row in _side_matrix(how, side, out)]


@rule(
    "upsample_bilinear2d",
    "upsample_bilinear2d.vec",
    "upsample_linear1d",
    "upsample_linear1d.vec",
    "upsample_bicubic2d",
    "upsample_bicubic2d.vec",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "upsample_trilinear3d",
    "upsample_trilinear3d.vec",
)
def interpolated(reader: Reader, x: View, *_: Any) -> View:
    """Side by side shares of a few places; where they are smoothed, of all, as PyTorch makes them of a unit matrix."""
    shape = list(shape_of(reader.node))
    mode = "bicubic" if "bicubic" in reader.recorder.operator else "bilinear"
    before = x.shape
    for dim in range(2, len(shape)):
        side, out = before[dim], shape[dim]
        if equal(side, out) and not _scaled(reader):
            continue
        how = _enlargement(reader, mode, dim)
        if not how[-1] and not equal(side, 1):
            x = _by_shares(reader, x, dim, how, side, out)
            continue
        matrix = settled(reader, _ENLARGEMENT, partial(_side_matrix, how), side, out)
        letters: list[Any] = list(range(len(x.dims)))
        shares = reader.given_numbers(matrix, Axis(out), Axis(side))
        new = [*letters]
        new[dim] = "out"
        x = reader.recorder.whole_spread(x, [dim])
        x = reader.recorder.line("product", [(x, letters), (shares, ["out", dim])], new)
    return x


TAPS = {"bilinear": 2, "bicubic": 4}
"""Of how many places one is made, along each side."""


def _by_shares(
    reader: Reader, x: View, dim: int, how: tuple[str, float | None, bool, bool], side: Size, out: Size
) -> View:
    """A side whose places have shares of a few of another's: `x[y=places[i k]] shares[i k]`, no matrix product."""
    from learncost.models.imported.rules.indexing import at_index

    x = merged(reader, x, dim)
    letters: list[Any] = list(range(len(x.dims)))
    axes = Axis(out), Axis(TAPS[how[0]])
    places, shares = (
        settled(reader, _ENLARGEMENT, partial(_taps, how, which), side, out) for which in ("places", "shares")
    )
    read = at_index(reader, x, dim, reader.given_places(places, *axes), (dim, dim + 1))
    operands = [
        (read, [*letters[: dim + 1], "share", *letters[dim + 1 :]]),
        (reader.given_numbers(shares, *axes), [dim, "share"]),
    ]
    return reader.recorder.line("product", operands, letters)


def _taps(how: tuple[str, float | None, bool, bool], which: str, side: int, out: int) -> list[list[Any]]:
    """The places that each new one is made of, or the share of each; where they are fewer, one is read for nothing."""
    taken: list[list[Any]] = []
    for row in _side_matrix(how, side, out):
        there = [place for place, share in enumerate(row) if share]
        more = TAPS[how[0]] - len(there)
        taken.append(there + there[:1] * more if which == "places" else [row[place] for place in there] + [0.0] * more)
    return taken


def _scaled(reader: Reader) -> bool:
    """Whether a factor is told, by which places are moved even where no size changes."""
    values = [*reader.node.args[2:], *reader.node.kwargs.values()]
    return any(
        isinstance(v, float) or (isinstance(v, list | tuple) and any(isinstance(e, float) for e in v)) for v in values
    )


@rule("im2col")
def im2col(reader: Reader, x: View, kernel: Any, dilation: Any, padding: Any, stride: Any) -> View:
    sizes = list(kernel)
    shape = x.shape
    outs = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, k, d, p, t in zip(
            shape[2:], sizes, several(dilation, 2), several(padding, 2), several(stride, 2), strict=True
        )
    ]
    view, rows = windowed(reader, x, 2, outs, sizes, several(stride, 2), several(padding, 2), several(dilation, 2))
    channel = (*view.dims[1], *rows[0], *rows[1])
    return view.with_dims([view.dims[0], channel, (*view.dims[2], *view.dims[3])])


@rule("pixel_shuffle")
def pixel_shuffle(reader: Reader, x: View, factor: int) -> View:
    *front, c, h, w = x.shape
    parted = reshaped(reader, x, [*front, c // (factor * factor), factor, factor, h, w])
    n = len(front)
    moved = parted.permuted([*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return reshaped(reader, moved, [*front, c // (factor * factor), h * factor, w * factor])


@rule("pixel_unshuffle")
def pixel_unshuffle(reader: Reader, x: View, factor: int) -> View:
    *front, c, h, w = x.shape
    parted = reshaped(reader, x, [*front, c, h // factor, factor, w // factor, factor])
    n = len(front)
    moved = parted.permuted([*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return reshaped(reader, moved, [*front, c * factor * factor, h // factor, w // factor])


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(reader: Reader, x: View, groups: int) -> View:
    batch, c, *sides = x.shape
    parted = reshaped(reader, x, [batch, groups, c // groups, *sides])
    moved = parted.permuted([0, 2, 1, *range(3, len(parted.dims))])
    return reshaped(reader, moved, [batch, c, *sides])
