"""Predict the seconds of every kernel: the largest of compute time, memory time and launch at attained rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.polynomial import base, larger, smaller
from learncost.ops.collectives import is_collective
from learncost.timing.rates import MMAP_THRESHOLD, Rates
from learncost.timing.work import MatmulShape, Priced, Work, works


class Bound(StrEnum):
    """The bound of a kernel's time: compute, memory or launch."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LAUNCH = "launch"


@dataclass(frozen=True)
class Seconds:
    """The time of one kernel over all iterations; for many steps at once, its numbers are arrays.

    rows     the numbers of its lines among the priced lines
    main     the number of the line that represents the kernel
    phase    the phase of its first line
    moved    the bytes that it reads and writes
    visible  the share of its lines' operations that is not masked out
    queued   whether its launch is asynchronous and takes no time (`Rates.queues`)
    """

    rows: tuple[int, ...]
    main: int
    compute: Any
    memory: Any
    launch: Any
    fresh: Any = 0.0  # additional memory time of new pages, which nothing overlaps
    moved: Any = 0
    visible: Any = 1.0
    queued: bool = False
    phase: str = ""

    @property
    def total(self) -> Any:
        return larger(self.compute, self.memory) + self.fresh + (0.0 if self.queued else self.launch)

    @property
    def bound(self) -> Bound:
        parts = {Bound.COMPUTE: self.compute, Bound.MEMORY: self.memory + self.fresh}
        if not self.queued:
            parts[Bound.LAUNCH] = self.launch
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Time:
    """The time of a step: its parts in order, the overhead per step, and factors of the interval of the time."""

    parts: tuple[Seconds, ...]
    step: float
    low_factor: float
    high_factor: float
    least: float = 0.0  # seconds of its products at the highest rate that was ever measured

    @property
    def total(self) -> float:
        """The seconds of a step."""
        return float(sum(part.total for part in self.parts) + self.step)

    @property
    def low(self) -> float:
        return min(self.total, max(self.total * self.low_factor, self.least))

    @property
    def high(self) -> float:
        return self.total * self.high_factor

    @property
    def bounds(self) -> dict[Bound, float]:
        """The seconds of the parts, added up by their bounds."""
        return {name: sum(part.total for part in self.parts if part.bound is name) for name in Bound}


def time(
    rows: Sequence[Priced],
    sizes: Mapping[str, Any],
    rates: Rates,
    dtype: str = "fp32",
    updated: Mapping[str, int] | None = None,
) -> Time:
    """Return the time of a step on a device.

    rows     the priced lines of a step in order, by the price book `run`
    sizes    the sizes of all axes, as ints
    rates    the attained rates of the device in this data type
    updated  the bytes per element that the optimizer reads and writes, for arrays that differ from `dtype`
    Collectives take no time here, but leave their arrays in the cache. Raises `InputError` if a size is missing.
    """
    lines = [row.source for row in rows if isinstance(row.source, Line)]
    needed = {base(axis).partition("/")[0] for line in lines for axis in line.loops}
    needed |= {name.partition("/")[0] for row in rows for name in row.repeat.sizes}
    if missing := sorted(name for name in needed - sizes.keys() if not name.isdigit()):
        raise InputError(f"time needs every size: give {', '.join(missing)}")
    several = list(works(rows, sizes, dtype, rates.operators, rates.ops, updated))
    taken = tuple(part for part in parts(several, rates) if not is_collective(rows[part.main].source))
    flops = sum(work.iterations * work.share * product.flops for work in several for product in work.products)
    least = float(flops) / rates.most if rates.most else 0.0
    return Time(taken, rates.step + waits(taken), rates.low, rates.high, least)


def waits(parts_of_a_step: Sequence[Seconds]) -> Any:
    """Return the time that a device waits for asynchronous launches in a step, in addition to the kernels' time."""
    queued = [part for part in parts_of_a_step if part.queued]
    return larger(0.0, sum(part.launch for part in queued) - sum(part.total for part in queued))


def parts(works_of_a_step: Sequence[Work], rates: Rates) -> tuple[Seconds, ...]:
    """Return the times of a step's kernels, which run in this order."""
    ago, new = _ago(works_of_a_step), _new(works_of_a_step)
    return tuple(_seconds(*work, rates) for work in zip(works_of_a_step, ago, new, strict=True))


def _seconds(work: Work, ago: Mapping[str, Any], new: Any, rates: Rates) -> Seconds:
    compute = sum(_product(product, work, rates) for product in work.products)
    if not (rates.queues and work.products and _is_kernel(work)):  # otherwise the products' times include the operators
        compute += work.share * sum(points * rates.ops.get(name, 0.0) for name, points in work.points.items())
    compute = compute / rates.chosen if work.chosen else compute
    memory = sum(count / rates.bandwidth(ago[name]) for name, count in work.bytes.items())
    if work.phase == "optimizer_step":
        launch = rates.optimizer
    elif work.phase in ("backward", "weight_update"):
        launch = rates.launch_backward
    else:
        launch = rates.launch
    return Seconds(
        work.rows,
        work.main,
        work.iterations * compute,
        work.iterations * memory,
        work.iterations * launch,
        work.iterations * new * rates.fresh,
        work.iterations * sum(work.bytes.values()),
        work.share,
        rates.queues,
        work.phase,
    )


def _product(product: MatmulShape, work: Work, rates: Rates) -> Any:
    shape = product.m, product.n, product.k
    kernel = _is_kernel(work)
    if product.routed and rates.grouped:
        return 2 * product.experts * rates.products[product.orientation].seconds(*product.half_of_expert)
    if not kernel and not hasattr(product.batch, "shape") and product.batch == 1:
        return rates.products[product.orientation].seconds(*shape)
    fused_update = smaller(rates.threads, work.together if kernel else product.batch)
    inside = work.share * product.batch * rates.inner.seconds(*shape) / fused_update
    if kernel or not hasattr(product.batch, "shape"):
        return inside
    alone = product.batch == 1
    return alone * rates.products[product.orientation].seconds(*shape) + ~alone * inside


def _is_kernel(work: Work) -> bool:
    return hasattr(work.together, "shape") or bool(work.together)


def _ago(parts: Sequence[Work]) -> list[dict[str, Any]]:
    """Return the reuse distance of each kernel's arrays: the bytes that were accessed since the array's last access.

    It includes the kernel's own bytes. If the last access is not in the same iteration of the same loop, the reuse
    distance is the bytes of a full step.
    """
    step = 1.0 * sum(work.iterations * sum(work.bytes.values()) for work in parts)
    result = []
    last: dict[str, tuple[int, Any]] = {}
    now: Any = 0.0
    body, iterations = 0, None
    for work in parts:
        if not _is_equal(work.iterations, iterations):
            body, iterations = body + 1, work.iterations
        bytes_touched = 1.0 * sum(work.bytes.values())
        ages = {}
        for name in work.bytes:
            last_touch = last.get(name)
            near = last_touch is not None and last_touch[0] == body
            ages[name] = smaller(step, now - last_touch[1] + bytes_touched) if last_touch is not None and near else step
        result.append(ages)
        now += bytes_touched
        last |= dict.fromkeys(work.bytes, (body, now))
    return result


def _is_equal(iterations: Any, others: Any) -> bool:
    same = iterations == others
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def _new(parts: Sequence[Work]) -> list[Any]:
    """Return the bytes of each kernel's results in newly allocated pages; the optimizer writes in place."""
    gradients = sum(
        work.iterations * sum(work.result_bytes.values()) for work in parts if work.phase == "weight_update"
    )
    result = []
    for work in parts:
        several = (work.phase == "weight_update") & (gradients > MMAP_THRESHOLD)
        new = sum(size * (several | (size > MMAP_THRESHOLD)) for size in work.result_bytes.values())
        result.append(0 if work.phase == "optimizer_step" else new)
    return result
