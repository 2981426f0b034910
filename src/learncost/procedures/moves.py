"""The moves of a schedule: what the sweeps of procedures.toml may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from learncost.equation.errors import InputError

ELSEWHERE = "error elsewhere by LAYER"

MOVES: Mapping[str, str] = {
    "forward": "forward",
    "forward again": "recomputation",
    "forward in two streams": "forward",
    "forward again from outputs": "recomputation",
    "forward with error": "forward",
    "forward filling the cache": "forward",
    "forward reading the cache": "forward",
    "error": "",
    ELSEWHERE: "error_projection",
    "backward": "backward",
    "backward reading NAME for weights": "backward",
    "stopped at PLACE": "",
    "given SIGNAL at PLACE": "",
    "tangents along PLACE": "forward",
    "loss at blocks by HEAD": "",
    "groups of NUMBER": "",
    "forward at plus": "forward",
    "forward at minus": "forward",
    "times NUMBER": "",
    "update": "weight_update",
    "update of PART": "weight_update",
    "update of blocks by turns": "weight_update",
    "NAME follows weights": "",
    "projected to NUMBER": "",
    "update by differences": "weight_update",
    "update by tangents": "weight_update",
    "update by both sides": "weight_update",
}
"""What a schedule may say, in capitals what is named there, and the macro-operation that it is a pass of."""


@dataclass(frozen=True)
class Move:
    """A move as `MOVES` has it, with what is named in it."""

    form: str
    names: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The first that is named in it, or nothing."""
        return self.names[0] if self.names else ""


@cache
def move(text: str) -> Move:
    """The move that a text of a schedule says."""
    for form in MOVES:
        pattern = re.sub("[A-Z]+", r"(\\S+)", form.replace("NUMBER", "([1-9][0-9]*)"))
        if match := re.fullmatch(pattern, text.strip()):
            return Move(form, match.groups())
    raise InputError(f"no move is called {text.strip()!r}; there are: {', '.join(MOVES)}")
