"""The common parts of growth figures: an axis of sizes, lines of procedures or models, labels at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from learncost.viz.data.growth import Growth
from learncost.viz.figures.panel import POINTS
from learncost.viz.figures.style import INK, LIGHT, MUTED, SMALL, place_of, width_of

TITLES = {
    "length": "tokens in a sequence",
    "batch": "sequences in a batch",
    "depth": "blocks",
    "width": "width of the model",
}


def axis_of_sizes(axes: Any, along: str, places: Sequence[int], points: float) -> None:
    """A logarithmic axis with as many powers of two, or sizes of the model, as fit."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(places[0], places[-1])
    powers = [size for size in places if size & (size - 1) == 0] if along in ("length", "batch") else list(places)
    span = log(places[-1] / places[0]) or 1.0
    sizes_shown: list[int] = []
    end = -1e9
    for size in powers:
        middle, half = log(size / places[0]) / span * points, width_of(place_of(size), SMALL) / 2
        if middle - half > end + 7 and middle + half < points + 9:
            sizes_shown.append(size)
            end = middle + half
    axes.set_xticks(sizes_shown, [place_of(size) for size in sizes_shown])
    axes.xaxis.set_minor_locator(_nowhere())


def _nowhere() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def ground_beyond(axes: Any, data: Growth, label: bool = True) -> None:
    """A grey ground beyond the positions that the model learns, and a line at the step that was asked for."""
    if data.limit and data.limit < data.places[-1]:
        axes.axvspan(data.limit, data.places[-1], color=LIGHT, alpha=0.5, linewidth=0, zorder=0)
        if label:
            text = f"beyond the {data.limit:,} positions it learns"
            axes.annotate(
                text,
                (data.limit, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                size=SMALL,
                va="top",
                color=MUTED,
            )


def labels_at_ends(axes: Any, x: float, ends: Sequence[tuple[float, str, str]], high: float) -> None:
    """Names at the right ends of lines, moved apart where they would lie on each other.

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
        axes.annotate(
            name,
            (1.0, height),
            xytext=(4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            size=SMALL,
            color=colour or INK,
            annotation_clip=False,
        )
