"""Growth of a step's FLOPs with length, batch, depth and width, by model or by procedure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learncost.ir.errors import InputError, named_one
from learncost.ir.serializable import Serializable
from learncost.reports.compare import Comparison, compare
from learncost.reports.sheet import significant
from learncost.viz.data.growth import ALONG, Growth, growth
from learncost.viz.figures.growing import TITLES, axis_of_sizes, labels_at_ends
from learncost.viz.figures.panel import HEADING, POINTS, Panel, keywords_of
from learncost.viz.figures.style import FAINT, GRID, INK, SMALL, line_of, tick, width_of


@dataclass(frozen=True)
class Scaling(Serializable):
    """The growth of one or several models along one or several of the sizes."""

    along: tuple[str, ...]
    curves: tuple[Growth, ...]

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        first = self.curves[0]
        bp = first.series[0]
        place = first.places.index(first.here)
        if place + 1 == len(first.places):
            return f"What a step of {first.model} costs over its {first.along}"
        times, more = first.places[-1] / first.here, bp.totals[-1] / bp.totals[place] if bp.totals[place] else 0.0
        return f"{times:,.3g} times the {first.along} of {first.model} takes {significant(more)} times the FLOPs"

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each size, model and procedure."""
        for curve in self.curves:
            for row in curve.rows():
                yield {"model": curve.model, "along": curve.along, "size": row[curve.along]} | {
                    name: value for name, value in row.items() if name != curve.along
                }


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Scaling]:
    """One panel of all models; one procedure, bp, unless others are asked for."""
    keywords = keywords_of("scaling", compare, arguments, "along")
    names = tuple(part.strip() for part in arguments["along"].split(",")) if arguments.get("along") else tuple(ALONG)
    for name in names:
        named_one("size to grow along", name, ALONG)
    usual = {"procedures": "bp"} if len(models) > 1 else {}
    return [_of([compare(model, **(usual | keywords)) for model in models], names)]


def of(answer: Comparison) -> Scaling:
    """The data of a panel, of an answer."""
    return _of([answer], tuple(ALONG))


def _of(answers: Sequence[Comparison], names: tuple[str, ...]) -> Scaling:
    curves, refused = [], ""
    for name in names:
        for answer in answers:
            try:
                curves.append(growth(answer, name))
            except InputError as error:
                if len(names) == 1:
                    raise
                refused = str(error)
    if not curves:
        raise InputError(refused)
    return Scaling(tuple(dict.fromkeys(curve.along for curve in curves)), tuple(curves))


def height(data: Scaling, columns: int) -> float:
    """Inches that the panel is high."""
    rows = -(-len(data.along) // columns) if len(data.along) > 1 else 1
    return HEADING + rows * (1.75 if columns == 1 else 1.95)


def draw(data: Scaling, panel: Panel) -> None:
    """Draw the panel."""
    first = data.curves[0]
    models = dict.fromkeys(curve.model for curve in data.curves)
    panel.heading(", ".join(models), f"FLOPs a step · price book {first.price_book}")
    across = panel.columns if len(data.along) > 1 else 1
    rows = -(-len(data.along) // across)
    wide, high = panel.width / across, (panel.height - HEADING) / rows
    for place, along in enumerate(data.along):
        part = panel.part(place % across * wide, panel.height - HEADING - (place // across + 1) * high, wide, high)
        _chart(part, along, [curve for curve in data.curves if curve.along == along], len(models) > 1)


def _chart(panel: Panel, along: str, curves: Sequence[Growth], several: bool) -> None:
    lines = [
        (curve.model if several else series.procedure, curve, series) for curve in curves for series in curve.series
    ]
    right = max(width_of(name, SMALL) for name, *_ in lines) / POINTS + 0.12
    axes = panel.axes(0.42, 0.33, right, 0.06)
    places = sorted({place for curve in curves for place in curve.places})
    axes.set_yscale("log")
    totals = [amount for curve in curves for series in curve.series for amount in series.totals if amount]
    axes.set_ylim(min(totals, default=1) / 1.5, max(totals, default=1) * 1.5)
    axis_of_sizes(axes, along, places, (panel.width - 0.42 - right) * POINTS)
    ends, log_of = [], axes.yaxis.get_transform().transform
    bottom, top = log_of(axes.get_ylim())
    for place, (name, curve, series) in enumerate(lines):
        colour, dashes = line_of(name, place) if place or not several else (INK, "-")
        axes.plot(curve.places, series.totals, color=colour, linestyle=dashes, linewidth=1.2)
        if series is curve.series[0]:
            axes.plot(
                [curve.here],
                [series.totals[curve.places.index(curve.here)]],
                "o",
                markersize=3,
                color=colour,
                clip_on=False,
            )
        ends.append((float((log_of(series.totals[-1]) - bottom) / (top - bottom)), name, colour))
    labels_at_ends(axes, places[-1], ends, panel.height - 0.39)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.yaxis.set_major_formatter(lambda value, _: tick(value))
    _between_powers(axes.yaxis, top - bottom)
    axes.tick_params(axis="y", which="minor", length=0)
    axes.set_xlabel(TITLES[along], size=SMALL, color=FAINT, labelpad=2, loc="right")


def _between_powers(axis: Any, powers: float) -> None:
    """Ticks at twice and five times a power of ten, if they fit."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)) if powers < 2 else NullLocator())
    axis.set_minor_formatter(lambda value, _: tick(value))


def notes(data: Scaling) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    from learncost.reports.show import convention

    for curve in data.curves:
        yield f"{curve.model} over its {curve.along}: all else unchanged, a dot at {curve.along} {curve.here:,}"
    if "width" in data.along:
        yield "the width scales feed-forward networks and the number of heads at a fixed head width"
    yield convention(data.curves[0].price_book)
