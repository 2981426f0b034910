"""Integers that represent other numbers, each array with one power of two, which may be known only at run time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Power:
    """A power of two as a sum: an integer, and scalars of the table, each with its multiplicity.

    Examples
    --------
    >>> power = Power(-7) + Power.of("W.power")
    >>> power + power - Power(1)
    Power(number=-15, scalars=(('W.power', 2),))
    """

    number: int = 0
    scalars: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(scalar: str) -> Power:
        """Return the power that is a scalar."""
        return Power(0, ((scalar, 1),))

    def times(self, factor: int) -> Power:
        return Power(self.number * factor, tuple((name, count * factor) for name, count in self.scalars))

    def __add__(self, other: Power) -> Power:
        counts: dict[str, int] = dict(self.scalars)
        for name, count in other.scalars:
            counts[name] = counts.get(name, 0) + count
        scalars = tuple((name, count) for name, count in sorted(counts.items()) if count)
        return Power(self.number + other.number, scalars)

    def __sub__(self, other: Power) -> Power:
        return self + other.times(-1)


@dataclass(frozen=True)
class ScaledInteger:
    """The integers that represent a value of a table.

    name   of the array of integers
    power  of two by which each is multiplied
    bits   their absolute values are below 2 to this power
    """

    name: str
    power: Power
    bits: int


CODE, HALF, TOTAL, WORD = 7, 15, 29, 30
"""Bits of an 8-bit code without sign, of a factor of an elementwise product, of a sum of products, of any number."""
