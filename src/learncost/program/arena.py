"""The arena: every array of a step at a fixed offset in one block of memory.

An in-place result takes the offset of an operand that nothing reads afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby
from typing import Any

from learncost.ir.errors import InputError
from learncost.program.lifetimes import Lifetimes, ScheduledArray
from learncost.program.packing import Piece, most, packed

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
class Arena:
    """The offsets of the arrays of a step over its calls.

    bytes   of the arena
    passes  the phases in order, each with its first and its last call
    arrays  an in-place result follows the array that it overwrites
    """

    bytes: int
    passes: tuple[tuple[str, int, int], ...]
    arrays: tuple[ArenaSlot, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the arena as a dictionary for JSON."""
        return asdict(self)


def mapped(lifetimes: Lifetimes, kind: Callable[[ScheduledArray], str], taken: Mapping[str, int]) -> Arena:
    """Return the arrays that `apart` has placed, with the arenas of the kinds one after another.

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


def laid_out(lifetimes: Lifetimes, size: Callable[[ScheduledArray], int]) -> int:
    """Set the `bytes` of every array, and its `place` if it is in the arena; return the bytes of the arena.

    size  the bytes of an array
    Raises `InputError` where an array that must be overwritten is read afterwards.
    """
    return apart(lifetimes, size, lambda _: "")[""]


def apart(
    lifetimes: Lifetimes,
    size: Callable[[ScheduledArray], int],
    kind: Callable[[ScheduledArray], str],
    aligned: int = ALIGNED,
    effort: int = 0,
) -> dict[str, int]:
    """Do the same with an arena for arrays of each kind, with offsets at multiples of `aligned` bytes.

    effort  how many arrays are placed in search of a smaller arena, where one may exist
    """
    for fields in lifetimes.fields.values():
        for array in fields.values():
            array.bytes = size(array)
    for array in lifetimes.arrays:
        array.bytes = size(array)
    _share(lifetimes)
    placed_arrays = [
        array for array in lifetimes.arrays if array.over is None and not array.given and array.part is None
    ]
    by_kind: dict[str, list[ScheduledArray]] = {"": []}
    for array in placed_arrays:
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


def _placed(arrays: Iterable[ScheduledArray], aligned: int, effort: int) -> int:
    """Place arrays in an arena, the largest first if no order is better; return its bytes."""
    order = sorted(arrays, key=lambda array: (-array.bytes, array.first))
    pieces = _pieces(order, aligned)
    for array, place in zip(order, packed(pieces, effort), strict=True):
        array.place = place
    return max((array.place + piece.bytes for array, piece in zip(order, pieces, strict=True)), default=0)


def _pieces(arrays: Iterable[ScheduledArray], aligned: int) -> list[Piece]:
    return [Piece(-(-array.bytes // aligned) * aligned, array.first, array.last) for array in arrays]
