"""The memory of one sample by procedure and plan, compared with the available memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from learncost.ir.serializable import Serializable
from learncost.reports.memory.types import said_bytes
from learncost.reports.sheet import size_of
from learncost.viz.figures.panel import HEADING, POINTS, Panel
from learncost.viz.figures.style import DARK, INK, LIGHT, NORMAL, SMALL, width_of

if TYPE_CHECKING:
    from learncost.reports.memory.fit import Fit

ROW = 0.2


@dataclass(frozen=True)
class FitBar:
    """The memory of one sample; `largest` is the largest batch that fits, 0 if none does."""

    name: str
    ram: int
    largest: int


@dataclass(frozen=True)
class Fits(Serializable):
    """Bars with a limit."""

    model: str
    about: str
    limit: int
    bars: tuple[FitBar, ...]
    sentences: tuple[str, ...]

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        fitting = [bar for bar in self.bars if bar.largest]
        if not fitting:
            return f"Nothing fits {said_bytes(self.limit)}: {self.model} needs {size_of(min(b.ram for b in self.bars))}"
        least = min(fitting, key=lambda bar: bar.ram)
        few = f"{len(fitting)} of {len(self.bars)} options fit {said_bytes(self.limit)}"
        return f"{few}; {least.name} needs the least, {size_of(least.ram)}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each bar."""
        for bar in self.bars:
            yield asdict(bar) | {"limit": self.limit}


def of(answer: Fit) -> Fits:
    """The data of a panel, of an answer."""
    bars = tuple(FitBar(" ".join(filter(None, (row.procedure, row.plan))), row.ram, row.largest) for row in answer.rows)
    about = f"RAM for one sequence of {answer.seq_len:,} tokens · {answer.dtype} · {answer.optimizer}"
    said = (f"{answer.model}: {answer.dtype}, {answer.optimizer}, sequences of {answer.seq_len:,} tokens",)
    return Fits(answer.model, about, answer.budget, bars, said)


def height(data: Fits, columns: int) -> float:
    """Inches that the panel is high."""
    return HEADING + 0.3 + ROW * len(data.bars)


def draw(data: Fits, panel: Panel) -> None:
    """Draw the panel."""
    panel.heading(data.model, data.about)
    texts = [f"{size_of(bar.ram)}  {f'batch {bar.largest:,}' if bar.largest else 'does not fit'}" for bar in data.bars]
    left = max(width_of(bar.name) for bar in data.bars) / POINTS + 0.14
    right = max(map(width_of, texts)) / POINTS + 0.1
    axes = panel.axes(left, 0.22, right, HEADING + 0.05)
    most = max(*(bar.ram for bar in data.bars), data.limit)
    points = (panel.width - left - right) * POINTS
    for place, (bar, text) in enumerate(zip(data.bars, texts, strict=True)):
        axes.barh(place, bar.ram / most, 0.62, color=DARK if bar.largest else LIGHT)
        axes.text(bar.ram / most + 4 / points, place, text, va="center", size=SMALL, bbox=_PLATE)
    axes.axvline(data.limit / most, color=INK, linewidth=0.9, zorder=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(data.bars) - 0.45, -0.6)
    axes.set_yticks(range(len(data.bars)), [bar.name for bar in data.bars], size=NORMAL, color="black")
    axes.set_xticks([data.limit / most], [f"{said_bytes(data.limit)} available"], size=SMALL)
    axes.spines["bottom"].set_visible(False)


_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


def notes(data: Fits) -> Iterator[str]:
    """Yield the assumptions of the panel as sentences."""
    yield from data.sentences
