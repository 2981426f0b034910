"""How long a run takes: by measured tokens, by a utilization of the peak, or by steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.devices import assumptions
from learncost.devices.device import Device
from learncost.devices.figure import Figure, computed
from learncost.ir.errors import InputError
from learncost.reports.run_cost import products
from learncost.reports.run_cost.steps import up_to


def days_over(figures: dict[str, Figure], typed: Mapping[str, Figure]) -> str:
    """Add the days of steps that all devices make together."""
    if speeds := [name for name in ("mfu", "hfu", "tokens_per_second") if name in typed]:
        raise InputError(f"{speeds[0]} says how fast the run is, and so does the mesh: give one of them")
    figures["time"] = computed("d", "steps x step", [figures["steps"], figures["step"]], (), 1 / products.SECONDS_A_DAY)
    return "mesh"


def days_on(
    figures: dict[str, Figure],
    typed: Mapping[str, Figure],
    machine: Device,
    kind: str,
    sizes: Mapping[str, Any],
    measured: bool,
    most: float,
) -> str:
    """Add the days: from measured tokens a second, from the peak and its utilization, or from the modelled step of a
    machine that was measured. The figure that makes them.

    most  the share of the peak that nothing was ever measured above
    """
    if "tokens_per_second" in typed:
        _days_of_measured(figures, typed["tokens_per_second"], f"{machine.name} in {kind}")
        return "tokens_per_second"
    if measured and "step" in figures and not typed.keys() & {"mfu", "hfu"}:
        figures["time"] = products.days_of_steps(figures["steps"], figures["step"], figures["devices"])
        return "step"
    if "peak" in figures:
        fine_tuning = any(sizes.get(name) is not None for name in ("train", "train_layers", "lora"))
        _days_of_utilization(figures, typed, assumptions.mfu(machine, fine_tuning), most)
        return "hfu" if "hfu" in typed else "mfu"
    has = ", ".join(machine.peak_tflops) or "none"
    raise InputError(
        f"no peak rate of {machine.name} in {kind} is published (known: {has}); give --peak-tflops, or "
        "--tokens-per-second as measured"
    )


def _days_of_measured(figures: dict[str, Figure], rate: Figure, device: str) -> None:
    """Add the days that measured tokens a second mean, and the utilization."""
    figures["tokens_per_second"] = rate
    figures["time"] = products.days_at(figures["tokens"], rate)
    if "peak" not in figures:
        return
    for name, flops in (("mfu", "flops"), ("hfu", "hardware_flops")):
        if flops in figures:
            figures[name] = products.utilization(figures[flops], figures["time"], figures["devices"], figures["peak"])
    if (times := figures["mfu"].value) > 1:
        raise InputError(
            f"tokens_per_second {rate.value:g} would be {times:.3g} times the peak of "
            f"{figures['devices'].value:,.0f} x {device}; it is of all devices together"
        )


def _days_of_utilization(figures: dict[str, Figure], typed: Mapping[str, Figure], usual: Figure, most: float) -> None:
    """Add the utilization, the usual one where none is given, and the days that it means."""
    name = "hfu" if "hfu" in typed else "mfu"
    if "hardware_flops" in figures:  # what runs again is work of the device, which it does at no higher rate
        most *= figures["flops"].value / figures["hardware_flops"].value
    figures[name] = typed.get(name) or up_to(most, usual)
    figures["time"] = products.days(figures["flops"], figures["devices"], figures["peak"], figures[name])
    if "hardware_flops" in figures:
        executed = [figures["mfu"], figures["hardware_flops"]]
        figures["hfu"] = computed("", "MFU x FLOPs as they run / FLOPs", executed, [figures["flops"]])
