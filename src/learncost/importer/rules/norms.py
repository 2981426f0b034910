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


@rule("linalg_vector_norm")
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


@rule("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def spread(
    reader: GraphReader, x: View, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> View | list[View]:
    """Return the variance or the standard deviation along dimensions, and the mean where the operator gives it."""
    along, name = axes_along(x, dims), reader.recorder.operator
    of_kind = variance if name.startswith("var") else deviation
    value, middle = of_kind(reader, x, along, 1 if correction is None else correction, keepdim)
    if not keepdim:
        middle = middle.with_dims([row for dim, row in enumerate(middle.dims) if dim not in along])
    return [value, middle] if name.endswith("_mean") else value
