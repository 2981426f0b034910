"""Lines over an axis: several charts side by side, names at the ends of lines, few numbers at the axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.viz.figures.panel import HEADING, POINTS, Panel, say
from learncost.viz.figures.style import FAINT, GRID, INK, LIGHT, MUTED, SMALL, line_of, place_of, tick, width_of


@dataclass(frozen=True)
class DrawnLine:
    """A line by its points, a dot at one of its places, and its colour and dashes where they are not its name's."""

    name: str
    places: Sequence[float]
    values: Sequence[float | None]
    dot: float | None = None
    look: tuple[str, object] | None = None


@dataclass(frozen=True)
class LineChart:
    """The lines over one axis.

    logarithmic  whether each of the axes is
    sizes        whether the axis has sizes of powers of two; of a model's own sizes all that are drawn fit
    between      the values between which lines are drawn
    ratio        whether the values are ratios
    limit        the place beyond which the ground is grey, and what it says there
    here         the place of the step that was asked for
    rings        places on the line of 1 that are marked, with what is written at each
    """

    x: str
    lines: tuple[DrawnLine, ...]
    logarithmic: tuple[bool, bool] = (False, False)
    sizes: str = ""
    between: tuple[float, float] | None = None
    ratio: bool = False
    limit: tuple[int, str] | None = None
    here: int | None = None
    rings: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Lines:
    """Charts of lines; `tall` is the height of a row of them in inches, in one and two columns."""

    name: str
    about: str
    charts: tuple[LineChart, ...]
    tall: tuple[float, float] = (1.75, 2.1)

    def _grid(self, columns: int) -> tuple[int, int, float]:
        """Return how many charts are side by side, how many rows there are, and how high a row is."""
        across = columns if len(self.charts) > 1 else 1
        names = max(len({line.name for line in chart.lines}) for chart in self.charts)
        return across, -(-len(self.charts) // across), max(self.tall[columns - 1], 0.5 + 0.11 * names)

    def height(self, columns: int) -> float:
        """Return the inches that the panel is high."""
        _, rows, high = self._grid(columns)
        return HEADING + rows * high

    def draw(self, panel: Panel) -> None:
        """Draw the panel."""
        panel.heading(self.name, self.about)
        across, _, high = self._grid(panel.columns)
        wide, top = panel.width / across, panel.height - HEADING
        for place, chart in enumerate(self.charts):
            part = panel.part(place % across * wide, top - (place // across + 1) * high, wide, high)
            _draw(chart, part, 0.08)


def _draw(chart: LineChart, panel: Panel, top: float) -> None:
    left, below = 0.42, 0.33
    right = max(width_of(line.name, SMALL) for line in chart.lines) / POINTS + 0.12
    axes = panel.axes(left, below, right, top)
    points = (panel.width - left - right) * POINTS
    for set_scale, is_logarithmic in zip((axes.set_xscale, axes.set_yscale), chart.logarithmic, strict=True):
        set_scale("log" if is_logarithmic else "linear")
    names = list(dict.fromkeys(line.name for line in chart.lines))
    looks = {name: line_of(name, place) for place, name in enumerate(names)}
    looks |= {line.name: line.look for line in chart.lines if line.look}
    for line in chart.lines:
        colour, dashes = looks[line.name]
        values = [float("nan") if value is None else float(value) for value in line.values]
        axes.plot(line.places, values, color=colour, linestyle=dashes, linewidth=1.2)
        if line.dot is not None:
            at = list(line.places).index(line.dot)
            axes.plot([line.dot], [values[at]], "o", color=colour, markersize=2.8, clip_on=False)
    axes.margins(x=0)
    if chart.between:
        axes.set_ylim(*chart.between)
    few = 4 if panel.columns == 1 else 7
    places = sorted({place for line in chart.lines for place in line.places})
    if chart.sizes:
        _sizes(axes, places, chart.sizes == "powers", points)
    else:
        _few(axes.xaxis, chart.logarithmic[0], few)
    _few(axes.yaxis, chart.logarithmic[1], 5)
    if chart.ratio:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g} ×")
    _ground(axes, chart, places)
    _rings(axes, chart, points)
    low, high = map(axes.yaxis.get_transform().transform, axes.get_ylim())
    ends = {
        line.name: float((axes.yaxis.get_transform().transform(float(last)) - low) / (high - low or 1))
        for line in chart.lines
        if (last := line.values[-1]) is not None
    }
    _names(axes, [(end, name, str(looks[name][0])) for name, end in ends.items()], panel.height - top - below)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.set_xlabel(chart.x, size=SMALL, color=FAINT, labelpad=2, loc="right")


def _few(axis: Any, is_logarithmic: bool, most: int) -> None:
    """Put few numbers at an axis: of a logarithmic one powers of ten, and others where it spans less than two."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axis.set_major_formatter(lambda value, _: tick(value))
    if is_logarithmic:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if low > 0 and high / low < 100 else (1,), numticks=most + 2))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(most))


def _sizes(axes: Any, places: Sequence[float], powers: bool, points: float) -> None:
    """Make the axis logarithmic, with as many powers of two, or sizes of the model, as fit."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xlim(places[0], places[-1])
    span = log(places[-1] / places[0]) or 1.0
    shown: list[float] = []
    end = -1e9
    for size in places:
        middle, half = log(size / places[0]) / span * points, width_of(place_of(size), SMALL) / 2
        if (not powers or not int(size) & int(size) - 1) and middle - half > end + 7 and middle + half < points + 9:
            shown.append(size)
            end = middle + half
    axes.set_xticks(shown, [place_of(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _ground(axes: Any, chart: LineChart, places: Sequence[float]) -> None:
    """Draw a grey ground beyond the limit, and a line at the step that was asked for."""
    at_top = axes.get_xaxis_transform()
    if chart.limit and chart.limit[0] < places[-1]:
        beyond, text = chart.limit
        axes.axvspan(beyond, places[-1], color=LIGHT, alpha=0.5, linewidth=0, zorder=0)
        say(axes, text, (beyond, 1.0), (3, 0), xycoords=at_top, va="top", color=MUTED)
    if chart.here is not None:
        axes.axvline(chart.here, color=FAINT, linewidth=0.6)
        side, shift = ("right", -3) if chart.here > places[len(places) // 4] else ("left", 3)
        here = f"here: {chart.here:,}"
        say(axes, here, (chart.here, 1.0), (shift, 0), xycoords=at_top, color=FAINT, ha=side, va="top")


def _rings(axes: Any, chart: LineChart, points: float) -> None:
    """Draw a ring at each marked place, with its text below."""
    from matplotlib.patheffects import withStroke

    bottom, top = axes.get_ylim()
    for place, (at, text) in enumerate(chart.rings):
        axes.plot([at, at], [bottom, 1.0], color=INK, linewidth=0.5, linestyle=(0, (1, 2)))
        axes.plot([at], [1.0], "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, markeredgewidth=0.9)
        widest = max(width_of(line, SMALL) for line in text.split("\n"))
        share = axes.transAxes.inverted().transform(axes.transData.transform((at, 1.0)))[0]
        side, shift = ("left", 3) if share * points + widest + 6 < points else ("right", -3)
        y = bottom + (0.03 + 0.16 * (place % 2)) * (top - bottom)
        around = [withStroke(linewidth=2, foreground="white")]
        say(axes, text, (at, y), (shift, 0), ha=side, va="bottom", linespacing=1.1, path_effects=around)


def _names(axes: Any, ends: Sequence[tuple[float, str, str]], high: float) -> None:
    """Write names at the right ends of lines, moved apart where they would lie on each other.

    ends  the height of each in the axes' own shares, its name and its colour
    high  inches of the axes
    """
    least = (SMALL + 1.5) / (high * POINTS)
    order = sorted(ends, key=lambda end: end[0])
    heights = [end[0] for end in order]
    for _ in range(200):
        for place in range(len(heights) - 1):
            if (gap := heights[place + 1] - heights[place]) < least:
                heights[place] -= (least - gap) / 2
                heights[place + 1] += (least - gap) / 2
        if heights:
            heights[0], heights[-1] = max(heights[0], 0.02), min(heights[-1], 0.98)
    for height, (_, name, colour) in zip(heights, order, strict=True):
        common = {"va": "center", "color": colour, "annotation_clip": False}
        say(axes, name, (1.0, height), (4, 0), xycoords="axes fraction", **common)
