"""`learncost list WHAT`: what there is, from the registries themselves."""

from __future__ import annotations

import json as to_json
from collections.abc import Callable, Mapping

from learncost.equation.errors import InputError
from learncost.faces.flags import Name, Switch, chosen
from learncost.ledger.sheet import Row, Sheet
from learncost.models.wording import nearest, shown


def listing(
    what: str | None = None,
    /,
    *,
    format: Name = "table",
    json: Switch = False,
) -> Sheet | str:
    """What there is: models, families, sizes, price-books, procedures, optimizers, plans, layers, words, devices,
    countries, runs, commands.

    Parameters
    ----------
    what
        Which list. Without it, all lists are named with how many entries each has.
    format
        How the result is written: table, json or md.

    Examples
    --------
    learncost list models
        Every preset with its parameters.
    learncost list devices --json
        Devices with their peaks, for other programs.
    """
    wanted = chosen(format, json, ("table", "json", "md"))
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    if what is None:
        heading, columns = "learncost list WHAT", ("what", "how many")
        rows = [(name, str(len(make()[1]))) for name, make in _REGISTRIES.items()]
    elif what in _REGISTRIES:
        columns, rows = _REGISTRIES[what]()
        heading = f"{len(rows)} {what.replace('-', ' ')}"
    else:
        raise InputError(f"no list of {shown(what)}{nearest(what, _REGISTRIES)} (there are {', '.join(_REGISTRIES)})")
    if wanted == "json":
        return to_json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2, ensure_ascii=False)
    numbers = {"parameters", "how many", "GB", "W", "kg CO2e/kWh"}
    left = frozenset(place for place, column in enumerate(columns) if column not in numbers)
    sheet = Sheet(heading, columns, tuple(Row(row) for row in rows), (), left)
    return sheet.markdown() if wanted == "md" else sheet


Listed = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Columns and rows."""


def _models() -> Listed:
    from learncost.models.argument import GENERIC
    from learncost.models.configuration import configure
    from learncost.models.model import build
    from learncost.models.presets import presets

    rows: list[tuple[str, ...]] = []
    for preset in presets():
        model = build(configure(preset.name))
        also = f"; also {', '.join(preset.aliases)}" if preset.aliases else ""
        rows.append((preset.name, f"{model.parameters.at(model.sizes):,}", f"{preset.title}{also}"))
    rows += [(name, "-", f"generic {name}: all sizes as flags") for name in GENERIC]
    return ("model", "parameters", "what it is"), rows


def _families() -> Listed:
    from learncost.models.families import FAMILIES

    rows: list[tuple[str, ...]] = []
    for found in FAMILIES.values():
        classes = ", ".join(architecture.name for architecture in found.architectures if architecture.name)
        rows.append((found.name, classes or f"{found.architectures[0].counted}, all sizes as flags"))
    return ("model type", "the classes that can be counted, the usual one first"), rows


def _sizes() -> Listed:
    from learncost.models.sizes import MODEL_SIZES, RUN_SIZES

    rows: list[tuple[str, ...]] = [
        (
            f"--{size.name.replace('_', '-')}",
            size.symbol,
            f"{size.meaning}; also {', '.join(size.spellings)}".removesuffix("; also "),
        )
        for size in (*RUN_SIZES, *MODEL_SIZES)
    ]
    return ("flag", "symbol", "what it is, and its other spellings"), rows


def _price_books() -> Listed:
    from learncost.books.book import every

    return ("price book", "what it counts"), [(book.name, f"{book.title}; {book.source}") for book in every().values()]


def _procedures() -> Listed:
    from learncost.procedures.procedure import CONTROLS, PROCEDURES

    rows: list[tuple[str, ...]] = []
    for found in (*PROCEDURES.values(), *CONTROLS.values()):
        passes = ", ".join(f"{times} {macro.replace('_', ' ')}" for macro, times in found.passes.items())
        rows.append((found.name, f"{found.title}: {passes}. {found.source}"))
    return ("procedure", "what it is, and its passes in a step"), rows


def _optimizers() -> Listed:
    from learncost.procedures.optimizer import OPTIMIZERS
    from learncost.vocabulary import entry

    rows: list[tuple[str, ...]] = [(name, entry(found.word).source) for name, found in OPTIMIZERS.items()]
    return ("optimizer", "source"), rows


def _plans() -> Listed:
    from learncost.plans.plan import PLANS

    return ("plan", "what it does"), [(plan.spelling, f"{plan.title}; {plan.source}") for plan in PLANS.values()]


def _layers() -> Listed:
    from learncost.layers.layer import named, shipped

    return ("layer", "source"), [(name, named(name).source) for name in shipped()]


def _words() -> Listed:
    from learncost.vocabulary import entries

    return ("word", "kind", "source"), [(word.name, word.kind, word.source) for word in entries()]


def _devices() -> Listed:
    from learncost.devices.device import devices

    rows: list[tuple[str, ...]] = []
    for found in devices().values():
        peaks = ", ".join(f"{kind} {rate:g}" for kind, rate in found.peak_tflops.items())
        memory = " or ".join(f"{size:.3g}" for size in found.memory_gb)
        power = "" if found.tdp_w is None else f"{found.tdp_w:g}"
        rows.append((found.name, memory, power, peaks))
    return ("device", "GB", "W", "dense peak, TFLOP/s"), rows


def _countries() -> Listed:
    from learncost.hardware.grid import countries

    rows: list[tuple[str, ...]] = []
    for found in countries().values():
        year = max(found.by_year)
        rows.append((found.code, found.name, f"{found.by_year[year]:.3f}", f"{year}; from {min(found.by_year)} on"))
    return ("code", "country", "kg CO2e/kWh", "year"), rows


def _runs() -> Listed:
    from learncost.hardware.published import published_runs
    from learncost.hardware.show import published

    return ("run", "what is printed, and its inputs multiplied again"), [
        (found.name, published(found)) for found in published_runs()
    ]


def _commands() -> Listed:
    from learncost.faces.command import COMMANDS

    return ("command", "what it does"), [(name, about) for name, (_, about) in COMMANDS.items()]


_REGISTRIES: Mapping[str, Callable[[], Listed]] = {
    "models": _models,
    "families": _families,
    "sizes": _sizes,
    "price-books": _price_books,
    "procedures": _procedures,
    "optimizers": _optimizers,
    "plans": _plans,
    "layers": _layers,
    "words": _words,
    "devices": _devices,
    "countries": _countries,
    "runs": _runs,
    "commands": _commands,
}
