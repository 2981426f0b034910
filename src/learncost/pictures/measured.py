"""Steps of a training as they ran: every line of the program with the time that it took, and the memory beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from learncost.devices.rates import HERE
from learncost.equation.errors import InputError
from learncost.pictures.predicted import phases
from learncost.pictures.timeline import Counter, Process, Slice, Timeline, changes
from learncost.pictures.trace import ENDINGS, Trace, trace
from learncost.training.traced import Mark, TracedStep
from learncost.version import __version__

_HEADING = re.compile(r"    # (?P<layer>[a-z][\w ]*?)(?P<backward>, backward)?$")
_EQUATION = re.compile(r"\(([\d, -]+)\)$")
_FIELD = re.compile(r"\bm\.(\w+)")
_OUT = re.compile(r"\bout=m\.(\w+)")
_PART = re.compile(r"_part\d+$")

OPTIMIZER = "optimizer"

_LOOPS = "the blocks"
"""The heading of loops, which is no layer."""


@dataclass(frozen=True)
class _Said:
    """A statement of a program that computes: where it begins, its layer, what it makes, its equation."""

    first: int
    layer: str
    name: str
    equation: str


@cache
def _read(text: str) -> Mapping[int, _Said]:
    """The statements of a program by the numbers of their lines."""
    lines, found = text.splitlines(), dict[int, _Said]()
    layers, layer = [""], ""
    for line in lines:
        heading = _HEADING.match(line)
        layer = "" if line.startswith("def ") else heading[1] + (heading[2] or "") if heading else layer
        layers.append("" if layer.startswith(_LOOPS) else layer)
    for own in ast.walk(ast.parse(text)):
        if isinstance(own, ast.Assign | ast.AugAssign | ast.Expr) and layers[own.lineno]:
            code = ast.get_source_segment(text, own) or ""
            equation = _EQUATION.search(lines[(own.end_lineno or own.lineno) - 1])
            said = _Said(own.lineno, layers[own.lineno], _named(own, code), equation[1] if equation else "")
            found |= dict.fromkeys(range(own.lineno, (own.end_lineno or own.lineno) + 1), said)
    return found


def _named(statement: ast.stmt, code: str) -> str:
    """What a statement makes: the name on its left, or that of the array that a call fills."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        first = target.elts[0] if isinstance(target, ast.Tuple) else target
        return ast.unparse(first).removeprefix("m.")
    if out := _OUT.search(code):
        return out[1]
    fields = _FIELD.findall(code)
    return fields[-1] if fields else code.partition("(")[0]


def _pass(layer: str, name: str, function: str, weights: frozenset[str]) -> str:
    """The pass of a line, by its layer's heading and by what it makes."""
    if layer == OPTIMIZER:
        return "optimizer_step"
    if layer.endswith(", backward"):
        return "weight_update" if _PART.sub("", name).removeprefix("d") in weights else "backward"
    return "recomputation" if function.endswith("_backward") else "forward"


class _Reading:
    """The marks of a step as slices."""

    def __init__(self, step: TracedStep, zero: int, weights: frozenset[str]) -> None:
        self.step, self.zero, self.weights = step, zero, weights
        self.turns: Tally = {}
        self.memory = [(mark.at - zero, mark.memory) for mark in step.marks if mark.memory]

    def slice(self) -> Slice:
        marks = list(self.step.marks)
        parts: list[Slice] = []
        while marks:
            marks, own = self._function(marks)
            parts += own
        for name, turns in self.turns.items():  # the last block comes first on the way back
            for number, turn in enumerate(reversed(turns) if name.endswith("_backward") else turns):
                turn.name = f"{name.removesuffix('_backward').replace('_', ' ')} {number}"
        start, end = self.step.began - self.zero, self.step.ended - self.zero
        facts = {"step": self.step.number, "seconds": (end - start) / 1e9}
        return Slice(f"step {self.step.number:,}", "step", "step", start, end, facts, list(_in_passes(parts)))

    def _function(self, marks: Sequence[Mark]) -> tuple[list[Mark], list[Slice]]:
        """The layers and turns of the function that the first mark calls, and the marks after it."""
        call, *rest = marks
        lines: list[Slice] = []
        found: list[Slice] = []
        known, at = _read(call.text), 0

        def settle(end: int) -> None:
            if lines:
                lines[-1].end = end - self.zero
            found.extend(_in_layers(lines))
            lines.clear()

        while rest:
            mark = rest[0]
            if mark.event == "call":
                if lines and lines[-1].facts["statement"] == at:
                    lines.pop()  # it is the call
                settle(mark.at)
                rest, parts = self._function(rest)
                if parts:
                    turn = Slice(mark.function, "block", _passes(parts), parts[0].start, parts[-1].end, {}, parts)
                    self.turns.setdefault(mark.function, []).append(turn)
                    found.append(turn)
                continue
            rest = rest[1:]
            if mark.event == "return":
                settle(mark.at)
                break
            said = known.get(mark.line)
            if said is None or (lines and said.first == at):
                at = 0 if said is None else at
                continue  # what is let go, or sizes: time of the line before
            if lines:
                lines[-1].end = mark.at - self.zero
            at = said.first
            facts: dict[str, Any] = {"layer": said.layer, "statement": at, "memory": mark.memory}
            if said.equation:
                facts["equation"] = said.equation
            own = _pass(said.layer, said.name, call.function, self.weights)
            lines.append(Slice(said.name, "line", own, mark.at - self.zero, mark.at - self.zero, facts))
        return rest, found


Tally = dict[str, list[Slice]]


def _in_layers(lines: Iterable[Slice]) -> Iterable[Slice]:
    for layer, group in groupby(lines, lambda line: line.facts["layer"]):
        own = list(group)
        for line in own:
            line.facts = {name: value for name, value in line.facts.items() if name not in ("layer", "statement")} | {
                "seconds": line.length / 1e9
            }
        yield Slice(layer.partition(",")[0], "layer", _passes(own), own[0].start, own[-1].end, {}, own)


def _passes(parts: Iterable[Slice]) -> str:
    return ",".join(dict.fromkeys(name for part in parts for name in part.category.split(",")))


def _in_passes(parts: Sequence[Slice]) -> Iterable[Slice]:
    for passes, own in phases(parts, lambda part: part.category.split(",")):
        name = ", ".join(one.replace("_", " ") for one in passes)
        yield Slice(name, "pass", ",".join(passes), own[0].start, own[-1].end, {}, list(own))


def timeline(
    steps: Sequence[TracedStep], weights: Iterable[str], facts: Mapping[str, str], predicted: int | None = None
) -> Timeline:
    """The steps behind each other, with the memory of the process and what was predicted for it.

    weights    the model's, by name
    predicted  bytes of weights, state and step
    """
    zero = steps[0].began if steps else 0
    known = frozenset(re.sub(r"\W", "_", name) for name in weights)
    readings = [_Reading(step, zero, known) for step in steps]
    slices = tuple(reading.slice() for reading in readings)
    levels = [level for reading in readings for level in reading.memory]
    counters = [Counter("memory of the process, measured", "bytes", changes(levels))] if levels else []
    if predicted and slices:
        ends = (slices[0].start, predicted), (slices[-1].end, predicted)
        counters.append(Counter("weights, state and step, predicted", "bytes", ends))
    return Timeline((Process(facts["what"], slices, tuple(counters)),), facts)


def write(
    folder: Path,
    steps: Sequence[TracedStep],
    weights: Iterable[str],
    said: str,
    predicted: int | None,
    asked: Mapping[str, Any],
) -> str:
    """Write the traces of a run into its folder, in both forms; says what was written.

    said   how the engine runs
    asked  the step as `learncost trace` is asked for it; the predicted one stands beside, where this machine is known
    """
    facts = {
        "made by": f"learncost {__version__}, learncost train --trace",
        "what": f"{folder.name}, measured: {said}",
        "length": "seconds, measured; tracing itself takes a microsecond or two a line",
        "memory": "resident bytes of the process, libraries among them; predicted: weights, state and step",
    }
    found = timeline(steps, weights, facts, predicted)
    beside = _predicted(asked)
    if isinstance(beside, str):
        facts["predicted"] = beside
    else:
        facts |= {f"predicted, {name}": text for name, text in beside.timeline.facts.items()}
        found = Timeline((*found.processes, *beside.timeline.processes), facts)
    whole = Trace(facts["what"], found)
    for ending in ENDINGS:
        whole.write(folder / f"trace{ending}")
    return f"traced {len(steps)} step{'s' if len(steps) != 1 else ''}: {folder / f'trace{ENDINGS[0]}'}"


def _predicted(asked: Mapping[str, Any]) -> Trace | str:
    """The step as predicted on this machine, or why there is none."""
    ask: Callable[..., Trace] = trace
    try:
        return ask(**{name: value for name, value in asked.items() if value is not None}, on=HERE)
    except InputError as error:
        return f"no predicted step beside it: {error}"
