"""Sustained rates of devices in training: products and attention by measured shares of the peak."""

from __future__ import annotations

import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from learncost.devices.device import Device, devices
from learncost.devices.rates import BANDWIDTH, TILE, highest, published
from learncost.ir.dataclass import replace
from learncost.timing.rates import ORIENTATIONS, MatmulGrid, RateCurve, Rates

LARGE = 2048
"""The smallest measured rows, columns and sums at which products attain the sustained rate of training."""

_SIZES = tuple(2**power for power in range(15))


@cache
def _measured() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("sustained.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def shares(device: Device, dtype: str) -> tuple[float, float, str]:
    """Return the shares of its peak that a device attains in products and in attention, with the source."""
    known = [(devices()[name], each) for name, each in _measured().items() if name in devices()]
    attention = sum(each["attention"] for _, each in known) / len(known)
    row = _measured().get(device.name) or _measured().get(device.family)
    if row is not None:
        return row["products"], row.get("attention", attention), f"measured: {row['source']}"
    ratios = [
        each["products"] * other.peak_tflops["bf16"] / other.measured_tflops["bf16"]
        for other, each in known
        if "bf16" in other.measured_tflops
    ]
    best = device.measured_tflops.get(dtype, device.measured_tflops.get("bf16", 0)) / device.peak_tflops.get(
        dtype if dtype in device.measured_tflops else "bf16", 1e9
    )
    usual = [
        other.measured_tflops["bf16"] / other.peak_tflops["bf16"]
        for other in devices().values()
        if "bf16" in other.measured_tflops and "bf16" in other.peak_tflops
    ]
    share = (best or sum(usual) / len(usual)) * sum(ratios) / len(ratios)
    derivation = f"assumed: the best known product times {sum(ratios) / len(ratios):.2f}, the mean of measured devices"
    return share, min(attention, 1.0), derivation


def sustained(device: Device, dtype: str, engine: str = "kernels") -> Rates:
    """Return a published device's sustained training rates. Raises `InputError` if its peak is unknown.

    engine  operators or kernels, as in `rates`
    """
    usual = published(device, dtype, engine)
    products, attention, derivation = shares(device, usual.dtype or dtype)
    peak = device.peak_tflops[dtype] * 1e12

    def filled(size: int) -> float:
        return min(1.0, size / (size + TILE) * (LARGE + TILE) / LARGE)

    rate = products * peak
    grid = MatmulGrid(_SIZES, tuple(rate * filled(m) * filled(n) * filled(k) for m, n, k in product(_SIZES, repeat=3)))
    flat = MatmulGrid((1, 2), (attention * peak,) * 8)
    source = (
        f"sustained in training: products at {products:.0%} and attention at {attention:.0%} of the dense "
        f"{peak / 1e12:,.0f} TFLOP/s in {dtype} ({derivation}); {usual.source.partition('; ')[2]}"
    )
    moved = _measured().get(device.name, {}).get("bandwidth")
    if moved is not None:
        usual = replace(usual, bandwidth=RateCurve((1.0,), (moved * max(device.bandwidth_gbs) * 1e9,)))
        source = source.replace(f"{BANDWIDTH:.0%} of the published", f"{moved:.0%} (measured) of the published")
    products_of = dict.fromkeys(ORIENTATIONS, grid)
    most = max(usual.most, rate)  # as `most_of_peak`
    return replace(usual, most=most, products=products_of, inner=flat, chosen=of_experts(device), source=source)


def most_of_peak(device: Device, dtype: str) -> float:
    """Return the highest measured share of the peak of a product or a full training on devices of this family."""
    return max(highest(device, dtype), shares(device, dtype)[0])


def of_experts(device: Device) -> float:
    """Return the rate of grouped expert products relative to other products; the mean if unknown."""
    rows = {name: row for name, row in _measured().items() if "experts" in row}
    several = [rows[device.name]] if device.name in rows else list(rows.values())
    return float(sum(row["experts"] / row["products"] for row in several) / len(several))
