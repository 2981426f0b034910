"""The exceptions of the package. Every message is one line: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

Known = TypeVar("Known")


class InputError(ValueError):
    """An invalid argument. The message is one line: what is wrong, where, and what to do.

    It is a `ValueError`. The command line prints the line and ends with exit code 2.

    Parameters
    ----------
    message
        The problem.

    Examples
    --------
    >>> try:
    ...     lc.cost("gpt2", seq_len=0)
    ... except lc.InputError as error:
    ...     print(error)
    seq_len must be a whole number from 1 to 1,000,000,000,000, not 0
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_printable(message))


class NotationError(InputError):
    """A malformed line of the notation; the message quotes it. It is an `InputError`.

    Parameters
    ----------
    message
        The problem.
    line
        The line.

    Examples
    --------
    >>> try:
    ...     lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d d]
    ... ''')
    ... except lc.NotationError as error:
    ...     print(error)
    an axis occurs twice in W; write the second with a prime (N and N'): W[d d'], in line: Y[B M f] = X[B M d] W[d d]
    """

    def __init__(self, message: str, line: str = "") -> None:
        super().__init__(f"{message}, in line: {line.strip()}" if line else message)


def _printable(text: str) -> str:
    """Return the text in one line, with non-printable characters escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else " " if sign in "\r\n\t" else sign.encode("unicode_escape").decode()
        for sign in text
    )


def advice(line: str) -> str:
    """Return the correction of a line that makes a common mistake; empty for any other."""
    from learncost.ir.attempts import advice  # imported only where a line is refused

    return advice(line)


def header_advice(line: str) -> str:
    """Return the correction of a header that makes a common mistake; empty for any other."""
    from learncost.ir.attempts import header_advice

    return header_advice(line)


def in_two_lines(line: str) -> str:
    """Return a line that multiplies and adds as two lines."""
    from learncost.ir.attempts import in_two_lines

    return in_two_lines(line)


RETIRED: Mapping[str, Mapping[str, str]] = {
    "engine": {
        "table": "graph",
        "autograd": "eager",
        "autograd-foreach": "eager-foreach",
        "autograd-for-loop": "eager-for-loop",
        "autograd-in-backward": "eager-in-backward",
        "autograd-cuda": "eager-cuda",
    },
    "precision": {"bf16-pure": "bf16-true", "fp16-pure": "fp16-true"},
    "plan": {"at-once": "fused-update", "in-product": "epilogue-update", "head": "chunked-loss"},
}
"""Names of earlier versions by what they name, each with today's."""


def named_one(kind: str, name: object, registry: Mapping[str, Known]) -> Known:
    """Return the entry of a registry.

    Raises `InputError` for a retired name, with today's, and for an unknown one, with the nearest and all that exist.
    """
    if isinstance(name, str) and name in registry:
        return registry[name]
    if isinstance(name, str) and name in RETIRED.get(kind, {}):
        raise InputError(f"the {kind} {name!r} is called {RETIRED[kind][name]!r} now")
    near = difflib.get_close_matches(str(name), registry, n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise InputError(f"no {kind} is called {name!r}{hint} (there are {', '.join(registry)})")
