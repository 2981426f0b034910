"""What counters of matrix products see: the table as written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from learncost.cost_models.book import Book
from learncost.cost_models.line import kind, row_of
from learncost.cost_models.row import PricedLine
from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import walk
from learncost.ir.polynomial import ZERO, Polynomial
from learncost.ir.table import Table
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
)


def matrix_rows(table: Table, book: Book, sizes: Mapping[str, Any]) -> tuple[PricedLine, ...]:
    """The rows of a table of which matrix products alone cost something."""
    charges: dict[str, Callable[[Product, Polynomial], Polynomial]]
    charges = {"half": in_half, "inside": inside, "blocks": partial(in_blocks, sizes=sizes)}
    charge = charges.get(book.causal)
    blocks = book.causal == "blocks"
    few = skipping(table.lines, table.outputs) if blocks else frozenset[tuple[str, str]]()
    twice = with_a_second_gradient(table.lines) if book.operators else frozenset[str]()
    scores = ScoreGradients()
    rows = []
    for line, iterations in walk(table.lines):
        operator = operator_name(line.meta.operator) if book.operators else ""
        maccs = ZERO
        counted = isinstance(line, Product) and not is_in_a_kernel(line)
        if counted and (not operator or has_a_formula(line, book.operators)):
            assert isinstance(line, Product)
            maccs = operator_maccs(line) if operator else matrix_maccs(line)
        kernel = line.meta.kernel
        if charge and maccs and (not blocks or (kernel and (kernel.name, line.name) in few)):
            assert isinstance(line, Product)
            maccs = charge(line, maccs)
        if (
            book.again
            and scores.again(line, kind(line, table) == "attention")
            and (not operator or "attention" in operator)
        ):
            maccs = maccs * 2
        if line.name in twice:
            maccs = maccs * 2
        opaque = _opaque(line, book.causal)
        rows.append(row_of(table, line, iterations, maccs, opaque or maccs * 2))
    return tuple(rows)


def _opaque(line: Line, causal: str) -> Polynomial | None:
    """The FLOPs of a line that is not derived, at the pairs of positions that a book counts under a causal mask."""
    if not isinstance(line, Op) or line.opaque is None:
        return None
    flops, visible = line.opaque.flops(line.part), line.opaque.visible
    if flops is None or not visible or causal not in ("half", "inside"):
        return flops
    from fractions import Fraction  # only where a book halves

    return flops * Polynomial.of((), Fraction(1, 2) if causal == "half" else Fraction(visible))
