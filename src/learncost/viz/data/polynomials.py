"""Counts as data that a page evaluates in whole numbers: polynomials in the axes, each monomial written once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Any, TypeAlias

from learncost.ir.polynomial import Polynomial
from learncost.reports.notation import terms as in_print

Exported: TypeAlias = list[Any]
"""A polynomial as it is printed: the number that all is divided by at the end, then pairs of a monomial's place and its
coefficient.

Coefficients are whole numbers, as halves are divided by at the end: the value at whole sizes is exact, to the unit.
"""


@dataclass
class Monomials:
    """The monomials of many polynomials, by their places: products of axes, each multiplied out once by who reads."""

    places: dict[tuple[str, ...], int] = field(default_factory=dict)

    def exported(self, count: Polynomial) -> Exported:
        """A polynomial in terms of these monomials."""
        over = lcm(*(coefficient.denominator for coefficient in count.terms.values()))
        terms = [
            [self.places.setdefault(monomial, len(self.places)), int(coefficient * over)]
            for monomial, coefficient in in_print(count)
        ]
        return [over, *terms]

    def to_list(self) -> list[list[str]]:
        """The axes of each monomial, in the order of the places."""
        return [list(monomial) for monomial in self.places]


def as_count(value: Any) -> Polynomial:
    """Return a polynomial after substitution of sizes as a polynomial, also where it is a number."""
    return value if isinstance(value, Polynomial) else Polynomial.of((), value)
