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
    held: float

    @property
    def said(self) -> str:
        """What the numbers rest on, in a line for the screen."""
        many = f"{self.rows:,} published {'run' if self.rows == 1 else 'runs'} of {self.sources} source"
        text = f"{many}{'s' if self.sources > 1 else ''}, {self.group}"
        if self.rows < FEWEST_ROWS:
            text += f" (fewer than {FEWEST_ROWS}: little is known)"
        if self.sources > 1:
            text += f"; of sources set aside, the others' interval holds {self.held:.0%}"
        return text + ("" if self.held >= NEEDED else ", less than nine in ten")


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


def held(rows: Sequence[Observation]) -> float:
    """With one source after the other set aside: the share of all rows that the interval of the others holds.

    Of all rows, or the mean share of a source's, whichever is less: one large source should not decide alone.
    """
    shares = []
    for source in sorted({row.source for row in rows}):
        others = [row for row in rows if row.source != source]
        own = [row.value for row in rows if row.source == source]
        low, high = ends(others) if others else (0.0, 0.0)
        shares.append((sum(low <= value <= high for value in own), len(own)))
    if not shares:
        return 0.0
    return min(sum(own for own, _ in shares) / len(rows), mean(own / all_ for own, all_ in shares))


@cache
def _of(rows: tuple[Observation, ...], group: str) -> Evidence | None:
    own = [row for row in rows if group in row.groups]
    if not own:
        return None
    sources = sorted({row.source for row in own})
    middle = median(median(row.value for row in own if row.source == source) for source in sources)
    return Evidence(group, middle, *ends(own), len(own), len(sources), held(own))


def evidence(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """What the narrowest group that is trusted says; where none is, the widest one."""
    found = [one for one in (_of(rows, group) for group in groups) if one is not None]
    trusted = (one for one in found if one.rows >= FEWEST_ROWS and one.sources >= FEWEST_SOURCES and one.held >= NEEDED)
    return next(trusted, found[-1])


def middle(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """What the narrowest group says that has any row."""
    return next(one for one in (_of(rows, group) for group in groups) if one is not None)
