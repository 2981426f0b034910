"""The floor of a step: what its matrix products cost alone, and moving the optimizer's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction

from learncost.bench.subject import Subject
from learncost.books.book import book
from learncost.equation.count import base
from learncost.equation.table import Axis, Term
from learncost.equation.table import Product as Line
from learncost.procedures.procedure import step
from learncost.readings.price import price

OPTIMIZER_BYTES = 28
"""A parameter's, of AdamW: weight, gradient and two moments read, all but the gradient written, each of 4 bytes."""


@dataclass(frozen=True)
class Product:
    """`batch` products of matrices m x k and k x n; `turned`: which of them lie in memory the other way."""

    batch: int
    m: int
    n: int
    k: int
    turned: tuple[bool, bool]

    @property
    def flops(self) -> int:
        """Of the whole product, two a MACC."""
        return 2 * self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        """Such as `72 × (64 × 256)ᵀ (256 × 256)`: a factor with a ᵀ lies in memory the other way round."""
        times = f"{self.batch:,} × " if self.batch > 1 else ""
        one, two = ("ᵀ" if turned else "" for turned in self.turned)
        return f"{times}({self.m:,} × {self.k:,}){one} ({self.k:,} × {self.n:,}){two}"


def products(subject: Subject) -> dict[Product, Fraction]:
    """Every matrix product of a step of backpropagation, and how often it is done; causal ones count as halves.

    They are read off the step's table, line by line as the price book `matmul` counts them.
    """
    table, sizes = step(subject.built, "bp", "adamw"), subject.sizes
    found: dict[Product, Fraction] = {}
    pairs = zip(price(table, sizes, book("matmul")).rows, price(table, sizes, book("causal-half")).rows, strict=True)
    for whole, half in pairs:
        if flops := whole.flops.at(sizes):
            assert isinstance(whole.source, Line)
            one = _product(whole.source, sizes)
            found[one] = found.get(one, Fraction(0)) + Fraction(half.flops.at(sizes)) / one.flops
            assert flops % one.flops == 0, whole.text
    return found


def _product(line: Line, sizes: Mapping[str, int]) -> Product:
    """A line's product of matrices by its axes: rows and columns stay, what both factors share is summed or a batch."""
    one, two = (term.axes for term in line.right if isinstance(term, Term) and term.axes)
    left = line.left[0].axes
    summed = {axis for axis in one if axis in two and axis not in left}
    rows = {axis for axis in one if axis not in two}
    columns = {axis for axis in two if axis not in one}

    def size(axes: AbstractSet[Axis]) -> int:
        result = 1
        for axis in axes:
            result *= sizes[base(str(axis))]
        return result

    def last(axes: tuple[Axis, ...], own: AbstractSet[Axis]) -> int:
        return max(place for place, axis in enumerate(axes) if axis in own)

    turned = (last(one, summed) < last(one, rows), last(two, summed) > last(two, columns))
    return Product(size({*one} & {*two} - summed), size(rows), size(columns), size(summed), turned)
