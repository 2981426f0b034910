"""Represent the attained rates of a device: matrix products by shape, memory by reuse distance, operators per element;
and the constants of a GPU and of the CPU that launches its kernels, from which the time of a program follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from math import exp, log, log2, prod
from typing import Any

from learncost.ir.dataclass import dataclass, field
from learncost.ir.displayed import Displayed
from learncost.ir.polynomial import larger

MMAP_THRESHOLD = 32 * 2**20
"""The bytes above which the C library returns freed memory to the system and gets new pages: for a single array
(DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64 bits, mallopt(3)), or for all gradients of weights together, which PyTorch
frees after every step.
"""

ORIENTATIONS = ("NN", "TN", "NT")
"""The memory layouts of the factors m x k and k x n, where T is transposed: those of forward products, of gradients of
weights, and of gradients of activations."""


@dataclass(frozen=True)
class RateCurve:
    """A curve through measured points, linear in the logarithms of both axes and constant beyond its ends."""

    places: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, place: Any) -> Any:
        """Return the value at a point, or the values at an array of points."""
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
    """The FLOP/s of products of matrices m x k and k x n, for all triples of `sizes`, with k varying fastest.

    The logarithm of the rate is interpolated in the logarithms of m, n and k. Above the largest size the rate is
    constant. Below the smallest size the time is constant: a product of fewer rows takes as long as one with the
    smallest size.
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    @cached_property
    def _logs(self) -> tuple[float, ...]:
        return tuple(log(rate) for rate in self.rates)

    def seconds(self, m: Any, n: Any, k: Any) -> Any:
        """Return the seconds of a product, or of each product in arrays of sizes."""
        lengths = [larger(size, self.sizes[0]) for size in (m, n, k)]
        return 2.0 * prod(lengths) / self.rate(*lengths)

    def rate(self, m: Any, n: Any, k: Any) -> Any:
        """Return the FLOP/s of a shape."""
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
        """Return the FLOP/s of arrays of shapes."""
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
    """Return the number of the point before, and the position between it and the next point as a share, in
    logarithms."""
    if place <= places[0]:
        return 0, 0.0
    if place >= places[-1]:
        return len(places) - 1, 0.0
    at = bisect_right(places, place) - 1
    return at, log(place / places[at]) / log(places[at + 1] / places[at])


@dataclass(frozen=True)
class Rates(Displayed):
    """The attained rates of a device, in seconds, bytes and FLOPs.

    products   the rates of products with all threads, by orientation
    inner      the rates of products inside a kernel or a batch, of one thread
    bandwidth  bytes read and written per second, by reuse distance in bytes
    fresh      additional seconds per byte of an operator's result in new pages, for those above `MMAP_THRESHOLD`
    ops        seconds per element, by operator and primitive; `op'` is a gradient; a missing operator is timed by its
               primitives, and a missing primitive takes no time
    launch     seconds to launch a kernel or product; `launch_backward` in the backward pass
    optimizer  seconds to launch the update of one weight
    step       the overhead of a step in seconds
    chosen     the rate of products with a gathered factor relative to that of others
    grouped    whether the rows of each expert are a product, not those of all experts
    permuted   the share of the bandwidth that copies of rows in another order attain
    threads    the number of tiles of a kernel that run in parallel
    operators  whether lines run as PyTorch's operators (see `work`)
    queues     whether launches are asynchronous, as on a GPU, so that kernels overlap with later launches; the rates
               `inner` are then those of attention, including its other operators
    low, high  the factors of the predicted time that bound its interval
    most       the highest FLOP/s measured on such a device; 0 if unknown
    name, source  the device, and the source of the rates
    dtype      the data type of the rates, if known
    watts      the lowest, usual and highest power draw, if known
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
    grouped: bool = False
    permuted: float = 1.0
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


@dataclass(frozen=True)
class HostCPU:
    """The seconds that the CPU takes to issue a step, in eager PyTorch.

    operator, view        of an operator with a kernel and of a view, in the forward pass and the optimizer
    backward, its_view    the same in the backward pass, which C++ runs
    module                of the call of a module
    weight, optimizer     per weight that is learned, and of the step of an optimizer
    latency               from a launch until its kernel starts on an idle GPU
    wait                  of the CPU after it waited for a value
    launch, graph         of a kernel by code that torch.compile generated, and of each entry into such code, with its
                          guards
    """

    operator: float
    view: float
    backward: float
    its_view: float
    module: float
    weight: float
    optimizer: float
    latency: float
    wait: float
    launch: float
    graph: float


@dataclass(frozen=True)
class AttentionRates:
    """The FLOP/s of attention kernels by head size, at `lengths` of the sequence, and the share of this that a causal
    one attains, which computes half of the scores.

    peak  FLOP/s of products of the GPU on which they were measured
    """

    lengths: tuple[int, ...]
    forward: Mapping[int, tuple[float, ...]]
    backward: Mapping[int, tuple[float, ...]]
    causal: tuple[float, ...]
    peak: float

    def at(self, row: Sequence[float], length: float) -> float:
        """Return a value of a row at a length of the sequence, linear in its logarithm."""
        place = min(max(log2(length / self.lengths[0]) if length else 0.0, 0.0), len(self.lengths) - 1.0)
        low = min(int(place), len(self.lengths) - 2)
        return row[low] + (row[low + 1] - row[low]) * (place - low)

    def head(self, size: int) -> int:
        """Return the head size whose kernel runs heads of a size, which it pads."""
        return next((each for each in self.forward if size <= each), max(self.forward))

    def share(self, size: int, length: float) -> float:
        """Return the share of the peak that causal attention attains in a step, whose backward pass has 5 of 7 products
        (Dao 2023, FlashAttention-2, section 4.1)."""
        head = self.head(size)
        takes = 2 / self.at(self.forward[head], length) + 5 / self.at(self.backward[head], length)
        return 7 / takes * self.at(self.causal, length) * min(1.0, size / head) / self.peak


@dataclass(frozen=True)
class GPU:
    """The constants of a GPU.

    products           attained FLOP/s of large matrix products by data type
    experts            the rate of grouped products relative to others
    bandwidth          attained bytes per second of a large copy
    cache              the bytes that stay in the cache between two kernels
    cache_bandwidth    bytes per second to and from the cache
    multiprocessors    the number of streaming multiprocessors, which share the tiles of a product
    scalar             elements per second of kernels that compute an offset for every element
    attention          rates of fused attention in bf16 and fp16
    attention_fp32     FLOP/s of fused attention in fp32
    capability         the compute capability, which decides the kernel of attention
    assumed            the relative uncertainty of the time of each kind of kernel, and of the CPU
    """

    name: str
    products: Mapping[str, float]
    experts: float
    bandwidth: float
    cache: float
    cache_bandwidth: float
    multiprocessors: int
    scalar: float
    attention: AttentionRates
    attention_fp32: float
    capability: tuple[int, int]
    host: HostCPU
    source: str = ""
    assumed: Mapping[str, float] = field(default_factory=dict)
