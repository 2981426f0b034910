"""What can go wrong, in one place. Every message is one line: what is wrong, where, what would be right."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from outside: a size, a file, a name, an array. The command line ends with exit code 2."""


class NotationError(InputError):
    """A line of the notation that is not well formed; the message quotes it."""

    def __init__(self, message: str, line: str = "") -> None:
        super().__init__(f"{message}, in line: {line.strip()}" if line else message)
