"""What is to be measured, and a row of what was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is to be measured: on which device, whether few and small ones alone, and which rows, by parts of names."""

    device: str
    quick: bool
    rows: tuple[str, ...]

    def takes(self, name: str) -> bool:
        """Whether a row is asked for."""
        return any(part in name for part in self.rows)

    def some(self, every: Iterable[Any], few: int) -> list[Any]:
        """All of them, or the first few."""
        return [*every][: few if self.quick else None]


def tried(row: Row, found: Callable[[], Row]) -> Row:
    """A row with what was found, or with why nothing was."""
    try:
        return row | found()
    except Exception as error:
        return row | {"error": message_of(error)}


def message_of(error: BaseException) -> str:
    """An error in a line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} {lines[-1] if len(lines) > 1 else ''}"[:400]
