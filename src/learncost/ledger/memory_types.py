"""What an element takes by its role and data type: data with sources; and a number of bytes as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learncost.equation.errors import InputError, named_one
from learncost.ledger.sheet import size_of
from learncost.models.numbers import BYTES, counted
from learncost.models.wording import shown


@dataclass(frozen=True)
class Format:
    """Bytes of an element: of weights, their gradients, the values of the passes, and a second copy of the weights.

    state   of an element that an optimizer remembers
    master  of the copy that the optimizer updates; 0 where it updates the weights themselves
    scores  of what log-softmax and its gradient read and make, which programs widen
    """

    name: str
    weight: int
    gradient: int
    value: int
    state: int
    master: int
    scores: int
    source: str


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("fp32", 4, 4, 4, 4, 0, 4, "one type for all"),
        Format("fp64", 8, 8, 8, 8, 0, 8, "one type for all"),
        Format("bf16", 2, 2, 2, 4, 4, 4, "Micikevicius et al. 2018, Mixed precision training: fp32 master weights"),
        Format("fp16", 2, 2, 2, 4, 4, 4, "Micikevicius et al. 2018, Mixed precision training: fp32 master weights"),
        Format("fp8", 1, 1, 1, 4, 4, 4, "Micikevicius et al. 2022, FP8 formats for deep learning; fp32 master weights"),
        Format("int8", 1, 1, 1, 1, 0, 1, "Lin et al. 2022, On-device training under 256KB memory: everything in int8"),
    )
}

INDEX = 4
"""Bytes of a token's number, whatever the type of the rest: int32."""


def format_of(name: str) -> Format:
    """A data type by its name; an unknown one is refused with those that exist."""
    return named_one("dtype", name, FORMATS)


def bytes_of(name: str, text: object) -> int:
    """A number of bytes as it is written: 8G, 8GB, 24GiB, 16 GB, 1e9. Raises `InputError`."""
    number = counted(text.strip() if isinstance(text, str) else text, BYTES) or 0
    if not 1 <= number < 10**18:
        raise InputError(f"{name} must be bytes such as 8GB, 256KiB or 1e9, not {shown(text)}")
    return number


def said_bytes(count: int) -> str:
    """A number of bytes in decimal units, and beside them in binary ones where it is round in these alone."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count % (size // 2**6) == 0 and count >= size and count % 10**3:
            return f"{size_of(count)} ({count / size:g} {unit})"
    return size_of(count)
