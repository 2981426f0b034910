"""What is assumed where nothing is given: each default with its interval, and on which published runs both rest."""

from __future__ import annotations

from learncost.devices.device import Device
from learncost.devices.evidence import trusted, typical
from learncost.devices.figure import Figure
from learncost.devices.utilization import groups, power_groups, powers, utilizations

# The PUE of LLaMA's and OLMo's tables and of GPT-3 in Patterson et al. 2021, table 4. The ends are Gopher's data centre
# (OLMo's table) and the mean of all data centres that answered (Uptime Institute, Global Data Center Survey 2023).
PUE = Figure(
    1.10,
    "",
    "assumed",
    "as LLaMA, OLMo, GPT-3 publish; from Gopher's 1.08 to 1.58, the mean of all data centres (Uptime Institute 2023)",
    1.08,
    1.58,
)


def mfu(device: Device, fine_tuning: bool = False) -> Figure:
    """The share of the peak that a whole run makes use of, recomputation left out."""
    group_names = groups(device.family, "fine-tuning" if fine_tuning else "whole runs")
    usual, evidence = typical(utilizations(), group_names), trusted(utilizations(), group_names)
    source = f"the median of {usual.many}; interval: {evidence.many}, {evidence.tested}"
    return Figure(usual.middle, "", "assumed", source, *_around(usual.middle, evidence.low, evidence.high))


def power(device: Device) -> Figure | None:
    """Watts of a device in training with its share of the host (processors, memory, network, fans), the best that is
    known of it; None where nothing is. The data centre's overhead (PUE) is not in it.
    """
    if device.system_power_w:
        several, mean = device.system_power_w, sum(device.system_power_w) / len(device.system_power_w)
        ends = (min(several), max(several)) if len(several) > 1 else (None, None)
        return Figure(mean, "W", "published", f"drawn in training: {device.system_power_source}", *ends)
    if device.tdp_w is None:
        return None
    evidence = trusted(powers(), power_groups(device))
    low, high = _around(evidence.middle, evidence.low, evidence.high)
    return Figure(
        device.tdp_w * evidence.middle,
        "W",
        "modelled",
        f"{evidence.middle:.2f} x the design power of the device alone, the median of {evidence.many}; interval: "
        f"x {low:.2f} to x {high:.2f}, {evidence.tested}",
        device.tdp_w * low,
        device.tdp_w * high,
    )


def device_power(device: Device) -> Figure | None:
    """Watts of the device alone: its thermal design power, as the tables of LLaMA, OPT and BLOOM charge it."""
    if device.tdp_w is None:
        return None
    return Figure(device.tdp_w, "W", "published", f"thermal design power, without the host: {device.cited}")


def _around(middle: float, low: float, high: float) -> tuple[float, float]:
    """An interval that has its middle in it, which may come from another group."""
    return min(low, middle), max(high, middle)
