"""The figures: what each asks for, how it is drawn of its data, and the assumptions that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one
from learncost.reports.compare import compare
from learncost.reports.conventions import REFERENCE_CONVENTION, conventions
from learncost.reports.cost import cost
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.memory.types import bytes_text
from learncost.reports.sheet import seconds_of, size_of
from learncost.reports.show import convention
from learncost.viz.comparisons import of_memory
from learncost.viz.data.bridge import Bridge, bridge
from learncost.viz.data.curve import MemoryCurve, curve
from learncost.viz.data.curves import Curves, of_complexity, of_contest, of_sweep
from learncost.viz.data.growth import ALONG, Growth, Scaling, growth, scaling
from learncost.viz.data.procedures import Procedures, procedures, table_memories
from learncost.viz.data.roofline import Roofline, roofline, share
from learncost.viz.data.shares import FitBars, Shares, of_fit, shares
from learncost.viz.figures.bars import STEP, Bar, BarChart, BarPart, waterfall
from learncost.viz.figures.lines import DrawnLine, LineChart, Lines
from learncost.viz.figures.memory_chart import MemoryChart
from learncost.viz.figures.panel import HEADING, Panel, keywords_of, procedures_of, sizes_of, step_of
from learncost.viz.figures.points import LEAST, RooflineChart, drawn, points_on_a_line
from learncost.viz.figures.style import DARK, INK, LIGHT, PASSES, FillStyle, short

TITLES = {
    "length": "tokens in a sequence",
    "batch": "sequences in a batch",
    "depth": "blocks",
    "width": "width of the model",
}
"""The labels of the axes of sizes."""

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class FigureRow:
    """A figure.

    of     its data, of an answer
    chart  what is drawn of the data: it has a `height(columns)` in inches, and `draw(panel)`
    notes  conventions and sources of the data in sentences
    ask    the data of every panel, of models and of the arguments of the command; None: it is of an answer alone
    """

    of: Callable[[Any], Any]
    chart: Callable[[Any], Any]
    notes: Callable[[Any], Iterable[str]]
    ask: Callable[[Sequence[str], Arguments], Sequence[Any]] | None = None


def _shares(models: Sequence[str], arguments: Arguments) -> list[Shares]:
    keywords = keywords_of("macro-operations", cost, arguments, "procedures")
    names = procedures_of(arguments)
    return [shares(cost(model, name, by="macro-operation", **keywords) for model in models for name in names)]


def _shares_chart(data: Shares) -> BarChart:
    several = len({bar.procedure for bar in data.bars}) > 1
    bars = []
    for bar in data.bars:
        parts = []
        for part in bar.parts:
            name, percent = part.macro_operation.replace("_", " "), share(part.flops, bar.flops)
            parts.append(BarPart(part.share, PASSES[name], (f"{name} {percent}", percent)))
        bars.append(Bar(f"{bar.model}, {bar.procedure}" if several else bar.model, tuple(parts), short(bar.flops)))
    return BarChart("", "FLOPs a step", tuple(bars), 0.27)


def _shares_notes(data: Shares) -> Iterator[str]:
    for bar in data.bars:
        yield f"{bar.model}, {bar.procedure}: {sizes_of(bar)}; optimizer {bar.optimizer}; counted: {bar.counted}"
        yield f"{bar.model}: {bar.source}" if bar.source else ""
    yield from dict.fromkeys(convention(bar.price_book) for bar in data.bars)


def _scaling(models: Sequence[str], arguments: Arguments) -> list[Scaling]:
    """Return one panel of all models; one procedure, bp, unless others are asked for."""
    keywords = keywords_of("scaling", compare, arguments, "along")
    names = tuple(part.strip() for part in arguments["along"].split(",")) if arguments.get("along") else tuple(ALONG)
    for name in names:
        named_one("size to grow along", name, ALONG)
    usual = {"procedures": "bp"} if len(models) > 1 else {}
    return [scaling([compare(model, **(usual | keywords)) for model in models], names)]


def _scaling_chart(data: Scaling) -> Lines:
    models = dict.fromkeys(curve.model for curve in data.curves)
    charts = []
    for along in data.along:
        lines, totals = list[DrawnLine](), list[int]()
        for grown in (grown for grown in data.curves if grown.along == along):
            for series in grown.series:
                name = grown.model if len(models) > 1 else series.procedure
                dot = grown.here if series is grown.series[0] else None
                look = (INK, "-") if len(models) > 1 and not lines else None
                lines.append(DrawnLine(name, grown.places, series.totals, dot, look))
                totals += [amount for amount in series.totals if amount]
        between = min(totals, default=1) / 1.5, max(totals, default=1) * 1.5
        ticks = "powers" if along in ("length", "batch") else "all"
        charts.append(LineChart(TITLES[along], tuple(lines), (True, True), ticks, between))
    about = f"FLOPs a step · price book {data.curves[0].price_book}"
    return Lines(", ".join(models), about, tuple(charts), (1.75, 1.95))


def _scaling_notes(data: Scaling) -> Iterator[str]:
    for grown in data.curves:
        yield f"{grown.model} over its {grown.along}: all else unchanged, a dot at {grown.along} {grown.here:,}"
    if "width" in data.along:
        yield "The width scales feed-forward networks and the number of heads at a fixed head width"
    yield convention(data.curves[0].price_book)


def _crossover(models: Sequence[str], arguments: Arguments) -> list[Growth]:
    keywords = keywords_of("crossover", compare, arguments)
    return [growth(compare(model, **keywords)) for model in models]


def _crossover_chart(data: Growth) -> Lines:
    base = "backpropagation" if any(series.procedure == "bp" for series in data.series) else data.series[0].procedure
    ratios = [ratio for series in data.series for ratio in series.ratios if ratio is not None]
    low, top = min(ratios, default=1.0), max(ratios, default=1.0)
    margin = max(0.05, (top - low) * 0.12)
    rings = [
        (crossing.at, f"from {crossing.at:,}\n{crossing.cheaper} is cheaper")
        for crossing in data.crossings
        if "bp" in (crossing.cheaper, crossing.dearer) and data.places[0] <= crossing.at <= data.places[-1]
    ]
    chart = LineChart(
        TITLES["length"],
        tuple(DrawnLine(series.procedure, data.places, series.ratios) for series in data.series),
        sizes="powers",
        between=(low - margin, top + 1.4 * margin),
        ratio=True,
        limit=(data.limit, f"beyond its {data.limit:,} positions") if data.limit else None,
        here=data.here,
        rings=tuple(rings),
    )
    return Lines(data.model, f"FLOPs over those of {base} · price book {data.price_book}", (chart,), (1.93, 2.33))


def _crossover_notes(data: Growth) -> Iterator[str]:
    yield f"{data.model}: all else as at length {data.here:,}; crossings are solved exactly at whole numbers"
    if data.limit:
        yield f"Grey: more than the {data.limit:,} positions that it learns, as for a model that learns as many"
    yield convention(data.price_book)
    for crossing in data.crossings:
        yield f"From {crossing.at:,} {data.unit} on, {crossing.cheaper} is cheaper than {crossing.dearer}"


def _memory(models: Sequence[str], arguments: Arguments) -> list[MemoryCurve]:
    """Return a panel for each model and procedure, of the engine that `learncost memory` has."""
    keywords = keywords_of("memory", memory, arguments, "procedures")
    answers = (memory(model, name, **keywords) for model in models for name in procedures_of(arguments))
    return [curve(panel) for answer in answers for panel in answer._panels if isinstance(panel, Memory)]


def _memory_notes(data: MemoryCurve) -> Iterator[str]:
    yield f"{data.model}, {data.procedure}: {sizes_of(data)}, {data.dtype}"
    yield f"Optimizer {data.optimizer}; engine {data.engine}"
    yield data.convention
    yield "A line of a loop is drawn once, with the bytes of its largest iteration"


def _roofline(models: Sequence[str], arguments: Arguments) -> list[Roofline]:
    keywords = keywords_of("roofline", cost, arguments, "procedures")
    if not keywords.get("on"):
        raise InputError("roofline requires a device: --on NAME (see learncost list devices), or --on here")
    names = procedures_of(arguments)
    return [roofline(cost(model, name, by="equation", **keywords)) for model in models for name in names]


def _roofline_notes(data: Roofline) -> Iterator[str]:
    yield f"{data.model}, {data.procedure}: {sizes_of(data)}, {data.dtype}"
    yield f"{data.device}: {data.source}"
    low, high = seconds_of(data.low), seconds_of(data.high)
    step = "in these lines of the table" if data.of_kernels else "a step"
    yield f"Predicted, not measured: {seconds_of(data.seconds)} {step}, expected between {low} and {high}"
    yield data.of_kernels
    if away := len(data.points) - len(drawn(data)):
        yield f"{away} kernels with less than {LEAST} FLOPs per byte are not drawn"
    yield "Lines fused into another kernel are counted there; area is time"


def _procedures(models: Sequence[str], arguments: Arguments) -> list[Procedures]:
    """Return a panel for each model; memory as the table says, the same engine for all."""
    keywords = keywords_of("procedures", compare, arguments)
    data = []
    for model in models:
        answer = compare(model, **keywords)
        assert answer._request is not None
        request = answer._request.in_precision(answer._request.kind(trains=True).name)
        data.append(procedures(answer, table_memories(answer.procedures, of_memory(request))))
    return data


def _procedures_chart(data: Procedures) -> BarChart:
    most = max((each.flops for each in data.procedures), default=1) or 1
    peak, under = max((each.peak or 0 for each in data.procedures), default=0), data.memory.partition(" under ")[2]
    under, bars = f", {under}" if under else "", []
    for each in data.procedures:
        parts = []
        for part in each.passes:
            name, times = part.macro_operation.replace("_", " "), f", {part.passes} ×" if part.passes > 1 else ""
            parts.append(BarPart(part.flops / most, PASSES[name], (f"{name}{times}", name)))
        ratio = each.ratio["flops"]
        end = short(each.flops) if ratio is None else f"{short(each.flops)} · {ratio:.2f} ×"
        below = None if each.peak is None else (each.peak / peak, f"{size_of(each.peak)} at the peak{under}")
        bars.append(Bar(each.name, tuple(parts), end, below))
    about = f"FLOPs of {step_of(data, data.optimizer, f'price book {data.price_book}')}"
    return BarChart(data.model, about, tuple(bars), 0.4 if any(bar.below for bar in bars) else 0.27)


def _procedures_notes(data: Procedures) -> Iterator[str]:
    yield f"{data.model}: {sizes_of(data)}; optimizer {data.optimizer}"
    yield convention(data.price_book)
    yield from (f"Memory, {data.memory}: {counted}" for counted in data.conventions.values())
    yield data.left_out


def _conventions(models: Sequence[str], arguments: Arguments) -> list[Bridge]:
    """Return a panel for each model: from the book `against` to the price book."""
    keywords = keywords_of("conventions", conventions, arguments, "price_book", "against")
    end = arguments.get("price_book") or "run"
    start = arguments.get("against") or (REFERENCE_CONVENTION if end != REFERENCE_CONVENTION else "run")
    return [bridge(conventions(model, **keywords), start, end) for model in models]


@dataclass(frozen=True)
class BridgeChart:
    """All price books as multiples of matrix products on a line, and the items between two of them below."""

    data: Bridge

    def _rows(self, columns: int) -> list[tuple[list[str], int, bool]]:
        """Return the lines of each label, the amount, and whether that is a difference."""
        data, letters = self.data, {1: 30, 2: 62}[columns]
        items = [(wrap(item.what, letters), item.amount, True) for item in data.drawn]
        ends = [([end.price_book], end.amount, False) for end in (data.start, data.end)]
        return [ends[0], *items, ends[1]]

    def height(self, columns: int) -> float:
        """Return the inches that the panel is high."""
        lines = [len(words) for words, *_ in self._rows(columns)]
        high = STEP * len(lines) + 0.1 * (sum(lines) - len(lines))
        return HEADING + 0.62 + high + (0.2 if self.data.reach[0] else 0.05)

    def draw(self, panel: Panel) -> None:
        """Draw the panel."""
        data, top = self.data, panel.height - HEADING - 0.62
        panel.heading(data.model, f"FLOPs of {step_of(data)}")
        ratios = [(bar.price_book, bar.ratio) for bar in data.bars if bar.ratio]
        points_on_a_line(panel.part(0, top, panel.width, 0.62), ratios, (data.start.price_book, data.end.price_book))
        waterfall(panel.part(0, 0, panel.width, top), self._rows(panel.columns), data.reach)


def _conventions_notes(data: Bridge) -> Iterator[str]:
    yield f"{data.model}: one step of backpropagation, {sizes_of(data)}"
    yield "Forward, backward and weight update, without the optimizer step; one MACC is two FLOPs"
    for bar in (data.start, data.end):
        yield f"{bar.price_book}: {bar.title}; {bar.source}"


def _curves_chart(data: Curves) -> Lines:
    lines = tuple(DrawnLine(line.name, line.places, line.values, line.places[-1]) for line in data.lines)
    return Lines(data.name, data.about, (LineChart(data.x, lines, data.logarithmic),))


def _fit_chart(data: FitBars) -> BarChart:
    most = max(*(bar.ram for bar in data.bars), data.limit)
    bars = []
    for bar in data.bars:
        end = f"{size_of(bar.ram)} · {f'batch {bar.largest:,}' if bar.largest else 'does not fit'}"
        bars.append(Bar(bar.name, (BarPart(bar.ram / most, FillStyle(DARK if bar.largest else LIGHT)),), end))
    return BarChart(
        data.model, data.about, tuple(bars), 0.2, (data.limit / most, f"{bytes_text(data.limit)} available")
    )


def _of_curves(of: Callable[[Any], Curves]) -> FigureRow:
    return FigureRow(of, _curves_chart, lambda data: data.notes)


ROWS: Mapping[str, FigureRow] = {
    "macro-operations": FigureRow(lambda answer: shares((answer,)), _shares_chart, _shares_notes, _shares),
    "scaling": FigureRow(lambda answer: scaling((answer,)), _scaling_chart, _scaling_notes, _scaling),
    "crossover": FigureRow(growth, _crossover_chart, _crossover_notes, _crossover),
    "memory": FigureRow(curve, MemoryChart, _memory_notes, _memory),
    "roofline": FigureRow(roofline, RooflineChart, _roofline_notes, _roofline),
    "procedures": FigureRow(procedures, _procedures_chart, _procedures_notes, _procedures),
    "conventions": FigureRow(bridge, BridgeChart, _conventions_notes, _conventions),
    "complexity": _of_curves(of_complexity),
    "contest": _of_curves(of_contest),
    "sweep": _of_curves(of_sweep),
    "fit": FigureRow(of_fit, _fit_chart, lambda data: data.sentences),
}
"""The figures by name: those of the command, then those of answers alone."""
