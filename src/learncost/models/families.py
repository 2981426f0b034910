"""The model families of configurations: one data file each, `families/MODEL_TYPE.toml`.

A family has a table with slots, the layers that the table calls with their rewritings, sizes and settings with their
defaults, and the classes that can be built from them. A file with `like = "llama"` extends another family; names with a
leading underscore are only bases. families/README.md describes each key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass, field
from learncost.layers.layer import Layer

FOLDER = Path(__file__).with_name("families")

_ORDER = (
    "n_enc",
    "n_dec",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_tanh",
    # The four names are one function: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu_fast rounds sqrt(2/pi) to
    # ten digits.
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Hugging Face's names of activations (transformers.activations.ACT2CLS) and the ops of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of a family: its name in transformers ("" for a generic class), its head, its pooler.

    `head` names the lines in `heads` that follow the last block, `counted` describes the counted parts, and `also` has
    older names of the class.
    """

    name: str
    head: str
    counted: str
    pooler: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateSlot:
    """A slot `{name}` in the table's text: the value of the expression `choose` is the name of one of the texts.

    A constant slot has no expression, and the name of its text is "".
    """

    choose: str
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rewriting of a layer with its argument; `when` is an expression of its condition, "" for always."""

    name: str
    argument: Any
    when: str = ""


DEFAULT_LENGTH = 4096
"""The longest default length of a sequence.

Llama 2, DeepSeek-V2 and V3, Qwen2.5 and Phi-4 are pretrained at 4,096 tokens, and a last, short stage extends the
context (their technical reports).
"""


@dataclass(frozen=True, slots=True)
class BaseLayer:
    """A layer that the table calls: the shipped layer and its rewritings in order."""

    base: str
    rewritings: tuple[Rewriting, ...] = ()
    dropped: tuple[str, ...] = ()  # the values that dropout masks
    padded: bool = False  # whether attention masks padded keys


@dataclass(frozen=True, slots=True)
class Family:
    """A model type. Sizes without a default are required, except optional and derived ones.

    `default` is an expression for the number of the default architecture; the first one without it. `refused` has keys
    that change the mathematics, each with the only supported value. `heads` has the lines and outputs of each head.
    `limit` is an expression for the longest sequence (0 for no limit), `length` and `target_length` for the context (0
    if a run must state its length), `batch` for the default batch size, `fixed` for the only length that the model
    reads. `made` has the lines that compute inputs from positions and settings, `numbers` the expressions of other
    numbers that these lines read. `frozen` are weights that are stored and counted, but never trained; `projected` are
    inputs to which PEPITA adds the error through a fixed random matrix, if there are no one-hot tokens; `output_layers`
    are excluded from all-linear; `sided` are layers that belong to the encoder or decoder, but are outside of blocks;
    `start` is the first token that the decoder of an encoder-decoder reads, "" for the end-of-document token; `module`
    describes how transformers' code differs from the usual (`program.autograd.module.Module`); `unread` is an
    expression for the number of stored and counted parameters that no line reads. `layer` is the table of a model that
    is a layer in the notation.
    """

    name: str
    source: str
    table: str
    blocks: tuple[str, ...]
    inputs: tuple[str, ...]
    shared: tuple[str, ...]
    architectures: tuple[Architecture, ...]
    sizes: Mapping[str, int | str | None]
    settings: Mapping[str, Any]
    heads: Mapping[str, Mapping[str, str]]
    layers: Mapping[str, BaseLayer]
    default: str = ""
    optional: frozenset[str] = frozenset()
    nullable: frozenset[str] = frozenset()
    nulls: Mapping[str, str] = field(default_factory=dict)  # expressions of sizes given as null
    pairs: Mapping[str, str] = field(default_factory=dict)  # sizes that may be lists of two, with the second's name
    per_layer: Mapping[str, str] = field(default_factory=dict)  # sizes that may be lists, with the setting of the list
    spellings: Mapping[str, str] = field(default_factory=dict)  # only for this family
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    dropout: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, object] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, TemplateSlot] = field(default_factory=dict)
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    module: Mapping[str, Any] = field(default_factory=dict)
    positions: str = "none"
    limit: str = ""
    length: str = "max_position_embeddings"
    fixed: str = ""
    made: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    output_layers: tuple[str, ...] = ()
    sided: tuple[str, ...] = ()
    unread: str = ""
    target_length: str = ""
    start: str = ""
    batch: str = "1"
    layer: Layer | None = None

    @property
    def two_sided(self) -> bool:
        """Return whether there is an encoder and a decoder."""
        return len(self.blocks) > 1

    @property
    def usual_length(self) -> str:
        """Return the expression for the default number of tokens of a sequence."""
        return self._usual(self.length)

    @property
    def usual_target_length(self) -> str:
        """Return the expression for the decoder's default number of tokens in an encoder-decoder; "" if it is the
        encoder's."""
        return self._usual(self.target_length) if self.target_length else ""

    def _usual(self, context: str) -> str:
        """Return an expression for the shorter of a context and `DEFAULT_LENGTH`, or the length that a layer states."""
        return context if self.layer is not None else f"min({context}, {DEFAULT_LENGTH})"

    @property
    def makes(self) -> frozenset[str]:
        """Return the inputs of the table that the lines in `made` compute."""
        return frozenset(name for names in self.made for name in names.split())

    @property
    def taken_by_all(self) -> str:
        """Return the first class whose loss every procedure supports (over the vocabulary, or with projected inputs);
        or ""."""
        lines = {
            architecture.name: self.heads[architecture.head].get("lines", "") for architecture in self.architectures
        }
        losses = {name: text for name, text in lines.items() if text.count("loss(") == 1}
        return next((name for name, text in losses.items() if self.projected or " head(" in text), "")

    @property
    def derived(self) -> Mapping[str, str]:
        """Return the sizes that are derived from others if they are absent or null, each with its expression."""
        return {name: value for name, value in self.sizes.items() if isinstance(value, str)}


def names() -> tuple[str, ...]:
    """Return every supported model type."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml") if not file.stem.startswith("_")))


@cache  # by shipped file
def family(name: str) -> Family:
    """Return the family of a model type. Raises KeyError for an unknown one."""
    if name.startswith("_") or not name.replace("-", "_").isidentifier() or not (FOLDER / f"{name}.toml").is_file():
        raise KeyError(name)
    return _family(name, {**_read(name)})


TABLE = "table"
"""The family name of a configuration whose model is a layer."""


def instead(name: str) -> str:
    """Return the advice in an error about a class without a loss: the class of the family that has one.

    For a table or a module that is the model, the advice is how to add a loss.
    """
    if name == TABLE:
        return "; let the table, or the module's forward, take the targets and return the loss"
    other = family(name).taken_by_all if name in names() else ""
    return f"; --architecture {other} has one" if other else ""


@cache  # by shipped file
def _read(name: str) -> Mapping[str, Any]:
    """Return the content of a family's file, merged over its bases; later bases override earlier ones."""
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    likes = table.pop("like", [])
    base: dict[str, Any] = {}
    for like in [likes] if isinstance(likes, str) else likes:
        base = _over(base, _read(like))
    return _over(base, table)


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table in which nested tables are merged by key and all other values are replaced; `~key` removes a key
    of the base."""
    merged = dict(base)
    for key, value in changes.items():
        if key.startswith("~"):
            merged.pop(key[1:])
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _over(merged[key], value)
        else:
            merged[key] = value
    return merged


def _family(name: str, table: dict[str, Any]) -> Family:
    prefix = table.pop("prefix", "")
    chosen: dict[str, Any] = {
        "architectures": tuple(
            Architecture(prefix + class_name, **{**values, "also": tuple(values.get("also", ()))})
            for class_name, values in table.pop("architectures").items()
        ),
        "layers": {layer_name: _layer(layer_name, values) for layer_name, values in table.pop("layers").items()},
        "slots": {slot_name: _slot(values) for slot_name, values in table.pop("slots", {}).items()},
        "modules": {module_name: tuple(weights) for module_name, weights in table.pop("modules", {}).items()},
        "activations": {**ACTIVATIONS, **table.pop("activations", {})},
    }
    sizes = {**dict.fromkeys((*table.pop("required", ()), *table.get("optional", ()))), **table.pop("sizes")}
    chosen["sizes"] = {size: sizes[size] for size in sorted(sizes, key=_place)}
    for key in ("blocks", "inputs", "shared", "frozen", "projected", "output_layers", "sided"):
        chosen[key] = tuple(table.pop(key, ()))
    for key in ("optional", "nullable"):
        chosen[key] = frozenset(table.pop(key, ()))
    heads = {
        head_name: {key: _text(text) for key, text in head.items()} for head_name, head in table.pop("heads").items()
    }
    return Family(name=name, settings=table.pop("settings", {}), heads=heads, **chosen, **table)


def _place(size: str) -> int:
    """Return the sort position of a size; sizes with a usual order come first."""
    return _ORDER.index(size) if size in _ORDER else len(_ORDER)


def _layer(name: str, values: Mapping[str, Any]) -> BaseLayer:
    rewritings = []
    for rewriting in values.get("rewrite", ()):
        rewriting = dict(rewriting)
        when = rewriting.pop("when", "")
        ((kind, argument),) = rewriting.items()
        rewritings.append(Rewriting(kind, argument, when))
    dropped = tuple(values.get("dropped", ()))
    return BaseLayer(values.get("base", name), tuple(rewritings), dropped, values.get("padded", False))


def _slot(values: Mapping[str, str] | str) -> TemplateSlot:
    if isinstance(values, str):
        return TemplateSlot("", {"": _text(values)})
    return TemplateSlot(values["choose"], {key: _text(text) for key, text in values.items() if key != "choose"})


def _text(text: str) -> str:
    """Return several lines without their common indentation; a single line is unchanged."""
    return cleandoc(text) if "\n" in text else text


class _Families(Mapping[str, Family]):
    """All families by name; a file is read on first use."""

    def __getitem__(self, name: str) -> Family:
        return family(name)

    def __iter__(self) -> Iterator[str]:
        return iter(names())

    def __len__(self) -> int:
        return len(names())


FAMILIES: Mapping[str, Family] = _Families()
