"""One value of a configuration as it was given, and what the kinds of value may be: each refusal is one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learncost.ir.errors import InputError, counted, nearest, shown
from learncost.models.sizes import LARGEST, check_size

LONGEST = 10**5  # entries of a list, nested ones included


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value as it was given: under which spelling, and where; "" is a flag, whose numbers may be text."""

    spelling: str
    value: object
    where: str = ""

    @property
    def label(self) -> str:
        """What an error calls it."""
        return f"{self.where}: {self.spelling}" if self.where else self.spelling

    @property
    def is_flag(self) -> bool:
        """Whether it comes from the command line or a caller, not from a file."""
        return not self.where

    def size(self) -> int:
        """A whole number from 1 to 10^12."""
        if isinstance(self.value, str) and not self.is_flag:
            raise InputError(f"{self.label} must be a number, not the text {shown(self.value)}")
        if isinstance(self.value, float) and not self.is_flag:
            raise InputError(f"{self.label} must be a whole number as JSON writes it, not {shown(self.value)}")
        return check_size(self.label, self.value)

    def whole_number(self) -> int:
        """A whole number from 0 to 10^12."""
        value = self.value
        if isinstance(value, str) and self.is_flag and value.isdecimal() and len(value) <= 20:
            value = int(value)
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)  # type: ignore[arg-type]  # what does not convert is refused
        except TypeError:
            number_read = counted(value) if self.is_flag and not isinstance(value, str | bool) else None
            number = -1 if number_read is None else number_read
        if not 0 <= number <= LARGEST:
            raise InputError(f"{self.label} must be a whole number from 0 to {LARGEST:,}, not {shown(self.value)}")
        return number

    def probability(self) -> float:
        """An epsilon or a dropout probability: finite, at least 0, below 1."""
        number = self._float()
        if number is None or not 0 <= number < 1:
            raise InputError(f"{self.label} must be a number from 0 to below 1, not {shown(self.value)}")
        return number

    def number(self) -> float:
        """A factor: finite, at least 0."""
        number = self._float()
        if number is None or not 0 <= number <= LARGEST:
            raise InputError(f"{self.label} must be a number from 0 to {LARGEST:,}, not {shown(self.value)}")
        return number

    def _float(self) -> float | None:
        value = self.value
        if isinstance(value, str) and self.is_flag:
            try:
                value = float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, int) and abs(value) > LARGEST:
            return None
        return float(value) if math.isfinite(value) else None

    def flag(self) -> bool:
        """True or false."""
        value = self.value
        if isinstance(value, str) and self.is_flag:
            value = {"true": True, "false": False}.get(value.lower())
        if not isinstance(value, bool):
            raise InputError(f"{self.label} must be true or false, not {shown(self.value)}")
        return value

    def text(self) -> str:
        """A word, or several with bars between them, which may come as a list; an empty one is no word."""
        if isinstance(self.value, list) and all(isinstance(word, str) for word in self.value):
            return "|".join(self.value)
        if not isinstance(self.value, str):
            raise InputError(f"{self.label} must be a text, not {shown(self.value)}")
        return self.value

    def entries(self) -> list[Any]:
        """A list of texts, numbers and such lists."""
        left = [self.value]
        count = 0
        while left:
            item = left.pop()
            count += 1
            if isinstance(item, list) and count + len(left) + len(item) <= LONGEST:
                left += item
            elif item is self.value or isinstance(item, bool) or not isinstance(item, int | float | str):
                expected = f"a list of at most {LONGEST:,} texts and numbers"
                raise InputError(f"{self.label} must be {expected}, not {shown(self.value)}")
        assert isinstance(self.value, list)
        return self.value

    def one_of(self, names: Mapping[str, str]) -> str:
        """What a known name stands for."""
        meaning = names.get(self.value) if isinstance(self.value, str) else None
        if meaning is None:
            raise InputError(
                f"{self.label} {shown(self.value)} is not supported{nearest(self.value, names)}"
                f"; supported are {', '.join(names)}"
            )
        return meaning


def setting(entry: GivenValue, name: str, default: object, activations: Mapping[str, str]) -> Any:
    """A setting's value, checked as the type of its default wants it."""
    if name == "activation":
        return entry.one_of(activations)
    if isinstance(default, bool):
        return entry.flag()
    if isinstance(default, int):
        return entry.whole_number()
    if isinstance(default, float):
        return entry.probability() if name.endswith("epsilon") else entry.number()
    return entry.entries() if isinstance(default, list) else entry.text()
