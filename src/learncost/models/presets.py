"""The presets: published models by name, each with its source, in presets/MODEL_TYPE.json.

They are JSON, like the config.json files that they quote, because they are read at every start: a TOML file of this
size takes longer to read than the rest of the program.

A model whose family no file describes is a table, presets/tables/NAME.table, that was read from transformers' module of
the `config` in presets/tables/index.json; `python benchmarks/table_presets.py` writes them.
DiT's is typed from its paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("presets")
TABLES = FOLDER / "tables"


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model: `values` has the keys of a config.json, `source` says where they are printed.

    `table` is the file of the whole model as a table, of so many `parameters`; None where its family says how it is
    built.
    """

    name: str
    title: str
    source: str
    values: Mapping[str, object]
    aliases: tuple[str, ...] = ()
    note: str = ""
    hub: tuple[str, ...] = ()  # the names of repositories of the Hugging Face Hub whose config.json says the same
    table: Path | None = None
    parameters: int = 0
    usual: Mapping[str, object] = field(default_factory=dict)  # what its class says beside `values`

    @property
    def family(self) -> str:
        """The model type, such as "gpt2"."""
        return str(self.values["model_type"])


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets of families, family by family."""
    return tuple(preset for file in sorted(FOLDER.glob("*.json")) for preset in _of_file(file))


@cache
def table_presets() -> tuple[Preset, ...]:
    """Return all presets that are tables."""
    return tuple(_of_file(TABLES / "index.json"))


def _of_file(file: Path) -> Iterator[Preset]:
    for name, entries in json.loads(file.read_text(encoding="utf-8")).items():
        title, source, values = (entries.pop(key) for key in ("title", "source", "config"))
        aliases, hub = (tuple(entries.pop(key, ())) for key in ("aliases", "hub"))
        table = TABLES / f"{name}.table" if file.parent == TABLES else None
        yield Preset(name, title, source, values, aliases, hub=hub, table=table, **entries)


@cache
def preset_names() -> Mapping[str, Preset]:
    """Return every name and alias of a preset, with the preset."""
    every = (*presets(), *table_presets())
    return {name: preset for preset in every for name in (preset.name, *preset.aliases)}


@cache
def _by_hub() -> Mapping[str, Preset]:
    return {name.lower(): preset for preset in (*presets(), *table_presets()) for name in preset.hub}


def preset(name: str) -> Preset | None:
    """The preset of that name or alias, or of a repository's on the Hub (`openai-community/gpt2`), or None.

    Case does not matter.
    """
    name = name.lower()
    return preset_names().get(name) or _by_hub().get(name)


def preset_of(values: Mapping[str, object]) -> Preset | None:
    """The preset that is a table of the very model that the keys of a config.json describe, or None.

    A file may leave out what the model's class says by itself.
    """
    classes = values.get("id2label")
    said = {"num_labels": len(classes), **values} if isinstance(classes, Mapping) else values
    return next((each for each in table_presets() if _is_of(each, said)), None)


def _is_of(known: Preset, said: Mapping[str, object]) -> bool:
    if any(said.get(key) != value for key, value in known.values.items()):
        return False
    return _agrees(known.usual, said)


def _agrees(usual: Mapping[str, object], said: Mapping[str, object]) -> bool:
    """Whether nothing that is said differs from what a class says by itself."""
    for key, value in usual.items():
        other = said.get(key, value)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if not _agrees(value, other):
                return False
        elif other is not None and other != value:
            return False
    return True
