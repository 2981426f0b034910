"""What runs: every line of the normal form."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import count

from learncost.cost_models.book import Book
from learncost.cost_models.line import Counts, Once, elements, form_of, in_all, with_counts
from learncost.cost_models.row import PricedLine
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import each_line, walk
from learncost.ir.polynomial import ZERO, Polynomial, total
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.totals import beginnings
from learncost.ops import entry
from learncost.passes.context_free import alone, shape
from learncost.passes.lower import lower, lower_line


def executed_rows(table: Table, book: Book) -> tuple[PricedLine, ...]:
    """The rows of a table as it runs; lines of one shape are counted once."""
    shapes: dict[Hashable, tuple[Once, str]] = {}
    in_iterations: dict[tuple[Hashable, ...], tuple[Counts, str]] = {}
    rows = []
    whole = table.within or table
    counted = _in_place(whole)
    begins = {id(line): around for line, around in beginnings(whole.lines)}
    for line, iterations in walk(table.lines):
        pair = next(
            (counts for other, counts in counted if other is line), None
        )  # a part has its lines in the whole's order
        begun = begins.get(id(line))
        spared = ZERO if begun is None else Polynomial.of((*line.loops, *begun))
        if pair is not None:
            in_place = in_all((*pair, elements(line)), iterations, spared)
            rows.append(with_counts(table, line, in_place))
            continue
        same = shape(line)
        if (counts := in_iterations.get((same, iterations, begun))) is None:
            if (once := shapes.get(same)) is None:
                once = shapes[same] = ((*executed_alone(line), elements(line)), form_of(line))
            counts = in_iterations[same, iterations, begun] = in_all(once[0], iterations, spared), once[1]
        rows.append(with_counts(table, line, *counts))
    return tuple(rows)


def _in_place(table: Table) -> Iterator[tuple[Line, tuple[Polynomial, Polynomial] | None]]:
    """MACCs and FLOPs of every line; None of one that stands alone.

    What stands outside a `where` may be known from lines before.
    """
    by_itself = [*map(alone(table), (line for line, _ in walk(table.lines)))]
    standing = iter(by_itself)
    rest = replace(table, lines=each_line(table.lines, lambda line: () if next(standing) else (line,)))
    parts: dict[int, list[Line]] = {}
    for line, _ in walk(lower(rest).lines):
        parts.setdefault(line.meta.origin, []).append(line)
    places = count()
    for (line, _), is_alone in zip(walk(table.lines), by_itself, strict=True):
        yield line, None if is_alone else _together(parts.get(next(places), ()))


def _together(lines: Iterable[Line]) -> tuple[Polynomial, Polynomial]:
    """MACCs and FLOPs of the lines of the normal form that one line has become."""
    executed_lines = tuple(lines)
    if len(executed_lines) == 1:
        return executed(executed_lines[0])
    pairs = [executed(line) for line in executed_lines]
    return total((*(maccs for maccs, _ in pairs), _scattered(executed_lines))), total(flops for _, flops in pairs)


def _scattered(lines: Iterable[Line]) -> Polynomial:
    """MACCs of products that are summed where an index says, as the gradients of experts' weights are: one a term.

    The normal form multiplies in one line and adds at the index in another, a FLOP a term each. Terms that never meet
    are stored without a sum.
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
        elif not left.apart and {*left.loops}.difference(axis for axis in left.axes if isinstance(axis, str)):
            count += Polynomial.of(left.loops)
    return count


def _covers(factors: Iterable[Term], loops: Iterable[str]) -> bool:
    return {axis for term in factors for axis in term.loops}.issuperset(loops)


def executed(line: Line) -> tuple[Polynomial, Polynomial]:
    """MACCs and FLOPs of one line of the normal form, as NumPy executes it."""
    loops = tuple(dict.fromkeys([axis for term in line.right for axis in term.loops]))
    points = Polynomial.of(loops)
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
    assert isinstance(line, Op)
    if line.opaque:
        return ZERO, line.opaque.flops(line.part) or ZERO
    if line.op == "inside" or entry(line.op).kind in ("constant", "move", "collective"):
        return ZERO, ZERO
    return ZERO, points


def executed_alone(line: Line) -> tuple[Polynomial, Polynomial]:
    """MACCs and FLOPs of a line by itself, whatever stands around it."""
    return _together(lower_line(line))
