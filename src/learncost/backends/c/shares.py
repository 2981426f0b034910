"""Allowed input/output aliasing of a kernel's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from learncost.backends.c import tree
from learncost.backends.c.arrays import Arrays
from learncost.backends.c.tree import ITERATION

_Loops: TypeAlias = tuple[tree.ForLoop, ...]


class _Use(NamedTuple):
    """An access to an array in its loops: an element or, without indices, a full part."""

    array: tree.ArrayMemory
    stored: str
    at: tuple[tree.Expression, ...]
    loops: _Loops


def shared(arrays: Arrays, routine: tree.Routine) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names in which every element is read for the last time before it is written."""
    outputs = [value.name for value in arrays.values.values() if value.output]
    pairs = [
        (read.of, name) for read in routine.arrays("read") for name in outputs if _same_layout(arrays, read.of, name)
    ]
    uses = [*_uses((routine.before, routine.iterations), ())] if pairs else []
    return tuple(pair for pair in pairs if _is_in_time(*pair, uses))


def _same_layout(arrays: Arrays, left: str, right: str) -> bool:
    first, second = ([arrays.size(axis) for axis in arrays.axes[name]] for name in (left, right))
    return bool(first) and first == second and arrays.dtypes[left] == arrays.dtypes[right]


def _is_in_time(read: str, written: str, uses: list[_Use]) -> bool:
    """Return whether all reads precede the write in every iteration of the common loops, each at its elements."""
    relevant = [use for use in uses if use.array.of == read or (use.array.of == written and use.stored)]
    *reads, write = relevant
    if write.stored != "=" or any(use.stored for use in reads):
        return False
    for use in reads:
        around = [loop for loop, other in zip(use.loops, write.loops, strict=False) if loop is other]
        same = {
            read_place
            for read_place, written_place in zip(use.at, write.at, strict=False)
            if read_place == written_place
        }
        counters = {tree.LoopCounter(counter) for loop in around for counter in loop.still if counter != ITERATION}
        if len(use.at) != len(write.at) or not counters <= same:
            return False
    return True


def _uses(part: object, loops: _Loops) -> Iterator[_Use]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _uses(inner, loops)
    elif isinstance(part, tree.ForLoop):
        yield from _uses(part.body, (*loops, part))
    elif isinstance(part, tree.MatrixBlock):
        yield _Use(part.first.array, "", (), loops)
    elif isinstance(part, tree.Store):
        yield from _uses(part.value, loops)
        if isinstance(part.to, tree.Element):
            yield from _uses(part.to.operands, loops)
            yield _Use(part.to.array, part.sign, part.to.operands, loops)
    elif isinstance(part, tree.Element):
        yield from _uses(part.operands, loops)
        yield _Use(part.array, "", part.operands, loops)
    elif hasattr(part, "__dict__"):
        yield from _uses(tuple(vars(part).values()), loops)
