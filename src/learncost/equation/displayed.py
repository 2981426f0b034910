"""What a notebook shows of an object that is no answer: its equations, its rows or its fields, as HTML."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """An object that shows itself in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = import_module("learncost.pictures.displays").html_of(self)
        return html
