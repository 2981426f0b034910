"""What a publication prints, line by line."""

from __future__ import annotations

from dataclasses import replace

from learncost.cost_models.book import Book, OpPrice
from learncost.cost_models.line import row_of
from learncost.cost_models.row import PricedLine
from learncost.cost_models.running import executed_alone
from learncost.ir.line import Op, Product, Sum
from learncost.ir.loop import walk
from learncost.ir.polynomial import ZERO, Polynomial
from learncost.ir.table import Table
from learncost.ir.term import Read
from learncost.ops import entry


def printed_rows(table: Table, book: Book) -> tuple[PricedLine, ...]:
    """The rows of a table as a publication prints what they cost."""
    rows = []
    for line, iterations in walk(table.lines):
        meta = line.meta
        outside = False
        # Overrides speak of printed products and sums; a word in closed form is not what the publication prints.
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
        rows.append(replace(row_of(table, line, iterations, maccs, flops), outside_paper=outside))
        if erratum := book.withdrawn.get((meta.layer, meta.local)):
            text = f"the publication's total leaves ({meta.equation}) out"
            back = replace(rows[-1], line=erratum, equation=erratum, source=text, elements=ZERO)
            rows.append(replace(back, maccs=back.maccs * -1, flops=back.flops * -1))
    return tuple(rows)


def _printed_product(line: Product, book: Book, table: Table) -> tuple[Polynomial, Polynomial, bool]:
    """A product by its shapes: one term for each point of the axes that it loops over."""
    left = {axis for axis in line.left[0].axes if isinstance(axis, str)}
    if len(line.right) == 1:
        (term,) = line.right
        if line.meta.layer in book.one_hot and term.indexed:
            points = Polynomial.of((*term.loops, *(axis.axis for axis in term.axes if isinstance(axis, Read))))
            return points, points * 2, False
        if line.meta.phase not in ("forward", "recomputation"):
            # A sum of rows, such as a bias gradient, is left out (section 5.4.3), the rows of a look-up are updated
            # directly (section 5.1.2).
            return ZERO, ZERO, False
        maccs, flops = executed_alone(line)
        return maccs, flops, bool(flops)
    loops = dict.fromkeys(axis for term in line.right for axis in term.loops)
    if set(loops) - left:
        return Polynomial.of(loops), Polynomial.of(loops, 2), False
    constants = (table.within or table).constants
    if any(term.name in constants for term in line.right):
        return ZERO, ZERO, False  # masks, and scalars of the step such as one over the count of targets
    return ZERO, Polynomial.of(loops), False


def _printed_op(line: Op, book: Book, table: Table) -> tuple[Polynomial, Polynomial, bool]:
    prices = book.ops.get(line.op, OpPrice())
    each = {"body": prices.body, "gradient": prices.gradient, "jacobian": prices.jacobian}[line.part]
    if each is not None:
        return ZERO, Polynomial.of(line.left[0].loops, each), False
    if not line.right and entry(line.op).kind == "constant":
        return ZERO, ZERO, False
    return *executed_alone(line), True
