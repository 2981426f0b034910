"""What is committed: why a command line may be refused (refusals.toml), and what answers (answers.json)."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from learncost.models.argument import presets

from .design import FOLDER, lines, subjects

ANSWERS = FOLDER / "answers.json"
ALL = "all"


@cache
def reasons() -> Mapping[str, tuple[re.Pattern[str], frozenset[str]]]:
    """Every reason by its name: what its line says, and the commands that may say it (none named: all)."""
    listed = tomllib.loads((FOLDER / "refusals.toml").read_text(encoding="utf-8"))["reason"]
    assert all(entry["why"] for entry in listed)
    return {entry["name"]: (re.compile(entry["says"]), frozenset(entry.get("commands", ()))) for entry in listed}


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
    return {row: frozenset(load) for row, load in json.loads(ANSWERS.read_text(encoding="utf-8")).items()}


def forget() -> None:
    """Read what is listed again."""
    _committed.cache_clear()


def refused_as_listed(row: str, name: str) -> bool:
    """Whether a preset under its usual class is listed as one that refuses a row."""
    return _among(name, _committed().get(row, frozenset()))


def _among(name: str, who: Iterable[str]) -> bool:
    return any(subject in (ALL, name, f"{_families()[name]}/*") for subject in who)


def write_answers(called: Iterable[tuple[str, str, bool]]) -> list[str]:
    """List anew which presets refuse which row, of (row, preset, refused); what was not called stays as it is listed.

    Returns what answered before and does no more.
    """
    now = {(row, name): refused for row, name, refused in called}
    dealt: dict[str, list[str]] = defaultdict(list)
    for subject in subjects():
        if subject.usual:
            for row, _ in lines(subject):
                dealt[row].append(subject.name)
    answers = {}
    for row, names in sorted(dealt.items()):
        refused = {name for name in names if now.get((row, name), refused_as_listed(row, name))}
        if refused:
            answers[row] = _short(refused, names)
    text = ",\n".join(f"{json.dumps(row)}: {json.dumps(subjects)}" for row, subjects in answers.items())
    lost = [f"{row}: {name}" for (row, name), refused in now.items() if refused and not refused_as_listed(row, name)]
    ANSWERS.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    return lost


def _short(names: set[str], asked: Sequence[str]) -> list[str]:
    """Who refuses, in short: all that were asked, whole families, and single presets."""
    if names == set(asked):
        return [ALL]
    whole_families = {
        f for f in {_families()[n] for n in names} if all(n in names for n in asked if _families()[n] == f)
    }
    return [
        *sorted(f"{f}/*" for f in whole_families),
        *sorted(n for n in names if _families()[n] not in whole_families),
    ]
