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
from learncost.ops import entry
from learncost.passes.checkpoints import first_name


def matrix_rows(table: Table, book: Book, sizes: Mapping[str, Any]) -> tuple[PricedLine, ...]:
    """The rows of a table of which matrix products alone cost something."""
    charges: dict[str, Callable[[Product, Polynomial], Polynomial]]
    charges = {"half": in_half, "inside": inside, "blocks": partial(in_blocks, sizes=sizes)}
    charge = charges.get(book.causal)
    blocks = book.causal == "blocks"
    few = skipping(table.lines, table.outputs) if blocks else frozenset[tuple[str, str]]()
    twice = with_a_second_gradient(table.lines) if book.operators else frozenset[str]()
    ends = _ends_of_attention(table) if book.again else {}
    scores = ScoreGradients()

    def charged(line: Line) -> Polynomial:
        """The MACCs of a line by itself."""
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
    for line, iterations in walk(table.lines):
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
        rows.append(row_of(table, line, iterations, maccs, opaque or maccs * 2))
    return tuple(rows)


def _ends_of_attention(table: Table) -> dict[str, Product]:
    """Return the last products of attention that run again as part of its kernel, by the shares that run again.

    A checkpoint stops at the last value that the gradients of lines read, which are the shares of attention. A fused
    kernel has no shares: it keeps its result, and computes all of it again.
    """
    lines = [line for line, _ in walk(table.lines)]
    shares = {line.name for line in lines if isinstance(line, Op) and entry(line.op).makes == "shares"}
    again = {first_name(line.name): line.name for line in lines if line.meta.phase == "recomputation"}
    ends = {}
    for line in lines:
        if isinstance(line, Product) and line.meta.phase == "forward" and "attention" in line.meta.operator:
            for name in shares.intersection(line.reads):
                if name in again and line.name not in again:
                    ends[again[name]] = line
    return ends


def _opaque(line: Line, causal: str) -> Polynomial | None:
    """The FLOPs of a line that is not derived, at the pairs of positions that a book counts under a causal mask."""
    if not isinstance(line, Op) or line.opaque is None:
        return None
    flops, visible = line.opaque.flops(line.part), line.opaque.visible
    if flops is None or not visible or causal not in ("half", "inside"):
        return flops
    from fractions import Fraction  # only where a book halves

    return flops * Polynomial.of((), Fraction(1, 2) if causal == "half" else Fraction(visible))
