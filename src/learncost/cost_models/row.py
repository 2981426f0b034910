"""The price of a line, and that of a table with all its lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.line import Line, Op, Opaque
from learncost.ir.polynomial import ZERO, Polynomial, least, total
from learncost.ir.precision import BYTES
from learncost.ir.term import Axis, Read, terms_of


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
