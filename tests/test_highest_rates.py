"""No rate and no interval above what was ever measured: published products and trainings are the oracle."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest

import learncost as lc
from learncost.devices.device import devices, inherited
from learncost.devices.sustained import sustained

FOLDER = Path(lc.__file__).parent / "devices"
ROWS = [*csv.DictReader(x for x in (FOLDER / "utilization.csv").read_text().splitlines() if not x.startswith("#"))]
FAMILIES = {name: device.family for name, device in devices().items()}
TRAINED = [name for name, device in devices().items() if device.peak_tflops.get("bf16") and device.bandwidth_gbs]
CLUSTERS = ("TPU v4 pod", "TPU v5p pod", "DGX A100", "DGX H100", "DGX B200")

PRODUCTS = {name: device.measured_tflops["bf16"] / device.peak_tflops["bf16"]
            for name, device in devices().items() if "bf16" in device.measured_tflops}  # fmt: skip

FULL = 0.6686 * 4 / 3
"""MaxText on TPU v5e-256, 32B: 66.86 % of the peak, with the forward pass of every block run again."""


def measured(name: str) -> float:
    """The highest share of its peak that is published of a device, its family or, where neither is, of any."""
    own = PRODUCTS.get(name, 0.0)
    of_family = [float(row["mfu"]) for row in ROWS if FAMILIES[name] and FAMILIES[row["device"]] == FAMILIES[name]]
    if FAMILIES[name] == "TPU":
        of_family.append(FULL)
    if own and not FAMILIES[name]:
        return own
    return max(own or max(PRODUCTS.values()), *of_family, 0.0)


@pytest.mark.parametrize("name", TRAINED)
def test_products_attain_no_more_than_was_measured(name):
    peak, most = devices()[name].peak_tflops["bf16"] * 1e12, measured(name)
    for rates in (lc.rates(name, "bf16"), sustained(devices()[name], "bf16")):
        assert max(max(grid.rates) for grid in rates.products.values()) <= most * peak * 1.001
        assert rates.most <= most * peak * 1.001


@pytest.mark.one_in(every=34)
@pytest.mark.parametrize("name", TRAINED)
def test_the_interval_of_a_step_ends_at_what_was_measured(name):
    """Also with the forward pass run again: what runs again is no part of MFU, and it is work.

    Counts are of what runs under flash: a convention that counts what the causal mask leaves out may say more.
    """
    most, asked = measured(name), {"batch_size": 4, "dtype": "bf16-masters", "price_book": "causal-exact"}
    for procedure, model in (("bp", "gpt3-175b"), ("recompute", "gpt2-xl")):
        figures = lc.run_cost(model, "1e9", name, procedure=procedure, **asked).figures
        for figure in ("step_mfu", "mfu", "hfu"):
            if figure in figures:
                assert figures[figure].low <= figures[figure].value <= figures[figure].high <= most * 1.001
        assert figures["step"].low <= figures["step"].value <= figures["step"].high


@pytest.mark.parametrize("name", CLUSTERS)
def test_over_a_mesh_too(name):
    most = measured(lc.cluster(name).device.name)
    sizes = {"batch_size": 64, "seq_len": 4096, "precision": "bf16-masters"}
    run = lc.run_cost("llama-3-8b", "1e9", name, mesh="dp=8", price_book="causal-exact", **sizes)
    assert run.figures["step_mfu"].high <= most * 1.001
    rate, again = (run.figures[figure] for figure in ("tokens_per_second", "step_mfu"))
    assert rate.high / rate.value == pytest.approx(again.high / again.value)
    assert run.figures["step"].low <= run.figures["step"].value


def test_a_lowest_time_does_every_product_at_the_best_rate_at_most():
    """FLOPs of the products of a step are those of the book matmul, where no block of attention is left out."""
    for name in ("A100-SXM-80GB", "TPU v5p", "H100-SXM"):
        timing = lc.cost("gpt3-175b", on=name, batch_size=8, dtype="bf16-masters", plan="none").timing
        products = lc.cost("gpt3-175b", batch_size=8, price_book="matmul").total.flops
        peak = lc.device(name).peak_tflops["bf16"] * 1e12
        assert timing.time.low >= products / (measured(lc.device(name).name) * peak) * 0.999


def test_what_is_measured_names_its_source():
    rows = tomllib.loads((FOLDER / "sustained.toml").read_text(encoding="utf-8"))
    for name, row in inherited(rows).items():
        family = [device for device in devices().values() if name in (device.name, device.family)]
        assert family
        assert row["source"]
        assert row["products"] <= max(measured(device.name) for device in family) * 1.001
