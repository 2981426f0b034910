"""A bar a procedure, split by pass, with its ratio to backpropagation; below it, in grey, the peak of its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from learncost.reports.compare import Comparison, compare
from learncost.reports.sheet import size_of
from learncost.viz.comparisons import of_memory
from learncost.viz.data.procedures import Procedures, procedures, table_memories
from learncost.viz.figures.panel import HEADING, POINTS, Panel, fitting, keywords_of, rows_of_key, sizes_of, step_of
from learncost.viz.figures.style import DARK, NORMAL, PASSES, SMALL, WIDTHS, short, width_of

ROW = 0.4


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Procedures]:
    """A panel for each model; memory as the table says, the same engine for all."""
    keywords = keywords_of("procedures", compare, arguments)
    data = []
    for model in models:
        answer = compare(model, **keywords)
        assert answer.request is not None
        data.append(procedures(answer, table_memories(answer.procedures, of_memory(answer.request))))
    return data


def of(answer: Comparison) -> Procedures:
    """The data of a panel, of an answer."""
    return procedures(answer)


def _has_memory(data: Procedures) -> bool:
    return any(procedure.peak is not None for procedure in data.procedures)


def _key(data: Procedures) -> list[tuple[str, Any]]:
    names = {
        step_pass.macro_operation.replace("_", " ") for procedure in data.procedures for step_pass in procedure.passes
    }
    return [(name, look) for name, look in PASSES.items() if name in names]


def height(data: Procedures, columns: int) -> float:
    """Inches that the panel is high."""
    row = ROW if _has_memory(data) else 0.27
    return HEADING + 0.25 + row * len(data.procedures) + 0.13 * rows_of_key(_key(data), WIDTHS[columns])


def draw(data: Procedures, panel: Panel) -> None:
    """Draw the panel."""
    sizes = step_of(data, data.optimizer, f"price book {data.price_book}")
    panel.heading(data.model, f"FLOPs of {sizes}")
    names = [procedure.name for procedure in data.procedures]
    ends = [_end(procedure.flops, procedure.ratio["flops"]) for procedure in data.procedures]
    left = max(map(width_of, names)) / POINTS + 0.08
    right = max(map(width_of, ends)) / POINTS + 0.08
    below = 0.13 * rows_of_key(_key(data), panel.width) + 0.08
    axes = panel.axes(left, below, right, HEADING + 0.05)
    points = (panel.width - left - right) * POINTS
    most = max((procedure.flops for procedure in data.procedures), default=1) or 1
    peak = max((procedure.peak or 0 for procedure in data.procedures), default=0)
    thick, shift = (0.44, -0.17) if _has_memory(data) else (0.7, 0.0)
    for place, (procedure, end) in enumerate(zip(data.procedures, ends, strict=True)):
        start = 0.0
        for step_pass in procedure.passes:
            name, width = step_pass.macro_operation.replace("_", " "), step_pass.flops / most
            look = PASSES[name]
            axes.barh(
                place + shift,
                width,
                thick,
                left=start,
                color=look.fill,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.6,
            )
            times = f", {step_pass.passes} ×" if step_pass.passes > 1 else ""
            text = fitting((f"{name}{times}", name), width * points - 5, SMALL)
            plate = {"facecolor": look.fill, "edgecolor": "none", "pad": 0.8} if look.hatch else None
            axes.text(
                start + width / 2,
                place + shift,
                text,
                ha="center",
                va="center",
                size=SMALL,
                color=look.text,
                bbox=plate,
            )
            start += width
        axes.text(start + 4 / points, place + shift, end, va="center", size=NORMAL)
        if procedure.peak is not None:
            axes.barh(place + 0.23, procedure.peak / peak, 0.2, color=DARK)
            text = f"{size_of(procedure.peak)} at the peak"
            inside = procedure.peak / peak * points > width_of(text, SMALL) + 8
            x, side = (4 / points, "left") if inside else (procedure.peak / peak + 4 / points, "left")
            axes.text(x, place + 0.235, text, va="center", ha=side, size=SMALL - 0.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(names) - 0.45, -0.5)
    axes.set_yticks(range(len(names)), names, size=NORMAL, color="black")
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)
    panel.key(0, below - 0.15, _key(data))


def _end(flops: int, ratio: float | None) -> str:
    return short(flops) if ratio is None else f"{short(flops)}  {ratio:.2f} ×"


def notes(data: Procedures) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    from learncost.reports.show import convention

    yield f"{data.model}: {sizes_of(data)}; optimizer {data.optimizer}"
    yield convention(data.price_book)
    yield from (f"memory, {engine}: {convention}" for engine, convention in data.conventions.items())
    yield data.left_out
