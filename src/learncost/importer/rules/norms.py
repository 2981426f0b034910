"""Norms, variances and standard deviations: roots of sums, whose gradient is 0 where the sum is 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from learncost.importer.axes import Size, product
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.reductions import axes_along, extreme, kept, mean_of, summed
from learncost.importer.views import View


@rule("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "frobenius_norm.dim")
def vector_norm(
    reader: GraphReader, x: View, order: Any = 2, dims: Any = None, keepdim: bool = False, **_: Any
) -> View:
    """Record the sum of |x|^p to the power 1/p; for the other orders the largest, the smallest, the number of nonzeros;
    |x| of one number.
    """
    along = axes_along(x, dims)
    order = 2.0 if order is None else float(order)
    if order == 2 and any(x.dims[dim] for dim in along):
        return kept(reader.along("vector_norm", x, along, keep=False), len(x.dims), along, keepdim)
    if order == 0:
        there = reader.add(1.0, reader.op("equal", x, 0.0), signs=[1, -1])
        return summed(reader, there, along, None, keepdim)
    sizes = reader.op("abs", x)
    if math.isinf(order):
        return extreme(reader, "max" if order > 0 else "min", sizes, along, keepdim)
    if order == 1 or not any(x.dims[dim] for dim in along):
        return summed(reader, sizes, along, None, keepdim)
    powers = (guarded_power if 0 < order < 1 else _power)(reader, sizes, order)
    return (guarded_power if order > 1 else _power)(reader, summed(reader, powers, along, None, keepdim), 1.0 / order)


def _power(reader: GraphReader, x: View, order: float) -> View:
    return reader.op("sqrt", x) if order == 0.5 else reader.op("power", x, order)


def guarded_power(reader: GraphReader, x: View, order: float) -> View:
    """Record a power of nonnegative values; where they are 0, the gradient is 0 instead of infinite."""
    there = reader.op("less", 0.0, x)
    return reader.op("select", there, _power(reader, reader.op("select", there, x, 1.0), order), 0.0)


def centered(reader: GraphReader, x: View, dims: Sequence[int]) -> tuple[View, View]:
    """Return values minus their mean along dimensions, and the mean with these dimensions kept."""
    middle = mean_of(reader, x, dims, True)
    return reader.add(x, middle, signs=[1, -1]), middle


def _less(reader: GraphReader, x: View, dims: Sequence[int], correction: float) -> Size:
    """Return the divisor of a sum of squares: the count minus the correction."""
    count = product([x.shape[dim] for dim in dims])
    if isinstance(count, int) and count <= correction:
        raise reader.refusal(f"a variance of {count} numbers, which divides by {max(count - correction, 0):g},", ADVICE)
    return count - correction


ADVICE = "; give a size of more, or the correction 0, as unbiased=False does"


def variance(reader: GraphReader, x: View, dims: Sequence[int], correction: float, keepdim: bool) -> tuple[View, View]:
    """Return the variance along dimensions, the sum of squares over the count minus the correction, and the mean."""
    apart, middle = centered(reader, x, dims)
    squares = reader.multiply(apart, apart)
    if correction == 0:
        return mean_of(reader, squares, dims, keepdim), middle
    count = _less(reader, x, dims, correction)
    if (share := reader.number(1 / count)) is None:
        return reader.multiply(summed(reader, squares, dims, None, keepdim), 1 / count), middle
    return summed(reader, squares, dims, share, keepdim), middle


def deviation(reader: GraphReader, x: View, dims: Sequence[int], correction: float, keepdim: bool) -> tuple[View, View]:
    """Return the standard deviation, as the norm of the centered values, and the mean."""
    apart, middle = centered(reader, x, dims)
    root = _less(reader, x, dims, correction) ** -0.5
    return reader.multiply(vector_norm(reader, apart, 2, list(dims), keepdim), root), middle


def _asked(x: View, dims: Any, *more: Any, correction: Any = 1, unbiased: bool = True, keepdim: bool = False) -> Any:
    """Return the arguments of all overloads, positional or named: dimensions, correction, keepdim."""
    if isinstance(dims, bool):
        dims, more = None, (dims, *more)
    if more:
        correction = (1 if more[0] else 0) if isinstance(more[0], bool) else more[0]
        keepdim = more[1] if len(more) > 1 else keepdim
    correction = 0 if not unbiased else 1 if correction is None else correction
    return axes_along(x, dims), correction, keepdim


@rule("var", "var.correction", "var.dim")
def var(reader: GraphReader, x: View, dims: Any = None, *more: Any, **named: Any) -> View:
    return variance(reader, x, *_asked(x, dims, *more, **named))[0]


@rule("std", "std.correction", "std.dim")
def std(reader: GraphReader, x: View, dims: Any = None, *more: Any, **named: Any) -> View:
    return deviation(reader, x, *_asked(x, dims, *more, **named))[0]


@rule("var_mean.correction", "var_mean.dim", "var_mean")
def var_mean(reader: GraphReader, x: View, dims: Any = None, *more: Any, **named: Any) -> list[View]:
    return _with_mean(x, variance, reader, *_asked(x, dims, *more, **named))


@rule("std_mean.correction", "std_mean.dim", "std_mean")
def std_mean(reader: GraphReader, x: View, dims: Any = None, *more: Any, **named: Any) -> list[View]:
    return _with_mean(x, deviation, reader, *_asked(x, dims, *more, **named))


def _with_mean(x: View, spread_of: Any, reader: GraphReader, along: Any, correction: Any, keepdim: bool) -> list[View]:
    spread, middle = spread_of(reader, x, along, correction, keepdim)
    if not keepdim:
        middle = middle.with_dims([row for dim, row in enumerate(middle.dims) if dim not in along])
    return [spread, middle]
