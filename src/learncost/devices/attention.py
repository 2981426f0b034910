"""Published rates of fused attention: kernels of libraries by head size and length, and the kernel that a GPU runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from learncost.devices.device import Device, inherited
from learncost.timing.rates import AttentionRates

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CAUSAL = (0.655, 0.716, 0.776, 0.83, 0.857, 0.876)
"""The rate of causal attention over that of all scores, at `LENGTHS` (figure 5 of FlashAttention-3, head size 256)."""


def attention_rates(
    peak: float, forward: Mapping[int, tuple[float, ...]], backward: Mapping[int, tuple[float, ...]]
) -> AttentionRates:
    """Return rates of attention from TFLOP/s, and those of products on the same GPU."""
    tera = [{size: tuple(1e12 * rate for rate in row) for size, row in rows.items()} for rows in (forward, backward)]
    return AttentionRates(LENGTHS, tera[0], tera[1], CAUSAL, 1e12 * peak)


ATTENTION_RATES: Mapping[str, AttentionRates] = {
    "cuDNN": attention_rates(
        989,
        {64: (335, 373, 395, 408, 412, 413), 128: (497, 574, 617, 609, 600, 595), 256: (470, 546, 580, 581, 580, 581)},
        {64: (266, 348, 395, 417, 432, 433), 128: (305, 408, 465, 499, 518, 516), 256: (260, 350, 395, 424, 440, 440)},
    ),
    "FlashAttention-2": attention_rates(
        312,
        {64: (145, 170, 181, 186, 190, 192), 128: (155, 188, 203, 213, 222, 227), 256: (155, 188, 203, 213, 222, 227)},
        {64: (118, 142, 154, 160, 164, 165), 128: (112, 145, 165, 180, 191, 196), 256: (112, 145, 165, 180, 191, 196)},
    ),
}
"""Attained TFLOP/s of attention in bf16 without a mask, by head size, at `LENGTHS`, on a GPU of that peak.

cuDNN: figures 5 and 6 of Shah et al. 2024, FlashAttention-3 (arXiv 2407.08608), on an H100 SXM5. FlashAttention-2: at
16,384 the highest of Dao 2023 (arXiv 2307.08691, section 4.1: up to 73 % of the 312 TFLOP/s of an A100 forward and 63 %
backward), at shorter lengths and with heads of 64 less by assumption, as in that paper's figures 4 to 6.
"""

DEFAULT_RATES = ATTENTION_RATES["cuDNN"]
"""The kernel whose dependence on head size and length stands for that of kernels without a published one."""


@cache
def constants() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of gpus.toml by the name of the GPU."""
    return inherited(tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8")))


def kernel_of(device: Device) -> AttentionRates | None:
    """Return the rates of the kernel of attention that a GPU runs, or one of its family; None if unknown."""
    names = (name for name in constants() if device.name == name or (device.family and device.family in name))
    return next((ATTENTION_RATES[constants()[name]["attention"]] for name in names), None)
