"""How an array without values lies in memory: an array of NumPy's of one element, seen with any shape and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided


def laid(shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> Any:
    """A layout of its own; `order` are its axes from the outermost in memory to the innermost, by default as is."""
    kind = np.dtype(dtype)
    strides, step = [0] * len(shape), kind.itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis], step = step, step * max(1, shape[axis])
    return as_strided(np.zeros(1, kind), tuple(shape), strides)
