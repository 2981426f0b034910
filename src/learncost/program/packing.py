"""Packing: an offset in one block of memory for every piece with a live interval.

The block is at least as large as the largest sum of live bytes. Whether that is enough is not known in advance (dynamic
storage allocation is NP-complete: Garey & Johnson 1979, problem SR2): a deterministic search goes from one order of the
pieces to the next until it has such offsets or its effort is spent.
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
"""Changes of an order after which the search restarts; it rarely succeeds later."""


@dataclass(frozen=True)
class Piece:
    """The size of an allocation and its first and last moment, both included."""

    bytes: int
    first: int
    last: int


def most(pieces: Iterable[Piece]) -> int:
    """Return the largest sum of bytes that are live at any moment."""
    return max((there for _, there in _moments(pieces)), default=0)


def packed(pieces: Sequence[Piece], effort: int = 0) -> list[int]:
    """Return the offset of each piece in the block.

    effort  how many pieces are placed in search of a better order than the given one; 0 uses the given order
    """
    block = _PackedBlock(pieces)
    best = block.placed(range(len(pieces)))
    assert best is not None
    if effort and block.end(best) > (least := most(pieces)):
        best = min(best, _searched(block, least, effort), key=block.end)
    return best


def _searched(block: _PackedBlock, least: int, effort: int) -> list[int]:
    """Return the best offsets of many orders, each a change of the previous one that is not worse."""
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
    """Return an initial order: pieces that are live at the largest moments come first, of these the longest-lived
    (randomized), so that these moments are filled without a gap.
    """
    stays = [(piece.last - piece.first) * random.uniform(0.8, 1) for piece in pieces]
    return sorted(range(len(pieces)), key=lambda piece: (-heaviest[piece], -stays[piece]))


def _changed(order: Sequence[int], highest: Sequence[int], random: Random) -> list[int]:
    """Return an order in which a piece that reaches the end comes earlier, and two pairs of others are exchanged."""
    changed = list(order)
    at = changed.index(random.choice(highest))
    changed.insert(random.randrange(at) if at else 0, changed.pop(at))
    for _ in range(2):
        first, second = random.randrange(len(order)), random.randrange(len(order))
        changed[first], changed[second] = changed[second], changed[first]
    return changed


class _PackedBlock:
    """Pieces with those that are live at the same time.

    efforts  how many pieces were placed
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, self.efforts = pieces, 0
        firsts, lasts = (np.array([getattr(piece, name) for piece in pieces], np.int64) for name in ("first", "last"))
        self._beside = [np.flatnonzero((firsts <= piece.last) & (lasts >= piece.first)).tolist() for piece in pieces]

    def placed(self, order: Sequence[int], limit: int | None = None) -> list[int] | None:
        """Return offsets, piece by piece, each the lowest free in its interval; None where one exceeds the limit."""
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
        """Return the bytes of the block."""
        return max((place + piece.bytes for place, piece in zip(places, self.pieces, strict=True)), default=0)

    def highest(self, places: Sequence[int]) -> list[int]:
        """Return the pieces that reach the end of the block."""
        end = self.end(places)
        return [number for number, piece in enumerate(self.pieces) if places[number] + piece.bytes == end]


def _moments(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """Return the moments of allocations and deallocations, and the live bytes from then on."""
    changes: Counter[int] = Counter()
    for piece in pieces:
        changes[piece.first] += piece.bytes
        changes[piece.last + 1] -= piece.bytes
    moments = sorted(changes)
    return list(zip(moments, accumulate(changes[moment] for moment in moments), strict=True))


def _heaviest(pieces: Sequence[Piece]) -> list[int]:
    """Return, for each piece, the largest sum of live bytes within its interval."""
    moments = _moments(pieces)
    at, there = [moment for moment, _ in moments], [size for _, size in moments]
    return [max(there[bisect_left(at, piece.first) : bisect_right(at, piece.last)]) for piece in pieces]
