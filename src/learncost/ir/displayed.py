"""Answers that show themselves: their rows as a polars or pandas data frame, and HTML in a notebook.

Whole numbers stay whole in a data frame, however large they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from learncost.ir.errors import InputError, imported

_WHOLE = r"[+-]?[0-9]+"
_BROKEN = r"[+-]?[0-9]+\.[0-9]+"


def polars_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows as a polars DataFrame. Raises `InputError` where polars is not installed."""
    polars = imported("polars", "a polars frame needs polars", "sweep")
    columns = []
    for name, values in columns_of(rows).items():
        large = any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
        columns.append(polars.Series(name, values, dtype=polars.Int128 if large else None, strict=False))
    return polars.DataFrame(columns)


def pandas_of_columns(columns: Mapping[str, Any]) -> Any:
    """Return columns as a pandas DataFrame. Raises `InputError` where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise InputError("a pandas frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(dict(columns))


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns of one type each: a missing cell is None, and a column of mixed types becomes strings."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in names}


def _of_one_type(values: list[Any]) -> list[Any]:
    values = [_plain(value) for value in values]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values


def _plain(value: Any) -> Any:
    """Return a cell as a scalar: an empty string becomes None, a sequence becomes a string of its items."""
    if value is None or value == "":
        return None
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    return value if isinstance(value, bool | int | float | str) else str(value)


def records(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """Return rows of printed cells as dictionaries with unique column names; numbers are parsed."""
    names: list[str] = []
    for place, column in enumerate(columns):
        name = column or ("name" if place == 0 else "value")
        while name in names:
            name = f"{name} "
        names.append(name)
    several = {name: sum(other.strip() == name.strip() for other in names) for name in names}
    column_names = [f"{n.strip()} {p + 1}" if several[n] > 1 and n != n.strip() else n for p, n in enumerate(names)]
    return [{name: _read(cell) for name, cell in zip(column_names, row, strict=False)} for row in rows]


def _read(cell: str) -> Any:
    bare = cell.replace(",", "")
    return int(bare) if re.fullmatch(_WHOLE, bare) else float(bare) if re.fullmatch(_BROKEN, bare) else cell


class Drawing(Protocol):
    """The interface of the package that renders answers; it is registered at import because it is a higher layer."""

    def rows_of(self, thing: Any) -> list[dict[str, Any]]:
        """Return the rows of an object, a dictionary each."""

    def html_of(self, thing: Any) -> str:
        """Return an object as HTML."""

    def figure_of(self, kind: str, answer: Any, columns: int = 1) -> Any:
        """Return an answer as a matplotlib Figure."""

    def figure_html(self, kind: str, answer: Any) -> str:
        """Return a figure of an answer as HTML, empty where matplotlib is not installed."""

    def write_traces(
        self,
        folder: Path,
        steps: Sequence[Any],
        weights: Iterable[str],
        title: str,
        predicted: int | None,
        arguments: Mapping[str, Any],
    ) -> str:
        """Write the traced steps of a training to its folder, and return what was written as a sentence."""


def _no_drawing() -> Drawing:
    raise RuntimeError("no renderer is registered: import learncost")


drawing: Callable[[], Drawing] = _no_drawing
"""Return the renderer; `learncost/__init__.py` sets it, so that no lower layer imports `viz`."""


class FrameConvertible:
    """An object whose rows convert to data frames."""

    __slots__ = ()

    def _rows(self) -> Any:
        return drawing().rows_of(self)

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame. Raises `InputError` where polars is not installed."""
        return polars_of(self._rows())

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises `InputError` where pandas is not installed."""
        return pandas_of_columns(columns_of(self._rows()))


class Displayed(FrameConvertible):
    """An object with an HTML view in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return drawing().html_of(self)
