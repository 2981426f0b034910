"""The functions of NumPy that emitted programs call, on arrays without values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.program.account import AllocationLog
from learncost.program.fake_arrays.array import FakeArray
from learncost.program.fake_arrays.operators import elementwise


class NumPy:
    """The functions of NumPy that emitted programs call, on arrays without values."""

    inf = np.inf
    ndarray = FakeArray
    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, account: AllocationLog) -> None:
        self._account = account
        self.add = _Add()

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name, None)
        if isinstance(function, np.ufunc) and function.nout == 1:
            return lambda *operands, out=None: elementwise(self._account, operands) if out is None else out
        raise InputError(f"the memory of np.{name} is unknown: add it to learncost.program.fake_arrays")

    def of_each(self, *arrays: FakeArray) -> FakeArray:
        """Run a function of each element."""
        return elementwise(self._account, arrays)

    def zeros(self, shape: Any, dtype: Any) -> FakeArray:
        return FakeArray.new(self._account, shape, dtype)

    def full(self, shape: Any, value: float, dtype: Any) -> FakeArray:
        return FakeArray.new(self._account, shape, dtype)

    def array(self, array: FakeArray) -> FakeArray:
        return array.astype(array.dtype)

    def pad(self, array: FakeArray, ends: Sequence[tuple[int, int]]) -> FakeArray:
        shape = [size + before + behind for size, (before, behind) in zip(array.shape, ends, strict=True)]
        return FakeArray.new(self._account, shape, array.dtype)

    def zeros_like(self, array: FakeArray) -> FakeArray:
        return array.astype(array.dtype)

    def eye(self, size: int, dtype: Any) -> FakeArray:
        return FakeArray.new(self._account, (size, size), dtype)

    def arange(self, size: int) -> FakeArray:
        return FakeArray.new(self._account, (size,), np.int64)

    def tri(self, rows: int, columns: int, place: int = 0, dtype: Any = bool) -> FakeArray:
        return FakeArray.new(self._account, (rows, columns), dtype)

    def where(self, condition: FakeArray, first: Any, second: Any) -> FakeArray:
        kind = np.result_type(*(x.dtype if isinstance(x, FakeArray) else x for x in (first, second)))
        return elementwise(self._account, (condition, first, second), kind)

    def ascontiguousarray(self, array: FakeArray) -> FakeArray:
        return array if array.layout.flags.c_contiguous else FakeArray.new(self._account, array.shape, array.dtype)

    def broadcast_to(self, array: FakeArray, shape: Any) -> FakeArray:
        return FakeArray(np.broadcast_to(array.layout, shape), array.allocation)

    def stack(self, arrays: Sequence[FakeArray]) -> FakeArray:
        first = arrays[0]
        return FakeArray.new(self._account, (len(arrays), *first.shape), first.dtype)

    def concatenate(self, arrays: Sequence[FakeArray], axis: int = 0) -> FakeArray:
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return FakeArray.new(self._account, shape, np.result_type(*(array.dtype for array in arrays)))

    def take_along_axis(self, array: FakeArray, index: FakeArray, axis: int) -> FakeArray:
        return FakeArray.new(self._account, index.shape, array.dtype)

    def put_along_axis(self, array: FakeArray, index: FakeArray, values: FakeArray, axis: int) -> None:
        pass

    def argsort(self, array: FakeArray, axis: int = -1, **_: Any) -> FakeArray:
        return FakeArray.new(self._account, array.shape, np.int64)

    def cumsum(self, array: FakeArray, axis: int) -> FakeArray:
        return FakeArray.new(self._account, array.shape, array.dtype)

    def flip(self, array: FakeArray, axes: Any) -> FakeArray:
        return FakeArray(array.layout, array.allocation)

    def argmax(self, array: FakeArray, axis: int) -> FakeArray:
        return FakeArray.new(self._account, array.shape[:-1], np.int64)

    argmin = argmax

    def sort(self, array: FakeArray, axis: int = -1, **_: Any) -> FakeArray:
        return FakeArray.new(self._account, array.shape, array.dtype)


class _Add:
    """`np.add`, of which programs use `at`, and sums with `out`: both are in-place."""

    def __call__(self, first: FakeArray, second: FakeArray, out: FakeArray) -> FakeArray:
        return out

    def at(self, array: FakeArray, index: Any, values: FakeArray) -> None:
        pass
