"""Exponentials and logarithms of integers, as lines: powers of two, and polynomials between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.line import Meta, Product, Sum
from learncost.ir.term import Literal, Operand, Term
from learncost.passes.powers import HALF, WORD, Power, ScaledInteger
from learncost.passes.shifts import Shifts

LOG2_E, LN_2 = (11819, -13), (22713, -15)
"""log2(e) and ln(2) as integers times powers of two."""

UNIT = -10
"""The power of two of the exponent's unit."""


def exponential(scope: Shifts, number: ScaledInteger, axes: tuple[str, ...], name: str, meta: Meta) -> ScaledInteger:
    """Emit 2^(x log2(e)), at most 1: a power of two, and a polynomial from 2^-1/2 to 2^1/2."""
    steps = _IntegerSteps(scope, name, axes, meta)
    number = scope.narrow(number, axes, HALF, meta.phase)
    factor, power = LOG2_E
    product = steps.times(Term(number.name, axes), factor)
    amount = scope.scalar(Power(UNIT) - number.power - Power(power), meta)
    exponent = steps.op("minimum", steps.op("shift", product, amount), Literal(0.0))
    whole = steps.op("shift", exponent, Literal(10.0))
    rest = steps.minus(exponent, steps.times(whole, 1024))
    near = steps.polynomial(rest, (16384, 11356, 3975, 916), 10)
    scope.op(name, "shift", axes, (near, steps.times(whole, -1)), meta)
    return ScaledInteger(name, Power(-14), HALF)


def logarithm(scope: Shifts, number: ScaledInteger, axes: tuple[str, ...], name: str, meta: Meta) -> ScaledInteger:
    """Emit (bits of x, and a polynomial of its highest bits, from 1/2 to 1) times ln(2)."""
    steps = _IntegerSteps(scope, name, axes, meta)
    given = Term(number.name, axes)
    many = steps.op("bits", given)
    highest = steps.op("shift", given, steps.plus(many, Literal(-15.0)))
    middle = steps.plus(highest, Literal(-24576.0))
    near = steps.op("shift", steps.polynomial(middle, (-6800, 31489, -22266, 20375), 15), Literal(4.0))
    total = steps.sum(steps.times(many, 1024), near)
    power = scope.scalar(number.power, meta)
    if isinstance(power, Literal):
        total = steps.plus(total, Literal(1024 * power.value)) if power.value else total
    else:
        total = steps.sum(total, Term(_IntegerSteps(scope, name, (), meta).times(power, 1024).name, ()))
    factor, unit = LN_2
    scope.emit(Product((Term(name, axes),), (total, Literal(float(factor))), (), meta))
    return ScaledInteger(name, Power(UNIT + unit), WORD)


@dataclass(frozen=True)
class _IntegerSteps:
    """A builder of the intermediate lines of one value, along its axes."""

    scope: Shifts
    name: str
    axes: tuple[str, ...]
    meta: Meta

    def _made(self) -> Term:
        return Term(self.scope.fresh(self.name), self.axes)

    def op(self, op: str, *operands: Operand) -> Term:
        return self.scope.op(self._made().name, op, self.axes, operands, self.meta)

    def times(self, term: Operand, factor: int) -> Term:
        made = self._made()
        self.scope.emit(Product((made,), (term, Literal(float(factor))), (), self.meta))
        return made

    def sum(self, first: Operand, second: Operand, sign: int = 1) -> Term:
        made = self._made()
        self.scope.emit(Sum((made,), (first, second), (), self.meta, (1, sign)))
        return made

    def plus(self, term: Operand, literal: Literal) -> Term:
        return self.sum(term, replace(literal, value=abs(literal.value)), 1 if literal.value > 0 else -1)

    def minus(self, first: Operand, second: Operand) -> Term:
        return self.sum(first, second, -1)

    def polynomial(self, x: Term, factors: Sequence[int], unit: int) -> Term:
        """Evaluate a polynomial of x 2^-unit by Horner's rule; its factors have the result's scale."""
        *others, last = factors
        total: Term = self.times(x, last)
        for number, factor in reversed([*enumerate(others)]):
            total = self.plus(self.op("shift", total, Literal(float(unit))), Literal(float(factor)))
            if number:
                made = self._made()
                self.scope.emit(Product((made,), (total, x), (), self.meta))
                total = made
        return total


FUNCTIONS: Mapping[str, Callable[[Shifts, ScaledInteger, tuple[str, ...], str, Meta], ScaledInteger]] = {
    "exp": exponential,
    "log": logarithm,
}
"""The functions by their ops: each maps a number along axes to a value of a name."""
