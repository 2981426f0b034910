"""The arena: every array of a step at a fixed offset in one block of memory, or in several regions of RAM.

An in-place result takes the offset of an operand that nothing reads afterwards. Regions lie at several addresses, and
the arrays of a program are distributed over them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from random import Random

import numpy as np

from learncost.ir.dataclass import Serializable, dataclass
from learncost.ir.errors import InputError
from learncost.program.lifetimes import END_OF_STEP, Lifetimes, ScheduledArray

RESTART_AFTER = 20
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
    random, until, moments = Random(0), block.efforts + effort, _moments(block.pieces)
    at, there = [moment for moment, _ in moments], [size for _, size in moments]
    heaviest = [max(there[bisect_left(at, each.first) : bisect_right(at, each.last)]) for each in block.pieces]
    best: list[int] = []
    while block.efforts < until:
        order = _begun(block.pieces, heaviest, random)
        places = block.placed(order)
        assert places is not None
        for _ in range(RESTART_AFTER):
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
    durations = [(piece.last - piece.first) * random.uniform(0.8, 1) for piece in pieces]
    return sorted(range(len(pieces)), key=lambda piece: (-heaviest[piece], -durations[piece]))


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
    """Pieces to be placed.

    efforts  how many pieces were placed
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces, self.efforts = pieces, 0

    def placed(self, order: Sequence[int], limit: int | None = None) -> list[int] | None:
        """Return offsets, piece by piece, each the lowest free in its interval; None where one exceeds the limit.

        A piece as large as the one before, and live within its interval, lies next to it if the same others are live:
        so do the saved tensors of equal iterations, which need no search.
        """
        places = [0] * len(self.pieces)
        firsts, lasts, begins, ends = there = np.zeros((4, len(self.pieces)), np.int64)  # by offset
        latest = max((piece.first for piece in self.pieces), default=0)
        begun, ended = bytearray(latest + 1), bytearray(latest + 1)  # the moments of the first and last use of others
        before, place, until = Piece(-1, 0, 0), 0, 0  # the piece before, its place, and the end of the gap around it
        for count, number in enumerate(order):
            self.efforts += 1
            piece = self.pieces[number]
            if (
                piece.bytes == before.bytes
                and place + 2 * piece.bytes <= until
                and before.first <= piece.first
                and piece.last <= before.last
                and begun.find(1, piece.last + 1, before.last + 1) < 0
                and ended.find(1, before.first, piece.first) < 0
            ):
                place += piece.bytes
            else:
                live = np.flatnonzero((firsts[:count] <= piece.last) & (lasts[:count] >= piece.first))
                taken = np.maximum.accumulate(ends[live])
                free = np.append(begins[live], END_OF_STEP**2)
                free[1:] -= taken
                gap = int(np.argmax(free >= piece.bytes))
                place = int(taken[gap - 1]) if gap else 0
                until = place + int(free[gap])
            before = piece
            begun[piece.first] = 1
            if piece.last <= latest:
                ended[piece.last] = 1
            if limit is not None and place + piece.bytes > limit:
                return None
            at = int(np.searchsorted(begins[:count], place, "right"))
            there[:, at + 1 : count + 1] = there[:, at:count]
            there[:, at] = piece.first, piece.last, place, place + piece.bytes
            places[number] = place
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


ALIGNED = 64
"""The alignment of every offset in bytes: a cache line, and the widest vector registers."""


@dataclass(frozen=True)
class ArenaSlot:
    """An array in an arena: its bytes at offset `place`, from the call `first` to the call `last`, counted from 1."""

    name: str
    bytes: int
    place: int
    first: int
    last: int
    macro_operation: str
    layer: str
    block: str | None


@dataclass(frozen=True)
class Arena(Serializable):
    """The offsets of the arrays of a step over its calls.

    bytes   of the arena
    passes  the phases in order, each with its first and its last call
    arrays  an in-place result follows the array that it overwrites
    """

    bytes: int
    passes: tuple[tuple[str, int, int], ...]
    arrays: tuple[ArenaSlot, ...]


def mapped(lifetimes: Lifetimes, kind: Callable[[ScheduledArray], str], taken: Mapping[str, int]) -> Arena:
    """Return the arrays that `laid_out` has placed, with the arenas of the kinds one after another.

    taken  bytes of each arena, in order
    """
    begins = dict(zip(taken, accumulate(taken.values(), initial=0), strict=False))
    phases = [line.meta.phase for line, *_ in lifetimes.lines]
    passes, moment = list[tuple[str, int, int]](), 0
    for phase, calls in groupby(phases):
        number = sum(1 for _ in calls)
        passes.append((phase, moment + 1, moment + number))
        moment += number
    arrays = [
        ArenaSlot(
            array.name,
            array.bytes,
            begins[kind(array.root)] + array.root.place,
            array.first,
            min(array.last, moment),
            array.phase,
            array.layer,
            array.block,
        )
        for array in sorted(lifetimes.arrays, key=lambda array: array.over is not None)
        if array.bytes and array.root.place >= 0 and array.part is None
    ]
    return Arena(sum(taken.values()), tuple(passes), tuple(arrays))


def laid_out(
    lifetimes: Lifetimes,
    size: Callable[[ScheduledArray], int],
    kind: Callable[[ScheduledArray], str],
    aligned: int = ALIGNED,
    effort: int = 0,
) -> dict[str, int]:
    """Set the `bytes` of every array, and its `place` if it is in an arena; return the bytes of each arena.

    size     the bytes of an array by its name and axes
    kind     the name of the arena in which an array lies
    aligned  every offset is a multiple of as many bytes
    effort   how many arrays are placed in search of a smaller arena, where one may exist
    Raises `InputError` where an array that must be overwritten is read afterwards.
    """
    sizes: dict[tuple[str, tuple[str, ...]], int] = {}
    named = (array for fields in lifetimes.fields.values() for array in fields.values())
    for array in (*named, *lifetimes.arrays):
        if (key := (array.name, array.axes)) not in sizes:
            sizes[key] = size(array)
        array.bytes = sizes[key]
    _share(lifetimes)
    by_kind: dict[str, list[ScheduledArray]] = {}
    for array in lifetimes.roots:
        by_kind.setdefault(kind(array), []).append(array)
    return {name: _placed(arrays, aligned, effort) for name, arrays in by_kind.items()}


def _share(lifetimes: Lifetimes) -> None:
    """Let results overwrite operands that their call reads last, after those that must."""
    replaced: set[tuple[ScheduledArray, int]] = set()  # one array of a call overwrites another
    for read, written, moment in sorted(lifetimes.pairs, key=lambda pair: (pair[2], pair[1].over is None)):
        root = read.root
        if (root, moment) in replaced:
            continue
        if written.over is read:
            if read.last > moment:
                raise InputError(f"{read.name} is read after it was overwritten: the step cannot run in-place")
        elif written.over is not None or root.given or root.part or written.part:
            continue
        elif root.last == moment and root.bytes == written.bytes:
            written.over = root
            root.last = max(root.last, written.last)
        else:
            continue
        replaced.add((root, moment))


def alive(arrays: Iterable[ScheduledArray]) -> int:
    """Return the largest sum of bytes of arrays that are live at the same moment."""
    return most(_pieces(arrays, 1))


def fullest(arrays: Iterable[ScheduledArray]) -> int:
    """Return the first call at which the most bytes of arrays are live, counted from 1."""
    return max(1, max(_moments(_pieces(arrays, 1)), key=lambda moment: moment[1], default=(1, 0))[0])


def _placed(arrays: Iterable[ScheduledArray], aligned: int, effort: int) -> int:
    """Place arrays in an arena, the largest first if no order is better; return its bytes."""
    order = sorted(arrays, key=lambda array: (-array.bytes, array.first))
    pieces = _pieces(order, aligned)
    for array, place in zip(order, packed(pieces, effort), strict=True):
        array.place = place
    return max((array.place + piece.bytes for array, piece in zip(order, pieces, strict=True)), default=0)


def _pieces(arrays: Iterable[ScheduledArray], aligned: int) -> list[Piece]:
    return [Piece(-(-array.bytes // aligned) * aligned, array.first, array.last) for array in arrays]


PLACEMENT_LIMIT = 20_000
"""The number of arrays placed in search of a layout, where the first one found does not fit all."""

ARENA = "@"
"""The prefix of an arena's name, which no array has."""

SEARCHED = 100
"""The number of arrays searched for, the largest; all others go to the first region with space."""


@dataclass(frozen=True)
class Region:
    """A region of RAM.

    Attributes
    ----------
    name
        Its name in the linker script.
    bytes
        Its size.
    begin
        Its first address; None where that is unknown.
    note
        What has to be done before a program may use it.
    """

    name: str
    bytes: int
    begin: int | None = None
    note: str = ""


def assigned(arrays: Mapping[str, int], regions: Sequence[Region]) -> dict[str, str] | None:
    """Return the region of every array, each of which must fit one region; None where no layout was found.

    arrays  bytes by name; "" stands for unnamed data, in the first region
    The first region is filled first. A depth-first search, the largest array first, tries at most
    `PLACEMENT_LIMIT` placements.
    """
    order = sorted((name for name in arrays if name), key=lambda name: -arrays[name])
    free = [region.bytes for region in regions]
    free[0] -= arrays.get("", 0)
    if free[0] < 0 or sum(free) < sum(arrays[name] for name in order):
        return None
    places = _search([arrays[name] for name in order], free)
    if places is None:
        return None
    return {name: regions[place].name for name, place in zip(order, places, strict=True)} | {"": regions[0].name}


def _search(sizes: Sequence[int], free: list[int]) -> list[int] | None:
    """Return the number of the region of each array, the largest first; `free` bytes of each region."""
    tries = 0

    def placed(at: int, free: Sequence[int]) -> list[int] | None:
        nonlocal tries
        if at == len(sizes):
            return []
        tries += 1
        spaces = {space: place for place, space in reversed([*enumerate(free)]) if space >= sizes[at]}
        for place in sorted(spaces.values()) if tries <= PLACEMENT_LIMIT else ():
            left = [space - sizes[at] * (place == number) for number, space in enumerate(free)]
            rest = _first(sizes[at + 1 :], left) if at + 1 >= SEARCHED else placed(at + 1, left)
            if rest is not None:
                return [place, *rest]
        return None

    return placed(0, free)


def _first(sizes: Sequence[int], free: list[int]) -> list[int] | None:
    """Return each array's region by first fit."""
    places = []
    for size in sizes:
        place = next((place for place, space in enumerate(free) if space >= size), None)
        if place is None:
            return None
        free[place] -= size
        places.append(place)
    return places


def too_large(arrays: Mapping[str, int], regions: Sequence[Region]) -> str:
    """Return why arrays do not fit regions: their total, and the largest of them."""
    largest = max(arrays, key=lambda name: arrays[name])
    free = " and ".join(f"{region.bytes:,} in {region.name}" for region in regions)
    each = f", of which {label(largest)} needs {arrays[largest]:,} in one region" if len(regions) > 1 else ""
    return f"{sum(arrays.values()):,} bytes{each}; available are {free}"


def label(name: str) -> str:
    """Return the name of an allocation in messages: an array's name, the arena, or single numbers."""
    return name.removeprefix(ARENA) or "single numbers"


def largest_assigned(arrays: Callable[[int], Iterable[Mapping[str, int]]], regions: Sequence[Region], most: int) -> int:
    """Return the largest batch up to `most` whose arrays fit the regions.

    arrays  for a batch: those of each program that has to fit
    """

    def exceeds(batch: int) -> bool:
        return any(assigned(each, regions) is None for each in arrays(batch))

    return bisect_left(range(1, most + 1), True, key=exceeds)
