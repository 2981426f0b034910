"""The functions of NumPy that emitted programs call, on arrays without values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.program.account import Account
from learncost.program.rooms.array import Array
from learncost.program.rooms.operators import elementwise


class NumPy:
    """The functions of NumPy that emitted programs call, on arrays without values."""

    inf = np.inf
    ndarray = Array
    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.add = _Add()

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name, None)
        if isinstance(function, np.ufunc) and function.nout == 1:
            return lambda *operands, out=None: elementwise(self._account, operands) if out is None else out
        raise InputError(f"what np.{name} takes in memory is not known: add it to learncost.program.rooms")

    def of_each(self, *arrays: Array) -> Array:
        """A function of each element."""
        return elementwise(self._account, arrays)

    def zeros(self, shape: Any, dtype: Any) -> Array:
        return Array.new(self._account, shape, dtype)

    def full(self, shape: Any, value: float, dtype: Any) -> Array:
        return Array.new(self._account, shape, dtype)

    def array(self, array: Array) -> Array:
        return array.astype(array.dtype)

    def pad(self, array: Array, ends: Sequence[tuple[int, int]]) -> Array:
        shape = [size + before + behind for size, (before, behind) in zip(array.shape, ends, strict=True)]
        return Array.new(self._account, shape, array.dtype)

    def zeros_like(self, array: Array) -> Array:
        return array.astype(array.dtype)

    def eye(self, size: int, dtype: Any) -> Array:
        return Array.new(self._account, (size, size), dtype)

    def arange(self, size: int) -> Array:
        return Array.new(self._account, (size,), np.int64)

    def tri(self, rows: int, columns: int, place: int = 0, dtype: Any = bool) -> Array:
        return Array.new(self._account, (rows, columns), dtype)

    def where(self, condition: Array, first: Any, second: Any) -> Array:
        kind = np.result_type(*(x.dtype if isinstance(x, Array) else x for x in (first, second)))
        return elementwise(self._account, (condition, first, second), kind)

    def ascontiguousarray(self, array: Array) -> Array:
        return array if array.layout.flags.c_contiguous else Array.new(self._account, array.shape, array.dtype)

    def broadcast_to(self, array: Array, shape: Any) -> Array:
        return Array(np.broadcast_to(array.layout, shape), array.room)

    def stack(self, arrays: Sequence[Array]) -> Array:
        first = arrays[0]
        return Array.new(self._account, (len(arrays), *first.shape), first.dtype)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return Array.new(self._account, shape, np.result_type(*(array.dtype for array in arrays)))

    def take_along_axis(self, array: Array, index: Array, axis: int) -> Array:
        return Array.new(self._account, index.shape, array.dtype)

    def put_along_axis(self, array: Array, index: Array, values: Array, axis: int) -> None:
        pass

    def argsort(self, array: Array, axis: int = -1, **_: Any) -> Array:
        return Array.new(self._account, array.shape, np.int64)

    def cumsum(self, array: Array, axis: int) -> Array:
        return Array.new(self._account, array.shape, array.dtype)

    def flip(self, array: Array, axes: Any) -> Array:
        return Array(array.layout, array.room)

    def argmax(self, array: Array, axis: int) -> Array:
        return Array.new(self._account, array.shape[:-1], np.int64)

    argmin = argmax

    def sort(self, array: Array, axis: int = -1, **_: Any) -> Array:
        return Array.new(self._account, array.shape, array.dtype)


class _Add:
    """`np.add`, of which programs use `at`, and what is added to an array: the sums are made in place."""

    def __call__(self, first: Array, second: Array, out: Array) -> Array:
        return out

    def at(self, array: Array, index: Any, values: Array) -> None:
        pass
