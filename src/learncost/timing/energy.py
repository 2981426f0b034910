"""The energy of a program on a GPU: the seconds of every kernel times the watts of its kind, and those without one."""

from __future__ import annotations

from learncost.ir.dataclass import dataclass
from learncost.timing.clocks import ProgramTime


@dataclass(frozen=True)
class KernelPower:
    """The watts of a GPU by what it does, and of its host.

    compute    while products, convolutions and attention run
    memory     while other kernels run, which are bound by the bandwidth
    idle       while it waits for the CPU
    host       of the device's share of processors, memory, network and fans, all the time
    low, high  the ends of the interval, relative to these
    """

    compute: float
    memory: float
    idle: float
    host: float
    low: float
    high: float
    source: str


def joules(took: ProgramTime, power: KernelPower) -> tuple[float, float, float]:
    """Return the joules of a step: lowest, expected, highest. The ends are those of time and of power together."""
    kernels = [kernel for each in took.issued for kernel in each.kernels]
    computed = sum(kernel.seconds for kernel in kernels if kernel.flops)
    busy = power.compute * computed + power.memory * (took.busy - computed)
    usual = busy + power.idle * took.waiting + power.host * took.seconds
    return usual * power.low * took.low / took.seconds, usual, usual * power.high * took.high / took.seconds
