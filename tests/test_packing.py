"""Places of pieces in one block: none over another, and no byte more than needed where that is known."""

from __future__ import annotations

from random import Random

import pytest

from learncost.program.arena import Piece, most, packed


def _cut(random: Random, pieces: int, bytes: int, moments: int) -> list[Piece]:
    """A block that is full all the time, cut into pieces."""
    parts = [(0, bytes, 0, moments)]
    while len(parts) < pieces:
        low, high, first, last = parts.pop(random.randrange(len(parts)))
        if random.random() < 0.5 and high - low > 1:
            at = random.randrange(low + 1, high)
            parts += [(low, at, first, last), (at, high, first, last)]
        elif last - first > 1:
            at = random.randrange(first + 1, last)
            parts += [(low, high, first, at), (low, high, at, last)]
        else:
            parts.append((low, high, first, last))
    random.shuffle(parts)
    return [Piece(high - low, first, last - 1) for low, high, first, last in parts]


def _end(pieces: list[Piece], places: list[int]) -> int:
    """The bytes of the block, when no piece lies over another that is there at the same time."""
    for one, (piece, place) in enumerate(zip(pieces, places, strict=True)):
        for other, begin in zip(pieces[:one], places[:one], strict=True):
            if piece.first <= other.last and other.first <= piece.last:
                assert place + piece.bytes <= begin or begin + other.bytes <= place
    return max(place + piece.bytes for piece, place in zip(pieces, places, strict=True))


@pytest.mark.parametrize("seed", [0, 2, 8, 11])
def test_a_full_block_is_found_again(seed: int) -> None:
    pieces = _cut(Random(seed), 18, 1000, 30)
    assert most(pieces) == 1000
    first = _end(pieces, packed(pieces))
    assert first > 1000, "in the order in which they are given there are gaps"
    assert _end(pieces, packed(pieces, 60_000)) == 1000


def test_a_search_is_always_alike_and_never_worse() -> None:
    pieces = _cut(Random(7), 60, 1000, 40)
    best = packed(pieces, 5_000)
    assert best == packed(pieces, 5_000)
    assert 1000 <= _end(pieces, best) <= _end(pieces, packed(pieces))


@pytest.mark.parametrize("seed", range(6))
def test_every_piece_is_at_the_lowest_free_offset(seed: int) -> None:
    """Pieces as large and as brief as the one before, as of equal iterations, are placed without a search."""
    random = Random(seed)
    pieces = [Piece(random.randrange(1, 9), begin, begin + random.randrange(9)) for begin in range(40)]
    for _ in range(3):
        size, begin, end = random.randrange(1, 9), random.randrange(40), 200 + random.randrange(9)
        pieces += [Piece(size, begin + step, end - step) for step in range(random.randrange(30))]
    pieces.sort(key=lambda piece: (-piece.bytes, piece.first))
    places: list[int] = []
    for piece in pieces:
        others = [
            (place, place + other.bytes)
            for place, other in zip(places, pieces, strict=False)
            if other.first <= piece.last and piece.first <= other.last
        ]
        ends = sorted({0, *(end for _, end in others)})
        places.append(next(e for e in ends if all(e + piece.bytes <= b or d <= e for b, d in others)))
    assert packed(pieces) == places


def test_nothing_takes_nothing() -> None:
    assert packed([], 10) == []
    assert most([]) == 0
