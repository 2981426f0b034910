"""Reads of operands: broadcasting to the axes of a line, and indexing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError
from learncost.ir.polynomial import first_of, sharded_over, size_of
from learncost.ir.term import Literal, Operand, Read, Term

Array = Any
Sizes = Mapping[str, int]
Reader = Callable[[Mapping[str, Array], Sizes], Array]


def spread(array: Array, have: tuple[str, ...], want: tuple[str, ...]) -> Array:
    """Return the array with its axes in the wanted order; an axis that it lacks has length 1."""
    move = move_of(have, want)
    return array if move is None else move(array)


@lru_cache(maxsize=4096)
def move_of(have: tuple[str, ...], want: tuple[str, ...]) -> Callable[[Array], Array] | None:
    """Return the function that transposes and broadcasts an array; None where it is already in the wanted order."""
    if have == want:
        return None
    order = tuple(have.index(axis) for axis in want if axis in have)
    places = tuple(slice(None) if axis in have else None for axis in want)
    if len(order) == len(want):
        return lambda array: array.transpose(order)
    if order == tuple(range(len(order))):
        return lambda array: array[places]
    return lambda array: array.transpose(order)[places]


def reader(term: Operand, want: tuple[str, ...]) -> Reader:
    """Return the function that reads an operand, broadcast to the wanted axes."""
    if isinstance(term, Literal):
        if term.sizes:
            return lambda values, sizes: term.number(sizes)
        number = term.number({})
        return lambda values, sizes: number
    name, move = term.name, move_of(term.loops, want)
    if move is None:
        return lambda values, sizes: values[name]
    return lambda values, sizes: move(values[name])


def index_of(
    term: Term, values: Mapping[str, Array], sizes: Sizes, want: tuple[str, ...], declared: tuple[str, ...]
) -> Any:
    """Return the NumPy index that reads (or writes) an array at the term's indices, with the wanted axes."""
    reads = [i for i, axis in enumerate(term.axes) if isinstance(axis, Read)]
    index: list[Any] = []
    places: Any = None
    for i, axis in enumerate(term.axes):
        if isinstance(axis, Read):
            places = _positions(axis, values, sizes, size_of(declared[i], sizes))
            index.append(spread(places, axis.at.loops, want))
        else:
            shape = [1] * len(want)
            shape[want.index(axis)] = -1
            index.append(np.arange(size_of(axis, sizes)).reshape(shape))
    plain = [axis for axis in term.axes if isinstance(axis, str)]
    (first, *_) = reads
    at = term.axes[first]
    if len(reads) == 1 and isinstance(at, Read) and not set(at.at.loops) & set(plain) and want == term.loops:
        return (*[slice(None)] * first, places)
    return tuple(index)


def _positions(axis: Read, values: Mapping[str, Array], sizes: Sizes, size: int) -> Any:
    """Return the positions on an axis over the axes of the index; one out of bounds becomes one past the last."""
    at = axis.at
    if isinstance(at, Affine) and not at.fixed:
        places = at.over(sizes, np.arange)
        return np.where((places >= 0) & (places < size), places, size)
    if sharded_over(axis.axis):
        places = np.asarray(values[at.name]) - first_of(axis.axis, sizes)
        return np.where((places >= 0) & (places < size), places, size)
    positions = np.asarray(values[at.name] if isinstance(at, Term) else at.number(sizes))
    _check_index(positions, axis, size)
    return positions


def beyond_of(term: Term) -> list[tuple[int, float]]:
    """Return the axes that may be read out of bounds, with the fill value; 0 for an axis that is sharded."""
    parts = [(place, 0.0) for place, axis in enumerate(term.axes) if isinstance(axis, Read) and sharded_over(axis.axis)]
    return [*((place, at.outside) for place, at in term.beyond), *parts]


def _check_index(positions: Any, axis: Read, size: int) -> None:
    if positions.dtype.kind not in "iu":
        raise InputError(f"the index of {axis} has the type {positions.dtype}: give integers")
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise InputError(
            f"{axis} reads at {int(positions.max())} or {int(positions.min())}, but axis {axis.axis} has {size}"
        )
