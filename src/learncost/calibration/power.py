"""Measured energy: the counters of processors (RAPL) and of NVIDIA's devices (NVML), where the machine has them.

    with measured() as energy:
        ...
    energy.joules, energy.by_counter

RAPL is Linux's powercap: a package is a processor with its caches, dram its memory where that is counted apart. Since
Linux 5.10 only root may read it, unless the machine's owner says otherwise. NVML needs the package `nvidia-ml-py` and a
device since Volta. What neither counts - the rest of the host, its power supply - is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from learncost.devices.figure import Figure
from learncost.ir.errors import InputError

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class EnergyCounter:
    """A counter of energy: joules since some start; where it starts again from 0 beyond `wraps_at` joules."""

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None

    def between(self, before: float, after: float) -> float:
        """Joules from one reading to a later one; a counter that began again did so once, which is all one can see."""
        if after >= before:
            return after - before
        if self.wraps_at is None:
            raise InputError(f"the energy counter {self.name} went back from {before:g} to {after:g} J")
        return after + self.wraps_at - before


@dataclass
class Energy:
    """Joules by counter, filled when the measured block ends."""

    by_counter: dict[str, float] = field(default_factory=dict)

    @property
    def joules(self) -> float:
        """Of all counters together; none counts what another does."""
        return sum(self.by_counter.values())

    @property
    def figures(self) -> tuple[Figure, ...]:
        """A figure in joules for every counter, all of them measured."""
        return tuple(Figure(joules, "J", "measured", name) for name, joules in self.by_counter.items())

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it, with the keys of the energy that `cost --on` models."""
        return {"joules": self.joules, "label": "measured", "by_counter": dict(self.by_counter)}


def counters(powercap: Path = POWERCAP, nvml: Any = None) -> tuple[EnergyCounter, ...]:
    """The counters of this machine, none of which contains another. `nvml`: the module, by default pynvml if it is
    installed. Empty where there are none. Raises `InputError` for a counter that may not be read."""
    return (*_rapl(powercap), *_nvml(nvml))


@contextmanager
def measured(powercap: Path = POWERCAP, nvml: Any = None) -> Iterator[Energy]:
    """Measure the energy of a block of code: that of the whole machine, whatever else runs on it."""
    counters_found = counters(powercap, nvml)
    if not counters_found:
        raise InputError(f"no energy counter here: {powercap} has no RAPL, and NVML has no device (nvidia-ml-py)")
    energy = Energy()
    before = [counter.read() for counter in counters_found]
    yield energy
    for counter, start in zip(counters_found, before, strict=True):
        energy.by_counter[counter.name] = counter.between(start, counter.read())


def _rapl(powercap: Path) -> Iterator[EnergyCounter]:
    """Packages and their memory. psys is left out, which has the packages in it, as are a package's core and uncore."""
    for zone in sorted(powercap.glob("intel-rapl:*")):  # AMD's processors have the same names
        kind = _text(zone / "name")
        if not kind.startswith("package") and kind != "dram":
            continue
        package = f"{_text(zone.parent / zone.name.rpartition(':')[0] / 'name')} " if kind == "dram" else ""
        most = _joules(zone / "max_energy_range_uj")
        yield EnergyCounter(f"RAPL {package}{kind}", _reader(zone / "energy_uj"), most)


def _reader(file: Path) -> Callable[[], float]:
    return lambda: _joules(file)


def _joules(file: Path) -> float:
    """A file of microjoules."""
    text = _text(file)
    if not text.isdigit():
        raise InputError(f"{file} holds no microjoules: {text[:40]!r}")
    return int(text) / 1e6


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except PermissionError:
        raise InputError(f"{file} may be read by root only; `chmod a+r` on it, as root, lets others measure") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _nvml(nvml: Any) -> Iterator[EnergyCounter]:
    """NVIDIA's devices, in the order of their numbers."""
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:  # no driver, no device
        return
    for place, handle in enumerate(handles):
        name = f"NVML device {place}"
        yield EnergyCounter(name, _millijoules(nvml, handle, name))


def _millijoules(nvml: Any, handle: Any, name: str) -> Callable[[], float]:
    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
        except nvml.NVMLError as error:  # a device before Volta counts no energy
            raise InputError(f"{name} says nothing of its energy: {error}") from None

    return read
