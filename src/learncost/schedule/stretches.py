"""Stretches: where an array that is alive from one moment to another is met, among moments in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def stretches(first: int, last: int, moments: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The longest runs of places of `moments` whose moments are all from `first` to `last`: the ends of each.

    A curve has a line once for all turns of a loop, with the moment of one turn; an array of another turn may be there
    at some of its lines and not at others.
    """
    begun: int | None = None
    for place, moment in enumerate(moments):
        if first <= moment <= last:
            begun = place if begun is None else begun
        elif begun is not None:
            yield begun, place - 1
            begun = None
    if begun is not None:
        yield begun, len(moments) - 1
