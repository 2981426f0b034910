"""Counts in the paper's symbols: d is d_model, k is d_k, f is d_ff, v is voc; h d_k is written d_model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from fractions import Fraction as Ratio
from typing import Any

from learncost.ir.polynomial import Monomial, Polynomial, written
from learncost.reports.notation.tree import Fraction, MathMark, MathNumber, MathRow, Node, Script, symbol

SYMBOLS: Mapping[str, str] = {
    "B": "B",
    "M": "M",
    "N": "N",
    "v": "voc",
    "d": "d_model",
    "f": "d_ff",
    "k": "d_k",
    "h": "h",
    "p": "max_len",
}
"""Axes and their symbols in formulas; every other axis and the count of a repeat is its own symbol."""

_ORDER = ("B", "M", "N", "p", "v", "d", "f", "e", "g", "k", "h")


def one_width(count: Polynomial, axes: Collection[str]) -> Polynomial:
    """Return the count with h k written as d, since d_model = h d_k, if the table has all three axes.

    With query groups (an axis g) the width is not h k and nothing is changed. The value is the same for d = h k.
    """
    if not {"d", "h", "k"} <= set(axes) or "g" in axes:
        return count
    result = Polynomial()
    for monomial, coefficient in count.terms.items():
        names = list(monomial)
        while "h" in names and "k" in names:
            names.remove("h")
            names.remove("k")
            names.append("d")
        result += Polynomial.of(names, coefficient)
    return result


def divided(counts: Collection[Polynomial], axis: str) -> tuple[Polynomial, ...] | None:
    """Return the counts divided by an axis, such as the batch, if each term has it exactly once; else None."""
    if any(monomial.count(axis) != 1 for count in counts for monomial in count.terms):
        return None
    return tuple(
        Polynomial({tuple(name for name in monomial if name != axis): c for monomial, c in count.terms.items()})
        for count in counts
    )


def _rank(name: str) -> tuple[int, int, str]:
    if name not in _ORDER:
        # How often something is repeated comes first, an unknown axis before what is known.
        return (0 if name.startswith("n_") else 1, 0, name)
    return (2, _ORDER.index(name), name)


def terms(count: Polynomial) -> list[tuple[Monomial, Any]]:
    """Return the terms in printed order, high degrees first: their sizes, one to a power as often, and coefficients."""

    def key(item: tuple[Monomial, int]) -> tuple[int, int, list[tuple[int, int, str]]]:
        monomial = item[0]
        highest = max((monomial.count(name) for name in monomial), default=0)
        return -len(monomial), -highest, sorted(map(_rank, monomial))

    return [(tuple(sorted(monomial, key=_rank)), number) for monomial, number in sorted(count.terms.items(), key=key)]


def plain(count: Polynomial, symbols: Mapping[str, str] = SYMBOLS) -> str:
    """Return the count as text, such as 2*M*d_model^2 + M*N*h."""
    return _written(count, symbols, "^")


def python(count: Polynomial, symbols: Mapping[str, str] = SYMBOLS) -> str:
    """Return the count as a Python expression, such as 2*M*d_model**2 + M*N*h."""
    return _written(count, symbols, "**")


def _written(count: Polynomial, symbols: Mapping[str, str], power: str) -> str:
    named = ((tuple(symbols.get(name, name) for name in monomial), number) for monomial, number in terms(count))
    return written(named, "*", power)


def node(count: Polynomial, symbols: Mapping[str, str] = SYMBOLS) -> Node:
    """Return the count as a tree; `symbols` overrides those of axes."""
    parts: list[Node] = []
    for sizes, coefficient in terms(count):
        if parts or coefficient < 0:
            parts.append(MathMark("-" if coefficient < 0 else "+"))
        factors: list[Node] = []
        if abs(coefficient) != 1 or not sizes:
            factors.append(MathNumber(str(abs(coefficient))))
        for name, power in Counter(sizes).items():
            if factors:
                factors.append(MathMark("thin"))
            factors.append(powered(name, Ratio(power), symbols))
        parts.append(MathRow(tuple(factors)))
    return MathRow(tuple(parts)) if parts else MathNumber("0")


def size_node(name: str, symbols: Mapping[str, str] = SYMBOLS) -> Node:
    """Return the symbol of a size as a tree."""
    return symbol(symbols.get(name, name))


def powered(name: str, power: Ratio, symbols: Mapping[str, str] = SYMBOLS) -> Node:
    """Return a size to a power, with the subscript of its symbol."""
    symbol = size_node(name, symbols)
    if power == 1:
        return symbol
    numerator, denominator = MathNumber(str(power.numerator)), MathNumber(str(power.denominator))
    top = numerator if power.denominator == 1 else Fraction(numerator, denominator)
    if isinstance(symbol, Script):
        return Script(symbol.base, symbol.below, top)
    return Script(symbol, None, top)
