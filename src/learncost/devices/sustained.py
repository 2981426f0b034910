"""Sustained rates of devices in training: products and attention by measured shares of the peak."""

from __future__ import annotations

import tomllib
from functools import cache
from itertools import product, starmap
from pathlib import Path
from statistics import fmean
from typing import Any

from learncost.devices.attention import ATTENTION_RATES, DEFAULT_RATES, kernel_of
from learncost.devices.device import Device, devices, inherited
from learncost.devices.rates import BANDWIDTH, TILE, best_product, highest, published
from learncost.ir.dataclass import replace
from learncost.timing.rates import ORIENTATIONS, AttentionRates, MatmulGrid, RateCurve, Rates

LARGE = 2048
"""The smallest measured rows, columns and sums at which products attain the sustained rate of training."""

_SIZES = tuple(2**power for power in range(15))


@cache
def _measured() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("sustained.toml").read_text(encoding="utf-8")
    return inherited(tomllib.loads(text))


def shares(device: Device, dtype: str) -> tuple[float, float, str]:
    """Return the shares of its peak that a device attains in products and in attention, with the source."""
    row = _measured().get(device.name) or _measured().get(device.family)
    attention = _attention(device)
    if row is not None:
        return row["products"], attention, f"measured: {row['source']}"
    known = [(devices()[name], each["products"]) for name, each in _measured().items() if name in devices()]
    ratio = fmean(
        share * other.peak_tflops["bf16"] / other.measured_tflops["bf16"]
        for other, share in known
        if "bf16" in other.measured_tflops
    )
    share = best_product(device, dtype) / (device.peak_tflops[dtype] * 1e12) * ratio
    return share, attention, f"assumed: the best known product times {ratio:.2f}, the mean of measured devices"


def _attention(device: Device) -> float:
    """Return the share of the peak that causal attention attains, with heads of 128 and 4,096 tokens: as measured, of
    the device's kernel, or the mean of all known."""
    measured: dict[str, float] = {name: row["attention"] for name, row in _measured().items() if "attention" in row}
    if device.name in measured:
        return measured[device.name]
    kernel = kernel_of(device)
    several = [kernel] if kernel else [*ATTENTION_RATES.values()]
    return fmean([each.share(128, 4096) for each in several] + ([] if kernel else [*measured.values()]))


def attention_grid(share: float, rates: AttentionRates, peak: float, products: MatmulGrid) -> MatmulGrid:
    """Return the rates of products inside attention by head size and length, and those of other kernels where all
    lengths are longer than any head.

    share  of the peak, with heads of 128 and 4,096 tokens
    """
    usual, largest = rates.share(128, 4096), 2 * max(rates.forward)

    def rate(m: int, n: int, k: int) -> float:
        size = n if m > max(n, k) else min(n, k)  # m may be the queries of a tile, which are fewer
        if size > largest:
            return float(products.rate(m, n, k))
        return share * peak * rates.share(size, max(m, n, k)) / usual

    return MatmulGrid(_SIZES, tuple(starmap(rate, product(_SIZES, repeat=3))))


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
    inner = attention_grid(attention, kernel_of(device) or DEFAULT_RATES, peak, grid)
    source = (
        f"sustained in training: products at {products:.0%} and attention at {attention:.0%} of the dense "
        f"{peak / 1e12:,.0f} TFLOP/s in {dtype} ({derivation}); {usual.source.partition('; ')[2]}"
    )
    moved = _measured().get(device.name, {}).get("bandwidth")
    if moved is not None:
        usual = replace(usual, bandwidth=RateCurve((1.0,), (moved * max(device.bandwidth_gbs) * 1e9,)))
        source = source.replace(f"{BANDWIDTH:.0%} of the published", f"{moved:.0%} (measured) of the published")
    products_of = dict.fromkeys(ORIENTATIONS, grid)
    most = max(usual.most, rate)  # as `highest_share_of_peak`
    return replace(
        usual,
        most=most,
        products=products_of,
        inner=inner,
        chosen=relative("experts", device),
        permuted=relative("rows", device),
        source=source,
    )


def highest_share_of_peak(device: Device, dtype: str) -> float:
    """Return the highest measured share of the peak of a product or a full training on devices of this family."""
    return max(highest(device, dtype), shares(device, dtype)[0] if dtype in device.peak_tflops else 0.0)


def relative(name: str, device: Device) -> float:
    """Return what `experts` or `rows` attain relative to other products or copies; the mean if unknown."""
    known = {of: row[name] for of, row in _measured().items() if name in row}
    return float(known[device.name] if device.name in known else fmean(known.values()))
