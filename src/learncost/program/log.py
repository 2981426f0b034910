"""The history of an allocation log: every array with its lifetime, and the lines at whose peaks it was alive.

A program that runs a loop executes the same lines again and again. Consecutive repetitions are folded: a line occurs
once, at the iteration in which most is in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from learncost.program.interval_set import IntervalSet

LONGEST = 400
"""The largest number of lines of one iteration that is searched for."""


@dataclass
class Logged:
    """An array: the allocating line, its bytes, and its first and last instant; `kind` where that is known."""

    label: str
    bytes: int
    first: int
    last: int = 10**12
    kind: str = ""


@dataclass(frozen=True)
class LoggedLine:
    """A line, once for all its iterations: label, instant of its largest use, bytes then, iterations."""

    label: str
    instant: int
    bytes: int
    loop: int = -1
    iterations: int = 1


@dataclass
class AllocationHistory:
    """The allocations and deallocations of a log, one per instant.

    labels, levels  the line that ran at every instant, and the bytes after it
    arrays          all that were allocated
    """

    labels: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    arrays: list[Logged] = field(default_factory=list)
    _there: dict[int, Logged] = field(default_factory=dict)

    def take(self, allocation: int, size: int, label: str, level: int) -> None:
        """Record an allocation by its id, which another one may have after it is freed."""
        array = Logged(label, size, len(self.labels))
        self.arrays.append(array)
        self._there[allocation] = array
        self._add(label, level)

    def give(self, allocation: int, label: str, level: int) -> None:
        if array := self._there.pop(allocation, None):
            array.last = len(self.labels) - 1
        self._add(label, level)

    def call(self, allocation: int, kind: str) -> None:
        """Set the kind of a live allocation."""
        if array := self._there.get(allocation):
            array.kind = kind

    def _add(self, label: str, level: int) -> None:
        self.labels.append(label)
        self.levels.append(level)

    def lines(self, start: int = 0) -> tuple[LoggedLine, ...]:
        """Return the lines from an instant on, folded: consecutive instants with one label are one line."""
        folded: list[LoggedLine] = []
        for instant in range(start, len(self.labels)):
            line = LoggedLine(self.labels[instant], instant, self.levels[instant])
            if folded and folded[-1].label == line.label:
                if line.bytes > folded[-1].bytes:
                    folded[-1] = line
            else:
                folded.append(line)
        return tuple(_folded(folded))

    def stays(self, lines: Sequence[LoggedLine]) -> Iterator[tuple[Logged, int, int]]:
        """Yield every array that is live at some of the lines, with the first and the last of a run of these."""
        stretches = IntervalSet([line.instant for line in lines])
        for array in self.arrays:
            if array.bytes:
                for first, last in stretches.within(array.first, array.last):
                    yield array, first, last


def _folded(lines: Sequence[LoggedLine]) -> Iterator[LoggedLine]:
    """Yield lines with consecutive repetitions folded: of all starts the one whose repetitions cover most."""
    labels = [line.label for line in lines]
    place = loop = 0
    while place < len(lines):
        period, iterations = _repeat(labels, place)
        if iterations == 1:
            yield lines[place]
            place += 1
            continue
        for offset in range(period):
            several = lines[place + offset : place + period * iterations : period]
            worst = max(several, key=lambda line: line.bytes)
            yield LoggedLine(worst.label, worst.instant, worst.bytes, loop, iterations)
        place, loop = place + period * iterations, loop + 1


def _repeat(labels: Sequence[str], place: int) -> tuple[int, int]:
    """Return the period from a place on whose repetitions cover most, the shortest of these, and their number."""
    best, covers = (1, 1), 1
    for period in range(1, min(LONGEST, (len(labels) - place) // 2) + 1):
        if labels[place] != labels[place + period]:
            continue
        stretch, iterations = labels[place : place + period], 1
        while labels[place + iterations * period : place + (iterations + 1) * period] == stretch:
            iterations += 1
        if iterations > 1 and period * iterations > covers:
            best, covers = (period, iterations), period * iterations
    return best
