"""Arrays without values: a shape, a type, a layout, and an allocation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from learncost.program.allocation_log import Allocation, AllocationLog


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


BUFFER = 8192
"""Elements of an operand that NumPy's iterator buffers (numpy.getbufsize())."""


def _object(layout: Any) -> int:
    """Return the bytes of an array object, with its shape and strides: few, but for every saved array."""
    return int(np.ndarray.__basicsize__ + 2 * np.dtype(np.intp).itemsize * layout.ndim)


class FakeArray(StridedLayout):
    """An array without values. `layout` is a NumPy array with its shape and strides whose elements are never read."""

    __slots__ = ("__weakref__", "object_bytes", "owns")

    def __init__(self, layout: Any, allocation: Allocation, owns: bool = False) -> None:
        self.layout, self.allocation, self.owns = layout, allocation, owns
        self.object_bytes = _object(layout)
        self.account.now += self.object_bytes
        self.account.made(self)

    def repeat(self, times: int) -> None:
        """Count the object several times, for iterations that do not run."""
        self.account.now += self.object_bytes * (times - 1)
        self.object_bytes *= times

    def __del__(self) -> None:
        self.allocation.account.now -= self.object_bytes

    @staticmethod
    def new(account: AllocationLog, shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> FakeArray:
        """Allocate an array; `order` are its axes from the outermost in memory to the innermost."""
        layout = laid(shape, dtype, order)
        return FakeArray(layout, Allocation(account, layout.nbytes), owns=True)

    @property
    def nbytes(self) -> int:
        return int(self.layout.nbytes)

    @property
    def T(self) -> FakeArray:  # noqa: N802 - as NumPy calls it
        return FakeArray(self.layout.T, self.allocation)

    def transpose(self, *axes: Any) -> FakeArray:
        return FakeArray(self.layout.transpose(*axes), self.allocation)

    def reshape(self, *shape: Any) -> FakeArray:
        sizes_given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            return FakeArray(self.layout.reshape(sizes_given, copy=False), self.allocation)
        except ValueError:  # NumPy copies; a shape that does not fit is refused below
            elements = prod(size for size in sizes_given if size >= 0)
            sizes = [size if size >= 0 else self.layout.size // elements for size in sizes_given]
            return FakeArray.new(self.account, sizes, self.dtype)

    def __getitem__(self, key: Any) -> FakeArray:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, FakeArray) for item in items):
            return _chosen(self, items)
        if not any(item is Ellipsis for item in items):
            items = (*items, Ellipsis)  # so that a number stays an array, which nothing reads
        return FakeArray(self.layout[items], self.allocation)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into the array itself; nothing is allocated."""

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: Any) -> FakeArray:
        return FakeArray.new(self.account, self.shape, dtype, order_of(self.shape, [self]))

    def clip(self, lower: int, upper: int) -> FakeArray:
        return self.astype(self.dtype)

    def _reduced(self, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> FakeArray:
        rank = len(self.shape)
        axes = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        reduced = {axis % rank for axis in axes}
        shape = [1 if at in reduced else size for at, size in enumerate(self.shape)]
        order = order_of(self.shape, [self])
        result = FakeArray.new(self.account, shape, dtype or self.dtype, order)
        if not self.layout.flags.c_contiguous or (dtype and dtype != self.dtype):
            self.account.buffer(min(BUFFER, self.layout.size) * self.dtype.itemsize)
        if keepdims:
            return result
        places = [0 if at in reduced else slice(None) for at in range(rank)]
        return FakeArray(result.layout[(*places, ...)], result.allocation)

    sum = mean = max = _reduced


def _chosen(array: FakeArray, items: tuple[Any, ...]) -> FakeArray:
    """Return the elements at index arrays: a copy, with the index axes outermost in memory."""
    index_shape, rest, before = chosen(
        array.shape, [item.shape if isinstance(item, FakeArray) else item for item in items]
    )
    result = FakeArray.new(array.account, (*index_shape, *rest), array.dtype)
    if not before:
        return result
    moved = np.moveaxis(result.layout, range(len(index_shape)), range(before, before + len(index_shape)))
    return FakeArray(moved, result.allocation)


def order_of(shape: Sequence[int], arrays: Sequence[FakeArray]) -> list[int]:
    """Return the axes of a result from the outermost in memory to the innermost, following its operands' layouts.

    NumPy's iterator sorts them (npyiter_find_best_axis_ordering): an axis moves inwards past those over which some
    operand has larger strides and none smaller ones before it.
    """
    strides = [np.broadcast_to(array.layout, shape).strides for array in arrays]
    order: list[int] = []  # from the innermost
    for axis in reversed(range(len(shape))):
        place = len(order)
        for at in reversed(range(len(order))):
            verdict = None
            for operand_strides in strides:
                mine, other = abs(operand_strides[axis]), abs(operand_strides[order[at]])
                if mine and other and shape[axis] > 1 and shape[order[at]] > 1:
                    if other <= mine:
                        verdict = False
                    elif verdict is None:
                        verdict = True
            if verdict:
                place = at
            elif verdict is False:
                break
        order.insert(place, axis)
    return order[::-1]
