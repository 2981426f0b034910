"""NumPy functions of the primitives, and replacements for those that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.ops import OpDef

Array = Any


def function_of(row: OpDef) -> Callable[..., Array]:
    """Return the function that computes a primitive on arrays."""
    return _OWN.get(row.name) or getattr(np, row.called or row.name)


def precision(values: Mapping[str, Array]) -> Any:
    """Return the data type of constants: that of the real numbers among the arrays."""
    types = {array.dtype for array in values.values() if hasattr(array, "dtype")}
    kinds = [dtype for dtype in types if dtype.kind in "fc"]
    return np.empty(0, np.result_type(*kinds) if kinds else float).real.dtype


def _erf(x: Array) -> Array:
    """Return the error function as one operation: scipy's ufunc if it is installed, otherwise Python's per element."""
    global _erf_ufunc
    if _erf_ufunc is None:
        try:
            from scipy.special import erf as _erf_ufunc
        except ImportError:
            _erf_ufunc = np.frompyfunc(math.erf, 1, 1)
    result = _erf_ufunc(x)
    return result if result.dtype != object else result.astype(getattr(x, "dtype", float))


_erf_ufunc: Any = None


def mixed(x: Array, z: Array) -> Any:
    """Return T. Mueller's 32-bit hash of two integers, whose two rounds change half of the bits on average."""
    bits, half, factor = np.uint64(0xFFFFFFFF), np.uint64(16), np.uint64(0x45D9F3B)
    first, second = (
        np.asarray(operand).view(np.ndarray).astype(np.int64).astype(np.uint64) & bits for operand in (x, z)
    )
    with np.errstate(over="ignore"):
        mixed = (first * np.uint64(0x9E3779B1) + second) & bits
        for _ in range(2):
            mixed = ((mixed ^ (mixed >> half)) * factor) & bits
    return mixed ^ (mixed >> half)


def _counted(result: Any, like: Array) -> Array:
    """Return numbers as the result of one operation, so that counting arrays count one per element."""
    array = np.asarray(result, precision({"": like}))
    return np.positive(array.view(type(like)) if isinstance(like, np.ndarray) else array)


def _hashed(x: Array, z: Array) -> Array:
    return _counted(mixed(x, z) >> np.uint64(8), x)


def _coin(x: Array, z: Array) -> Array:
    return _counted(1.0 - 2.0 * (mixed(x, z) >> np.uint64(31)), x)


def _shift(x: Array, z: Array) -> Array:
    numbers, places = (np.asarray(operand, float).view(np.ndarray) for operand in (x, z))
    shifted = np.floor(numbers * 2.0 ** -np.clip(places, -64, 64) + 0.5)
    return _counted(np.clip(shifted, -(2.0**30), 2.0**30), x)


def _bits(x: Array) -> Array:
    return _counted(np.frexp(np.asarray(x, float).view(np.ndarray))[1], x)


_OWN: Mapping[str, Callable[..., Array]] = {
    "erf": _erf,
    "hashed": _hashed,
    "coin": _coin,
    "shift": _shift,
    "bits": _bits,
}
"""The primitives that NumPy has no function for."""
