"""The parser of requests into arguments of a question: known names and data, never paths.

What may be asked for, a question's flags with their help and choices, is here too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from learncost.autoshard.step import PIPELINE
from learncost.cost_models.books import every
from learncost.devices.cluster import Cluster, clusters, known_cluster
from learncost.devices.device import Device, devices, known_device
from learncost.devices.rates import THIS_MACHINE
from learncost.ir.dataclass import attributes, replace
from learncost.ir.errors import InputError, named_one, nearest, shown
from learncost.ir.precision import PRECISIONS
from learncost.ir.stated import size_names
from learncost.layers.layer import layer
from learncost.models.argument import GENERIC, preset, preset_names, presets, table_presets
from learncost.models.configuration import configure, family_of
from learncost.models.expression import evaluate
from learncost.models.files import NOTATION, parse_json
from learncost.models.sizes import MODEL_SIZES, RUN_SIZES
from learncost.passes.plan import PLANS
from learncost.procedures.optimizer import STATES
from learncost.procedures.procedure import INFERENCE, LEARNING, several
from learncost.program.pipeline import KINDS
from learncost.reports.memory.engines import memory_engines
from learncost.reports.question import Flag, flags_of, schema_of, typed
from learncost.reports.request import check_has
from learncost.reports.trainer_step import keywords_of, step_of_reading
from learncost.sharding.presets import PLACEMENTS
from learncost.trainer_files.documents import document_of
from learncost.trainer_files.framework import framework_of
from learncost.trainer_files.reading import describes_model, joined
from learncost.viz.data.sizes import LETTERS
from learncost.viz.views import VIEWS

LONGEST = 2_000
"""Characters that a value may have."""

MOST = 100
"""Values that a request may have."""

NAMES_PROCEDURES = frozenset(("procedure", "procedures", "side_by_side"))
"""Parameters that are comma-separated names of procedures."""

CONFIG = "config.json"
"""The name of a configuration that came with a request."""

_RUN = {"batch_size": "1", "seq_len": "128"}
"""The first sizes if a table leaves them symbolic, or a model has no length."""


def arguments(pairs: Iterable[tuple[str, str]], config: str = "") -> dict[str, Any]:
    """Return the arguments of `document`, and of questions with the same parameters, from the pairs of a URL.

    pairs   names as flags have them, with - or _ between words, and their values as texts
    config  the text of a config.json, or of a table in the notation, which replaces the model
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
        on = keywords["on"]
        keywords["on"] = (
            THIS_MACHINE if on.lower() == THIS_MACHINE else published_name("device", on, known_device(on), devices())
        )
    for name in NAMES_PROCEDURES & keywords.keys():
        keywords[name] = ",".join(map(procedure_name, several(keywords[name])))
    if "cluster" in keywords:
        cluster = keywords["cluster"]
        keywords["cluster"] = published_name("cluster", cluster, known_cluster(cluster), clusters())
    if config:
        if keywords.get("model", CONFIG) != CONFIG:
            raise InputError(f"the request already contains the model as {CONFIG}: remove model")
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
    """Add the initial length of a model without a default length, such as transformer-base."""
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


def chosen_by(files: str, taken: Collection[str]) -> dict[str, Any]:
    """Return what files choose among the flags of a page: a trainer's, or a model's alone.

    files  their texts by name, as JSON
    taken  the flags that a page may request

    chosen  values by flags
    config  the model's sizes as a config.json; empty if the model is a known one
    notes   what was read, what is not counted, and what the page has no flags for
    Raises `InputError` for a file that is no training that can be predicted.
    """
    texts = {PurePath(name).name: str(text) for name, text in parse_json(files, "the request").items()}
    name, text = next(iter(texts.items()), ("", ""))
    is_alone = len(texts) == 1 and name.endswith((NOTATION, ".json"))
    if is_alone and (name.endswith(NOTATION) or describes_model(document_of(name, text))):
        return {"chosen": {"model": CONFIG}, "config": text, "notes": []}
    documents = [document_of(name, text) for name, text in texts.items()]
    if not documents:
        raise InputError("the request has no files: send their texts by name")
    reading = joined([(framework_of(document), document) for document in documents])
    keywords = keywords_of(reading)
    check_has(keywords, taken)
    model, sizes = keywords.pop("model"), keywords.pop("sizes", {})
    step = step_of_reading(reading, command="report", flags=taken)
    heading = replace(step, command="", left_out=()).heading()
    chosen = {key: str(value) for key, value in {**keywords, **sizes}.items() if key in taken or key in sizes}
    described = isinstance(model, Mapping)
    notes = [f"{heading.title}.", *heading.notes]
    notes += [f"Not on this page: {' '.join(step.left_out)}."] if step.left_out else []
    return {
        "chosen": {"model": CONFIG if described else known_model(model), **chosen},
        "config": json.dumps(model) if described else "",
        "notes": notes,
    }


def known_model(name: str) -> str:
    """Return the name of a preset or generic model. Raises `InputError` for anything else, such as a path."""
    if name.lower() in GENERIC or preset(name.lower()):
        return name
    hint = nearest(name, (*preset_names(), *GENERIC)) or "; learncost list models has all"
    end = "" if hint.endswith("?") else ";"
    raise InputError(f"unknown model {shown(name)}{hint}{end} a config.json comes as its text, not by its path")


def procedure_name(name: str) -> str:
    """Return the name of a known procedure, never of a file. Raises `InputError`."""
    known = {**LEARNING, **INFERENCE}
    return named_one("procedure", name if name in known else name.lower(), known).name


def published_name(kind: str, name: str, known: Device | Cluster | None, names: Iterable[str]) -> str:
    """Return the name of a published device or cluster, never of a file. Raises `InputError` where it is not known."""
    if known:
        return known.name
    hint = nearest(name, names) or f"; learncost list {kind}s has all"
    raise InputError(f"no {kind} is called {shown(name)}{hint}")


Choice = dict[str, Any]
"""A name that may be asked for, and what it means."""


def fields(question: Callable[..., Any]) -> dict[str, Any]:
    """Return the fields that a page may request.

    flags    of the question, in their order, and its JSON schema
    views    the views, each with the flags that it takes and the question does not
    choices  by names of flags, what there is to choose from
    """
    flags = flags_of(question)
    known = {flag.name for flag in flags}
    views = [
        {
            "name": name,
            "word": view.word,
            "flags": _described(flag for flag in flags_of(view.question) if flag.name not in known),
        }
        for name, view in VIEWS.items()
    ]
    schema = schema_of(question.__name__, question)
    return {"flags": _described(flags), "schema": schema, "views": views, "choices": choices()}


def _described(flags: Iterable[Flag]) -> list[dict[str, Any]]:
    return [
        {
            "name": flag.name,
            "flag": flag.names[0],
            "kind": flag.kind,
            "group": flag.about.group,
            "meaning": typed(flag.meaning),
            "default": flag.default if isinstance(flag.default, str | int | float | bool) else None,
            "several": flag.about.several,
        }
        for flag in flags
        if flag.how in ("flag", "argument")
    ]


def choices() -> Mapping[str, Any]:
    """Return the choices by the name of their flag: a list of names; or `parts` with a size each."""
    models = attributes("name title", also="aliases")([*presets(), *table_presets()])
    generic = [{"name": name, "title": f"generic {name}: give all sizes", "also": []} for name in GENERIC]
    precisions = [precision for precision in PRECISIONS.values() if precision.is_stored and precision.is_trained]
    titled = attributes("name title")
    return {
        "model": models + generic,
        "procedure": titled([*LEARNING.values(), *INFERENCE.values()]),
        "side_by_side": titled([*LEARNING.values()]),
        "price_book": titled([*every().values()]),
        "on": attributes("name", title="source", also="names")([*devices().values()]),
        "precision": attributes("name title also")(precisions),
        "engine": attributes("name", title="convention")([*memory_engines().values()]),
        "cluster": [
            {"name": cluster.name, "title": f"{cluster.devices} x {cluster.device.name} a node"}
            for cluster in clusters().values()
        ],
        "schedule": titled([*KINDS.values()]),
        "placement": titled([*PLACEMENTS.values()]),
        "mesh": {"parts": mesh_parts()},
        "plan": attributes(name="spelling", title="title")([*PLANS.values()]),
        "optimizer": [{"name": name, "title": state.source} for name, state in STATES.items()],
        "sizes": attributes("name symbol", title="meaning")([*RUN_SIZES, *MODEL_SIZES]),
    }


def mesh_parts() -> list[Choice]:
    """Return the possible axes of a mesh, outermost first, with the maximum of each slider."""
    titles = {PIPELINE: "pipeline stages"}
    for row in PLACEMENTS.values():
        for axis in row.mesh_axes:
            title = row.title.partition(":")[0]
            titles.setdefault(axis, title if len(title) <= SHORT else f"devices along {axis}")
    return [{"name": axis, "title": title, "most": LONGEST_AXIS} for axis, title in titles.items()]


SHORT = 24
"""Letters next to a slider."""

LONGEST_AXIS = 4096
"""Devices along an axis of a mesh, as far as a slider goes."""
