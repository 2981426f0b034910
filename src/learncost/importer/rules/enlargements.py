"""Upsampling: sides whose positions are copies, or weighted sums, of a few input positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from learncost.importer.axes import AxisClass, Size, equal, quotient
from learncost.importer.nodes import shape_of
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.indexing import at_index, read_at
from learncost.importer.rules.views import merged
from learncost.importer.sized import settled
from learncost.importer.views import View, ViewAxis


@rule(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
def nearest(reader: GraphReader, x: View, *_: Any) -> View:
    shape = list(shape_of(reader.node))
    x = x.fresh()  # once: another call would make other slots
    rows = list(x.dims)
    spread = set(x.spread)
    old = x.shape
    for dim in range(2, len(shape)):
        if equal(shape[dim], old[dim]):
            continue
        times = quotient(shape[dim], old[dim])
        if not isinstance(times, int) or not _repeats(reader, old, shape, dim, times):
            return _nearest_uneven(reader, x, shape)
        slot = ViewAxis(AxisClass(times))
        spread.add(slot)
        rows[dim] = (*rows[dim], slot)
    return replace(x, dims=tuple(rows), spread=frozenset(spread))


def _nearest_uneven(reader: GraphReader, x: View, shape: Sequence[Size]) -> View:
    before = x.shape
    for dim in range(2, len(shape)):
        if not equal(shape[dim], before[dim]):
            places = _side_matrix_places(reader, before, shape, dim)
            x = read_at(reader, x, dim, reader.given_places(places, AxisClass(shape[dim])))
    return x


def _side_matrix_places(reader: GraphReader, before: Sequence[Size], after: Sequence[Size], dim: int) -> Any:
    """Return the input position that each output position copies."""
    mode = "nearest-exact" if "exact" in reader.recorder.operator else "nearest"
    return settled(
        reader, _ENLARGEMENT, partial(_places_taken, _enlargement(reader, mode, dim)), before[dim], after[dim]
    )


def _repeats(reader: GraphReader, before: Sequence[Size], after: Sequence[Size], dim: int, times: int) -> bool:
    """Return whether each position of a side is repeated this many times in a row; a symbolic side is tried with a few
    positions.
    """
    side = before[dim] if isinstance(before[dim], int) else _FEW
    sides = [*before[:dim], side, *before[dim + 1 :]]
    places = _side_matrix_places(reader, sides, [*after[:dim], side * times, *after[dim + 1 :]], dim)
    return bool(places == [i // times for i in range(side * times)])


_FEW = 7
"""The number of positions that are tried in place of a symbolic side with a whole scale factor."""

_ENLARGEMENT = "an enlargement"


def _enlargement(reader: GraphReader, mode: str, dim: int) -> tuple[str, float | None, bool, bool]:
    """Return how the node resizes one side: its mode, its scale factor if given, align_corners, and antialiasing."""
    named = {
        argument.name: value
        for argument, value in zip(reader.node.target._schema.arguments, reader.node.args, strict=False)
    } | dict(reader.node.kwargs)
    count, place = len(shape_of(reader.node)) - 2, dim - 2
    factors = named.get("scale_factors") or [
        named.get(name) for name in (["scales"] if count == 1 else ["scales_d", "scales_h", "scales_w"][3 - count :])
    ]
    factor = None if factors[place] is None else float(factors[place])
    return mode, factor, bool(named.get("align_corners", False)), reader.recorder.operator.endswith("_aa")


def _side_matrix(how: tuple[str, float | None, bool, bool], side: int, out: int) -> list[list[float]]:
    """Return PyTorch's result for a unit matrix along one side: out by in."""
    import torch

    mode, factor, corners, smooth = how
    # Two columns: for one column, PyTorch's antialiasing has another code path, along the wrong side.
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
    """Return the input position that each position of an enlarged side copies."""
    return [row.index(1.0) for row in _side_matrix(how, side, out)]


@rule(
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "upsample_trilinear3d",
)
def interpolated(reader: GraphReader, x: View, *_: Any) -> View:
    """Record weighted sums of a few positions, side by side, with weights from PyTorch's result for a unit matrix; an
    antialiased symbolic side sums all positions.
    """
    shape = list(shape_of(reader.node))
    mode = "bicubic" if "bicubic" in reader.recorder.operator else "bilinear"
    before = x.shape
    for dim in range(2, len(shape)):
        side, out = before[dim], shape[dim]
        if equal(side, out) and not _scaled(reader):
            continue
        how = _enlargement(reader, mode, dim)
        count = _count_of_taps(reader, how, side, out)
        if count is not None and not equal(side, 1):
            x = _by_enlargement(reader, x, dim, how, count, side, out)
            continue
        matrix = settled(reader, _ENLARGEMENT, partial(_side_matrix, how), side, out)
        letters: list[Any] = list(range(len(x.dims)))
        shares = reader.given_numbers(matrix, AxisClass(out), AxisClass(side))
        new = [*letters]
        new[dim] = "out"
        x = reader.recorder.whole_spread(x, [dim])
        x = reader.recorder.line([(x, letters), (shares, ["out", dim])], new)
    return x


TAPS = {"bilinear": 2, "bicubic": 4}
"""The number of input positions per output position along each side, without antialiasing."""


def _count_of_taps(reader: GraphReader, how: tuple[str, float | None, bool, bool], side: Size, out: Size) -> int | None:
    """Return the largest number of input positions per output position; antialiased downsampling has more. None if it
    depends on a symbolic size.
    """
    if not how[-1]:
        return TAPS[how[0]]
    if not isinstance(side, int) or not isinstance(out, int):
        return None
    matrix: list[list[float]] = settled(reader, _ENLARGEMENT, partial(_side_matrix, how), side, out)
    return max(len(row) - row.count(0.0) for row in matrix)


def _by_enlargement(
    reader: GraphReader, x: View, dim: int, how: tuple[str, float | None, bool, bool], count: int, side: Size, out: Size
) -> View:
    """Record a side whose positions are weighted sums of a few positions of another."""
    places, shares = (
        settled(reader, _ENLARGEMENT, partial(_taps, how, count, which), side, out) for which in ("places", "shares")
    )
    return by_shares(reader, x, dim, places, shares, (out, count))


def _taps(
    how: tuple[str, float | None, bool, bool], count: int, which: str, side: int, out: int
) -> Sequence[Sequence[float]]:
    """Return the input positions of each output position, or their weights."""
    rows = [{place: share for place, share in enumerate(row) if share} for row in _side_matrix(how, side, out)]
    return places_of(rows, count) if which == "places" else shares_of(rows, count)


def by_shares(reader: GraphReader, x: View, dim: int, places: Any, shares: Any, sizes: tuple[Size, int]) -> View:
    """Record a side as a sparse gather, `x[y=places[i k]] shares[i k]`, without a matrix product.

    sizes   the number of output positions, and of input positions for each
    """
    x = merged(reader, x, dim)
    letters: list[Any] = list(range(len(x.dims)))
    axes = [AxisClass(size) for size in sizes]
    read = at_index(reader, x, dim, reader.given_places(places, *axes), (dim, dim + 1))
    operands = [
        (read, [*letters[: dim + 1], "share", *letters[dim + 1 :]]),
        (reader.given_numbers(shares, *axes), [dim, "share"]),
    ]
    return reader.recorder.line(operands, letters)


def places_of(rows: Sequence[Mapping[int, float]], count: int) -> list[list[int]]:
    """Return the input positions with a weight in each row; rows with fewer than `count` are padded with positions of
    weight 0.
    """
    return [[*row, *[next(iter(row))] * (count - len(row))] for row in rows]


def shares_of(rows: Sequence[Mapping[int, float]], count: int) -> list[list[float]]:
    """Return the weights of these positions."""
    return [[*row.values(), *[0.0] * (count - len(row))] for row in rows]


def _scaled(reader: GraphReader) -> bool:
    """Return whether a scale factor is given, which shifts positions even if no size changes."""
    values = [*reader.node.args[2:], *reader.node.kwargs.values()]
    return any(
        isinstance(v, float) or (isinstance(v, list | tuple) and any(isinstance(e, float) for e in v)) for v in values
    )
