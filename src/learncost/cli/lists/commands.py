"""What is typed: commands and their flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter

from learncost.cli.lists.listed import Cell, Known, Listed, cell_of


def _commands() -> Listed:
    from learncost.cli.command import COMMANDS

    entries: list[Known] = [{"name": name, "about": command.about} for name, command in COMMANDS.items()]
    return Listed(entries, {"command": cell_of("name"), "what it does": cell_of("about")})


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
        "command": cell_of("command"),
        "flag": lambda entry: f"{entry['flag']} {entry['value']}" if entry["flag"].startswith("--") else entry["flag"],
        "what it means": cell_of("meaning"),
    }
    return Listed(entries, columns)


COMMANDS_AND_FLAGS: Mapping[str, Callable[[], Listed]] = {
    "commands": _commands,
    "flags": _flags,
}
