"""Calibrate this machine by timing single operations; no step of a model is timed.

This module times the operations that the benches in `torch`, `kernels` and `operations` define.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from math import prod
from statistics import harmonic_mean, median, quantiles
from time import perf_counter
from typing import TypeAlias

from learncost.calibration.operations import Bench, TimedCall
from learncost.devices.calibration import Calibration
from learncost.engines import processor
from learncost.ir.dataclass import dataclass, replace
from learncost.timing.rates import MMAP_THRESHOLD, ORIENTATIONS, MatmulGrid, RateCurve, Rates

Report: TypeAlias = Callable[[str], None]

SIZES, QUICK = (24, 88, 312, 1104, 4000), (40, 312, 1600)
"""Rows, columns and summed sizes of the products: none is a width, a length or a vocabulary of a model, and all are
multiples of 8, as tensor cores require."""

LONGEST = 0.005
"""The time limit of a timed product in seconds; a longer one is assumed to have the rate of the product with a third of
its longest side."""

WORKING_SETS = tuple(3 * 2**power for power in range(14, 27, 2))
"""Sizes in bytes of the memory that is repeatedly read and written, from the smallest caches to beyond any cache."""

LEAST_SECONDS, REPEATS = 0.002, 3
"""The shortest duration of a timing in seconds, and the number of timings; the median counts."""

ROUNDS = 2
"""The number of rounds over products and bandwidth, some seconds apart, since a machine's speed varies; the mean
time counts, as in a step."""

CHECKS = ((44, 200, 130), (150, 600, 70), (700, 150, 400), (60, 1800, 500), (500, 500, 500), (1300, 90, 700))
"""Products off the grid, whose times give the error of a prediction."""

INTERVAL_FACTORS = (0.9, 1.3)
"""Factors by which the interval of a step is wider than that of single operations, which do not show other costs
(Python, reshapes, the state of caches). 21 of 26 steps of benchmarks/prediction.py were within them on two shared cores
of an AMD EPYC."""


def seconds(operation: TimedCall, wait: TimedCall, least: float = LEAST_SECONDS, repeats: int = REPEATS) -> float:
    """Return the median time of an operation, after one warm-up."""
    operation()
    wait()
    began = perf_counter()
    operation()
    wait()
    once = max(perf_counter() - began, 1e-7)
    several = max(1, int(least / once))
    times = []
    for _ in range(repeats):
        began = perf_counter()
        for _ in range(several):
            operation()
        wait()
        times.append((perf_counter() - began) / several)
    return median(times)


@dataclass
class _Measuring:
    """The measurement of one bench."""

    bench: Bench
    sizes: tuple[int, ...]
    report: Report

    def rates(self) -> Rates:
        self.report("calls")
        calls = {name: self._time(operation) / times for name, (operation, times) in self.bench.calls().items()}
        product = calls.pop("product")
        rates = Rates(
            *self._mean_of_rounds(product, calls["launch"]),
            dict(self._operators(calls["launch"])),
            threads=self.bench.threads,
            operators=self.bench.operators,
            queues=self.bench.busy is not None,
            launch=calls["launch"],
            launch_backward=calls["launch_backward"],
            optimizer=calls["optimizer"],
            fresh=self._fresh(),
        )
        self.report("errors of predictions")
        low, high = self._interval(rates)
        return replace(rates, low=low, high=high)

    def _mean_of_rounds(self, product: float, launch: float) -> tuple[dict[str, MatmulGrid], MatmulGrid, RateCurve]:
        """Measure products by orientation, products inside kernels and bandwidth, by the mean of several rounds."""
        rounds = []
        for number in range(1, ROUNDS + 1):
            grids = {
                orientation: self._grid(
                    f"products {orientation}, {number} of {ROUNDS}", self._products(orientation, product)
                )
                for orientation in ORIENTATIONS
            }
            inner = self._grid(f"products inside of kernels, {number} of {ROUNDS}", self._inner)
            rounds.append((grids, inner, self._bandwidth(launch)))
        products = {orientation: _mean([grids[orientation] for grids, _, _ in rounds]) for orientation in ORIENTATIONS}
        curves = [curve for _, _, curve in rounds]
        values = tuple(map(harmonic_mean, zip(*(curve.values for curve in curves), strict=True)))
        return products, _mean([inner for _, inner, _ in rounds]), RateCurve(curves[0].places, values)

    def _time(self, operation: TimedCall) -> float:
        return seconds(operation, self.bench.wait)

    def _ran(self, operation: TimedCall, launch: float) -> float:
        """Return the seconds of an operation without the overhead of its call."""
        if self.bench.busy:
            return self.bench.busy(operation)
        taken_seconds = self._time(operation)  # the call is charged separately, but at most three quarters of the time
        return max(taken_seconds - launch, taken_seconds / 4)

    def _products(self, orientation: str, launch: float) -> Callable[[int, int, int], float]:
        def seconds_of(m: int, n: int, k: int) -> float:
            return self._ran(self.bench.product(orientation, m, n, k), launch)

        return seconds_of

    def _inner(self, m: int, n: int, k: int) -> float:
        operation, several = self.bench.inner(m, n, k)
        return (self.bench.busy or self._time)(operation) / several

    def _grid(self, name: str, timed: Callable[[int, int, int], float]) -> MatmulGrid:
        """Measure the FLOP/s of products at every shape of the grid."""
        self.report(name)
        rates: dict[tuple[int, ...], float] = {}
        for shape in product(self.sizes, repeat=3):
            longest = shape.index(max(shape))
            shorter = list(shape)  # its longest side one size shorter, which was timed before
            shorter[longest] = self.sizes[max(0, self.sizes.index(shape[longest]) - 1)]
            known = rates.get(tuple(shorter))
            if known and 2 * prod(shape) > LONGEST * known:
                rates[shape] = known
            else:
                rates[shape] = 2 * prod(shape) / timed(*shape)
        return MatmulGrid(self.sizes, tuple(rates.values()))

    def _bandwidth(self, launch: float) -> RateCurve:
        self.report("bandwidth")
        places, values = [], []
        for bytes_ in WORKING_SETS:
            taken_seconds = self._ran(self.bench.move(bytes_ // 12), launch)
            places.append(float(bytes_))
            values.append(bytes_ / taken_seconds)
        return RateCurve(tuple(places), tuple(values))

    def _fresh(self) -> float:
        """Measure the extra seconds per byte of a result in newly allocated memory instead of existing memory."""
        new, existing = (self._time(operation) for operation in self.bench.fill(2 * MMAP_THRESHOLD))
        return max(0.0, new - existing) / (2 * MMAP_THRESHOLD)

    def _operators(self, launch: float) -> Iterator[tuple[str, float]]:
        self.report("operators")
        for name, operation, points in self.bench.ops():
            yield name, self._ran(operation, launch) / points

    def _interval(self, rates: Rates) -> tuple[float, float]:
        """Return the interval of a step's time: the first and last decile of measured over predicted times of products
        off the grid, widened for other costs."""
        ratios, larger = [], self.bench.larger
        launch, timed = (0.0, self.bench.busy) if self.bench.busy else (rates.launch, self._time)
        for orientation, shape in product(ORIENTATIONS, CHECKS):
            m, n, k = (larger * size for size in shape)
            taken_seconds = timed(self.bench.product(orientation, m, n, k))
            ratios.append(taken_seconds / (rates.products[orientation].seconds(m, n, k) + launch))
        for elements in (30_000 * larger, 400_000 * larger, 5_000_000 * larger):
            taken_seconds = timed(self.bench.move(elements))
            ratios.append(taken_seconds / (12 * elements / rates.bandwidth(12.0 * elements) + launch))
        ends = quantiles(ratios, n=10)
        return INTERVAL_FACTORS[0] * min(1.0, ends[0]), INTERVAL_FACTORS[1] * max(1.0, ends[-1])


def _mean(grids: Sequence[MatmulGrid]) -> MatmulGrid:
    """Return the rate of each shape from its mean time."""
    return MatmulGrid(grids[0].sizes, tuple(map(harmonic_mean, zip(*(grid.rates for grid in grids), strict=True))))


def calibrate(report: Report, quick: bool = False) -> Calibration:
    """Measure this machine: its GPU by PyTorch if there is one, else its CPU by PyTorch or NumPy.

    report  a function that receives the name of each measurement before it starts
    quick   whether to use a coarser grid of products, which takes some seconds
    """
    sizes = QUICK if quick else SIZES
    rates_of: dict[str, dict[str, Rates]] = {"operators": {}}
    if not find_spec("torch"):
        from learncost.calibration.operations import NumPyBench

        rates_of["operators"]["fp32"] = _Measuring(NumPyBench(), sizes, report).rates()
        return Calibration(f"{processor.name()}, {os.cpu_count()} cores", _today(), NumPyBench.library, rates_of, 1)
    from learncost.calibration.torch import TorchBench, library, on_gpu
    from learncost.engines.compiler import compiler

    threads = 1
    for dtype in ("fp32", "bf16") if on_gpu() else ("fp32",):
        bench = TorchBench(dtype)
        rates_of["operators"][dtype] = _Measuring(
            bench, sizes, lambda text: report(f"PyTorch's operators: {text}")
        ).rates()
        threads = bench.threads
    if compiler() and not on_gpu():
        from learncost.calibration.kernels import KernelBench

        kernel_bench = KernelBench()
        rates_of["kernels"] = {"fp32": _Measuring(kernel_bench, sizes, lambda text: report(f"kernels: {text}")).rates()}
    return Calibration(
        on_gpu() or f"{processor.name()}, {os.cpu_count()} cores", _today(), library(), rates_of, threads
    )


def _today() -> str:
    return datetime.date.today().isoformat()
