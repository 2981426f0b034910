"""Loss functions."""

from __future__ import annotations

from typing import Any

from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.indexing import at_indices, read_at
from learncost.importer.rules.reductions import summed
from learncost.importer.views import GivenTensor, View

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def nll(
    reader: GraphReader, logs: View, classes: int, targets: GivenTensor, reduction: int, ignore: int, weight: Any = None
) -> View:
    """Record T = P at the targets; loss = the sum of T share, where share is -1/count of each target that counts.

    With class weights, the loss is the sum of T w share over that of w share, and share is -1 of what counts.
    """
    if weight is not None:
        places, by_class = _targets(reader, targets, logs, classes), reader.view(weight)
        reader.recorder.same(by_class.dims[0], logs.dims[classes])
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
