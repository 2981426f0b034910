"""Every line on a device: FLOPs a byte, FLOPs a second; the area of a circle is its time, its wedges are passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log10, pi, sqrt
from typing import Any

from learncost.ir.errors import InputError
from learncost.reports.cost import cost
from learncost.reports.record import Cost
from learncost.reports.sheet import seconds_of
from learncost.viz.data.roofline import Point, Roofline, roofline, share
from learncost.viz.figures.panel import HEADING, POINTS, Panel, fitting, keywords_of, procedures_of, sizes_of, step_of
from learncost.viz.figures.style import DARK, FAINT, GRID, INK, LIGHT, MIDDLE, PASSES, SMALL, tick, width_of

NEAR = 5.0
"""Points within which kernels are one circle."""

LABELS = {1: 6, 2: 11}
"""Circles that are named at most, in one and two columns."""

LEAST = 0.02
"""FLOPs a byte from which on kernels are drawn."""

LIMITS = {"compute": DARK, "memory": MIDDLE, "launch": LIGHT}


def ask(models: Sequence[str], arguments: Mapping[str, Any]) -> list[Roofline]:
    """A panel for each model and procedure."""
    keywords = keywords_of("roofline", cost, arguments, "procedures")
    if not keywords.get("on"):
        raise InputError("roofline requires a device: --on NAME (see learncost list devices), or --on here")
    return [of(cost(model, name, by="equation", **keywords)) for model in models for name in procedures_of(arguments)]


def of(answer: Cost) -> Roofline:
    """The data of a panel, of an answer."""
    return roofline(answer)


def height(data: Roofline, columns: int) -> float:
    """Inches that the panel is high."""
    return 2.75 if columns == 1 else 3.1


@dataclass
class Circle:
    """Kernels in one place: where it is in points from the lower left corner of the axes, and its radius."""

    x: float
    y: float
    radius: float
    points: list[Point]

    @property
    def seconds(self) -> float:
        return sum(point.seconds for point in self.points)

    @property
    def name(self) -> str:
        """The layers of its kernels, the one with the most time first, and how many lines there are."""
        layers: dict[str, float] = {}
        for point in self.points:
            name = point.layer.replace("_", " ")
            layers[name] = layers.get(name, 0.0) + point.seconds
        order = sorted(layers, key=lambda name: -layers[name])
        lines = "" if len(self.points) == 1 else f" · {len(self.points)} lines"
        if len(self.points) == 1:
            line = self.points[0].line
            return order[0] if line == order[0] else f"{order[0]} {line}"
        return ", ".join(order[:2]) + lines


def draw(data: Roofline, panel: Panel) -> None:
    """Draw the panel."""
    about = step_of(data, data.procedure, data.dtype, data.plan, data.device)
    panel.heading(data.model, about)
    _limits(panel, data)
    left, bottom, right, top = 0.42, 0.47, 0.05, HEADING + 0.26
    axes = panel.axes(left, bottom, right, top)
    wide, high = (panel.width - left - right) * POINTS, (panel.height - bottom - top) * POINTS
    drawn = _drawn(data)
    memory = data.roofs[0].bandwidth
    low_x = min((point.intensity for point in drawn), default=0.1) / 2
    high_x = max([point.intensity for point in drawn] + [data.roofs[0].ridge * 4]) * 8
    low_y = min([point.speed for point in drawn] + [low_x * 2 * memory]) / 3
    high_y = max([data.peak] + [point.speed for point in drawn]) * 2.2
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(low_y, high_y)

    def place(x: float, y: float) -> tuple[float, float]:
        return log10(x / low_x) / log10(high_x / low_x) * wide, log10(y / low_y) / log10(high_y / low_y) * high

    axes.grid(color=GRID, linewidth=0.5)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: tick(value))
    axes.set_xlabel("FLOPs per byte moved", size=SMALL, labelpad=2, loc="right")
    axes.text(0.0, 1.01, "FLOP/s reached", transform=axes.transAxes, size=SMALL, color=FAINT, va="bottom")
    taken_up = _roofs(axes, data, (low_x, high_x, low_y, high_y), place)
    circles = _circles(drawn, place)
    _wedges(axes, circles, (wide, high))
    _names(axes, circles, taken_up, (wide, high), LABELS[panel.columns])
    names = {point.macro_operation.replace("_", " ") for point in drawn}
    panel.key(left, 0.03, [(name, look) for name, look in PASSES.items() if name in names])


def _drawn(data: Roofline) -> list[Point]:
    """Those that compute something to speak of: of others the axes would reach too far."""
    return [point for point in data.points if point.flops and point.bytes and point.intensity >= LEAST]


def _limits(panel: Panel, data: Roofline) -> None:
    """A bar of what limits the time of the step."""
    axes = panel.axes(0, panel.height - HEADING - 0.14, 0, HEADING)
    start, total = 0.0, sum(data.limits.values()) or 1.0
    low, high = seconds_of(data.low).partition(" ")[0], seconds_of(data.high)
    for name, fill in LIMITS.items():
        part = data.limits.get(name, 0.0) / total
        axes.barh(0, part, 1, left=start, color=fill, edgecolor="white", linewidth=0.6)
        percent = share(data.limits.get(name, 0.0), total)
        available = part * panel.width * POINTS - 5
        interval = f" of {seconds_of(data.seconds)} ({low}–{high})" if name == "compute" else ""
        text = fitting(
            (f"limited by {name} {percent}{interval}", f"limited by {name} {percent}", f"{name} {percent}", percent),
            available,
            SMALL,
        )
        axes.text(start + 3 / (panel.width * POINTS), 0, text, size=SMALL, va="center")
        start += part
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, 0.5)
    axes.axis("off")


Box = tuple[float, float, float, float]


def _roofs(axes: Any, data: Roofline, reach: Box, place: Any) -> list[Box]:
    """The roof lines and their names; boxes along them that nothing else may cover."""
    low_x, high_x, _, _ = reach
    boxes: list[Box] = []
    for number, roof in enumerate(data.roofs):
        dashes: Any = "-" if number == 0 else (0, (4, 2))
        axes.plot([low_x, roof.ridge], [low_x * roof.bandwidth, data.peak], color=INK, linewidth=1.1, linestyle=dashes)
        (x0, y0), (x1, y1) = place(low_x, low_x * roof.bandwidth), place(roof.ridge, data.peak)
        steps = max(2, int((x1 - x0) / 3))
        boxes += [
            (
                x0 + (x1 - x0) * n / steps - 1,
                y0 + (y1 - y0) * n / steps - 1,
                x0 + (x1 - x0) * n / steps + 1,
                y0 + (y1 - y0) * n / steps + 1,
            )
            for n in range(steps + 1)
        ]
        from math import atan2, degrees

        text = f"{roof.name} {tick(roof.bandwidth, 'B/s')}"
        share_of = 0.42 if number == 0 else 0.3
        x, y = x0 + (x1 - x0) * share_of, y0 + (y1 - y0) * share_of
        angle = degrees(atan2(y1 - y0, x1 - x0))
        axes.annotate(
            text, (0, 0), xycoords="axes points", xytext=(x - 3, y + 5), textcoords="axes points", size=SMALL,
            color=FAINT, rotation=angle, rotation_mode="anchor", ha="center", va="bottom",
        )  # fmt: skip
        half = width_of(text, SMALL) / 2
        along = [n / 8 for n in range(-8, 9)]
        run, rise = (
            (x1 - x0) / max(1e-9, sqrt((x1 - x0) ** 2 + (y1 - y0) ** 2)),
            (y1 - y0) / max(1e-9, sqrt((x1 - x0) ** 2 + (y1 - y0) ** 2)),
        )
        boxes += [
            (x + half * n * run - 8, y + half * n * rise + 3, x + half * n * run + 3, y + half * n * rise + 13)
            for n in along
        ]
    ridge = data.roofs[0].ridge
    axes.plot([ridge, high_x], [data.peak, data.peak], color=INK, linewidth=1.1)
    x, y = place(ridge, data.peak)
    end, _ = place(high_x, data.peak)
    boxes.append((x, y - 1, end, y + 1))
    text = f"{tick(data.peak, 'FLOP/s')} of large products, {data.dtype}"
    text = fitting((text, text.partition(" of")[0]), x - 6, SMALL)
    axes.annotate(
        text, (x, y), xycoords="axes points", xytext=(x - 4, y), textcoords="axes points", size=SMALL, color=FAINT,
        ha="right", va="center",
    )  # fmt: skip
    boxes.append((x - 6 - width_of(text, SMALL), y - 4, x, y + 4))
    axes.plot([ridge, ridge], [reach[2], data.peak], color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)))
    label = f"ridge {ridge:.3g}"
    axes.annotate(
        label, (x, 0), xycoords="axes points", xytext=(x + 3, 3), textcoords="axes points", size=SMALL, color=FAINT
    )
    boxes.append((x, 0, x + 6 + width_of(label, SMALL), 11))
    return boxes


def _circles(points: Sequence[Point], place: Any) -> list[Circle]:
    """Kernels in the same place together; the largest first, so that small ones lie on top."""
    most = max((point.seconds for point in points), default=1.0)
    circles: list[Circle] = []
    for point in sorted(points, key=lambda point: -point.seconds):
        x, y = place(point.intensity, point.speed)
        near = next((circle for circle in circles if sqrt((circle.x - x) ** 2 + (circle.y - y) ** 2) < NEAR), None)
        if near:
            near.points.append(point)
        else:
            circles.append(Circle(x, y, 0.0, [point]))
    for circle in circles:
        circle.radius = max(1.4, sqrt(circle.seconds / most * 42 / pi * 2))
    return sorted(circles, key=lambda circle: -circle.radius)


def _wedges(axes: Any, circles: Sequence[Circle], reach: tuple[float, float]) -> None:
    """Circles as wedges by pass, in points."""
    from matplotlib.patches import Wedge
    from matplotlib.transforms import Affine2D, ScaledTranslation

    del ScaledTranslation
    wide, high = reach
    frame = Affine2D().scale(1 / wide, 1 / high) + axes.transAxes
    for circle in circles:
        passes: dict[str, float] = {}
        for point in circle.points:
            name = point.macro_operation.replace("_", " ")
            passes[name] = passes.get(name, 0.0) + point.seconds
        start = 90.0
        for name, look in PASSES.items():
            if name not in passes:
                continue
            angle = 360 * passes[name] / circle.seconds
            wedge = Wedge(
                (circle.x, circle.y), circle.radius, start - angle, start, transform=frame, facecolor=look.fill,
                hatch=look.hatch, edgecolor="white" if len(passes) > 1 else INK, linewidth=0.3, zorder=3, clip_on=True,
            )  # fmt: skip
            axes.add_patch(wedge)
            start -= angle


def _names(axes: Any, circles: Sequence[Circle], boxes: list[Box], reach: tuple[float, float], most: int) -> None:
    """Names next to circles, in seven positions each, that overlap neither the roof nor a name nor another circle."""
    wide, high = reach
    around = [
        (circle.x - circle.radius, circle.y - circle.radius, circle.x + circle.radius, circle.y + circle.radius)
        for circle in circles
    ]
    placed = 0
    for place in sorted(range(len(circles)), key=lambda n: -circles[n].seconds):
        if placed >= most:
            break
        circle = circles[place]
        text, size = circle.name, SMALL
        half_high, across, gap = 4.0, width_of(text, size), circle.radius + 2.5
        positions = (
            (circle.x + gap, circle.y), (circle.x - gap - across, circle.y),
            (circle.x - across / 2, circle.y + gap + 3.0), (circle.x - across / 2, circle.y - gap - 3.0),
            (circle.x + gap * 0.7, circle.y - gap * 0.7 - 3), (circle.x + gap * 0.7, circle.y + gap * 0.7 + 3),
            (circle.x - gap * 0.7 - across, circle.y - gap * 0.7 - 3),
        )  # fmt: skip
        for x, y in positions:
            box = (x - 1, y - half_high, x + across + 1, y + half_high)
            inside = box[0] >= 0 and box[2] <= wide and box[1] >= 0 and box[3] <= high
            others = [other for number, other in enumerate(around) if number != place]
            if inside and not any(_overlap(box, other) for other in (*boxes, *others)):
                axes.annotate(
                    text, (0, 0), xycoords="axes points", xytext=(x, y), textcoords="axes points", size=size,
                    va="center", zorder=4,
                )  # fmt: skip
                boxes.append(box)
                placed += 1
                break


def _overlap(first: Box, other: Box) -> bool:
    return first[0] < other[2] and other[0] < first[2] and first[1] < other[3] and other[1] < first[3]


def notes(data: Roofline) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    yield f"{data.model}, {data.procedure}: {sizes_of(data)}, {data.dtype}"
    yield f"{data.device}: {data.source}"
    low, high = seconds_of(data.low), seconds_of(data.high)
    yield f"predicted, not measured: {seconds_of(data.seconds)} a step, expected between {low} and {high}"
    if away := len(data.points) - len(_drawn(data)):
        yield f"{away} kernels with less than {LEAST} FLOPs per byte are not drawn"
    yield "lines fused into another kernel are counted there; area is time"
