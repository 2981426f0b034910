"""Intervals of consecutive places whose moments are within a live interval."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


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
