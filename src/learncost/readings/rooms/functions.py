"""The functions of NumPy that emitted programs call, on arrays without values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.readings.rooms.array import Array
from learncost.readings.rooms.operators import elementwise
from learncost.schedule.account import Account


class NumPy:
    """The functions of NumPy that emitted programs call, on arrays without values."""

    inf = np.inf
    ndarray = Array
    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.add = _Add()

    def __getattr__(self, name: str) -> Any:
        known = getattr(np, name, None)
        if isinstance(known, np.ufunc) and known.nout == 1:
            return lambda *operands: elementwise(self._account, operands)
        raise InputError(f"what np.{name} takes in memory is not known: add it to learncost.readings.rooms")

    def erf(self, one: Array) -> Array:
        return elementwise(self._account, (one,))

    def zeros(self, shape: Any, dtype: Any) -> Array:
        return Array.new(self._account, shape, dtype)

    def full(self, shape: Any, value: float, dtype: Any) -> Array:
        return Array.new(self._account, shape, dtype)

    def zeros_like(self, one: Array) -> Array:
        return one.astype(one.dtype)

    def eye(self, size: int, dtype: Any) -> Array:
        return Array.new(self._account, (size, size), dtype)

    def arange(self, size: int) -> Array:
        return Array.new(self._account, (size,), np.int64)

    def tri(self, rows: int, columns: int, place: int = 0, dtype: Any = bool) -> Array:
        return Array.new(self._account, (rows, columns), dtype)

    def where(self, condition: Array, one: Any, two: Any) -> Array:
        kind = np.result_type(*(x.dtype if isinstance(x, Array) else x for x in (one, two)))
        return elementwise(self._account, (condition, one, two), kind)

    def ascontiguousarray(self, one: Array) -> Array:
        return one if one.layout.flags.c_contiguous else Array.new(self._account, one.shape, one.dtype)

    def broadcast_to(self, one: Array, shape: Any) -> Array:
        return Array(np.broadcast_to(one.layout, shape), one.room)

    def stack(self, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        return Array.new(self._account, (len(arrays), *first.shape), first.dtype)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        shape = list(arrays[0].shape)
        shape[axis] = sum(one.shape[axis] for one in arrays)
        return Array.new(self._account, shape, np.result_type(*(one.dtype for one in arrays)))

    def take_along_axis(self, one: Array, index: Array, axis: int) -> Array:
        return Array.new(self._account, index.shape, one.dtype)

    def put_along_axis(self, one: Array, index: Array, values: Array, axis: int) -> None:
        pass

    def argsort(self, one: Array, axis: int = -1, **_: Any) -> Array:
        return Array.new(self._account, one.shape, np.int64)

    def cumsum(self, one: Array, axis: int) -> Array:
        return Array.new(self._account, one.shape, one.dtype)

    def flip(self, one: Array, axes: Any) -> Array:
        return Array(one.layout, one.room)

    def argmax(self, one: Array, axis: int) -> Array:
        return Array.new(self._account, one.shape[:-1], np.int64)

    argmin = argmax

    def sort(self, one: Array, axis: int = -1, **_: Any) -> Array:
        return Array.new(self._account, one.shape, one.dtype)


class _Add:
    """`np.add`, of which programs use `at`: the sums are made in place."""

    def at(self, one: Array, index: Any, values: Array) -> None:
        pass
