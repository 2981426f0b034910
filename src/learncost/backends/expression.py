"""Python expressions with their precedence, so that nesting preserves the order of operations.

Names of tables become Python identifiers, one-to-one: attn.Q is attn_Q.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from learncost.ir.dataclass import dataclass

COMPARISON, SUM, PRODUCT, POWER, ATOM = range(5)
WIDTH = 110
"""Longer calls are written over several lines."""


@dataclass(frozen=True)
class Code:
    """An expression; `level` is the precedence of its outermost operation."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """Return the text as an operand of an operation of that precedence."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def atom(self) -> str:
        """Return the text with a suffix: a subscript or a method."""
        return self.at(ATOM)


def binary(left: Code, sign: str, right: Code, level: int) -> Code:
    """Return a left-associative operation; the right operand keeps its parentheses."""
    return Code(f"{left.at(level)} {sign} {right.at(level + 1)}", level)


def number(value: float) -> Code:
    """Return a number as a Python literal."""
    if value in (float("inf"), float("-inf")) or value != value:
        return Code(f'float("{value}")')
    return Code(repr(float(value)), ATOM if value >= 0 else POWER)


def shape(sizes: Iterable[str]) -> str:
    """Return a tuple of sizes."""
    items = tuple(sizes)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def call(function: str, arguments: Iterable[str], before: str = "", indent: int = 4) -> str:
    """Return a call, wrapped if too long; `before` precedes it on its first line."""
    items = list(arguments)
    line = f"{before}{function}({', '.join(items)})"
    if len(line) + indent <= WIDTH:
        return line
    rows = [""]
    for item in items:
        row = f"{rows[-1]}{item}, "
        if len(row) + indent + 4 > WIDTH and rows[-1]:
            rows.append("")
            row = f"{item}, "
        rows[-1] = row
    return f"{before}{function}(\n" + "".join(f"    {row.rstrip()}\n" for row in rows) + ")"


def returned(items: Iterable[str]) -> str:
    """Return a return statement of several values, wrapped if too long."""
    every = tuple(items)
    line = f"return {', '.join(every)}"
    return line if len(line) < WIDTH or "\n" in line or len(every) == 1 else call("", every, "return ")


# What a mark in a derived name says: a part of a gradient, the modulated pass, a step of a line, a
# tangent, a stack of saved tensors.
_MARKS = {
    "+": ".part", "^": ".mod.", "~": ".step", ">": ".tangent", "*": ".saved", "'": ".prime",
    "@": ".iterations", "-": "to",
}  # fmt: skip


def spelled(name: str) -> str:
    """Return the preferred identifier of a name, which may collide with another one."""
    for mark, op in _MARKS.items():
        name = name.replace(mark, op)
    text = re.sub(r"\W+", "_", name.strip(".")) or "_"
    return f"{text}_" if keyword.iskeyword(text) else f"_{text}" if text[0].isdigit() else text


class Identifiers:
    """Maps every name of every kind to a stable, unique identifier."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken = {*reserved, *dir(builtins)}

    def of(self, name: str, kind: str = "value") -> str:
        """Return the identifier of a name; a size, mask or function of the same name has another one."""
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
        """Return the identifiers of all values by their names in the table."""
        return {name: identifier for (kind, name), identifier in self._given.items() if kind == "value"}
