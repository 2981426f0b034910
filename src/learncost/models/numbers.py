"""Whole numbers as people write them: 1024, 1,024, 1e3, 1.5e9, 512k, 8G, 24GiB, 16 GB. One reader for every flag."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

COUNTS: Mapping[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
"""Letters after a count, of tokens for example; b is a billion."""

BYTES: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}{unit}": 10 ** (3 * power) for power, letter in enumerate("kmgtp", 1) for unit in ("", "b")},
    **{f"{letter}{unit}": 2 ** (10 * power) for power, letter in enumerate("kmgtp", 1) for unit in ("i", "ib")},
}
"""Letters after a number of bytes: 8G and 8GB are 8 x 10^9, 8Gi and 8GiB are 8 x 2^30."""

_GROUPED = re.compile(r"[0-9]{1,3}(,[0-9]{3})+|[0-9]{1,3}(_[0-9]{3})+")

_WRITTEN = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?(?:[eE]\+?([0-9]{1,2}))? ?([A-Za-z]{0,3})")


def whole(text: str, units: Mapping[str, int] = COUNTS) -> int | None:
    """The whole number that a text says, exactly; None where it says none, or one with a fraction."""
    if len(text) < 30 and _GROUPED.fullmatch(text):
        text = text.replace(",", "").replace("_", "")
    found = _WRITTEN.fullmatch(text)
    if not found or found[4].lower() not in units:
        return None
    if found[2] and not (found[3] or found[4]):  # 1.0 is no whole number as it is written; 1.5e3 and 1.5k are
        return None
    digits, fraction = found[1], found[2] or ""
    scaled = int(digits + fraction) * 10 ** int(found[3] or 0) * units[found[4].lower()]
    number, rest = divmod(scaled, 10 ** len(fraction))
    return None if rest else number


def counted(value: object, units: Mapping[str, int] = COUNTS) -> int | None:
    """The whole number that a value is: an int, a float without a fraction (3e11), or a text as `whole` reads it."""
    if isinstance(value, str):
        return whole(value, units)
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what is no integer may still be a whole number
    except TypeError:
        is_whole = getattr(value, "is_integer", None)
        return int(value) if callable(is_whole) and is_whole() else None  # type: ignore[call-overload]
