"""Stretches: where an array that is alive from one moment to another is met, among moments in any order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


class IntervalSet:
    """Moments in any order, in which the longest runs are looked for whose moments are all within two.

    A curve has a line once for all turns of a loop, with the moment of one turn; an array of another turn may be there
    at some of its lines and not at others.
    """

    def __init__(self, moments: Sequence[int]) -> None:
        self._places = sorted(range(len(moments)), key=moments.__getitem__)
        self._moments = [moments[place] for place in self._places]

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The runs of places whose moments are all from `first` to `last`: the ends of each, in order."""
        within = self._places[bisect_left(self._moments, first) : bisect_right(self._moments, last)]
        if within and max(within) - min(within) < len(within):  # which is most often so, and is seen soonest
            yield min(within), max(within)
            return
        within.sort()
        begun = 0
        for number, place in enumerate(within):
            if number + 1 == len(within) or within[number + 1] != place + 1:
                yield within[begun], place
                begun = number + 1
