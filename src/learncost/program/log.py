"""The log of an account: every array that was taken and given back, and the lines at whose worst moments it was there.

A program that runs turn by turn says the same lines again and again. Stretches that repeat at once are folded: a line
stands once, at that of its turns in which most is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from learncost.program.interval_set import IntervalSet

LONGEST = 400
"""Lines of one turn that are looked for at most."""


@dataclass
class Logged:
    """An array: who took it, its bytes, and from which to which instant it was there; `kind` where that is known."""

    label: str
    bytes: int
    first: int
    last: int = 10**12
    kind: str = ""


@dataclass(frozen=True)
class LoggedLine:
    """A line, once for all its turns: its label, the instant at which most is taken, the bytes then, the turns."""

    label: str
    instant: int
    bytes: int
    loop: int = -1
    iterations: int = 1


@dataclass
class AllocationHistory:
    """What an account took and gave, instant by instant: an instant is after each of these.

    labels, levels  what ran at every instant, and the bytes after it
    arrays          all that were taken
    """

    labels: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    arrays: list[Logged] = field(default_factory=list)
    _there: dict[int, Logged] = field(default_factory=dict)

    def take(self, allocation: int, size: int, label: str, level: int) -> None:
        """A room of so many bytes, by its identity, which another one may have when it was given back."""
        array = Logged(label, size, len(self.labels))
        self.arrays.append(array)
        self._there[allocation] = array
        self._add(label, level)

    def give(self, allocation: int, label: str, level: int) -> None:
        if array := self._there.pop(allocation, None):
            array.last = len(self.labels) - 1
        self._add(label, level)

    def call(self, allocation: int, kind: str) -> None:
        """Say what a room is that is there."""
        if array := self._there.get(allocation):
            array.kind = kind

    def _add(self, label: str, level: int) -> None:
        self.labels.append(label)
        self.levels.append(level)

    def lines(self, start: int = 0) -> tuple[LoggedLine, ...]:
        """The lines from an instant on, folded: what stands at once under one label is one line."""
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
        """Every array that is there at some of the lines, with the first and the last of a stretch of these."""
        stretches = IntervalSet([line.instant for line in lines])
        for array in self.arrays:
            if array.bytes:
                for first, last in stretches.within(array.first, array.last):
                    yield array, first, last


def _folded(lines: Sequence[LoggedLine]) -> Iterator[LoggedLine]:
    """Lines with stretches that repeat at once folded: of all starts the one whose repeats cover most."""
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
    """The stretch from a place on that repeats at once and covers most, the shortest of these, and how often."""
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
