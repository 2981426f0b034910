"""The moves of a schedule: what the sweeps of procedures.toml may say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from learncost.ir.errors import InputError

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
    "projected to NUMBER singular vectors": "",
    "update by differences": "weight_update",
    "update by tangents": "weight_update",
    "update by both sides": "weight_update",
}
"""What a schedule may say, in capitals what is named there, and the macro-operation that it is a pass of."""


_BACK = {"forward", "backward", "backward reading NAME for weights", "update"}
_FOLLOWED = "NAME follows weights"
_PROJECTED = ("projected to NUMBER", "projected to NUMBER singular vectors")
_CUT = {*_BACK, "forward again", "stopped at PLACE", "given SIGNAL at PLACE"}
_STREAMS = {"forward in two streams", "forward again from outputs", "backward", "update"}
_LOCAL = {*_BACK, "loss at blocks by HEAD", "groups of NUMBER"}

TOGETHER: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            *({*moves, last} for moves in (_CUT, _LOCAL) for last in (_FOLLOWED, *_PROJECTED)),
            {"forward", "forward again", "backward", "update of PART", "update of blocks by turns"},
            *({*_STREAMS, last} for last in _PROJECTED),
            {"forward", "tangents along PLACE", "update by tangents"},
            {"forward", "tangents along PLACE", "backward", "given SIGNAL at PLACE", "update"},
            {"forward at plus", "forward at minus", "times NUMBER", "update by both sides"},
        ),
    )
)
"""The moves that one schedule may have together: what none of these has would be passed over."""


NEEDS: Mapping[str, tuple[str, ...]] = {
    "groups of NUMBER": ("loss at blocks by HEAD",),
    "NAME follows weights": ("backward reading NAME for weights",),
    "tangents along PLACE": ("update by tangents", "given SIGNAL at PLACE"),
    "times NUMBER": ("forward at plus",),
    "forward again from outputs": ("forward in two streams",),
}
"""The moves that say nothing without another one, or one of some."""


def fault(forms: Collection[str]) -> str:
    """What is wrong with the moves of a schedule together; empty where nothing is."""
    if not any(together.issuperset(forms) for together in TOGETHER):
        pairs = combinations(dict.fromkeys(forms), 2)
        wrong = next((pair for pair in pairs if not any(each.issuperset(pair) for each in TOGETHER)), forms)
        return f"cannot have {' and '.join(wrong)}"
    lonely = next((form for form in forms if not set(NEEDS.get(form, forms)) & set(forms)), "")
    return f"has {lonely}, which needs {' or '.join(NEEDS[lonely])}" if lonely else ""


@dataclass(frozen=True)
class StepMove:
    """A move as `MOVES` has it, with what is named in it."""

    form: str
    names: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The first that is named in it, or nothing."""
        return self.names[0] if self.names else ""


@cache
def move(text: str) -> StepMove:
    """The move that a text of a schedule says."""
    for form in MOVES:
        pattern = re.sub("[A-Z]+", r"(\\S+)", form.replace("NUMBER", "([1-9][0-9]*)"))
        if match := re.fullmatch(pattern, text.strip()):
            return StepMove(form, match.groups())
    raise InputError(f"no move is called {text.strip()!r}; there are: {', '.join(MOVES)}")
