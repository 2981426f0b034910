"""Names of models in trainers' files: copies of known models, and the families of unknown ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from learncost.models.argument import Preset, preset, presets
from learncost.models.families import names as family_names


@cache
def _names() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


def copied(name: str) -> tuple[Preset | None, bool]:
    """Return the preset that a Hub id is a copy of by its name, and whether the copy is quantized.

    A copy has the name of a known repository, of any owner, with endings such as -Instruct and -GPTQ or without.
    """
    own = name.rstrip("/").rpartition("/")[2].lower()
    by_name = {hub.rpartition("/")[2].lower(): known for known in presets() for hub in known.hub}
    quantized = _names()["quantized"]
    for stored in ("", *_names()["stored"], *quantized):
        for tuned in ("", *_names()["tuned"]):
            if found := by_name.get(own.removesuffix(stored).removesuffix(tuned)):
                return found, stored in quantized
    return None, False


def family_of(name: str) -> tuple[str, bool]:
    """Return the model_type of an unknown name, if its beginning tells it, and whether the family is known."""
    own = name.rstrip("/").rpartition("/")[2].lower()
    found = [(beginning, family) for beginning, family in _names()["families"].items() if own.startswith(beginning)]
    family = max(found, key=lambda each: len(each[0]), default=("", ""))[1]
    return family, not {family, f"{family}_text"}.isdisjoint(family_names())


def named(name: str) -> Preset | None:
    """Return the preset of a Hub id, or of a folder whose last two names are one."""
    return preset(name) or preset("/".join(name.rstrip("/").split("/")[-2:]))
