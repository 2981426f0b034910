"""Results that a Python session shows as they are read, and not as their fields."""

from __future__ import annotations


class Readable:
    """Its representation is its text: a dataclass with it says `repr=False`, so as to keep it."""

    def __repr__(self) -> str:
        return str(self)
