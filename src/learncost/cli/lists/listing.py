"""`learncost list WHAT`: the entries of a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from learncost.cli.lists.learning import LEARNING, procedures_of
from learncost.cli.lists.listed import Cell, Known, Listed, entries_of
from learncost.cli.lists.machines import MACHINES
from learncost.cli.lists.models import MODELS, support_of_families
from learncost.ir.dataclass import replace
from learncost.ir.errors import RETIRED, InputError, mentions, nearest, shown
from learncost.reports.question import question


def _commands() -> Listed:
    from learncost.cli.command import COMMANDS

    entries: list[Known] = [{"name": name, "about": command.about} for name, command in COMMANDS.items()]
    return Listed(entries, {"command": "{name}", "what it does": "{about}"})


def _flags() -> Listed:
    from learncost.cli.command import COMMANDS
    from learncost.reports.question import typed

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
        "command": "{command}",
        "flag": lambda entry: f"{entry['flag']} {entry['value']}" if entry["flag"].startswith("--") else entry["flag"],
        "what it means": "{meaning}",
    }
    return Listed(entries, columns)


COMMANDS_AND_FLAGS: Mapping[str, Callable[[], Listed]] = {
    "commands": _commands,
    "flags": _flags,
}


def _layers() -> Listed:
    from learncost.layers.layer import shipped, shipped_layer

    entries: list[Known] = [{"name": name, "source": shipped_layer(name).source} for name in shipped()]
    return Listed(entries, {"layer": "{name}", "source": "{source}"})


def _operators() -> Listed:
    from learncost.ops import entries

    return Listed(
        entries_of(entries(), "name kind source"),
        {"operator": "{name}", "kind": "{kind}", "source": "{source}"},
    )


NOTATION: Mapping[str, Callable[[], Listed]] = {
    "layers": _layers,
    "operators": _operators,
}


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
    """List models, families, sizes, price-books, procedures, optimizers, precisions, plans, placements, layers,
    operators, devices, clusters, countries, runs, peaks, commands or flags.

    Parameters
    ----------
    what
        The list to show. By default the names of all lists with their numbers of entries.
    like
        Show only entries that contain this text in any field, such as llama, ignoring case.
    support
        Show which commands support each model family (tested), with the reason where not.
    of
        The model for the FLOPs and memory of every procedure's step, with ratios to bp.
    sizes
        Any size or setting of the model of `of`, such as `n_layer` 4, and of the step: `batch_size`, `seq_len`.

    Commands
    --------
    learncost list models
        Every preset with its parameters.
    learncost list models --like distil
        Presets with this text in their name, title or alias.
    learncost list families --support
        The commands that support each family: costs, memory, programs, training, verification.
    learncost list procedures --of gpt2
        FLOPs and memory of a step of every procedure, compared with backpropagation.
    learncost list devices --json
        Devices with their peaks, for other programs.
    """
    if what is None:
        entries = [{"what": name, "count": _how_many(name, like)} for name in LISTS]
        return Listed(entries, {"what": "{what}", "entries": "{count}"}, "learncost list WHAT")
    if what in RETIRED["list"]:
        raise InputError(f"the list {what!r} is called {RETIRED['list'][what]!r} now")
    if what not in LISTS:
        raise InputError(f"no list of {shown(what)}{nearest(what, LISTS)} (there are {', '.join(LISTS)})")
    if support and what != "families":
        raise InputError(f"--support applies to families only: learncost list families --support, not {what}")
    if of is not None and what != "procedures":
        raise InputError(f"--of applies to procedures only: learncost list procedures --of {of}, not {what}")
    if sizes and of is None:
        raise InputError(
            f"--{next(iter(sizes)).replace('_', '-')} requires a model: learncost list procedures --of MODEL"
        )
    listed = support_of_families() if support else procedures_of(of, sizes) if of is not None else LISTS[what]()
    entries = _like(listed, like)
    if not entries:
        raise InputError(f"no {what} contain {shown(like)}")
    of_all = f" of {len(listed.entries)}" if like else ""
    return replace(listed, entries=entries, _heading=f"{len(entries)}{of_all} {what.replace('-', ' ')}")


def list_models(like: str | None = None) -> Listed:
    """The models that are known by name, with their parameters, as `learncost list models` shows them.

    Parameters
    ----------
    like
        Return only models with this text in any field, such as llama, ignoring case.

    Returns
    -------
    Listed
        A dict for each model: its name, parameters, title, aliases and names on the Hugging Face Hub.

    Raises
    ------
    InputError
        If no model has the text.

    Examples
    --------
    >>> [(model["name"], model["parameters"]) for model in lc.list_models(like="gpt2-xl")]
    [('gpt2-xl', 1557611200)]
    """
    return listing("models", like=like)


def list_devices(like: str | None = None) -> Listed:
    """The published devices, with memory and peak rates, as `learncost list devices` shows them.

    Parameters
    ----------
    like
        Return only devices with this text in any field, such as H100, ignoring case.

    Returns
    -------
    Listed
        A dict for each device: its name and other names, memory_gb, bandwidth_gbs, tdp_w, peak_tflops and source.

    Raises
    ------
    InputError
        If no device has the text.

    Examples
    --------
    >>> [(device["name"], device["peak_tflops"]["bf16"]) for device in lc.list_devices(like="A100 SXM 80GB")]
    [('NVIDIA A100 SXM 80GB', 312.0)]
    """
    return listing("devices", like=like)


def _how_many(name: str, text: str | None) -> int:
    """Return the number of entries of a list, without building those that take seconds."""
    from learncost.models.argument import GENERIC, presets, table_presets
    from learncost.reports.memory.published import measured

    quick = {
        "models": lambda: len(presets()) + len(table_presets()) + len(GENERIC),
        "peaks": lambda: len({run.name for run in measured()}),
    }
    return quick[name]() if text is None and name in quick else len(_like(LISTS[name](), text))


def _like(listed: Listed, text: str | None) -> list[Known]:
    """Return the entries with a text in any field."""
    if not isinstance(text, str | None):
        raise InputError(f"like must be a text, not {shown(text)}")
    return [entry for entry in listed.entries if text is None or mentions(entry.values(), text)]


LISTS: Mapping[str, Callable[[], Listed]] = {**MODELS, **LEARNING, **NOTATION, **MACHINES, **COMMANDS_AND_FLAGS}
