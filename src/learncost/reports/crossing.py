"""The lengths at which one polynomial exceeds another, and counts in the letters of Vaswani et al. 2017, table 1.

A crossing is found by the signs of the difference of the two polynomials; n is the length, d the width, k the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import comb
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.polynomial import Monomial, Polynomial, base, written
from learncost.models.sizes import LARGEST
from learncost.reports.notation import one_width


@dataclass(frozen=True)
class SignInterval:
    """Lengths from `first` to `last`, both included, at which a polynomial has one sign: -1, 0 or 1."""

    first: int
    last: int
    sign: int


def coefficients(count: Polynomial, length: str) -> tuple[int, ...]:
    """Return the coefficients of a polynomial in one size, the constant first."""
    assert count.sizes <= {length}, f"{count} has other sizes than {length}"
    factors = {len(monomial): factor for monomial, factor in count.terms.items()}
    return tuple(factors.get(power, 0) for power in range(max(factors, default=0) + 1))


def sign_intervals(polynomial: Sequence[int], first: int = 1, last: int = LARGEST) -> tuple[SignInterval, ...]:
    """Return the signs of a polynomial with integer coefficients at every integer from `first` to `last`.

    Between two changes of sign of p(n + 1) - p(n), whose degree is one less, p only rises or only falls; so bisection
    in each such stretch finds every change of sign of p, and misses none.
    """
    if len(polynomial) < 2 or first == last:
        return (SignInterval(first, last, _sign(value_at(polynomial, first))),)
    merged: list[SignInterval] = []
    for piece in sign_intervals(_step(polynomial), first, last - 1):
        start, end = piece.first, piece.last + 1
        while start <= end:
            sign = _sign(value_at(polynomial, start))
            reach = _reach(polynomial, start, end, sign)
            if merged and merged[-1].sign == sign:
                merged[-1] = SignInterval(merged[-1].first, max(reach, merged[-1].last), sign)
            elif not merged or start > merged[-1].last:
                merged.append(SignInterval(start, reach, sign))
            start = reach + 1
    return tuple(merged)


def _reach(polynomial: Sequence[int], start: int, end: int, sign: int) -> int:
    """Return the last number up to `end` with this sign of a polynomial that is monotonic from start to end."""
    while start < end:
        middle = (start + end + 1) // 2
        if _sign(value_at(polynomial, middle)) == sign:
            start = middle
        else:
            end = middle - 1
    return start


def _step(polynomial: Sequence[int]) -> tuple[int, ...]:
    """Return p(n + 1) - p(n)."""
    degree = len(polynomial) - 1
    return tuple(sum(polynomial[k] * comb(k, j) for k in range(j + 1, degree + 1)) for j in range(degree))


def value_at(polynomial: Sequence[int], number: int) -> int:
    """Return the value of a polynomial, whose constant is first."""
    value = 0
    for factor in reversed(polynomial):
        value = value * number + factor
    return value


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


LETTERS = {"seq_len": "n", "hidden_size": "d", "num_attention_heads": "h", "kernel_size": "k", "window": "r"}
"""The sizes and their letters."""

# The letters of the axes. All inputs of an attention are one sequence, and every layer is as wide as its input.
_AXES: Mapping[str, Polynomial] = {
    **{axis: Polynomial.of("n") for axis in ("M", "N")},
    **{axis: Polynomial.of("d") for axis in ("d", "e")},
    "f": Polynomial.of("d", 4),  # the inner width of the feed-forward network
    "c": Polynomial.of("k"),
    "r": Polynomial.of("r"),
    "B": Polynomial.of(()),
}


def lettered(count: Polynomial) -> Polynomial:
    """Return a count of a table in the letters of the comparison; h heads of width d/h are d."""
    result = Polynomial()
    for monomial, coefficient in one_width(count, {"d", "h", "k"}).terms.items():
        product = Polynomial.of((), coefficient)
        for axis in monomial:
            product *= _AXES[base(axis)]
        result += product
    return result


_ORDER = "krndh"  # k n d^2, as in the source


def text(count: Polynomial, number: Callable[[int], str] = "{:,}".format) -> str:
    """Return a polynomial as screen text, such as 4 n d^2 + 2 n^2 d."""
    return written(_ordered(count), number=number)


def python(count: Polynomial) -> str:
    """Return a polynomial as a Python expression, such as 4*n*d**2 + 2*n**2*d."""
    return written(_ordered(count), "*", "**")


def _ordered(count: Polynomial) -> Iterator[tuple[Monomial, Any]]:
    """Yield the terms: added ones before subtracted ones, high degrees first, n before its square."""

    def place(item: tuple[Monomial, int]) -> tuple[bool, int, int]:
        return item[1] < 0, -len(item[0]), item[0].count("n")

    for monomial, coefficient in sorted(count.terms.items(), key=place):
        yield tuple(sorted(monomial, key=_ORDER.index)), coefficient


def order(count: Polynomial) -> Polynomial:
    """Return the order of growth of a polynomial, without coefficients and dominated terms."""

    def within(monomial: Monomial, other: Monomial) -> bool:
        return monomial != other and all(monomial.count(name) <= other.count(name) for name in monomial)

    return Polynomial({m: 1 for m in count.terms if not any(within(m, other) for other in count.terms)})
