"""Whole numbers that stand for others, each times one power of two: of which the power may be known in a run alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Power:
    """A power of two as a sum: a whole number, and scalars of the table, each as often as it is added.

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
        """The power that is a scalar."""
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
    """What stands for a value of a table.

    name   of the array of whole numbers
    power  of two by which each is multiplied
    bits   their sizes are below 2 to the power of these
    """

    name: str
    power: Power
    bits: int


CODE, HALF, TOTAL, WORD = 7, 15, 29, 30
"""Bits of a code of 8 with its sign, of a factor of an elementwise product, of a sum of products, and of any number."""
