"""The data of figures and pages, by themselves: they are drawn, written as JSON, and written as rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Data = TypeVar("Data")


def made_of(kind: type[Data], answer: Any, /, **more: Any) -> Data:
    """Return data of a kind, whose fields that are not given are the answer's fields of the same names."""
    names = (each.name for each in fields(kind) if each.name not in more and hasattr(answer, each.name))  # type: ignore[arg-type]
    return kind(**{name: getattr(answer, name) for name in names}, **more)
