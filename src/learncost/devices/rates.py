"""What a device attains: by a calibration of this machine or another, or by what is published of a device."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from learncost.devices import assumptions
from learncost.devices.calibration import is_calibration, load, own_file
from learncost.devices.device import Device, devices
from learncost.devices.device import device as find_device
from learncost.devices.microcontroller import rates_of
from learncost.devices.utilization import groups, utilizations
from learncost.ir.errors import InputError
from learncost.ir.precision import check_stored
from learncost.models.files import looks_like_path, read_path
from learncost.models.wording import shown
from learncost.timing import MatmulGrid, RateCurve, Rates
from learncost.timing.rates import ORIENTATIONS

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
