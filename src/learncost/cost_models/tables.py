"""A table priced by the rule of a book."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from learncost.cost_models.book import Book
from learncost.cost_models.matrix import matrix_rows
from learncost.cost_models.printed import printed_rows
from learncost.cost_models.row import Price, PricedLine
from learncost.cost_models.running import executed_rows
from learncost.ir.errors import InputError
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.layers.products import with_windows


def price(table: Layer | Table, sizes: Mapping[str, Any], book: Book, dtype: str = "fp32") -> Price:
    """Price a table. `sizes` by axis name (and by the counts of repeats); one that is left out stays a symbol.

    bytes: every operand read once and every result written once, line by line of the table as written.
    """
    if isinstance(table, Layer):
        table = table.table
    if dtype not in BYTES:
        raise InputError(f"no data type is called {dtype!r}; there are {', '.join(BYTES)}")
    rules: dict[str, Callable[[Table, Book], tuple[PricedLine, ...]]]
    rules = {"executed": executed_rows, "matrix": partial(matrix_rows, sizes=sizes), "printed": printed_rows}
    rule = rules.get(book.rule)
    if rule is None:
        raise InputError(f"price book {book.name} is a formula of whole models, not of their lines")
    if book.causal == "inside":
        table = with_windows(table, sizes)
    rows = tuple(replace(row, place=place) for place, row in enumerate(rule(table, book)))
    return Price(book.name, rows, sizes, dtype)
