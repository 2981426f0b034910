"""The bytes at every line of a step as stairs, with the passes above, the loops below, and the arrays of the peak."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.reports.sheet import size_of
from learncost.viz.data.curve import MemoryCurve
from learncost.viz.figures.panel import HEADING, POINTS, Panel, fitting, say, step_of
from learncost.viz.figures.style import FAINT, GRID, INK, KINDS, MUTED, SMALL, tick, width_of

ROLES = {
    "forward": "activations",
    "recomputation": "recomputed activations",
    "backward": "activation gradients",
    "error projection": "projected error",
    "weight update": "update workspace",
    "optimizer step": "new weights",
}
"""The labels of arrays that passes compute; other kinds have their names as labels."""

LISTED = 7
"""Arrays of the peak that are listed; the others are summed."""

LIST = 2.05
"""Inches that the list takes."""


@dataclass(frozen=True)
class MemoryChart:
    """The memory of a step line by line."""

    data: MemoryCurve

    def height(self, columns: int) -> float:
        """Return the inches that the panel is high."""
        return 2.2 if columns == 1 else 2.35

    def draw(self, panel: Panel) -> None:
        """Draw the panel."""
        from matplotlib.ticker import MaxNLocator

        data = self.data
        listed = LIST if panel.columns == 2 else 0.0
        about = step_of(data, data.procedure, data.dtype, data.plan, f"engine {data.engine}")
        panel.heading(data.model, about)
        count = len(data.lines)
        margins = {"left": 0.42, "bottom": 0.36, "right": listed + 0.03, "top": HEADING + 0.24}
        axes = panel.axes(**margins)
        wide = (panel.width - margins["left"] - margins["right"]) * POINTS
        high = (panel.height - margins["bottom"] - margins["top"]) * POINTS
        top = data.peak * 1.12 or 1
        axes.set_xlim(0, count)
        axes.set_ylim(0, top)
        missing = _stairs(axes, data, wide / count, high / top)
        axes.yaxis.set_major_formatter(lambda value, _: tick(value, "B"))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.grid(axis="y", color=GRID, linewidth=0.5)
        axes.set_xticks([])
        _passes(axes, data, wide / count)
        _brackets(axes, data, wide / count)
        x, peak = data.peak_at + 0.5, float(data.peak)
        axes.plot([x, x], [0, peak], color=INK, linewidth=0.7)
        axes.plot([x], [peak], "o", markersize=3.2, markerfacecolor="white", markeredgecolor=INK, markeredgewidth=0.8)
        text = f"peak {size_of(data.peak)}"
        side = "left" if (count - x) * wide / count > width_of(text, SMALL, True) + 8 else "right"
        say(axes, text, (x, peak), (4 if side == "left" else -4, 1.5), ha=side, va="bottom", weight="bold")
        if listed:
            _list(panel.part(panel.width - LIST + 0.1, 0, LIST - 0.1, panel.height), data)
        if missing:
            panel.key(0.42, 0.02, [(ROLES.get(kind, kind), KINDS[kind]) for kind in missing])


def _stairs(axes: Any, data: MemoryCurve, across: float, up: float) -> list[str]:
    """The kinds on each other, named where a name fits in them; those that matter and could not be named.

    across, up  points of a line, and of a byte
    """
    below, missing = [0.0] * len(data.lines), []  # matplotlib takes no whole numbers from 2^63 on
    for kind, sizes in data.kinds.items():
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        look = KINDS[kind]
        axes.stairs(
            above, range(len(above) + 1), baseline=below, fill=True, facecolor=look.fill, alpha=0.88,
            hatch=look.hatch, edgecolor=INK if look.hatch else look.fill, linewidth=0,
        )  # fmt: skip
        name = ROLES.get(kind, kind)
        place = _free_place(below, above, width_of(name, SMALL) + 5, across, up, data.peak_at)
        if place is not None:
            plate = {"facecolor": look.fill, "edgecolor": "none", "pad": 0.6} if look.hatch else None
            axes.text(*place, name, size=SMALL, color=look.text, va="center", bbox=plate)
        elif max(sizes) * up > 1.0:
            missing.append(kind)
        below = above
    return missing


def _free_place(
    below: Sequence[float], above: Sequence[float], points: float, across: float, up: float, peak_at: int
) -> tuple[float, float] | None:
    """Return a position for a text of so many points between two steps, not at the peak: left end and middle height."""
    needed = int(points / across) + 1
    best, place = (SMALL + 1.0) / up, None
    for start in range(len(below) - needed + 1):
        if start <= peak_at < start + needed:
            continue
        low, high = max(below[start : start + needed]), min(above[start : start + needed])
        if high - low > best * 1.02:
            best, place = high - low, (start + 2.5 / across, (low + high) / 2)
    return place


def _passes(axes: Any, data: MemoryCurve, across: float) -> None:
    """The passes above the chart: stretches of lines; those that alternate in one loop are together."""
    inside = [
        next(
            (
                place
                for place, bracket in enumerate(data.brackets)
                if bracket.depth == 0 and bracket.first <= at <= bracket.last
            ),
            -1,
        )
        for at in range(len(data.lines))
    ]
    stretches: list[tuple[int, int, dict[str, None]]] = []
    for _, several in groupby(
        range(len(data.lines)), lambda at: (inside[at], "" if inside[at] >= 0 else data.lines[at].macro_operation)
    ):
        places = list(several)
        names = dict.fromkeys(data.lines[at].macro_operation.replace("_", " ") for at in places)
        joins = stretches and (names.keys() <= stretches[-1][2].keys() or stretches[-1][2].keys() <= names.keys())
        together = bool(stretches) and not {"forward", "optimizer step"} & ({*names} ^ {*stretches[-1][2]})
        if joins or together:
            stretches[-1] = (stretches[-1][0], places[-1], stretches[-1][2] | names)
        else:
            stretches.append((places[0], places[-1], names))
    for first, last, passes in stretches:
        first_of, *others = passes
        all_names = " and ".join(filter(None, (", ".join((first_of, *others)[:-1]), (first_of, *others)[-1])))
        text = fitting((all_names, first_of, first_of.partition(" ")[0]), (last + 1 - first) * across - 2, SMALL)
        across_axes = axes.get_xaxis_transform()
        ends = first + 1.2 / across, last + 1 - 1.2 / across
        axes.plot(ends, [1.0, 1.0], transform=across_axes, color=MUTED, linewidth=0.7, clip_on=False)
        above = {"xycoords": across_axes, "color": MUTED, "va": "bottom", "annotation_clip": False}
        say(axes, text, (ends[0], 1.0), (0, 2.5), **above)


def _brackets(axes: Any, data: MemoryCurve, across: float) -> None:
    """Below the chart, which lines run many times."""
    for bracket in data.brackets:
        if bracket.depth:
            continue
        start, end = bracket.first, bracket.last + 1
        text = fitting(
            (bracket.title, f"runs {bracket.iterations:,} ×", f"{bracket.iterations:,} ×"),
            (end - start) * across + 10,
            SMALL,
        )
        where = axes.get_xaxis_transform()
        axes.plot(
            [start, start, end, end], [-0.012, -0.035, -0.035, -0.012], transform=where,
            color=FAINT, linewidth=0.6, clip_on=False,
        )  # fmt: skip
        below = {"xycoords": where, "color": FAINT, "ha": "center", "va": "top", "annotation_clip": False}
        say(axes, text, ((start + end) / 2, -0.035), (0, -2), **below)


def _list(panel: Panel, data: MemoryCurve) -> None:
    """Draw the largest arrays at the peak, with bars in the colours of their kinds."""
    at = data.lines[data.peak_at]
    where = ", ".join(filter(None, (at.layer.replace("_", " "), at.macro_operation.replace("_", " "))))
    y = panel.height - HEADING + 0.05
    titles = (f"At the peak, while {at.line} runs", f"At the peak: {at.line}", f"At {at.line}", "At the peak")
    panel.text(0, y, fitting(titles, panel.width * POINTS, SMALL, bold=True), size=SMALL, weight="bold")
    panel.text(0, y - 0.13, where, size=SMALL, color=FAINT)
    alive = [array for array in data.alive(data.peak_at) if array.bytes]
    step = (y - 0.3) / (LISTED + 1)
    y -= 0.36
    largest = alive[0].bytes if alive else 1
    for array in alive[:LISTED]:
        size = size_of(array.bytes)
        shape = " × ".join(f"{part:,}" for part in ((array.number,) if array.number > 1 else ()) + array.shape)
        if array.shape == (array.bytes // array.number,):  # only its bytes are known
            shape = f"{array.number:,} ×" if array.number > 1 else ""
        available = panel.width * POINTS - width_of(size, SMALL) - width_of(array.name, SMALL) - 10
        panel.text(0, y, array.name, size=SMALL)
        panel.text(
            (width_of(array.name, SMALL) + 4) / POINTS, y, fitting((shape,), available, SMALL), size=SMALL, color=FAINT
        )
        panel.text(panel.width, y, size, size=SMALL, ha="right")
        panel.rectangle(0, y - 0.06, panel.width * array.bytes / largest, 0.035, KINDS[array.kind])
        y -= step
    if rest := alive[LISTED:]:
        panel.text(0, y, f"{len(rest)} more", size=SMALL, color=FAINT)
        panel.text(panel.width, y, size_of(sum(array.bytes for array in rest)), size=SMALL, ha="right", color=FAINT)
