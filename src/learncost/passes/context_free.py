"""Lines whose lowering does not depend on other lines, and a key for lines with equal lowering."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from learncost.ir.line import Line, Op, Sum
from learncost.ir.loop import Loop, walk
from learncost.ir.table import Table
from learncost.ir.term import Term


def alone(table: Table) -> Callable[[Line], bool]:
    """Return a predicate for lines that are lowered in the same way in any context.

    Only the values outside a `where` depend on other lines. They are tracked for results of lines with a `where`,
    through all names that loops give them; every line that reads or defines none of these names is context-free.
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
    """Return a key of everything that the counts of a context-free line depend on, without names and metadata."""
    particulars: tuple[Hashable, ...] = ()
    if isinstance(line, Op):
        particulars = (line.op, line.part, line.axes, line.given, line.gives, line.opaque)
    elif isinstance(line, Sum):
        particulars = line.signs
    # The axes of indices, and a term or literal that is read twice, change the lowering.
    right = tuple(term.axes if isinstance(term, Term) else term for term in line.right)
    names = [term.name for term in line.right]
    return type(line), particulars, tuple(term.axes for term in line.left), right, tuple(map(names.index, names))
