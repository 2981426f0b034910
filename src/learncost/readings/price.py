"""Price: MACCs, FLOPs and bytes of every line under a named book. No price of a layer is typed here or anywhere.

A MACC is one term of a product that sums, wherever it is added up, and costs two FLOPs; a product without a sum costs
one FLOP a point.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from typing import Any

from learncost.equation.count import ZERO, Count, least, total
from learncost.equation.displayed import Displayed
from learncost.equation.errors import InputError
from learncost.equation.line import Line, Opaque, Product, Sum, Word, alias
from learncost.equation.precision import BYTES
from learncost.equation.repeat import each_line, walk
from learncost.equation.table import Table
from learncost.equation.term import Axis, Literal, Read, Term, terms_of
from learncost.equation.totals import beginnings
from learncost.layers.alone import alone, shape
from learncost.layers.layer import Layer
from learncost.layers.lower import lower, lower_line
from learncost.layers.products import (
    Scores,
    in_blocks,
    in_half,
    inside,
    matrix_maccs,
    operator_maccs,
    operator_name,
    skipping,
    with_windows,
)
from learncost.vocabulary import entry

NOT_DERIVED = "not derived"
"""The kind of a line that has a cost and no meaning."""


@dataclass(frozen=True)
class WordPrice:
    """FLOPs per element of the result of a word, of its gradient, of its explicit Jacobian; None: the book has none."""

    body: int | None = None
    gradient: int | None = None
    jacobian: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Override:
    """What a book says of one line, in the layer's own axes, instead of its rule."""

    maccs: Count
    flops: Count
    source: str


@dataclass(frozen=True)
class Book(Displayed):
    """A price book: what one operation costs, and who says so.

    Attributes
    ----------
    name
        What it is called.
    title
        What it counts, in a few words.
    source
        The publication or the program that counts like that.
    rule
        How a line is priced. "executed" counts the primitive operations that run; "matrix" counts matrix products
        alone; "printed" follows a publication line by line; "formula" prices a whole model and no line.
    jacobian
        Whether the backward pass goes through explicit Jacobians of softmax and normalization.
    words
        What a word of the vocabulary costs, in FLOPs per element of its result, where the book says so itself.
    overrides
        What the book says of single lines instead of its rule: (layer, line) -> MACCs, FLOPs and source.
    unpriced
        Layers that the publication counts as nothing.
    withdrawn
        Lines that the publication's own total leaves out: (layer, line) -> erratum.
    one_hot
        Layers whose look-ups are priced as products with one-hot rows.
    causal
        How products under a causal mask are counted: in "full", in "half", those "inside" the mask alone, or in the
        "blocks" that a kernel takes.
    again
        Whether the backward pass of attention computes its scores once more, as flash attention does.
    operators
        The operators that it knows: of a line that says which one computes it, others cost nothing. Empty: lines cost
        what they are, whatever computes them.
    optimizer
        The optimizer of who wrote it, which a step has where none is named; empty where they say none.

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
    words: Mapping[str, WordPrice] = field(default_factory=dict)
    overrides: Mapping[tuple[str, str], Override] = field(default_factory=dict)
    unpriced: frozenset[str] = frozenset()
    withdrawn: Mapping[tuple[str, str], str] = field(default_factory=dict)
    one_hot: frozenset[str] = frozenset()
    causal: str = "full"
    again: bool = False
    optimizer: str = ""
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Row:
    """The price of one line, all turns of its repeats included, as polynomials in the sizes."""

    line: str
    layer: str
    block: str | None
    macro_operation: str
    equation: str
    maccs: Count
    flops: Count
    elements: Count
    repeat: Count = field(default_factory=lambda: Count.of(()))
    kind: str = "elementwise"
    narrow: Count = ZERO  # of the elements those of one byte
    part_of: str = ""  # the value of whose gradient the line makes a part
    place: int = 0  # among all rows
    outside_paper: bool = False
    source: Line | str = ""

    @property
    def module(self) -> str:
        """The path of the module whose line it is; "" where the line says none."""
        return self.source.tag.module if isinstance(self.source, Line) else ""

    @property
    def text(self) -> str:
        """The line as text."""
        return str(self.source)

    @property
    def opaque(self) -> Opaque | None:
        """What is said of the cost of a line that is not derived; of any other None."""
        return self.source.opaque if isinstance(self.source, Word) else None

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what it costs: a total with it is at least that much."""
        return bool(self.opaque and isinstance(self.source, Word) and self.opaque.flops(self.source.part) is None)


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
    rows: tuple[Row, ...]
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
        packed = [row for row in self.rows if isinstance(row.source, Line) and row.source.tag.types]
        return sum((_packed(row, 8 * width, self.sizes) for row in packed), wide)

    def by(self, *fields: str) -> dict[tuple[Any, ...], Price]:
        """The same price split by fields of its rows, such as "layer" or "macro_operation"."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple([getattr(row, name) for name in fields]), []).append(row)
        return {key: Price(self.book, tuple(rows), self.sizes, self.dtype) for key, rows in groups.items()}


def _packed(row: Row, bits: int, sizes: Mapping[str, Any]) -> Any:
    """By how much a line that reads codes moves more bytes than so many bits an element; below 0: fewer."""
    from fractions import Fraction  # only where weights are quantized

    from learncost.layers.rewrite_quantized import bits_of

    assert isinstance(row.source, Line)
    bits_of_name = bits_of(row.source, bits)
    terms = [term for operand in (*row.source.left, *row.source.right) for term in terms_of(operand)]
    more = total(_places(term.axes) * row.repeat * (bits_of_name[term.name] - bits) for term in terms)
    value = more.at(sizes)
    return value // 8 if isinstance(value, int) else value * Count.of((), Fraction(1, 8))


def price(table: Layer | Table, sizes: Mapping[str, Any], book: Book, dtype: str = "fp32") -> Price:
    """Price a table. `sizes` by axis name (and by the counts of repeats); one that is left out stays a symbol.

    bytes: every operand read once and every result written once, line by line of the table as written.
    """
    if isinstance(table, Layer):
        table = table.table
    if dtype not in BYTES:
        raise InputError(f"no data type is called {dtype!r}; there are {', '.join(BYTES)}")
    rules: dict[str, Callable[[Table, Book], tuple[Row, ...]]]
    rules = {"executed": _executed, "matrix": partial(_matrix, sizes=sizes), "printed": _printed}
    rule = rules.get(book.rule)
    if rule is None:
        raise InputError(f"price book {book.name} is a formula of whole models, not of their lines")
    if book.causal == "inside":
        table = with_windows(table, sizes)
    rows = tuple(replace(row, place=place) for place, row in enumerate(rule(table, book)))
    return Price(book.name, rows, sizes, dtype)


def _row(table: Table, line: Line, turns: Iterable[str], maccs: Count, flops: Count) -> Row:
    return _with_counts(table, line, _in_all((maccs, flops, elements(line)), turns))


_Once = tuple[Count, Count, Count]  # MACCs, FLOPs, elements of a line, each time that it runs
_Counts = tuple[Count, Count, Count, Count]  # these in all turns, and how many turns there are


def _in_all(once: _Once, turns: Iterable[str], spared: Count = ZERO) -> _Counts:
    """`spared` are additions of a total that begins with its first part."""
    times = Count.of(turns)
    maccs, flops, moved = once
    return maccs * times, flops * times - spared, moved * times, times


def _with_counts(table: Table, line: Line, counts: _Counts, form: str | None = None) -> Row:
    tag, name = line.tag, line.tag.local or line.name
    value = table.known.get(line.name)
    part_of = value.of if value and value.role in ("part", "unsummed") else ""
    line_kind = kind(line, table, form)
    narrow = narrow_elements(line, table) * counts[-1]
    return Row(name, tag.layer, tag.block, tag.macro, tag.equation, *counts, line_kind, narrow, part_of, source=line)


def kind(line: Line, table: Table, form: str | None = None) -> str:
    """linear: matrix products with a weight or for one, look-ups of a weight; attention: other matrix products.

    What is not derived is a kind of its own.

    form   what `_form` says of the line, where it is known
    """
    if isinstance(line, Word) and line.opaque:
        return NOT_DERIVED
    form = _form(line) if form is None else form
    if not form:
        return "elementwise"
    weighted = line.tag.macro == "weight_update" or not table.multiplied.isdisjoint(line.reads)
    if form == "matrix" or weighted:
        return "linear" if weighted else "attention"
    return "attention" if line.tag.macro == "error_projection" else "elementwise"


def _form(line: Line) -> str:
    """What a line is by its axes alone: a product of matrices, one that reads or writes at an index, or neither, ""."""
    if not isinstance(line, Product):
        return ""
    if matrix_maccs(line):
        return "matrix"
    return "indexed" if line.left[0].indexed or any(term.indexed for term in line.right) else ""


def elements(line: Line) -> Count:
    """Elements read and written by a line, each operand once. An alias moves nothing.

    Of an axis that is read at an index as many places are touched as the index has numbers, at most all of them.
    """
    if alias(line):
        return ZERO
    return total(_places(term.axes) for operand in (*line.left, *line.right) for term in terms_of(operand))


def narrow_elements(line: Line, table: Table) -> Count:
    """Of what a line reads and writes the elements of values that have one byte each, whatever the run's type is."""
    names = {name for name in (*line.reads, *line.makes) if name in table.known and table.known[name].dtype}
    if not names or alias(line):
        return ZERO
    terms = (term for operand in (*line.left, *line.right) for term in terms_of(operand))
    return total(_places(term.axes) for term in terms if term.name in names)


@lru_cache(maxsize=4096)
def _places(axes: tuple[Axis, ...]) -> Count:
    direct = [axis for axis in axes if isinstance(axis, str)]
    reads = [(r.axis, [a for a in r.at.loops if a not in direct]) for r in axes if isinstance(r, Read)]
    return Count.of((*direct, *(least(axis, index) for axis, index in reads if index)))


# What runs: every line of the normal form.


def _executed(table: Table, book: Book) -> tuple[Row, ...]:
    shapes: dict[Hashable, tuple[_Once, str]] = {}
    in_all: dict[tuple[Hashable, ...], tuple[_Counts, str]] = {}
    rows = []
    whole = table.within or table
    counted = _in_place(whole)
    begins = {id(line): around for line, around in beginnings(whole.lines)}
    for line, turns in walk(table.lines):
        pair = next(
            (counts for other, counts in counted if other is line), None
        )  # a part has its lines in the whole's order
        begun = begins.get(id(line))
        spared = ZERO if begun is None else Count.of((*line.loops, *begun))
        if pair is not None:
            in_place = _in_all((*pair, elements(line)), turns, spared)
            rows.append(_with_counts(table, line, in_place))
            continue
        same = shape(line)
        if (counts := in_all.get((same, turns, begun))) is None:
            if (once := shapes.get(same)) is None:
                once = shapes[same] = ((*_executed_alone(line), elements(line)), _form(line))
            counts = in_all[same, turns, begun] = _in_all(once[0], turns, spared), once[1]
        rows.append(_with_counts(table, line, *counts))
    return tuple(rows)


def _in_place(table: Table) -> Iterator[tuple[Line, tuple[Count, Count] | None]]:
    """MACCs and FLOPs of every line; None of one that stands alone.

    What stands outside a `where` may be known from lines before.
    """
    by_itself = [*map(alone(table), (line for line, _ in walk(table.lines)))]
    standing = iter(by_itself)
    rest = replace(table, lines=each_line(table.lines, lambda line: () if next(standing) else (line,)))
    parts: dict[int, list[Line]] = {}
    for line, _ in walk(lower(rest).lines):
        parts.setdefault(line.tag.origin, []).append(line)
    places = count()
    for (line, _), is_alone in zip(walk(table.lines), by_itself, strict=True):
        yield line, None if is_alone else _together(parts.get(next(places), ()))


def _together(lines: Iterable[Line]) -> tuple[Count, Count]:
    """MACCs and FLOPs of the lines of the normal form that one line has become."""
    executed_lines = tuple(lines)
    if len(executed_lines) == 1:
        return executed(executed_lines[0])
    pairs = [executed(line) for line in executed_lines]
    return total((*(maccs for maccs, _ in pairs), _scattered(executed_lines))), total(flops for _, flops in pairs)


def _scattered(lines: Iterable[Line]) -> Count:
    """MACCs of products that are summed where an index says, as the gradients of experts' weights are: one a term.

    The normal form multiplies in one line and adds at the index in another, a FLOP a term each.
    """
    products: set[str] = set()  # what was multiplied and not summed yet
    count = ZERO
    for line in lines:
        if not isinstance(line, Product):
            continue
        left, factors = line.left[0], [term for term in line.right if isinstance(term, Term)]
        multiplied = len(factors) > 1 or not products.isdisjoint(line.reads)
        if not multiplied or set(line.loops) != set(left.loops) or not _covers(factors, left.loops):
            continue
        if not left.indexed:
            products.add(line.name)
        elif {*left.loops}.difference(axis for axis in left.axes if isinstance(axis, str)):
            count += Count.of(left.loops)
    return count


def _covers(factors: Iterable[Term], loops: Iterable[str]) -> bool:
    return {axis for term in factors for axis in term.loops}.issuperset(loops)


def executed(line: Line) -> tuple[Count, Count]:
    """MACCs and FLOPs of one line of the normal form, as NumPy executes it."""
    loops = tuple(dict.fromkeys([axis for term in line.right for axis in term.loops]))
    points = Count.of(loops)
    if line.right and all(isinstance(term, Literal) for term in line.right):
        return ZERO, ZERO  # numbers alone: Python's own arithmetic, no array is touched
    if isinstance(line, Product):
        summed = not set(line.left[0].loops).issuperset(loops)
        if len(line.right) == 1:
            added = summed or not line.left[0].apart  # a reduction, a scatter-add; else a move
            return ZERO, points if added else ZERO
        if any(isinstance(term, Literal) for term in line.right):
            return ZERO, points
        return (points, points * 2) if summed else (ZERO, points)
    if isinstance(line, Sum):
        return ZERO, points if len(line.right) > 1 else ZERO
    assert isinstance(line, Word)
    if line.opaque:
        return ZERO, line.opaque.flops(line.part) or ZERO
    if line.word == "inside" or entry(line.word).kind in ("constant", "move", "collective"):
        return ZERO, ZERO
    return ZERO, points


# What matrix-product counters see: the table as written.


def _matrix(table: Table, book: Book, sizes: Mapping[str, Any]) -> tuple[Row, ...]:
    charges: dict[str, Callable[[Product, Count], Count]]
    charges = {"half": in_half, "inside": inside, "blocks": partial(in_blocks, sizes=sizes)}
    charge = charges.get(book.causal)
    blocks = book.causal == "blocks"
    few = skipping(table.lines, table.outputs) if blocks else frozenset[tuple[str, str]]()
    scores = Scores()
    rows = []
    for line, turns in walk(table.lines):
        operator = operator_name(line.tag.operator) if book.operators else ""
        maccs = ZERO
        if isinstance(line, Product) and (not operator or operator in book.operators):
            maccs = operator_maccs(line) if operator else matrix_maccs(line)
        kernel = line.tag.kernel
        if charge and maccs and (not blocks or (kernel and (kernel.name, line.name) in few)):
            assert isinstance(line, Product)
            maccs = charge(line, maccs)
        if (
            book.again
            and scores.again(line, kind(line, table) == "attention")
            and (not operator or "attention" in operator)
        ):
            maccs = maccs * 2
        opaque = line.opaque.flops(line.part) if isinstance(line, Word) and line.opaque else None
        rows.append(_row(table, line, turns, maccs, opaque or maccs * 2))
    return tuple(rows)


# What a publication prints.


def _printed(table: Table, book: Book) -> tuple[Row, ...]:
    rows = []
    for line, turns in walk(table.lines):
        tag = line.tag
        outside = False
        # Overrides speak of printed products and sums; a word in closed form is not what the publication prints.
        override = None if isinstance(line, Word) else book.overrides.get((tag.layer, tag.local))
        if override is not None:
            names = dict(tag.binding)
            maccs, flops = override.maccs.rename(names), override.flops.rename(names)
        elif tag.layer in book.unpriced:
            maccs = flops = ZERO
        elif isinstance(line, Product):
            maccs, flops, outside = _printed_product(line, book, table)
        elif isinstance(line, Sum):
            adds = len(line.right) - 1 if tag.macro in ("forward", "recomputation") else 0
            maccs, flops = ZERO, Count.of(line.left[0].loops, adds)
        else:
            assert isinstance(line, Word)
            maccs, flops, outside = _printed_word(line, book, table)
        rows.append(replace(_row(table, line, turns, maccs, flops), outside_paper=outside))
        if erratum := book.withdrawn.get((tag.layer, tag.local)):
            text = f"the publication's total leaves ({tag.equation}) out"
            back = replace(rows[-1], line=erratum, equation=erratum, source=text, elements=ZERO)
            rows.append(replace(back, maccs=back.maccs * -1, flops=back.flops * -1))
    return tuple(rows)


def _printed_product(line: Product, book: Book, table: Table) -> tuple[Count, Count, bool]:
    """A product by its shapes: one term for each point of the axes that it loops over."""
    left = {axis for axis in line.left[0].axes if isinstance(axis, str)}
    if len(line.right) == 1:
        (term,) = line.right
        if line.tag.layer in book.one_hot and term.indexed:
            points = Count.of((*term.loops, *(axis.axis for axis in term.axes if isinstance(axis, Read))))
            return points, points * 2, False
        if line.tag.macro not in ("forward", "recomputation"):
            # A sum of rows, such as a bias gradient, is left out (section 5.4.3), the rows of a look-up are updated
            # directly (section 5.1.2).
            return ZERO, ZERO, False
        maccs, flops = _executed_alone(line)
        return maccs, flops, bool(flops)
    loops = dict.fromkeys(axis for term in line.right for axis in term.loops)
    if set(loops) - left:
        return Count.of(loops), Count.of(loops, 2), False
    constants = (table.within or table).constants
    if any(term.name in constants for term in line.right):
        return ZERO, ZERO, False  # masks, and scalars of the step such as one over the count of targets
    return ZERO, Count.of(loops), False


def _executed_alone(line: Line) -> tuple[Count, Count]:
    return _together(lower_line(line))


def _printed_word(line: Word, book: Book, table: Table) -> tuple[Count, Count, bool]:
    prices = book.words.get(line.word, WordPrice())
    each = {"body": prices.body, "gradient": prices.gradient, "jacobian": prices.jacobian}[line.part]
    if each is not None:
        return ZERO, Count.of(line.left[0].loops, each), False
    if not line.right and entry(line.word).kind == "constant":
        return ZERO, ZERO, False
    return *_executed_alone(line), True


def parameters(table: Table) -> Count:
    """What is trained: every weight of the table once, stacks of turns in full."""
    return total(Count.of(table.axes[name]) for name in table.weights)
