"""Masks of dropout as a program in C99 draws them: 0, or what makes up for it."""

from __future__ import annotations

from math import ceil

BITS = 24


def least(dropout: float) -> int:
    """The least number of 24 bits with which an element is kept."""
    return ceil(dropout * (1 << BITS))


def kept(dropout: float) -> float:
    """What an element is multiplied by that is kept, so that the mean stays."""
    return 1 / (1 - dropout)
