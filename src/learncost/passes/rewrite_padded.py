"""Padding of a size, as a rewrite: the padded entries are masked out.

    L[B M v] = X[B M d] W[d v] where v < 50257
    P[B M v] = log_softmax[v](L[B M v]) where v < 50257

Shoeybi et al. 2019, Megatron-LM, appendix A.2, pad the vocabulary so that it can be sharded. Theirs trains scores for
the padded tokens; here these are masked out of the softmax, so that the loss and the gradients of all others are
unchanged, and those of the padding are zero.
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
    """Return the forward table with an axis masked to its first `size` positions."""
    inside = Condition(axis, str(size), "<")

    def change(line: Line) -> tuple[Line]:
        return (line.with_changed(where=(*line.where, inside)) if axis in line.loops else line,)

    return replace(table, lines=each_line(table.lines, change))


def paddable(table: Table) -> frozenset[str]:
    """Return axes that may be padded: of weights, that lines read at an index or that a log softmax acts on.

    These are the vocabulary of a language model and the classes of a classifier. A softmax masks the padding, and no
    index points to it; an operator that selects the largest, reads at affine indices or divides by the size would
    include it.
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
    """Yield the axes that a line reads at an index array."""
    for term in line.right:
        for axis in term.axes:
            if isinstance(axis, Read) and isinstance(axis.at, Term):
                yield axis.axis


def _counted(line: Line) -> Iterator[str]:
    """Yield the axes whose size affects a line's result; for a choice, the padded rows would unbalance it."""
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
