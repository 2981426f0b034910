"""The log of a program's allocations: how many bytes are taken, the most that were, and every array.

Each array is listed with the lines at whose worst moments it was alive.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import ref


class IntervalSet:
    """Moments in any order, searched for the longest runs that are within an interval.

    A curve has a line once for all iterations of a loop, with the moment of one iteration; an array of another
    iteration may be live at some of its lines and not at others.
    """

    def __init__(self, moments: Sequence[int]) -> None:
        self._places = sorted(range(len(moments)), key=moments.__getitem__)
        self._moments = [moments[place] for place in self._places]

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ends of the runs of places whose moments are from `first` to `last`, in order."""
        within = self._places[bisect_left(self._moments, first) : bisect_right(self._moments, last)]
        if within and max(within) - min(within) < len(within):  # the most frequent case, tested first
            yield min(within), max(within)
            return
        within.sort()
        begun = 0
        for number, place in enumerate(within):
            if number + 1 == len(within) or within[number + 1] != place + 1:
                yield within[begun], place
                begun = number + 1


LONGEST = 400
"""The largest number of lines of one iteration that is searched for."""


@dataclass
class Logged:
    """An array: the allocating line, its bytes, and its first and last instant; `kind` where that is known.

    number  of arrays as large, of iterations that did not run
    """

    label: str
    bytes: int
    first: int
    last: int = 10**12
    kind: str = ""
    number: int = 1


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
    omitted         instants of iterations that stand for others: the first and the last, and how many did not run
    """

    labels: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    arrays: list[Logged] = field(default_factory=list)
    omitted: list[tuple[int, int, int]] = field(default_factory=list)
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

    def repeat(self, allocation: int, times: int) -> None:
        """Count a live allocation several times."""
        if array := self._there.get(allocation):
            array.number *= times

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
        return tuple(_folded(folded, self.omitted))

    def stays(self, lines: Sequence[LoggedLine]) -> Iterator[tuple[Logged, int, int]]:
        """Yield every array that is live at some of the lines, with the first and the last of a run of these."""
        stretches = IntervalSet([line.instant for line in lines])
        for array in self.arrays:
            if array.bytes:
                for first, last in stretches.within(array.first, array.last):
                    yield array, first, last


def _folded(lines: Sequence[LoggedLine], omitted: Sequence[tuple[int, int, int]]) -> Iterator[LoggedLine]:
    """Yield lines with consecutive repetitions folded: of all starts the one whose repetitions cover most."""
    labels, instants = [line.label for line in lines], [line.instant for line in lines]
    loops = [(bisect_left(instants, first), bisect_right(instants, last), number) for first, last, number in omitted]
    place = loop = 0
    while place < len(lines):
        period, iterations = _repeat(labels, place, loops)
        if iterations == 1:
            yield lines[place]
            place += 1
            continue
        end = place + period * iterations
        number = iterations + sum(number for first, last, number in loops if place <= first and last <= end)
        for offset in range(period):
            worst = max(lines[place + offset : end : period], key=lambda line: line.bytes)
            yield LoggedLine(worst.label, worst.instant, worst.bytes, loop, number)
        place, loop = end, loop + 1


def _repeat(labels: Sequence[str], place: int, loops: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the period from a place on whose repetitions cover most, the shortest of these, and their number.

    A loop of which not all iterations ran is folded alone, and nothing around it.
    """
    best, covers = (1, 1), 1
    for period in range(1, min(LONGEST, (len(labels) - place) // 2) + 1):
        if labels[place] != labels[place + period]:
            continue
        stretch, iterations = labels[place : place + period], 1
        while labels[place + iterations * period : place + (iterations + 1) * period] == stretch:
            iterations += 1
        end = place + iterations * period
        around = any(place <= first and last <= end and period > 2 * (last - first) for first, last, _ in loops)
        if iterations > 1 and period * iterations > covers and not around:
            best, covers = (period, iterations), period * iterations
    return best


FILE = "<a program without values>"


def line_that_runs() -> int:
    """Return the number of the program's line that runs; 0 before it runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


class AllocationLog:
    """The bytes in use now, and their peak; `line` is the line of the peak, as `where` returns it.

    With `stop_at`, every allocation and deallocation is in `log`. `allocations` are then the bytes of each one at the
    first moment when `stop_at` bytes are in use, with the allocating line; `look` receives them by their ids.
    """

    def __init__(
        self,
        stop_at: int | None = None,
        where: Callable[[], int | str] = line_that_runs,
        look: Callable[[Mapping[int, tuple[int, int | str]]], None] | None = None,
    ) -> None:
        self.now = self.peak = 0
        self.line: int | str = 0
        self.stop_at, self.where, self._look = stop_at, where, look
        self.allocations: tuple[tuple[int, int | str], ...] = ()
        self.log = AllocationHistory()
        self._taken: dict[int, tuple[int, int | str, int]] = {}
        self._recorded: list[tuple[int, list[ref[Repeatable]]]] = []

    def take(self, allocation: int, size: int) -> None:
        self.now += size
        if self.now > self.peak:
            self.peak, self.line = self.now, self.where()
        if self.stop_at is not None:
            self._taken[allocation] = size, self.where(), 1
            self.log.take(allocation, size, str(self.where()), self.now)
            if self.now == self.stop_at and not self.allocations:
                taken = self._taken.values()
                self.allocations = tuple((bytes_, line) for bytes_, line, times in taken for _ in range(times))
                if self._look:
                    self._look({key: (size * times, line) for key, (size, line, times) in self._taken.items()})

    def give(self, allocation: int, size: int) -> None:
        self.now -= size
        if self.stop_at is not None:
            self._taken.pop(allocation, None)
            self.log.give(allocation, str(self.where()), self.now)

    def buffer(self, size: int) -> None:
        """Record an allocation that lasts for one operation."""
        self.take(-1, size)
        self.give(-1, size)

    def made(self, something: Repeatable) -> None:
        """Record what is made in an iteration that stands for several."""
        for _, recorded in self._recorded:
            recorded.append(ref(something))

    def record(self) -> None:
        """Begin an iteration that stands for several."""
        self._recorded.append((len(self.log.labels), []))

    def recorded(self, omitted: int) -> Callable[[], None]:
        """End such an iteration, and return a function that counts what is left of it several times."""
        (first, recorded), times = self._recorded.pop(), omitted + 1
        if self.stop_at is not None:
            self.log.omitted.append((first, len(self.log.labels) - 1, omitted))

        def repeat() -> None:
            for reference in recorded:
                if something := reference():
                    something.repeat(times)

        return repeat

    def repeat(self, allocation: int, added: int, times: int) -> None:
        """Count a live allocation several times, which adds bytes."""
        self.now += added
        if self.stop_at is not None:
            size, line, before = self._taken[allocation]
            self._taken[allocation] = size, line, before * times
            self.log.repeat(allocation, times)

    def iterations(self, count: int) -> Iterator[int]:
        """Yield the iterations of a loop that run: all of up to `FEW`; of more those at its ends, and one for the rest.

        What is left of the one between them counts once for each that does not run, as soon as two others have run:
        what these free is not left by each. From one iteration to the next, the bytes at a line grow or shrink by the
        same amount, except in the first and the last ones, so that the peak is in an iteration that runs.
        """
        omitted = omitted_of(count)
        if not omitted:
            yield from range(count)
            return
        yield from range(ENDS)
        self.record()
        yield ENDS
        repeat = self.recorded(omitted)
        yield from range(count - ENDS, count - ENDS + SHOWN)
        repeat()
        yield from range(count - ENDS + SHOWN, count)


FEW = 128
"""The number of iterations up to which all of a loop run."""

ENDS = 4
"""The iterations that run at each end of a longer loop."""

SHOWN = 2
"""The iterations after which what is left of an earlier one is what it leaves."""


def omitted_of(count: int) -> int:
    """Return the number of iterations of a loop that do not run."""
    return count - 2 * ENDS - 1 if count > FEW else 0


class Repeatable(Protocol):
    """Bytes that may count several times."""

    def repeat(self, times: int) -> None:
        """Count several times."""


class Allocation:
    """The bytes of an array, allocated as long as anything refers to it."""

    __slots__ = ("__weakref__", "account", "bytes")

    def __init__(self, account: AllocationLog, size: int) -> None:
        self.account, self.bytes = account, size
        account.take(id(self), size)
        account.made(self)

    def repeat(self, times: int) -> None:
        """Count several times, for iterations that do not run."""
        self.account.repeat(id(self), self.bytes * (times - 1), times)
        self.bytes *= times

    def __del__(self) -> None:
        self.account.give(id(self), self.bytes)


class TensorStorage(Allocation):
    """A storage that is freed and allocated again while tensors refer to it, as by PyTorch's `resize_`."""

    __slots__ = ()

    def __init__(self, account: AllocationLog) -> None:
        self.account, self.bytes = account, 0

    def resize(self, size: int) -> None:
        """Free the storage, and allocate it with a new size."""
        if self.bytes:
            self.account.give(id(self), self.bytes)
        self.bytes = size
        if size:
            self.account.take(id(self), size)

    def __del__(self) -> None:
        self.resize(0)
