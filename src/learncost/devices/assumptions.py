"""Defaults of unknown quantities, each with its interval and the published runs that it is derived from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from statistics import mean, median

from learncost.devices.device import Device, devices
from learncost.devices.figure import Figure
from learncost.ir.dataclass import dataclass
from learncost.timing.energy import KernelPower

ENDS = (0.025, 0.975)
"""The percentiles of the rows that bound an interval."""

NEEDED = 0.9
"""The share of a left-out source's rows that an interval of the others should cover."""

FEWEST_ROWS, FEWEST_SOURCES = 10, 3
"""The fewest rows and sources of a trusted group."""


@dataclass(frozen=True)
class Observation:
    """A published number with its source and the groups that it belongs to, from the narrowest to "all"."""

    source: str
    value: float
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The statistics of a group of observations: `middle` is the median of the sources' medians, `interval_coverage`
    the leave-one-source-out coverage of the interval."""

    group: str
    middle: float
    low: float
    high: float
    rows: int
    sources: int
    interval_coverage: float

    @property
    def trusted(self) -> bool:
        """Return whether there are enough rows and sources and the interval covers the rows of left-out sources."""
        return self.rows >= FEWEST_ROWS and self.sources >= FEWEST_SOURCES and self.interval_coverage >= NEEDED

    @property
    def many(self) -> str:
        """Return a text with the numbers of rows and sources and the group."""
        few = f" - fewer than {FEWEST_ROWS}, so the estimate is uncertain" if self.rows < FEWEST_ROWS else ""
        sources = "one source" if self.sources == 1 else f"{self.sources} sources"
        return f"{self.rows:,} published number{'s' if self.rows > 1 else ''} of {sources} ({self.group}){few}"

    @property
    def tested(self) -> str:
        """Return a text that reports the leave-one-source-out coverage of the interval."""
        ends = "2.5th to 97.5th percentile"
        if self.sources == 1:
            return f"{ends}; with one source it cannot be tested on another"
        short = "" if self.trusted else ", which is less than nine in ten"
        return f"{ends}; leave-one-source-out coverage: {self.interval_coverage:.0%}{short}"


def percentile(values: Iterable[float], share: float) -> float:
    """Return a percentile by linear interpolation between sorted values, as most programs define it."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def ends(rows: Sequence[Observation]) -> tuple[float, float]:
    """Return the ends of the interval that covers most of the rows."""
    values = [row.value for row in rows]
    return percentile(values, ENDS[0]), percentile(values, ENDS[1])


def interval_coverage(rows: Sequence[Observation]) -> float:
    """Return the leave-one-source-out coverage: the share of a source's rows inside the interval of the other sources.

    It is the smaller of the share of all rows and the mean share per source, so that a large source does not dominate.
    """
    shares = []
    for source in sorted({row.source for row in rows}):
        others = [row for row in rows if row.source != source]
        of_source = [row.value for row in rows if row.source == source]
        low, high = ends(others) if others else (0.0, 0.0)
        shares.append((sum(low <= value <= high for value in of_source), len(of_source)))
    if not shares:
        return 0.0
    return min(sum(count for count, _ in shares) / len(rows), mean(count / all_ for count, all_ in shares))


@lru_cache(maxsize=256)
def _of(rows: tuple[Observation, ...], group: str) -> Evidence | None:
    of_group = [row for row in rows if group in row.groups]
    if not of_group:
        return None
    sources = sorted({row.source for row in of_group})
    middle = median(median(row.value for row in of_group if row.source == source) for source in sources)
    return Evidence(group, middle, *ends(of_group), len(of_group), len(sources), interval_coverage(of_group))


def typical(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """Return the narrowest group with more than a few runs of one source, else the widest."""
    evidence = [candidate for candidate in (_of(rows, group) for group in groups) if candidate is not None]
    sufficient = (candidate for candidate in evidence if candidate.rows >= FEWEST_ROWS or candidate.sources > 1)
    return next(sufficient, evidence[-1])


def trusted(rows: tuple[Observation, ...], groups: Sequence[str]) -> Evidence:
    """Return the narrowest trusted group; without one, the typical group."""
    evidence = (candidate for candidate in (_of(rows, group) for group in groups) if candidate is not None)
    return next((candidate for candidate in evidence if candidate.trusted), typical(rows, groups))


HERE = Path(__file__).parent

LARGE = 8
"""The most devices of one server; more are a cluster."""

ALL = "all that are known"


def _rows(name: str) -> Iterator[dict[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def groups(family: str, kind: str) -> tuple[str, ...]:
    """Return the groups of a training, narrowest first: by device family and kind, by either, all."""
    of_family = (f"{kind} on {family}", f"all on {family}") if family else ()
    return (*of_family, kind, ALL)


def kind_of(row: dict[str, str]) -> str:
    """Return the kind of a published training by its number of devices."""
    if row["work"] != "pretraining":
        return "fine-tuning"
    if row["of"] == "hours":
        return "whole runs"
    return "steps of clusters" if not row["devices"] or int(row["devices"]) > LARGE else "steps of one server"


@cache
def utilizations() -> tuple[Observation, ...]:
    """Return the published utilizations: achieved shares of the peak."""
    return tuple(
        Observation(row["source"], float(row["mfu"]), groups(devices()[row["device"]].family, kind_of(row)))
        for row in _rows("utilization.csv")
    )


def power_groups(device: Device) -> tuple[str, ...]:
    """Return the groups for a device's power, narrowest first: the device, its family, its kind, all."""
    kind = "TPUs" if device.family == "TPU" else "GPUs"
    return (device.name, *([device.family] if device.family else []), kind, ALL)


@cache
def powers() -> tuple[Observation, ...]:
    """Return the ratios of watts with the host to the device's thermal design power."""
    return tuple(
        Observation(row["source"], float(row["watts"]) / float(row["tdp_w"]), power_groups(devices()[row["device"]]))
        for row in _rows("drawn.csv")
    )


# The PUE of LLaMA's and OLMo's tables and of GPT-3 in Patterson et al. 2021, table 4. The ends are Gopher's data centre
# (OLMo's table) and the mean of all data centres that answered (Uptime Institute, Global Data Center Survey 2023).
PUE = Figure(
    1.10,
    "",
    "assumed",
    "as LLaMA, OLMo, GPT-3 publish; from Gopher's 1.08 to 1.58, the mean of all data centres (Uptime Institute 2023)",
    1.08,
    1.58,
)


def mfu(device: Device, fine_tuning: bool = False) -> Figure:
    """Return the MFU of a full run, without recomputation."""
    group_names = groups(device.family, "fine-tuning" if fine_tuning else "whole runs")
    usual, evidence = typical(utilizations(), group_names), trusted(utilizations(), group_names)
    source = f"the median of {usual.many}; interval: {evidence.many}, {evidence.tested}"
    return Figure(usual.middle, "", "assumed", source, *_around(usual.middle, evidence.low, evidence.high))


def power(device: Device) -> Figure | None:
    """Return a device's power in training, in watts, from the best known source; None if nothing is known. It includes
    the device's share of the host (processors, memory, network, fans), not the data centre's overhead (PUE).
    """
    if device.system_power_w:
        several, mean = device.system_power_w, sum(device.system_power_w) / len(device.system_power_w)
        ends = (min(several), max(several)) if len(several) > 1 else (None, None)
        return Figure(mean, "W", "published", f"drawn in training: {device.system_power_source}", *ends)
    if device.tdp_w is None:
        return None
    evidence = trusted(powers(), power_groups(device))
    low, high = _around(evidence.middle, evidence.low, evidence.high)
    return Figure(
        device.tdp_w * evidence.middle,
        "W",
        "modelled",
        f"{evidence.middle:.2f} x the design power of the device alone, the median of {evidence.many}; interval: "
        f"x {low:.2f} to x {high:.2f}, {evidence.tested}",
        device.tdp_w * low,
        device.tdp_w * high,
    )


MEMORY_BOUND, WAITING = 0.65, 0.15
"""The watts of a GPU while kernels run that are bound by the bandwidth, and while it waits, over its design power.

Decoding draws 300 W of 700 with one sequence and 600 W with 128 on an H100 SXM (ML.ENERGY Benchmark v3.0, as quoted by
the power model of vLLM's semantic router): the middle. An H200 without a task draws 80 W of 700; a GPU between two
kernels keeps its clocks: assumed.
"""


def kernel_power(device: Device) -> KernelPower | None:
    """Return the watts of a GPU by what it does; None if nothing is known.

    Large products draw the design power; what training drew beyond that is the host's.
    """
    drawn = power(device)
    if drawn is None or device.tdp_w is None:
        return None
    watts, host = device.tdp_w, max(drawn.value - device.tdp_w, 0.0)
    source = (
        f"{watts:.0f} W while products and attention run, {watts * MEMORY_BOUND:.0f} W in other kernels, "
        f"{watts * WAITING:.0f} W while the GPU waits, and {host:.0f} W of the host"
    )
    ends = (drawn.low or drawn.value) / drawn.value, (drawn.high or drawn.value) / drawn.value
    return KernelPower(watts, watts * MEMORY_BOUND, watts * WAITING, host, *ends, source)


def device_power(device: Device) -> Figure | None:
    """Return the watts of the device without host: its thermal design power, as LLaMA, OPT and BLOOM use it."""
    if device.tdp_w is None:
        return None
    return Figure(device.tdp_w, "W", "published", f"thermal design power, without the host: {device.cited}")


def _around(middle: float, low: float, high: float) -> tuple[float, float]:
    """Return an interval widened to contain its middle, which may come from another group."""
    return min(low, middle), max(high, middle)
