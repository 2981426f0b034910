"""What a request asks for, as the arguments of a question: names of what is known, and data, never a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from learncost.devices.cluster import clusters, known_cluster
from learncost.devices.device import devices, known_device
from learncost.devices.rates import HERE
from learncost.ir.errors import InputError, named_one, nearest, shown
from learncost.ir.stated import size_names
from learncost.layers.layer import layer
from learncost.models.argument import GENERIC, preset, preset_names
from learncost.models.configuration import configure, family_of
from learncost.models.expression import evaluate
from learncost.models.files import parse_json
from learncost.procedures.procedure import INFERENCE, LEARNING, several
from learncost.viz.data.sizes import LETTERS

LONGEST = 2_000
"""Characters that a value may have."""

MOST = 100
"""Values that a request may have."""

NAMES_PROCEDURES = frozenset(("procedure", "procedures", "side_by_side"))
"""What has names of procedures, several with commas between."""

CONFIG = "config.json"
"""What a configuration is called that came with a request."""

_RUN = {"batch_size": "1", "seq_len": "128"}
"""What is looked at first where a table leaves these sizes open, or a model has no length."""


def arguments(pairs: Iterable[tuple[str, str]], config: str = "") -> dict[str, Any]:
    """The arguments of `document`, and of other questions that take the same, of the pairs of an address.

    pairs   names as flags have them, with - or _ between words, and their values as texts
    config  the text of a config.json, or of a table in the notation, which stands in for the model
    Raises `InputError` for a value that is given twice, and where a model or device is none that is known by name.
    """
    keywords: dict[str, Any] = {}
    is_table = "->" in config and not config.lstrip().startswith("{")
    for number, (key, value) in enumerate(pairs):
        name = key.replace("-", "_")
        name = name if is_table and len(name) == 1 else name.lower()  # letters of a table are as they are
        if number >= MOST or len(key) > LONGEST or len(value) > LONGEST:
            raise InputError(f"at most {MOST} values of at most {LONGEST:,} characters are taken")
        if name in keywords:
            raise InputError(f"{name} is given twice")
        if value:
            keywords[name] = value
    if "on" in keywords:
        keywords["on"] = device_name(keywords["on"])
    for name in NAMES_PROCEDURES & keywords.keys():
        keywords[name] = ",".join(map(procedure_name, several(keywords[name])))
    if "cluster" in keywords:
        keywords["cluster"] = cluster_name(keywords["cluster"])
    if config:
        if keywords.get("model", CONFIG) != CONFIG:
            raise InputError(f"the model is the {CONFIG} that came along: leave model out")
        if is_table:
            table = layer(config)
            names = size_names(table.table).keys() - table.sizes.keys() - keywords.keys()
            first = {name: size for name, size in _RUN.items() if names & LETTERS[name]}
            return {**first, **keywords, "model": table}
        return _with_length({**keywords, "model": parse_json(config, CONFIG)})
    if "model" not in keywords:
        raise InputError("model is missing: name a preset, or send a config.json")
    keywords["model"] = known_model(keywords["model"])
    return _with_length(keywords)


def _with_length(keywords: dict[str, Any]) -> dict[str, Any]:
    """With the length that a model is looked at with first which has none of its own, such as transformer-base."""
    model, procedure = keywords["model"], keywords.get("procedure", "").lower()
    if (isinstance(model, str) and model.lower() in GENERIC) or procedure in INFERENCE or "seq_len" in keywords:
        return keywords
    try:
        configuration = configure(model, {})
        family = family_of(configuration)
        has_length = family.fixed or evaluate(family.length, configuration.values)
    except InputError:  # the sizes that come along may mend it; the question says what is wrong
        return keywords
    return keywords if has_length else {"seq_len": _RUN["seq_len"], **keywords}


def known_model(name: str) -> str:
    """A preset's or a generic name. Raises `InputError`: whatever else it may be on a command line, here it is none."""
    if name.lower() in GENERIC or preset(name.lower()):
        return name
    hint = nearest(name, (*preset_names(), *GENERIC)) or "; learncost list models has all"
    end = "" if hint.endswith("?") else ";"
    raise InputError(f"unknown model {shown(name)}{hint}{end} a config.json comes as its text, not by its path")


def procedure_name(name: str) -> str:
    """The name of a procedure that is known, never of a file. Raises `InputError`."""
    known = {**LEARNING, **INFERENCE}
    return named_one("procedure", name if name in known else name.lower(), known).name


def cluster_name(name: str) -> str:
    """The name of a published cluster, never of a file. Raises `InputError`."""
    if cluster := known_cluster(name):
        return cluster.name
    raise InputError(f"no cluster is called {shown(name)}{nearest(name, clusters()) or ''}; learncost list clusters")


def device_name(name: str) -> str:
    """The name of a published device, or of this machine. Raises `InputError`."""
    if name.lower() == HERE:
        return HERE
    if device := known_device(name):
        return device.name
    raise InputError(
        f"no device is called {shown(name)}{nearest(name, devices()) or '; learncost list devices has all'}"
    )
