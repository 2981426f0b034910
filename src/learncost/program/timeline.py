"""The memory of a program over its lines: how many bytes are in use at each, and every buffer from line to line."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from learncost.program.program import Buffer, Program, levels, made_in


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


@dataclass(frozen=True)
class TimelineLine:
    """A line of a program, once for all its iterations: the place of the op during which most is in use, these bytes,
    and how often the line runs.
    """

    op: int
    label: str
    bytes: int
    loop: int = -1
    iterations: int = 1


def timeline(program: Program) -> tuple[TimelineLine, ...]:
    """Return the lines of a program that allocate or free: consecutive ops with one label are one line."""
    moves = {place for buffer in program.on_device for place in (buffer.first, buffer.last)}
    lines: list[TimelineLine] = []
    for place, (op, level) in enumerate(zip(program.ops, levels(program), strict=True)):
        if place not in moves and not op.scratch:
            continue
        line = TimelineLine(place, op.label, level)
        if not lines or lines[-1].label != line.label:
            lines.append(line)
        elif level > lines[-1].bytes:
            lines[-1] = line
    return tuple(_folded(program, lines))


def intervals(program: Program, lines: Sequence[TimelineLine]) -> Iterator[tuple[Buffer, int, int]]:
    """Yield every buffer that is in use at some of the lines, with the first and the last of a run of these."""
    places = IntervalSet([line.op for line in lines])
    scratch = (Buffer(op.scratch, program.device, made_in(op.phase), op.label, place, place)
               for place, op in enumerate(program.ops) if op.scratch)  # fmt: skip
    for buffer in (*program.on_device, *scratch):
        if buffer.bytes:
            for first, last in places.within(buffer.first, buffer.last):
                yield buffer, first, last


def _folded(program: Program, lines: Sequence[TimelineLine]) -> Iterator[TimelineLine]:
    """Yield lines with consecutive repetitions folded, within a microbatch: of all starts the one whose repetitions
    cover most.
    """
    labels, ops = [(line.label, program.ops[line.op].microbatch) for line in lines], [line.op for line in lines]
    loops = [(bisect_left(ops, first), bisect_right(ops, last), number) for first, last, number in program.repeats]
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
            yield replace(worst, loop=loop, iterations=number)
        place, loop = end, loop + 1


def _repeat(labels: Sequence[Hashable], place: int, loops: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
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
