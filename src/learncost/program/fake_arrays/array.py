"""Arrays without values: a shape, a type, a layout, and an allocation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from learncost.program.program import ProgramBuilder

OBJECTS = "objects"
"""The role of Python's own objects of arrays."""

BUFFER = 8192
"""Elements of an operand that NumPy's iterator buffers (numpy.getbufsize())."""


class Allocation:
    """A buffer that is in use as long as anything refers to it, as in CPython."""

    __slots__ = ("buffer", "builder")

    def __init__(self, builder: ProgramBuilder, size: int, role: str = "") -> None:
        self.builder, self.buffer = builder, builder.allocate(size, role)

    def __del__(self) -> None:
        self.builder.free(self.buffer)


class FakeArray:
    """An array of NumPy without values: a layout in an allocation; `owns` says whether it is no view.

    `layout` is a NumPy array with its shape, type and strides whose elements are never read.
    """

    __slots__ = ("allocation", "layout", "object", "owns")

    def __init__(self, layout: Any, allocation: Allocation) -> None:
        self.layout, self.allocation, self.owns = layout, allocation, False
        self.object = Allocation(self.builder, _object(layout), OBJECTS)

    @classmethod
    def new(cls, builder: ProgramBuilder, shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> Self:
        """Allocate an array; `order` are its axes from the outermost in memory, by default in order."""
        layout = laid(shape, dtype, order)
        allocation = Allocation(builder, layout.nbytes)
        builder.run("")
        array = cls(layout, allocation)
        array.owns = True
        return array

    def like(self, shape: Sequence[int], dtype: Any = None, order: Sequence[int] | None = None) -> Self:
        """Allocate an array in the same log."""
        return self.new(self.builder, shape, dtype or self.dtype, order)

    def view_of(self, layout: Any) -> Self:
        """Return another layout of the same memory."""
        return type(self)(layout, self.allocation)

    @property
    def builder(self) -> ProgramBuilder:
        return self.allocation.builder

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.layout.shape)

    @property
    def dtype(self) -> Any:
        return self.layout.dtype

    @property
    def nbytes(self) -> int:
        return int(self.layout.nbytes)

    @property
    def T(self) -> Self:  # noqa: N802 - as NumPy calls it
        return self.view_of(self.layout.T)

    def __len__(self) -> int:
        return self.shape[0]

    def transpose(self, *axes: Any) -> FakeArray:
        return self.view_of(self.layout.transpose(*axes))

    def reshape(self, *shape: Any) -> Self:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            return self.view_of(self.layout.reshape(sizes, copy=False))
        except ValueError:  # NumPy copies; a shape that does not fit is refused below
            elements = prod(size for size in sizes if size >= 0)
            return self.like([size if size >= 0 else self.layout.size // elements for size in sizes])

    def __getitem__(self, key: Any) -> FakeArray:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, FakeArray) for item in items):
            return self._gathered(*chosen(self.shape, [getattr(item, "shape", item) for item in items]))
        if Ellipsis not in items:
            items = (*items, Ellipsis)  # so that a number stays an array, which nothing reads
        return self.view_of(self.layout[items])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into the array itself; nothing is allocated."""

    def _gathered(self, index_shape: tuple[int, ...], rest: tuple[int, ...], before: int) -> FakeArray:
        """Return a copy of the elements at index arrays, with the index axes outermost in memory."""
        result = self.like((*index_shape, *rest))
        if not before:
            return result
        index_axes = range(len(index_shape))
        return result.view_of(np.moveaxis(result.layout, index_axes, range(before, before + len(index_shape))))

    def astype(self, dtype: Any) -> FakeArray:
        return self.like(self.shape, dtype, order_of(self.shape, [self]))

    def clip(self, lower: int, upper: int) -> FakeArray:
        return self.astype(self.dtype)

    def _reduced(self, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> FakeArray:
        rank = len(self.shape)
        several = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        reduced = {each % rank for each in several}
        shape = [1 if at in reduced else size for at, size in enumerate(self.shape)]
        result = self.like(shape, dtype, order_of(self.shape, [self]))
        if not self.layout.flags.c_contiguous or (dtype and dtype != self.dtype):
            self.builder.run("", scratch=min(BUFFER, self.layout.size) * self.dtype.itemsize)
        if keepdims:
            return result
        return result[tuple(0 if at in reduced else slice(None) for at in range(rank))]

    sum = mean = max = _reduced


def _object(layout: Any) -> int:
    """Return the bytes of an array object, with its shape and strides: few, but for every saved array."""
    return int(np.ndarray.__basicsize__ + 2 * np.dtype(np.intp).itemsize * layout.ndim)


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
