"""A size that is filled up to a larger one, as a rewriting: what is added takes part in nothing.

    L[B M v] = X[B M d] W[d v] where v < 50257
    P[B M v] = log_softmax[v](L[B M v]) where v < 50257

Shoeybi et al. 2019, Megatron-LM, appendix A.2, fill up the vocabulary so that it can be cut over devices. Theirs learns
scores for the tokens that there are not; here these stand outside of the softmax, so that the loss and the gradients of
all others are what they were, and those of what was added are zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from learncost.ir.affine import Affine
from learncost.ir.line import Condition, Line, Op
from learncost.ir.loop import each_line, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.ops import entry


def with_padded(table: Table, axis: str, size: int) -> Table:
    """The forward table in which only the first places of an axis take part, `size` of them, however many there are."""
    inside = Condition(axis, str(size), "<")

    def change(line: Line) -> tuple[Line]:
        return (line.with_changed(where=(*line.where, inside)) if axis in line.loops else line,)

    return replace(table, lines=each_line(table.lines, change))


def paddable(table: Table) -> frozenset[str]:
    """Axes that may be filled up: of weights, of which lines read a place at an index or make logarithms of shares.

    That is the vocabulary of a model of language, and the classes of a classifier. Beyond its size a softmax counts
    nothing, and no index says a place; what picks the largest, reads at places or divides by how many there are would
    count what is added.
    """
    lines = [line for line, _ in walk(table.lines)]
    acted = {axis for line in lines if isinstance(line, Op) and _is_of_shares(line) for axis in line.axes}
    read = {axis for line in lines for axis in _read(line)}
    of_weights = {axis for name in table.weights for axis in table.axes[name]}
    axes_told = (acted | read) & of_weights
    return frozenset(axes_told - {axis for line in lines for axis in _counted(line)})


def _is_of_shares(line: Op) -> bool:
    return entry(line.op).makes == "logarithms"


def _read(line: Line) -> Iterator[str]:
    """Axes of which a line reads a place at an index."""
    for term in line.right:
        for axis in term.axes:
            if isinstance(axis, Read) and isinstance(axis.at, Term):
                yield axis.axis


def _counted(line: Line) -> Iterator[str]:
    """Axes of which it matters to a line how many places there are; to a choice, as its rows would not be balanced."""
    if isinstance(line, Op) and not entry(line.op).pointwise:
        yield from line.axes if entry(line.op).outside is None or entry(line.op).kind == "choice" else ()
    for operand in (*line.left, *line.right):
        if isinstance(operand, Literal):
            yield from map(base, operand.sizes)
        for axis in operand.axes if isinstance(operand, Term) else ():
            if isinstance(axis, Read) and isinstance(axis.at, Affine):
                yield axis.axis
            elif isinstance(axis, str) and base(axis) != axis:
                yield base(axis)
