"""What may be asked for: a question's flags with their help, and what there is to choose from, from the registries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.books.book import every
from learncost.devices.device import devices
from learncost.equation.precision import PRECISIONS
from learncost.ledger.question import flags_of, schema_of, typed
from learncost.models.argument import GENERIC
from learncost.models.presets import presets, table_presets
from learncost.models.sizes import MODEL_SIZES, RUN_SIZES
from learncost.plans.plan import PLANS
from learncost.procedures.optimizer_state import STATES
from learncost.procedures.procedure import INFERENCE, LEARNING

Choice = dict[str, Any]
"""A name that may be asked for, and what it means."""


def fields(question: Callable[..., Any]) -> dict[str, Any]:
    """The flags of a question in their order, its JSON schema, and by names of flags what there is to choose from."""
    flags = [
        {
            "name": flag.name,
            "flag": flag.names[0],
            "kind": flag.kind,
            "group": flag.about.group,
            "meaning": typed(flag.meaning),
            "default": flag.default if isinstance(flag.default, str | int | float | bool) else None,
            "several": flag.about.several,
        }
        for flag in flags_of(question)
        if flag.how in ("flag", "argument")
    ]
    return {"flags": flags, "schema": schema_of(question.__name__, question), "choices": choices()}


def choices() -> Mapping[str, list[Choice]]:
    """What there is, by the name of the flag that takes it."""
    models = [
        {"name": preset.name, "title": preset.title, "also": list(preset.aliases)}
        for preset in (*presets(), *table_presets())
    ]
    generic = [{"name": name, "title": f"generic {name}: give all sizes", "also": []} for name in GENERIC]
    procedures = {**LEARNING, **INFERENCE}
    precisions = [
        {"name": precision.name, "title": precision.title, "also": list(precision.also)}
        for precision in PRECISIONS.values()
    ]
    return {
        "model": models + generic,
        "procedure": [{"name": procedure.name, "title": procedure.title} for procedure in procedures.values()],
        "price_book": [{"name": book.name, "title": book.title} for book in every().values()],
        "on": [
            {"name": device.name, "title": device.source, "also": list(device.names)} for device in devices().values()
        ],
        "precision": precisions,
        "plan": [{"name": plan.spelling, "title": plan.title} for plan in PLANS.values()],
        "optimizer": [{"name": name, "title": state.source} for name, state in STATES.items()],
        "sizes": [
            {"name": size.name, "title": size.meaning, "symbol": size.symbol} for size in (*RUN_SIZES, *MODEL_SIZES)
        ],
    }
