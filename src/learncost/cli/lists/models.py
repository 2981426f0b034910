"""Lists of models, families and their sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from learncost.cli.lists.listed import Cell, Known, Listed, entries_of


@cache
def _models() -> Listed:
    from learncost.models.argument import GENERIC, presets, table_presets
    from learncost.models.configuration import configure
    from learncost.models.model import build

    entries: list[Known] = []
    for preset in presets():
        model = build(configure(preset.name))
        parameters = int(model.parameters.at(model.sizes))
        (entry,) = entries_of([preset], "name title aliases hub")
        entries.append({"name": entry.pop("name"), "parameters": parameters, **entry})
    entries += entries_of(table_presets(), "name parameters title aliases hub")
    for name in GENERIC:
        title = f"generic {name}: all sizes as flags"
        entries.append({"name": name, "parameters": None, "title": title, "aliases": [], "hub": []})
    columns: dict[str, Cell] = {
        "model": "{name}",
        "parameters": lambda entry: "-" if entry["parameters"] is None else f"{entry['parameters']:,}",
        "what it is": lambda entry: "; also ".join(
            part for part in (entry["title"], ", ".join(entry["aliases"])) if part
        ),
    }
    return Listed(entries, columns)


def _families() -> Listed:
    from learncost.models.families import FAMILIES

    entries: list[Known] = []
    for family in FAMILIES.values():
        classes = [architecture.name for architecture in family.architectures if architecture.name]
        entries.append({"name": family.name, "classes": classes, "counted": family.architectures[0].counted})
    columns: dict[str, Cell] = {
        "model type": "{name}",
        "the supported classes, the default first": lambda entry: (
            ", ".join(entry["classes"]) or f"{entry['counted']}, all sizes as flags"
        ),
    }
    return Listed(entries, columns)


SUPPORT = Path(__file__).with_name("support.json")
"""The results of benchmarks/support.py, which does what each family may support, with a checksum of its table."""

UNTRIED = "not tried yet (python benchmarks/support.py --write)"


def stored_support() -> dict[str, Any]:
    """Return the `table` checksum and `reasons` by field of each family, as stored."""
    from learncost.models.families import FAMILIES

    tried: dict[str, Any] = json.loads(SUPPORT.read_text(encoding="utf-8"))
    untried = {"table": "", "reasons": dict.fromkeys(next(iter(tried.values()))["reasons"], UNTRIED)}
    return {name: tried.get(name, untried) for name in FAMILIES}


def support_of_families() -> Listed:
    """List the commands that each family supports, with the reason where it does not."""
    entries: list[Known] = [{"name": name, **family_support} for name, family_support in stored_support().items()]
    groups = dict.fromkeys(field.partition(" ")[0] for field in entries[0]["reasons"])
    columns: dict[str, Cell] = {"model type": "{name}"}
    columns |= {group: partial(_done, group) for group in groups}
    numbers = {reason: str(place) for place, reason in enumerate(dict.fromkeys(chain(*map(_why, entries))), start=1)}

    def noted(entry: Known) -> Iterable[str]:
        return (f"{numbers[reason]}: {reason}." for reason in _why(entry))

    def cannot(entry: Known) -> str:
        return ", ".join(f"{' and '.join(names)} ({numbers[reason]})" for reason, names in _why(entry).items())

    return Listed(entries, {**columns, "what it does not support (reasons below)": cannot}, _noted=noted)


def _done(group: str, entry: Known) -> str:
    """Return how many fields of a group are supported, or "yes" for all."""
    reasons = [reason for field, reason in entry["reasons"].items() if field.partition(" ")[0] == group]
    return "yes" if not any(reasons) else f"{reasons.count('')} of {len(reasons)}"


def _why(entry: Known) -> dict[str, list[str]]:
    """Return each reason once, without the family's name, with its fields."""
    having: dict[str, list[str]] = {}
    for name, reason in entry["reasons"].items():
        if reason:
            having.setdefault(re.sub(rf"\b{re.escape(entry['name'])}\b", "it", reason), []).append(name)
    return having


def _sizes() -> Listed:
    from learncost.models.sizes import MODEL_SIZES, RUN_SIZES

    entries: list[Known] = [
        {
            "flag": f"--{size.name.replace('_', '-')}",
            "symbol": size.symbol,
            "meaning": size.meaning,
            "spellings": list(size.spellings),
        }
        for size in (*RUN_SIZES, *MODEL_SIZES)
    ]
    columns: dict[str, Cell] = {
        "flag": "{flag}",
        "symbol": "{symbol}",
        "what it is, and its other spellings": lambda entry: "; also ".join(
            part for part in (entry["meaning"], ", ".join(entry["spellings"])) if part
        ),
    }
    return Listed(entries, columns)


MODELS: Mapping[str, Callable[[], Listed]] = {"models": _models, "families": _families, "sizes": _sizes}
