"""The time of a program on a GPU by two clocks: the CPU issues operators in order, and the GPU runs their kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import hypot
from typing import NamedTuple

from learncost.ir.dataclass import dataclass, replace
from learncost.program.program import BACKWARD, EVENT, FORWARD, OPTIMIZER, Program, ProgramOp
from learncost.timing.kernels import COLLECTIVE, Kernel, KernelModel, SecondsOfCollective, is_view
from learncost.timing.rates import GPU, HostCPU

OTHERS, ISSUE = "other kernels", "CPU"
"""The names of uncertainties: of all kernels that share the bandwidth, and of the CPU."""


@dataclass(frozen=True)
class IssuedOp:
    """An operator with the seconds that the CPU takes to issue it, and its kernels."""

    op: ProgramOp
    issue: float
    kernels: tuple[Kernel, ...]


class ExecutedOp(NamedTuple):
    """An operator with the seconds at which the CPU begins and ends to issue it, and at which its kernels begin."""

    issued: IssuedOp
    start: float
    end: float
    starts: tuple[float, ...]


@dataclass(frozen=True)
class ProgramTime:
    """The time of a program on a GPU.

    seconds    of the step, and its ends by the uncertainty of the constants
    busy       of the GPU
    issue      of the CPU, without its waits
    waiting    of the GPU for the CPU
    exposed    of collectives that nothing overlaps: those by which the step is longer
    issued     the operators of the program, in order
    """

    seconds: float
    low: float
    high: float
    busy: float
    issue: float
    issued: tuple[IssuedOp, ...]
    gpu: GPU
    program: Program
    exposed: float = 0.0

    @property
    def waiting(self) -> float:
        """The seconds in which the GPU waits for the CPU."""
        return max(self.seconds - self.busy - self.exposed, 0.0)

    @property
    def launches(self) -> int:
        """The number of kernels."""
        return sum(len(each.kernels) for each in self.issued)

    @property
    def flops(self) -> float:
        """The FLOPs of products, convolutions and attention."""
        return sum(kernel.flops for each in self.issued for kernel in each.kernels)

    @property
    def by_kind(self) -> dict[str, tuple[float, int]]:
        """The seconds of the kernels and their number by kind, the longest first."""
        return self.by(lambda _, kernel: kernel.kind)

    def by(self, key: Callable[[ProgramOp, Kernel], str]) -> dict[str, tuple[float, int]]:
        """Return the seconds of the kernels and their number by a key of their op and theirs, the longest first."""
        several = defaultdict[str, list[float]](list)
        for each in self.issued:
            for kernel in each.kernels:
                several[key(each.op, kernel)].append(kernel.seconds)
        times = {name: (sum(seconds), len(seconds)) for name, seconds in several.items()}
        return dict(sorted(times.items(), key=lambda item: -item[1][0]))


def program_time(program: Program, gpu: GPU, collective: SecondsOfCollective | None = None) -> ProgramTime:
    """Return the time of a program on a GPU, which may have collectives with others.

    Raises `InputError` for products in a type without a rate.
    """
    model = KernelModel(gpu, program, collective)
    costs = _issue_costs(program.ops, gpu.host)
    once = {id(op): op for op in program.ops}  # an op may stand for several microbatches
    known = {place: tuple(model.kernels(op)) for place, op in once.items()}
    issued = tuple(IssuedOp(op, cost, known[id(op)]) for op, cost in zip(program.ops, costs, strict=True))
    kinds = defaultdict[str, float](float)
    for each in issued:
        for kernel in each.kernels:
            kinds[kernel.kind if kernel.kind in (*gpu.assumed, COLLECTIVE) else OTHERS] += kernel.seconds
    busy, issue = sum(kinds.values()) - kinds.get(COLLECTIVE, 0.0), sum(costs)
    apart = 1 + hypot(*(gpu.assumed.get(kind, 0.0) * seconds for kind, seconds in kinds.items())) / (busy or 1.0)
    of_cpu, host, middle = 1 + gpu.assumed.get(ISSUE, 0.0), gpu.host, _step(issued, gpu.host)
    # rates are as likely too high by a factor as too low by it, so that one end multiplies by what the other divides by
    low = middle - hypot(middle - _step(issued, host, 1 / apart), middle - _step(issued, host, 1.0, 1 / of_cpu))
    high = middle + hypot(_step(issued, host, apart) - middle, _step(issued, host, 1.0, of_cpu) - middle)
    alone = [replace(each, kernels=tuple(kernel for kernel in each.kernels if kernel.kind != COLLECTIVE))
             for each in issued]  # fmt: skip
    exposed = middle - _step(alone, gpu.host) if COLLECTIVE in kinds else 0.0
    return ProgramTime(middle, low, high, busy, issue, issued, gpu, program, exposed)


def played(issued: Sequence[IssuedOp], host: HostCPU, kernels: float = 1.0, issue: float = 1.0) -> Iterator[ExecutedOp]:
    """Yield the operators as all clocks run them, with the times of kernels and of the CPU times factors.

    Every stream of the GPU has a clock, and waits for the events of others.
    """
    cpu, streams, events = 0.0, defaultdict[int, float](float), dict[int, float]()
    for each in issued:
        start, cpu = cpu, cpu + each.issue * issue
        starts, stream = list[float](), each.op.stream
        if (event := each.op.arguments.get(EVENT)) is not None:
            streams[stream] = max(streams[stream], events.get(event, 0.0))
            events[event] = streams[stream]
        gpu = streams[stream]
        for kernel in each.kernels:
            starts.append(max(gpu, cpu + host.latency * issue))
            gpu = starts[-1] + kernel.seconds * kernels
        streams[stream] = gpu
        if each.op.synchronizes:
            cpu = max(cpu, gpu) + host.wait
        yield ExecutedOp(each, start, cpu, tuple(starts))


def _step(issued: Sequence[IssuedOp], host: HostCPU, kernels: float = 1.0, issue: float = 1.0) -> float:
    """Return the seconds until both clocks have ended."""
    cpu = gpu = 0.0
    for each in played(issued, host, kernels, issue):
        cpu = each.end
        if each.starts:
            gpu = max(gpu, each.starts[-1] + each.issued.kernels[-1].seconds * kernels)
    return max(cpu, gpu)


def _issue_costs(ops: Sequence[ProgramOp], host: HostCPU) -> list[float]:
    """Return the seconds that the CPU takes for every operator, with the calls of modules and the optimizer's loop."""
    updates = [op for op in ops if op.phase == OPTIMIZER]
    weights = sum(op.arguments.get("tensors", 0) for op in updates)
    weights = weights or len({each.buffer for op in updates for each in op.inputs if each.shape}) / 4
    costs = []
    before, path, compiled = "", "", False
    for op in ops:
        view = is_view(op)
        if op.compiled:
            cost = (0.0 if view else host.launch) + (0.0 if compiled and op.phase == before else host.graph)
        elif op.phase == BACKWARD:
            cost = host.its_view if view else host.backward
        else:
            cost = host.view if view else host.operator
            cost += host.module * entered(path, op.path)
            path = op.path
        if op.phase != before and op.phase == OPTIMIZER:
            cost += host.optimizer + host.weight * weights
        if op.phase != before and op.phase == FORWARD:  # gradients are set to None
            cost += host.weight * weights / 2
        before, compiled = op.phase, op.compiled
        costs.append(cost)
    return costs


def entered(before: str, path: str) -> int:
    """Return the number of modules that are called between two operators: those of the path that are
    not above both. A list of modules is not called."""
    if before == path or not path:
        return 0
    above, inside = before.split("."), path.split(".")
    common = next((at for at, (one, two) in enumerate(zip(above, inside, strict=False)) if one != two), len(above))
    lists = [after.isdigit() for after in (*inside[1:], "")]
    return sum(not is_list for is_list in lists[common:])
