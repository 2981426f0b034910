"""Line plots of any quantity: labels at the ends of lines, few numbers at the axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from learncost.viz.data.curves import Curves
from learncost.viz.figures.growing import labels_at_ends
from learncost.viz.figures.panel import HEADING, POINTS, Panel
from learncost.viz.figures.style import FAINT, GRID, SMALL, line_of, tick, width_of


def height(data: Curves, columns: int) -> float:
    """Inches that the panel is high."""
    names = len({line.name for line in data.lines})
    return HEADING + max(1.75 if columns == 1 else 2.1, 0.5 + 0.11 * names)


def draw(data: Curves, panel: Panel) -> None:
    """Draw the panel."""
    panel.heading(data.name, data.about)
    right = max(width_of(line.name, SMALL) for line in data.lines) / POINTS + 0.12
    left, below = 0.42, 0.33
    axes = panel.axes(left, below, right, HEADING + 0.08)
    for set_scale, is_logarithmic in zip((axes.set_xscale, axes.set_yscale), data.logarithmic, strict=True):
        set_scale("log" if is_logarithmic else "linear")
    names = list(dict.fromkeys(line.name for line in data.lines))
    looks = {name: line_of(name, place) for place, name in enumerate(names)}
    for line in data.lines:
        colour, dashes = looks[line.name]
        axes.plot(line.places, line.values, color=colour, linestyle=dashes, linewidth=1.2)
        axes.plot(line.places[-1:], line.values[-1:], "o", color=colour, markersize=2.5, clip_on=False)
    axes.margins(x=0)
    low, high = axes.get_ylim()
    level = axes.yaxis.get_transform().transform
    ends = {
        line.name: float((level(line.values[-1]) - level(low)) / (level(high) - level(low) or 1)) for line in data.lines
    }
    labels_at_ends(
        axes,
        0,
        [(end, name, looks[name][0]) for name, end in ends.items()],
        panel.height - HEADING - 0.08 - below,
    )
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    _few(axes.xaxis, data.logarithmic[0], 4 if panel.columns == 1 else 7)
    _few(axes.yaxis, data.logarithmic[1], 5)
    axes.set_xlabel(data.x, size=SMALL, color=FAINT, labelpad=2, loc="right")


def _few(axis: Any, is_logarithmic: bool, most: int) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axis.set_major_formatter(lambda value, _: tick(value))
    if is_logarithmic:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if _narrow(axis) else (1,), numticks=most + 2))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(most))


def _narrow(axis: Any) -> bool:
    """Return whether an axis spans less than two powers of ten."""
    low, high = axis.get_view_interval()
    return bool(low > 0 and high / low < 100)


def notes(data: Curves) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    yield from data.notes
