"""The presets: published models by name, each with its source, in presets/MODEL_TYPE.json.

They are JSON, like the config.json files that they quote, because they are read at every start: a TOML file of this
size takes longer to read than the rest of the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("presets")


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model: `values` has the keys of a config.json, `source` says where they are printed."""

    name: str
    title: str
    source: str
    values: Mapping[str, object]
    aliases: tuple[str, ...] = ()
    note: str = ""
    hub: tuple[str, ...] = ()  # the names of repositories of the Hugging Face Hub whose config.json says the same

    @property
    def family(self) -> str:
        """The model type, such as "gpt2"."""
        return str(self.values["model_type"])


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets, family by family."""
    all_presets = []
    for file in sorted(FOLDER.glob("*.json")):
        for name, table in json.loads(file.read_text(encoding="utf-8")).items():
            title, source, values = (table.pop(key) for key in ("title", "source", "config"))
            aliases, hub = (tuple(table.pop(key, ())) for key in ("aliases", "hub"))
            all_presets.append(Preset(name, title, source, values, aliases, hub=hub, **table))
    return tuple(all_presets)


@cache
def preset_names() -> Mapping[str, Preset]:
    """Return every name and alias of a preset, with the preset."""
    return {name: preset for preset in presets() for name in (preset.name, *preset.aliases)}


@cache
def _by_hub() -> Mapping[str, Preset]:
    return {name.lower(): preset for preset in presets() for name in preset.hub}


def preset(name: str) -> Preset | None:
    """The preset of that name or alias, or of a repository's on the Hub (`openai-community/gpt2`), or None.

    Case does not matter.
    """
    name = name.lower()
    return preset_names().get(name) or _by_hub().get(name)
