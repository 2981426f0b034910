"""What a device attains: of products by their shape, of bytes by when they were touched last, of words by the point."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import exp, log, prod
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.polynomial import larger

FRESH = 32 * 2**20
"""Bytes above which the C library hands what is freed back to the system, and gets it anew, page by page: an array of
that size (DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64 bits, mallopt(3)), or all gradients of weights together, which
PyTorch frees after every step."""

ORIENTATIONS = ("NN", "TN", "NT")
"""How factors m x k and k x n lie in memory: T the other way round. Forward, gradients of weights, of activations."""


@dataclass(frozen=True)
class RateCurve:
    """Values at places, straight lines between them in the logarithms of both; the ends go on as they are."""

    places: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, place: Any) -> Any:
        """The value at a place, or at each of an array of them."""
        if len(self.values) == 1:
            return self.values[0]
        if hasattr(place, "shape"):
            import numpy

            return numpy.exp(numpy.interp(numpy.log(place), numpy.log(self.places), numpy.log(self.values)))
        at, share = _between(self.places, place)
        low, high = self.values[at], self.values[min(at + 1, len(self.values) - 1)]
        return exp((1 - share) * log(low) + share * log(high))


@dataclass(frozen=True)
class MatmulGrid:
    """FLOP/s of products of matrices m x k and k x n, for every three of the `sizes`, the last one of k fastest.

    Between the sizes the logarithm of the rate is interpolated in the logarithms of m, n and k. Above the largest the
    rate stays; below the smallest the time does: a product of fewer rows takes as long as one of so many.
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    @cached_property
    def _logs(self) -> tuple[float, ...]:
        return tuple(log(rate) for rate in self.rates)

    def seconds(self, m: Any, n: Any, k: Any) -> Any:
        """Of one product, or of each of an array of them."""
        lengths = [larger(size, self.sizes[0]) for size in (m, n, k)]
        return 2.0 * prod(lengths) / self.rate(*lengths)

    def rate(self, m: Any, n: Any, k: Any) -> Any:
        """FLOP/s at a shape."""
        if any(hasattr(size, "shape") for size in (m, n, k)):
            return self._rates_at(m, n, k)
        several = len(self.sizes)
        places = [_between(self.sizes, size) for size in (m, n, k)]
        result = 0.0
        for corner in product((0, 1), repeat=3):
            weight, index = 1.0, 0
            for (at, share), end in zip(places, corner, strict=True):
                weight *= share if end else 1 - share
                index = index * several + min(at + end, several - 1)
            result += weight * self._logs[index]
        return exp(result)

    def _rates_at(self, m: Any, n: Any, k: Any) -> Any:
        """The same of arrays of shapes."""
        import numpy

        edge, places = numpy.log(self.sizes), numpy.arange(len(self.sizes), dtype=float)
        at = [numpy.interp(numpy.log(numpy.asarray(size, dtype=float)), edge, places) for size in (m, n, k)]
        before = [numpy.minimum(place.astype(int), max(0, len(self.sizes) - 2)) for place in at]
        table = numpy.asarray(self._logs).reshape((len(self.sizes),) * 3)
        result: Any = 0.0
        for corner in product((0, 1), repeat=3):
            shares = [
                place - low if end else 1 - (place - low) for place, low, end in zip(at, before, corner, strict=True)
            ]
            result = result + prod(shares) * table[tuple(low + end for low, end in zip(before, corner, strict=True))]
        return numpy.exp(result)


def _between(places: Sequence[float], place: float) -> tuple[int, float]:
    """The place before, and how far it is to the next one, from 0 to 1 in logarithms."""
    if place <= places[0]:
        return 0, 0.0
    if place >= places[-1]:
        return len(places) - 1, 0.0
    at = bisect_right(places, place) - 1
    return at, log(place / places[at]) / log(places[at + 1] / places[at])


@dataclass(frozen=True)
class Rates(Displayed):
    """What a device attains, in seconds, bytes and FLOPs.

    products   by orientation, with all threads
    inner      of products inside of a kernel or a batch, of one thread
    bandwidth  bytes a second, read and written, by the bytes that were touched since the same bytes were touched last
    fresh      seconds a byte more where an operator's result is in new memory, as what is larger than `FRESH` is
    ops        seconds a point, by word and primitive; `word'` is a gradient; what is missing is made of primitives, and
               a primitive that is missing takes no time
    launch     seconds that a kernel or a product takes to be called, `launch_backward` in the backward pass
    optimizer  seconds that the update of one weight takes to be called
    step       seconds of a step beside its lines
    chosen     what products attain whose factor is read where another value says, as a share of what the others do
    threads    how many turns of a kernel run at once
    operators  whether lines run as PyTorch's operators do: `work` says what that means
    queues     whether calls return before they are done, as on a GPU: what was called runs while others are called, and
               products inside of a kernel were timed as attention, words among them
    low, high  factors of the time between which it is expected
    most       FLOP/s that nothing was ever measured above, on such a device; 0: not known
    name, source  of the device, and what its rates rest on; `dtype`, whose they are, where that is known
    watts      that it draws, lowest, usual and highest, where that is known
    """

    products: Mapping[str, MatmulGrid]
    inner: MatmulGrid
    bandwidth: RateCurve
    ops: Mapping[str, float] = field(default_factory=dict)
    launch: float = 0.0
    launch_backward: float = 0.0
    optimizer: float = 0.0
    fresh: float = 0.0
    step: float = 0.0
    chosen: float = 1.0
    threads: int = 1
    operators: bool = True
    queues: bool = False
    low: float = 1.0
    high: float = 1.0
    most: float = 0.0
    name: str = ""
    dtype: str = ""
    source: str = ""
    watts: tuple[float, float, float] | None = None
