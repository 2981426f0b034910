"""Base classes of objects with a data frame and an HTML view for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from learncost.ir.frames import pandas_of, polars_of


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


class Framed:
    """An object whose rows convert to data frames."""

    __slots__ = ()

    def _rows(self) -> Any:
        return drawing().rows_of(self)

    def to_polars(self) -> Any:
        """Return the rows as a polars DataFrame. Raises `InputError` where polars is not installed."""
        return polars_of(self._rows())

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises `InputError` where pandas is not installed."""
        return pandas_of(self._rows())


class Displayed(Framed):
    """An object with an HTML view in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return drawing().html_of(self)
