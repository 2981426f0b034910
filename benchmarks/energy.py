"""Measure energy by the counters of processors (RAPL) and of NVIDIA's devices (NVML), where the machine has them.

    with measured() as energy:
        ...
    energy.joules, energy.by_counter

Linux exposes RAPL as powercap: a package is a processor with its caches, dram is its memory if that has a separate
counter. Since Linux 5.10 only root may read it by default. NVML needs the package
`nvidia-ml-py` and a device of the generation Volta or later. The rest of the host and its power supply are not
included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from learncost.devices.figure import Figure
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class EnergyCounter:
    """An energy counter, in joules since an arbitrary start; it wraps to 0 beyond `wraps_at` joules."""

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None

    def between(self, before: float, after: float) -> float:
        """Return the joules between two readings; a counter that wrapped is assumed to have wrapped once."""
        if after >= before:
            return after - before
        if self.wraps_at is None:
            raise InputError(f"the energy counter {self.name} went back from {before:g} to {after:g} J")
        return after + self.wraps_at - before


@dataclass
class Energy:
    """The joules of each counter, which are set when the measured block ends."""

    by_counter: dict[str, float] = field(default_factory=dict)

    @property
    def joules(self) -> float:
        """Return the joules of all counters, which do not overlap."""
        return sum(self.by_counter.values())

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Return a measured figure in joules for every counter."""
        return tuple(Figure(joules, "J", "measured", name) for name, joules in self.by_counter.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the energy as a JSON value, with the keys of the modelled energy of `cost --on`."""
        return {"joules": self.joules, "label": "measured", "by_counter": dict(self.by_counter)}


def counters(powercap: Path = POWERCAP, nvml: Any = None) -> tuple[EnergyCounter, ...]:
    """Return the non-overlapping counters of this machine; empty if it has none. `nvml` is the module to use, by
    default pynvml if it is installed. Raises `InputError` for a counter without read permission."""
    return (*_rapl(powercap), *_nvml(nvml))


@contextmanager
def measured(powercap: Path = POWERCAP, nvml: Any = None) -> Iterator[Energy]:
    """Measure the energy of the whole machine, other processes included, during a `with` block."""
    counters_found = counters(powercap, nvml)
    if not counters_found:
        raise InputError(f"no energy counter here: {powercap} has no RAPL, and NVML has no device (nvidia-ml-py)")
    energy = Energy()
    before = [counter.read() for counter in counters_found]
    yield energy
    for counter, start in zip(counters_found, before, strict=True):
        energy.by_counter[counter.name] = counter.between(start, counter.read())


def _rapl(powercap: Path) -> Iterator[EnergyCounter]:
    """Return the counters of processor packages and their memory, without psys, core and uncore, which overlap with
    them."""
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
    """Return a file with a counter in microjoules."""
    text = _text(file)
    if not text.isdigit():
        raise InputError(f"{file} must contain a number of microjoules, not {text[:40]!r}")
    return int(text) / 1e6


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except PermissionError:
        raise InputError(f"{file} is readable by root only: run `chmod a+r` on it as root") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _nvml(nvml: Any) -> Iterator[EnergyCounter]:
    """Return the counters of NVIDIA's devices, in order of their numbers."""
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
            raise InputError(f"the energy of {name} cannot be read: {error}") from None

    return read
