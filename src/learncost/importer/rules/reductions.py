"""Sums, means, maxima and other reductions along axes, and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from learncost.importer.axes import AxisClass, equal, product, unify_axes
from learncost.importer.equations import Equation, NamedView, NumberOperand
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.indexing import at_indices, read_at
from learncost.importer.rules.views import merged, reshaped
from learncost.importer.views import GivenTensor, SelectedPositions, StoredValue, View, ViewAxis


def axes_along(view: View, dims: Any) -> list[int]:
    """Return the dimensions that an operator is given; all if none are given."""
    if dims is None or dims == []:
        return list(range(len(view.dims)))
    several = dims if isinstance(dims, list | tuple) else [dims]
    return sorted({dim % max(1, len(view.dims)) for dim in several}) if view.dims else []


def kept(view: View, count: int, dims: Sequence[int], keepdim: bool) -> View:
    """Return the result of a reduction, with dimensions of size one if these are kept."""
    if not keepdim:
        return view
    rest = iter(view.dims)
    return view.with_dims([() if dim in dims else next(rest) for dim in range(count)])


def summed(
    reader: GraphReader,
    x: View,
    dims: Sequence[int],
    factor: NumberOperand | None = None,
    keepdim: bool = False,
    hint: str = "",
) -> View:
    """Record a sum over dimensions, times a number; over dimensions of size one nothing is summed."""
    letters = range(len(x.dims))
    out = [letter for letter in letters if letter not in dims]
    if not any(x.dims[dim] for dim in dims):
        result = x.with_dims([x.dims[letter] for letter in out])
        return kept(result, len(x.dims), dims, keepdim)
    result = reader.recorder.line([factor or NumberOperand(1.0), (x, letters)], out, hint=hint)
    return kept(result, len(x.dims), dims, keepdim)


def share(view: View, dims: Sequence[int]) -> NumberOperand:
    """Return one over the number of elements of dimensions: `#n^-1[]`."""
    return NumberOperand(1.0, tuple(slot.axis for dim in dims for slot in view.dims[dim]), -1.0)


@rule("sum")
def sum_(reader: GraphReader, x: View, dims: Any = None, keepdim: bool = False, **_: Any) -> View:
    return summed(reader, x, axes_along(x, dims), None, keepdim)


@rule("mean")
def mean(reader: GraphReader, x: View, dims: Any = None, keepdim: bool = False, **_: Any) -> View:
    along = axes_along(x, dims)
    return summed(reader, x, along, share(x, along), keepdim)


def extreme(reader: GraphReader, op: str, x: View, dims: Sequence[int], keepdim: bool) -> View:
    if not any(x.dims[dim] for dim in dims):
        return summed(reader, x, dims, None, keepdim)
    return kept(reader.along(op, x, dims, keep=False), len(x.dims), dims, keepdim)


@rule("amax", "amin", "max", "min")
def largest(reader: GraphReader, x: View, dims: Any = None, keepdim: bool = False) -> View:
    op = "max" if "max" in reader.recorder.operator else "min"
    return extreme(reader, op, x, axes_along(x, dims), keepdim)


@rule("max.dim", "min.dim")
def max_along(reader: GraphReader, x: View, dim: int, keepdim: bool = False) -> list[Any]:
    """Return the largest along a dimension; among equal ones the first is read and has the gradient."""
    op = "argmax" if reader.node.target.__name__.startswith("max") else "argmin"
    dim %= len(x.dims)
    if not x.dims[dim]:
        return [summed(reader, x, [dim], None, keepdim), reader.part(1)]
    places, indices = chosen(reader, op, x, dim, None), reader.part(1)
    where = indices and SelectedPositions(kept(places, len(x.dims), [dim], keepdim), indices.node)
    return [kept(read_at(reader, x, dim, places), len(x.dims), [dim], keepdim), where]


def chosen(reader: GraphReader, op: str, x: View, dim: int, count: Any) -> View:
    """Record an op that selects positions along a dimension, `count` or one; its result is an index."""
    x = merged(reader, x, dim)
    x.dims[dim][0].axis.keep_whole()
    letters: list[Any] = list(range(len(x.dims)))
    recorder = reader.recorder
    out = letters if op == "argsort" else [letter for letter in letters if letter != dim]
    result = recorder.result([NamedView(x, tuple(letters))], out)
    if count is not None and op != "argsort":
        axis = AxisClass(count, "t")
        axis.keep_whole()
        slot = ViewAxis(axis)
        out.insert(dim, "chosen")
        rows = list(result.dims)
        rows.insert(dim, (slot,))
        stored = StoredValue(result.stored.name, (*result.stored.axes, axis))
        result = View(stored, (*result.index, slot), tuple(rows), result.spread)
    result.stored.kind = "chosen"
    result.stored.reads = x.dims[dim][0].axis
    recorder.add(Equation("op", (NamedView(result, tuple(out)),), (NamedView(x, tuple(letters)),), op=op, acts=(dim,)))
    if count is not None and op != "argsort" and equal(count, 1):  # for later readers, of size one
        return result.read(dim, (), ())
    return result


@rule("topk", "sort")
def topk(reader: GraphReader, x: View, *_: Any, **__: Any) -> list[Any]:
    given, ordered = reader.settings, x
    dim, op, count = given.dim, "topk", getattr(given, "k", None)
    if count is None:  # a sort
        op, count = "topk" if given.descending else "argsort", x.shape[dim]
    elif not given.largest:  # the largest of the negated values
        ordered = reader.multiply(-1.0, x)
    indices = reader.part(1)
    dim %= max(1, len(x.dims))
    if not x.dims or not x.dims[dim]:  # of size one
        return [x, indices]
    places = chosen(reader, op, ordered, dim, count)
    return [read_at(reader, x, dim, places), indices and SelectedPositions(places, indices.node)]


@rule("argmax", "argmin")
def argmax(reader: GraphReader, x: View, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the position of the largest or the smallest along a dimension, or of all."""
    if dim is None:
        x, dim, keepdim = reshaped(reader, x, [product(x.shape)]), 0, False
    dim %= max(1, len(x.dims))
    if not x.dims or not x.dims[dim]:  # of size one
        return GivenTensor(reader.node)
    places = chosen(reader, reader.recorder.operator, x, dim, None)
    return SelectedPositions(kept(places, len(x.dims), [dim], keepdim), reader.node)


@rule("logsumexp")
def logsumexp(reader: GraphReader, x: View, dims: Any, keepdim: bool = False) -> View:
    along = axes_along(x, dims)
    if not any(x.dims[dim] for dim in along):
        return summed(reader, x, along, None, keepdim)
    high = extreme(reader, "max", reader.op("stop_gradient", x), along, True)
    raised = reader.op("exp", reader.add(x, high, signs=[1, -1]))
    result = reader.add(reader.op("log", summed(reader, raised, along, None, True)), high)
    return result if keepdim else result.with_dims([row for dim, row in enumerate(result.dims) if dim not in along])


@rule("cumsum")
def cumsum(reader: GraphReader, x: View, dim: int, **_: Any) -> View:
    if not x.dims or not x.dims[dim]:
        return x
    x = merged(reader, x, dim % len(x.dims))
    x.dims[dim][0].axis.keep_whole()
    return reader.along("cumsum", x, [dim % len(x.dims)])


@rule("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax")
def softmax(reader: GraphReader, x: View, dim: int, *_: Any, **__: Any) -> View:
    op = "log_softmax" if "log" in reader.recorder.operator else "softmax"
    dim %= max(1, len(x.dims))
    if not x.dims or not x.dims[dim]:  # along an axis of size one a share is 1, and its logarithm 0
        nothing = reader.multiply(0.0, x)
        return nothing if op == "log_softmax" else reader.add(nothing, 1.0)
    return reader.along(op, x, [dim])


# Norms: roots of sums, whose gradient is 0 where the sum is 0


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


# Losses


REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def nll(
    reader: GraphReader, logs: View, classes: int, targets: GivenTensor, reduction: int, ignore: int, weight: Any = None
) -> View:
    """Record T = P at the targets; loss = the sum of T share, where share is -1/count of each target that counts.

    With class weights, the loss is the sum of T w share over that of w share, and share is -1 of what counts.
    """
    if weight is not None:
        places, by_class = _targets(reader, targets, logs, classes), reader.view(weight)
        unify_axes(*([slot.axis for slot in row] for row in (by_class.dims[0], logs.dims[classes])))
        names = [("i", place) for place in range(len(places.dims))]
        of_targets = at_indices(reader, by_class, {0: (places, names)}, names)
        counted = reader.multiply(of_targets, _shares(reader, targets, "none", ignore))
        each = reader.multiply(read_at(reader, logs, classes, places), counted)
        if reduction == 0:
            return each
        total = summed(reader, each, range(len(each.dims)))
        if reduction == 2:
            return total
        return reader.op(
            "divide", reader.multiply(-1.0, total), summed(reader, counted, range(len(counted.dims))), hint="loss"
        )
    taken = read_at(reader, logs, classes, _targets(reader, targets, logs, classes))
    if reduction == 0:
        return reader.multiply(taken, _shares(reader, targets, "none", ignore))
    shares = _shares(reader, targets, REDUCTIONS[reduction], ignore)
    dims = range(len(taken.dims))
    letters = list(dims)
    return reader.recorder.line([(taken, letters), (shares, letters)], [], hint="loss")


def _targets(reader: GraphReader, value: GivenTensor, logs: View, classes: int) -> View:
    """Return the targets of a loss as an index of its classes."""
    view = reader.index(value, logs.dims[classes][0].axis)
    view.stored.kind = "targets"
    return view


def _shares(reader: GraphReader, value: GivenTensor, reduction: str, ignore: int) -> View:
    """Return the weight of each target in a loss: -1/count, or 0 for an ignored one."""
    return reader.outside(value, f"share {reduction} {ignore}")


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    reader: GraphReader, x: View, targets: Any, weight: Any = None, reduction: int = 1, ignore: int = -100
) -> list[Any]:
    return [nll(reader, x, 1 if len(x.dims) > 1 else 0, targets, reduction, ignore, weight), None]
