"""Dropout masks of C99 programs: 0 or the inverse keep probability."""

from __future__ import annotations

from math import ceil

BITS = 24


def least(dropout: float) -> int:
    """Return the smallest 24-bit number with which an element is kept."""
    return ceil(dropout * (1 << BITS))


def scale(dropout: float) -> float:
    """Return the factor of kept elements, which preserves the mean."""
    return 1 / (1 - dropout)
