"""Points on axes: the kernels of a roofline as circles whose area is their time, and amounts as points on one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import atan2, cos, degrees, hypot, log10, pi, sin, sqrt
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.reports.sheet import seconds_of
from learncost.viz.data.roofline import Point, Roofline, share
from learncost.viz.figures.bars import BarPart, stacked
from learncost.viz.figures.panel import HEADING, POINTS, Panel, fitting, say, step_of
from learncost.viz.figures.style import (
    DARK,
    EDGE,
    FAINT,
    GRID,
    INK,
    LIGHT,
    MIDDLE,
    PASSES,
    SMALL,
    FillStyle,
    tick,
    width_of,
)

NEAR = 5.0
"""Points within which kernels are one circle."""

LABELS = {1: 6, 2: 11}
"""Circles that are named at most, in one and two columns."""

LEAST = 0.02
"""FLOPs a byte from which on kernels are drawn."""

LIMITS = {"compute": DARK, "memory": MIDDLE, "launch": LIGHT}

Box = tuple[float, float, float, float]


@dataclass
class Circle:
    """Kernels in one place: where it is in points from the lower left corner of the axes, and its radius."""

    x: float
    y: float
    points: list[Point]
    radius: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(point.seconds for point in self.points)

    @property
    def box(self) -> Box:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius

    @property
    def name(self) -> str:
        """The layers of its kernels, the one with the most time first, and how many lines there are."""
        layers = _times(self.points, "layer")
        order = sorted(layers, key=lambda name: -layers[name])
        if len(self.points) == 1:
            line = self.points[0].line
            return order[0] if line == order[0] else f"{order[0]} {line}"
        return f"{', '.join(order[:2])} · {len(self.points)} lines"


def _times(points: Iterable[Point], field: str) -> dict[str, float]:
    """Return the seconds of points by the layer or the pass."""
    times: dict[str, float] = {}
    for point in points:
        name = getattr(point, field).replace("_", " ")
        times[name] = times.get(name, 0.0) + point.seconds
    return times


def drawn(data: Roofline) -> list[Point]:
    """Return the points that compute much: with the others, the axes would reach too far."""
    return [point for point in data.points if point.flops and point.bytes and point.intensity >= LEAST]


@dataclass(frozen=True)
class RooflineChart:
    """The kernels of a step below the roof of a device, with a bar of what limits its time."""

    data: Roofline

    def height(self, columns: int) -> float:
        """Return the inches that the panel is high."""
        return 2.75 if columns == 1 else 3.1

    def draw(self, panel: Panel) -> None:
        """Draw the panel."""
        data, points = self.data, drawn(self.data)
        panel.heading(data.model, step_of(data, data.procedure, data.dtype, data.plan, data.device))
        _limits(panel, data)
        left, bottom, right, top = 0.42, 0.47, 0.05, HEADING + 0.26
        axes = panel.axes(left, bottom, right, top)
        wide, high = (panel.width - left - right) * POINTS, (panel.height - bottom - top) * POINTS
        low_x = min((point.intensity for point in points), default=0.1) / 2
        high_x = max([point.intensity for point in points] + [data.roofs[0].ridge * 4]) * 8
        low_y = min([point.speed for point in points] + [low_x * 2 * data.roofs[0].bandwidth]) / 3
        high_y = max([data.peak] + [point.speed for point in points]) * 2.2
        axes.set(xscale="log", yscale="log", xlim=(low_x, high_x), ylim=(low_y, high_y))

        def place(x: float, y: float) -> tuple[float, float]:
            return log10(x / low_x) / log10(high_x / low_x) * wide, log10(y / low_y) / log10(high_y / low_y) * high

        axes.grid(color=GRID, linewidth=0.5)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: tick(value))
        axes.set_xlabel("FLOPs per byte moved", size=SMALL, labelpad=2, loc="right")
        reached = f"FLOP/s reached{' by lines of the table' if data.of_kernels else ''}"
        axes.text(0.0, 1.01, reached, transform=axes.transAxes, size=SMALL, color=FAINT, va="bottom")
        boxes = [*_roofs(axes, data, (low_x, high_x, low_y), place)]
        circles = _circles(points, place)
        _wedges(axes, circles, (wide, high))
        _names(axes, circles, boxes, (wide, high), LABELS[panel.columns])
        names = _times(points, "macro_operation")
        panel.key(left, 0.03, [(name, look) for name, look in PASSES.items() if name in names])


def _limits(panel: Panel, data: Roofline) -> None:
    """Draw a bar of what limits the time of the step."""
    axes = panel.axes(0, panel.height - HEADING - 0.14, 0, HEADING)
    total, parts = sum(data.limits.values()) or 1.0, []
    interval = f"{seconds_of(data.low).partition(' ')[0]}–{seconds_of(data.high)}"
    for name, fill in LIMITS.items():
        seconds = data.limits.get(name, 0.0)
        part = share(seconds, total)
        longest = f"{name}-bound {part} of {seconds_of(data.seconds)} ({interval})"
        texts = (f"{name}-bound {part}", f"{name} {part}", part)
        parts.append(BarPart(seconds / total, FillStyle(fill), (longest, *texts) if name == "compute" else texts))
    stacked(axes, parts, 0, 1, panel.width * POINTS)
    axes.set(xlim=(0, 1), ylim=(-0.5, 0.5))
    axes.axis("off")


def _roofs(axes: Any, data: Roofline, reach: tuple[float, float, float], place: Any) -> Iterator[Box]:
    """Draw the roof lines and their names; yield boxes along them that nothing else may cover."""
    low_x, high_x, low_y = reach

    def write(text: str, x: float, y: float, **more: Any) -> None:
        at = {"xycoords": "axes points", "textcoords": "axes points", "size": SMALL, "color": FAINT}
        axes.annotate(text, (0, 0), xytext=(x, y), **at, **more)

    for number, roof in enumerate(data.roofs):
        dashes: Any = (0, (4, 2)) if number else "-"
        axes.plot([low_x, roof.ridge], [low_x * roof.bandwidth, data.peak], color=INK, linewidth=1.1, linestyle=dashes)
        (x0, y0), (x1, y1) = place(low_x, low_x * roof.bandwidth), place(roof.ridge, data.peak)
        steps = max(2, int((x1 - x0) / 3))
        for x, y in ((x0 + (x1 - x0) * n / steps, y0 + (y1 - y0) * n / steps) for n in range(steps + 1)):
            yield x - 1, y - 1, x + 1, y + 1
        text, along = f"{roof.name} {tick(roof.bandwidth, 'B/s')}", 0.3 if number else 0.42
        x, y, angle = x0 + (x1 - x0) * along, y0 + (y1 - y0) * along, atan2(y1 - y0, x1 - x0)
        write(text, x - 3, y + 5, rotation=degrees(angle), rotation_mode="anchor", ha="center", va="bottom")
        half = width_of(text, SMALL) / 2
        for right, up in ((x + half * n / 8 * cos(angle), y + half * n / 8 * sin(angle)) for n in range(-8, 9)):
            yield right - 8, up + 3, right + 3, up + 13
    ridge = data.roofs[0].ridge
    axes.plot([ridge, high_x], [data.peak, data.peak], color=INK, linewidth=1.1)
    x, y = place(ridge, data.peak)
    yield x, y - 1, place(high_x, data.peak)[0], y + 1
    text = f"{tick(data.peak, 'FLOP/s')} of large products, {data.dtype}"
    text = fitting((text, text.partition(" of")[0]), x - 6, SMALL)
    write(text, x - 4, y, ha="right", va="center")
    yield x - 6 - width_of(text, SMALL), y - 4, x, y + 4
    axes.plot([ridge, ridge], [low_y, data.peak], color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)))
    label = f"ridge {ridge:.3g}"
    write(label, x + 3, 3)
    yield x, 0, x + 6 + width_of(label, SMALL), 11


def _circles(points: Sequence[Point], place: Any) -> list[Circle]:
    """Kernels in the same place together; the largest first, so that small ones lie on top."""
    most = max((point.seconds for point in points), default=1.0)
    circles: list[Circle] = []
    for point in sorted(points, key=lambda point: -point.seconds):
        x, y = place(point.intensity, point.speed)
        if near := next((circle for circle in circles if hypot(circle.x - x, circle.y - y) < NEAR), None):
            near.points.append(point)
        else:
            circles.append(Circle(x, y, [point]))
    for circle in circles:
        circle.radius = max(1.4, sqrt(circle.seconds / most * 42 / pi * 2))
    return sorted(circles, key=lambda circle: -circle.radius)


def _wedges(axes: Any, circles: Sequence[Circle], reach: tuple[float, float]) -> None:
    """Draw circles as wedges by pass, in points."""
    from matplotlib.patches import Wedge
    from matplotlib.transforms import Affine2D

    frame = Affine2D().scale(1 / reach[0], 1 / reach[1]) + axes.transAxes
    for circle in circles:
        passes, start = _times(circle.points, "macro_operation"), 90.0
        for name, look in PASSES.items():
            if name in passes:
                end = start - 360 * passes[name] / circle.seconds
                wedge = Wedge(
                    (circle.x, circle.y), circle.radius, end, start, transform=frame, facecolor=look.fill,
                    hatch=look.hatch, edgecolor="white" if len(passes) > 1 else INK, linewidth=0.3, zorder=3,
                    clip_on=False,  # the largest circle may reach above the roof
                )  # fmt: skip
                axes.add_patch(wedge)
                start = end


def _names(axes: Any, circles: Sequence[Circle], boxes: list[Box], reach: tuple[float, float], most: int) -> None:
    """Write names next to circles, in seven positions each, that overlap neither the roof nor a name nor a circle."""
    placed = 0
    for circle in sorted(circles, key=lambda circle: -circle.seconds):
        if placed >= most:
            break
        text, gap, others = circle.name, circle.radius + 2.5, [other.box for other in circles if other is not circle]
        across = width_of(text, SMALL)
        positions = (
            (gap, 0.0), (-gap - across, 0.0), (-across / 2, gap + 3.0), (-across / 2, -gap - 3.0),
            (gap * 0.7, -gap * 0.7 - 3), (gap * 0.7, gap * 0.7 + 3), (-gap * 0.7 - across, -gap * 0.7 - 3),
        )  # fmt: skip
        for x, y in ((circle.x + right, circle.y + up) for right, up in positions):
            box = (x - 1, y - 4.0, x + across + 1, y + 4.0)
            inside = box[0] >= 0 and box[2] <= reach[0] and box[1] >= 0 and box[3] <= reach[1]
            if inside and not any(_overlap(box, other) for other in (*boxes, *others)):
                at = {"xycoords": "axes points", "textcoords": "axes points", "size": SMALL}
                axes.annotate(text, (0, 0), xytext=(x, y), va="center", zorder=4, **at)
                boxes.append(box)
                placed += 1
                break


def _overlap(first: Box, other: Box) -> bool:
    return first[0] < other[2] and other[0] < first[2] and first[1] < other[3] and other[1] < first[3]


def points_on_a_line(panel: Panel, ratios: Sequence[tuple[str, float]], filled: Sequence[str]) -> None:
    """Draw ratios as points on one line, those close to each other as one; the filled ones have bold names."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    ordered = sorted(ratios, key=lambda row: row[1])
    if len(ordered) < 2:
        return
    left, right = (width_of(f"{ordered[n][0]} +9", SMALL) / 2 / POINTS + 0.02 for n in (0, -1))
    axes = panel.axes(left, 0.3, right, 0.24)
    points = (panel.width - left - right) * POINTS
    low, high = ordered[0][1], ordered[-1][1]
    wide = high > 4 * low
    axes.set(xscale="log" if wide else "linear", xlim=(low, high * (1 + 1e-9)), ylim=(-1, 1))
    ends, groups = [-1e9, -1e9], list[tuple[float, list[tuple[str, float]]]]()
    for row in ordered:
        x = axes.transAxes.inverted().transform(axes.transData.transform((row[1], 0)))[0] * points
        if groups and x - groups[-1][0] < 5:
            groups[-1][1].append(row)
        else:
            groups.append((x, [row]))
    for x, several in groups:
        name, ratio = next((row for row in several if row[0] in filled), several[0])
        fill, weight = (INK, "bold") if name in filled else ("white", "normal")
        axes.plot(
            [ratio], [0], "o", markersize=4.2, markerfacecolor=fill, markeredgecolor=INK, markeredgewidth=0.8,
            clip_on=False, zorder=3,
        )  # fmt: skip
        text = name + (f" +{len(several) - 1}" if len(several) > 1 else "")
        half = width_of(text, SMALL, name in filled) / 2
        row_at = next((row for row, end in enumerate(ends) if x - half > end + 4), None)
        if row_at is not None:
            ends[row_at] = x + half
            above = 0, 5 + 7.5 * row_at
            say(axes, text, (ratio, 0), above, ha="center", weight=weight, annotation_clip=False)
    axes.axhline(0, color=EDGE, linewidth=0.8, zorder=1)
    axes.spines["bottom"].set(visible=False, position=("data", 0))
    axes.set_yticks([])
    axes.xaxis.set_major_locator(LogLocator(10) if wide else MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g} ×")
    axes.tick_params(axis="x", pad=4, length=0)
