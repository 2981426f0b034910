"""The parser of a command's arguments and flags.

Every command that takes a model has the flags for importing a user's module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from learncost.ir.errors import RETIRED, InputError, nearest, printable, shown
from learncost.models.argument import names_own_sizes
from learncost.models.configuration import SETTINGS
from learncost.models.families import FAMILIES
from learncost.models.files import DATA_FILES
from learncost.models.sizes import CANONICAL, spelled
from learncost.reports.question import FLAGS, Flag, docstring_parts, question, switches

if TYPE_CHECKING:
    from learncost.importer.files.reading import FileOptions


def read(command: str, flags: Sequence[Flag], words: Iterable[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the typed arguments, and the flags by their parameters' names: strings, or booleans for switches.

    Raises `InputError` for an unknown or repeated flag, a flag without a value, and a wrong number of arguments.
    """
    by_spelling = {name: flag for flag in flags if flag.how == "flag" for name in flag.names}
    named = {flag.name for flag in by_spelling.values()}
    others = any(flag.how == "flags" for flag in flags)
    left, arguments, typed_values, names = list(words), list[str](), dict[str, Any](), dict[str, str]()
    letters = others and any(map(names_own_sizes, left))  # a table's sizes, which are checked where it is read
    while left:
        word = left.pop(0)
        if word == "--":
            arguments += left
            break
        if not _is_flag(word):
            arguments.append(word)
            continue
        name, joined, text = word.partition("=")
        spelling = name.replace("_", "-").lower()
        if spelling not in by_spelling and switches().get(spelling, ("",))[0] in named:
            key, value = switches()[spelling]
            _check_alone(name, joined, left)
            _check_once(key, f"{name} (--{key} {value})", names)
            typed_values[key] = value
            continue
        flag = by_spelling.get(spelling) or by_spelling.get(spelling.replace("--no-", "--", 1))
        if flag is None and not (letters and name.startswith("--")):
            value = text if joined else "".join(left[:1])
            _check_size(command, name, value, (*by_spelling, "--help"), others)
        key = flag.name if flag else name.lstrip("-")
        repeats = flag is not None and flag.about.repeats
        if not repeats:
            _check_once(key, name, names)
        if flag and flag.kind == "boolean":
            _check_alone(name, joined, left)
            if spelling not in flag.names and not flag.reverses:
                raise InputError(f"{word} is not a flag: {flag.names[0]} takes no value")
            typed_values[key] = spelling in flag.names
            continue
        if not text if joined else not left or not left[0] or _is_flag(left[0]):
            brief = flag.about.brief.rstrip(".") if flag else ""
            raise InputError(f"{name} needs a value{brief and ': '}{brief[:1].lower()}{brief[1:]}")
        value = text if joined else left.pop(0)
        typed_values[key] = [*typed_values.get(key, []), value] if repeats else value
    arguments = _joined(command, flags, arguments)
    _check_count(command, flags, arguments, typed_values)
    return arguments, typed_values


SEVERAL_MODELS = ("compare",)
"""The commands that compare several models in one table."""


def _joined(command: str, flags: Sequence[Flag], arguments: list[Any]) -> list[Any]:
    """Return the arguments; a trainer's file with what follows it is one model, and several models are a list."""
    places = [flag.name for flag in flags if flag.how == "argument"]
    if places[:1] not in (["model"], ["subject"]) or not any(each.lower().endswith(DATA_FILES) for each in arguments):
        if command in SEVERAL_MODELS:
            arguments = [name for each in arguments for name in ([each] if "/" in each else each.strip(",").split(","))]
            return [arguments] if len(arguments) > 1 else arguments
        return arguments
    from learncost.trainer_files.reading import is_trainer_file  # imported where such a file is given

    return [tuple(arguments)] if any(map(is_trainer_file, arguments)) else arguments


def _check_once(key: str, name: str, names: dict[str, str]) -> None:
    """Refuse a parameter that is given again; `names` has how each was typed."""
    if earlier := names.get(key):
        same = f"{earlier} and {name} are the same option: give one of them"
        raise InputError(f"{name} is given twice" if earlier == name else same)
    names[key] = name


def _check_alone(name: str, joined: str, left: Sequence[str]) -> None:
    """Refuse a switch with a value: after =, or true or false as other tools have it."""
    if joined or (left and left[0].lower() in ("true", "false")):
        raise InputError(f"{name} takes no value: type it alone, or leave it out")


def _is_flag(word: str) -> bool:
    """Return whether an argument is a flag: a single - is standard input, and -0.1 or -2GB a value."""
    rest = word[1:].lstrip(".")
    return word.startswith("-") and bool(rest) and not rest[0].isdigit() and rest not in ("inf", "nan")


def _check_size(command: str, name: str, value: str, spellings: Sequence[str], others: bool) -> None:
    """Refuse a flag that is neither the command's nor a size or a setting of models."""
    if RETIRED["flag"].get(name) in spellings:
        raise InputError(f"the flag {name!r} is called {RETIRED['flag'][name]!r} now")
    if f"-{name}" in spellings:
        raise InputError(f"unknown flag {shown(name)}: type -{name}")
    spelling = name.removeprefix("--").replace("_", "-").lower()
    for row in FLAGS.values():
        if (meant := row.others.get(spelling)) and meant.split()[0] in spellings:
            exact = re.sub(r"\bN\b", value, meant) if value.isdecimal() else meant
            raise InputError(f"unknown flag {shown(name)}: type {exact}")
    sizes = {*CANONICAL, *SETTINGS} if others else set()
    if others and name.startswith("--") and spelled(name[2:]) in sizes:
        return
    if others:  # what only some families read; their files are opened for it
        every = [(f.sizes, f.settings, f.dropout, f.refused, f.spellings) for f in FAMILIES.values()]
        sizes |= {key for tables in every for keys in tables for key in keys}
        if name.startswith("--") and spelled(name[2:]) in sizes:
            return
    if name.lstrip("-").replace("-", "_") in FLAGS:
        from learncost.cli.command import COMMANDS  # it imports this module

        having = [other for other, known in COMMANDS.items() if any(name in flag.names for flag in known.flags)]
        several = ", ".join(having[:3]) + (
            " and others have it" if having[3:] else f" ha{'ve' if having[1:] else 's'} it"
        )
        raise InputError(f"unknown flag {shown(name)} of {command}: learncost {several}")
    near = nearest(name, [*spellings, *(f"--{size.replace('_', '-')}" for size in sizes)])
    where = f"; `learncost {command} --help all` shows every flag{' and `learncost list sizes` every size' * others}"
    raise InputError(f"unknown flag {shown(name)}{near or where}")


def _check_count(command: str, flags: Sequence[Flag], arguments: Sequence[str], names_given: Iterable[str]) -> None:
    """Refuse a wrong number of arguments and a missing required flag."""
    places = [flag for flag in flags if flag.how == "argument"]
    if len(arguments) > len(places) and not any(flag.how == "arguments" for flag in flags):
        raise InputError(_unexpected(command, flags, arguments))
    missing = [flag.name.upper() for flag in places[len(arguments) :] if flag.required]
    missing += [
        f"{flag.names[0]} {flag.value}"
        for flag in flags
        if flag.how == "flag" and flag.required and flag.name not in names_given
    ]
    if missing:
        from learncost.cli.command import COMMANDS  # it imports this module

        examples = docstring_parts(COMMANDS[command].question).commands
        raise InputError(f"{command} needs {missing[0]}, as in: {examples[0][0]}")


def _unexpected(command: str, flags: Sequence[Flag], arguments: Sequence[str]) -> str:
    """Return the error about the first unexpected argument, with a suggestion."""
    places = [flag.name for flag in flags if flag.how == "argument"]
    word, only = arguments[len(places)], " ".join(places)
    one = {"model": "one model", "subject": "one model or layer"}
    takes = one.get(only) or " and ".join(map(str.upper, places)) or "no arguments"
    text = f"{command} takes {takes}; unexpected {'second ' if only in one else ''}argument {shown(word)}"
    size = spelled(word.partition("=")[0])
    name = f"--{size.replace('_', '-')}"
    others = CANONICAL if any(flag.how == "flags" for flag in flags) else ()
    if size in others or name in [each for flag in flags if flag.how == "flag" for each in flag.names]:
        return f"{text}: a flag begins with --, as in {name}"
    if only == "model":
        both = " ".join(
            quote(argument) if len(argument) < 80 else "MODEL" for argument in map(printable, arguments[:2])
        )
        return f"{text}: run it for one after the other, or compare them with learncost report {both}"
    has_like = any(flag.name == "like" for flag in flags)
    return f"{text}: {f'type --like {quote(word)}' if has_like else 'remove it'}"


@question()
def reading_files(*, format_of: str | None = None, strict: bool = False) -> dict[str, Any]:
    """Return the settings for reading trainers' files."""
    return {"format_of": format_of or "", "strict": strict}


@question()
def reading(
    *,
    input: Sequence[str] | str | None = None,
    as_run: bool = False,
    unknown: str = "refuse",
    no_fold: bool = False,
    no_cache: bool = False,
) -> FileOptions:
    """Return the settings for importing a module."""
    from learncost.importer.files.reading import FileOptions  # imported where it is needed: start-up counts

    inputs = (input,) if isinstance(input, str) else tuple(input or ())
    return FileOptions(inputs, not no_fold, as_run, unknown, not no_cache)
