"""What is asked for a figure: flags of its question, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.equation.errors import InputError
from learncost.ledger.question import FLAGS, flags_of
from learncost.procedures.procedure import several

DRAWN = ("along", "against", "engine")
"""Flags of figures alone, which not every kind has."""


def taken(kind: str, question: Callable[..., Any], given: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """What is given, for a question to be asked with; `more` are flags that the figure reads itself.

    Raises `InputError` for a flag that the figure does not have.
    """
    known = {flag.name for flag in flags_of(question)} | {*more}
    for name in given:
        if name not in known and (name in FLAGS or name in DRAWN):
            raise InputError(f"a figure of {kind} has no --{FLAGS[name].typed or name if name in FLAGS else name}")
    return {name: value for name, value in given.items() if name not in more}


def procedures_of(given: Mapping[str, Any], usual: str = "bp") -> tuple[str, ...]:
    """The procedures that are asked for, one step each."""
    return several(given.get("procedures") or usual)
