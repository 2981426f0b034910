"""Search for the largest batch and the longest sequence whose peak fits, with few evaluations of the peak."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isinf

from learncost.ir.errors import InputError

LONGEST = 2**24
"""The longest sequence that is tried."""


def largest_batch(peak: Callable[[int], int], capacity: int) -> int:
    """Return the largest batch whose peak fits, or 0.

    peak    the bytes of a batch: lines that bend where another moment becomes the worst. A step of Newton's method
            from a batch goes to where its own line meets the capacity.
    """
    batch = 1
    for _ in range(64):
        level = peak(batch)
        if batch == 1 and level > capacity:
            return 0
        more = peak(batch + 1)
        if level <= capacity < more:
            return batch
        batch = max(1, batch + int((capacity - level) // max(1, more - level)))
    raise InputError("the largest batch was not found: the peak does not grow with the batch")


def longest_within(peak: Callable[[int], int], capacity: int, most: int = LONGEST) -> int:
    """Return the largest length whose peak fits; length 1 fits, and the peak is non-decreasing.

    A length for which the model has no positions is refused by `InputError`, and does not fit. Between one that fits
    and one that does not, the next that is tried is where a line through both meets the capacity, or, each second time,
    the one in the middle: a peak takes a while.
    """

    def over(length: int) -> float:
        try:
            return peak(length) - capacity
        except InputError:
            return inf

    low, under = 1, over(1)
    high, above = 2, over(2)
    while high < most and above <= 0:
        low, under = high, above
        high, above = 2 * high, over(2 * high)
    if above <= 0:  # nobody looks further
        above = inf
    halve = isinf(above)
    while high - low > 1:
        middle = (low + high) // 2 if halve else low + int((high - low) * under / (under - above))
        middle = min(max(middle, low + 1), high - 1)
        if (level := over(middle)) <= 0:
            low, under = middle, level
        else:
            high, above = middle, level
        halve = isinf(above) or not halve
    return low
