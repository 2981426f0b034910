"""From `FILE.py:NAME` to the text of a table: known from before, or by running the file and reading what it builds."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from learncost.equation.errors import InputError
from learncost.faces.importing.cache import Place, Remembered
from learncost.faces.importing.flags import How
from learncost.faces.importing.user_file import Target, told
from learncost.models.imported.inputs import Input, attempts, checked, parse_inputs, symbols_of, tensors
from learncost.models.wording import printable
from learncost.version import __version__


def say(text: str) -> None:
    """Tell the user something beside the answer."""
    print(f"learncost: {text}", file=sys.stderr)


def imported(wanted: Target, how: How) -> Remembered:
    """The table of what a file builds, as text. Raises `InputError`."""
    inputs = parse_inputs(how.inputs)
    place = Place(wanted.file, [wanted.name, [str(each) for each in inputs], how.fold, how.as_run, how.unknown])
    known = place.read() if how.cache else None
    if known is None:
        if not wanted.file.is_file():
            folder = "; that is a folder" if wanted.file.is_dir() else ""
            raise InputError(f"no such file: {printable(str(wanted.file))}{folder}")
        if find_spec("torch") is None:
            raise InputError("reading a module needs the package torch: pip install 'learncost[torch]'")
        say(f"runs {printable(str(wanted.file))}")
        known, files = _read(wanted, inputs, how)
        if how.cache:
            place.write(known, files)
    for text in known.said:
        say(text)
    return known


def _read(wanted: Target, inputs: Sequence[Input], how: How) -> tuple[Remembered, set[Path]]:
    from learncost.faces.importing.build import built
    from learncost.faces.importing.user_file import watched

    said: list[str] = []
    with _shown() as stage, watched() as files, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as PyTorch has about itself; what the user's code prints is shown
        stage(f"running {wanted.file.name}")
        building = built(wanted, how.as_run, said.append)
        given = inputs or building.inputs or ()
        if not given:
            checked((), building.module, str(wanted))
        text, described = _text(building.module, given, how, wanted, stage)
        if how.as_run:
            said.append("the table has the operations of one run, of these sizes and with the branches that it took")
    return Remembered(f"{_remarks(wanted, described, how)}{text.strip()}\n", tuple(said)), files


def _text(
    module: Any, given: Sequence[Input] | Mapping[str, Any], how: How, wanted: Target, stage: Callable[[str], None]
) -> tuple[str, list[str]]:
    """The text of its table, and what its inputs are in words."""
    from learncost.models.imported.walk import read_module

    name = type(module).__name__
    if isinstance(given, Mapping):
        stage(f"reading {name}")
        with _exports(wanted):
            text = read_module(module, dict(given), {}, unknown=how.unknown).text
        return text, [f"{name}: {_described(value)}" for name, value in given.items()]
    given = checked(given, module, str(wanted))
    first: Exception | None = None
    for sizes in attempts(given):
        stage(f"reading {name}" + (f", tried with {_sizes_text(sizes)}" if first else ""))
        try:
            with _exports(wanted):
                values = tensors(given, sizes)
                text = read_module(module, values, symbols_of(given), unknown=how.unknown).text
            return text, [str(each) for each in given]
        except NotExportedError as error:
            first = first or error
    assert first is not None
    raise first


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return " ".join(map(str, (str(value.dtype).removeprefix("torch."), *shape))) if shape is not None else repr(value)


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{letter} = {size}" for letter, size in sizes.items())


class NotExportedError(InputError):
    """What PyTorch's export refuses, with the user's line."""


@contextmanager
def _exports(wanted: Target) -> Iterator[None]:
    """What an export raises, in one line with the user's own file and line, and what can be done."""
    try:
        yield
    except InputError as error:
        if error.__cause__ is None or not isinstance(error.__cause__, Exception):
            raise
        raise NotExportedError(refusal(error.__cause__, wanted)) from None
    except Exception as error:
        raise NotExportedError(refusal(error, wanted)) from None


def refusal(error: Exception, wanted: Target) -> str:
    """One line about what an export refuses."""
    name = type(error).__name__
    if name in ("GuardOnDataDependentSymNode", "DynamicOutputShapeException", "DataDependentOutputException"):
        place, code = _place_of(error)
        return (
            f"{place}: `{code}` depends on values, which {wanted} has only when it runs: write it with torch.cond or "
            "torch.where, or take the branch of one run with --as-run"
        )
    return f"{wanted} cannot be exported: {told(error)}"


def _place_of(error: Exception) -> tuple[str, str]:
    """The user's file and line that an error is from, and what stands there; else of the last that is no part of
    PyTorch."""
    from learncost.faces.importing.user_file import is_local

    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if is_local(Path(frame.filename))]
    others = [frame for frame in frames if "/torch/" not in frame.filename and "learncost" not in frame.filename]
    frame = (mine or others or frames)[-1]
    return f"{printable(frame.filename)}:{frame.lineno}", (frame.line or "").strip()


def _remarks(wanted: Target, inputs: Sequence[str], how: How) -> str:
    """The first lines of a table: what was read, by which versions, with which inputs."""
    from importlib.metadata import version

    python = ".".join(map(str, sys.version_info[:3]))
    lines = [
        f"{wanted.file.name}:{wanted.name}, read by learncost {__version__}, torch {version('torch')} and "
        f"Python {python}.",
        f"Inputs: {'; '.join(inputs) or 'none'}.",
    ]
    if how.as_run:
        lines.append("The operations of one run, of these sizes, with the branches that it took.")
    return "".join(f"% {line}\n" for line in lines)


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, and since when, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)
