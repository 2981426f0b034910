"""Operators and elementwise functions on arrays without values, with NumPy's temporaries and buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from learncost.readings.rooms.array import BUFFER, Array, order_of
from learncost.schedule.account import Account

ELIDED = 256 * 1024
"""Bytes from which on NumPy writes a result into a temporary operand (NPY_MIN_ELIDE_BYTES)."""


def elementwise(account: Account, operands: Sequence[Any], dtype: Any = None) -> Array:
    """What an elementwise function of arrays and numbers takes: its result, and a buffer where operands are spread."""
    arrays = [one for one in operands if isinstance(one, Array)]
    shape = np.broadcast_shapes(*(one.shape for one in arrays))
    kind = dtype or np.result_type(*(one.dtype if isinstance(one, Array) else one for one in operands))
    found = Array.new(account, shape, kind, order_of(shape, arrays))
    spread = [one for one in arrays if one.shape and (one.shape != shape or not _dense(one))]
    if spread and len(shape) > 1 and prod(shape[-1:]) < BUFFER:
        account.buffer(min(BUFFER, prod(shape)) * kind.itemsize)
    return found


def _dense(array: Array) -> bool:
    """Whether its elements lie without gaps, in some order of the axes."""
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


def binary(name: str, one: Any, two: Any, given: tuple[bool, bool]) -> Any:
    """An operator; `given` says which operands are temporaries that nothing else refers to."""
    if not isinstance(one, Array) and not isinstance(two, Array):
        return _OPERATORS[name](one, two)
    if name == "MatMult":
        return _product(one, two)
    if name not in _NEVER:
        if given[0] and _gives_way(one, two):
            return one
        if name in _EITHER and given[1] and _gives_way(two, one):
            return two
    account = (one if isinstance(one, Array) else two).account
    return elementwise(account, (one, two))


def _gives_way(one: Any, other: Any) -> bool:
    if not isinstance(one, Array) or not one.owns or one.nbytes < ELIDED:
        return False
    if not isinstance(other, Array):
        return bool(np.can_cast(np.asarray(other).dtype, one.dtype))
    return other.shape in ((), one.shape) and bool(np.can_cast(other.dtype, one.dtype))


def _product(one: Array, two: Array) -> Array:
    rows, columns = one.shape[-2:-1], two.shape[-1:] if len(two.shape) > 1 else ()
    outer = np.broadcast_shapes(one.shape[:-2], two.shape[:-2])
    return Array.new(one.account, (*outer, *rows, *columns), np.result_type(one.dtype, two.dtype))


def unary(name: str, one: Any, given: bool) -> Any:
    """Minus, not: into a temporary where there is one."""
    if not isinstance(one, Array):
        return _OF_ONE[name](one)
    if given and one.owns and one.nbytes >= ELIDED:
        return one
    return elementwise(one.account, (one,))


def compare(one: Any, two: Any) -> Any:
    """A comparison's array of conditions."""
    account = (one if isinstance(one, Array) else two).account
    return elementwise(account, (one, two), np.dtype(bool))
