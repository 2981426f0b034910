"""What is committed: why a command line may be refused (refusals.toml), and what answers (answers.json)."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from learncost.models.presets import presets

from .design import FOLDER

ANSWERS = FOLDER / "answers.json"
ALL = "all"


@cache
def reasons() -> Mapping[str, tuple[re.Pattern[str], frozenset[str]]]:
    """Every reason by its name: what its line says, and the commands that may say it (none named: all)."""
    listed = tomllib.loads((FOLDER / "refusals.toml").read_text(encoding="utf-8"))["reason"]
    assert all(own["why"] for own in listed)
    return {own["name"]: (re.compile(own["says"]), frozenset(own.get("commands", ()))) for own in listed}


def reason(command: str, refusal: str) -> str:
    """The name of the reason for which a command refused; empty where no reason that is listed says so."""
    for name, (says, commands) in reasons().items():
        if (not commands or command in commands) and says.search(refusal):
            return name
    return ""


@cache
def _families() -> Mapping[str, str]:
    return {preset.name: preset.family for preset in presets()}


@cache
def _committed() -> Mapping[str, frozenset[str]]:
    return {row: frozenset(who) for row, who in json.loads(ANSWERS.read_text(encoding="utf-8")).items()}


def refused_as_listed(row: str, name: str) -> bool:
    """Whether a preset under its usual class is listed as one that refuses a row."""
    who = _committed().get(row, frozenset())
    return ALL in who or name in who or f"{_families()[name]}/*" in who


def write_answers(called: Iterable[tuple[str, str, bool]]) -> list[str]:
    """List anew which presets refuse which row, of (row, preset, refused); returns what answered and does no more."""
    refused, asked = defaultdict(set), defaultdict(set)
    for row, name, no in called:
        asked[row].add(name)
        if no:
            refused[row].add(name)
    before = _committed() if ANSWERS.exists() else {}
    lost = [
        f"{row}: {name}"
        for row, names in refused.items()
        for name in sorted(names)
        if before and not refused_as_listed(row, name)
    ]
    told = {row: _short(names, asked[row]) for row, names in sorted(refused.items())}
    text = ",\n".join(f"{json.dumps(row)}: {json.dumps(who)}" for row, who in told.items())
    ANSWERS.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    return lost


def _short(names: set[str], asked: set[str]) -> list[str]:
    """Who refuses, in short: all that were asked, whole families, and single presets."""
    if names == asked:
        return [ALL]
    whole = {f for f in {_families()[n] for n in names} if all(n in names for n in asked if _families()[n] == f)}
    return [*sorted(f"{f}/*" for f in whole), *sorted(n for n in names if _families()[n] not in whole)]
