"""How long a step of a published training takes, in the units in which times are published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from learncost.autoshard.step import StepUsage, step_of
from learncost.cost_models import Price, price
from learncost.cost_models.books import book
from learncost.devices.cluster import Cluster, cluster
from learncost.devices.sustained import attention_grid, sustained
from learncost.ir.errors import InputError
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.timing.rates import Rates
from published_trainings.case import Case, settings_of
from published_trainings.frameworks import FRAMEWORKS


def step_takes(case: Case) -> StepUsage:
    """One step. Raises `InputError` where the row names no device."""
    machine = _machine(case)
    rates = sustained(machine.device, _type(case))
    if case.bandwidth_gbs:
        usual = max(machine.device.bandwidth_gbs)
        curve = replace(rates.bandwidth, values=tuple(v * case.bandwidth_gbs / usual for v in rates.bandwidth.values))
        rates = replace(rates, bandwidth=curve)
    if kernel := FRAMEWORKS[case.framework].attention.get(machine.device.family):
        peak = machine.device.peak_tflops[_type(case)] * 1e12
        share = FRAMEWORKS[case.framework].of_that * kernel.share(128, 4096)
        rates = replace(rates, inner=attention_grid(share, kernel, peak, rates.products["NN"]))
    if case.watts:  # a device with less power has its clock lowered in products: in proportion, it is assumed
        rates = slower(rates, case.watts / float(machine.device.tdp_w or case.watts))
    return step_of(case.account(), case.parallel, case.sizes(), machine, rates, case.seq)


def _machine(case: Case) -> Cluster:
    if not case.on:
        raise InputError("it does not name its device, on which time depends")
    machine = cluster(case.on)
    if case.network_gbps is None or machine.between is None:
        return machine
    each = case.network_gbps / 8 / machine.devices
    return replace(machine, between=replace(machine.between, gbs=each, links=1))


def _type(case: Case) -> str:
    return "fp16" if case.framework == "megatron-2022" else "bf16"


def slower(rates: Rates, share: float) -> Rates:
    """The rates of products at a share of the clock."""
    grids = {
        name: replace(grid, rates=tuple(rate * share for rate in grid.rates)) for name, grid in rates.products.items()
    }
    inner = replace(rates.inner, rates=tuple(rate * share for rate in rates.inner.rates))
    return replace(rates, products=grids, inner=inner)


def flops_of(case: Case, again: bool) -> float:
    """Matrix products of a step of all devices, causal scores in full; `again` with what full recomputation repeats.

    So Narayanan et al. 2021 (their formula 3, with the blocks' forward pass twice) and Chowdhery et al. 2022 count.
    """
    model = case.account().step.model
    table = step(model, "bp", "adamw")
    if again:
        table = planned(table, "recompute=block", model.sizes)
    sizes = {**case.sizes(), "B": 1}
    priced = Price("matmul", price(table, {}, book("matmul")).rows, sizes)
    axes = case.parallel.mesh
    sequences = case.parallel.microbatch * case.parallel.microbatches * axes.get("dp", 1) * axes.get("ep", 1)
    return float(priced.flops) * sequences


def _teraflops(case: Case, takes: StepUsage, row: Mapping[str, Any]) -> float:
    """Of a device: with what is repeated where the row says so, as hardware's are."""
    texts = " ".join(str(row.get(key, "")) for key in ("quantity", "notes", "unit")).lower()
    again = "recompute=block" in case.key[5] and ("hardware" in texts or "recomput" in texts)
    return flops_of(case, again) / takes.seconds / takes.parallel.devices / 1e12


def _utilization(case: Case, takes: StepUsage, row: Mapping[str, Any]) -> float:
    peak = _machine(case).device.peak_tflops[_type(case)]
    return flops_of(case, again=False) / takes.seconds / takes.parallel.devices / 1e12 / peak


def _sequences(case: Case, takes: StepUsage, row: Mapping[str, Any]) -> float:
    return takes.tokens / case.seq / takes.seconds


UNITS: Mapping[str, Callable[[Case, StepUsage, Mapping[str, Any]], float]] = {
    "s": lambda case, takes, row: takes.seconds,
    "ms": lambda case, takes, row: 1e3 * takes.seconds,
    "tok/s/GPU": lambda case, takes, row: takes.tokens_per_second,
    "tokens/s": lambda case, takes, row: takes.tokens_per_second * takes.parallel.devices,
    "samples/s": _sequences,
    "TFLOP/s": _teraflops,
    "TFLOP/s/GPU": _teraflops,
    "MFU": _utilization,
}
"""What a row's unit makes of a step; of several with commas between the first counts."""

METRICS = {
    "step_time_s": "s", "tokens_per_s_per_gpu": "tok/s/GPU", "model_tflops_per_gpu": "TFLOP/s",
    "tflops_per_gpu": "TFLOP/s", "model_tflops_per_chip": "TFLOP/s", "mfu": "MFU", "seq_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
}  # fmt: skip
"""Rows that have a table of metrics in the place of a value: what each is, the first that a row has counts."""


def measured(row: Mapping[str, Any]) -> tuple[float, str]:
    """The published number of a row and its unit. Raises `InputError` for units that are not known."""
    if (value := row.get("value")) is not None:
        value = value[0] if isinstance(value, list) else value
        unit = str(row.get("unit", "")).split(",")[0].strip()
    else:
        metrics = settings_of(row).get("metrics") or {}
        name = next((name for name in METRICS if metrics.get(name) is not None), None)
        if name is None:
            raise InputError("it has no value")
        value, unit = metrics[name], METRICS[name]
    if not isinstance(value, int | float):
        raise InputError("its value is no number")
    if unit not in UNITS:
        raise InputError(f"its unit is {unit}, and times are told in {', '.join(UNITS)}")
    return float(value), unit
