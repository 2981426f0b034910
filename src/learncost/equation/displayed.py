"""What an object that is no answer shows of itself: its equations, its rows or its fields, as HTML and as frames."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Displayed:
    """An object that shows itself in a notebook, and gives its rows as a frame."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = import_module("learncost.pictures.displays").html_of(self)
        return html

    def to_polars(self) -> Any:
        """Its rows as a polars DataFrame. Raises `InputError` where polars is not installed."""
        return import_module("learncost.ledger.frames").polars_of(self._rows())

    def to_pandas(self) -> Any:
        """Its rows as a pandas DataFrame. Raises `InputError` where pandas is not installed."""
        return import_module("learncost.ledger.frames").pandas_of(self._rows())

    def _rows(self) -> Any:
        return import_module("learncost.pictures.displays").rows_of(self)
