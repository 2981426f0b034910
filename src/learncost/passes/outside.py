"""The values of arrays outside of a `where`: a number that follows from the lines that define them, or unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.term import Axis, Literal, Operand, Term
from learncost.ops import entry

Bounds: TypeAlias = tuple[Axis, Axis, str, str | None]  # a condition on axes as a line reads them


class MaskCondition(NamedTuple):
    """A condition on a value: the numbers of the lower and the upper axis among its axes, or a number as digits."""

    lower: int | str
    upper: int | str
    relation: str
    window: str | None

    def read(self, term: Operand) -> Bounds:
        """Return the condition on the axes with which a term reads the value."""
        lower, upper = (side if isinstance(side, str) else term.axes[side] for side in self[:2])
        return lower, upper, self.relation, self.window

    def on(self, axes: tuple[str, ...]) -> Condition:
        """Return the condition on the value's own axes."""
        lower, upper = (side if isinstance(side, str) else axes[side] for side in self[:2])
        return Condition(lower, upper, self.relation, self.window)


class OutsideValues(dict[str, dict[MaskCondition, float | None]]):
    """The number outside of each condition, or None, by name of a value."""

    def number_beyond(self, term: Operand, condition: Condition) -> float | None:
        """Return the number outside of the condition in an operand, or None.

        A value outside of a condition is known outside of every wider one, too.
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
        """Return the number outside in the result of a line, when it follows from its operands."""
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
    """Return the condition in the form that is compared with others."""
    return condition.lower, condition.upper, condition.relation, condition.window


_IMPLIES = {"<": ("<", "<=", "!="), "=": ("=", "<=")}


def within(inner: Bounds, outer: Bounds) -> bool:
    """Return whether one condition implies the other; the sizes of two windows are unknown."""
    return inner[:2] == outer[:2] and outer[2] in _IMPLIES.get(inner[2], (inner[2],)) and outer[3] in (None, inner[3])


def narrowest(where: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions, each once, without those that another one implies."""
    conditions = tuple(dict.fromkeys(where))
    return tuple(c for c in conditions if not any(o != c and within(bounds(o), bounds(c)) for o in conditions))


def pair(term: Operand, condition: Condition) -> MaskCondition | None:
    """Return the condition on a term's axes by their numbers; None where the term lacks one."""
    axes = term.axes
    if not condition.axes <= {*axes}:
        return None
    lower, upper = (axis if axis.isdigit() else axes.index(axis) for axis in (condition.lower, condition.upper))
    return MaskCondition(lower, upper, condition.relation, condition.window)
