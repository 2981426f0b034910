"""The command `learncost`: its subcommands, what they print, and how they fail.

Results go to standard output. Whatever is wrong with what was typed or read is one line on standard error and exit
code 2. Subcommands are imported when they are called, so that one costs nothing to another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, MissingArgumentError, RepeatArgumentError, UnknownCommandError
from cyclopts.exceptions import UnknownOptionError, UnusedCliTokensError

from learncost import __version__
from learncost.equation.errors import InputError
from learncost.faces.flags import refuse_unknown
from learncost.models.wording import nearest, shown

if TYPE_CHECKING:
    from learncost.faces.help import Page

ABOUT = "What learning costs a transformer: exact MACCs, FLOPs, parameters and bytes, proved by running them."

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "cost": ("cost:cost", "The exact cost of one training step, by layer and macro-operation."),
    "compare": ("compare:compare", "Learning procedures side by side, and where one overtakes another."),
    "conventions": ("conventions:conventions", "What each price book and counter says, and why they differ."),
    "formulas": ("layers:formulas", "MACCs and FLOPs as formulas: of a layer, or of a model's own layers."),
    "explain": ("layers:explain", "A layer, a word or a model's layer line by line, with its gradients."),
    "sweep": ("sweep:sweep", "The cost of all combinations of sizes, as CSV or Parquet."),
    "rules": ("rules:rules", "Rules of thumb set against the exact numbers."),
    "memory": ("memory:memory", "The peak of one training step, the arrays that make it, what fits a budget."),
    "fit": ("fit:fit", "Which learning procedures fit a device's RAM and flash, and what to change."),
    "run-cost": ("run_cost:run_cost", "Days, energy, CO2 and price of a whole training run on devices."),
    "calibrate": ("calibrate:calibrate", "Measure this machine, so that cost --on here tells the time of a step."),
    "complexity": ("complexity:complexity", "Attention, recurrence, convolution: costs and where they cross."),
    "contest": ("contest:contest", "Learning procedures trained with equal budgets, and what came of it."),
    "train": ("train:train", "Train a language model on text files, in a folder that transformers loads."),
    "sample": ("sample:sample", "Let a trained model go on with a text."),
    "bench": ("bench:bench", "The engine against PyTorch and JAX: time, memory, and the step's floor."),
    "verify": ("verify:verify", "Run the tables and prove the counts and the gradients."),
    "emit": ("emit:command", "The step as Python source for NumPy, PyTorch or JAX."),
    "errata": ("errata:errata", "What the publications print wrong, and what it does to a total."),
    "list": ("lists:listing", "Models, sizes, price books, procedures, layers, words and more."),
}

COMMANDS = {name: own for name, own in _COMMANDS.items() if find_spec(f"{__package__}.{own[0].partition(':')[0]}")}
"""Every command that is installed, its function in this package, and what it does."""

GOOD, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class _NotWrittenError(Exception):
    """The result could not be written, such as for want of space."""


def application() -> App:
    """The commands, none of them imported yet; their help is `learncost.faces.help`."""
    app = App(
        name="learncost",
        version=__version__,
        version_flags=["--version"],
        help_flags=[],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, (function, about) in COMMANDS.items():
        app.command(f"{__package__}.{function}", name=name, help=about)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check(given)
        if (asked := _help(given)) is not None:
            _print(asked)
            return GOOD
        result = application()(_with_stream(given), exit_on_error=False, print_error=False)
        _print(result)
    except CycloptsError as error:
        return _refuse(_message(error))
    except InputError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except _NotWrittenError as error:
        print(f"learncost: cannot write the result: {error}", file=sys.stderr)
        return FAILED
    return result if isinstance(result, int) else int(getattr(result, "exit_code", GOOD))


def _help(given: Sequence[str]) -> Page | None:
    """The page of help that is asked for, by a flag, by nothing at all, or by `help`."""
    flags = given[: given.index("--")] if "--" in given else given
    named = next(iter(given), "")
    if named == "help" or {"--help", "-h"} & set(flags) or not given:
        from learncost.faces.help import overview, page

        name = next((word for word in given if word in COMMANDS), "")
        if name:
            module, _, function = COMMANDS[name][0].partition(":")
            return page(name, getattr(import_module(f"{__package__}.{module}"), function))
        return overview({name: about for name, (_, about) in COMMANDS.items()}, ABOUT)
    return None


def _check(given: Sequence[str]) -> None:
    """Refuse what the parser would put less clearly."""
    if given and not given[0].startswith("-") and given[0] not in (*COMMANDS, "help"):
        raise InputError(_no_command(given[0]))
    for token in given:
        if token.startswith("-") and "." in token.partition("=")[0] and not _is_number(token):
            raise InputError(f"unknown flag {shown(token.partition('=')[0])}")


def _no_command(name: str) -> str:
    if name.startswith("-"):
        return f"unknown flag {shown(name)}{nearest(name, ('--help', '--version'))}"
    hint = nearest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
    return f"no command is called {shown(name)}{hint}"


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _with_stream(given: Sequence[str]) -> list[str]:
    """The arguments with a MODEL of `-` behind `--`, without which the parser takes it for a flag."""
    for place, token in enumerate(given):
        before = given[place - 1] if place else ""
        if token == "--":
            break
        if token == "-" and place and (not before.startswith("-") or "=" in before or before == "--json"):
            return [*given[:place], *given[place + 1 :], "--", "-"]
    return list(given)


def _print(result: Any) -> None:
    """Show what a command returned: with colours on a terminal, as plain text elsewhere."""
    if result is None or isinstance(result, int):
        return
    if not isinstance(result, str) and sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(result)
        return
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show ×
    text = str(result)
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_output()
        raise _NotWrittenError(error.strerror) from None


def _forget_output() -> None:
    """What is still in the buffer goes nowhere, so that Python's end does not complain about it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str) -> int:
    print(f"learncost: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


def _message(error: CycloptsError) -> str:
    """One line for what the parser refused."""
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _no_command(error.unused_tokens[0])
    if isinstance(error, RepeatArgumentError) and error.token.keyword:
        return f"{error.token.keyword} is given twice"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{shown(error.unused_tokens[0])} is one word too many"
    if isinstance(error, UnknownOptionError):
        flag = error.token.keyword or error.token.value
        known = [name for argument in error.argument_collection for name in argument.names]
        return f"unknown flag {shown(flag.partition('=')[0])}{nearest(flag.partition('=')[0], known)}"
    if type(error) is MissingArgumentError and error.argument is not None:
        keyword = error.keyword or next((token.keyword for token in error.argument.tokens if token.keyword), None)
        name = keyword or error.argument.name.strip("-<>")
        if error.argument.field_info.kind is Parameter.VAR_KEYWORD and error.target is not None:
            try:
                refuse_unknown({name.lstrip("-"): ""}, signature(error.target).parameters)
            except InputError as unknown:
                return str(unknown)
        if name.startswith("-"):
            return f"{name} needs a value"
        return f"{' '.join(error.command_chain or ())} needs {name.upper()}; see its --help"
    text = str(error).strip().rstrip(".")
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(main())
