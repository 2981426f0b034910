"""The presets: published models by name, each with its source, in presets.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from learncost.models.files import parse_toml


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model: `values` has the keys of a config.json, `source` says where they are printed."""

    name: str
    title: str
    source: str
    values: Mapping[str, object]
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def family(self) -> str:
        """The model type, such as "gpt2"."""
        return str(self.values["model_type"])


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets in the order of presets.toml."""
    file = Path(__file__).with_name("presets.toml")
    tables = parse_toml(file.read_text(encoding="utf-8"), file.name)
    found = []
    for name, table in tables.items():
        assert isinstance(table, dict)
        aliases = tuple(table.pop("aliases", ()))
        found.append(Preset(name, table.pop("title"), table.pop("source"), table.pop("config"), aliases, **table))
    return tuple(found)


@cache
def preset_names() -> Mapping[str, Preset]:
    """Return every name and alias of a preset, with the preset."""
    return {name: preset for preset in presets() for name in (preset.name, *preset.aliases)}
