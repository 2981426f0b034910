"""From a MODEL argument to the raw keys of a configuration: a preset, a file, a folder, standard input, a mapping.

Presets are published models by name, each with its source, in presets/MODEL_TYPE.json.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from learncost.ir.errors import InputError, nearest, printable, shown
from learncost.layers.layer import Layer, shipped, shipped_layer, usual_names
from learncost.models.families import names as family_names
from learncost.models.files import NOTATION, looks_like_path, read_layer, read_path, read_stream
from learncost.ops import plain

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


GENERIC = ("encoder", "decoder", "encoder-decoder")

OF_A_FILE = ".py:"
"""What stands between the file and the name of a module of a user's own, `FILE.py:NAME`."""


@dataclass(frozen=True)
class Argument:
    """A MODEL argument: the name to show, where it comes from, and its keys; `where` stands before them in errors.

    `part` says which part of a larger model the keys are of; `layer` is the model where it is a layer in the notation.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    where: str = ""
    part: str = ""
    layer: Layer | None = None


class NamedLayer(str):
    """What was typed for a model that is a layer, with the layer: for what shows and quotes names of models.

    read_by  of a module, the flags that say how it is read, as they are typed
    """

    layer: Layer
    read_by: tuple[str, ...]

    def __new__(cls, name: str, layer: Layer, read_by: tuple[str, ...] = ()) -> NamedLayer:
        named = super().__new__(cls, name)
        named.layer, named.read_by = layer, read_by
        return named


def layer_given(model: object) -> Layer | None:
    """The layer in the notation that a MODEL argument is, itself or by its path. Raises `InputError`."""
    if isinstance(model, NamedLayer):
        return model.layer
    if isinstance(model, Layer):
        return model
    path = model.__fspath__() if hasattr(model, "__fspath__") else model
    if not isinstance(path, str):
        return None
    if path.endswith(NOTATION):
        return read_layer(Path(path))
    known = preset(path)
    return _read_once(known.table) if known and known.table else None


@cache
def _read_once(table: Path) -> Layer:
    return read_layer(table)


def names_module(argument: str) -> bool:
    """Whether a MODEL argument is written as a module of a user's own file is, `FILE.py:NAME`."""
    return OF_A_FILE in argument


def names_own_sizes(argument: str) -> bool:
    """Whether a MODEL argument has sizes of its own names, which are known once it is read."""
    known = preset(argument)
    is_table = argument.endswith(NOTATION) or (known is not None and known.table is not None)
    return is_table or names_module(argument) or described_elsewhere(argument) is not None


def described_elsewhere(model: str) -> Mapping[str, Any] | None:
    """The keys of a configuration file whose model type no family here has, but another package may; None otherwise."""
    if not model.endswith(".json") and not (
        looks_like_path(model) and os.path.isfile(os.path.join(model, "config.json"))
    ):
        return None
    try:
        values = read_path(model)
    except InputError:  # which is said where the file is needed
        return None
    is_class = isinstance(values.get("_class_name"), str)
    model_type = _nested(Argument(model, model, values)).values.get("model_type")
    return values if is_class or (isinstance(model_type, str) and model_type not in family_names()) else None


def unknown_type(kind: object, more: Iterable[str] = ()) -> str:
    """What is said of an unknown model type: the nearest names, here and among `more`, and how own modules are read."""
    own = "a module of your own is given as FILE.py:NAME (learncost import --help), in Python by lc.from_module"
    return f"model_type {shown(kind)} is unknown{nearest(kind, (*family_names(), *more))}; {own}"


def find(model: object, stdin: TextIO | None = None) -> Argument:
    """What a MODEL argument names. A known name goes before a file of that name: `./gpt2` is the folder.

    Raises InputError.
    """
    if layer := layer_given(model):
        path = layer.name if isinstance(model, Layer) else str(model)
        if not isinstance(model, Layer) and (known := preset(path)):
            return Argument(path.lower(), f"preset {known.name}", {}, layer=layer)
        return Argument(path, f"the layer {layer.name}" if isinstance(model, Layer) else path, {}, layer=layer)
    if isinstance(model, Mapping):
        if (known := preset_of(model)) and known.table:
            return Argument(known.name, f"preset {known.name}", {}, layer=_read_once(known.table))
        return _nested(Argument(str(model.get("model_type", "model")), "a mapping", model, "the mapping"))
    if hasattr(model, "__fspath__"):
        model = model.__fspath__()
    if not isinstance(model, str):
        read = "; lc.from_module(module, inputs) makes one of it" if hasattr(model, "named_parameters") else ""
        raise InputError(f"a model is a preset's name, a path or a generic name, or a layer, not {shown(model)}{read}")
    if model == "-":
        return _nested(Argument(model, "standard input", read_stream(stdin or sys.stdin), "standard input"))
    name = model.lower()
    if name in GENERIC:
        return Argument(name, "generic", {"model_type": name})
    if known_preset := preset(name):
        source = f"preset {known_preset.name}"
        return Argument(known_preset.name if name not in preset_names() else name, source, known_preset.values, source)
    if names_module(model):
        raise InputError(_no_module(model))
    everything = (*preset_names(), *GENERIC)
    if looks_like_path(model):
        last = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
        hub = "; nothing is fetched: save the Hub model's config.json and give its path" if _is_hub_name(model) else ""
        values = read_path(model, hint=nearest(last, everything) + hub)
        if (known := preset_of(values)) and known.table:
            return Argument(model, f"preset {known.name}", {}, layer=_read_once(known.table))
        return _nested(Argument(model, model, values, printable(model)))
    raise InputError(
        f"unknown model {shown(model)}{nearest(model, everything) or '; learncost list models shows all'}"
        " (a file is given by its path, such as ./config.json)"
    )


def _no_module(model: str) -> str:
    """What is said of `FILE.py:NAME` where no file is run, or of what is not written so."""
    file, _, name = model.partition(OF_A_FILE)
    word = re.match(r"[^\W\d]\w*|", name)
    first = word[0] if word and word[0] else "build"
    if name != first:
        return (
            f"{shown(model)} is no module: behind the colon stands the name alone, as in {printable(file)}.py:{first}, "
            "of what is called without arguments"
        )
    return (
        f"{shown(model)} is not run here: `learncost import {printable(model)} -o {name}.table` writes it as a table, "
        "which is a model everywhere; in Python lc.from_module reads a module"
    )


def _is_hub_name(model: str) -> bool:
    """Whether it is written as the Hugging Face Hub names models: an organization and a name, no file's ending."""
    return model.count("/") == 1 and not model.startswith(".") and not model.endswith((".json", ".toml", "/"))


def layer_or_model(name: str | Layer) -> Layer | str:
    """The layer of that name or in that file of the notation, or the name again where it is a model's.

    A module that was read is a layer already. Raises `InputError` where it is neither's.
    """
    if isinstance(name, Layer):
        return name
    if layer_name := usual_names().get(plain(name)):
        return shipped_layer(layer_name)
    if name.endswith(NOTATION):
        return read_layer(Path(name))
    if name == "-" or name.lower() in GENERIC or preset(name) or looks_like_path(name):
        return name
    hint = nearest(name, (*shipped(), *preset_names(), *GENERIC))
    raise InputError(
        f"no layer or model is called {shown(name)}{hint or '; `learncost list layers` and `list models` show them'}"
    )


def _nested(argument: Argument) -> Argument:
    """The `text_config` of a model of several modalities, whose own type is not one that can be counted.

    A class that is named beside it is that of the whole and says nothing about the text model; whether head and
    embedding are one may stand beside it. Older files have the keys of the text model among those of the whole.
    """
    model_type = argument.values.get("model_type")
    text_type = f"{model_type}_text"
    inner = argument.values.get("text_config")
    if model_type in family_names() or not (isinstance(inner, Mapping) or text_type in family_names()):
        return argument
    usual = {"model_type": text_type} if text_type in family_names() else {}
    part = f"the text model of {shown(model_type)} alone"
    if not isinstance(inner, Mapping):
        return replace(argument, values={**argument.values, "architectures": None, **usual}, part=part)
    beside = {key: argument.values[key] for key in ("tie_word_embeddings",) if key in argument.values}
    where = f"{argument.where}: text_config"
    values = {**usual, **beside, "architectures": None, **inner}
    return Argument(argument.name, f"{argument.source} (its text_config)", values, where, part)
