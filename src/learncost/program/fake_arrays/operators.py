"""Operators and elementwise functions on arrays without values, with NumPy's temporaries and buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from learncost.program.account import AllocationLog
from learncost.program.fake_arrays.array import BUFFER, FakeArray, order_of

ELIDED = 256 * 1024
"""Bytes from which NumPy writes a result into a temporary operand (NPY_MIN_ELIDE_BYTES)."""


def elementwise(account: AllocationLog, operands: Sequence[Any], dtype: Any = None) -> FakeArray:
    """Run an elementwise function: allocate its result, and a buffer where operands are broadcast."""
    arrays = [operand for operand in operands if isinstance(operand, FakeArray)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    kind = dtype or np.result_type(
        *(operand.dtype if isinstance(operand, FakeArray) else operand for operand in operands)
    )
    result = FakeArray.new(account, shape, kind, order_of(shape, arrays))
    spread = [array for array in arrays if array.shape and (array.shape != shape or not _dense(array))]
    if spread and len(shape) > 1 and prod(shape[-1:]) < BUFFER:
        account.buffer(min(BUFFER, prod(shape)) * kind.itemsize)
    return result


def _dense(array: FakeArray) -> bool:
    """Return whether its elements are contiguous, in some order of the axes."""
    steps = zip(array.shape, array.layout.strides, strict=True)
    return bool(sum((size - 1) * abs(step) for size, step in steps) < array.nbytes)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "MatMult": operator.matmul,
}
_OF_ONE: dict[str, Callable[[Any], Any]] = {"USub": operator.neg, "Invert": operator.invert, "Not": operator.not_}
_EITHER = ("Add", "Mult", "BitAnd", "BitOr")
_NEVER = ("Pow", "Mod")


def binary(name: str, left: Any, right: Any, temporaries: tuple[bool, bool]) -> Any:
    """Run an operator; `temporaries` are the operands that nothing else refers to."""
    if not isinstance(left, FakeArray) and not isinstance(right, FakeArray):
        return _OPERATORS[name](left, right)
    if name == "MatMult":
        return _product(left, right)
    if name not in _NEVER:
        if temporaries[0] and _gives_way(left, right):
            return left
        if name in _EITHER and temporaries[1] and _gives_way(right, left):
            return right
    account = (left if isinstance(left, FakeArray) else right).account
    return elementwise(account, (left, right))


def _gives_way(operand: Any, other: Any) -> bool:
    if not isinstance(operand, FakeArray) or not operand.owns or operand.nbytes < ELIDED:
        return False
    if not isinstance(other, FakeArray):
        return bool(np.can_cast(np.asarray(other).dtype, operand.dtype))
    return other.shape in ((), operand.shape) and bool(np.can_cast(other.dtype, operand.dtype))


def _product(left: FakeArray, right: FakeArray) -> FakeArray:
    rows, columns = left.shape[-2:-1], right.shape[-1:] if len(right.shape) > 1 else ()
    outer = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return FakeArray.new(left.account, (*outer, *rows, *columns), np.result_type(left.dtype, right.dtype))


def unary(name: str, operand: Any, is_temporary: bool) -> Any:
    """Run a minus or a not, into a temporary operand where there is one."""
    if not isinstance(operand, FakeArray):
        return _OF_ONE[name](operand)
    if is_temporary and operand.owns and operand.nbytes >= ELIDED:
        return operand
    return elementwise(operand.account, (operand,))


def compare(left: Any, right: Any) -> Any:
    """Return the boolean array of a comparison."""
    account = (left if isinstance(left, FakeArray) else right).account
    return elementwise(account, (left, right), np.dtype(bool))
