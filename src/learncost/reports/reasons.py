"""The difference between a price book and matrix products alone, row by row and term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from learncost.cost_models import Book, PricedLine
from learncost.cost_models.formula import FORMULA
from learncost.ir.dataclass import replace
from learncost.ir.line import Line, Op, Product
from learncost.ir.polynomial import total
from learncost.layers.active import Part, is_norm, part_of
from learncost.layers.products import matrix_maccs
from learncost.layers.rewrite import DROPOUT
from learncost.models.model import Model
from learncost.reports.run import rows_of

Difference = tuple[str, tuple[PricedLine, ...], tuple[PricedLine, ...]]
"""A term, the rows that a book has for it, and those of matrix products alone."""

_SCORES = "attention's products of scores and values"

SCORES = (
    "causal attention in half",
    "pairs that causal attention hides",
    f"{_SCORES}, left out",
    f"{_SCORES}, counted at half",
    f"{_SCORES}, counted otherwise",
)
"""Terms that say of the same products which of them count: of two at once one would take away what is gone."""

LEFT_OUT = "left out of the publication's total: "
"""The prefix of a term that only the publication has which prints the total."""


def because(
    model: Model, book: Book, rows: tuple[PricedLine, ...], plain: tuple[PricedLine, ...]
) -> Iterator[Difference]:
    """Return the terms by which a book's rows differ from those of matrix products; each row is in one term."""
    if book.rule == FORMULA:
        yield from _formula(rows, plain)
    elif book.rule == "matrix":
        yield from _attention(model, book, rows, plain)
    else:
        yield from _grouped(_line_term(book, rows), rows, plain)


def _attention(
    model: Model, book: Book, rows: tuple[PricedLine, ...], plain: tuple[PricedLine, ...]
) -> Iterator[Difference]:
    """Return the terms of causal attention, then of its recomputed scores."""
    between = rows_of(model, "bp", replace(book, name=f"{book.name}, once", again=False)) if book.again else rows
    yield "causal attention in half" if book.causal == "half" else "pairs that causal attention hides", between, plain
    yield "attention scores recomputed in the backward pass", rows, between


def _grouped(
    term: Callable[[PricedLine], str], rows: Iterable[PricedLine], plain: Iterable[PricedLine]
) -> Iterator[Difference]:
    groups: dict[str, tuple[list[PricedLine], list[PricedLine]]] = {}
    for place, group_rows in enumerate((rows, plain)):
        for row in group_rows:
            groups.setdefault(term(row), ([], []))[place].append(row)
    for name, (more, less) in groups.items():
        yield name, tuple(more), tuple(less)


# Books that price lines.

_PARTS: Mapping[Part, str] = {
    "residual": "residual sums",
    "positions": "positions",
    "loss": "log-softmax and loss",
    "head": "log-softmax and loss",
}


def _line_term(book: Book, rows: Iterable[PricedLine]) -> Callable[[PricedLine], str]:
    jacobians = {
        row.source.name: row.source.op for row in rows if isinstance(row.source, Op) and row.source.part == "jacobian"
    }

    def term(row: PricedLine) -> str:
        line = row.source
        if not isinstance(line, Line):
            return f"{LEFT_OUT}{row.line}"
        if isinstance(line, Product) and matrix_maccs(line):
            return "matrix products"
        through = {jacobians[name] for name in (line.name, *line.reads) if name in jacobians}
        if through:
            return f"{_op_name(*through)} backward through the explicit Jacobian"
        part = part_of(row.layer)
        if part == "embedding" or row.layer in book.one_hot:
            return "embedding as a product with one-hot rows" if row.layer in book.one_hot else "embedding"
        if part in _PARTS:
            return _PARTS[part]
        if row.layer == DROPOUT:
            return "dropout"
        if is_norm(row.layer) or (isinstance(line, Op) and "normalize" in line.op):
            return "normalization"
        if isinstance(line, Op):
            return _op_name(line.op)
        return "biases, scaling, sums and products by elements"

    return term


def _op_name(op: str) -> str:
    if "normalize" in op:
        return "normalization"
    return "softmax" if op.startswith("softmax") else op if op == "log_softmax" else "activations"


# Formulas.


def _formula(rows: tuple[PricedLine, ...], plain: tuple[PricedLine, ...]) -> Iterator[Difference]:
    """Return the terms by operands: the blocks' matrices, attention's products, and those outside the blocks."""
    together = any(row.layer == "model" for row in rows)
    apart = all(any(map(_of_attention, side)) for side in (rows, plain))  # a module may call its layers otherwise

    def part(row: PricedLine, formula: bool) -> str:
        if row.kind != "linear":
            return row.kind if row.kind == "attention" else f"elementwise {row.line if formula else ''}"
        if together:
            return "model"
        if not row.repeat.sizes:
            return row.layer
        return "attention matrices" if apart and _of_attention(row) else "matrices"

    groups: dict[str, tuple[list[PricedLine], list[PricedLine]]] = {}
    for place, group_rows in enumerate((rows, plain)):
        for row in group_rows:
            if row.flops or row.maccs:
                groups.setdefault(part(row, place == 0), ([], []))[place].append(row)
    for name, (more, less) in groups.items():
        yield _named(name, more, less), tuple(more), tuple(less)


def _of_attention(row: PricedLine) -> bool:
    return row.kind == "linear" and bool(row.repeat.sizes) and row.layer.endswith("attention")


def _named(part: str, more: list[PricedLine], less: list[PricedLine]) -> str:
    """Return a description of a difference: matrix products that a formula omits, adds, or counts with other sizes."""
    if part == "model":
        return "parameters without a product (look-ups, norms, biases)"
    if part == "embedding":
        return "embedding as a product with one-hot rows"
    if part.startswith("elementwise"):
        return f"{more[0].layer}: {more[0].line}, counted too" if more else f"{part.strip()} operations, left out"
    half = total(row.flops for row in more) * 2 == total(row.flops for row in less) if more and less else False
    how = "counted at half" if half else "counted otherwise" if part == "attention" else "of other sizes"
    how = "left out" if not more else "counted too" if not less else how
    if part == "attention":
        return f"{_SCORES}, {how}"
    where = {"matrices": "the blocks", "attention matrices": "the blocks' attention", "head": "the head"}
    return f"matrix products of {where.get(part, f'{part} (outside the blocks)')}, {how}"
