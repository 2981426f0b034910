"""Counts in the letters of Vaswani et al. 2017, table 1: n the length, d the width, k the kernel, r the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from learncost.ir.polynomial import Monomial, Polynomial, base

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
    """A count of a table in the letters of the comparison; h heads of width d/h are d."""
    result = Polynomial()
    for monomial, coefficient in count.terms.items():
        axes = list(monomial)
        product = Polynomial.of((), coefficient)
        while "h" in axes and "k" in axes:
            axes.remove("h")
            axes.remove("k")
            product *= Polynomial.of("d")
        for axis in axes:
            product *= _AXES[base(axis)]
        result += product
    return result


_ORDER = "krndh"  # k n d^2, as the source has it


def text(count: Polynomial, number: Callable[[int], str] = "{:,}".format) -> str:
    """A polynomial as the screen shows it, 4 n d^2 + 2 n^2 d."""
    return _written(count, " ", "^", number)


def python(count: Polynomial) -> str:
    """A polynomial as an expression of Python, 4*n*d**2 + 2*n**2*d."""
    return _written(count, "*", "**", str)


def _written(count: Polynomial, times: str, power: str, number: Callable[[int], str]) -> str:
    """What is added before what is taken away, high degrees first, what grows with the length before its square."""

    def place(item: tuple[Monomial, int]) -> tuple[bool, int, int]:
        return item[1] < 0, -len(item[0]), item[0].count("n")

    formula = ""
    for monomial, coefficient in sorted(count.terms.items(), key=place):
        letters = sorted(set(monomial), key=_ORDER.index)
        factors = [name + (f"{power}{monomial.count(name)}" if monomial.count(name) > 1 else "") for name in letters]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, number(abs(coefficient)))
        sign = ("- " if formula else "-") if coefficient < 0 else ("+ " if formula else "")
        formula += (" " if formula else "") + sign + times.join(factors)
    return formula or "0"


def order(count: Polynomial) -> Polynomial:
    """What the growth of a polynomial depends on: coefficients aside, and terms that another one outgrows."""

    def within(monomial: Monomial, other: Monomial) -> bool:
        return monomial != other and all(monomial.count(name) <= other.count(name) for name in monomial)

    return Polynomial({m: 1 for m in count.terms if not any(within(m, other) for other in count.terms)})
