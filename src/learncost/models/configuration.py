"""From the MODEL argument and size flags to a validated configuration.

MODEL is a preset, a path to a configuration file or to a folder with a config.json, `-` for standard input, or one of
the generic names encoder, decoder, encoder-decoder. Whatever is wrong is an InputError of one line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

from learncost.equation.errors import InputError
from learncost.models.families import FAMILIES, Architecture, Family, Head
from learncost.models.files import looks_like_path, read_path, read_stream
from learncost.models.presets import preset_names
from learncost.models.sizes import CANONICAL, check_size, spelled
from learncost.models.wording import nearest, printable, shown

GENERIC = ("encoder", "decoder", "encoder-decoder")

SETTINGS = {
    "model_type": "model_type",
    "architecture": "architecture",
    "architectures": "architecture",
    "activation": "activation",
    "activation_function": "activation",
    "hidden_act": "activation",
    "afn": "activation",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "layer_norm_eps": "layer_norm_epsilon",
    "tie_word_embeddings": "tie_word_embeddings",
    "pruned_heads": "pruned_heads",
}
"""The spellings of what is not a size, in all families."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A validated model configuration. Sizes are integers from 1 to 10^12 under their canonical names.

    `sizes` always has hidden_size, num_attention_heads, head_dim, intermediate_size, vocab_size, and num_hidden_layers
    or both n_enc and n_dec; max_position_embeddings where the model has positions of its own, type_vocab_size for bert.
    `counted` says in words which parameters and operations the architecture has. An encoder-decoder that is `tied` has
    one table for both embeddings and the head. `dropout` keeps the probabilities under the family's own names.
    """

    name: str
    family: str
    sizes: Mapping[str, int]
    activation: str
    layer_norm_epsilon: float
    tied: bool
    positions: Literal["learned", "sinusoidal", "none"]
    architecture: str
    head: Head
    pooler: bool
    counted: str
    dropout: Mapping[str, float]
    source: str


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given: under which spelling, and where; "" is a flag, whose numbers may be text."""

    spelling: str
    value: object
    where: str = ""

    @property
    def label(self) -> str:
        return f"{self.where}: {self.spelling}" if self.where else self.spelling

    @property
    def is_flag(self) -> bool:
        return not self.where


def configure(model: str, overrides: Mapping[str, object] | None = None, stdin: TextIO | None = None) -> Configuration:
    """Return the configuration that `model` names, with `overrides` in place of what it says.

    `overrides` holds sizes and settings (activation, layer_norm_epsilon, tie_word_embeddings, architecture, dropout
    probabilities) in any accepted spelling; numbers may be text, as flags are. What follows from an overridden size
    follows the override: gpt2 with another hidden_size has a feed-forward network of four times that.
    A known name goes before a file of that name: `./gpt2` is the folder. `stdin` stands in for sys.stdin.
    Raises InputError.
    """
    name, source, values = _find(model, stdin)
    where = "" if name in GENERIC else printable(source)
    flags = {spelling: _Given(spelling, value) for spelling, value in (overrides or {}).items()}
    family = _family(
        next((given for spelling, given in flags.items() if spelled(spelling) == "model_type"), None)
        or _Given("model_type", values.get("model_type"), where)
    )
    given = _collect(family, {spelling: _Given(spelling, value, where) for spelling, value in values.items()}, False)
    given.update(_collect(family, flags, True))

    architecture = _architecture(family, given)
    _refuse_unsupported(family, given)
    tied = _flag(given.get("tie_word_embeddings"), family.tied) and architecture.head != "none"
    sizes = _sizes(family, given, name)
    return Configuration(
        name=name,
        family=family.name,
        sizes=sizes,
        activation=_activation(family, given),
        layer_norm_epsilon=_number(given.get("layer_norm_epsilon"), family.layer_norm_epsilon),
        tied=tied,
        positions=family.positions if "max_position_embeddings" in sizes else "sinusoidal",
        architecture=architecture.name,
        head=architecture.head,
        pooler=architecture.pooler,
        counted=architecture.counted + ("; head and embedding are one matrix, counted once" if tied else ""),
        dropout={key: _number(given.get(key), default) for key, default in family.dropout.items()},
        source=source,
    )


def _find(model: str, stdin: TextIO | None) -> tuple[str, str, Mapping[str, object]]:
    """Return the name to show, the source and the raw values of a MODEL argument."""
    if hasattr(model, "__fspath__"):
        model = model.__fspath__()
    if not isinstance(model, str):
        raise InputError(f"a model is a preset's name, a path or a generic name, not {shown(model)}")
    if model == "-":
        return model, "standard input", read_stream(stdin or sys.stdin)
    known = model.lower()
    if known in GENERIC:
        return known, "generic", {"model_type": known}
    if preset := preset_names().get(known):
        return known, f"preset {preset.name}", preset.values
    names = (*preset_names(), *GENERIC)
    if looks_like_path(model):
        last = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
        return model, model, read_path(model, hint=nearest(last, names))
    raise InputError(
        f"unknown model {shown(model)}{nearest(model, names) or '; presets are ' + ', '.join(names)}"
        " (a file is given by its path, such as ./config.json)"
    )


def _family(given: _Given) -> Family:
    if given.value is None:
        raise InputError(f"{given.label} is missing; it must be one of {', '.join(FAMILIES)}")
    family = FAMILIES.get(given.value) if isinstance(given.value, str) else None
    if family is None:
        raise InputError(
            f"{given.label} {shown(given.value)} is unknown{nearest(given.value, FAMILIES)}"
            f"; known ones are {', '.join(FAMILIES)}"
        )
    return family


def _collect(family: Family, values: Mapping[str, _Given], strict: bool) -> dict[str, _Given]:
    """Return the values under canonical names; `strict` refuses those that the family does not have.

    Files are read leniently, because Hugging Face's hold dozens of keys that say nothing about the structure.
    """
    collected: dict[str, _Given] = {}
    for spelling, given in values.items():
        canonical = _canonical(family, spelling)
        if canonical is None:
            if strict:
                raise InputError(_no_such_key(family, spelling))
            continue
        earlier = collected.get(canonical)
        if earlier is not None and earlier.value != given.value:
            # Older GPT files repeat the positions as n_ctx, which transformers does not read.
            if "n_ctx" not in (earlier.spelling, spelling) or strict:
                raise InputError(
                    f"{given.label} = {shown(given.value)} contradicts {earlier.spelling} = {shown(earlier.value)}"
                )
            if spelling == "n_ctx":
                continue
        collected[canonical] = given
    return collected


def _canonical(family: Family, spelling: str) -> str | None:
    name = spelled(spelling)
    size = family.spellings.get(name) or CANONICAL.get(name)
    if size in family.sizes:
        return size
    return SETTINGS.get(name) or (name if name in family.dropout or name in family.switches else None)


def _no_such_key(family: Family, spelling: str) -> str:
    if spelled(spelling) in CANONICAL:
        return f"{family.name} has no {spelling}; its sizes are {', '.join(family.sizes)}"
    known = [*(name for name in CANONICAL if CANONICAL[name] in family.sizes), *SETTINGS, *family.dropout]
    return f"unknown size or setting {shown(spelling)}{nearest(spelling, known)}"


def _sizes(family: Family, given: Mapping[str, _Given], name: str) -> dict[str, int]:
    """Return the family's sizes in its order: given ones checked, then defaults, then what follows from them."""
    sizes = dict(family.defaults)
    for size in family.sizes:
        if size not in given:
            continue
        value = given[size].value
        if value is None and size in family.derived | family.optional:
            continue  # null says nothing, and these have no default that it could take away
        if isinstance(value, str) and not given[size].is_flag:
            raise InputError(f"{given[size].label} must be a number, not the text {shown(value)}")
        sizes[size] = check_size(given[size].label, value)
    missing = [size for size in family.sizes if size not in sizes and size not in family.derived | family.optional]
    if missing:
        flags = " ".join(f"--{size.replace('_', '-')} N" for size in missing)
        raise InputError(f"{printable(name)} needs {', '.join(missing)}: give {flags}")
    if family.feed_forward_factor and "intermediate_size" not in sizes:
        sizes["intermediate_size"] = family.feed_forward_factor * sizes["hidden_size"]
    if "head_dim" not in sizes:
        width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
        if width % heads:
            raise InputError(
                f"hidden_size {width} is not a multiple of num_attention_heads {heads}; change one, or give head_dim"
            )
        sizes["head_dim"] = width // heads
    return {size: sizes[size] for size in family.sizes if size in sizes}


def _architecture(family: Family, given: Mapping[str, _Given]) -> Architecture:
    """Return what is built: the class that `architectures` names first, or the family's default."""
    wanted = given.get("architecture")
    name = wanted.value if wanted else None
    if isinstance(name, list):
        name = name[0] if name else None
    if wanted is None or name is None:
        return family.architectures[0]
    for architecture in family.architectures:
        if architecture.name == name and name:
            return architecture
    known = [architecture.name for architecture in family.architectures if architecture.name]
    raise InputError(
        f"{wanted.label} {shown(name)} is not supported for {family.name}"
        + (f"; supported are {', '.join(known)}: give --architecture {known[0]} to count that" if known else "")
    )


def _refuse_unsupported(family: Family, given: Mapping[str, _Given]) -> None:
    for key, supported in family.switches.items():
        if key in given and given[key].value not in (supported, None):
            raise InputError(
                f"{given[key].label} = {shown(given[key].value)} is not supported, only {shown(supported)} is"
            )
    if "pruned_heads" in given and given["pruned_heads"].value:
        raise InputError(f"{given['pruned_heads'].label} is not supported: every block has all its heads")


def _activation(family: Family, given: Mapping[str, _Given]) -> str:
    wanted = given.get("activation") or _Given("activation", family.activation)
    word = family.activations.get(wanted.value) if isinstance(wanted.value, str) else None
    if word is None:
        raise InputError(
            f"{wanted.label} {shown(wanted.value)} is not supported{nearest(wanted.value, family.activations)}"
            f"; supported are {', '.join(family.activations)}"
        )
    return word


def _number(given: _Given | None, default: float) -> float:
    """Return an epsilon or a dropout probability: finite, at least 0, below 1."""
    if given is None:
        return default
    value = given.value
    if isinstance(value, str) and given.is_flag:
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value < 1):
        raise InputError(f"{given.label} must be a number from 0 to below 1, not {shown(given.value)}")
    return float(value)


def _flag(given: _Given | None, default: bool) -> bool:
    if given is None:
        return default
    value = {"true": True, "false": False}.get(given.value.lower()) if isinstance(given.value, str) else given.value
    if not isinstance(value, bool) or (isinstance(given.value, str) and not given.is_flag):
        raise InputError(f"{given.label} must be true or false, not {shown(given.value)}")
    return value
