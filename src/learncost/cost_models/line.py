"""What every rule takes of a line: its kind, the elements that it moves, its row once operations are counted."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.cost_models.row import PricedLine, places
from learncost.ir.line import Line, Op, Product, alias
from learncost.ir.polynomial import ZERO, Polynomial, total
from learncost.ir.table import Table
from learncost.ir.term import terms_of
from learncost.layers.products import matrix_maccs

NOT_DERIVED = "not derived"
"""The kind of a line that has a cost and no meaning."""


def row_of(table: Table, line: Line, iterations: Iterable[str], maccs: Polynomial, flops: Polynomial) -> PricedLine:
    """The row of a line of which this is counted each time that it runs."""
    return with_counts(table, line, in_all((maccs, flops, elements(line)), iterations))


Once = tuple[Polynomial, Polynomial, Polynomial]  # MACCs, FLOPs, elements of a line, each time that it runs
Counts = tuple[Polynomial, Polynomial, Polynomial, Polynomial]  # these in all turns, and how many turns there are


def in_all(once: Once, iterations: Iterable[str], spared: Polynomial = ZERO) -> Counts:
    """`spared` are additions of a total that begins with its first part."""
    times = Polynomial.of(iterations)
    maccs, flops, moved = once
    return maccs * times, flops * times - spared, moved * times, times


def with_counts(table: Table, line: Line, counts: Counts, form: str | None = None) -> PricedLine:
    """The row of a line of which this is counted in all its turns."""
    meta, name = line.meta, line.meta.local or line.name
    value = table.known.get(line.name)
    part_of = value.of if value and value.role in ("part", "unsummed") else ""
    line_kind = kind(line, table, form)
    narrow = narrow_elements(line, table) * counts[-1]
    return PricedLine(
        name, meta.layer, meta.block, meta.phase, meta.equation, *counts, line_kind, narrow, part_of, source=line
    )


def kind(line: Line, table: Table, form: str | None = None) -> str:
    """linear: matrix products with a weight or for one, look-ups of a weight; attention: other matrix products.

    What is not derived is a kind of its own.

    form   what `form_of` says of the line, where it is known
    """
    if isinstance(line, Op) and line.opaque:
        return NOT_DERIVED
    form = form_of(line) if form is None else form
    if not form:
        return "elementwise"
    weighted = line.meta.phase == "weight_update" or not table.multiplied.isdisjoint(line.reads)
    if form == "matrix" or weighted:
        return "linear" if weighted else "attention"
    return "attention" if line.meta.phase == "error_projection" else "elementwise"


def form_of(line: Line) -> str:
    """What a line is by its axes alone: a product of matrices, one that reads or writes at an index, or neither, ""."""
    if not isinstance(line, Product):
        return ""
    if matrix_maccs(line):
        return "matrix"
    return "indexed" if line.left[0].indexed or any(term.indexed for term in line.right) else ""


def elements(line: Line) -> Polynomial:
    """Elements read and written by a line, each operand once. An alias moves nothing.

    Of an axis that is read at an index as many places are touched as the index has numbers, at most all of them.
    """
    if alias(line):
        return ZERO
    return total(places(term.axes) for operand in (*line.left, *line.right) for term in terms_of(operand))


def narrow_elements(line: Line, table: Table) -> Polynomial:
    """Of what a line reads and writes the elements of values that have one byte each, whatever the run's type is."""
    names = {name for name in (*line.reads, *line.makes) if name in table.known and table.known[name].dtype}
    if not names or alias(line):
        return ZERO
    terms = (term for operand in (*line.left, *line.right) for term in terms_of(operand))
    return total(places(term.axes) for term in terms if term.name in names)
