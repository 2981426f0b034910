"""How an array without values lies in memory: an array of NumPy's of one element, seen with any shape and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from learncost.program.account import Allocation, AllocationLog


class StridedLayout:
    """What has a layout in a room."""

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
    """A layout of its own; `order` are its axes from the outermost in memory to the innermost, by default as is."""
    kind = np.dtype(dtype)
    strides, step = [0] * len(shape), kind.itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis], step = step, step * max(1, shape[axis])
    return as_strided(np.zeros(1, kind), tuple(shape), strides)


def chosen(shape: Sequence[int], items: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """What arrays of indices choose, by its shape alone: the arrays' axes, the others, and how many of these go before.

    `items` are slices, numbers, None, ... and the shapes of the arrays, at least one of them; numbers count as arrays.
    The arrays' axes stand where the arrays do if these are side by side, and in front of all if they are not.
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
