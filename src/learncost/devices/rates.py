"""What a device attains: by a calibration of this machine or another, or by what is published of a device."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path

from learncost.devices import assumptions
from learncost.devices.assumptions import groups, utilizations
from learncost.devices.calibration import is_calibration, load, own_file
from learncost.devices.device import FILES, Device, devices
from learncost.devices.device import device as find_device
from learncost.ir.errors import InputError, shown
from learncost.ir.precision import check_stored
from learncost.models.files import looks_like_path, read_path
from learncost.timing import MatmulGrid, RateCurve, Rates
from learncost.timing.rates import ORIENTATIONS

WORDS = 0.5
"""Words of four bytes that a core loads or stores in a cycle: a load takes two on a Cortex-M4 (Arm, Cortex-M4 Technical
Reference Manual, table of instructions)."""

SPREAD = 8.3 / 4.5
"""How far the two published figures of the Cortex-M4 lie apart: so far may the cycles of a core lie above the one
figure that is published of it."""

CYCLES_INTERVAL = (0.4, 1.5)
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
        low=CYCLES_INTERVAL[0] * low / middle,
        high=CYCLES_INTERVAL[1] * high / middle,
        name=device.name,
        dtype="fp32",
        source=f"modelled: {middle:.2g} cycles a MACC at {device.clock_mhz:g} MHz, between those published{of_whom}: "
        f"{who}; a word in {1 / WORDS:g} cycles{supply} ({device.cited})",
        watts=None if watts is None else (watts, watts, watts),
    )


HERE = "here"

TILE = 128
"""Rows or columns of a product for which a published device attains half of its best rate. Its libraries cut products
into tiles of 128 or 256 (NVIDIA, Matrix Multiplication Background, section 4), which small ones fill badly. Inside of a
kernel the tiles are its own, and only the narrowest side, such as the width of a head, tells: of its best rate an H100
attained 0.33 and 0.75 in attention of heads of 64 and 128 in bf16, forward and backward (`benchmarks/on_cuda.py`)."""

BANDWIDTH = 0.85
"""What a copy attains of the published bandwidth, assumed: from 0.75 to 0.95 is usual of the STREAM benchmark."""

LAUNCH = 5e-6
"""Seconds to call a kernel on a GPU, assumed: a few microseconds for the launch alone, more from Python."""

INTERVAL = (0.7, 2.0)
"""Factors of the time on a published device, assumed: nothing of it was measured here."""

_SIZES = tuple(2**power for power in range(15))


def rates(on: str | Device | Rates, dtype: str | None = None, engine: str = "operators") -> Rates:
    """What a device attains in a data type: products, bytes a second, seconds a call.

    Parameters
    ----------
    on
        "here" for this machine after `learncost calibrate`, a file that this command wrote, a published device
        (`learncost list devices`), or a file that describes one.
    dtype
        The data type of the products. By default that of training on a published device (bf16, fp16 or fp32, the first
        that it has a peak of), and fp32 on one that was measured.
    engine
        operators: the step runs operator by operator, as PyTorch does it with autograd. kernels: it runs as the
        package's own engine does. A calibration without kernels uses its operators for both.

    Returns
    -------
    Rates
        What `lc.cost(..., on=rates)` takes; `name`, `source` and the interval (`low`, `high`: factors of the time) say
        what it rests on.

    Raises
    ------
    InputError
        Where there is no such device, or where it is not known in this type.

    Examples
    --------
    >>> found = lc.rates("A100-SXM-80GB", "bf16")
    >>> found.name, found.low, found.high
    ('NVIDIA A100 SXM 80GB', 0.7, 2.0)
    >>> step = lc.cost("gpt2", on=found)
    >>> step.timing.seconds > 0
    True
    """
    if isinstance(on, Rates):
        if dtype and on.dtype and dtype != on.dtype:
            raise InputError(f"these rates of {on.name} are those of {on.dtype}, not of {shown(dtype)}")
        return on
    check_stored(dtype or "")
    return calibrated(on, dtype, engine) or published(find_device(on), dtype, engine)


def calibrated(on: object, dtype: str | None = None, engine: str = "operators") -> Rates | None:
    """What was measured: "here", a calibration's file, or rates; None where `on` is none of these."""
    if isinstance(on, Rates):
        return on
    if on == HERE:
        path = own_file()
        if not path.exists():
            raise InputError("this machine is not calibrated: run `learncost calibrate`, which takes about a minute")
        return _measured(path, dtype, engine)
    if isinstance(on, str) and looks_like_path(on) and on.lower().endswith(".json") and not Path(on).is_dir():
        row = read_path(on, "; `learncost calibrate --out FILE` makes one")
        if is_calibration(row):
            return _measured(Path(on), dtype, engine)
    return None


def _measured(path: Path, dtype: str | None, engine: str) -> Rates:
    calibrated = load(path)
    types = calibrated.rates.get(engine) or calibrated.rates["operators"]
    if dtype is None:
        return types.get("fp32") or next(iter(types.values()))
    if dtype not in types:
        raise InputError(f"{shown(str(path))} was measured in {', '.join(types)}, not in {shown(dtype)}")
    return types[dtype]


def published(device: Device, dtype: str | None = None, engine: str = "operators") -> Rates:
    """The rates of a published device, with what is assumed where nothing is measured."""
    if device.core:
        if dtype not in (None, "fp32"):
            raise InputError(f"the cycles of {device.name} are modelled in fp32, not in {dtype}")
        return rates_of(device)
    dtype = dtype or device.trained_in
    check_stored(dtype)
    if dtype not in device.peak_tflops or not device.bandwidth_gbs:
        has = ", ".join(device.peak_tflops) or "none"
        lacks = f"no peak in {dtype} (known: {has})" if device.bandwidth_gbs else "no bandwidth"
        raise InputError(f"{device.name} has {lacks}, so its time is not known; give --dtype, or another device")
    peak = device.peak_tflops[dtype] * 1e12
    best, basis = _best(device, dtype, peak)
    most = highest(device, dtype) * peak
    shares = {size: size / (size + TILE) for size in _SIZES}
    shapes = [*product(_SIZES, repeat=3)]
    grid = MatmulGrid(_SIZES, tuple(best * shares[m] * shares[n] * shares[k] for m, n, k in shapes))
    inner = MatmulGrid(_SIZES, tuple(best * shares[min(shape)] for shape in shapes))
    drawn = assumptions.power(device)
    watts = None if drawn is None else (drawn.low or drawn.value, drawn.value, drawn.high or drawn.value)
    source = (
        f"assumed: {basis}, half of it with {TILE} rows or columns; {BANDWIDTH:.0%} of the published "
        f"{max(device.bandwidth_gbs):,.0f} GB/s; {LAUNCH * 1e6:g} microseconds a call ({device.cited})"
    )
    return Rates(
        dict.fromkeys(ORIENTATIONS, grid),
        inner,
        RateCurve((1.0,), (BANDWIDTH * max(device.bandwidth_gbs) * 1e9,)),
        launch=LAUNCH,
        launch_backward=LAUNCH,
        optimizer=LAUNCH,
        operators=engine == "operators",
        low=INTERVAL[0],
        high=INTERVAL[1],
        most=most,
        name=device.name,
        dtype=dtype,
        source=source,
        watts=watts,
    )


def highest(device: Device, dtype: str) -> float:
    """The highest share of its peak that a product on the device, or a published training of its family, attained."""
    measured = device.measured_tflops.get(dtype, 0.0) / device.peak_tflops.get(dtype, float("inf"))
    if measured and not device.family:
        return measured
    trainings = [row.value for row in utilizations() if groups(device.family, "")[1] in row.groups]
    return max(measured or _usual_share(), *trainings)


def _best(device: Device, dtype: str, peak: float) -> tuple[float, str]:
    """The best rate of products: measured by the source, or the mean share that the others' measured ones have."""
    if dtype in device.measured_tflops:
        best = device.measured_tflops[dtype] * 1e12
        return best, f"products at the {best / 1e12:,.4g} TFLOP/s that the source measured"
    share = _usual_share()
    return share * peak, f"products at {share:.0%} of the peak, the mean of the devices whose best product is known"


def _usual_share() -> float:
    """The mean share of the peak of the best products that are known."""
    ratios = [
        other.measured_tflops[kind] / other.peak_tflops[kind]
        for other in devices().values()
        for kind in other.measured_tflops
        if kind in other.peak_tflops
    ]
    return sum(ratios) / len(ratios)
