"""What is assumed where nothing is given: each default with its interval, and who says so."""

from __future__ import annotations

from learncost.devices.device import Device
from learncost.devices.figure import Figure

# Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, table 3: GPT-3 21.3 %, Megatron-Turing 30.2 %, Gopher 32.5 %,
# PaLM 46.2 %. Llama 3 405B reports 38 to 43 % (arXiv 2407.21783, table 4), in the midst of which the default lies.
MFU = Figure(
    0.40,
    "",
    "assumed",
    "as Llama 3 405B's 38 to 43 % (table 4 of its paper); from GPT-3's 21.3 % to PaLM's 46.2 % (table 3 of PaLM's)",
    0.213,
    0.462,
)

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

# What training runs drew over what the devices are designed for, Patterson et al. 2021, table 4: 245 W (Switch
# Transformer) of a TPU v3's 450 W, 330 W (GPT-3, a share of the host with it) of a V100's 300 W.
DESIGN_POWER_SHARE = (245 / 450, 330 / 300)


def power(device: Device) -> Figure | None:
    """Watts of a device in training, the best that is known of it; None where nothing is.

    What published runs drew; otherwise the thermal design power, all of it, as LLaMA's, OPT's and BLOOM's tables charge
    it, within the shares of it that were measured.
    """
    if device.system_power_w:
        several, mean = device.system_power_w, sum(device.system_power_w) / len(device.system_power_w)
        ends = (min(several), max(several)) if len(several) > 1 else (None, None)
        return Figure(mean, "W", "published", f"drawn in training: {device.system_power_source}", *ends)
    if device.tdp_w is None:
        return None
    low, high = DESIGN_POWER_SHARE
    return Figure(
        device.tdp_w,
        "W",
        "modelled",
        f"thermal design power ({device.cited}) x 1, as LLaMA's table; measured runs drew from {low:.2f} of it (Switch "
        f"Transformer, TPU v3) to {high:.2f} (GPT-3, V100 with its share of the host): Patterson et al. 2021, table 4",
        device.tdp_w * low,
        device.tdp_w * high,
    )
