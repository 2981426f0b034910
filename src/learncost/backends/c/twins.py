"""Common-subexpression elimination: values of a kernel that are equal by algebra are computed once.

GELU has tanh(c (x + a x^3)) and its gradient tanh(c x (1 + a x^2)): where a kernel makes both, one is enough. Every
value is written as a polynomial in what is none: arrays, sums over axes, words of polynomials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.term import Literal, Operand, Term

Monomial: TypeAlias = frozenset[tuple[object, int]]
Polynomial: TypeAlias = Mapping[Monomial, float]

_LONGEST = 8
"""Monomials of a polynomial beyond which a value stands for itself."""


def without_twins(lines: Sequence[Line], outputs: Collection[str]) -> list[Line]:
    """Return the lines of one scope in normal form without duplicates of earlier values; outputs are kept."""
    values: dict[str, Polynomial] = {}
    first_of: dict[object, str] = {}
    names: dict[str, str] = {}
    result: list[Line] = []
    for line in lines:
        line = line.renamed(names)
        polynomial = _value(line, values)
        if polynomial is not None:
            key = _key(polynomial), line.left[0].axes
            if key in first_of and line.name not in outputs:
                names[line.name] = first_of[key]
                continue
            first_of.setdefault(key, line.name)
            values[line.name] = polynomial
        result.append(line)
    return result


def _value(line: Line, values: Mapping[str, Polynomial]) -> Polynomial | None:
    """Return the polynomial of an elementwise line; None for every other line."""
    (left, *more) = line.left
    if more or left.indexed or line.where or set(line.loops) - set(left.loops):
        return None
    operands = [_operand(operand, values) for operand in line.right]
    if isinstance(line, Op):
        return None if line.axes or not operands else _atom((line.op, *map(_key, operands), left.axes))
    if isinstance(line, Sum):
        return _short(_added(operands, line.signs))
    if (
        isinstance(line, Product) and sum(len(operand_polynomial) > 1 for operand_polynomial in operands) < 2
    ):  # (x - m)^2 is not multiplied out
        return _short(_multiplied(operands))
    return None


def _operand(operand: Operand, values: Mapping[str, Polynomial]) -> Polynomial:
    if isinstance(operand, Literal) and not operand.sizes:
        return {frozenset(): operand.value}
    elsewhere = isinstance(operand, Term) and operand.indexed  # its index differs
    return _atom(operand) if elsewhere else values.get(operand.name) or _atom(operand)


def _atom(value: object) -> Polynomial:
    return {frozenset({(value, 1)}): 1.0}


def _key(polynomial: Polynomial) -> frozenset[tuple[Monomial, float]]:
    """Return a key that is equal for equal polynomials, independent of the rounding of coefficients."""
    return frozenset((monomial, float(f"{number:.12g}")) for monomial, number in polynomial.items())


def _short(polynomial: Polynomial) -> Polynomial | None:
    return polynomial if len(polynomial) <= _LONGEST else None


def _added(parts: Sequence[Polynomial], signs: Sequence[int]) -> Polynomial:
    total: dict[Monomial, float] = {}
    for part, sign in zip(parts, signs, strict=True):
        for monomial, number in part.items():
            total[monomial] = total.get(monomial, 0.0) + sign * number
    return total


def _multiplied(factors: Sequence[Polynomial]) -> Polynomial:
    total: Polynomial = {frozenset(): 1.0}
    for factor in factors:
        total = {
            frozenset((Counter(dict(monomial)) + Counter(dict(other))).items()): number * times
            for monomial, number in total.items()
            for other, times in factor.items()
        }
    return total
