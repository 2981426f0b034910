"""Price a table by the rule of a book: as it runs, as counters of matrix products count, or as a publication prints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from learncost.cost_models.row import (
    Book,
    Counts,
    OpPrice,
    PerIteration,
    Price,
    PricedLine,
    elements,
    form_of,
    in_all,
    kind,
    row_of,
    with_counts,
)
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import beginnings, map_lines, walk
from learncost.ir.polynomial import ZERO, Polynomial, total
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.layers.layer import Layer, table_of
from learncost.layers.products import (
    ScoreGradients,
    has_a_formula,
    in_blocks,
    in_half,
    inside,
    is_in_a_kernel,
    matrix_maccs,
    operator_maccs,
    operator_name,
    skipping,
    with_a_second_gradient,
    with_windows,
)
from learncost.ops import entry, is_softmax
from learncost.passes.lower import lower, lower_line
from learncost.passes.normal_forms import alone, shape
from learncost.passes.rematerialization import first_name


def matrix_rows(table: Table, book: Book, sizes: Mapping[str, Any]) -> tuple[PricedLine, ...]:
    """Return the rows of a table if only matrix products are counted."""
    charges: dict[str, Callable[[Product, Polynomial], Polynomial]]
    charges = {"half": in_half, "inside": inside, "blocks": partial(in_blocks, sizes=sizes)}
    charge = charges.get(book.causal)
    blocks = book.causal == "blocks"
    few = skipping(table.lines, table.outputs) if blocks else frozenset[tuple[str, str]]()
    twice = with_a_second_gradient(table.lines) if book.operators else frozenset[str]()
    ends = _ends_of_attention(table) if book.again else {}
    scores = ScoreGradients()

    def charged(line: Line) -> Polynomial:
        """Return the MACCs of a line, without those that run again or twice."""
        operator = operator_name(line.meta.operator) if book.operators else ""
        if not isinstance(line, Product) or is_in_a_kernel(line):
            return ZERO
        if operator and not has_a_formula(line, book.operators):
            return ZERO
        maccs = operator_maccs(line) if operator else matrix_maccs(line)
        kernel = line.meta.kernel
        if charge and maccs and (not blocks or (kernel and (kernel.name, line.name) in few)):
            return charge(line, maccs)
        return maccs

    rows = []
    for line, nest in walk(table.lines):
        operator = operator_name(line.meta.operator) if book.operators else ""
        maccs = charged(line)
        if line.name in ends:
            maccs += charged(ends[line.name])
        if (
            book.again
            and scores.again(line, kind(line, table) == "attention")
            and (not operator or "attention" in operator)
        ):
            maccs = maccs * 2
        if line.name in twice:
            maccs = maccs * 2
        opaque = _opaque(line, book.causal)
        rows.append(row_of(table, line, nest.counts, maccs, opaque or maccs * 2))
    return tuple(rows)


def _ends_of_attention(table: Table) -> dict[str, Product]:
    """Map recomputed attention probabilities to the last product of attention, which a fused kernel recomputes, too.

    A checkpoint's lines stop at the last value that the backward lines read, which is the probabilities. A fused kernel
    saves only its result, and recomputes all of attention.
    """
    lines = [line for line, _ in walk(table.lines)]
    shares = {line.name for line in lines if is_softmax(line)}
    again = {first_name(line.name): line.name for line in lines if line.meta.phase == "recomputation"}
    ends = {}
    for line in lines:
        if isinstance(line, Product) and line.meta.phase == "forward" and "attention" in line.meta.operator:
            for name in shares.intersection(line.reads):
                if name in again and line.name not in again:
                    ends[again[name]] = line
    return ends


def _opaque(line: Line, causal: str) -> Polynomial | None:
    """Return the FLOPs of an opaque line for the pairs of positions that a book counts under a causal mask; None for
    any other line."""
    if not isinstance(line, Op) or line.opaque is None:
        return None
    flops, visible = line.opaque.flops(line.part), line.opaque.visible
    if flops is None or not visible or causal not in ("half", "inside"):
        return flops
    from fractions import Fraction  # only where a book halves

    return flops * Polynomial.of((), Fraction(1, 2) if causal == "half" else Fraction(visible))


def printed_rows(table: Table, book: Book) -> tuple[PricedLine, ...]:
    """Return the rows of a table with the costs that a publication prints for its lines."""
    rows = []
    for line, nest in walk(table.lines):
        meta = line.meta
        outside = False
        # Overrides apply to printed products and sums; the publication does not print operators in closed form.
        override = None if isinstance(line, Op) else book.overrides.get((meta.layer, meta.local))
        if override is not None:
            names = dict(meta.binding)
            maccs, flops = override.maccs.rename(names), override.flops.rename(names)
        elif meta.layer in book.unpriced:
            maccs = flops = ZERO
        elif isinstance(line, Product):
            maccs, flops, outside = _printed_product(line, book, table)
        elif isinstance(line, Sum):
            adds = len(line.right) - 1 if meta.phase in ("forward", "recomputation") else 0
            maccs, flops = ZERO, Polynomial.of(line.left[0].loops, adds)
        else:
            assert isinstance(line, Op)
            maccs, flops, outside = _printed_op(line, book, table)
        rows.append(replace(row_of(table, line, nest.counts, maccs, flops), outside_paper=outside))
        if erratum := book.withdrawn.get((meta.layer, meta.local)):
            text = f"the publication's total leaves ({meta.equation}) out"
            back = replace(rows[-1], line=erratum, equation=erratum, source=text, elements=ZERO)
            rows.append(replace(back, maccs=back.maccs * -1, flops=back.flops * -1))
    return tuple(rows)


def _printed_product(line: Product, book: Book, table: Table) -> tuple[Polynomial, Polynomial, bool]:
    """Return the cost of a product by its shapes: one term for each point of the axes that it loops over."""
    left = {axis for axis in line.left[0].axes if isinstance(axis, str)}
    if len(line.right) == 1:
        (term,) = line.right
        if line.meta.layer in book.one_hot and term.indexed:
            points = Polynomial.of((*term.loops, *(axis.axis for axis in term.indexed_axes)))
            return points, points * 2, False
        if line.meta.phase not in ("forward", "recomputation"):
            # A sum of rows, such as a bias gradient, is left out (section 5.4.3); the rows of a look-up are updated
            # directly (section 5.1.2).
            return ZERO, ZERO, False
        maccs, flops = executed_alone(line)
        return maccs, flops, bool(flops)
    loops = dict.fromkeys(axis for term in line.right for axis in term.loops)
    if set(loops) - left:
        return Polynomial.of(loops), Polynomial.of(loops, 2), False
    constants = (table.within or table).constants
    if any(term.name in constants for term in line.right):
        return ZERO, ZERO, False  # masks, and scalars of the step such as one over the number of targets
    return ZERO, Polynomial.of(loops), False


def _printed_op(line: Op, book: Book, table: Table) -> tuple[Polynomial, Polynomial, bool]:
    prices = book.ops.get(line.op, OpPrice())
    each = {"body": prices.body, "gradient": prices.gradient, "jacobian": prices.jacobian}[line.part]
    if each is not None:
        return ZERO, Polynomial.of(line.left[0].loops, each), False
    if not line.right and entry(line.op).kind == "constant":
        return ZERO, ZERO, False
    return *executed_alone(line), True


def executed_rows(table: Table, book: Book) -> tuple[PricedLine, ...]:
    """Return the rows of a table with the operations that run; lines of equal shapes are analysed once."""
    shapes: dict[Hashable, tuple[PerIteration, str]] = {}
    in_iterations: dict[tuple[Hashable, ...], tuple[Counts, str]] = {}
    rows = []
    whole = table.within or table
    counted = _in_place(whole)
    begins = {id(line): around for line, around in beginnings(whole.lines)}
    for line, nest in walk(table.lines):
        # a part of a table has its lines in the full table's order
        pair = next((counts for other, counts in counted if other is line), None)
        begun = begins.get(id(line))
        spared = ZERO if begun is None else Polynomial.of((*line.loops, *begun))
        if pair is not None:
            in_place = in_all((*pair, elements(line)), nest.counts, spared)
            rows.append(with_counts(table, line, in_place))
            continue
        same = shape(line)
        if (counts := in_iterations.get((same, nest.counts, begun))) is None:
            if (once := shapes.get(same)) is None:
                once = shapes[same] = ((*executed_alone(line), elements(line)), form_of(line))
            counts = in_iterations[same, nest.counts, begun] = in_all(once[0], nest.counts, spared), once[1]
        rows.append(with_counts(table, line, *counts))
    return tuple(rows)


def _in_place(table: Table) -> Iterator[tuple[Line, tuple[Polynomial, Polynomial] | None]]:
    """Yield the MACCs and FLOPs of the lines whose counts depend on other lines, and None for all other lines.

    They depend on earlier lines if these determine the values outside a `where`.
    """
    by_itself = [*map(alone(table), (line for line, _ in walk(table.lines)))]
    standing = iter(by_itself)
    rest = replace(table, lines=map_lines(table.lines, lambda line: () if next(standing) else (line,)))
    parts: dict[int, list[Line]] = {}
    for line, _ in walk(lower(rest).lines):
        parts.setdefault(line.meta.origin, []).append(line)
    places = count()
    for (line, _), is_alone in zip(walk(table.lines), by_itself, strict=True):
        yield line, None if is_alone else _together(parts.get(next(places), ()))


def _together(lines: Iterable[Line]) -> tuple[Polynomial, Polynomial]:
    """Return the total MACCs and FLOPs of the lowered lines of one line."""
    executed_lines = tuple(lines)
    if len(executed_lines) == 1:
        return executed(executed_lines[0])
    pairs = [executed(line) for line in executed_lines]
    return total((*(maccs for maccs, _ in pairs), _scattered(executed_lines))), total(flops for _, flops in pairs)


def _scattered(lines: Iterable[Line]) -> Polynomial:
    """Return the MACCs of products that are added at an index, such as gradients of experts' weights: one per term.

    The lowered table multiplies in one line and adds at the index in another, one FLOP per term each. Terms that never
    collide are stored without a sum.
    """
    products: set[str] = set()  # products that are not yet summed
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
        elif not left.apart and {*left.loops}.difference(axis for axis in left.axes if isinstance(axis, str)):
            count += Polynomial.of(left.loops)
    return count


def _covers(factors: Iterable[Term], loops: Iterable[str]) -> bool:
    """Return whether factors have these axes; one of size one may be the result's alone, as of a part that is read."""
    return {"1", *(axis for term in factors for axis in term.loops)}.issuperset(loops)


def executed(line: Line) -> tuple[Polynomial, Polynomial]:
    """Return the MACCs and FLOPs of one lowered line, as NumPy executes it."""
    loops = tuple(dict.fromkeys([axis for term in line.right for axis in term.loops]))
    points = Polynomial.of(loops)
    if line.right and all(isinstance(term, Literal) for term in line.right):
        return ZERO, ZERO  # only numbers, which Python computes
    if isinstance(line, Product):
        summed = not set(line.left[0].loops).issuperset(loops)
        if len(line.right) == 1:
            added = summed or not line.left[0].apart  # a reduction or a scatter-add; otherwise a copy
            return ZERO, points if added else ZERO
        if any(isinstance(term, Literal) for term in line.right):
            return ZERO, points
        return (points, points * 2) if summed else (ZERO, points)
    if isinstance(line, Sum):
        return ZERO, points if len(line.right) > 1 else ZERO
    assert isinstance(line, Op)
    if line.opaque:
        return ZERO, line.opaque.flops(line.part) or ZERO
    if line.op == "inside" or entry(line.op).kind in ("constant", "move", "collective"):
        return ZERO, ZERO
    return ZERO, points


def executed_alone(line: Line) -> tuple[Polynomial, Polynomial]:
    """Return the MACCs and FLOPs of a line, lowered without knowledge of other lines."""
    return _together(lower_line(line))


def price(table: Layer | Table, sizes: Mapping[str, Any], book: Book, dtype: str = "fp32") -> Price:
    """Price a table. `sizes` are those of axes and trip counts, by name; a size that is left out remains a symbol.

    For bytes, every line of the table reads each operand once and writes each result once.
    """
    table = table_of(table)
    if dtype not in BYTES:
        raise InputError(f"no data type is called {dtype!r}; use one of {', '.join(BYTES)}")
    rules: dict[str, Callable[[Table, Book], tuple[PricedLine, ...]]]
    rules = {"executed": executed_rows, "matrix": partial(matrix_rows, sizes=sizes), "printed": printed_rows}
    rule = rules.get(book.rule)
    if rule is None:
        raise InputError(f"price book {book.name} prices complete models, not lines: use another price book")
    if book.causal == "inside":
        table = with_windows(table, sizes)
    rows = tuple(replace(row, place=place) for place, row in enumerate(rule(table, book)))
    return Price(book.name, rows, sizes, dtype)
