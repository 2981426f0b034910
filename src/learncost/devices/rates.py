"""The rates that a device attains, from a calibration or from published properties."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path

from learncost.devices import assumptions
from learncost.devices.assumptions import groups, utilizations
from learncost.devices.calibration import calibration_path, is_calibration, load
from learncost.devices.device import FILES, Device, devices
from learncost.devices.device import device as find_device
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, shown
from learncost.ir.precision import check_stored
from learncost.models.files import looks_like_path, read_path
from learncost.timing.rates import ORIENTATIONS, MatmulGrid, RateCurve, Rates

WORDS_PER_CYCLE = 0.5
"""Four-byte words that a core loads or stores per cycle: a load takes two cycles on a Cortex-M4 (Arm, Cortex-M4
Technical Reference Manual, table of instructions)."""

SPREAD = 8.3 / 4.5
"""The ratio of the two published figures of the Cortex-M4; it bounds the cycles of a core with one published figure."""

CYCLES_INTERVAL = (0.4, 1.5)
"""Assumed factors of the time, in addition to the interval of the cycles: published times cover MACCs only, which are
less than half of a step at batch size 1, and memory stalls lengthen a step."""


@dataclass(frozen=True)
class Cycles:
    """Published cycles per MACC on a core: the workload, the derivation and the source."""

    value: float
    of: str
    how: str
    source: str


@dataclass(frozen=True)
class ProcessorCore:
    """A microcontroller's core and its published cycles.

    like  the similar core whose figures are used if this one has none
    """

    name: str
    fpu: bool
    cycles_per_macc: tuple[Cycles, ...] = ()
    like: str = ""
    note: str = ""

    @property
    def published(self) -> tuple[Cycles, ...]:
        """Return the core's figures, or those of the core named by `like`."""
        return self.cycles_per_macc or (cores()[self.like].published if self.like else ())

    @property
    def cycles(self) -> tuple[float, float, float]:
        """Return the lowest, modelled and highest cycles per fp32 MACC. Raises `InputError` if none are published."""
        if not self.published:
            why = "" if self.fpu else "; it has no FPU: a floating-point MACC takes 75 to 101 instructions"
            raise InputError(f"no cycles per MACC are published for {self.name}{why}: its time cannot be predicted")
        values = [figure.value for figure in self.published]
        low, high = min(values), max(values) * (SPREAD if len(values) == 1 else 1)
        return low, sqrt(low * high), high


@cache
def cores() -> Mapping[str, ProcessorCore]:
    """Return all cores by name."""
    rows = [row for file in FILES for row in tomllib.loads(file.read_text(encoding="utf-8")).get("core", ())]
    return {
        row["name"]: ProcessorCore(
            **{**row, "cycles_per_macc": tuple(Cycles(**cycles) for cycles in row.get("cycles_per_macc", ()))}
        )
        for row in rows
    }


def core_of(device: Device) -> ProcessorCore:
    """Return the core of a microcontroller. Raises `InputError` for an unknown core."""
    if device.core not in cores():
        raise InputError(f"{device.name}: no core is called {device.core!r}; there are {', '.join(cores())}")
    return cores()[device.core]


def rates_of(device: Device) -> Rates:
    """Return a microcontroller's fp32 rates: products take the core's cycles per MACC, all else the cycles of loads and
    stores."""
    core = core_of(device)
    low, middle, high = core.cycles
    if device.clock_mhz is None:
        raise InputError(f"{device.name} has no clock: add clock_mhz to predict its time")
    clock = device.clock_mhz * 1e6
    grid = MatmulGrid((1,), (2 * clock / middle,))
    watts = None
    if device.ua_per_mhz is not None and device.volts is not None:
        watts = device.ua_per_mhz * 1e-6 * device.clock_mhz * device.volts
    who = "; ".join(f"{figure.value:g} for {figure.of} ({figure.how}: {figure.source})" for figure in core.published)
    of_whom = f" of the {core.like}, used in its place" if not core.cycles_per_macc else ""
    supply = f"; {device.ua_per_mhz:g} uA/MHz at {device.volts:g} V" if watts else ""
    return Rates(
        dict.fromkeys(ORIENTATIONS, grid),
        grid,
        RateCurve((1.0,), (4 * WORDS_PER_CYCLE * clock,)),
        operators=False,
        low=CYCLES_INTERVAL[0] * low / middle,
        high=CYCLES_INTERVAL[1] * high / middle,
        name=device.name,
        dtype="fp32",
        source=f"modelled: {middle:.2g} cycles a MACC at {device.clock_mhz:g} MHz, between those published{of_whom}: "
        f"{who}; a word in {1 / WORDS_PER_CYCLE:g} cycles{supply} ({device.cited})",
        watts=None if watts is None else (watts, watts, watts),
    )


THIS_MACHINE = "here"

TILE = 128
"""Rows or columns of a product at which a published device attains half of its best rate. Its libraries split products
into tiles of 128 or 256 (NVIDIA, Matrix Multiplication Background, section 4), which small products fill badly. In a
fused kernel only the narrowest side matters, such as the head width: an H100 attained 0.33 and 0.75 of its best rate
in bf16 attention with heads of 64 and 128, forward and backward (`benchmarks/on_cuda.py`)."""

BANDWIDTH = 0.85
"""The assumed share of the published bandwidth that a copy attains: 0.75 to 0.95 is usual for STREAM."""

LAUNCH = 5e-6
"""The assumed seconds to launch a kernel on a GPU: a few microseconds for the launch, more from Python."""

INTERVAL = (0.7, 2.0)
"""Assumed factors of the time on a published device, which was not measured here."""

_SIZES = tuple(2**power for power in range(15))


def rates(on: str | Device | Rates, dtype: str | None = None, engine: str = "operators") -> Rates:
    """Return a device's rates in a data type: products, bytes per second, seconds per kernel launch.

    Parameters
    ----------
    on
        "here" for this machine after `learncost calibrate`, a file that this command wrote, a published device
        (`learncost list devices`), or a file that describes one.
    dtype
        The data type of the products. The default is that of training on a published device (bf16, fp16 or fp32, the
        first with a peak), and fp32 on a measured one.
    engine
        operators, for a step that runs operator by operator as in PyTorch's autograd, or kernels, for a step on
        learncost's engine. A calibration without rates of kernels uses those of operators for both.

    Returns
    -------
    Rates
        The rates for `lc.cost(..., on=rates)`, with `name`, `source` and the interval (`low`, `high`: factors of the
        time).

    Raises
    ------
    InputError
        For an unknown device, or one without rates in this type.

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
            raise InputError(f"these rates of {on.name} are for {on.dtype}, not {shown(dtype)}")
        return on
    check_stored(dtype or "")
    return calibrated(on, dtype, engine) or published(find_device(on), dtype, engine)


def calibrated(on: object, dtype: str | None = None, engine: str = "operators") -> Rates | None:
    """Return measured rates: "here", a calibration's file, or rates; None if `on` is none of these."""
    if isinstance(on, Rates):
        return on
    if on == THIS_MACHINE:
        path = calibration_path()
        if not path.exists():
            raise InputError("this machine is not calibrated: run `learncost calibrate` (about a minute)")
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
    """Return the rates of a published device; unmeasured ones are assumptions."""
    if device.core:
        if dtype not in (None, "fp32"):
            raise InputError(f"the cycles of {device.name} are modelled only in fp32, not {dtype}")
        return rates_of(device)
    dtype = dtype or device.trained_in
    check_stored(dtype)
    if dtype not in device.peak_tflops or not device.bandwidth_gbs:
        has = ", ".join(device.peak_tflops) or "none"
        lacks = f"no peak in {dtype} (known: {has})" if device.bandwidth_gbs else "no bandwidth"
        more = "--dtype or " if device.bandwidth_gbs else ""
        raise InputError(f"{device.name} has {lacks}, so its time is not known: give {more}another device")
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
        f"assumed: {basis} (a mesh uses the lower rate sustained in training), half of it with {TILE} "
        f"rows or columns; {BANDWIDTH:.0%} of the published "
        f"{max(device.bandwidth_gbs):,.0f} GB/s; {LAUNCH * 1e6:g} microseconds a call ({device.cited})"
    )
    return Rates(
        dict.fromkeys(ORIENTATIONS, grid),
        inner,
        RateCurve((1.0,), (BANDWIDTH * max(device.bandwidth_gbs) * 1e9,)),
        launch=LAUNCH,
        launch_backward=LAUNCH,
        optimizer=LAUNCH,
        grouped=True,
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
    """Return the highest share of the peak that a product on the device or a training of its family attained."""
    measured = device.measured_tflops.get(dtype, 0.0) / device.peak_tflops.get(dtype, float("inf"))
    if measured and not device.family:
        return measured
    trainings = [row.value for row in utilizations() if groups(device.family, "")[1] in row.groups]
    return max(measured or _usual_share(), *trainings)


def _best(device: Device, dtype: str, peak: float) -> tuple[float, str]:
    """Return the best product rate: the source's measurement, or the peak times the mean measured share of other
    devices."""
    if dtype in device.measured_tflops:
        best = device.measured_tflops[dtype] * 1e12
        return best, f"products at up to {best / 1e12:,.4g} TFLOP/s, the best product that the source measured"
    share = _usual_share()
    return share * peak, f"products at up to {share:.0%} of the peak, the mean best product of measured devices"


def best_product(device: Device, dtype: str) -> float:
    """Return the FLOP/s of the best product in a type with a published peak; a type of the same peak stands in for one
    that was not measured."""
    peak = device.peak_tflops[dtype]
    measured = next((kind for kind in (dtype, *device.peak_tflops) if kind in device.measured_tflops
                     and device.peak_tflops[kind] == peak), None)  # fmt: skip
    return _best(device, measured or dtype, peak * 1e12)[0]


def _usual_share() -> float:
    """Return the mean share of the peak of the measured best products."""
    ratios = [
        other.measured_tflops[kind] / other.peak_tflops[kind]
        for other in devices().values()
        for kind in other.measured_tflops
        if kind in other.peak_tflops
    ]
    return sum(ratios) / len(ratios)
