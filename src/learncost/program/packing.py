"""Packing: a place in one block of memory for every piece that is there from one moment to another.

No block is smaller than what is there at the moment of the most. Whether there are places that need no more is not
known before they are tried (dynamic storage allocation is NP-complete: Garey & Johnson 1979, problem SR2): from one
order of the pieces a search goes on to the next, always alike, until it has such places or its effort is spent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np

AGAIN = 20
"""Changes of an order after which the search begins anew: what it has not found by then it seldom finds."""


@dataclass(frozen=True)
class Piece:
    """Bytes that are there from the first moment to the last, both included."""

    bytes: int
    first: int
    last: int


def most(pieces: Iterable[Piece]) -> int:
    """The most bytes that are there at any moment."""
    return max((there for _, there in _moments(pieces)), default=0)


def packed(pieces: Sequence[Piece], effort: int = 0) -> list[int]:
    """Where in the block each piece begins.

    effort  how many pieces are placed in search of a better order than the given one; 0 takes that
    """
    block = _PackedBlock(pieces)
    best = block.placed(range(len(pieces)))
    assert best is not None
    if effort and block.end(best) > (least := most(pieces)):
        best = min(best, _searched(block, least, effort), key=block.end)
    return best


def _searched(block: _PackedBlock, least: int, effort: int) -> list[int]:
    """The best places of many orders, each a change of the one before that made it no worse."""
    random, until, heaviest = Random(0), block.efforts + effort, _heaviest(block.pieces)
    best: list[int] = []
    while block.efforts < until:
        order = _begun(block.pieces, heaviest, random)
        places = block.placed(order)
        assert places is not None
        for _ in range(AGAIN):
            if block.end(places) <= least:
                return places
            changed = _changed(order, block.highest(places), random)
            if (changed_places := block.placed(changed, block.end(places))) is not None:
                order, places = changed, changed_places
        best = min(best or places, places, key=block.end)
    return best


def _begun(pieces: Sequence[Piece], heaviest: Sequence[int], random: Random) -> list[int]:
    """An order to begin from: the moments at which most is there are to be filled without a gap, so that what is there
    comes first, and of that what stays about the longest."""
    stays = [(piece.last - piece.first) * random.uniform(0.8, 1) for piece in pieces]
    return sorted(range(len(pieces)), key=lambda piece: (-heaviest[piece], -stays[piece]))


def _changed(order: Sequence[int], highest: Sequence[int], random: Random) -> list[int]:
    """An order in which a piece that reaches the end comes earlier, and twice two others change their places."""
    changed = list(order)
    at = changed.index(random.choice(highest))
    changed.insert(random.randrange(at) if at else 0, changed.pop(at))
    for _ in range(2):
        first, second = random.randrange(len(order)), random.randrange(len(order))
        changed[first], changed[second] = changed[second], changed[first]
    return changed


class _PackedBlock:
    """Pieces with those that are there at the same time.

    efforts  how many pieces were placed
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, self.efforts = pieces, 0
        firsts, lasts = (np.array([getattr(piece, name) for piece in pieces], np.int64) for name in ("first", "last"))
        self._beside = [np.flatnonzero((firsts <= piece.last) & (lasts >= piece.first)).tolist() for piece in pieces]

    def placed(self, order: Sequence[int], limit: int | None = None) -> list[int] | None:
        """Places, one piece after the other, each the lowest that is free all its time; None where one ends above."""
        ends = [-1] * len(self.pieces)
        places = [0] * len(self.pieces)
        for piece in order:
            self.efforts += 1
            size, place = self.pieces[piece].bytes, 0
            for begin, end in sorted((places[other], ends[other]) for other in self._beside[piece] if ends[other] >= 0):
                if begin - place >= size:
                    break
                place = max(place, end)
            if limit is not None and place + size > limit:
                return None
            places[piece], ends[piece] = place, place + size
        return places

    def end(self, places: Sequence[int]) -> int:
        """The bytes of the block."""
        return max((place + piece.bytes for place, piece in zip(places, self.pieces, strict=True)), default=0)

    def highest(self, places: Sequence[int]) -> list[int]:
        """The pieces that reach the end."""
        end = self.end(places)
        return [number for number, piece in enumerate(self.pieces) if places[number] + piece.bytes == end]


def _moments(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The moments at which something comes or goes, and the bytes that are there from then on."""
    changes: Counter[int] = Counter()
    for piece in pieces:
        changes[piece.first] += piece.bytes
        changes[piece.last + 1] -= piece.bytes
    moments = sorted(changes)
    return list(zip(moments, accumulate(changes[moment] for moment in moments), strict=True))


def _heaviest(pieces: Sequence[Piece]) -> list[int]:
    """Of each piece the most bytes that are there at any of its moments."""
    moments = _moments(pieces)
    at, there = [moment for moment, _ in moments], [size for _, size in moments]
    return [max(there[bisect_left(at, piece.first) : bisect_right(at, piece.last)]) for piece in pieces]
