"""bf16 on NumPy, which has none: kept by the package ml_dtypes in two bytes, else rounded in fp32, with its four.

Either way arithmetic is fp32 and a value is rounded to the nearest, ties to even, as a processor does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def two_bytes() -> Any:
    """The type of ml_dtypes (`pip install learncost[bf16]`), None without it."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def rounded(array: Any) -> Any:
    """The numbers of an fp32 array, each as the nearest that bf16 has."""
    array = np.asarray(array, np.float32)
    bits = array.view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(array), nearest.view(np.float32), array)


def stored(array: Any) -> Any:
    """Rounded numbers, in two bytes each where ml_dtypes is installed."""
    kind = two_bytes()
    return rounded(array) if kind is None else rounded(array).astype(kind)


def widened(array: Any) -> Any:
    """An array that was kept in two bytes as fp32; any other as it is."""
    array = np.asarray(array)
    kind = two_bytes()
    return array.astype(np.float32) if kind is not None and array.dtype == kind else array
