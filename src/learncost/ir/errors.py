"""Errors: every message is one line that says what is wrong, where, and what would be right.

Numbers are written and read as people do, such as 512k and 24GiB; a wrong name is answered with the nearest ones.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar

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

    written: str
    """The message as it is raised, with flags; a function that is called in Python says its keywords instead."""

    def __init__(self, message: str = "") -> None:
        self.written = _printable(message)
        super().__init__(self.written)


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
        quoted = line.strip() if len(line) < QUOTED_CHARACTERS else f"{line.strip()[:QUOTED_CHARACTERS]}..."
        super().__init__(f"{message}, in line: {quoted}" if line else message)


def to_install(extra: str) -> str:
    """Return how to install an extra of the package, from an index and in a clone of the repository."""
    return f"pip install 'learncost[{extra}]', or in a clone pip install -e '.[{extra}]'"


def imported(module: str, needs: str, extra: str) -> Any:
    """Return a module of an extra of the package.

    needs  what needs which package, for the message
    Raises `InputError` where it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{needs}: {to_install(extra)}") from None


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


def as_two_lines(line: str) -> str:
    """Return a line that multiplies and adds as two lines."""
    from learncost.ir.attempts import as_two_lines

    return as_two_lines(line)


RETIRED: Mapping[str, Mapping[str, str]] = {
    "engine": {
        "table": "graph",
        "autograd": "eager",
        **{
            f"{name}-{suffix}": f"eager {flags}"
            for name in ("eager", "autograd")
            for suffix, flags in (
                ("foreach", "--optimizer-implementation foreach"),
                ("for-loop", "--optimizer-implementation for-loop"),
                ("in-backward", "--plan fused-update"),
                ("cuda", "--on cuda"),
            )
        },
        "torch-operators": "torch",
    },
    "precision": {"bf16-pure": "bf16-true", "fp16-pure": "fp16-true", "int8-kept": "int8-saved"},
    "list": {"words": "operators"},
    "flag": {"--mine": "--identify", "--ram": "--budget", "--flash": "--flash-size"},
    "plan": {"at-once": "fused-update", "in-product": "epilogue-update", "head": "chunked-loss"},
}
"""Names of earlier versions by what they name, each with today's, and with the flags that say the rest."""


def named_one(kind: str, name: object, registry: Mapping[str, Known]) -> Known:
    """Return the entry of a registry.

    Raises `InputError` for a retired name, with today's, and for an unknown one, with the nearest and all that exist.
    """
    if isinstance(name, str) and name in registry:
        return registry[name]
    if isinstance(name, str) and name in RETIRED.get(kind, {}):
        raise InputError(f"the {kind} {name!r} is called {RETIRED[kind][name]!r} now")
    hint = f"; the nearest is {near!r}" if (near := close_to(str(name), registry)) else ""
    raise InputError(f"no {kind} is called {shown(name)}{hint} (there are {', '.join(registry)})")


COUNTS: Mapping[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
"""Letters after a count, of tokens for example; b is a billion."""

BYTES: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}{unit}": 10 ** (3 * power) for power, letter in enumerate("kmgtp", 1) for unit in ("", "b")},
    **{f"{letter}{unit}": 2 ** (10 * power) for power, letter in enumerate("kmgtp", 1) for unit in ("i", "ib")},
}
"""Letters after a number of bytes: 8G and 8GB are 8 x 10^9, 8Gi and 8GiB are 8 x 2^30."""

_GROUPED = r"[0-9]{1,3}(,[0-9]{3})+|[0-9]{1,3}(_[0-9]{3})+"

_WRITTEN = r"([0-9]{1,20})(?:\.([0-9]{1,20}))?(?:[eE]\+?([0-9]{1,2}))? ?([A-Za-z]{0,3})"


def whole_number(text: str, units: Mapping[str, int] = COUNTS) -> int | None:
    """Return the exact integer of a text; None for another text or a fraction."""
    if len(text) < 30 and re.fullmatch(_GROUPED, text):
        text = text.replace(",", "").replace("_", "")
    match = re.fullmatch(_WRITTEN, text)
    if not match or match[4].lower() not in units:
        return None
    if match[2] and not (match[3] or match[4]):  # 1.0 is no whole number as it is written; 1.5e3 and 1.5k are
        return None
    digits, fraction = match[1], match[2] or ""
    scaled = int(digits + fraction) * 10 ** int(match[3] or 0) * units[match[4].lower()]
    number, rest = divmod(scaled, 10 ** len(fraction))
    return None if rest else number


def counted(value: object, units: Mapping[str, int] = COUNTS) -> int | None:
    """Return a value as an integer: an int, a float without a fraction (3e11), or a text as `whole_number` reads it."""
    if isinstance(value, str):
        return whole_number(value, units)
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what is no integer may still be a whole number
    except TypeError:
        is_whole = getattr(value, "is_integer", None)
        return int(value) if callable(is_whole) and is_whole() else None  # type: ignore[call-overload]


def real_number(value: object) -> float:
    """Return a number, or a text of one, as a float; NaN for anything else, which no limits hold."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


SHOWN_CHARACTERS = 60  # enough to recognise a value; a message stays one line
QUOTED_CHARACTERS = 400  # enough for a line of the notation


def shown(value: object) -> str:
    """Return `value` as a person would recognise it: its representation, cut to one short line."""
    if isinstance(value, int) and abs(value) > 10**SHOWN_CHARACTERS:
        return f"a number of more than {SHOWN_CHARACTERS} digits"  # Python refuses to print the very long ones
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def printable(text: str) -> str:
    """Return `text` itself where it fits on a line of a terminal, its representation otherwise."""
    return text if text.isprintable() else shown(text)


def mentions(values: Iterable[object], text: str) -> bool:
    """Return whether a text occurs in the string of several values, ignoring case."""
    return text.lower() in str(list(values)).lower()


def close_to(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most like another one; "" where none is."""
    from difflib import get_close_matches  # needed only when something went wrong

    return next(iter(get_close_matches(name, [*names], 1, cutoff)), "")


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return "; did you mean 'a' or 'b'?" for the known names nearest to `name`, "" where none is near."""
    if not isinstance(name, str):
        return ""
    import difflib  # needed only when something went wrong

    def key_of(spelling: str) -> str:
        """Return the form in which names are compared: without the dashes, by which all flags would be similar."""
        return spelling[:100].lower().replace("_", "-").removeprefix("--")

    names = {key_of(candidate): candidate for candidate in candidates}
    key = key_of(name)
    longer = [candidate for candidate in names if candidate.startswith(f"{key}-")] if len(key) > 2 else []
    close = [
        *longer,
        *(candidate for candidate in difflib.get_close_matches(key, names, n=3) if candidate not in longer),
    ][:3]
    return f"; did you mean {' or '.join(repr(names[match]) for match in close)}?" if close else ""
