"""Bars of parts, one below another: shares of a whole, amounts against a limit, the way from one amount to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.viz.figures.panel import HEADING, POINTS, Panel, fitting, rows_of_key, say
from learncost.viz.figures.style import (
    DARK,
    FAINT,
    INK,
    NORMAL,
    PASSES,
    SMALL,
    WIDTHS,
    FillStyle,
    short,
    signed,
    width_of,
)

STEP = 0.19
"""Inches of a row of a waterfall."""


@dataclass(frozen=True)
class BarPart:
    """A part of a bar: its share of the axis, its look, and the texts of which the first that fits is in it."""

    width: float
    look: FillStyle
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A bar: its name, its parts, what is written behind it, and a grey bar below it with its text."""

    name: str
    parts: tuple[BarPart, ...]
    end: str = ""
    below: tuple[float, str] | None = None


def stacked(axes: Any, parts: Iterable[BarPart], place: float, thick: float, points: float) -> float:
    """Draw the parts of a bar on axes of so many points from 0 to 1; return where it ends."""
    start = 0.0
    for part in parts:
        look = part.look
        axes.barh(
            place, part.width, thick, left=start, color=look.fill, hatch=look.hatch, edgecolor="white", linewidth=0.6
        )
        plate = {"facecolor": look.fill, "edgecolor": "none", "pad": 0.8} if look.hatch else None
        axes.text(
            start + part.width / 2, place, fitting(part.texts, part.width * points - 5, SMALL), ha="center",
            va="center", size=SMALL, color=look.text, bbox=plate,
        )  # fmt: skip
        start += part.width
    return start


@dataclass(frozen=True)
class BarChart:
    """Bars side by side, `row` inches each; `limit` is a place on their axis with what it says, drawn as a line."""

    name: str
    about: str
    bars: tuple[Bar, ...]
    row: float
    limit: tuple[float, str] | None = None

    @property
    def _key(self) -> list[tuple[str, FillStyle]]:
        looks = {part.look for bar in self.bars for part in bar.parts}
        return [(name, look) for name, look in PASSES.items() if look in looks]

    def _below(self, width: float) -> float:
        return 0.13 * rows_of_key(self._key, width) + 0.08 if self._key else 0.22

    def height(self, columns: int) -> float:
        """Return the inches that the panel is high."""
        return HEADING + 0.12 + self.row * len(self.bars) + self._below(WIDTHS[columns])

    def draw(self, panel: Panel) -> None:
        """Draw the panel."""
        panel.heading(self.name, self.about)
        left = max(width_of(bar.name) for bar in self.bars) / POINTS + (0.14 if self.limit else 0.08)
        right = max(width_of(bar.end) for bar in self.bars) / POINTS + 0.08
        below = self._below(panel.width)
        axes = panel.axes(left, below, right, HEADING + 0.05)
        points = (panel.width - left - right) * POINTS
        thick, shift = (0.44, -0.17) if any(bar.below for bar in self.bars) else (0.7, 0.0)
        for place, bar in enumerate(self.bars):
            end = stacked(axes, bar.parts, place + shift, thick, points)
            plate = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.text(
                end + 4 / points, place + shift, bar.end, va="center", size=SMALL if self.limit else NORMAL, bbox=plate
            )
            if bar.below:
                width, text = bar.below
                axes.barh(place + 0.23, width, 0.2, color=DARK)
                start = 0.0 if width * points > width_of(text, SMALL) + 8 else width
                axes.text(start + 4 / points, place + 0.235, text, va="center", size=SMALL - 0.5)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(self.bars) - 0.45, -0.55)
        axes.set_yticks(range(len(self.bars)), [bar.name for bar in self.bars], size=NORMAL, color="black")
        axes.set_xticks([self.limit[0]] if self.limit else [], [self.limit[1]] if self.limit else [], size=SMALL)
        axes.spines["bottom"].set_visible(False)
        if self.limit:
            axes.axvline(self.limit[0], color=INK, linewidth=0.9, zorder=0)
        panel.key(0, below - 0.15, self._key)


def waterfall(panel: Panel, rows: Sequence[tuple[list[str], int, bool]], reach: tuple[int, int]) -> None:
    """Draw the way from one amount to another: bars of the two, and of each difference between from where it begins.

    rows   the lines of each name, its amount, and whether that is a difference
    reach  the amounts between which bars are drawn
    """
    labels = [signed(amount) if differs else short(amount) for _, amount, differs in rows]
    left = max(width_of(word, SMALL, not differs) for words, _, differs in rows for word in words) / POINTS + 0.08
    right = max(width_of(label, SMALL, not row[2]) for label, row in zip(labels, rows, strict=True)) / POINTS + 0.08
    low, high = map(float, reach)  # matplotlib takes no whole numbers from 2^63 on
    axes = panel.axes(left, 0.2 if low else 0.05, right)
    level, depth, edges = 0.0, 0.0, []
    for (words, amount, differs), label in zip(rows, labels, strict=True):
        thick = STEP + 0.1 * (len(words) - 1)
        middle, before = depth + thick / 2, level if differs else low
        level = level + amount if differs else float(amount)
        start, end = sorted((before, level))
        fill, edge = ("white", INK) if differs and amount <= 0 else (DARK, DARK) if differs else (INK, INK)
        axes.barh(middle, end - start, STEP * 0.62, left=start, color=fill, edgecolor=edge, linewidth=0.6)
        common = {"va": "center", "annotation_clip": False, "weight": "normal" if differs else "bold"}
        say(axes, label, (end, middle), (4, 0), **common)
        at_left = {"xycoords": ("axes fraction", "data"), "linespacing": 1.1}
        say(axes, "\n".join(words), (0, middle), (-left * POINTS, 0), **at_left, **common)
        edges.append((level, middle))
        depth += thick
    for (value, y), (_, other) in pairwise(edges):
        ends = [y + STEP * 0.3, other - STEP * 0.3]
        axes.plot([value, value], ends, color=FAINT, linewidth=0.5, linestyle=(0, (1, 1.5)))
    axes.set_xlim(low, high + (high - low) * 2 / ((panel.width - left - right) * POINTS))
    axes.set_ylim(depth, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    if low:
        panel.text(left, 0.04, f"The bars begin at {short(low)}, not at 0", size=SMALL, color=FAINT)
