"""How a module of the user's own is read: what is typed about it, for every command that takes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learncost.ir.errors import InputError
from learncost.reports.question import question

UNKNOWN = ("refuse", "zero")
"""What becomes of an operation of which nobody knows the cost: a refusal, or a line without a number."""


@dataclass(frozen=True)
class How:
    """How a file is read.

    inputs   what the module reads, a line each; none: what the file says itself
    fold     equal blocks become a repeat
    as_run   the operations of one run are taken down, with the branches that it takes
    unknown  one of `UNKNOWN`
    cache    whether what was read before is taken, and what is read is kept
    """

    inputs: tuple[str, ...] = ()
    fold: bool = True
    as_run: bool = False
    unknown: str = UNKNOWN[0]
    cache: bool = True

    def __post_init__(self) -> None:
        if self.unknown not in UNKNOWN:
            raise InputError(f"--unknown is {' or '.join(UNKNOWN)}, not {self.unknown!r}")


@question()
def reading(
    *,
    input: Sequence[str] | str | None = None,
    as_run: bool = False,
    unknown: str = "refuse",
    no_fold: bool = False,
    no_cache: bool = False,
) -> How:
    """How a module is read."""
    inputs = (input,) if isinstance(input, str) else tuple(input or ())
    return How(inputs, not no_fold, as_run, unknown, not no_cache)
