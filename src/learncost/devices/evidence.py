"""What published runs say of a number that is not known: a middle, an interval, and on which runs both rest.

Runs of one source are alike, so that an interval is judged by whole sources: one after the other is set aside, and the
interval of the others should hold what it printed. A group of runs is trusted where it does in nine of ten cases;
otherwise a wider group is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, median

ENDS = (0.025, 0.975)
"""Percentiles of the rows that an interval goes from and to."""

NEEDED = 0.9
"""Share of the rows of sources that are set aside, which an interval of the others should hold."""

FEWEST_ROWS, FEWEST_SOURCES = 10, 3
"""Of a group that is trusted."""


@dataclass(frozen=True)
class Observation:
    """A published number, its source, and the groups that it belongs to, the narrowest first, "all" last."""

    source: str
    value: float
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The numbers of a group. `middle`: the median of the sources' own medians; `held`: as `held` says."""

    group: str
    middle: float
    low: float
    high: float
    rows: int
    sources: int
    share_held: float

    @property
    def trusted(self) -> bool:
        """Whether there are enough rows and sources, and the interval holds what is set aside."""
        return self.rows >= FEWEST_ROWS and self.sources >= FEWEST_SOURCES and self.share_held >= NEEDED

    @property
    def many(self) -> str:
        """How many rows there are of how many sources, and which."""
        few = f" - fewer than {FEWEST_ROWS}, so that little is known" if self.rows < FEWEST_ROWS else ""
        sources = "one source" if self.sources == 1 else f"{self.sources} sources"
        return f"{self.rows:,} published number{'s' if self.rows > 1 else ''} of {sources} ({self.group}){few}"

    @property
    def tested(self) -> str:
        """What the interval is worth."""
        ends = "2.5th to 97.5th percentile"
        if self.sources == 1:
            return f"{ends}; with one source it cannot be tested on another"
        short = "" if self.trusted else ", which is less than nine in ten"
        return f"{ends}; of sources set aside that of the others holds {self.share_held:.0%}{short}"


def percentile(values: Iterable[float], share: float) -> float:
    """Between the sorted values next to the place, a straight line: the definition of most programs."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def ends(rows: Sequence[Observation]) -> tuple[float, float]:
    """The interval of rows."""
    values = [row.value for row in rows]
    return percentile(values, ENDS[0]), percentile(values, ENDS[1])


def share_held(rows: Sequence[Observation]) -> float:
    """With one source after the other set aside: the share of all rows that the interval of the others holds.

    Of all rows, or the mean share of a source's, whichever is less: one large source should not decide alone.
    """
    shares = []
    for source in sorted({row.source for row in rows}):
        others = [row for row in rows if row.source != source]
        of_source = [row.value for row in rows if row.source == source]
        low, high = ends(others) if others else (0.0, 0.0)
        shares.append((sum(low <= value <= high for value in of_source), len(of_source)))
    if not shares:
        return 0.0
    return min(sum(count for count, _ in shares) / len(rows), mean(count / all_ for count, all_ in shares))


@cache
def _of(rows: tuple[Observation, ...], group: str) -> Evidence | None:
    of_group = [row for row in rows if group in row.groups]
    if not of_group:
        return None
    sources = sorted({row.source for row in of_group})
    middle = median(median(row.value for row in of_group if row.source == source) for source in sources)
    return Evidence(group, middle, *ends(of_group), len(of_group), len(sources), share_held(of_group))


def typical(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """What the narrowest group says of which more is known than a few runs of one source; the widest has to do."""
    evidence = [candidate for candidate in (_of(rows, group) for group in groups) if candidate is not None]
    sufficient = (candidate for candidate in evidence if candidate.rows >= FEWEST_ROWS or candidate.sources > 1)
    return next(sufficient, evidence[-1])


def trusted(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """What the narrowest group says that is trusted; where none is, the typical one."""
    evidence = (candidate for candidate in (_of(rows, group) for group in groups) if candidate is not None)
    return next((candidate for candidate in evidence if candidate.trusted), typical(rows, groups))
