"""The shares of passes in steps, for one or several steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from learncost.ir.loop import check_known
from learncost.ir.serializable import Serializable
from learncost.reports.record import Cost
from learncost.viz.data import made_of
from learncost.viz.data.roofline import share


@dataclass(frozen=True)
class PhaseShare:
    """A macro-operation of a step: how often it passes, what it costs, and its share of the FLOPs."""

    macro_operation: str
    passes: int
    maccs: int
    flops: int
    share: float


@dataclass(frozen=True)
class StackedBar:
    """One step and its parts."""

    model: str
    procedure: str
    price_book: str
    batch_size: int
    seq_len: int
    target_len: int | None
    optimizer: str
    counted: str
    source: str
    maccs: int
    flops: int
    parts: tuple[PhaseShare, ...]
    letters: str = ""  # of a run of a table: its sizes as the table calls them


@dataclass(frozen=True)
class Shares(Serializable):
    """Steps side by side, each split by macro-operation."""

    bars: tuple[StackedBar, ...]

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        first = self.bars[0]
        if not first.parts:
            return f"A step of {first.model} costs nothing"
        largest = max(first.parts, key=lambda part: part.flops)
        name = largest.macro_operation.replace("_", " ")
        return f"{name.capitalize()} is {share(largest.flops, first.flops)} of a step of {first.model}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each part of each step."""
        for bar in self.bars:
            step = {name: getattr(bar, name) for name in ("model", "procedure", "price_book", "batch_size", "seq_len")}
            for part in bar.parts:
                yield step | asdict(part)


def shares(costs: Iterable[Cost]) -> Shares:
    """The parts of steps, of answers of `lc.cost`."""
    return Shares(tuple(map(_bar, costs)))


def _bar(cost: Cost) -> StackedBar:
    if cost.built is not None:
        check_known(cost.built.table.lines, "a figure")
    parts = tuple(
        PhaseShare(
            name, passes, amount.maccs, amount.flops, amount.flops / cost.total.flops if cost.total.flops else 0.0
        )
        for name, (passes, amount) in cost.macro_operations.items()
        if passes
    )
    return made_of(StackedBar, cost, maccs=cost.total.maccs, flops=cost.total.flops, parts=parts)
