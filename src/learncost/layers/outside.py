"""What stands outside a `where` in an array: a number that follows from the lines that made it, or something else."""

from __future__ import annotations

import math

from learncost.equation.table import Axis, Condition, Line, Literal, Operand, Product, Sum, Term, Word

Pair = tuple[int, int, bool]  # positions of the lower and the upper axis among a value's axes, and whether strict


class Outside(dict[str, dict[Pair, float | None]]):
    """By name of a value and by condition: the number outside, or None."""

    def known(self, term: Operand, condition: Condition) -> float | None:
        """The number that stands outside the condition in an operand, or None."""
        if isinstance(term, Literal):
            return term.value if not term.sizes else None
        at = pair(term, condition)
        return self.get(term.name, {}).get(at) if at else None

    def vanishes(self, line: Product, term: Operand, where: tuple[Axis, Axis, bool]) -> bool:
        """Whether another factor is zero wherever this one may hold anything."""
        one, two, strict = where
        return any(
            value == 0.0 and (other.axes[lower], other.axes[upper]) == (one, two) and (zero_strict or not strict)
            for other in line.right
            if other is not term
            for (lower, upper, zero_strict), value in self.get(other.name, {}).items()
        )

    def beyond(self, line: Line, condition: Condition) -> float | None:
        """What stands outside in the result of a line, when that follows from its operands."""
        values = [
            self.known(term, condition) if isinstance(term, Literal) or condition.axes <= set(term.loops) else None
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
        assert isinstance(line, Word)
        if line.word == "divide" and values[0] == 0.0 and not condition.axes <= set(line.right[1].loops):
            return 0.0
        if line.word == "select" and values[-1] is not None and len(line.given) == 2:
            return values[-1]
        if len(values) == 1 and values[0] is not None:
            return {"exp": math.exp, "tanh": math.tanh, "erf": math.erf, "sqrt": math.sqrt}.get(line.word, _unknown)(
                values[0]
            )
        if line.word == "select" and values[1:] == [0.0, 0.0]:
            return 0.0
        if line.word == "maximum" and None not in values:
            return max(v for v in values if v is not None)
        return None


def _unknown(_: float) -> None:
    return None


def within(condition: Condition, lower: Axis, upper: Axis, strict: bool) -> bool:
    """Whether a condition keeps a line inside another one on these axes."""
    return (condition.lower, condition.upper) == (lower, upper) and (condition.strict or not strict)


def pair(term: Operand, condition: Condition) -> Pair | None:
    """Where a condition's axes stand in a term."""
    axes = term.axes
    if condition.lower in axes and condition.upper in axes:
        return axes.index(condition.lower), axes.index(condition.upper), condition.strict
    return None
