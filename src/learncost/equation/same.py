"""Objects as keys: what was made of one is found again by the object itself, however large it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Of = TypeVar("Of")


@dataclass(frozen=True, eq=False, slots=True)
class Same(Generic[Of]):
    """An object, such as a table, as a key: equal to itself alone. It lives as long as the key does."""

    it: Of

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it
