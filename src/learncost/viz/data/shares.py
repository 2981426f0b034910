"""The shares of passes in steps, and the memory of one sample compared with the available memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import Serializable, asdict, dataclass, made_of
from learncost.ir.loop import check_known
from learncost.reports.memory.types import bytes_text
from learncost.reports.record import Cost
from learncost.reports.sheet import size_of
from learncost.viz.data.roofline import share


@dataclass(frozen=True)
class PassShare:
    """A pass of a step: how often it runs, what that costs in all, and its share of the FLOPs."""

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
    parts: tuple[PassShare, ...]
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
        """Yield a row for each part of each step."""
        for bar in self.bars:
            step = {name: getattr(bar, name) for name in ("model", "procedure", "price_book", "batch_size", "seq_len")}
            for part in bar.parts:
                yield step | asdict(part)


def shares(costs: Iterable[Cost]) -> Shares:
    """Return the parts of steps, of answers of `lc.cost`."""
    return Shares(tuple(map(_bar, costs)))


def _bar(cost: Cost) -> StackedBar:
    if cost._built is not None:
        check_known(cost._built.table.lines, "a figure")
    return made_of(StackedBar, cost, maccs=cost.total.maccs, flops=cost.total.flops, parts=passes_of(cost))


def passes_of(cost: Cost) -> tuple[PassShare, ...]:
    """Return the passes that run in a step."""
    whole = cost.total.flops or 1
    return tuple(
        PassShare(name, passes, amount.maccs, amount.flops, amount.flops / whole)
        for name, (passes, amount) in cost.macro_operations.items()
        if passes
    )


if TYPE_CHECKING:
    from learncost.reports.memory.fit import Fit


@dataclass(frozen=True)
class FitBar:
    """The memory of one sample; `largest` is the largest batch that fits, 0 if none does."""

    name: str
    ram: int
    largest: int


@dataclass(frozen=True)
class FitBars:
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
            return f"Nothing fits {bytes_text(self.limit)}: {self.model} needs {size_of(min(b.ram for b in self.bars))}"
        least = min(fitting, key=lambda bar: bar.ram)
        few = f"{len(fitting)} of {len(self.bars)} options fit {bytes_text(self.limit)}"
        return f"{few}; {least.name} needs the least, {size_of(least.ram)}"


def of_fit(answer: Fit) -> FitBars:
    """Return the bars of an answer of `lc.fit`."""
    bars = tuple(FitBar(" ".join(filter(None, (row.procedure, row.plan))), row.ram, row.largest) for row in answer.rows)
    about = f"RAM for one sequence of {answer.seq_len:,} tokens · {answer.dtype} · {answer.optimizer}"
    notes = (f"{answer.model}: {answer.dtype}, {answer.optimizer}, sequences of {answer.seq_len:,} tokens",)
    return FitBars(answer.model, about, answer.budget, bars, notes)
