"""Lines whose normal form does not depend on the lines around them, and when two of these have the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from learncost.ir.line import Line, Op, Sum
from learncost.ir.loop import Loop, walk
from learncost.ir.table import Table
from learncost.ir.term import Term


def alone(table: Table) -> Callable[[Line], bool]:
    """Whether a line is lowered in the same way wherever it stands.

    Only what may stand outside a `where` comes from other lines. It is known of what lines with a `where` make, by
    whatever name a repeat hands it in or out; every line that touches none of these names stands alone.
    """
    conditioned = {term.name for line, _ in walk(table.lines) if line.where for term in line.left}
    repeats = [*table.repeats]
    pairs = []
    while repeats:
        repeat = repeats.pop()
        pairs += [*repeat.each, *repeat.keep]
        repeats += [line for line in repeat.lines if isinstance(line, Loop)]
    before = -1
    while before != len(conditioned):
        before = len(conditioned)
        conditioned.update(name for pair in pairs if not conditioned.isdisjoint(pair) for name in pair)
    return lambda line: not line.where and conditioned.isdisjoint((*line.reads, *(term.name for term in line.left)))


def shape(line: Line) -> Hashable:
    """What the counts of a line that stands alone depend on: everything but its names and its tag."""
    particulars: tuple[Hashable, ...] = ()
    if isinstance(line, Op):
        particulars = (line.op, line.part, line.axes, line.given, line.gives, line.opaque)
    elif isinstance(line, Sum):
        particulars = line.signs
    # The axes of indices, and a term or literal that is read twice, are a part of what is lowered.
    right = tuple(term.axes if isinstance(term, Term) else term for term in line.right)
    names = [term.name for term in line.right]
    return type(line), particulars, tuple(term.axes for term in line.left), right, tuple(map(names.index, names))
