"""Functions that the reference implementations share, in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from learncost.ir.dataclass import dataclass

Array = Any


def softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Return exp(x) / sum exp(x), shifted by the maximum."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: Array) -> Array:
    """Return x - log sum exp x, by a pairwise logaddexp."""
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


def normal(x: Array, epsilon: float = 1e-5, axis: int | tuple[int, ...] = -1) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon)."""
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def hashed(x: Array, z: Array, shift: int = 8) -> Array:
    """Return the upper bits of a 32-bit hash, in Python's integers."""

    def of_one(a: float, b: float) -> float:
        number = (int(a) * 2654435761 + int(b)) % 2**32
        for _ in range(2):
            number = ((number ^ number // 2**16) * 73244475) % 2**32
        return float((number ^ number // 2**16) // 2**shift)

    return np.vectorize(of_one, otypes=[float])(x, z)


def shifted(x: Array, z: Array) -> Array:
    """Return x / 2^z rounded to the nearest integer, clamped to +-2^30."""

    def of_one(a: float, b: float) -> float:
        nearest = math.floor(a / 2.0 ** min(max(b, -64), 64) + 0.5)
        return float(min(max(nearest, -(2**30)), 2**30))

    return np.vectorize(of_one, otypes=[float])(x, z)


def erf(x: Array) -> Array:
    """Return the error function of each element."""
    return np.vectorize(math.erf, otypes=[float])(x)


def gelu(x: Array) -> Array:
    """Return x times the normal distribution function."""
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    """Return GELU's approximation with tanh."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), accurate for small results too."""
    return np.exp(-np.logaddexp(0, -x))


def under_where(op: Callable[..., Array], x: Array, *more: Array) -> Array:
    """Apply an operator along n to the entries with n <= a of each row; the others are zero.

    more   operands with one number a row
    """
    rows = [op(row[: a + 1], *(operand[a] for operand in more)) for a, row in enumerate(x)]
    if np.ndim(rows[0]) == 0:
        return np.array(rows)
    return np.stack([np.concatenate([row, np.zeros(x.shape[1] - len(row))])[: x.shape[1]] for row in rows])


@dataclass(frozen=True)
class Ranked:
    """A function with a fixed number of axes for each operand: broadcasting would hide a missing axis.

    sized   True if the shape of its result is a parameter, as the operands do not determine it
    """

    ranks: str
    function: Callable[..., Array]
    sized: bool = False

    def __call__(self, *operands: Array, **shape: tuple[int, ...]) -> Array:
        ranks = "".join(str(np.ndim(operand)) for operand in operands)
        if ranks != self.ranks:
            raise ValueError(f"the operands have {', '.join(ranks)} axes instead of {', '.join(self.ranks)}")
        return self.function(*operands, **shape)


def of(ranks: str, function: Callable[..., Array], sized: bool = False) -> Ranked:
    """Return the function for operands with as many axes as the digits say."""
    return Ranked(ranks, function, sized)
