"""A bar a step: what share of its FLOPs each pass has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from learncost.reports.cost import cost
from learncost.reports.record import Cost
from learncost.viz.data.roofline import share
from learncost.viz.data.shares import Shares, shares
from learncost.viz.figures.panel import POINTS, Panel, fitting, keywords_of, procedures_of, rows_of_key, sizes_of
from learncost.viz.figures.style import FAINT, NORMAL, PASSES, SMALL, WIDTHS, short, width_of

ROW = 0.27


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Shares]:
    """One panel of all models by all procedures."""
    keywords = keywords_of("macro-operations", cost, arguments, "procedures")
    names = procedures_of(arguments)
    return [shares(cost(model, name, by="macro-operation", **keywords) for model in models for name in names)]


def of(answer: Cost) -> Shares:
    """The data of a panel, of an answer."""
    return shares((answer,))


def height(data: Shares, columns: int) -> float:
    """Inches that the panel is high."""
    return 0.35 + ROW * len(data.bars) + 0.13 * rows_of_key(_key(data), WIDTHS[columns])


def _key(data: Shares) -> list[tuple[str, Any]]:
    names = {part.macro_operation.replace("_", " ") for bar in data.bars for part in bar.parts}
    return [(name, look) for name, look in PASSES.items() if name in names]


def draw(data: Shares, panel: Panel) -> None:
    """Draw the panel."""
    several = len({bar.procedure for bar in data.bars}) > 1
    names = [f"{bar.model}, {bar.procedure}" if several else bar.model for bar in data.bars]
    left = max(width_of(name) for name in names) / POINTS + 0.08
    right = max(width_of(short(bar.flops)) for bar in data.bars) / POINTS + 0.08
    below = 0.13 * rows_of_key(_key(data), panel.width) + 0.06
    axes = panel.axes(left, below, right, 0.2)
    points = (panel.width - left - right) * POINTS
    for place, bar in enumerate(data.bars):
        start = 0.0
        for part in bar.parts:
            name = part.macro_operation.replace("_", " ")
            look = PASSES[name]
            axes.barh(
                place, part.share, 0.74, left=start, color=look.fill, hatch=look.hatch, edgecolor="white", linewidth=0.6
            )
            percent = share(part.flops, bar.flops)
            available = part.share * points - 5
            text = fitting((f"{name} {percent}", percent), available, SMALL)
            plate = {"facecolor": look.fill, "edgecolor": "none", "pad": 0.8} if look.hatch else None
            axes.text(
                start + part.share / 2, place, text, ha="center", va="center", size=SMALL, color=look.text, bbox=plate
            )
            start += part.share
        axes.text(1 + 5 / points, place, short(bar.flops), va="center", size=NORMAL)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(data.bars) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), names, size=NORMAL, color="black")
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    panel.text(panel.width, panel.height - 0.13, "FLOPs a step", ha="right", size=SMALL, color=FAINT)
    panel.key(0, below - 0.15, _key(data))


def notes(data: Shares) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    from learncost.reports.show import convention

    for bar in data.bars:
        yield f"{bar.model}, {bar.procedure}: {sizes_of(bar)}; optimizer {bar.optimizer}; counted: {bar.counted}"
        yield f"{bar.model}: {bar.source}" if bar.source else ""
    yield from dict.fromkeys(convention(bar.price_book) for bar in data.bars)
