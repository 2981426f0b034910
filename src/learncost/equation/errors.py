"""What can go wrong, in one place. Every message is one line: what is wrong, where, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

Known = TypeVar("Known")


class InputError(ValueError):
    """Bad input from outside: a size, a file, a name, an array. The command line ends with exit code 2."""


class NotationError(InputError):
    """A line of the notation that is not well formed; the message quotes it."""

    def __init__(self, message: str, line: str = "") -> None:
        super().__init__(f"{message}, in line: {line.strip()}" if line else message)


def named_one(kind: str, name: object, known: Mapping[str, Known]) -> Known:
    """What a registry has under a name; an unknown name is refused with the nearest one and all that exist."""
    if isinstance(name, str) and name in known:
        return known[name]
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise InputError(f"no {kind} is called {name!r}{hint} (there are {', '.join(known)})")
