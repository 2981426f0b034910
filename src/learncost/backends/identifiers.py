"""Names of tables as Python identifiers, one-to-one: attn.Q is attn_Q, X.2 is X_2, dX+2 is dX_part2."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

# What a mark in a derived name says: a part of a gradient, the modulated pass, a step of a line, a
# tangent, a kept stack.
_MARKS = {
    "+": ".part",
    "^": ".mod.",
    "~": ".step",
    ">": ".tangent",
    "*": ".kept",
    "'": ".prime",
    "@": ".turns",
    "-": "to",
}


def spelled(name: str) -> str:
    """The identifier that a name asks for; two names may ask for the same."""
    for mark, op in _MARKS.items():
        name = name.replace(mark, op)
    text = re.sub(r"\W+", "_", name.strip(".")) or "_"
    return f"{text}_" if keyword.iskeyword(text) else f"_{text}" if text[0].isdigit() else text


class Identifiers:
    """Gives every name of every kind an identifier that no other one has, the same at every question."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken = {*reserved, *dir(builtins)}

    def of(self, name: str, kind: str = "value") -> str:
        """The identifier; a size, a mask or a function of the same name has another one."""
        identifier = self._given.get((kind, name))
        if identifier is None:
            wish = identifier = spelled(name)
            number = 2
            while identifier in self._taken:
                identifier = f"{wish}_{number}"
                number += 1
            self._taken.add(identifier)
            self._given[kind, name] = identifier
        return identifier

    @property
    def values(self) -> dict[str, str]:
        """Every value's name in the table with its identifier."""
        return {name: identifier for (kind, name), identifier in self._given.items() if kind == "value"}
