"""The command `learncost`: its subcommands, what they print, and how they fail.

Results go to standard output. Whatever is wrong with what was typed or read is one line on standard error and exit
code 2. Questions are imported when they are asked, so that one costs nothing to another.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.cli.typed import read
from learncost.interrupt import signals_as_interrupts
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, nearest, shown
from learncost.reports.question import FLAGS, Flag, flags_of, in_flags, schema_of
from learncost.reports.sheet import FORMATS, SPELLED, TabularAnswer

ABOUT = "The cost of training neural networks: exact MACCs, FLOPs, bytes, memory and time, verified by execution."


@dataclass(frozen=True)
class Command:
    """A command: its function, as module:function, its purpose, and the formats of its answer.

    formats  none if the answer is text, or if the command prints it
    file     whether the answer can be written to a file
    plots    whether a terminal shows a character plot below it
    """

    where: str
    about: str
    formats: tuple[str, ...] = FORMATS
    file: bool = True
    plots: bool = False

    @property
    def file_name(self) -> str:
        """The path of the function's file in the package."""
        return f"{self.where.partition(':')[0].replace('.', '/')}.py"

    @property
    def question(self) -> Callable[..., Any]:
        """The function, imported now."""
        module, _, name = self.where.partition(":")
        function: Callable[..., Any] = getattr(import_module(f"learncost.{module}"), name)
        return function

    @property
    def writing(self) -> tuple[Flag, ...]:
        """The flags for the answer's format and file."""
        rows: list[tuple[str, str, Any, str]] = []
        if self.formats:
            meaning = f"How the result is written: {', '.join(self.formats[:-1])} or {self.formats[-1]}."
            rows += [("format", "string", "table", meaning), ("json", "boolean", False, FLAGS["json"].meaning)]
        if self.file:
            rows.append(("output", "string", None, FLAGS["output"].meaning))
        if self.plots:
            rows.append(("plot", "boolean", False, FLAGS["plot"].meaning))
        return tuple(Flag(name, kind, usual, "flag", meaning, FLAGS[name]) for name, kind, usual, meaning in rows)

    @property
    def importing(self) -> tuple[Flag, ...]:
        """The flags for reading a user's module, or trainers' files, if the command takes models."""
        of_models = {flag.name for flag in flags_of(self.question) if flag.how in ("argument", "arguments")}
        if not of_models & {"model", "models", "subject"}:
            return ()
        from learncost.cli.typed import reading, reading_files

        return (*flags_of(reading), *flags_of(reading_files))

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The command's arguments and flags."""
        return (*flags_of(self.question), *self.importing, *self.writing)


_LAYER = (*FORMATS, "mathml")

_COMMANDS: Mapping[str, Command] = {
    "cost": Command("reports.cost:cost", "The exact cost of one training step, by layer and macro-operation."),
    "compare": Command(
        "reports.compare:compare",
        "Compare learning procedures, and the lengths at which one becomes cheaper.",
        plots=True,
    ),
    "conventions": Command(
        "reports.conventions:conventions", "The counts of every price book and counter, and why they differ."
    ),
    "formulas": Command(
        "reports.formulas.formulas:formulas",
        "MACCs and FLOPs as formulas: of a layer, or of a model's own layers.",
        _LAYER,
    ),
    "explain": Command(
        "reports.formulas.explain:explain", "A layer, an operator or a model's layer line by line, with its gradients."
    ),
    "sweep": Command("cli.sweep:sweep", "The cost of all combinations of sizes, as CSV or Parquet.", (), False),
    "rules": Command("reports.rules:rules", "Rules of thumb compared with the exact numbers."),
    "memory": Command(
        "reports.memory.memory:memory",
        "The peak memory of a training step, its live arrays, and what fits a budget.",
        plots=True,
    ),
    "fit": Command("reports.memory.fit:fit", "Which learning procedures fit a device's memory, and suggested changes."),
    "place": Command(
        "reports.placed:place", "The sharded step of each device of a mesh, with a reason for each collective."
    ),
    "figure": Command(
        "viz.figure:figure", "A figure for a paper: memory, roofline, procedures, crossover and others.", (), False
    ),
    "trace": Command("viz.trace:trace", "The predicted step as a trace for Perfetto, line by line.", FORMATS, False),
    "serve": Command(
        "viz.serve.command:serve", "The explorer in a browser, and the progress of training runs.", (), False
    ),
    "run-cost": Command("reports.run_cost.run_cost:run_cost", "Time, energy, CO2 and price of a whole training run."),
    "search": Command(
        "reports.search.search:search", "The fastest parallel configurations of a training step on a cluster."
    ),
    "import": Command(
        "cli.import_module:import_module", "Import a PyTorch module from a Python file as a table.", (), False
    ),
    "calibrate": Command(
        "cli.calibrate:calibrate",
        "Measure this machine, so that cost --on here predicts the time of a step.",
        (),
        False,
    ),
    "complexity": Command(
        "reports.complexity:complexity",
        "Costs of attention, recurrence and convolution, and where they cross.",
        plots=True,
    ),
    "contest": Command(
        "cli.contest:contest",
        "Train with several learning procedures under equal budgets, and compare.",
        FORMATS,
        False,
    ),
    "train": Command(
        "training.train:train", "Train a model on plain files: texts, pairs, classes, images, sounds.", (), False, True
    ),
    "sample": Command("cli.sample:sample", "Continue a text with a trained model.", (), False),
    "verify": Command("cli.verify:verify", "Verify counts and gradients by running the tables."),
    "emit": Command(
        "cli.emit:emit", "The step as source for NumPy, PyTorch or JAX, or as C99 for a microcontroller.", ()
    ),
    "report": Command(
        "viz.report:report", "One HTML file with cost, memory, time and formulas, with sliders.", (), False
    ),
    "cite": Command(
        "cli.cite:cite", "BibTeX of learncost, and of the works behind price books and learning procedures.", ()
    ),
    "errata": Command("cli.errata:errata", "Errata of the publications, and their effect on totals."),
    "completion": Command(
        "cli.completion:completion",
        "The completion of commands, flags, models and devices, for bash, zsh, fish.",
        (),
        False,
    ),
    "list": Command("cli.lists.listing:listing", "Models, sizes, price books, procedures, layers, operators and more."),
}

_SOURCES = Path(__file__).parents[1]

COMMANDS = {name: command for name, command in _COMMANDS.items() if (_SOURCES / command.file_name).exists()}
"""Every command that is installed."""

COMMAND_GROUPS = {
    "A step": "cost memory compare",
    "A run on devices": "run-cost search",
    "Why counts differ": "conventions explain",
    "Pictures": "report figure",
    "Training": "train verify",
    "What there is": "list",
}
"""The twelve commands by what they are about, as the help shows them."""

MERGED = {
    "calibrate": "cost",
    "fit": "memory",
    "sweep": "compare",
    "complexity": "compare",
    "place": "search",
    "rules": "conventions",
    "errata": "conventions",
    "cite": "conventions",
    "formulas": "explain",
    "import": "explain",
    "serve": "report",
    "trace": "report",
    "sample": "train",
    "contest": "train",
    "emit": "train",
    "completion": "list",
}
"""The other commands, each the flag of its name of one of the twelve: learncost memory --fit is learncost fit."""

MORE = "more"
"""The word that lists the other commands, and goes before them."""

RETIRED = {"bench": "run python benchmarks/against_torch_and_jax in a clone of the source"}
"""Words that were commands, and what to do now."""

GOOD, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class _NotWrittenError(Exception):
    """The result could not be written, for example on a full disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None and "LEARNCOST_COMPLETE" in os.environ:
        from learncost.cli.completion import following

        print(*following(sys.argv[1:]), sep="\n")
        return GOOD
    words = list(sys.argv[1:] if arguments is None else arguments)
    with signals_as_interrupts():
        return _ended(words)


def _ended(words: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    words = unmerged(words)
    try:
        if words[:1] == ["--version"]:
            answer: Any = __version__
        elif (answer := _help(words)) is None:
            answer = _answer(words[0], words[1:])
        _print(answer)
        return answer if isinstance(answer, int) else int(getattr(answer, "exit_code", GOOD))
    except InputError as error:
        flags = COMMANDS[words[0]].flags if words and words[0] in COMMANDS else ()
        return _refuse(in_flags(error.written, flags, words))
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except _NotWrittenError as error:
        print(f"learncost: cannot write the result: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refuse(f"the file name {shown(error.filename)} is too long")


def unmerged(words: Sequence[str]) -> Sequence[str]:
    """Return a command line under the name of the command that answers it: a flag of one of the twelve, or `more`."""
    if words[:1] == [MORE] and words[1:2] and (words[1] in COMMANDS or not words[1].startswith("-")):
        return words[1:]
    for name, main_command in MERGED.items():
        if words[:1] == [main_command] and (flag := f"--{name}") in words:
            place = words.index(flag)
            return [name, *words[1:place], *words[place + 1 :]]
    return words


def _help(words: Sequence[str]) -> Any:
    """Return the requested page of help, or with --json the JSON schema; None if no help is requested."""
    flags = words[: words.index("--")] if "--" in words else words
    first_word = next(iter(words), "")
    if not (first_word in ("help", MORE) or {"--help", "-h"} & set(flags) or not words):
        return None
    from learncost.cli.help import ALL, more, overview, page

    everything = len(words) > 1 and words[-1] == ALL and (words[-2] in ("--help", "-h") or first_word == "help")
    typed_names = [word for word in words[: len(words) - everything] if not word.startswith("-")]
    names = typed_names[first_word in ("help", MORE) :][:1]
    if names and names[0] not in COMMANDS:
        raise InputError(_no_command(names[0]))
    if "--json" in flags:
        schemas = [
            schema_of(name, command.question) for name, command in COMMANDS.items() if name in (names or COMMANDS)
        ]
        return json.dumps(schemas[0] if names else schemas, indent=2)
    if names:
        merged = {f"--{name}": COMMANDS[name].about for name, of in MERGED.items() if of == names[0]}
        return page(names[0], COMMANDS[names[0]], merged, everything)
    if first_word == MORE:
        return more({f"{of} --{name}": COMMANDS[name].about for name, of in MERGED.items()})
    groups = {
        group: {name: COMMANDS[name].about for name in names_of_group.split()}
        for group, names_of_group in COMMAND_GROUPS.items()
    }
    return overview(groups, [*MERGED], ABOUT)


def _answer(name: str, words: Sequence[str]) -> Any:
    """Return the answer of a command, ready to print. Raises `InputError`."""
    if name not in COMMANDS:
        raise InputError(_no_command(name))
    command = COMMANDS[name]
    try:
        arguments, flags_given = read(name, command.flags, words)
    except InputError as error:
        from learncost.training.processes import reported_once  # others may have been started with the same words

        with reported_once():
            raise error
    writing = {flag.name: flags_given.pop(flag.name, flag.default) for flag in command.writing}
    plots = writing.pop("plot", False) and sys.stdout.isatty()
    chosen_format, path = _format(command.formats, **writing), writing.get("output")
    if flags_given.get("export") is not None and not path:
        raise InputError("--export requires the file to write: -o FILE")
    if path:
        from learncost.models.storage import check_folder, write_text  # imported where used, for a fast start

        check_folder(Path(path))
    if arguments and isinstance(arguments[0], tuple):  # trainers' files, which are one model
        from learncost.cli.typed import reading_files
        from learncost.trainer_files.reading import TrainerFiles

        how = {flag.name: flags_given.pop(flag.name) for flag in flags_of(reading_files) if flag.name in flags_given}
        arguments[0] = TrainerFiles(arguments[0], **reading_files(**how))
    elif command.importing:
        flags_of_modules = {
            flag.name: flags_given.pop(flag.name) for flag in command.importing if flag.name in flags_given
        }
        if arguments and isinstance(arguments[0], list):  # several models
            arguments = [_with_modules(command, arguments[0], flags_of_modules)]
        else:
            arguments = _with_modules(command, arguments, flags_of_modules)
    answer = command.question(*arguments, **flags_given)
    if arguments and isinstance(arguments[0], tuple):  # trainers' files, which are one model
        answer = _of_files(name, arguments[0], answer, flags_given)
    if path and (exported := getattr(answer, "exported", None)):
        return exported.written(path)
    if path and hasattr(answer, "files"):
        for each, text in answer.files(Path(path)).items():
            write_text(each, text.removesuffix("\n") + "\n")
        return GOOD
    if chosen_format != "table" or path:
        answer = _WrittenAnswer(
            answer if isinstance(answer, str) else answer.show(chosen_format), getattr(answer, "exit_code", GOOD)
        )
    if path:
        write_text(Path(path), str(answer).removesuffix("\n") + "\n")
        return answer.exit_code
    return _Plotted(answer, getattr(answer, "exit_code", GOOD)) if plots and chosen_format == "table" else answer


def _with_modules(command: Command, arguments: Sequence[str], flags_given: Mapping[str, Any]) -> list[Any]:
    """Return the arguments, with each module of a file or config.json replaced by its table."""
    from learncost.cli.typed import reading, reading_files
    from learncost.models.argument import described_elsewhere

    if of_files := [each.names[0] for each in flags_of(reading_files) if each.name in flags_given]:
        raise InputError(f"{of_files[0]} is of trainers' files, such as: learncost memory qlora.yaml")
    if not any(".py" in argument or described_elsewhere(argument) for argument in arguments):
        if flags_given:
            flag = next(iter(flags_given)).replace("_", "-")
            raise InputError(f"--{flag} requires an imported module: give FILE.py:NAME, or a config.json")
        return [*arguments]
    from learncost.importer.files.reading import layer_of
    from learncost.models.argument import NamedLayer

    how = reading(**flags_given)
    layers = [(argument, layer_of(argument, how)) for argument in arguments]
    quotes = {"models", "top"}  # pages and rows of a search name what a model is called
    named = any(flag.name in quotes for flag in flags_of(command.question))
    read_by = tuple(_typed(flags_given))
    return [
        argument if layer is None else NamedLayer(argument, layer, read_by) if named else layer
        for argument, layer in layers
    ]


def _of_files(name: str, files: tuple[str, ...], answer: Any, flags_given: Mapping[str, Any]) -> Any:
    """Return an answer about trainers' files with what was read of them."""
    from learncost.reports.trainer_step import AnswerOfFiles, TrainerStep, trainer_step

    if isinstance(answer, TrainerStep) or not isinstance(answer, TabularAnswer):
        return answer
    question = COMMANDS[name].question
    unused = getattr(question, "device_alone", ()) if "on" not in flags_given else ()
    flags = [flag.name for flag in flags_of(question) if flag.name not in unused]
    return AnswerOfFiles(trainer_step(files, name, flags, **flags_given), answer)


def _typed(flags_given: Mapping[str, Any]) -> Iterator[str]:
    """Return flags as typed; one with several values is repeated."""
    for name, value in flags_given.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list | tuple) else [value]:
            yield from (flag,) if each is True else (flag, str(each))


@dataclass(frozen=True)
class _Plotted:
    """An answer for a terminal with a character plot below it."""

    answer: Any
    exit_code: int

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        from learncost.viz.terminal import plot

        yield self.answer
        try:
            yield Text(f"\n{plot(self.answer, options.max_width)}", no_wrap=True, overflow="crop")
        except InputError as error:
            yield Text(f"\nNo picture: {error}.", style="dim")


@dataclass(frozen=True)
class _WrittenAnswer:
    """An answer as text, with its exit code."""

    text: str
    exit_code: int

    def __str__(self) -> str:
        return self.text


def _format(formats: Sequence[str], format: str = "table", json: bool = False, output: str | None = None) -> str:
    """Return the format given by --format and --json."""
    if not formats:
        return "table"
    chosen_format = SPELLED.get(format, format)
    if chosen_format not in formats:
        raise InputError(f"format must be one of {', '.join(formats)}, not {shown(format)}{nearest(format, formats)}")
    if json and chosen_format not in ("table", "json"):
        raise InputError(f"--json contradicts --format {format}")
    return "json" if json else chosen_format


def _no_command(name: str) -> str:
    if name.startswith("-"):
        return f"unknown flag {shown(name)}{nearest(name, ('--help', '--version'))}"
    if name in RETIRED:
        return f"{name} is no longer a command: {RETIRED[name]}"
    hint = nearest(name, COMMANDS) or f"; there are {', '.join(' '.join(COMMAND_GROUPS.values()).split())} and {MORE}"
    return f"no command is called {shown(name)}{hint}"


def _print(result: Any) -> None:
    """Print the answer of a command: with colours on a terminal, as plain text elsewhere."""
    if result is None or isinstance(result, int):
        return
    if not isinstance(result, str) and sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(result)
        return
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show ×
    if not (text := str(result)):
        return
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_output()
        raise _NotWrittenError(error.strerror) from None


def _forget_output() -> None:
    """Discard buffered output, so that Python does not report a closed pipe again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str) -> int:
    print(f"learncost: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
