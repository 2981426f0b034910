"""Analyse and normalize lines: concatenations, writes as reads, values outside a `where`, context-free lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.line import Condition, Line, Meta, Op, Product, Sum
from learncost.ir.loop import repeats, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Axis, Literal, Operand, Read, Term
from learncost.ops import applied, entry


def join_of(line: Sum) -> Op | None:
    """Return a sum that concatenates arrays as a `join`, such as `J[n] = X[m=n] + Z[k=n - #m]`; None for other sums."""
    left, along = line.left[0], ""
    ends: list[AffineTerm] = []  # of the arrays so far
    parts: list[Operand] = []
    for term in line.right:
        reads = term.indexed_axes
        at = reads[0].at if len(reads) == 1 else None
        if not isinstance(at, Affine) or at.fixed or term.loops != left.loops:
            return None
        along = along or at.loops[0]
        if {*at.parts} != {*total((AffineTerm(1, (), along), *ends))}:
            return None
        parts.append(Term(term.name, term.declared))
        ends.append(AffineTerm(-1, (base(reads[0].axis),)))
    if len(parts) < 2 or line.where or left.indexed or {*line.signs} != {1}:
        return None
    return applied("join", left, parts, line.meta, (along,))


def joined(table: Table) -> Iterator[tuple[str, list[str]]]:
    """Yield the axes along which arrays are concatenated, each with the axes of the arrays."""
    for line, _ in walk(table.lines):
        op = join_of(line) if isinstance(line, Sum) else None
        if op is not None:
            place = op.left[0].axes.index(op.axes[0])
            yield base(op.axes[0]), [base(str(term.axes[place])) for term in op.right]


def read_back(left: Term, value: Operand, meta: Meta) -> Product | None:
    """Return a write at affine indices as a read, such as `Y[n=m + 1] = X[m]` as `Y[n] = X[m=n - 1]`.

    Return None if the map is not one-to-one, as with `y=i + u` and `y=2 i`.
    """
    if isinstance(value, Literal):
        return None
    reads = left.indexed_axes
    loops = [axis for axis in left.axes if isinstance(axis, str)] + [loop for read in reads for loop in read.at.loops]
    solved: dict[str, Axis] = {}
    for read in reads:
        at, others = read.at, {*loops} - {*read.at.loops}
        place = at.solved(at.loops[0], read.axis) if isinstance(at, Affine) and len(at.loops) == 1 else None
        if place is None or loops.count(at.loops[0]) > 1 or read.axis in others:
            return None
        solved[at.loops[0]] = Read(at.loops[0], place)
    axes = tuple(solved.get(axis, axis) if isinstance(axis, str) else axis for axis in value.axes)
    return Product((Term(left.name, left.declared),), (Term(value.name, axes),), (), meta)


def alone(table: Table) -> Callable[[Line], bool]:
    """Return a predicate for lines that are lowered in the same way in any context.

    Lowering depends on other lines only by the values outside a `where`. A line is context-free if it has no `where`
    and neither reads nor defines a result of a line with a `where`, under any name that loops give it.
    """
    conditioned = {term.name for line, _ in walk(table.lines) if line.where for term in line.left}
    pairs = [pair for loop in repeats(table.lines) for pair in (*loop.each, *loop.keep)]
    before = -1
    while before != len(conditioned):
        before = len(conditioned)
        conditioned.update(name for pair in pairs if not conditioned.isdisjoint(pair) for name in pair)
    return lambda line: not line.where and conditioned.isdisjoint((*line.reads, *line.makes))


def shape(line: Line) -> Hashable:
    """Return a key of all that the counts of a context-free line depend on, without names and metadata."""
    particulars: tuple[Hashable, ...] = ()
    if isinstance(line, Op):
        particulars = (line.op, line.part, line.axes, line.given, line.gives, line.opaque)
    elif isinstance(line, Sum):
        particulars = line.signs
    # The lowering depends on the axes of indices and on whether a term or literal is read twice.
    right = tuple(term.axes if isinstance(term, Term) else term for term in line.right)
    names = [term.name for term in line.right]
    return type(line), particulars, tuple(term.axes for term in line.left), right, tuple(map(names.index, names))


Bounds: TypeAlias = tuple[Axis, Axis, str, str | None]  # a condition on axes as a line reads them


class MaskCondition(NamedTuple):
    """A condition on a value: the positions of its lower and upper axis among the value's axes, or a number as
    digits."""

    lower: int | str
    upper: int | str
    relation: str
    window: str | None
    zigzag: tuple[tuple[str, ...], tuple[str, ...]]

    def read(self, term: Operand) -> Bounds:
        """Return the condition on the axes with which a term reads the value."""
        lower, upper = (side if isinstance(side, str) else term.axes[side] for side in self[:2])
        return lower, upper, self.relation, self.window

    def on(self, axes: tuple[str, ...]) -> Condition:
        """Return the condition on the value's own axes."""
        lower, upper = (side if isinstance(side, str) else axes[side] for side in self[:2])
        return Condition(lower, upper, *self[2:])


class OutsideValues(dict[str, dict[MaskCondition, float | None]]):
    """The number that a value has outside of each condition, or None if unknown, by the value's name."""

    def number_beyond(self, term: Operand, condition: Condition) -> float | None:
        """Return the number that an operand has outside of a condition; None if unknown.

        The number outside of a condition is also that outside of every wider condition.
        """
        if isinstance(term, Literal):
            return term.value if not term.sizes else None
        wider = bounds(condition)
        numbers = (value for at, value in self.get(term.name, {}).items() if within(at.read(term), wider))
        return next((value for value in numbers if value is not None), None)

    def vanishes(self, line: Product, term: Operand, where: Bounds) -> bool:
        """Return whether another factor is zero wherever this one is unknown."""
        return any(
            value == 0.0 and within(at.read(other), where)
            for other in line.right
            if other is not term
            for at, value in self.get(other.name, {}).items()
        )

    def beyond(self, line: Line, condition: Condition) -> float | None:
        """Return the number that the result of a line has outside of a condition, if it follows from the operands."""
        values = [
            self.number_beyond(term, condition)
            if isinstance(term, Literal) or condition.axes <= set(term.loops)
            else None
            for term in line.right
        ]
        if isinstance(line, Product):
            return (
                0.0 if any(v == 0.0 for v, t in zip(values, line.right, strict=True) if isinstance(t, Term)) else None
            )
        if isinstance(line, Sum):
            signed = [None if v is None else v * s for v, s in zip(values, line.signs, strict=True)]
            if any(v == -math.inf for v in signed):
                return -math.inf
            return math.fsum(v for v in signed if v is not None) if None not in signed else None
        assert isinstance(line, Op)
        if line.op == "divide" and values[0] == 0.0 and not condition.axes <= set(line.right[1].loops):
            return 0.0
        if line.op == "select" and values[-1] is not None and len(line.given) == 2:
            return values[-1]
        if line.op == "select" and values[1:] == [0.0, 0.0]:
            return 0.0
        numbers = [value for value in values if value is not None]
        determined = line.part == "body" and 0 < len(numbers) == len(values)
        return entry(line.op).value(*numbers) if determined else None


def moved(numbers: Mapping[MaskCondition, float | None], places: int) -> dict[MaskCondition, float | None]:
    """Return the outside values of a stack from those of its slice, or vice versa, with axes shifted by `places`."""
    shifted: dict[MaskCondition, float | None] = {}
    for pair, value in numbers.items():
        lower, upper = (side if isinstance(side, str) else side + places for side in pair[:2])
        if all(isinstance(side, str) or side >= 0 for side in (lower, upper)):
            shifted[pair._replace(lower=lower, upper=upper)] = value
    return shifted


def bounds(condition: Condition) -> Bounds:
    """Return a condition in the form that `within` compares."""
    return condition.lower, condition.upper, condition.relation, condition.window


_IMPLIES = {"<": ("<", "<=", "!="), "=": ("=", "<=")}


def within(inner: Bounds, outer: Bounds) -> bool:
    """Return whether the first condition implies the second; different windows are not compared."""
    return inner[:2] == outer[:2] and outer[2] in _IMPLIES.get(inner[2], (inner[2],)) and outer[3] in (None, inner[3])


def narrowest(where: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the distinct conditions without those that another one implies."""
    conditions = tuple(dict.fromkeys(where))
    return tuple(c for c in conditions if not any(o != c and within(bounds(o), bounds(c)) for o in conditions))


def pair(term: Operand, condition: Condition) -> MaskCondition | None:
    """Return the condition by the positions of its axes in a term; None if the term lacks one."""
    axes = term.axes
    if not condition.axes <= {*axes}:
        return None
    lower, upper = (axis if axis.isdigit() else axes.index(axis) for axis in (condition.lower, condition.upper))
    return MaskCondition(lower, upper, condition.relation, condition.window, condition.zigzag)
