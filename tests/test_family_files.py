"""Every entry of every family's file is read by something, and everything that its slots can make is a table.

An entry that nothing reads says something about a family that does not hold; a slot's text that no configuration
chooses, or that does not parse when one does, would be found by a user first.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from learncost.engines import computed_inputs as positions
from learncost.ir.errors import InputError
from learncost.ir.value import IdentityKey
from learncost.layers.rewrite import REWRITINGS
from learncost.models.compose import plan
from learncost.models.configuration import Configuration, configure
from learncost.models.expression import FUNCTIONS, evaluate, names
from learncost.models.families import FAMILIES, FOLDER, Family
from learncost.models.model import Model, build
from learncost.models.modules import weights_named
from sampling import sampled

REQUIRED = {
    "hidden_size": 12,
    "num_experts_per_tok": 2,
    "num_attention_heads": 3,
    "intermediate_size": 5,
    "vocab_size": 7,
    "n_enc": 2,
    "n_dec": 2,
}
LAYERS = 4
WHOLE = {
    "gemma3n_text": {
        "num_hidden_layers": 15,
        "num_kv_shared_layers": 5,
        "intermediate_size": [*range(4, 12), *[4] * 7],
        "activation_sparsity_pattern": [0.5, 0.5, *[0.0] * 13],
    }
}
"""Keys of families that have to be said together."""
READ_ELSEWHERE = {
    "activation": "what the configuration and the formulas call the activation",
    "layer_norm_epsilon": "what the configuration calls its epsilon",
    "tie_word_embeddings": "whether the configuration is tied",
}
SLOT = re.compile(r"\{(\w+)\}")


def texts(family: Family) -> list[str]:
    """The texts of which a model is made: the table, the heads, and what stands in their slots."""
    heads = [family.heads[architecture.head] for architecture in family.architectures]
    all_texts = [family.table, *family.made.values(), *(text for head in heads for text in head.values())]
    slots_seen: set[str] = {"head"}
    for text in all_texts:  # grows on the way
        for slot in dict.fromkeys(SLOT.findall(text)):
            all_texts += () if slot in slots_seen else family.slots[slot].texts.values()
            slots_seen.add(slot)
    return all_texts


def arguments(value: object) -> list[str]:
    """The expressions in the argument of a rewriting."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in arguments(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in arguments(inner)]
    return [value[1:]] if isinstance(value, str) and value.startswith("=") else []


def choices(family: Family) -> list[str]:
    """The expressions that decide what a model's table is."""
    calls = called_in(family)
    whens = [rewriting.when for name, layer in family.layers.items() if name in calls for rewriting in layer.rewritings]
    chosen = [family.slots[name].choose for name in sorted(slots_in(family))]
    return list(dict.fromkeys(text for text in (*chosen, *whens) if text))


def expressions(family: Family) -> list[str]:
    """All expressions of a family."""
    calls = called_in(family)
    rewritings = [rewriting for name, layer in family.layers.items() if name in calls for rewriting in layer.rewritings]
    rules = [family.default, family.positions, family.limit, family.length, family.target_length, family.fixed]
    rules += [
        family.unread,
        family.module.get("buffers", ""),
        *family.axes.values(),
        *family.numbers.values(),
        *family.derived.values(),
        *family.nulls.values(),
        *choices(family),
    ]
    return [
        text for text in (*rules, *(text for rewriting in rewritings for text in arguments(rewriting.argument))) if text
    ]


def values_for(family: Family, name: str, text: str) -> list[dict[str, object]]:
    """What a configuration may say of a name in an expression: keys of a config.json."""
    if name == "tied":
        return [
            {},
            *({"tie_word_embeddings": choice} for choice in (True, False) if "tie_word_embeddings" in family.settings),
        ]
    if name == "positions":
        return [choice for inner in names(family.positions) for choice in values_for(family, inner, family.positions)]
    if name in ("head", "pooler"):
        return [
            {"architectures": [architecture.name]} for architecture in family.architectures if architecture.name
        ] or [{}]
    if name in family.sizes:
        return [{}, {name: 24}, {name: 3}]
    if name not in family.settings:
        return [{}]
    default = family.settings[name]
    if isinstance(default, bool):
        return [{name: True}, {name: False}]
    if isinstance(default, int | float):
        return [{}, {name: type(default)(0)}, {name: type(default)(1)}, {name: type(default)(2)}]
    ops = [op for ops in (slot.texts for slot in family.slots.values() if slot.choose == text) for op in ops]
    if isinstance(default, list):
        kinds = [[0], [0, 1] * (LAYERS // 2), [1] * LAYERS, *([op] * LAYERS for op in ops)]
        return [{name: []}, *({name: kind} for kind in kinds)]
    return [{}, *({name: op} for op in dict.fromkeys((*re.findall(r"'(\w+)'", text), *ops, "")))]


@dataclass
class Made:
    """What was built of a family: which texts were chosen, and the models."""

    chosen: set[tuple[str, object]] = field(default_factory=set)
    models: list[Model] = field(default_factory=list)


def configurations(family: Family) -> list[Configuration]:
    """The configurations that between them choose everything that can be chosen."""
    needed = {size: value for size, value in REQUIRED.items() if size in family.sizes and family.sizes[size] is None}
    common = needed | ({"num_hidden_layers": LAYERS} if "num_hidden_layers" in family.sizes else {})
    common |= WHOLE.get(family.name, {})
    keys_tried: list[dict[str, object]] = [
        {"architectures": [architecture.name]} for architecture in family.architectures if architecture.name
    ] or [{}]
    keys_tried += [{size: 5} for size in family.optional]
    for text in choices(family):
        ways = [values_for(family, name, text) for name in sorted(names(text))]
        keys_tried += [
            {key: value for entries_of in many for key, value in entries_of.items()}
            for many in itertools.product(*ways)
        ]
    configurations_found = []
    for keys in keys_tried:
        try:
            configurations_found.append(configure({"model_type": family.name, **common, **keys}))
        except InputError:
            continue  # such as sizes that do not divide each other
    return configurations_found


@cache
def made(name: str) -> Made:
    family, result = FAMILIES[name], Made()
    plans = set()
    for configuration in configurations(family):
        try:
            plan(configuration)
            positions.input_table(IdentityKey(configuration))
        except InputError:
            continue  # a choice that the file does not have, on purpose
        model = build(configuration, dropout=True, padding=True)
        for text in choices(family):
            names_read = names(text)
            iterations = range(configuration.sizes.get("num_hidden_layers", 1)) if "i" in names_read else (0,)
            for i in iterations:
                value = evaluate(text, {**configuration.values, "i": i})
                result.chosen.add((text, str(value).lower() if isinstance(value, bool) else str(value)))
                result.chosen.add((text, bool(value)))
        if (key := str(model.table)) not in plans:
            plans.add(key)
            result.models.append(model)
    assert result.models
    return result


FILES = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def read_file(file: str) -> dict[str, Any]:
    """A family's file as it is, without what it starts from."""
    return tomllib.loads((FOLDER / f"{file}.toml").read_text(encoding="utf-8"))


@cache
def heirs(file: str) -> tuple[str, ...]:
    """The families that are the file or start from it: an entry is there for one of them at least."""

    def line(name: str) -> Iterator[str]:
        yield name
        likes = read_file(name).get("like", [])
        for like in [likes] if isinstance(likes, str) else likes:
            yield from line(like)

    return tuple(name for name in FAMILIES if file in line(name))


def entries(file: str, *tables: str) -> set[str]:
    """The keys of a table in a family's file."""
    table_entries: Any = read_file(file)
    for table in tables:
        table_entries = table_entries.get(table, {})
    return {key for key in table_entries if not key.startswith("~")}


def slots_in(family: Family) -> set[str]:
    """The slots in a family's texts; the head's is not one of the file."""
    return {slot for text in texts(family) for slot in SLOT.findall(text)} - {"head"}


def read_in(family: Family) -> set[str]:
    """Sizes and settings that an expression or a repeat reads, or the code by its name."""
    counts = re.findall(r"repeat (\w+) ", "\n".join(texts(family)))
    lines = re.findall(r"\w+", "\n".join(texts(family)))  # what positions are made of is read by its name
    return {name for text in expressions(family) for name in names(text)} | {*counts, *lines} | READ_ELSEWHERE.keys()


def called_in(family: Family) -> set[str]:
    """Layers that a text calls, by their names or by a slot's text."""
    single = {text for text in texts(family) if text.isidentifier()}
    return single | {
        call for text in texts(family) for call in re.findall(r"= ?(\w+)\(|^(\w+)\(", text) for call in call
    }


def weights_of(name: str) -> set[str]:
    return {weight for model in made(name).models for weight in model.table.weights}


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("file", sampled(FILES, 3))
def test_every_text_of_a_slot_is_chosen_and_every_rewriting_is_made_and_not_made(file):
    for slot, own in read_file(file).get("slots", {}).items():
        for key in () if isinstance(own, str) else own.keys() - {"choose"}:
            if not key.startswith("~"):
                assert any((FAMILIES[heir].slots[slot].choose, key) in made(heir).chosen for heir in heirs(file)), key
    for layer, own in read_file(file).get("layers", {}).items():
        own = {} if isinstance(own, str) else own
        for when in [rewriting["when"] for rewriting in own.get("rewrite", ()) if "when" in rewriting]:
            for value in (True, False):
                assert any((when, value) in made(heir).chosen for heir in heirs(file)), (layer, when, value)


@pytest.mark.one_in(every=26)
@pytest.mark.parametrize("file", FILES)
def test_every_entry_is_read(file):
    families = [FAMILIES[name] for name in heirs(file)]
    assert families
    assert entries(file, "slots") <= set().union(*map(slots_in, families))
    assert entries(file, "sizes") | entries(file, "settings") <= set().union(*map(read_in, families))
    made_by = {name for family in families for name in family.makes}
    assert {name for names in entries(file, "made") for name in names.split()} <= made_by
    assert entries(file, "numbers") <= set().union(*map(read_in, families))
    assert entries(file, "layers") <= set().union(*map(called_in, families))
    assert entries(file, "heads") <= {architecture.head for family in families for architecture in family.architectures}
    nulls, nullable = entries(file, "nulls"), set(read_file(file).get("nullable", ()))
    assert nulls <= {size for family in families for size in family.sizes}
    assert nullable <= {setting for family in families for setting in family.settings}


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("file", sampled(FILES, 3, start=2))
def test_every_axis_input_and_module_is_in_a_table(file):
    models = [model for name in heirs(file) for model in made(name).models]
    assert entries(file, "axes") <= {axis for model in models for axis in model.rules}
    contents = read_file(file)
    names_expected = {
        *contents.get("inputs", ()),
        *(
            name_found
            for head in contents.get("heads", {}).values()
            if isinstance(head, dict)
            for name_found in head.get("inputs", "").split()
        ),
    }
    inputs = {name for model in models for name in model.table.inputs}
    assert {
        name_found
        for name_found in names_expected
        if not any(name == name_found or name.startswith(f"{name_found}_") for name in inputs)
    } == set()
    weights = set().union(*map(weights_of, heirs(file)))
    assert set(contents.get("shared", ())) | set(contents.get("frozen", ())) <= weights
    held_ = {
        weight: weights_named(weight, "", weights)
        for module in contents.get("modules", {}).values()
        for weight in module
    }
    assert {weight for weight, ours in held_.items() if not ours} == set()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_spelling_means_a_name_of_the_family(name):
    family = FAMILIES[name]
    targets = {target for target in family.spellings.values() if target}
    assert targets <= {*family.sizes, *family.settings, *family.dropout}


def test_every_rewriting_and_every_function_is_used_by_a_family():
    made_ = {
        rewriting.name
        for family in FAMILIES.values()
        for layer in family.layers.values()
        for rewriting in layer.rewritings
    }
    assert made_ == set(REWRITINGS)
    written = "\n".join(text for family in FAMILIES.values() for text in expressions(family))
    assert {name for name in FUNCTIONS if f"{name}(" in written} == set(FUNCTIONS)
