"""Time and energy on a microcontroller, from the cycles a MACC that are published of its core, with their interval."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt

from learncost.devices.device import FILES, Device
from learncost.ir.errors import InputError
from learncost.timing import MatmulGrid, RateCurve, Rates
from learncost.timing.rates import ORIENTATIONS

WORDS = 0.5
"""Words of four bytes that a core loads or stores in a cycle: a load takes two on a Cortex-M4 (Arm, Cortex-M4 Technical
Reference Manual, table of instructions)."""

SPREAD = 8.3 / 4.5
"""How far the two published figures of the Cortex-M4 lie apart: so far may the cycles of a core lie above the one
figure that is published of it."""

INTERVAL = (0.4, 1.5)
"""Factors of the time beside those of the cycles, assumed: published times are those of MACCs alone, which at one
sample are less than half of a step; memory that waits makes a step longer."""


@dataclass(frozen=True)
class Cycles:
    """Cycles of a MACC on a core, as somebody says it: of what, how it follows, and who says so."""

    value: float
    of: str
    how: str
    source: str


@dataclass(frozen=True)
class ProcessorCore:
    """A core, and what is published of it.

    like  the core whose figures stand for it, where none of its own were found
    """

    name: str
    fpu: bool
    cycles_per_macc: tuple[Cycles, ...] = ()
    like: str = ""
    note: str = ""

    @property
    def published(self) -> tuple[Cycles, ...]:
        """Its own figures, or those that stand for it."""
        return self.cycles_per_macc or (cores()[self.like].published if self.like else ())

    @property
    def cycles(self) -> tuple[float, float, float]:
        """Of a MACC in fp32: lowest, as modelled, highest. Raises `InputError` where nothing is published."""
        if not self.published:
            why = "" if self.fpu else "; it has no floating point, which takes it 75 to 101 instructions a MACC"
            raise InputError(f"no cycles a MACC are published of {self.name}{why}: its time is not known")
        values = [figure.value for figure in self.published]
        low, high = min(values), max(values) * (SPREAD if len(values) == 1 else 1)
        return low, sqrt(low * high), high


@cache
def cores() -> Mapping[str, ProcessorCore]:
    """All cores by name."""
    rows = [row for file in FILES for row in tomllib.loads(file.read_text(encoding="utf-8")).get("core", ())]
    return {
        row["name"]: ProcessorCore(
            **{**row, "cycles_per_macc": tuple(Cycles(**cycles) for cycles in row.get("cycles_per_macc", ()))}
        )
        for row in rows
    }


def core_of(device: Device) -> ProcessorCore:
    """The core of a microcontroller. Raises `InputError` for one that is not in the file."""
    if device.core not in cores():
        raise InputError(f"{device.name}: no core is called {device.core!r}; there are {', '.join(cores())}")
    return cores()[device.core]


def rates_of(device: Device) -> Rates:
    """What a microcontroller attains in fp32: products by the cycles of its core, all else by the words it moves."""
    core = core_of(device)
    low, middle, high = core.cycles
    if device.clock_mhz is None:
        raise InputError(f"{device.name} has no clock, so its time is not known")
    clock = device.clock_mhz * 1e6
    grid = MatmulGrid((1,), (2 * clock / middle,))
    watts = None
    if device.ua_per_mhz is not None and device.volts is not None:
        watts = device.ua_per_mhz * 1e-6 * device.clock_mhz * device.volts
    who = "; ".join(f"{figure.value:g} for {figure.of} ({figure.how}: {figure.source})" for figure in core.published)
    of_whom = f" of the {core.like}, which stands for it" if not core.cycles_per_macc else ""
    supply = f"; {device.ua_per_mhz:g} uA/MHz at {device.volts:g} V" if watts else ""
    return Rates(
        dict.fromkeys(ORIENTATIONS, grid),
        grid,
        RateCurve((1.0,), (4 * WORDS * clock,)),
        operators=False,
        low=INTERVAL[0] * low / middle,
        high=INTERVAL[1] * high / middle,
        name=device.name,
        dtype="fp32",
        source=f"modelled: {middle:.2g} cycles a MACC at {device.clock_mhz:g} MHz, between those published{of_whom}: "
        f"{who}; a word in {1 / WORDS:g} cycles{supply} ({device.cited})",
        watts=None if watts is None else (watts, watts, watts),
    )
