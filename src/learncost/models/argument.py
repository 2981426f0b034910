"""Read a MODEL argument (preset, file, folder, standard input or mapping) into the keys of a configuration.

Presets are published models by name, each with its source, in presets/MODEL_TYPE.json.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TextIO

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError, nearest, printable, shown
from learncost.layers.layer import Layer, names_of_layers, shipped, shipped_layer
from learncost.models.families import names as family_names
from learncost.models.files import NOTATION, looks_like_path, read_layer, read_path, read_stream
from learncost.ops import plain

FOLDER = Path(__file__).with_name("presets")
TABLES = FOLDER / "tables"


@dataclass(frozen=True, slots=True)
class Preset:
    """A published model: `values` has the keys of a config.json, `source` is their publication.

    `table` is the file with the model's table and `parameters` their number, if the table is not built by a family.
    """

    name: str
    title: str
    source: str
    values: Mapping[str, object]
    aliases: tuple[str, ...] = ()
    note: str = ""
    hub: tuple[str, ...] = ()  # Hugging Face Hub repositories with the same config.json
    table: Path | None = None
    parameters: int = 0
    usual: Mapping[str, object] = field(default_factory=dict)  # defaults of its class that are not in `values`

    @property
    def family(self) -> str:
        """Return the model type, such as "gpt2"."""
        return str(self.values["model_type"])


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets of families, family by family."""
    return tuple(preset for file in _files().values() for preset in _of_file(file))


@cache
def table_presets() -> tuple[Preset, ...]:
    """Return all presets that are tables."""
    return _of_file(TABLES / "index.json")


@cache
def _files() -> dict[str, Path]:
    return {file.stem: file for file in sorted(FOLDER.glob("*.json"))}


@cache  # by file of shipped presets
def _of_file(file: Path) -> tuple[Preset, ...]:
    return tuple(_read(file))


def _read(file: Path) -> Iterator[Preset]:
    for name, entries in json.loads(file.read_text(encoding="utf-8")).items():
        title, source, values = (entries.pop(key) for key in ("title", "source", "config"))
        aliases, hub = (tuple(entries.pop(key, ())) for key in ("aliases", "hub"))
        table = TABLES / f"{name}.table" if file.parent == TABLES else None
        yield Preset(name, title, source, values, aliases, hub=hub, table=table, **entries)


@cache
def preset_names() -> Mapping[str, Preset]:
    """Map every name and alias of a preset to the preset."""
    every = (*presets(), *table_presets())
    return {name: preset for preset in every for name in (preset.name, *preset.aliases)}


@lru_cache(maxsize=256)
def preset(name: str) -> Preset | None:
    """Return the preset of a name, an alias or a Hub repository (`openai-community/gpt2`), or None.

    Case does not matter. Only the files with the name are parsed, for a fast start.
    """
    name = name.lower()
    quoted = json.dumps(name)
    ordered = sorted(_files().items(), key=lambda file: not name.startswith(file[0]))  # gpt2-medium is of gpt2.json
    every_file = (*(file for _, file in ordered), TABLES / "index.json")
    files = (file for file in every_file if quoted in _in_lower_case(file))
    every = (preset for file in files for preset in _of_file(file))
    return next((each for each in every if name in (each.name, *each.aliases, *map(str.lower, each.hub))), None)


@cache  # by file of shipped presets
def _in_lower_case(file: Path) -> str:
    return file.read_text(encoding="utf-8").lower()


def preset_of(values: Mapping[str, object]) -> Preset | None:
    """Return the preset table of the model that a config.json describes, or None.

    The file may leave out the defaults of the model's class.
    """
    classes = values.get("id2label")
    given = {"num_labels": len(classes), **values} if isinstance(classes, Mapping) else values
    return next((each for each in table_presets() if _is_of(each, given)), None)


def _is_of(known: Preset, given: Mapping[str, object]) -> bool:
    if any(given.get(key) != value for key, value in known.values.items()):
        return False
    return _agrees(known.usual, given)


def _agrees(usual: Mapping[str, object], given: Mapping[str, object]) -> bool:
    """Return whether every given value equals the default of a class."""
    for key, value in usual.items():
        other = given.get(key, value)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if not _agrees(value, other):
                return False
        elif other is not None and other != value:
            return False
    return True


GENERIC = ("encoder", "decoder", "encoder-decoder")

OF_A_FILE = ".py:"
"""The separator between file and name of a user's module, `FILE.py:NAME`."""


@dataclass(frozen=True)
class Argument:
    """A MODEL argument: its name, source and keys; `where` is the prefix of errors about the keys.

    `part` is the part of a larger model that the keys describe; `layer` is the model if it is written in the notation.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    where: str = ""
    part: str = ""
    layer: Layer | None = None


class NamedLayer(str):
    """The typed name of a model in the notation, with its layer, for screens and messages.

    read_by  the flags that decide how a module is read, as typed
    """

    layer: Layer
    read_by: tuple[str, ...]

    def __new__(cls, name: str, layer: Layer, read_by: tuple[str, ...] = ()) -> NamedLayer:
        named = super().__new__(cls, name)
        named.layer, named.read_by = layer, read_by
        return named


def layer_given(model: object) -> Layer | None:
    """Return the layer that a MODEL argument is, directly or by path. Raises `InputError`."""
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
    return read_layer(known.table) if known and known.table else None


def names_module(argument: str) -> bool:
    """Return whether a MODEL argument names a module in a user's file, `FILE.py:NAME`."""
    return OF_A_FILE in argument


def names_own_sizes(argument: str) -> bool:
    """Return whether a MODEL argument has size names that are known only after reading it."""
    known = preset(argument)
    is_table = argument.endswith(NOTATION) or (known is not None and known.table is not None)
    return is_table or names_module(argument) or described_elsewhere(argument) is not None


def described_elsewhere(model: str) -> Mapping[str, Any] | None:
    """Return the keys of a configuration file if its model type is unknown, otherwise None."""
    if not model.endswith(".json") and not (
        looks_like_path(model) and os.path.isfile(os.path.join(model, "config.json"))
    ):
        return None
    try:
        values = read_path(model)
    except InputError:  # the error is raised where the file is needed
        return None
    is_class = isinstance(values.get("_class_name"), str)
    model_type = _nested(Argument(model, model, values)).values.get("model_type")
    return values if is_class or (isinstance(model_type, str) and model_type not in family_names()) else None


def unknown_type(kind: object, more: Iterable[str] = ()) -> str:
    """Return the error for an unknown model type, which suggests the nearest known names and those in `more`, and
    explains how to read modules."""
    own = "a module of your own is given as FILE.py:NAME (learncost import --help), in Python by lc.from_module"
    return f"model_type {shown(kind)} is unknown{nearest(kind, (*family_names(), *more))}; {own}"


def find(model: object, stdin: TextIO | None = None) -> Argument:
    """Return the keys that a MODEL argument gives. A known name has precedence over a file, so `./gpt2` means the
    folder.

    Raises InputError.
    """
    if layer := layer_given(model):
        path = layer.name if isinstance(model, Layer) else str(model)
        if not isinstance(model, Layer) and (known := preset(path)):
            return Argument(path.lower(), f"preset {known.name}", {}, layer=layer)
        return Argument(path, f"the layer {layer.name}" if isinstance(model, Layer) else path, {}, layer=layer)
    if isinstance(model, Mapping):
        if (known := preset_of(model)) and known.table:
            return Argument(known.name, f"preset {known.name}", {}, layer=read_layer(known.table))
        return _nested(Argument(str(model.get("model_type", "model")), "a mapping", model, "the mapping"))
    if hasattr(model, "__fspath__"):
        model = model.__fspath__()
    if not isinstance(model, str):
        read = "; lc.from_module(module, inputs) reads a PyTorch module" if hasattr(model, "named_parameters") else ""
        raise InputError(f"a model is a preset's name, a path or a generic name, or a layer, not {shown(model)}{read}")
    if model == "-":
        return _nested(Argument(model, "standard input", read_stream(stdin or sys.stdin), "standard input"))
    name = model.lower()
    if name in GENERIC:
        return Argument(name, "generic", {"model_type": name})
    if known_preset := preset(name):
        source = f"preset {known_preset.name}"
        named = name if name in known_preset.aliases else known_preset.name
        return Argument(named, source, known_preset.values, source)
    if names_module(model):
        raise InputError(_no_module(model))
    everything = (*preset_names(), *GENERIC)
    if looks_like_path(model):
        last = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
        on_hub = model.count("/") == 1 and not model.startswith(".") and not model.endswith((".json", ".toml", "/"))
        hub = "; nothing is fetched: save the Hub model's config.json and give its path" if on_hub else ""
        values = read_path(model, hint=nearest(last, everything) + hub)
        if (known := preset_of(values)) and known.table:
            return Argument(model, f"preset {known.name}", {}, layer=read_layer(known.table))
        return _nested(Argument(model, model, values, printable(model)))
    raise InputError(
        f"unknown model {shown(model)}{nearest(model, everything) or '; learncost list models shows all'}"
        " (a file is given by its path, such as ./config.json)"
    )


def _no_module(model: str) -> str:
    """Return the error for `FILE.py:NAME` if it is malformed, or if files are not run here."""
    file, _, name = model.partition(OF_A_FILE)
    word = re.match(r"[^\W\d]\w*|", name)
    first = word[0] if word and word[0] else "build"
    if name != first:
        return (
            f"{shown(model)} is no module: write only the name after the colon, as in {printable(file)}.py:{first}, "
            "of what is called without arguments"
        )
    return (
        f"{shown(model)} is not run here: `learncost import {printable(model)} -o {name}.table` writes it as a table, "
        "which is a model everywhere; in Python lc.from_module reads a module"
    )


def layer_or_model(name: str | Layer) -> Layer | str:
    """Return the layer of a name or of a file in the notation, or the name if it is the name of a model.

    An imported module is already a layer. Raises `InputError` for an unknown name.
    """
    if isinstance(name, Layer):
        return name
    if layer_name := names_of_layers().get(plain(name)):
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
    """Return the `text_config` of a multimodal model with an unsupported type.

    The full model's architecture is ignored, but its setting of tied embeddings is used. Older files have the keys of
    the text model among those of the full model.
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
    tied = {key: argument.values[key] for key in ("tie_word_embeddings",) if key in argument.values}
    where = f"{argument.where}: text_config"
    values = {**usual, **tied, "architectures": None, **inner}
    return Argument(argument.name, f"{argument.source} (its text_config)", values, where, part)
