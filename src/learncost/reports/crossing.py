"""Where one polynomial in a length overtakes another, exactly: the signs of their difference at whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from learncost.ir.polynomial import Polynomial
from learncost.models.sizes import LARGEST


@dataclass(frozen=True)
class SignInterval:
    """Lengths from `first` to `last`, both included, at which a polynomial has one sign: -1, 0 or 1."""

    first: int
    last: int
    sign: int


def coefficients(count: Polynomial, length: str) -> tuple[int, ...]:
    """The coefficients of a polynomial in one size, the constant one first."""
    assert count.sizes <= {length}, f"{count} has other sizes than {length}"
    factors = {len(monomial): factor for monomial, factor in count.terms.items()}
    return tuple(factors.get(power, 0) for power in range(max(factors, default=0) + 1))


def stretches(polynomial: Sequence[int], first: int = 1, last: int = LARGEST) -> tuple[SignInterval, ...]:
    """The signs of a polynomial with whole coefficients at every whole number from `first` to `last`.

    Between two changes of sign of p(n + 1) - p(n), whose degree is one less, p only rises or only falls; so bisection
    in each such stretch finds every change of sign of p, and misses none.
    """
    if len(polynomial) < 2 or first == last:
        return (SignInterval(first, last, _sign(_at(polynomial, first))),)
    merged: list[SignInterval] = []
    for piece in stretches(_step(polynomial), first, last - 1):
        start, end = piece.first, piece.last + 1
        while start <= end:
            sign = _sign(_at(polynomial, start))
            reach = _reach(polynomial, start, end, sign)
            if merged and merged[-1].sign == sign:
                merged[-1] = SignInterval(merged[-1].first, max(reach, merged[-1].last), sign)
            elif not merged or start > merged[-1].last:
                merged.append(SignInterval(start, reach, sign))
            start = reach + 1
    return tuple(merged)


def _reach(polynomial: Sequence[int], start: int, end: int, sign: int) -> int:
    """The last number up to `end` with this sign, where the polynomial only rises or only falls from start to end."""
    while start < end:
        middle = (start + end + 1) // 2
        if _sign(_at(polynomial, middle)) == sign:
            start = middle
        else:
            end = middle - 1
    return start


def _step(polynomial: Sequence[int]) -> tuple[int, ...]:
    """p(n + 1) - p(n)."""
    degree = len(polynomial) - 1
    return tuple(sum(polynomial[k] * comb(k, j) for k in range(j + 1, degree + 1)) for j in range(degree))


def _at(polynomial: Sequence[int], number: int) -> int:
    value = 0
    for factor in reversed(polynomial):
        value = value * number + factor
    return value


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
