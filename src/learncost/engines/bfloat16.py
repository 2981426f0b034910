"""bf16 on NumPy: stored in two bytes by the package ml_dtypes, else rounded in fp32 with four bytes.

Arithmetic is fp32 in both cases, and results are rounded to the nearest, ties to even, as on a CPU.
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
    """Return an fp32 array rounded to bf16."""
    array = np.asarray(array, np.float32)
    bits = array.view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(array), nearest.view(np.float32), array)


def stored(array: Any) -> Any:
    """Return rounded numbers, in two bytes each with ml_dtypes."""
    kind = two_bytes()
    return rounded(array) if kind is None else rounded(array).astype(kind)


def widened(array: Any) -> Any:
    """Return a two-byte array as fp32; any other unchanged."""
    array = np.asarray(array)
    kind = two_bytes()
    return array.astype(np.float32) if kind is not None and array.dtype == kind else array
