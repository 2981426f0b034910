"""Pipelines: a schedule is a value, the order of passes on every device; time and memory come from simulating it.

A device has one stage, or several that are not adjacent (chunks): chunk c of device s is stage c p + s. A pass is the
forward F of a microbatch on a stage, its backward B, or its weight update W, which is a part of B where a schedule does
not separate them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from operator import ge
from typing import NamedTuple

from learncost.ir.dataclass import dataclass
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, named_one


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: F, B or W, of a chunk and a microbatch, both counted from 0."""

    kind: str
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


Order = tuple[Pass, ...]

Counts = tuple[int, ...]
"""Microbatches by the chunk that holds them."""


class InFlight(NamedTuple):
    """A pass of a chunk, or the time after a pass (""), and the microbatches saved until B and until W meanwhile."""

    kind: str
    chunk: int
    counts: tuple[Counts, Counts]


CHUNKS = 2
"""The default number of stages per device of an interleaved schedule."""

ESTIMATED_FROM = 4000
"""The number of passes of one kind from which a pipeline is estimated instead of simulated."""


@dataclass(frozen=True)
class Schedule(Displayed):
    """The order of the passes on every device.

    devices       of the pipeline
    microbatches  of a step
    chunks        stages of each device
    splits_backward  whether the weight update is a separate pass
    orders        of each device
    """

    name: str
    devices: int
    microbatches: int
    chunks: int
    splits_backward: bool
    orders: tuple[Order, ...]

    @property
    def stages(self) -> int:
        """The number of all stages."""
        return self.devices * self.chunks

    @cached_property
    def moments(self) -> tuple[tuple[InFlight, ...], ...]:
        """The moments of every device at which its microbatches may take the most memory."""
        known = {order: _moments(order, self.chunks, self.splits_backward) for order in {*self.orders}}
        return tuple(known[order] for order in self.orders)

    @cached_property
    def lighter(self) -> frozenset[int]:
        """The devices that never hold more microbatches than the device before."""
        pairs = enumerate(zip(self.moments, self.moments[1:], strict=False), 1)
        return frozenset(device for device, (before, mine) in pairs if all(_in_one(each, before) for each in mine))

    def in_flight(self, device: int) -> float:
        """Return the largest number of microbatches with activations on a device, in units of all its stages."""
        return peak(self, device, [1.0] * self.stages) / self.chunks


def peak(schedule: Schedule, device: int, saved: Sequence[float], *passes: Sequence[float] | None) -> float:
    """Return the peak bytes of microbatches on a device, of the bytes that `worst` takes."""
    return worst(schedule, device, saved, *passes)[0]


def worst(
    schedule: Schedule,
    device: int,
    saved: Sequence[float],
    forward: Sequence[float] | None = None,
    backward: Sequence[float] | None = None,
    waiting: Sequence[float] | None = None,
    update: Sequence[float] | None = None,
) -> tuple[float, str, int]:
    """Return the peak bytes of microbatches on a device, and the pass and the chunk that run then.

    saved     bytes that a stage saves of one microbatch, by its number, from F to the end of B
    waiting   bytes that it saves from B to the end of W, where a schedule separates them; by default those of `kept`
    forward, backward, update  peak bytes of one F, B or W; by default the saved bytes
    """
    held = saved, (waiting or saved) if schedule.splits_backward else [0.0] * schedule.stages
    during = {"F": forward or saved, "B": backward or saved, "W": update or waiting or saved}
    most = 0.0, "", 0
    for kind, chunk, counts in schedule.moments[device]:
        size = during[kind][chunk * schedule.devices + device] if kind else 0.0
        for several, by_chunk in zip(held, counts, strict=True):
            for number, count in enumerate(by_chunk):
                size += count * several[number * schedule.devices + device]
        if size > most[0]:
            most = size, kind, chunk
    return most


def _moments(order: Order, chunks: int, splits_backward: bool) -> tuple[InFlight, ...]:
    """Return the moments of a device's order, without those that hold no more microbatches than another."""
    saved, waiting = [0] * chunks, [0] * chunks
    largest: dict[tuple[str, int], set[tuple[Counts, Counts]]] = {}
    for task in order:
        if task.kind == "B":
            saved[task.chunk] -= 1
        if task.kind == "W":
            waiting[task.chunk] -= 1
        largest.setdefault((task.kind, task.chunk), set()).add((tuple(saved), tuple(waiting)))
        if task.kind == "F":
            saved[task.chunk] += 1
        if task.kind == "B" and splits_backward:
            waiting[task.chunk] += 1
        largest.setdefault(("", 0), set()).add((tuple(saved), tuple(waiting)))
    return tuple(
        InFlight(kind, chunk, counts)
        for (kind, chunk), several in largest.items()
        for counts in several
        if not any(other != counts and _covers(other, counts) for other in several)
    )


def _in_one(moment: InFlight, several: Sequence[InFlight]) -> bool:
    return any(each[:2] == moment[:2] and _covers(each.counts, moment.counts) for each in several)


def _covers(first: tuple[Counts, Counts], second: tuple[Counts, Counts]) -> bool:
    """Return whether the first counts are nowhere smaller."""
    return all(map(ge, chain(*first), chain(*second)))


@dataclass(frozen=True)
class PipelineRun(Displayed):
    """A simulated schedule: the start and end of every pass of every device, and the total time."""

    schedule: Schedule
    times: tuple[tuple[tuple[Pass, float, float], ...], ...]
    seconds: float

    def busy(self, device: int) -> float:
        """Return the seconds in which a device computes."""
        return sum(end - begin for _, begin, end in self.times[device])

    @property
    def bubble(self) -> float:
        """The pipeline's overhead relative to the time of its busiest device."""
        busiest = max(self.busy(device) for device in range(self.schedule.devices))
        return max(self.seconds / busiest - 1, 0.0)  # sequential passes fill all of it, except for rounding


def run(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    update: Sequence[float] | None = None,
    send: Sequence[float] | float = 0.0,
) -> PipelineRun:
    """Simulate the orders: every pass begins when its device is free and its inputs have arrived.

    forward, backward, update  seconds of a microbatch on each stage; B of a schedule without W includes both
    send                       seconds from a stage to the next one, in each direction, overlapping with compute
    """
    stages, devices = schedule.stages, schedule.devices
    sends = send if isinstance(send, Sequence) else [send] * stages
    updates = [0.0] * stages if update is None else update
    ends: dict[tuple[str, int, int], float] = {}
    places, free = [0] * devices, [0.0] * devices
    times: list[list[tuple[Pass, float, float]]] = [[] for _ in range(devices)]
    waiting = list(range(devices))
    while waiting:
        moved = False
        for device in list(waiting):
            order = schedule.orders[device]
            while places[device] < len(order):
                task = order[places[device]]
                stage = task.chunk * devices + device
                ready = _ready(task, stage, stages, ends, sends)
                if ready is None:
                    break
                begin = max(ready, free[device])
                seconds = {
                    "F": forward[stage],
                    "B": backward[stage] + (0.0 if schedule.splits_backward else updates[stage]),
                    "W": updates[stage],
                }[task.kind]
                free[device] = ends[task.kind, stage, task.microbatch] = begin + seconds
                times[device].append((task, begin, begin + seconds))
                places[device] += 1
                moved = True
            if places[device] == len(order):
                waiting.remove(device)
        if waiting and not moved:
            stuck = ", ".join(f"device {device} before {schedule.orders[device][places[device]]}" for device in waiting)
            raise InputError(f"the schedule {schedule.name} is deadlocked: {stuck}")
    return PipelineRun(schedule, tuple(map(tuple, times)), max(free))


def _ready(
    task: Pass, stage: int, stages: int, ends: Mapping[tuple[str, int, int], float], sends: Sequence[float]
) -> float | None:
    """Return when all inputs of a pass have arrived; None where one has not been computed."""
    needed: list[tuple[tuple[str, int, int], float]] = []
    if task.kind == "F" and stage:
        needed.append((("F", stage - 1, task.microbatch), sends[stage - 1]))
    if task.kind == "B":
        needed.append((("F", stage, task.microbatch), 0.0))
        if stage < stages - 1:
            needed.append((("B", stage + 1, task.microbatch), sends[stage]))
    if task.kind == "W":
        needed.append((("B", stage, task.microbatch), 0.0))
    at = 0.0
    for key, delay in needed:
        if key not in ends:
            return None
        at = max(at, ends[key] + delay)
    return at


@dataclass(frozen=True)
class ScheduleKind(Displayed):
    """A kind of schedule: the function that creates its orders, and its source."""

    name: str
    title: str
    source: str
    make: Callable[[int, int, int], tuple[Order, ...]]
    splits_backward: bool = False
    several: bool = False  # whether a device may have several stages

    def formula(self) -> str:
        """Return the printed formula of its bubble relative to the ideal time, with equal stages."""
        return {"interleaved": "(p - 1)/(v m)", "zb-h1": "(p - 1)/(3 m), F = B = W"}.get(self.name, "(p - 1)/m")


def _gpipe(devices: int, microbatches: int, _: int) -> tuple[Order, ...]:
    forward = tuple(Pass("F", 0, number) for number in range(microbatches))
    backward = tuple(Pass("B", 0, number) for number in range(microbatches))
    return ((*forward, *backward),) * devices


def _one_forward_one_backward(devices: int, microbatches: int, _: int) -> tuple[Order, ...]:
    """Narayanan et al. 2021, figure 4: device s begins with p - s - 1 forward passes."""
    orders = []
    for device in range(devices):
        ahead = min(devices - device - 1, microbatches)
        forward = [Pass("F", 0, number) for number in range(microbatches)]
        backward = [Pass("B", 0, number) for number in range(microbatches)]
        orders.append(_alternating(forward, backward, ahead))
    return tuple(orders)


def _interleaved(devices: int, microbatches: int, chunks: int) -> tuple[Order, ...]:
    """Narayanan et al. 2021, figure 4, as Megatron-LM's forward_backward_pipelining_with_interleaving."""
    total, group = microbatches * chunks, devices * chunks
    orders = []
    for device in range(devices):

        def task(kind: str, number: int) -> Pass:
            chunk = number % group // devices
            return Pass(
                kind, chunk if kind == "F" else chunks - 1 - chunk, number // group * devices + number % devices
            )

        ahead = total if microbatches == devices else min(2 * (devices - device - 1) + (chunks - 1) * devices, total)
        forward = [task("F", number) for number in range(total)]
        backward = [task("B", number) for number in range(total)]
        orders.append(_alternating(forward, backward, ahead))
    return tuple(orders)


def _alternating(forward: Sequence[Pass], backward: Sequence[Pass], ahead: int) -> Order:
    """Return some forward passes, then one forward and one backward alternating, then the remaining backward passes."""
    order = list(forward[:ahead])
    for number, task in enumerate(forward[ahead:]):
        order += [task, backward[number]]
    return (*order, *backward[len(forward) - ahead :])


def _zero_bubble(devices: int, microbatches: int, _: int) -> tuple[Order, ...]:
    """Qi et al. 2023, ZB-H1: 1F1B whose device s delays the weight updates of s microbatches."""
    orders = []
    for device in range(devices):
        ahead = min(devices - device - 1, microbatches)
        order = [Pass("F", 0, number) for number in range(ahead)]
        updated = 0
        for number in range(microbatches):
            if ahead + number < microbatches:
                order.append(Pass("F", 0, ahead + number))
            order.append(Pass("B", 0, number))
            if number >= device:
                order.append(Pass("W", 0, updated))
                updated += 1
        order += [Pass("W", 0, number) for number in range(updated, microbatches)]
        orders.append(tuple(order))
    return tuple(orders)


KINDS: Mapping[str, ScheduleKind] = {
    kind.name: kind
    for kind in (
        ScheduleKind(
            "gpipe",
            "all microbatches forward, then all backward",
            "Huang et al. 2019, GPipe: efficient training of giant neural networks using pipeline parallelism",
            _gpipe,
        ),
        ScheduleKind(
            "1f1b",
            "one forward and one backward alternately, so that device s holds p - s microbatches",
            "Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters, section 2.2.1",
            _one_forward_one_backward,
        ),
        ScheduleKind(
            "interleaved",
            "1F1B with several stages a device: a smaller bubble, more sends",
            "Narayanan et al. 2021, section 2.2.2; Megatron-LM, schedules.py",
            _interleaved,
            several=True,
        ),
        ScheduleKind(
            "zb-h1",
            "the weight updates separate from the backward passes, where a device would wait",
            "Qi et al. 2023, Zero bubble pipeline parallelism (arXiv 2401.10241), section 2.2",
            _zero_bubble,
            splits_backward=True,
        ),
    )
}


@lru_cache(maxsize=256)
def schedule(name: str, devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of a kind. Raises `InputError` for numbers that it does not support.

    name  gpipe, 1f1b, interleaved or zb-h1
    """
    kind = named_one("schedule", name, KINDS)
    for what, number in (("devices", devices), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise InputError(f"{what} of a pipeline must be at least 1, not {number}")
    if chunks > 1 and not kind.several:
        raise InputError(f"{name} has one stage per device, not {chunks}: use interleaved")
    if kind.several and chunks > 1 and microbatches % devices:
        larger = -(-microbatches // devices) * devices
        raise InputError(
            f"{microbatches} microbatches are not a multiple of the {devices} devices of an interleaved pipeline: "
            f"use {larger}"
        )
    return Schedule(name, devices, microbatches, chunks, kind.splits_backward, kind.make(devices, microbatches, chunks))


def schedule_of_batch(name: str, devices: int, batch: int, shards: int, microbatches: int | None) -> Schedule:
    """Return the schedule of a batch of which each of `shards` has microbatches, by default one per sequence.

    Raises `InputError` for microbatches of unequal size and for an unknown schedule.
    """
    number = microbatches or max(batch // shards, 1)
    if batch % (number * shards):
        raise InputError(
            f"--batch-size {batch} is not divisible into {number} microbatches for each of {shards} devices: the next "
            f"divisible size is {-(-batch // (number * shards)) * number * shards}"
        )
    return schedule(name, devices, number, CHUNKS if name in KINDS and KINDS[name].several else 1)


def forward_once(devices: int, chunks: int = 1) -> Schedule:
    """Return the schedule of one microbatch through all stages forward; B costs nothing."""
    order = (*(Pass("F", chunk, 0) for chunk in range(chunks)), *(Pass("B", chunk, 0) for chunk in range(chunks)))
    return Schedule("forward", devices, 1, chunks, False, (order,) * devices)


class StageTimes(NamedTuple):
    """The seconds of each stage of a pipeline for one microbatch by pass, and of a send from a stage to the next."""

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    send: Sequence[float] | float = 0.0


def seconds(name: str, devices: int, microbatches: int, chunks: int, times: StageTimes) -> float:
    """Return the seconds of a step of a pipeline with many microbatches, by `run`, which is periodic once it is full.

    A run with as many microbatches as fill it is extrapolated by the difference to one with a few more, not below
    `least_seconds`: stages of very different times are periodic later. Where that would be `ESTIMATED_FROM` passes,
    it is the busiest device's time plus the bubble of the printed formula for the mean stage.
    """
    few = 4 * devices * chunks
    if min(microbatches, few) * devices * chunks > ESTIMATED_FROM:
        return _printed(name, devices, microbatches, chunks, times)
    if microbatches <= few + 2 * devices:
        return run(schedule(name, devices, microbatches, chunks), *times).seconds
    few += microbatches % devices
    first, second = (run(schedule(name, devices, number, chunks), *times).seconds for number in (few, few + devices))
    extrapolated = first + (second - first) * (microbatches - few) / devices
    return max(extrapolated, least_seconds(name, devices, microbatches, chunks, times))


def least_seconds(name: str, devices: int, microbatches: int, chunks: int, times: StageTimes) -> float:
    """Return a lower bound of `seconds`: the passes of one device, those before its first and those after its last.

    The first pass of a device waits for the forward passes of the stages before it, and the backward passes of these
    follow its last one; update passes of a schedule that separates them may run meanwhile.
    """
    if min(microbatches, 4 * devices * chunks) * devices * chunks > ESTIMATED_FROM:
        return seconds(name, devices, microbatches, chunks, times)
    forward, backward, update, send = times
    shortest = min(send, default=0.0) if isinstance(send, Sequence) else send
    splits_backward, before, after, most = KINDS[name].splits_backward, 0.0, 0.0, 0.0
    for device in range(devices):
        mine = range(device, devices * chunks, devices)
        late = sum(update[stage] for stage in mine)
        busy = microbatches * (sum(forward[stage] + backward[stage] for stage in mine) + late)
        last = min(device + 1, microbatches) * late if splits_backward else 0.0  # updates after its last backward pass
        end = max(after, last) - last
        most = max(most, before + busy + end)
        before += forward[device] + shortest
        after += shortest + backward[device] + (0.0 if splits_backward else update[device])
    return most


def _printed(name: str, devices: int, microbatches: int, chunks: int, times: StageTimes) -> float:
    """Return the busiest device's time, the printed bubble of the mean stage, and the sends of filling, summed."""
    forward, backward, update, send = times
    totals = [f + b + w for f, b, w in zip(forward, backward, update, strict=True)]
    busiest = max(sum(totals[device::devices]) for device in range(devices))
    mean = sum(totals) / devices
    bubble = (devices - 1) * mean / chunks
    if KINDS[name].splits_backward:
        bubble = (devices - 1) * max(0.0, sum(forward) + sum(backward) - sum(update)) / devices
    sends = sum(send) if isinstance(send, Sequence) else send * (devices * chunks - 1)
    return microbatches * busiest + bubble + 2 * sends
