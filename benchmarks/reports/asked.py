"""A report: its question as a user asks it, on the command line and in Python, and the verdict on both answers."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learncost as lc
from learncost.cli.command import main
from reports.oracles import built, oracles

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """An entry of reports.toml, whose first lines say what the fields are."""

    source: str
    asked: str
    ask: str
    oracle: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    answer: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    within: float = 0.0

    @property
    def words(self) -> list[str]:
        """The words of the command line, without inputs."""
        return shlex.split(self.ask)

    @property
    def module(self) -> str:
        """The name of the module that is asked about; "" where it is a preset."""
        model = self.words[1]
        return model[1:-1] if model.startswith("{") else ""

    @property
    def flags(self) -> dict[str, str]:
        """The flags, with their values."""
        flags = self.words[2:]
        return {name.removeprefix("--"): value for name, value in zip(flags[::2], flags[1::2], strict=True)}


@dataclass(frozen=True)
class Verdict:
    """right, wrong, refused or traceback; what was said for each answer, or the message; what is right."""

    kind: str
    predicted: Mapping[str, Any] = field(default_factory=dict)
    right: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""


def listed() -> list[Report]:
    """All reports."""
    with (HERE / "reports.toml").open("rb") as file:
        return [Report(**entry) for entry in tomllib.load(file)["report"]]


def judged(report: Report) -> Verdict:
    """Ask both ways, and compare with the oracle."""
    try:
        predicted, message = _on_the_command_line(report)
        in_python, message_in_python = _in_python(report)
    except Exception as error:  # what a user would see as a traceback
        return Verdict("traceback", message=f"{type(error).__name__}: {error}".splitlines()[0])
    if message or message_in_python:
        agreed = report.refused and all(report.refused in each for each in (message, message_in_python))
        return Verdict("right" if agreed else "refused", message=message or message_in_python)
    if report.refused:
        return Verdict("wrong", message="answered, where nobody knows")
    sizes = {name: int(value) for name, value in report.flags.items() if name.isupper() and value.isdigit()}
    known = oracles(report.module, report.inputs, sizes)
    right = {where: eval(expression, dict(known)) for where, expression in report.answer.items()}
    try:
        first, second = ({where: eval(where, {}, Fields(each)) for where in right} for each in (predicted, in_python))
    except (KeyError, AttributeError, NameError, ValueError) as error:
        return Verdict("wrong", {}, right, f"has no {error}")
    same = all(abs(first[where] - value) <= report.within * value for where, value in right.items())
    if first != second:
        return Verdict("wrong", first, right, f"in Python {second}")
    return Verdict("right" if same else "wrong", first, right)


class Fields(dict[str, Any]):
    """An object of JSON whose fields are attributes, too; `row` is the row with the given fields."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name == "row":
            return self._row
        value = super().__getitem__(name)
        return Fields(value) if isinstance(value, dict) else value

    def _row(self, **named: str) -> Fields:
        (found,) = (row for row in self["rows"] if named.items() <= row.items())
        return Fields(found)


def command_line(report: Report) -> list[str]:
    """What is typed."""
    model = f"{HERE / 'modules.py'}:{report.module}" if report.module else report.words[1]
    inputs = [word for name, text in report.inputs.items() for word in ("--input", f"{name}: {text}")]
    return [report.words[0], model, *report.words[2:], *inputs]


def _on_the_command_line(report: Report) -> tuple[dict[str, Any], str]:
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([*command_line(report), "--json"])
    if code:
        lines = [line for line in errors.getvalue().splitlines() if not line.startswith("learncost: runs ")]
        return {}, " ".join(line.strip() for line in lines)
    return json.loads(output.getvalue()), ""


def _in_python(report: Report) -> tuple[dict[str, Any], str]:
    flags = {name.replace("-", "_"): int(value) if value.isdigit() else value for name, value in report.flags.items()}
    try:
        model = lc.from_module(built(report.module), report.inputs) if report.module else report.words[1]
        answer = getattr(lc, report.words[0].replace("-", "_"))(model, **flags)
    except lc.InputError as error:
        return {}, str(error)
    return json.loads(json.dumps(answer.to_dict())), ""
