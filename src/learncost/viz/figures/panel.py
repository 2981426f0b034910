"""A panel: a part of a figure, in inches, in which axes are put and headings written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.procedures.procedure import several
from learncost.reports.question import FLAGS, flags_of
from learncost.viz.figures.style import FAINT, INK, NORMAL, SMALL, FillStyle, width_of

POINTS = 72.0
"""Of an inch."""

HEADING = 0.17
"""Inches that a heading takes."""


@dataclass(frozen=True)
class Panel:
    """A rectangle of a figure: `bottom` and `left` of its lower left corner, `width` and `height`, in inches."""

    figure: Any
    left: float
    bottom: float
    width: float
    height: float
    columns: int = 1

    def part(self, left: float, bottom: float, width: float, height: float) -> Panel:
        """Return a rectangle inside it."""
        return Panel(self.figure, self.left + left, self.bottom + bottom, width, height, self.columns)

    def axes(self, left: float = 0.0, bottom: float = 0.0, right: float = 0.0, top: float = 0.0, **more: Any) -> Any:
        """Axes with so many inches around them; bare of all but the line below."""
        wide, high = self.figure.get_size_inches()
        place = (
            (self.left + left) / wide,
            (self.bottom + bottom) / high,
            max(0.1, self.width - left - right) / wide,
            max(0.1, self.height - bottom - top) / high,
        )
        axes = self.figure.add_axes(place, **more)
        axes.spines[["top", "right", "left"]].set_visible(False)
        return axes

    def text(self, x: float, y: float, text: str, **more: Any) -> Any:
        """Write text at inches from the lower left corner."""
        wide, high = self.figure.get_size_inches()
        return self.figure.text((self.left + x) / wide, (self.bottom + y) / high, text, **more)

    def rectangle(self, x: float, y: float, width: float, height: float, look: FillStyle) -> None:
        """Draw a rectangle at inches from the lower left corner."""
        from matplotlib.patches import Rectangle

        wide, high = self.figure.get_size_inches()
        corner = (self.left + x) / wide, (self.bottom + y) / high
        edge, hatch = INK if look.hatch else "none", look.hatch * 2
        self.figure.add_artist(
            Rectangle(
                corner, width / wide, height / high, transform=self.figure.transFigure, facecolor=look.fill,
                edgecolor=edge, hatch=hatch, linewidth=0,
            )
        )  # fmt: skip

    def heading(self, name: str, about: str = "") -> None:
        """Write the heading of the panel: a name, and as much of its description as fits."""
        y = self.height - HEADING + 0.05
        self.text(0, y, name, weight="bold", size=NORMAL)
        start = width_of(name, NORMAL, True) + 6
        parts = about.split(" · ") if about else []
        while parts and start + width_of(" · ".join(parts), SMALL) > self.width * POINTS:
            parts.pop()
        self.text(start / POINTS, y, " · ".join(parts), size=SMALL, color=FAINT)

    def key(self, x: float, y: float, looks: Iterable[tuple[str, FillStyle]]) -> None:
        """Swatches with names side by side, in as many rows as they need downwards."""
        across = x
        for name, look in looks:
            needed = 0.13 + width_of(name, SMALL) / POINTS
            if across > x and across + needed > self.width:
                across, y = x, y - 0.13
            self.rectangle(across, y, 0.09, 0.07, look)
            self.text(across + 0.12, y, name, size=SMALL, color=INK, va="bottom")
            across += needed + 0.1


def say(axes: Any, text: str, at: tuple[float, float], shift: tuple[float, float], **more: Any) -> None:
    """Write small text at so many points from a place of axes."""
    axes.annotate(text, at, xytext=shift, textcoords="offset points", size=SMALL, **more)


def rows_of_key(looks: Sequence[tuple[str, FillStyle]], width: float) -> int:
    """Return the number of rows that a legend needs in so many inches."""
    rows, across = 1, 0.0
    for name, _ in looks:
        needed = 0.13 + width_of(name, SMALL) / POINTS
        if across and across + needed > width:
            rows, across = rows + 1, 0.0
        across += needed + 0.1
    return rows


def fitting(texts: Iterable[str], points: float, size: float = NORMAL, bold: bool = False) -> str:
    """Return the first of several texts that fits; empty if none does."""
    return next((text for text in texts if width_of(text, size, bold) <= points), "")


class PanelStep(Protocol):
    """The displayed sizes of a step; `letters` are those of a table."""

    @property
    def batch_size(self) -> int: ...

    @property
    def seq_len(self) -> int: ...

    @property
    def target_len(self) -> int | None: ...

    @property
    def letters(self) -> str: ...


def step_of(step: PanelStep, *more: str) -> str:
    """Return the description of a step, its parts separated by points."""
    sides = "" if step.target_len is None else f" and {step.target_len:,}"
    tokens = step.letters or f"{step.batch_size:,} × {step.seq_len:,}{sides} tokens"
    return " · ".join(filter(None, (tokens, *more)))


def sizes_of(step: PanelStep) -> str:
    """Return the sizes of a step as a note."""
    return step.letters or f"batch {step.batch_size:,}, {step.seq_len:,} tokens"


DRAWN = ("along", "against", "engine")
"""Flags of figures alone, which not every kind has."""


def keywords_of(kind: str, question: Callable[..., Any], arguments: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the arguments of a question; `more` are flags that the figure reads itself.

    Raises `InputError` for a flag that the figure does not have.
    """
    names = {flag.name for flag in flags_of(question)} | {*more}
    for name in arguments:
        if name not in names and (name in FLAGS or name in DRAWN):
            typed = FLAGS[name].typed if name in FLAGS else ""
            raise InputError(f"a figure of {kind} has no --{typed or name.replace('_', '-')}")
    return {name: value for name, value in arguments.items() if name not in more}


def procedures_of(arguments: Mapping[str, Any], usual: str = "bp") -> tuple[str, ...]:
    """Return the requested procedures, one step each."""
    return several(arguments.get("procedures") or usual)
