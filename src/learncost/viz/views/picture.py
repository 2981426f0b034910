"""A picture as data: its finding, and charts of a few generic kinds for a page to draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from learncost.ir.dataclass import Key, Serializable, dataclass, dictionary_of, field


@dataclass(frozen=True)
class BarRow:
    """A row of `Bars`.

    parts    how much of each kind, in the order of the legend
    note     shown behind the bar's total
    choose   what is chosen by who picks the row, by the names of flags
    here     whether it is what the page is of
    refused  why there is no bar
    """

    name: str
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    choose: Mapping[str, str] = field(default_factory=dict)
    here: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars on one scale.

    unit   bytes, seconds or FLOPs
    limit  a line on that scale, and what it is
    made   by kinds of parts, the pass that makes them, whose colour they have
    """

    kind: ClassVar[str] = "bars"
    heading: str
    unit: str
    rows: tuple[BarRow, ...]
    limit: tuple[float, str] | None = None
    made: Mapping[str, str] = field(default_factory=dict)


MADE = {
    "activations": "forward",
    "activations and workspace": "forward",
    "arena": "forward",
    "gradients": "weight_update",
    "new weights and states": "optimizer_step",
}
"""The pass that computes most of a part of the memory; parts without a pass are alive throughout."""


@dataclass(frozen=True)
class Lanes:
    """Slices of time in named lanes: (kind, text, begin, end)."""

    kind: ClassVar[str] = "lanes"
    heading: str
    unit: str
    lanes: tuple[tuple[str, tuple[tuple[str, str, float, float], ...]], ...]


@dataclass(frozen=True)
class MemoryBlocks:
    """Boxes over moments and bytes: (name, kind, where, first, last, place, bytes), moments from 1, both included.

    spans  above the moments: (kind, first, last)
    """

    kind: ClassVar[str] = "blocks"
    heading: str
    moments: str
    unit: str
    height: int
    boxes: tuple[tuple[str, str, str, int, int, int, int], ...]
    spans: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class TreeRows:
    """Nested rows, as (depth, name, values); `columns` are the values' names and units."""

    kind: ClassVar[str] = "tree"
    heading: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int, str, tuple[float, ...]], ...]


@dataclass(frozen=True)
class TextLines:
    """Text line by line, as (depth, text, mark, amount, why); `unit` is that of amounts, None where there is none."""

    kind: ClassVar[str] = "lines"
    heading: str
    unit: str
    rows: tuple[tuple[int, str, bool, int | None, str], ...]


@dataclass(frozen=True)
class TableRows:
    """A table: columns as (name, unit), "" for text, and rows; `choose` are the settings that a row selects."""

    kind: ClassVar[str] = "rows"
    heading: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    choose: tuple[Mapping[str, str], ...] = ()


Chart = Bars | Lanes | MemoryBlocks | TreeRows | TextLines | TableRows


@dataclass(frozen=True)
class Picture(Serializable):
    """The picture of a view.

    title    the finding
    lead     what is drawn, in a sentence
    charts   of the kinds above
    notes    what it rests on
    command  the command line that says the same
    """

    title: str
    lead: str
    charts: tuple[Chart, ...] = field(metadata=Key(form=lambda charts: [_written(chart) for chart in charts]).field)
    notes: tuple[str, ...] = ()
    command: str = ""


def _written(chart: Chart) -> dict[str, Any]:
    return {"kind": chart.kind, **dictionary_of(chart)}
