"""Lists of price books, procedures, optimizers, precisions, plans and placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from learncost.cli.lists.listed import Cell, Known, Listed, entries_of
from learncost.ir.errors import InputError


def _price_books() -> Listed:
    from learncost.cost_models.books import every

    entries = entries_of(every().values(), "name title source")
    return Listed(entries, {"price book": "{name}", "what it counts": "{title}; {source}"})


def _procedures() -> Listed:
    from learncost.procedures.procedure import LEARNING

    entries = entries_of(LEARNING.values(), "name title schedule lines passes source")

    def procedure_text(entry: Known) -> str:
        lines = f", where {', '.join(entry['lines'])}" if entry["lines"] else ""
        return f"{entry['title']}: {'; '.join(entry['schedule'])}{lines}. {entry['source']}"

    return Listed(entries, {"procedure": "{name}", "what it is, and the passes of its step": procedure_text})


def procedures_of(model: str, sizes: Mapping[str, Any]) -> Listed:
    """List the cost of a model's step under each procedure, and its ratio to backpropagation."""
    from learncost.procedures.procedure import LEARNING
    from learncost.reports.cost import cost
    from learncost.reports.memory.memory import Memory, memory
    from learncost.reports.sheet import size_of

    def taken(procedure: str) -> tuple[int, int]:
        held = memory(model, procedure=procedure, engine="graph", **sizes)
        assert isinstance(held, Memory)
        return int(cost(model, procedure=procedure, **sizes).total.flops), int(held.peak)

    entries: list[Known] = []
    usual = taken("bp")
    for name in LEARNING:
        try:
            flops, peak = usual if name == "bp" else taken(name)
        except InputError as error:
            entries.append({"name": name, "flops": None, "bytes": None, "refused": error.written})
            continue
        entry: Known = {"name": name, "flops": flops, "bytes": peak, "refused": None}
        entries.append(entry | {"flops_of_bp": flops / usual[0], "bytes_of_bp": peak / usual[1]})
    notes = [f"{entry['name']}: {entry['refused']}" for entry in entries if entry["refused"]]
    notes.append(
        "One step with adamw under the price book run, of one sequence by default, as in learncost cost; peak "
        "memory as in learncost memory --engine graph."
    )

    def ratio(key: str) -> Cell:
        return lambda entry: f"{entry[key]:.3f}" if key in entry else "-"

    columns: dict[str, Cell] = {
        "procedure": "{name}",
        "FLOPs": lambda entry: "-" if entry["flops"] is None else f"{entry['flops']:,}",
        "of bp": ratio("flops_of_bp"),
        "peak memory": lambda entry: "-" if entry["bytes"] is None else size_of(entry["bytes"]),
        "of bp ": ratio("bytes_of_bp"),
    }
    return Listed(entries, columns, _notes=tuple(notes))


def _optimizers() -> Listed:
    from learncost.ops import entry
    from learncost.ops.optimizers import OF_MATRICES, OPTIMIZERS
    from learncost.procedures.optimizer import DEFAULT, STATES

    entries: list[Known] = []
    for name, state in STATES.items():
        whole = (
            "every command on one device, over a mesh memory"
            if name in OF_MATRICES
            else "memory and fit: state size only"
        )
        commands = "every command" if name in OPTIMIZERS else whole
        own = name in OPTIMIZERS and not OPTIMIZERS[name].states
        source = entry(name).source if own else state.source
        entries.append({"name": name, "default": name == DEFAULT, "known_to": commands, "source": source})
    columns: dict[str, Cell] = {
        "optimizer": "{name}",
        "supported by": lambda entry: entry["known_to"] + (", the default" if entry["default"] else ""),
        "source": "{source}",
    }
    return Listed(entries, columns)


def _precisions() -> Listed:
    from learncost.ir.precision import PRECISIONS, ROLES

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
    """Return each type with its roles, such as fp32 masters, states; bf16 others."""
    of = {
        kind: [role for role, kind_of_role in types.items() if kind_of_role == kind]
        for kind in dict.fromkeys(types.values())
    }
    return "; ".join(f"{kind} {', '.join(roles)}" for kind, roles in of.items())


def _plans() -> Listed:
    from learncost.passes.plan import PLANS

    entries = entries_of(PLANS.values(), "", name="spelling", title="title", source="source")
    return Listed(entries, {"plan": "{name}", "what it does": "{title}; {source}"})


def _placements() -> Listed:
    from learncost.sharding.presets import PLACEMENTS

    entries = entries_of(PLACEMENTS.values(), "name also title place source")
    columns: dict[str, Cell] = {
        "placement": lambda entry: ", ".join((entry["name"], *entry["also"])),
        "sharding rules": "{place}",
        "what it does": "{title}",
    }
    return Listed(entries, columns)


LEARNING: Mapping[str, Callable[[], Listed]] = {
    "price-books": _price_books,
    "procedures": _procedures,
    "optimizers": _optimizers,
    "precisions": _precisions,
    "plans": _plans,
    "placements": _placements,
}
