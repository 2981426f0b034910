"""The memory of one sample by procedure and plan, compared with the available memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from learncost.ir.serializable import Serializable
from learncost.reports.memory.types import said_bytes
from learncost.reports.sheet import size_of

if TYPE_CHECKING:
    from learncost.reports.memory.fit import Fit


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


def of_fit(answer: Fit) -> Fits:
    """Return the bars of an answer of `lc.fit`."""
    bars = tuple(FitBar(" ".join(filter(None, (row.procedure, row.plan))), row.ram, row.largest) for row in answer.rows)
    about = f"RAM for one sequence of {answer.seq_len:,} tokens · {answer.dtype} · {answer.optimizer}"
    said = (f"{answer.model}: {answer.dtype}, {answer.optimizer}, sequences of {answer.seq_len:,} tokens",)
    return Fits(answer.model, about, answer.budget, bars, said)
