"""`learncost --help` and `learncost COMMAND --help`: purpose, examples and flags of commands."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING

from learncost.ir.dataclass import dataclass
from learncost.reports.question import GROUPS, Flag, docstring_parts, typed
from learncost.reports.sheet import styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from learncost.cli.command import Command

WIDEST = 100
"""Columns that a page takes at most: longer lines are hard to read."""

MOST_FLAGS, MOST_EXAMPLES = 12, 2
"""The flags and examples of the short help; --help all has every one."""

ALL = "all"
"""The word behind --help that asks for every flag."""


@dataclass(frozen=True)
class HelpEntry:
    """A flag or argument as typed, and its meaning."""

    typed: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """A page of help: lines that fit their width."""

    usage: str
    about: str
    examples: tuple[tuple[str, str], ...]
    groups: Mapping[str, tuple[HelpEntry, ...]]

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """Return the page's lines with their styles."""
        yield from _wrapped(f"Usage: {self.usage}", width, " " * 7)
        for paragraph in self.about.split("\n\n"):
            yield "", ""
            yield from _wrapped(paragraph, width)
        if self.examples:
            yield from (("", ""), ("Examples", "bold"))
        for command, meaning in self.examples:
            yield from _wrapped(command, width, "      ", "  ")
            yield from _wrapped(meaning, width, "      ", "      ", "dim")
        longest = max((len(flag.typed) for flags in self.groups.values() for flag in flags), default=0)
        left = min(longest, max(12, width // 3))
        for group, flags in self.groups.items():
            yield from (("", ""), (group, "bold"))
            for flag in flags:
                parts = textwrap.wrap(flag.meaning, max(20, width - left - 4), break_on_hyphens=False)
                first = f"  {flag.typed}"
                if len(flag.typed) > left:
                    yield from _wrapped(first.strip(), width, "      ", "  ")
                    first = ""
                for part in parts:
                    yield f"{first:<{left + 2}}  {part}", ""
                    first = ""

    def __str__(self) -> str:
        width = min(WIDEST, shutil.get_terminal_size().columns)
        return "\n".join(line for line, _ in self.lines(width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(self.lines(min(WIDEST, options.max_width)))


def _wrapped(text: str, width: int, later: str = "", first: str = "", style: str = "") -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    ):
        yield line, style


def page(name: str, command: Command, merged: Mapping[str, str] = {}, everything: bool = False) -> Page:
    """Return the help of one command: two examples and the flags that people use most, or everything.

    merged  the flags that are other questions, with their purpose
    """
    flags, parts = [*{flag.name: flag for flag in command.flags}.values()], docstring_parts(command.question)
    arguments = [flag for flag in flags if flag.how.startswith("argument")]
    others = [flag for flag in flags if flag.how.startswith("flag")]
    usage = " ".join((f"learncost {name}", *(_argument(argument).typed for argument in arguments), "[FLAGS]"))
    groups: dict[str, tuple[HelpEntry, ...]] = {}
    if arguments:
        entries = [(argument, _argument(argument)) for argument in arguments]
        groups["Arguments"] = tuple(
            HelpEntry(entry.typed.strip("[]"), entry.meaning if everything else _brief(argument, name))
            for argument, entry in entries
        )
    if everything:
        for group in GROUPS:
            if of_group := [flag for flag in others if flag.about.group == group]:
                groups[group] = tuple(map(_flag, of_group))
        if merged:
            groups["Other questions"] = tuple(HelpEntry(flag, text) for flag, text in merged.items())
        return Page(usage, typed(parts.about), parts.commands, groups)
    common = [flag for flag in others if name in flag.about.common.split()] if len(others) > MOST_FLAGS else others
    groups["Flags"] = tuple(_short_flag(flag, name) for flag in common)
    about = typed(parts.about).partition("\n\n")[0]
    rest = [HelpEntry(f"--help {ALL}", f"All {len(others)} flags, and more examples.")] * (len(common) < len(others))
    rest += [HelpEntry(", ".join(merged), "Ask another question; add --help for its flags.")] * bool(merged)
    if rest:
        groups["More"] = tuple(rest)
    return Page(usage, about, parts.commands[:MOST_EXAMPLES], groups)


def more(merged: Mapping[str, str]) -> Page:
    """Return the list of the other commands."""
    about = "The other commands. learncost more NAME, learncost NAME and the flag are the same."
    entries = tuple(HelpEntry(name, text) for name, text in merged.items())
    return Page("learncost more NAME [FLAGS]", about, (), {"Commands": entries})


def overview(groups_of_commands: Mapping[str, Mapping[str, str]], merged: Sequence[str], about: str) -> Page:
    """Return the help of all commands."""
    groups = {
        group: tuple(HelpEntry(name, text) for name, text in commands.items())
        for group, commands in groups_of_commands.items()
    }
    groups["More"] = (HelpEntry("more", f"{', '.join(merged)}."),)
    flags = {
        "--help": "Show this page; learncost COMMAND --help shows the flags of a command.",
        "--version": "Show the version.",
    }
    groups["Flags"] = tuple(HelpEntry(name, text) for name, text in flags.items())
    examples = (
        ("learncost memory gpt2 --on RTX-4090", "Whether a training step fits, and what saves memory."),
        ("learncost list models", "All known models."),
    )
    return Page("learncost COMMAND [FLAGS]", about, examples, groups)


def _short_flag(flag: Flag, command: str) -> HelpEntry:
    """Return a flag with its meaning in a line."""
    if flag.how == "flags":
        return HelpEntry("--SIZE VALUE", "Any size of the model (learncost list sizes).")
    return HelpEntry(f"{flag.names[0]} {flag.value}".strip(), _brief(flag, command))


def _brief(flag: Flag, command: str) -> str:
    """Return the meaning of a flag in a line: that of flags.toml for its common commands, else its first sentence."""
    shared = flag.about.brief and (flag.how != "flag" or command in flag.about.common.split())
    return flag.about.brief if shared else f"{typed(flag.meaning).partition('. ')[0].rstrip('.')}."


def _argument(flag: Flag) -> HelpEntry:
    word = flag.name.rstrip("_").upper()
    word = f"{word.removesuffix('S')} ..." if flag.how == "arguments" else word
    return HelpEntry(word if flag.required else f"[{word}]", typed(flag.meaning))


def _flag(flag: Flag) -> HelpEntry:
    """Return a flag's names with its value."""
    if flag.how == "flags":
        return HelpEntry("--SIZE VALUE", typed(flag.meaning))
    usual, *others = flag.names
    names = [*(name for name in others if not name.startswith("--")), usual]
    names += [f"--no-{usual[2:]}"] if flag.reverses else []
    meaning = typed(flag.meaning)
    if flag.default not in (None, "", Parameter.empty) and flag.default is not False and "default" not in meaning:
        usual = f"{flag.default:g}" if isinstance(flag.default, float) else flag.default
        meaning += f" The default is {usual}."
    return HelpEntry(f"{', '.join(names)} {flag.value}".strip(), meaning)
