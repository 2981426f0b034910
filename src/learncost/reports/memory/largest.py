"""Search for the largest batch and the longest sequence whose peak fits, with few evaluations of the peak."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf, isinf

from learncost.ir.errors import InputError

FIRST, LONGEST = 1024, 2**24
"""The first sequence that is tried after one of length 1, and the longest."""

LENGTH_TRIALS = 16
"""The most times that a length which fits is exceeded by the next: the peak may bend."""


SMOOTH, FARTHEST = 16, 1024
"""The steps of Newton's method after which a bracket of the largest batch is halved, and how many times larger than a
batch the next is at most: the line of a small batch may be almost level."""


def largest_batch(peak: Callable[[int], int], capacity: int) -> int:
    """Return the largest batch whose peak fits, or 0.

    peak    the bytes of a batch: lines that bend where another moment becomes the worst. A step of Newton's method
            from a batch goes to where its own line meets the capacity. Where the chunks of a loss make the lines jump,
            that may be no batch between one that fits and one that does not: the middle of the two is next.
    """
    batch, before, peak = 1, -1, cache(peak)
    fits, too_large = 0, inf
    for number in range(64):
        level = peak(batch)
        if level <= capacity:
            fits = batch
        else:
            too_large = batch
        if batch == 1 and level > capacity:
            return 0
        more = peak(batch + 1)
        if level <= capacity < more:
            return batch
        if before == level == more and batch > 4096:  # fewer may take nothing more where arrays are aligned
            break
        if level <= capacity:
            fits = batch + 1
        ahead = batch + int((capacity - level) // max(1, more - level))
        before, batch = level, max(1, min(ahead, FARTHEST * batch))
        if number > SMOOTH or not fits < batch < too_large:
            batch = 2 * fits if isinf(too_large) else (fits + int(too_large)) // 2
    raise InputError("the largest batch was not found: the peak does not grow with the batch")


def longest_within(peak: Callable[[int], int], capacity: int, most: int = LONGEST) -> int:
    """Return the largest length whose peak fits; length 1 fits, and the peak is non-decreasing.

    A length for which the model has no positions is refused by `InputError`, and does not fit. The next that is tried
    is where a line through the two nearest meets the capacity, or the one in the middle where that left more than half:
    a peak takes a while.
    """

    def over(length: int) -> float:
        try:
            return peak(length) - capacity
        except InputError:
            return inf

    low, under = 1, over(1)
    high = min(FIRST, most)
    above = over(high)
    while high < most and above <= 0:
        more = int(-above * (high - low) / (above - under)) if above > under else most
        low, under, high = high, above, min(high + max(more, 1), LENGTH_TRIALS * high, most)
        above = over(high)
    if above <= 0:  # nobody looks further
        return high
    halve = isinf(above)
    while high - low > 1:
        between = high - low
        middle = (low + high) // 2 if halve else low + int(between * under / (under - above))
        middle = min(max(middle, low + 1), high - 1)
        if (level := over(middle)) <= 0:
            low, under = middle, level
        else:
            high, above = middle, level
        halve = isinf(above) or 2 * (high - low) > between
    return low
