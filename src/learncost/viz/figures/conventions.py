"""The differences of price books: all books as multiples of matrix products above, the items between two below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from learncost.reports.conventions import YARDSTICK, Conventions, conventions
from learncost.viz.data.bridge import Bridge, bridge
from learncost.viz.figures.panel import HEADING, POINTS, Panel, keywords_of, sizes_of, step_of
from learncost.viz.figures.style import DARK, EDGE, FAINT, INK, SMALL, short, signed, width_of

ROW = 0.19
STRIP = 0.62
WORDS = {1: 30, 2: 62}
"""Characters of an item's name in one and two columns, before it is broken."""


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Bridge]:
    """A panel for each model: from the book `against` to the price book."""
    keywords = keywords_of("conventions", conventions, arguments, "price_book", "against")
    end = arguments.get("price_book") or "run"
    start = arguments.get("against") or (YARDSTICK if end != YARDSTICK else "run")
    return [bridge(conventions(model, **keywords), start, end) for model in models]


def of(answer: Conventions) -> Bridge:
    """The data of a panel, of an answer."""
    return bridge(answer)


def _rows(data: Bridge, columns: int) -> list[tuple[list[str], int, str]]:
    """The rows: their labels, the amount, and start, item or end."""
    rows = [([data.start.price_book], data.start.amount, "start")]
    rows += [(wrap(item.what, WORDS[columns]), item.amount, "item") for item in data.drawn]
    return [*rows, ([data.end.price_book], data.end.amount, "end")]


def height(data: Bridge, columns: int) -> float:
    """Inches that the panel is high."""
    lines = sum(len(words) for words, *_ in _rows(data, columns))
    rows = len(_rows(data, columns))
    return HEADING + STRIP + ROW * rows + 0.1 * (lines - rows) + (0.2 if data.reach[0] else 0.05)


def draw(data: Bridge, panel: Panel) -> None:
    """Draw the panel."""
    panel.heading(data.model, "FLOPs of " + step_of(data))
    _strip(panel.part(0, panel.height - HEADING - STRIP, panel.width, STRIP), data)
    rows = _rows(data, panel.columns)
    left = max(width_of(word, SMALL, kind != "item") for words, _, kind in rows for word in words) / POINTS + 0.08
    right = max(width_of(_label(amount, kind), SMALL, kind != "item") for _, amount, kind in rows) / POINTS + 0.08
    cut = data.reach[0] > 0
    axes = panel.axes(left, 0.2 if cut else 0.05, right, HEADING + STRIP)
    low, high = data.reach
    points = (panel.width - left - right) * POINTS
    level, depth, edges = 0, 0.0, []
    for words, amount, kind in rows:
        thick = ROW + 0.1 * (len(words) - 1)
        middle = depth + thick / 2
        before = level
        level = amount if kind != "item" else level + amount
        start, end = (low, level) if kind != "item" else (min(before, level), max(before, level))
        fill, edge = (INK, INK) if kind != "item" else (DARK, DARK) if amount > 0 else ("white", INK)
        axes.barh(middle, end - start, ROW * 0.62, left=start, color=fill, edgecolor=edge, linewidth=0.6)
        axes.annotate(
            _label(amount, kind), (end, middle), xytext=(4, 0), textcoords="offset points", va="center", size=SMALL,
            weight="normal" if kind == "item" else "bold", annotation_clip=False,
        )  # fmt: skip
        axes.annotate(
            "\n".join(words), (0, middle), xycoords=("axes fraction", "data"), xytext=(-left * POINTS, 0),
            textcoords="offset points", va="center", size=SMALL, weight="normal" if kind == "item" else "bold",
            annotation_clip=False, linespacing=1.1,
        )  # fmt: skip
        edges.append((level, middle))
        depth += thick
    for (value, y), (_, other) in pairwise(edges):
        axes.plot(
            [value, value], [y + ROW * 0.3, other - ROW * 0.3], color=FAINT, linewidth=0.5, linestyle=(0, (1, 1.5))
        )
    axes.set_xlim(low, high + (high - low) * 2 / points)
    axes.set_ylim(depth, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    if cut:
        panel.text(left, 0.04, f"The bars begin at {short(low)}, not at 0", size=SMALL, color=FAINT)


def _label(amount: int, kind: str) -> str:
    return signed(amount) if kind == "item" else short(amount)


def _strip(panel: Panel, data: Bridge) -> None:
    """All books on a line, as multiples of matrix products; the two of the bridge are filled."""
    bars = sorted((bar for bar in data.bars if bar.ratio), key=lambda bar: bar.ratio or 0)
    if len(bars) < 2:
        return
    ends_of = [width_of(f"{bars[n].price_book} +9", SMALL) / 2 / POINTS + 0.02 for n in (0, -1)]
    axes = panel.axes(ends_of[0], 0.3, ends_of[1], 0.24)
    points = (panel.width - sum(ends_of)) * POINTS
    low, high = bars[0].ratio or 0.0, bars[-1].ratio or 1.0
    wide = high > 4 * low
    if wide:
        axes.set_xscale("log")
    axes.set_xlim(low, high * (1 + 1e-9))
    axes.set_ylim(-1, 1)
    ends, groups = [-1e9, -1e9], list[list[Any]]()
    for bar in bars:
        x = axes.transAxes.inverted().transform(axes.transData.transform((bar.ratio, 0)))[0] * points
        if groups and x - groups[-1][0] < 5:
            groups[-1][1].append(bar)
        else:
            groups.append([x, [bar]])
    chosen = (data.start.price_book, data.end.price_book)
    for x, several in groups:
        marked = next((bar for bar in several if bar.price_book in chosen), several[0])
        filled = marked.price_book in chosen
        axes.plot(
            [marked.ratio], [0], "o", markersize=4.2, markerfacecolor=INK if filled else "white", markeredgecolor=INK,
            markeredgewidth=0.8, clip_on=False, zorder=3,
        )  # fmt: skip
        text = marked.price_book + (f" +{len(several) - 1}" if len(several) > 1 else "")
        half = width_of(text, SMALL, filled) / 2
        row = next((row for row, end in enumerate(ends) if x - half > end + 4), None)
        if row is None:
            continue
        ends[row] = x + half
        axes.annotate(
            text, (marked.ratio, 0), xytext=(0, 5 + 7.5 * row), textcoords="offset points", ha="center", size=SMALL,
            weight="bold" if filled else "normal", annotation_clip=False,
        )  # fmt: skip
    axes.axhline(0, color=EDGE, linewidth=0.8, zorder=1)
    axes.spines["bottom"].set_visible(False)
    axes.spines["bottom"].set_position(("data", 0))
    axes.set_yticks([])
    axes.xaxis.set_major_locator(_locator(wide))
    axes.xaxis.set_minor_locator(_nowhere())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g} ×")
    axes.tick_params(axis="x", pad=4, length=0)


def _locator(wide: bool) -> Any:
    from matplotlib.ticker import LogLocator, MaxNLocator

    return LogLocator(10) if wide else MaxNLocator(5, steps=[1, 2, 5, 10])


def _nowhere() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def notes(data: Bridge) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    yield f"{data.model}: one step of backpropagation, {sizes_of(data)}"
    yield "forward, backward and weight update, without the optimizer step; one MACC is two FLOPs"
    for bar in (data.start, data.end):
        yield f"{bar.price_book}: {bar.title}; {bar.source}"
