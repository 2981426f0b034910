"""The price of a line, and that of a table with all its lines: their kinds, and the elements that they move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.line import Line, Op, Opaque, Product, alias
from learncost.ir.polynomial import ZERO, Polynomial, least, total
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.term import Axis, Read, terms_of
from learncost.layers.products import matrix_maccs


@dataclass(frozen=True)
class PricedLine:
    """The price of one line, all turns of its repeats included, as polynomials in the sizes."""

    line: str
    layer: str
    block: str | None
    macro_operation: str
    equation: str
    maccs: Polynomial
    flops: Polynomial
    elements: Polynomial
    repeat: Polynomial = field(default_factory=lambda: Polynomial.of(()))
    kind: str = "elementwise"
    narrow: Polynomial = ZERO  # of the elements those of one byte
    part_of: str = ""  # the value of whose gradient the line makes a part
    place: int = 0  # among all rows
    outside_paper: bool = False
    source: Line | str = ""

    @property
    def module(self) -> str:
        """The path of the module whose line it is; "" where the line says none."""
        return self.source.meta.module if isinstance(self.source, Line) else ""

    @property
    def text(self) -> str:
        """The line as text."""
        return str(self.source)

    @property
    def opaque(self) -> Opaque | None:
        """What is said of the cost of a line that is not derived; of any other None."""
        return self.source.opaque if isinstance(self.source, Op) else None

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what it costs: a total with it is at least that much."""
        return bool(self.opaque and isinstance(self.source, Op) and self.opaque.flops(self.source.part) is None)


@dataclass(frozen=True)
class Price(Displayed):
    """What a table costs under a price book, in all and line by line.

    The totals are whole numbers where all sizes were whole numbers, arrays where sizes were arrays, and polynomials
    where sizes were left out.

    Attributes
    ----------
    book
        The name of the price book.
    rows
        One row for each line: `line`, `layer`, `macro_operation`, `equation`, `maccs`, `flops` and `elements` moved, as
        polynomials in the sizes.
    sizes
        The sizes that were given.
    dtype
        The data type in which bytes are counted.

    Examples
    --------
    >>> found = lc.price(lc.layer('''linear(X; W b) -> Y
    ...   H[B M f] = X[B M d] W[d f]
    ...   Y[B M f] = H[B M f] + b[f]
    ... '''), {"B": 1, "M": 2, "d": 3, "f": 4})
    >>> found.maccs, found.flops, found.bytes
    (24, 56, 184)
    >>> [(row.line, row.flops.at(found.sizes)) for row in found.rows]
    [('H', 48), ('Y', 8)]
    >>> {line: part.flops for (line,), part in found.by("line").items()}
    {'H': 48, 'Y': 8}
    """

    book: str
    rows: tuple[PricedLine, ...]
    sizes: Mapping[str, Any]
    dtype: str = "fp32"

    @property
    def maccs(self) -> Any:
        """Multiply-accumulates, in all."""
        return total(row.maccs for row in self.rows).at(self.sizes)

    @property
    def flops(self) -> Any:
        """Floating-point operations, in all."""
        return total(row.flops for row in self.rows).at(self.sizes)

    @property
    def bytes(self) -> Any:
        """Bytes read and written: every operand once and every result once, line by line."""
        width = BYTES[self.dtype]
        narrow = total(row.narrow for row in self.rows) * (width - 1)
        wide = (total(row.elements for row in self.rows) * width - narrow).at(self.sizes)
        packed = [row for row in self.rows if isinstance(row.source, Line) and row.source.meta.types]
        return sum((_packed(row, 8 * width, self.sizes) for row in packed), wide)

    def by(self, *fields: str) -> dict[tuple[Any, ...], Price]:
        """The same price split by fields of its rows, such as "layer" or "macro_operation"."""
        groups: dict[tuple[Any, ...], list[PricedLine]] = {}
        for row in self.rows:
            groups.setdefault(tuple([getattr(row, name) for name in fields]), []).append(row)
        return {key: Price(self.book, tuple(rows), self.sizes, self.dtype) for key, rows in groups.items()}


def _packed(row: PricedLine, bits: int, sizes: Mapping[str, Any]) -> Any:
    """By how much a line that reads codes moves more bytes than so many bits an element; below 0: fewer."""
    from fractions import Fraction  # only where weights are quantized

    from learncost.passes.rewrite_quantized import bits_of

    assert isinstance(row.source, Line)
    bits_of_name = bits_of(row.source, bits)
    terms = [term for operand in (*row.source.left, *row.source.right) for term in terms_of(operand)]
    more = total(places(term.axes) * row.repeat * (bits_of_name[term.name] - bits) for term in terms)
    value = more.at(sizes)
    return value // 8 if isinstance(value, int) else value * Polynomial.of((), Fraction(1, 8))


@lru_cache(maxsize=4096)
def places(axes: tuple[Axis, ...]) -> Polynomial:
    """How many elements of a value a line touches that reads it at these axes."""
    direct = [axis for axis in axes if isinstance(axis, str)]
    reads = [(r.axis, [a for a in r.at.loops if a not in direct]) for r in axes if isinstance(r, Read)]
    return Polynomial.of((*direct, *(least(axis, index) for axis, index in reads if index)))


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
