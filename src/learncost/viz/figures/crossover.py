"""Procedures over backpropagation by the length of the sequence, and where one becomes the cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from learncost.reports.compare import Comparison, compare
from learncost.viz.data.growth import Growth, growth
from learncost.viz.figures.growing import TITLES, axis_of_sizes, ground_beyond, labels_at_ends
from learncost.viz.figures.panel import HEADING, POINTS, Panel, keywords_of
from learncost.viz.figures.style import FAINT, GRID, INK, SMALL, line_of, width_of


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Growth]:
    """A panel for each model."""
    keywords = keywords_of("crossover", compare, arguments)
    return [of(compare(model, **keywords)) for model in models]


def of(answer: Comparison) -> Growth:
    """The data of a panel, of an answer."""
    return growth(answer)


def height(data: Growth, columns: int) -> float:
    """Inches that the panel is high."""
    return 2.1 if columns == 1 else 2.5


def draw(data: Growth, panel: Panel) -> None:
    """Draw the panel."""
    base = "backpropagation" if any(series.procedure == "bp" for series in data.series) else data.series[0].procedure
    panel.heading(data.model, f"FLOPs over those of {base} · price book {data.price_book}")
    right = max(width_of(series.procedure, SMALL) for series in data.series) / POINTS + 0.1
    axes = panel.axes(0.32, 0.34, right, HEADING + 0.08)
    high, wide = panel.height - 0.34 - HEADING - 0.08, panel.width - 0.32 - right
    ratios = [ratio for series in data.series for ratio in series.ratios if ratio is not None]
    low, top = min(ratios, default=1.0), max(ratios, default=1.0)
    margin = max(0.05, (top - low) * 0.12)
    axes.set_ylim(low - margin, top + 1.4 * margin)
    axis_of_sizes(axes, "length", data.places, wide * POINTS)
    ground_beyond(axes, data)
    ends = []
    for place, series in enumerate(data.series):
        colour, dashes = line_of(series.procedure, place)
        values = [float("nan") if ratio is None else ratio for ratio in series.ratios]
        axes.plot(data.places, values, color=colour, linestyle=dashes, linewidth=1.3, clip_on=True)
        bottom, up = axes.get_ylim()
        ends.append(((values[-1] - bottom) / (up - bottom), series.procedure, colour))
    labels_at_ends(axes, data.places[-1], ends, high)
    axes.axvline(data.here, color=FAINT, linewidth=0.6)
    side = "right" if data.here > data.places[len(data.places) // 4] else "left"
    axes.annotate(
        f"here: {data.here:,}", (data.here, 1.0), xycoords=axes.get_xaxis_transform(), size=SMALL, color=FAINT,
        xytext=(-3 if side == "right" else 3, 0), textcoords="offset points", ha=side, va="top",
    )  # fmt: skip
    _crossings(axes, data, wide * POINTS)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.yaxis.set_major_locator(_locator(5))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g} ×")
    axes.set_xlabel(TITLES["length"], size=SMALL, labelpad=2, loc="right")


def _crossings(axes: Any, data: Growth, points: float) -> None:
    """A ring where a procedure becomes cheaper than backpropagation, or the other way round."""
    from matplotlib.patheffects import withStroke

    bottom, top = axes.get_ylim()
    marked = [crossing for crossing in data.crossings if "bp" in (crossing.cheaper, crossing.dearer)]
    marked = [crossing for crossing in marked if data.places[0] <= crossing.at <= data.places[-1]]
    for place, crossing in enumerate(marked):
        axes.plot([crossing.at, crossing.at], [bottom, 1.0], color=INK, linewidth=0.5, linestyle=(0, (1, 2)))
        axes.plot(
            [crossing.at], [1.0], "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, markeredgewidth=0.9
        )
        text = f"from {crossing.at:,}\n{crossing.cheaper} is cheaper"
        widest = max(width_of(line, SMALL) for line in text.split("\n"))
        share = axes.transAxes.inverted().transform(axes.transData.transform((crossing.at, 1.0)))[0]
        side = "left" if share * points + widest + 6 < points else "right"
        y = bottom + (0.03 + 0.16 * (place % 2)) * (top - bottom)
        axes.annotate(
            text, (crossing.at, y), xytext=(3 if side == "left" else -3, 0), textcoords="offset points", size=SMALL,
            ha=side, va="bottom", linespacing=1.1, path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip


def _locator(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, steps=[1, 2, 5, 10])


def notes(data: Growth) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    from learncost.reports.show import convention

    yield f"{data.model}: all else as at length {data.here:,}; crossings are solved exactly at whole numbers"
    yield convention(data.price_book)
    for crossing in data.crossings:
        yield f"from {crossing.at:,} {data.unit} on, {crossing.cheaper} is cheaper than {crossing.dearer}"
