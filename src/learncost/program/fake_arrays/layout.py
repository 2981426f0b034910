"""The layout of an array without values: a NumPy array of one element, viewed with any shape and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from learncost.program.account import Allocation, AllocationLog


class StridedLayout:
    """An object with a layout in an allocation."""

    __slots__ = ("allocation", "layout")
    layout: Any
    allocation: Allocation

    @property
    def account(self) -> AllocationLog:
        return self.allocation.account

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.layout.shape)

    @property
    def dtype(self) -> Any:
        return self.layout.dtype


def laid(shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> Any:
    """Return a new layout; `order` are its axes from the outermost in memory to the innermost, by default in order."""
    kind = np.dtype(dtype)
    strides, step = [0] * len(shape), kind.itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis], step = step, step * max(1, shape[axis])
    return as_strided(np.zeros(1, kind), tuple(shape), strides)


def chosen(shape: Sequence[int], items: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the shape of an indexed array: the index axes, the others, and how many of the others come before.

    `items` are slices, numbers, None, ... and the shapes of the index arrays, at least one of them; numbers count as
    arrays. The index axes are at the index arrays if these are adjacent, and in front of all others if they are not.
    """
    rank = sum(item is not None and item is not Ellipsis for item in items)
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    every = [*items[:at], Ellipsis, *(slice(None),) * (len(shape) - rank), *items[at + 1 :]]
    places = [place for place, item in enumerate(every) if isinstance(item, int | tuple)]
    index_shape = np.broadcast_shapes(*(() if isinstance(every[place], int) else every[place] for place in places))
    rest, sizes, before = [], iter(shape), 0
    for place, item in enumerate(every):
        if item is Ellipsis:
            continue
        size = 1 if item is None else next(sizes)
        if place not in places:
            rest.append(len(range(size)[item]) if isinstance(item, slice) else size)
            before += place < places[0]
    together = places[-1] - places[0] < len(places)
    return index_shape, tuple(rest), before if together else 0
