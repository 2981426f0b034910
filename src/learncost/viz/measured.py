"""Measured steps of a training: every line of the program with its time, and the memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from learncost import __version__
from learncost.devices.rates import THIS_MACHINE
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.timing.traced import TracedStep, TraceMark
from learncost.viz.predicted import phases
from learncost.viz.timeline import Slice, Timeline, TimelineCounter, TimelineProcess, changes
from learncost.viz.trace import ENDINGS, Trace, trace

_HEADING = re.compile(r"    # (?P<layer>[a-z][\w ]*?)(?P<backward>, backward)?$")
_EQUATION = re.compile(r"\(([\d, -]+)\)$")
_FIELD = re.compile(r"\bm\.(\w+)")
_OUT = re.compile(r"\bout=m\.(\w+)")
_PART = re.compile(r"_part\d+$")

OPTIMIZER = "optimizer"

_LOOPS = "the blocks"
"""The heading of loops, which is no layer."""


@dataclass(frozen=True)
class _NumberedStatement:
    """A computing statement of a program: its start, layer, result and equation."""

    first: int
    layer: str
    name: str
    equation: str


@lru_cache(maxsize=16)
def _read(text: str) -> Mapping[int, _NumberedStatement]:
    """Return the statements of a program by line number."""
    lines, statements = text.splitlines(), dict[int, _NumberedStatement]()
    layers, layer = [""], ""
    for line in lines:
        heading = _HEADING.match(line)
        layer = "" if line.startswith("def ") else heading[1] + (heading[2] or "") if heading else layer
        layers.append("" if layer.startswith(_LOOPS) else layer)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) and layers[node.lineno]:
            code = ast.get_source_segment(text, node) or ""
            equation = _EQUATION.search(lines[(node.end_lineno or node.lineno) - 1])
            statement = _NumberedStatement(
                node.lineno, layers[node.lineno], _named(node, code), equation[1] if equation else ""
            )
            statements |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), statement)
    return statements


def _named(statement: ast.stmt, code: str) -> str:
    """Return the result's name of a statement: the name on its left, or that of the array that a call fills."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        first = target.elts[0] if isinstance(target, ast.Tuple) else target
        return ast.unparse(first).removeprefix("m.")
    if out := _OUT.search(code):
        return out[1]
    fields = _FIELD.findall(code)
    return fields[-1] if fields else code.partition("(")[0]


def _pass(layer: str, name: str, function: str, weights: frozenset[str]) -> str:
    """Return the pass of a line, by its layer's heading and its result."""
    if layer == OPTIMIZER:
        return "optimizer_step"
    if layer.endswith(", backward"):
        return "weight_update" if _PART.sub("", name).removeprefix("d") in weights else "backward"
    return "recomputation" if function.endswith("_backward") else "forward"


class _MeasuredSlices:
    """The slices of a step's marks."""

    def __init__(self, step: TracedStep, zero: int, weights: frozenset[str]) -> None:
        self.step, self.zero, self.weights = step, zero, weights
        self.iterations: CountingArray = {}
        self.memory = [(mark.at - zero, mark.memory) for mark in step.marks if mark.memory]

    def slice(self) -> Slice:
        marks = list(self.step.marks)
        parts: list[Slice] = []
        while marks:
            marks, slices = self._function(marks)
            parts += slices
        for name, iterations in self.iterations.items():  # the last block comes first on the way back
            for number, iteration in enumerate(reversed(iterations) if name.endswith("_backward") else iterations):
                iteration.name = f"{name.removesuffix('_backward').replace('_', ' ')} {number}"
        start, end = self.step.began - self.zero, self.step.ended - self.zero
        facts = {"step": self.step.number, "seconds": (end - start) / 1e9}
        return Slice(f"step {self.step.number:,}", "step", "step", start, end, facts, list(_in_passes(parts)))

    def _function(self, marks: Sequence[TraceMark]) -> tuple[list[TraceMark], list[Slice]]:
        """Return the layers and iterations of the function that the first mark calls, and the marks after it."""
        call, *rest = marks
        lines: list[Slice] = []
        slices: list[Slice] = []
        statements, at = _read(call.text), 0

        def settle(end: int) -> None:
            if lines:
                lines[-1].end = end - self.zero
            slices.extend(_in_layers(lines))
            lines.clear()

        while rest:
            mark = rest[0]
            if mark.event == "call":
                if lines and lines[-1].facts["statement"] == at:
                    lines.pop()  # it is the call
                settle(mark.at)
                rest, parts = self._function(rest)
                if parts:
                    iteration = Slice(mark.function, "block", _passes(parts), parts[0].start, parts[-1].end, {}, parts)
                    self.iterations.setdefault(mark.function, []).append(iteration)
                    slices.append(iteration)
                continue
            rest = rest[1:]
            if mark.event == "return":
                settle(mark.at)
                break
            statement = statements.get(mark.line)
            if statement is None or (lines and statement.first == at):
                at = 0 if statement is None else at
                continue  # what is let go, or sizes: time of the line before
            if lines:
                lines[-1].end = mark.at - self.zero
            at = statement.first
            facts: dict[str, Any] = {"layer": statement.layer, "statement": at, "memory": mark.memory}
            if statement.equation:
                facts["equation"] = statement.equation
            category = _pass(statement.layer, statement.name, call.function, self.weights)
            lines.append(Slice(statement.name, "line", category, mark.at - self.zero, mark.at - self.zero, facts))
        return rest, slices


CountingArray = dict[str, list[Slice]]


def _in_layers(lines: Iterable[Slice]) -> Iterable[Slice]:
    for layer, group in groupby(lines, lambda line: line.facts["layer"]):
        members = list(group)
        for line in members:
            line.facts = {name: value for name, value in line.facts.items() if name not in ("layer", "statement")} | {
                "seconds": line.length / 1e9
            }
        yield Slice(layer.partition(",")[0], "layer", _passes(members), members[0].start, members[-1].end, {}, members)


def _passes(parts: Iterable[Slice]) -> str:
    return ",".join(dict.fromkeys(name for part in parts for name in part.category.split(",")))


def _in_passes(parts: Sequence[Slice]) -> Iterable[Slice]:
    for passes, members in phases(parts, lambda part: part.category.split(",")):
        name = ", ".join(category.replace("_", " ") for category in passes)
        yield Slice(name, "pass", ",".join(passes), members[0].start, members[-1].end, {}, list(members))


def timeline(
    steps: Sequence[TracedStep], weights: Iterable[str], facts: Mapping[str, str], predicted: int | None = None
) -> Timeline:
    """Return the timeline of the steps, with the memory of the process and its prediction.

    weights    the model's, by name
    predicted  bytes of weights, state and step
    """
    zero = steps[0].began if steps else 0
    names = frozenset(re.sub(r"\W", "_", name) for name in weights)
    readings = [_MeasuredSlices(step, zero, names) for step in steps]
    slices = tuple(reading.slice() for reading in readings)
    levels = [level for reading in readings for level in reading.memory]
    counters = [TimelineCounter("memory of the process, measured", "bytes", changes(levels))] if levels else []
    if predicted and slices:
        ends = (slices[0].start, predicted), (slices[-1].end, predicted)
        counters.append(TimelineCounter("weights, state and step, predicted", "bytes", ends))
    return Timeline((TimelineProcess(facts["what"], slices, tuple(counters)),), facts)


def write(
    folder: Path,
    steps: Sequence[TracedStep],
    weights: Iterable[str],
    title: str,
    predicted: int | None,
    arguments: Mapping[str, Any],
) -> str:
    """Write the traces of a run into its folder in both formats; return the description of the files.

    title      how the engine runs
    arguments  of `learncost trace` for the step; the predicted one is added, if this machine is known
    """
    facts = {
        "made by": f"learncost {__version__}, learncost train --trace",
        "what": f"{folder.name}, measured: {title}",
        "length": "seconds, measured; tracing adds one or two microseconds per line",
        "memory": "resident bytes of the process with its libraries; predicted: weights, state and step",
    }
    measured = timeline(steps, weights, facts, predicted)
    prediction = _predicted(arguments)
    if isinstance(prediction, str):
        facts["predicted"] = prediction
    else:
        facts |= {f"predicted, {name}": text for name, text in prediction.timeline.facts.items()}
        measured = Timeline((*measured.processes, *prediction.timeline.processes), facts)
    both = Trace(facts["what"], measured)
    for ending in ENDINGS:
        both.write(folder / f"trace{ending}")
    return f"traced {len(steps)} step{'s' if len(steps) != 1 else ''}: {folder / f'trace{ENDINGS[0]}'}"


def _predicted(arguments: Mapping[str, Any]) -> Trace | str:
    """Return the predicted step on this machine, or why there is none."""
    ask: Callable[..., Trace] = trace
    try:
        return ask(**{name: value for name, value in arguments.items() if value is not None}, on=THIS_MACHINE)
    except InputError as error:
        return f"without a predicted step: {error}"
