"""Character plots for a terminal: lines of braille dots and bars of block characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite, log2
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.reports.sheet import WIDTH, size_of
from learncost.viz.data.curve import MemoryCurve, curve
from learncost.viz.data.curves import CurveLine, of_complexity
from learncost.viz.data.growth import growth
from learncost.viz.figures.style import place_of, tick

if TYPE_CHECKING:
    from learncost.reports.compare import Comparison
    from learncost.reports.complexity import Complexity
    from learncost.reports.memory.memory import Memory
    from learncost.training.loop import TrainingResult

HIGH = 14
"""Lines of a picture."""

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character, from the top left."""

_BLANK = 0x2800
"""The braille character without a dot."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"

_FILLS: Mapping[str, str] = {"weights": "░", "state": "▒", "the rest": "█"}


@dataclass(frozen=True)
class PlotAxis:
    """The range of an axis, whether it is logarithmic, and the format of its numbers."""

    low: float
    high: float
    logarithmic: bool
    written: Callable[[float], str]

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.high == self.low:
            return 0.5
        if self.logarithmic:
            return log2(value / self.low) / log2(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """Return the value at a position on the axis."""
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


def plot(answer: Any, width: int = WIDTH) -> str:
    """Return the character plot of an answer, at most 80 columns wide.

    Raises `InputError` for an answer without numbers to draw.
    """
    draw = _PICTURES.get(type(answer).__name__)
    if draw is None:
        raise InputError(f"--plot does not support {type(answer).__name__}: it draws curves")
    return "\n".join(line.replace(chr(_BLANK), " ").rstrip() for line in draw(answer, max(40, min(width, WIDTH))))


def lines(series: Sequence[CurveLine], x: PlotAxis, y: PlotAxis, width: int, title: str, below: str) -> Iterator[str]:
    """Return a plot of lines on two labelled axes, with names at their right ends."""
    names = max(len(line.name) for line in series)
    written = {row: y.written(y.value(1 - row / (HIGH - 1))) for row in (0, HIGH // 2, HIGH - 1)}
    numbers = max(map(len, written.values()))
    across = width - numbers - names - 3
    cells = [[0] * across for _ in range(HIGH)]
    for line in series:
        points = [
            (x.share(x_value), y.share(other))
            for x_value, other in zip(line.places, line.values, strict=True)
            if isfinite(other)
        ]
        at, high = [point[0] for point in points], [point[1] for point in points]
        heights = np.interp(np.linspace(0, 1, 2 * across), at, high, left=-1, right=-1) if points else ()
        for dot, height in enumerate(heights):
            if 0 <= height <= 1:
                row = round((1 - height) * (4 * HIGH - 1))
                cells[row // 4][dot // 2] |= _DOTS[row % 4][dot % 2]
    ends = _ends(series, y)
    yield f"{'':{numbers}} {title}"
    for row, dots in enumerate(cells):
        yield f"{written.get(row, ''):>{numbers}} {''.join(chr(_BLANK + bits) for bits in dots)} {ends.get(row, '')}"
    yield f"{'':{numbers}} {_marks(x, across)}"
    yield f"{'':{numbers}} {below:>{across}}"


def _ends(series: Sequence[CurveLine], y: PlotAxis) -> dict[int, str]:
    """Return the rows of the names, without overlap."""
    rows: dict[int, str] = {}
    order = sorted(
        ((1 - y.share(line.values[-1])) * (HIGH - 1), line.name) for line in series if isfinite(line.values[-1])
    )
    for best, name in order:
        free = [row for row in range(HIGH) if row not in rows]
        if free:
            rows[min(free, key=lambda row: (abs(row - best), row))] = name
    # In the order of the lines' ends.
    return {row: name for row, (_, name) in zip(sorted(rows), order, strict=False)}


def _marks(x: PlotAxis, across: int) -> str:
    """Return the numbers below an axis, as many as fit."""
    places = (
        [2**power for power in range(64) if x.low <= 2**power <= x.high]
        if x.logarithmic
        else [x.value(part / 4) for part in range(5)]
    )
    text, end = [" "] * across, -2
    for place in places:
        written = x.written(place)
        start = round(x.share(place) * (across - 1)) - len(written) // 2
        start = min(max(start, 0), across - len(written))
        if start > end + 2:
            text[start : start + len(written)] = written
            end = start + len(written)
    return "".join(text)


def _memory(memory: Memory, width: int) -> Iterator[str]:
    """Return the plot of the bytes at every line: those in use throughout, and those of passes above."""
    data = curve(memory)
    numbers = max(len(size_of(data.peak)), 7)
    across = min(width - numbers - 1, 2 * len(data.lines))
    throughout = {"weights": ("weights", "fixed matrices", "master weights"), "state": ("optimizer state",)}
    columns = [
        _highest(data, column * len(data.lines) / across, (column + 1) * len(data.lines) / across)
        for column in range(across)
    ]
    levels = {
        name: [sum(data.kinds[kind][place] for kind in kinds if kind in data.kinds) for place in columns]
        for name, kinds in throughout.items()
    }
    yield f"{'':{numbers}} bytes at every line of the step, run by {data.engine}: peak {size_of(data.peak)}"
    for row in range(HIGH, 0, -1):
        low, high = data.peak * (row - 1) / HIGH, data.peak * row / HIGH
        cells = []
        for column, place in enumerate(columns):
            level, weights = data.lines[place].bytes, levels["weights"][column]
            both = weights + levels["state"][column]
            if (low + high) / 2 <= weights:
                cells.append(_FILLS["weights"])
            elif (low + high) / 2 <= both:
                cells.append(_FILLS["state"])
            else:
                cells.append(_EIGHTHS[max(0, min(8, round(8 * (level - low) / (high - low))))])
        number = size_of(round(high)) if row in (HIGH, HIGH // 2) else ""
        yield f"{number:>{numbers}} {''.join(cells)}"
    yield f"{'0 B':>{numbers}} {_passes(data, across)}"
    names = [name for name in ("weights", "state") if any(levels[name])]
    parts = [f"{_FILLS[name]} {'optimizer state' if name == 'state' else name}" for name in names]
    yield f"{'':{numbers}} {'   '.join([*parts, '█ made by the passes'])}"


def _highest(data: MemoryCurve, start: float, end: float) -> int:
    """Return the line with the most bytes of a column."""
    places = range(int(start), max(int(start) + 1, int(end)))
    return max(places, key=lambda place: data.lines[place].bytes)


def _passes(data: MemoryCurve, across: int) -> str:
    """Return the names of passes, each at the column of its start."""
    text, end = ["·"] * across, 0
    for phase, several in groupby(range(len(data.lines)), lambda place: data.lines[place].macro_operation):
        start = next(iter(several)) * across // len(data.lines)
        name = f"{phase.replace('_', ' ')} "
        if start >= end and start + len(name) <= across:
            text[start : start + len(name)] = name
            end = start + len(name)
    return "".join(text)


def _comparison(comparison: Comparison, width: int) -> Iterator[str]:
    """Return the plot of procedures relative to backpropagation by length."""
    data = growth(comparison)
    series = [
        CurveLine(each.procedure, data.places, tuple(float("nan") if ratio is None else ratio for ratio in each.ratios))
        for each in data.series
    ]
    values = [value for line in series for value in line.values if isfinite(value)]
    x = PlotAxis(data.places[0], data.places[-1], True, place_of)
    y = PlotAxis(min(values) * 0.97, max(values) * 1.03, False, lambda value: f"{value:.2f} ×")
    yield from lines(series, x, y, width, f"FLOPs over those of {series[0].name}", "tokens in a sequence")
    yield from wrap(f"{data.finding}.", width)


def _complexity(complexity: Complexity, width: int) -> Iterator[str]:
    """Return the plot of the MACCs of kinds of layers with known sizes by length."""
    data = of_complexity(complexity)
    places = data.lines[0].places
    values = [value for line in data.lines for value in line.values]
    x, y = PlotAxis(places[0], places[-1], True, place_of), PlotAxis(min(values), max(values), True, tick)
    yield from lines(data.lines, x, y, width, "MACCs of one layer", "tokens in a sequence, n")


def _losses(result: TrainingResult, width: int) -> Iterator[str]:
    """Return the plot of a training's losses from its log, cut above the initial loss."""
    path = Path(result.folder, "metrics.jsonl")
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    several = {
        "loss": [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None],
        "validation": [(row["step"], row["validation_loss"]) for row in rows if row.get("validation_loss") is not None],
    }
    series = [CurveLine(name, *zip(*points, strict=True)) for name, points in several.items() if len(points) > 1]
    values = [value for line in series for value in line.values if isfinite(value)]
    if not values:
        return
    begun = next(value for value in series[0].values if isfinite(value))
    steps = [step for line in series for step in line.places]
    top = min(max(values), 1.1 * begun)
    x = PlotAxis(min(steps), max(steps), False, lambda value: f"{value:,.0f}")
    y = PlotAxis(min(values), top, False, lambda value: f"{value:.3g}")
    above = f" (to {max(values):.3g} above)" if max(values) > top else ""
    yield from lines(series, x, y, width, f"loss{above}", "steps")


_PICTURES: Mapping[str, Callable[[Any, int], Iterable[str]]] = {
    "Memory": _memory,
    "Comparison": _comparison,
    "Complexity": _complexity,
    "TrainingResult": _losses,
}
"""The drawings of answers by class name, so that no class has to be imported."""
