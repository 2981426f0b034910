"""What is asked for a figure: flags of its question, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.ir.errors import InputError
from learncost.procedures.procedure import several
from learncost.reports.question import FLAGS, flags_of

DRAWN = ("along", "against", "engine")
"""Flags of figures alone, which not every kind has."""


def keywords_of(kind: str, question: Callable[..., Any], arguments: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """What is given, for a question to be asked with; `more` are flags that the figure reads itself.

    Raises `InputError` for a flag that the figure does not have.
    """
    names = {flag.name for flag in flags_of(question)} | {*more}
    for name in arguments:
        if name not in names and (name in FLAGS or name in DRAWN):
            raise InputError(f"a figure of {kind} has no --{FLAGS[name].typed or name if name in FLAGS else name}")
    return {name: value for name, value in arguments.items() if name not in more}


def procedures_of(arguments: Mapping[str, Any], usual: str = "bp") -> tuple[str, ...]:
    """The procedures that are asked for, one step each."""
    return several(arguments.get("procedures") or usual)
