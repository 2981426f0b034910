"""What the intervals of utilization, device-hours and power are worth: every source set aside in turn.

    python benchmarks/intervals.py

A source is taken out, the rest says what it would say of each of its runs, and the run is inside or not. Nothing is
measured; it takes some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, median

from learncost.devices.assumptions import ENDS, FEWEST_ROWS, NEEDED, Observation, powers, trusted, utilizations


@dataclass(frozen=True)
class Case:
    """A published number that was set aside, and what the other sources said of it."""

    row: Observation
    group: str
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.row.value <= self.high


def set_aside(rows: tuple[Observation, ...]) -> Iterator[Case]:
    """Every number with what the other sources say of it."""
    for source in sorted({row.source for row in rows}):
        rest = tuple(row for row in rows if row.source != source)
        for row in rows:
            if row.source == source:
                found = trusted(rest, row.groups)
                yield Case(row, found.group, found.low, found.high)


@dataclass(frozen=True)
class Coverage:
    """Of some cases: how many, the share that is inside, that of a mean source, how wide the intervals are."""

    rows: int
    sources: int
    held: float
    held_of_sources: float
    width: float

    def line(self, name: str) -> str:
        """One line of the table."""
        few = "  fewer than ten" if self.rows < FEWEST_ROWS else ""
        short = "" if self.held >= NEEDED else "  below nine in ten"
        return (
            f"{name:34}{self.rows:6,}{self.sources:9,}{self.held:10.1%}{self.held_of_sources:10.1%}"
            f"{self.width:9.1f}{short}{few}"
        )


def coverage(cases: list[Case]) -> Coverage:
    """Of cases."""
    sources = sorted({case.row.source for case in cases})
    of_sources = [mean(case.inside for case in cases if case.row.source == source) for source in sources]
    width = median(case.high / case.low for case in cases)
    return Coverage(len(cases), len(sources), mean(case.inside for case in cases), mean(of_sources), width)


HEADINGS = f"{'':34}{'rows':>6}{'sources':>9}{'inside':>10}{'a source':>10}{'high/low':>9}"


def show(title: str, cases: list[Case], groups: Callable[[Observation], list[str]]) -> None:
    """A table: all cases, then those of each group."""
    print(f"\n{title}\n{HEADINGS}")
    print(coverage(cases).line("all"))
    for group in sorted({group for case in cases for group in groups(case.row)}):
        print(coverage([case for case in cases if group in groups(case.row)]).line(f"  {group}"))
    for source in sorted({case.row.source for case in cases if not case.inside}):
        missed = [case for case in cases if case.row.source == source and not case.inside]
        values = sorted(case.row.value for case in missed)
        own = sum(case.row.source == source for case in cases)
        print(f"  outside: {source}, {len(missed)} of {own}: {values[0]:.3g} to {values[-1]:.3g}")


def main() -> None:
    """Print the tables."""
    print(
        f"Intervals go from the {100 * ENDS[0]:g}th to the {100 * ENDS[1]:g}th percentile of the rows they rest on;\n"
        f"{NEEDED:.0%} of what is set aside should be inside. high/low: the median interval's ends over each other."
    )
    cases = list(set_aside(utilizations()))
    show("Utilization (MFU): published trainings", cases, lambda row: [own for own in row.groups if " on " not in own])
    whole = [case for case in cases if "whole runs" in case.row.groups]
    show("Device-hours of whole runs (inside where their utilization is)", whole, lambda row: [row.groups[0]])
    show("Power with the host over the device's design power", list(set_aside(powers())), lambda row: [row.groups[0]])


if __name__ == "__main__":
    main()
