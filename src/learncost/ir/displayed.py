"""What an object shows of itself: rows as a frame; of one that is no answer, equations, rows or fields as HTML."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Framed:
    """An object that gives its rows as a frame."""

    __slots__ = ()

    def _rows(self) -> Any:
        return import_module("learncost.viz.displays").rows_of(self)

    def to_polars(self) -> Any:
        """Its rows as a polars DataFrame. Raises `InputError` where polars is not installed."""
        return import_module("learncost.reports.frames").polars_of(self._rows())

    def to_pandas(self) -> Any:
        """Its rows as a pandas DataFrame. Raises `InputError` where pandas is not installed."""
        return import_module("learncost.reports.frames").pandas_of(self._rows())


class Displayed(Framed):
    """An object that shows itself in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = import_module("learncost.viz.displays").html_of(self)
        return html
