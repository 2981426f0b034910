"""Why a price book says something else than matrix products alone: its rows and theirs, term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from learncost.books.formula import FORMULA
from learncost.equation.count import total
from learncost.equation.line import Line, Product, Word
from learncost.layers.parts import Part, is_norm, part_of
from learncost.layers.products import matrix_maccs
from learncost.layers.rewrite import DROPOUT
from learncost.ledger.run import rows_of
from learncost.models.model import Model
from learncost.readings.price import Book, Row

Difference = tuple[str, tuple[Row, ...], tuple[Row, ...]]
"""A term, the rows that a book has for it, and those of matrix products alone."""

SCORES = (
    "causal attention in half",
    "pairs that causal attention hides",
    "no products of scores and values",
    "products of scores and values",
    "products of scores and values in half",
)
"""Terms that say of the same products which of them count: of two at once one would take away what is gone."""

LEFT_OUT = "left out of the publication's total: "
"""How a term begins that only the publication has which prints the total."""


def because(model: Model, book: Book, rows: tuple[Row, ...], plain: tuple[Row, ...]) -> Iterator[Difference]:
    """The terms by which the rows of a book differ from those of matrix products, each row in one term alone."""
    if book.rule == FORMULA:
        yield from _formula(rows, plain)
    elif book.rule == "matrix":
        yield from _attention(model, book, rows, plain)
    else:
        yield from _grouped(_line_term(book, rows), rows, plain)


def _attention(model: Model, book: Book, rows: tuple[Row, ...], plain: tuple[Row, ...]) -> Iterator[Difference]:
    """Causal attention first, then its scores again: a book with the first alone stands between the two."""
    between = rows_of(model, "bp", replace(book, name=f"{book.name}, once", again=False)) if book.again else rows
    yield "causal attention in half" if book.causal == "half" else "pairs that causal attention hides", between, plain
    yield "attention's scores computed again in backward", rows, between


def _grouped(term: Callable[[Row], str], rows: Iterable[Row], plain: Iterable[Row]) -> Iterator[Difference]:
    groups: dict[str, tuple[list[Row], list[Row]]] = {}
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


def _line_term(book: Book, rows: Iterable[Row]) -> Callable[[Row], str]:
    jacobians = {
        row.source.name: row.source.word
        for row in rows
        if isinstance(row.source, Word) and row.source.part == "jacobian"
    }

    def term(row: Row) -> str:
        line = row.source
        if not isinstance(line, Line):
            return f"{LEFT_OUT}{row.line}"
        if isinstance(line, Product) and matrix_maccs(line):
            return "matrix products"
        through = {jacobians[name] for name in (line.name, *line.reads) if name in jacobians}
        if through:
            return f"{_word(*through)} backward through the explicit Jacobian"
        part = part_of(row.layer)
        if part == "embedding" or row.layer in book.one_hot:
            return "embedding as a product with one-hot rows" if row.layer in book.one_hot else "embedding"
        if part in _PARTS:
            return _PARTS[part]
        if row.layer == DROPOUT:
            return "dropout"
        if is_norm(row.layer) or (isinstance(line, Word) and "normalize" in line.word):
            return "normalization"
        if isinstance(line, Word):
            return _word(line.word)
        return "biases, scaling, sums and products by elements"

    return term


def _word(word: str) -> str:
    if "normalize" in word:
        return "normalization"
    return "softmax" if word.startswith("softmax") else word if word == "log_softmax" else "activations"


# Formulas.


def _formula(rows: tuple[Row, ...], plain: tuple[Row, ...]) -> Iterator[Difference]:
    """By what is multiplied: the blocks' matrices, attention's own products, what stands outside the blocks."""
    together = any(row.layer == "model" for row in rows)

    def part(row: Row, formula: bool) -> str:
        if row.kind != "linear":
            return row.kind if row.kind == "attention" else f"elementwise {row.line if formula else ''}"
        if together:
            return "model"
        inside = bool(row.repeat.sizes)
        return ("attention matrices" if row.layer.endswith("attention") else "matrices") if inside else row.layer

    groups: dict[str, tuple[list[Row], list[Row]]] = {}
    for place, group_rows in enumerate((rows, plain)):
        for row in group_rows:
            if row.flops or row.maccs:
                groups.setdefault(part(row, place == 0), ([], []))[place].append(row)
    for name, (more, less) in groups.items():
        yield _named(name, more, less), tuple(more), tuple(less)


def _named(part: str, more: list[Row], less: list[Row]) -> str:
    if part == "model":
        return "parameters without a product (look-ups, norms, biases)"
    if part == "attention":
        if not more:
            return "no products of scores and values"
        half = total(row.flops for row in more) * 2 == total(row.flops for row in less)
        return "products of scores and values" + (" in half" if half else "")
    if part == "embedding":
        return "embedding as a product with one-hot rows"
    if part.startswith("elementwise"):
        return f"{more[0].layer}: {more[0].line}" if more else part
    return f"{part}: other sizes" if more and less else f"no {part.replace('_', ' ')}"
