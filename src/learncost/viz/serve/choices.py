"""What may be asked for: a question's flags with their help, and what there is to choose from, from the registries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from learncost.autoshard.step import PIPELINE
from learncost.cost_models.books import every
from learncost.devices.cluster import clusters
from learncost.devices.device import devices
from learncost.ir.precision import PRECISIONS
from learncost.models.argument import GENERIC, presets, table_presets
from learncost.models.sizes import MODEL_SIZES, RUN_SIZES
from learncost.passes.plan import PLANS
from learncost.procedures.optimizer import STATES
from learncost.procedures.procedure import INFERENCE, LEARNING
from learncost.program.pipeline import KINDS
from learncost.reports.memory.engines import memory_engines
from learncost.reports.question import Flag, flags_of, schema_of, typed
from learncost.sharding.presets import PLACEMENTS
from learncost.viz.views import VIEWS

Choice = dict[str, Any]
"""A name that may be asked for, and what it means."""


def fields(question: Callable[..., Any]) -> dict[str, Any]:
    """What a page may ask for.

    flags    of the question, in their order, and its JSON schema
    views    beside it, each with the flags that it takes and the question does not
    choices  by names of flags, what there is to choose from
    """
    flags = flags_of(question)
    known = {flag.name for flag in flags}
    views = [
        {
            "name": name,
            "word": view.word,
            "flags": _told(flag for flag in flags_of(view.question) if flag.name not in known),
        }
        for name, view in VIEWS.items()
    ]
    schema = schema_of(question.__name__, question)
    return {"flags": _told(flags), "schema": schema, "views": views, "choices": choices()}


def _told(flags: Iterable[Flag]) -> list[dict[str, Any]]:
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
    """What there is, by the name of the flag that takes it: a list of names; or `parts` with a size each."""
    models = [
        {"name": preset.name, "title": preset.title, "also": list(preset.aliases)}
        for preset in (*presets(), *table_presets())
    ]
    generic = [{"name": name, "title": f"generic {name}: give all sizes", "also": []} for name in GENERIC]
    procedures = {**LEARNING, **INFERENCE}
    precisions = [
        {"name": precision.name, "title": precision.title, "also": list(precision.also)}
        for precision in PRECISIONS.values()
        if precision.is_stored
    ]
    return {
        "model": models + generic,
        "procedure": [{"name": procedure.name, "title": procedure.title} for procedure in procedures.values()],
        "side_by_side": [{"name": procedure.name, "title": procedure.title} for procedure in LEARNING.values()],
        "price_book": [{"name": book.name, "title": book.title} for book in every().values()],
        "on": [
            {"name": device.name, "title": device.source, "also": list(device.names)} for device in devices().values()
        ],
        "precision": precisions,
        "engine": [
            {"name": chosen_engine.name, "title": chosen_engine.convention}
            for chosen_engine in memory_engines().values()
        ],
        "cluster": [
            {"name": cluster.name, "title": f"{cluster.devices} x {cluster.device.name} a node"}
            for cluster in clusters().values()
        ],
        "schedule": [{"name": kind.name, "title": kind.title} for kind in KINDS.values()],
        "placement": [{"name": row.name, "title": row.title} for row in PLACEMENTS.values()],
        "mesh": {"parts": mesh_parts()},
        "plan": [{"name": plan.spelling, "title": plan.title} for plan in PLANS.values()],
        "optimizer": [{"name": name, "title": state.source} for name, state in STATES.items()],
        "sizes": [
            {"name": size.name, "title": size.meaning, "symbol": size.symbol} for size in (*RUN_SIZES, *MODEL_SIZES)
        ],
    }


def mesh_parts() -> list[Choice]:
    """The axes that a mesh may have, outermost first, each with the most devices that a slider goes to."""
    titles = {PIPELINE: "pipeline stages"}
    for row in PLACEMENTS.values():
        for axis in row.mesh_axes:
            title = row.title.partition(":")[0]
            titles.setdefault(axis, title if len(title) <= SHORT else f"devices along {axis}")
    return [{"name": axis, "title": title, "most": MOST} for axis, title in titles.items()]


SHORT = 24
"""Letters that stand beside a slider."""

MOST = 4096
"""Devices along an axis of a mesh, as far as a slider goes."""
