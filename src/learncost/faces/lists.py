"""`learncost list WHAT`: what there is, from the registries themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from inspect import Parameter
from itertools import chain
from typing import Any

from learncost.equation.errors import InputError
from learncost.ledger.question import question
from learncost.ledger.sheet import WIDTH, Row, Sheet, Shown
from learncost.models.wording import mentions, nearest, shown


@question()
def listing(
    what: str | None = None,
    /,
    *,
    like: str | None = None,
    support: bool = False,
    of: str | None = None,
    **sizes: Any,
) -> Listed:
    """What there is: models, families, sizes, price-books, procedures, optimizers, precisions, plans, placements,
    layers, words, devices, clusters, countries, runs, peaks, commands, flags.

    Parameters
    ----------
    what
        Which list. Without it, all lists are named with how many entries each has.
    like
        Shows only what has this text in anything that is known of it, such as llama, whatever its case.
    support
        Shows what each family is good for, which was found by doing it, and why where it is not.
    of
        The model of which every procedure's step is told: its FLOPs and its memory, and how they are to bp's.
    sizes
        Any size or setting of the model of `of`, such as `n_layer` 4, and of the step: `batch_size`, `seq_len`.

    Commands
    --------
    learncost list models
        Every preset with its parameters.
    learncost list models --like distil
        Those that have it in their name, title or one of their other names.
    learncost list families --support
        What every family can be asked for: costs, memory, programs, training, verification.
    learncost list procedures --of gpt2
        What a step of every procedure costs and holds, beside backpropagation.
    learncost list devices --json
        Devices with their peaks, for other programs.
    """
    if what is None:
        listed = Listed([{"what": name, "count": _how_many(name, like)} for name in _REGISTRIES])
        listed.columns.update({"what": _field("what"), "how many": lambda entry: str(entry["count"])})
        return replace(listed, heading="learncost list WHAT")
    if what not in _REGISTRIES:
        raise InputError(f"no list of {shown(what)}{nearest(what, _REGISTRIES)} (there are {', '.join(_REGISTRIES)})")
    if support and what != "families":
        raise InputError(f"--support is of families: learncost list families --support, not {what}")
    if of is not None and what != "procedures":
        raise InputError(f"--of is of procedures: learncost list procedures --of {of}, not {what}")
    if sizes and of is None:
        raise InputError(f"--{next(iter(sizes)).replace('_', '-')} is of a model: learncost list procedures --of MODEL")
    listed = _support() if support else _procedures_of(of, sizes) if of is not None else _REGISTRIES[what]()
    entries = _like(listed, like)
    if not entries:
        raise InputError(f"no {what} have {shown(like)} in what is known of them")
    of_all = f" of {len(listed.entries)}" if like else ""
    return replace(listed, entries=entries, heading=f"{len(entries)}{of_all} {what.replace('-', ' ')}")


def _how_many(name: str, text: str | None) -> int:
    """The entries of a list; where all are counted, without making what takes seconds to make."""
    from learncost.ledger.memory_measured import measured
    from learncost.models.argument import GENERIC
    from learncost.models.presets import presets, table_presets

    quick = {
        "models": lambda: len(presets()) + len(table_presets()) + len(GENERIC),
        "peaks": lambda: len({run.name for run in measured()}),
    }
    return quick[name]() if text is None and name in quick else len(_like(_REGISTRIES[name](), text))


def _like(listed: Listed, text: str | None) -> list[Known]:
    """The entries that have a text in what is known of them."""
    return [entry for entry in listed.entries if text is None or mentions(entry.values(), text)]


Known = dict[str, Any]
"""What is known of one thing, under short names, as the JSON has it: numbers are numbers."""

Cell = Callable[[Known], str]


def _field(name: str) -> Cell:
    """The cell that shows a field as it is."""
    return lambda entry: str(entry[name])


_NUMBERS = frozenset(
    {
        "published",
        "predicted",
        "ratio",
        "parameters",
        "how many",
        "GB",
        "W",
        "kg CO2e/kWh",
        "FLOPs",
        "memory",
        "of bp",
        "of bp ",
    }
)
"""Columns of numbers, which stand at the right."""


@dataclass(frozen=True, repr=False)
class Listed(Shown):
    """The things of a list, and by the headings of a table the cells of each."""

    entries: list[Known]
    columns: dict[str, Cell] = field(default_factory=dict)
    heading: str = ""
    notes: tuple[str, ...] = ()
    noted: Callable[[Known], Iterable[str]] = field(default=lambda entry: ())  # what stands under the table, once each

    def to_dict(self) -> Any:
        """As the JSON has it: a list."""
        return self.entries

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        rows = tuple(Row(tuple(cell(entry) for cell in self.columns.values())) for entry in self.entries)
        left = frozenset(place for place, name in enumerate(self.columns) if name not in _NUMBERS)
        notes = dict.fromkeys(note for entry in self.entries for note in self.noted(entry))
        return (Sheet(self.heading, tuple(self.columns), rows, (*self.notes, *notes), left),)


@cache
def _models() -> Listed:
    from learncost.models.argument import GENERIC
    from learncost.models.configuration import configure
    from learncost.models.model import build
    from learncost.models.presets import presets, table_presets

    entries: list[Known] = []
    for preset in presets():
        model = build(configure(preset.name))
        parameters = int(model.parameters.at(model.sizes))
        model_entry = {
            "name": preset.name,
            "parameters": parameters,
            "title": preset.title,
            "aliases": list(preset.aliases),
        }
        model_entry["hub"] = list(preset.hub)
        entries.append(model_entry)
    for preset in table_presets():
        also = {"aliases": list(preset.aliases), "hub": list(preset.hub)}
        entries.append({"name": preset.name, "parameters": preset.parameters, "title": preset.title, **also})
    for name in GENERIC:
        title = f"generic {name}: all sizes as flags"
        entries.append({"name": name, "parameters": None, "title": title, "aliases": [], "hub": []})
    columns: dict[str, Cell] = {
        "model": _field("name"),
        "parameters": lambda entry: "-" if entry["parameters"] is None else f"{entry['parameters']:,}",
        "what it is": lambda entry: "; also ".join(
            part for part in (entry["title"], ", ".join(entry["aliases"])) if part
        ),
    }
    return Listed(entries, columns)


def _families() -> Listed:
    from learncost.models.families import FAMILIES

    entries: list[Known] = []
    for family in FAMILIES.values():
        classes = [architecture.name for architecture in family.architectures if architecture.name]
        entries.append({"name": family.name, "classes": classes, "counted": family.architectures[0].counted})
    columns: dict[str, Cell] = {
        "model type": _field("name"),
        "the classes that can be counted, the usual one first": lambda entry: (
            ", ".join(entry["classes"]) or f"{entry['counted']}, all sizes as flags"
        ),
    }
    return Listed(entries, columns)


def _support() -> Listed:
    from learncost.training.support import kept_support

    entries: list[Known] = [{"name": name, **family_support} for name, family_support in kept_support().items()]
    groups = dict.fromkeys(field.partition(" ")[0] for field in entries[0]["reasons"])
    columns: dict[str, Cell] = {"model type": _field("name")}
    columns |= {group: partial(_done, group) for group in groups}
    numbers = {reason: str(place) for place, reason in enumerate(dict.fromkeys(chain(*map(_why, entries))), start=1)}

    def noted(entry: Known) -> Iterable[str]:
        return (f"{numbers[reason]}: {reason}." for reason in _why(entry))

    def cannot(entry: Known) -> str:
        return ", ".join(f"{' and '.join(names)} ({numbers[reason]})" for reason, names in _why(entry).items())

    return Listed(entries, {**columns, "what it cannot (why, below)": cannot}, noted=noted)


def _done(group: str, entry: Known) -> str:
    """How many fields of a group were done: yes for all of them."""
    reasons = [reason for field, reason in entry["reasons"].items() if field.partition(" ")[0] == group]
    return "yes" if not any(reasons) else f"{reasons.count('')} of {len(reasons)}"


def _why(entry: Known) -> dict[str, list[str]]:
    """Every reason once, in words that do not name the family, with the fields that have it."""
    having: dict[str, list[str]] = {}
    for name, reason in entry["reasons"].items():
        if reason:
            having.setdefault(re.sub(rf"\b{re.escape(entry['name'])}\b", "it", reason), []).append(name)
    return having


def _sizes() -> Listed:
    from learncost.models.sizes import MODEL_SIZES, RUN_SIZES

    entries: list[Known] = [
        {
            "flag": f"--{size.name.replace('_', '-')}",
            "symbol": size.symbol,
            "meaning": size.meaning,
            "spellings": list(size.spellings),
        }
        for size in (*RUN_SIZES, *MODEL_SIZES)
    ]
    columns: dict[str, Cell] = {
        "flag": _field("flag"),
        "symbol": _field("symbol"),
        "what it is, and its other spellings": lambda entry: "; also ".join(
            part for part in (entry["meaning"], ", ".join(entry["spellings"])) if part
        ),
    }
    return Listed(entries, columns)


def _price_books() -> Listed:
    from learncost.books.book import every

    entries: list[Known] = [
        {"name": book.name, "title": book.title, "source": book.source} for book in every().values()
    ]
    return Listed(entries, {"price book": _field("name"), "what it counts": _told})


def _told(entry: Known) -> str:
    """What it is, and who says so."""
    return f"{entry['title']}; {entry['source']}"


def _procedures() -> Listed:
    from learncost.procedures.procedure import LEARNING

    entries: list[Known] = [
        {
            "name": procedure.name,
            "title": procedure.title,
            "schedule": list(procedure.schedule),
            "lines": list(procedure.lines),
            "passes": dict(procedure.passes),
            "source": procedure.source,
        }
        for procedure in LEARNING.values()
    ]

    def procedure_text(entry: Known) -> str:
        lines = f", where {', '.join(entry['lines'])}" if entry["lines"] else ""
        return f"{entry['title']}: {'; '.join(entry['schedule'])}{lines}. {entry['source']}"

    return Listed(entries, {"procedure": _field("name"), "what it is, and the sweeps of its step": procedure_text})


def _procedures_of(model: str, sizes: Mapping[str, Any]) -> Listed:
    """What a step of each procedure takes of a model, and that over what backpropagation takes."""
    from learncost.ledger.cost import cost
    from learncost.ledger.memory import Memory, memory
    from learncost.ledger.sheet import size_of
    from learncost.procedures.procedure import LEARNING

    def taken(procedure: str) -> tuple[int, int]:
        held = memory(model, procedure=procedure, engine="table", **sizes)
        assert isinstance(held, Memory)
        return int(cost(model, procedure=procedure, **sizes).total.flops), int(held.peak)

    entries: list[Known] = []
    usual = taken("bp")
    for name in LEARNING:
        try:
            flops, peak = usual if name == "bp" else taken(name)
        except InputError as error:
            entries.append({"name": name, "flops": None, "bytes": None, "refused": str(error)})
            continue
        entry: Known = {"name": name, "flops": flops, "bytes": peak, "refused": None}
        entries.append(entry | {"flops_of_bp": flops / usual[0], "bytes_of_bp": peak / usual[1]})
    notes = [f"{entry['name']}: {entry['refused']}" for entry in entries if entry["refused"]]
    notes.append(
        "One step as learncost cost has it, of one sequence unasked, with adamw, under the price book run; memory: the "
        "most bytes of the table's arrays at once, as learncost memory --engine table has it."
    )

    def ratio(key: str) -> Cell:
        return lambda entry: f"{entry[key]:.3f}" if key in entry else "-"

    columns = {
        "procedure": _field("name"),
        "FLOPs": lambda entry: "-" if entry["flops"] is None else f"{entry['flops']:,}",
        "of bp": ratio("flops_of_bp"),
        "memory": lambda entry: "-" if entry["bytes"] is None else size_of(entry["bytes"]),
        "of bp ": ratio("bytes_of_bp"),
    }
    return Listed(entries, columns, notes=tuple(notes))


def _optimizers() -> Listed:
    from learncost.procedures.optimizer import DEFAULT
    from learncost.procedures.optimizer_state import STATES
    from learncost.vocabulary import entry
    from learncost.vocabulary.optimizers import OPTIMIZERS

    entries: list[Known] = []
    for name, state in STATES.items():
        step = name in OPTIMIZERS
        commands = "every command" if step else "memory and fit: its state alone"
        source = entry(name).source if step else state.source
        entries.append({"name": name, "default": name == DEFAULT, "known_to": commands, "source": source})
    return Listed(entries, {"optimizer": _field("name"), "known to": _knowing, "source": _field("source")})


def _knowing(entry: Known) -> str:
    return f"{entry['known_to']}{', the default' if entry['default'] else ''}"


def _precisions() -> Listed:
    from learncost.equation.precision import PRECISIONS, ROLES

    entries: list[Known] = [
        {
            "name": precision.name,
            "names": list(precision.also),
            "title": precision.title,
            "types": {role: getattr(precision, role) for role in ROLES if getattr(precision, role)},
            "source": precision.source,
        }
        for precision in PRECISIONS.values()
    ]
    columns: dict[str, Cell] = {
        "precision": lambda entry: ", ".join((entry["name"], *entry["names"])),
        "what it is": lambda entry: f"{_roles(entry['types'])}; {entry['source']}",
    }
    return Listed(entries, columns)


def _roles(types: Mapping[str, str]) -> str:
    """The types with the roles that each has: fp32 masters, states; bf16 all else."""
    of = {
        kind: [role for role, kind_of_role in types.items() if kind_of_role == kind]
        for kind in dict.fromkeys(types.values())
    }
    return "; ".join(f"{kind} {', '.join(roles)}" for kind, roles in of.items())


def _plans() -> Listed:
    from learncost.plans.plan import PLANS

    entries: list[Known] = [
        {"name": plan.spelling, "title": plan.title, "source": plan.source} for plan in PLANS.values()
    ]
    return Listed(entries, {"plan": _field("name"), "what it does": _told})


def _placements() -> Listed:
    from learncost.placement.presets import PLACEMENTS

    entries: list[Known] = [
        {"name": row.name, "also": [*row.also], "title": row.title, "place": row.place, "source": row.source}
        for row in PLACEMENTS.values()
    ]
    columns: dict[str, Cell] = {
        "placement": lambda entry: ", ".join((entry["name"], *entry["also"])),
        "its clauses": _field("place"),
        "what it cuts": _field("title"),
    }
    return Listed(entries, columns)


def _layers() -> Listed:
    from learncost.layers.layer import shipped, shipped_layer

    entries: list[Known] = [{"name": name, "source": shipped_layer(name).source} for name in shipped()]
    return Listed(entries, {"layer": _field("name"), "source": _field("source")})


def _words() -> Listed:
    from learncost.vocabulary import entries

    word_entries: list[Known] = [{"name": word.name, "kind": word.kind, "source": word.source} for word in entries()]
    return Listed(word_entries, {"word": _field("name"), "kind": _field("kind"), "source": _field("source")})


def _devices() -> Listed:
    from learncost.devices.device import devices

    entries: list[Known] = [
        {
            "name": device.name,
            "names": list(device.names),
            "memory_gb": list(device.memory_gb),
            "bandwidth_gbs": list(device.bandwidth_gbs),
            "tdp_w": device.tdp_w,
            "peak_tflops": dict(device.peak_tflops),
            "source": device.source,
        }
        for device in devices().values()
    ]
    columns: dict[str, Cell] = {
        "device": _field("name"),
        "GB": lambda entry: " or ".join(f"{size:.3g}" for size in entry["memory_gb"]),
        "W": lambda entry: "" if entry["tdp_w"] is None else f"{entry['tdp_w']:g}",
        "dense peak, TFLOP/s": lambda entry: ", ".join(
            f"{kind} {rate:g}" for kind, rate in entry["peak_tflops"].items()
        ),
    }
    return Listed(entries, columns)


def _clusters() -> Listed:
    from learncost.devices.cluster import clusters

    entries: list[Known] = [cluster.to_dict() for cluster in clusters().values()]
    columns: dict[str, Cell] = {
        "cluster": _field("name"),
        "a node": lambda entry: f"{entry['devices']:,} x {entry['device']}",
        "links of a device in the node, one way": lambda entry: _linked(entry["inside"]),
        "between nodes": lambda entry: _linked(entry["between"]),
    }
    return Listed(entries, columns)


def _linked(link: Known | None) -> str:
    """A link in words: InfiniBand NDR, 50 GB/s."""
    if link is None:
        return "none"
    several = f"{link['links']} x " if link["links"] > 1 else ""
    kind = "" if link["topology"] in ("network", "switch") else f", {link['topology']}"
    return f"{link['name']}, {several}{link['gbs']:g} GB/s{kind}"


def _countries() -> Listed:
    from learncost.hardware.grid import countries

    entries: list[Known] = []
    for country in countries().values():
        year = max(country.by_year)
        country_entry = {"code": country.code, "name": country.name, "kg_per_kwh": country.by_year[year], "year": year}
        entries.append({**country_entry, "from": min(country.by_year)})
    columns: dict[str, Cell] = {
        "code": _field("code"),
        "country": _field("name"),
        "kg CO2e/kWh": lambda entry: f"{entry['kg_per_kwh']:.3f}",
        "year": lambda entry: f"{entry['year']}; from {entry['from']} on",
    }
    return Listed(entries, columns)


def _runs() -> Listed:
    from learncost.hardware.published import published_runs
    from learncost.hardware.show import published

    printed_text = {run.name: published(run) for run in published_runs()}
    entries: list[Known] = []
    for run in published_runs():
        products = {"mwh": (run.energy, 1e3), "t": (run.co2, 1e3), "usd": (run.price, 1.0)}
        multiplied = {name: figure.value / scale for name, (figure, scale) in products.items() if figure is not None}
        entries.append({**asdict(run), "computed": multiplied})
    columns: dict[str, Cell] = {
        "run": _field("name"),
        "what is printed, and its inputs multiplied again": lambda entry: printed_text[entry["name"]],
    }
    return Listed(entries, columns)


def _peaks() -> Listed:
    from learncost.ledger.memory_measured import measured

    of = {run.name: run for run in measured()}
    entries: list[Known] = [run.to_dict() for run in of.values()]
    columns: dict[str, Cell] = {
        "training step on one GPU": _field("name"),
        "published": _field("published"),
        "predicted": lambda entry: of[entry["name"]].predicted_text,
        "ratio": lambda entry: of[entry["name"]].ratio_text,
        "what is assumed, as the source does not say it": lambda entry: "; ".join(entry["assumed"]),
    }
    return Listed(entries, columns)


def _commands() -> Listed:
    from learncost.faces.command import COMMANDS

    entries: list[Known] = [{"name": name, "about": command.about} for name, command in COMMANDS.items()]
    return Listed(entries, {"command": _field("name"), "what it does": _field("about")})


def _flags() -> Listed:
    from learncost.faces.command import COMMANDS
    from learncost.ledger.question import typed

    entries: list[Known] = [
        {
            "command": name,
            "flag": flag.names[0] if flag.how == "flag" else flag.name.upper(),
            "argument": flag.name,
            "value": flag.value,
            "default": None if flag.default is Parameter.empty else flag.default,
            "choices": list(flag.about.choices),
            "meaning": typed(flag.meaning),
        }
        for name, command in COMMANDS.items()
        for flag in command.flags
        if flag.how != "flags"
    ]
    columns: dict[str, Cell] = {
        "command": _field("command"),
        "flag": lambda entry: f"{entry['flag']} {entry['value']}" if entry["flag"].startswith("--") else entry["flag"],
        "what it means": _field("meaning"),
    }
    return Listed(entries, columns)


_REGISTRIES: Mapping[str, Callable[[], Listed]] = {
    "models": _models,
    "families": _families,
    "sizes": _sizes,
    "price-books": _price_books,
    "procedures": _procedures,
    "optimizers": _optimizers,
    "precisions": _precisions,
    "plans": _plans,
    "placements": _placements,
    "layers": _layers,
    "words": _words,
    "devices": _devices,
    "clusters": _clusters,
    "countries": _countries,
    "runs": _runs,
    "peaks": _peaks,
    "commands": _commands,
    "flags": _flags,
}
