"""Represent a price book, and the price of a line and of a table under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.displayed import Displayed
from learncost.ir.line import Line, Op, Opaque, Product, alias
from learncost.ir.polynomial import ZERO, Polynomial, least, total
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.term import Axis, Read
from learncost.layers.products import matrix_maccs
from learncost.passes.rematerialization import dequantization


@dataclass(frozen=True)
class PricedLine:
    """The price of one line over all of its iterations, as polynomials in the sizes."""

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
    narrow: Polynomial = ZERO  # the number of elements of one byte each
    part_of: str = ""  # the value whose gradient the line is a summand of
    place: int = 0  # the number of the row
    outside_paper: bool = False
    source: Line | str = ""

    def times(self, number: int) -> PricedLine:
        """Return the price of so many runs of all iterations."""
        return self if number == 1 else self.with_counts(lambda counted: counted * number)

    def with_counts(self, change: Callable[[Polynomial], Polynomial]) -> PricedLine:
        """Return the price with a change of all its counts."""
        counts: Any = {name: change(getattr(self, name)) for name in ("maccs", "flops", "elements", "narrow", "repeat")}
        return replace(self, **counts)

    def renamed(self, sizes: Mapping[str, str], prefix: str) -> PricedLine:
        """Return the price with other names of sizes, and a prefix before the names of the layer and its values."""
        counts = ("maccs", "flops", "elements", "narrow", "repeat")
        line = self.source
        if isinstance(line, Line):
            names = {name: f"{prefix}{name}" for name in (*line.makes, *line.reads)}
            line = line.renamed(names, sizes)
        renamed = {name: getattr(self, name).rename(sizes) for name in counts}
        return replace(self, layer=f"{prefix}{self.layer}", source=line, **renamed)

    @property
    def module(self) -> str:
        """The path of the line's module; "" where it has none."""
        return self.source.meta.module if isinstance(self.source, Line) else ""

    @property
    def text(self) -> str:
        """The line as text."""
        return str(self.source)

    @property
    def opaque(self) -> Opaque | None:
        """The declared cost of an opaque line; None for any other line."""
        return self.source.opaque if isinstance(self.source, Op) else None

    @property
    def unknown(self) -> bool:
        """Return whether the cost is unknown; a total that includes it is a lower bound."""
        return bool(self.opaque and isinstance(self.source, Op) and self.opaque.flops(self.source.part) is None)


@dataclass(frozen=True)
class Price(Displayed):
    """The cost of a table under a price book, in total and line by line.

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
        """Multiply-accumulates, in total."""
        return total(row.maccs for row in self.rows).at(self.sizes)

    @property
    def flops(self) -> Any:
        """Floating-point operations, in total."""
        return total(row.flops for row in self.rows).at(self.sizes)

    @property
    def bytes(self) -> Any:
        """Memory traffic in bytes: every line reads each operand once and writes each result once."""
        width = BYTES[self.dtype]
        narrow = total(row.narrow for row in self.rows) * (width - 1)
        wide = (total(row.elements for row in self.rows) * width - narrow).at(self.sizes)
        packed = (row for row in self.rows if dequantization(row.source))
        return sum((_packed(row, 8 * width, self.sizes) for row in packed), wide)

    def by(self, *fields: str) -> dict[tuple[Any, ...], Price]:
        """Return the price split by fields of its rows, such as "layer" or "macro_operation"."""
        groups: dict[tuple[Any, ...], list[PricedLine]] = {}
        for row in self.rows:
            groups.setdefault(tuple([getattr(row, name) for name in fields]), []).append(row)
        return {key: Price(self.book, tuple(rows), self.sizes, self.dtype) for key, rows in groups.items()}


def counts_of(rows: Iterable[Any]) -> tuple[Polynomial, Polynomial]:
    """Return the MACCs and FLOPs of rows together."""
    rows = tuple(rows)
    return total(row.maccs for row in rows), total(row.flops for row in rows)


def _packed(row: PricedLine, bits: int, sizes: Mapping[str, Any]) -> Any:
    """Return the bytes that a line with quantized operands moves in addition to `bits` per element; negative if it
    moves fewer."""
    from fractions import Fraction  # imported when used, for a fast start

    from learncost.passes.rewrite_quantized import bits_of

    assert isinstance(row.source, Line)
    bits_of_name = bits_of(row.source, bits)
    terms = (*row.source.left, *row.source.terms)
    more = total(places(term.axes) * row.repeat * (bits_of_name[term.name] - bits) for term in terms)
    value = more.at(sizes)
    return value // 8 if isinstance(value, int) else value * Polynomial.of((), Fraction(1, 8))


@lru_cache(maxsize=4096)
def places(axes: tuple[Axis, ...]) -> Polynomial:
    """Return the number of elements that a line accesses of a value that it reads or writes at these axes."""
    direct = [axis for axis in axes if isinstance(axis, str)]
    reads = [(r.axis, [a for a in r.at.loops if a not in direct]) for r in axes if isinstance(r, Read)]
    return Polynomial.of((*direct, *(least(axis, index) for axis, index in reads if index)))


NOT_DERIVED = "not derived"
"""The kind of an opaque line, which has a cost but no derivation."""


def row_of(table: Table, line: Line, iterations: Iterable[str], maccs: Polynomial, flops: Polynomial) -> PricedLine:
    """Return the priced row of a line from its counts in one iteration."""
    return with_counts(table, line, in_all((maccs, flops, elements(line)), iterations))


PerIteration = tuple[Polynomial, Polynomial, Polynomial]  # MACCs, FLOPs and elements of a line, in one iteration
Counts = tuple[Polynomial, Polynomial, Polynomial, Polynomial]  # these in all iterations, and their number


def in_all(once: PerIteration, iterations: Iterable[str], spared: Polynomial = ZERO) -> Counts:
    """Return the counts over all iterations; `spared` is the number of additions saved because an accumulator's first
    summand is not added to anything."""
    times = Polynomial.of(iterations)
    maccs, flops, moved = once
    return maccs * times, flops * times - spared, moved * times, times


def with_counts(table: Table, line: Line, counts: Counts, form: str | None = None) -> PricedLine:
    """Return the priced row of a line from its counts over all iterations."""
    meta, name = line.meta, line.meta.local or line.name
    value = table.known.get(line.name)
    part_of = value.of if value and value.role in ("part", "unsummed") else ""
    line_kind = kind(line, table, form)
    narrow = narrow_elements(line, table) * counts[-1]
    return PricedLine(
        name, meta.layer, meta.block, meta.phase, meta.equation, *counts, line_kind, narrow, part_of, source=line
    )


def kind(line: Line, table: Table, form: str | None = None) -> str:
    """Return the kind of a line: "linear" for matrix products with a weight or for its gradient, and for look-ups;
    "attention" for other matrix products; "not derived" for opaque lines; otherwise "elementwise".

    form   the result of `form_of`, where it is known
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
    """Return the form of a product: "matrix", or "indexed" if it has an index; "" for any other line."""
    if not isinstance(line, Product):
        return ""
    if matrix_maccs(line):
        return "matrix"
    return "indexed" if line.left[0].indexed or any(term.indexed for term in line.right) else ""


def elements(line: Line) -> Polynomial:
    """Return the number of elements that a line reads and writes, each operand once; an alias moves none.

    A read at an index accesses as many positions as the index has elements, at most the size of the axis.
    """
    if alias(line):
        return ZERO
    return total(places(term.axes) for term in (*line.left, *line.terms))


def narrow_elements(line: Line, table: Table) -> Polynomial:
    """Return the number of elements that a line reads and writes of values with one byte per element, whatever the data
    type of the run."""
    names = {name for name in (*line.reads, *line.makes) if name in table.known and table.known[name].dtype}
    if not names or alias(line):
        return ZERO
    return total(places(term.axes) for term in (*line.left, *line.terms) if term.name in names)


@dataclass(frozen=True)
class OpPrice:
    """The FLOPs per element of an operator's result, its gradient and its explicit Jacobian; None: priced by the
    rule."""

    body: int | None = None
    gradient: int | None = None
    jacobian: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Override:
    """The price of one line in a book that replaces the rule, in the axes of the layer."""

    maccs: Polynomial
    flops: Polynomial
    source: str


@dataclass(frozen=True)
class Book(Displayed):
    """A price book: a convention for counting operations, with its source.

    Attributes
    ----------
    name
        Its name.
    title
        A short description of what it counts.
    source
        The publication or the program with this convention.
    rule
        The way a line is priced. "executed" counts the primitive operations that run; "matrix" counts only matrix
        products; "printed" follows a publication line by line; "formula" prices a complete model and no lines.
    jacobian
        Whether the backward pass goes through explicit Jacobians of softmax and normalization.
    ops
        FLOPs per element of an operator's result, where the book states them.
    overrides
        Prices of single lines in place of the rule: (layer, line) -> MACCs, FLOPs and source.
    unpriced
        Layers that the publication does not count.
    withdrawn
        Lines that the publication's own total leaves out: (layer, line) -> erratum.
    one_hot
        Layers whose look-ups are priced as products with one-hot rows.
    causal
        The way products under a causal mask are counted: in "full", in "half", only those "inside" the mask, or in the
        "blocks" that a kernel computes.
    again
        Whether the backward pass of attention recomputes its scores, as flash attention does.
    operators
        For lines that name their operator: the operators that it counts; others cost nothing. Empty: all lines are
        counted, whatever their operator.
    optimizer
        The default optimizer of the publication; empty where it names none.

    Examples
    --------
    >>> flash = lc.book("flash")
    >>> flash.rule, flash.causal, flash.again
    ('matrix', 'half', True)
    """

    name: str
    title: str
    source: str
    rule: str
    jacobian: bool = False
    ops: Mapping[str, OpPrice] = field(default_factory=dict)
    overrides: Mapping[tuple[str, str], Override] = field(default_factory=dict)
    unpriced: frozenset[str] = frozenset()
    withdrawn: Mapping[tuple[str, str], str] = field(default_factory=dict)
    one_hot: frozenset[str] = frozenset()
    causal: str = "full"
    again: bool = False
    optimizer: str = ""
    operators: frozenset[str] = frozenset()
