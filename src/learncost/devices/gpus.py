"""The constants of published GPUs from which the kernels of a recorded program are timed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from learncost.devices.device import Device
from learncost.devices.rates import best_product
from learncost.devices.sustained import of_experts
from learncost.ir.errors import InputError
from learncost.timing.clocks import ISSUE, OTHERS
from learncost.timing.kernels import ATTENTION, CONVOLVED, FUSED, PRODUCT, TILED
from learncost.timing.rates import GPU, AttentionRates, HostCPU

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CAUSAL = (0.655, 0.716, 0.776, 0.83, 0.857, 0.876)
"""The rate of causal attention over that of all scores, at `LENGTHS` (figure 5 of FlashAttention-3, head size 256)."""


def _rates(forward: Mapping[int, tuple[float, ...]], backward: Mapping[int, tuple[float, ...]]) -> AttentionRates:
    """Return rates of attention from TFLOP/s."""
    tera = [{size: tuple(1e12 * rate for rate in row) for size, row in rows.items()} for rows in (forward, backward)]
    return AttentionRates(LENGTHS, tera[0], tera[1], CAUSAL)


KERNELS: Mapping[str, AttentionRates] = {
    "cuDNN": _rates(
        {
            64: (335, 373, 395, 408, 412, 413),
            128: (497, 574, 617, 609, 600, 595),
            256: (470, 546, 580, 581, 580, 581),
        },
        {
            64: (266, 348, 395, 417, 432, 433),
            128: (305, 408, 465, 499, 518, 516),
            256: (260, 350, 395, 424, 440, 440),
        },
    ),
    "FlashAttention-2": _rates(
        {
            64: (145, 170, 181, 186, 190, 192),
            128: (155, 188, 203, 213, 222, 227),
            256: (155, 188, 203, 213, 222, 227),
        },
        {
            64: (118, 142, 154, 160, 164, 165),
            128: (112, 145, 165, 180, 191, 196),
            256: (112, 145, 165, 180, 191, 196),
        },
    ),
}
"""Attained TFLOP/s of attention in bf16 without a mask, by head size, at `LENGTHS`.

cuDNN: figures 5 and 6 of Shah et al. 2024, FlashAttention-3 (arXiv 2407.08608), on an H100 SXM5. FlashAttention-2: at
16,384 the highest of Dao 2023 (arXiv 2307.08691, section 4.1: up to 73 % of the 312 TFLOP/s of an A100 forward and 63 %
backward), at shorter lengths and with heads of 64 less by assumption, as in that paper's figures 4 to 6.
"""

CACHED = 0.6
"""The share of the L2 that keeps what one kernel wrote until the next reads it: the L2 of A100 and H100 has two
partitions that both cache what their multiprocessors read (NVIDIA A100 whitepaper); assumed."""

INSTRUCTIONS = 33
"""The integer instructions per element of kernels that compute offsets, of 64 lanes a multiprocessor and clock
(TensorIterator's offset calculator divides once per axis, `OffsetCalculator.cuh`); assumed."""
LANES = 64

FP32_PARTS, MMA, KERNEL = 3, {8: 1.0, 9: 0.62}, 0.37
"""Attention in fp32 multiplies in three parts of TF32 (CUTLASS, `OpMultiplyAddFastF32`); the instructions `mma.sync` of
its kernels attain 62 % of the peak on an H100 (Luo et al. 2024, arXiv 2402.13499), and the kernel, by assumption, the
share of these that FlashAttention-2 attains on it (FlashAttention-3, section 1: 35 to 40 %)."""

FP32 = 0.9
"""The share of the fp32 peak that products attain where none was measured: assumed."""

QUICK = 2.6
"""The factor by which the host is slower than one on which an operator takes 8 microseconds, which makes that 21: calls
took 17 to 32 microseconds on the host of an H100 (docs/time.md)."""

HOST = HostCPU(
    operator=8e-6 * QUICK,
    view=3e-6 * QUICK,
    backward=8e-6 * QUICK,
    its_view=2.5e-6 * QUICK,
    module=6e-6 * QUICK,
    weight=4e-6 * QUICK,
    optimizer=150e-6 * QUICK,
    latency=4e-6,
    wait=15e-6,
    launch=10e-6 * QUICK,
    graph=200e-6 * QUICK,
)
"""The CPU of a GPU that was not measured: assumed."""

GRAPH = HostCPU(*[0.0] * 11)
"""The CPU of a step that is one CUDA graph: it issues nothing."""

ASSUMED = {PRODUCT: 0.12, ATTENTION: 0.2, CONVOLVED: 0.35, TILED: 0.6, FUSED: 0.3, OTHERS: 0.15, ISSUE: 0.35}
"""The relative uncertainty of the time of kernels by kind, and of the CPU: assumed."""


@cache
def _constants() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))


def kernels_of(name: str) -> tuple[tuple[int, int], int]:
    """Return the compute capability and the multiprocessors of a GPU, by default those of an H100 SXM."""
    row = _constants().get(name) or _constants()["NVIDIA H100 SXM"]
    return (row["capability"][0], row["capability"][1]), int(row["multiprocessors"])


def gpu(device: Device) -> GPU:
    """Return the constants of a published GPU. Raises `InputError` if its multiprocessors are not known."""
    row = _constants().get(device.name)
    if row is None:
        known = ", ".join(_constants())
        raise InputError(f"the kernels of a step are timed on {known}, not on {device.name}")
    products = {dtype: best_product(device, dtype) for dtype in device.peak_tflops if dtype not in ("fp32", "int8")}
    products["fp32"] = row["fp32"] * 1e12 if "fp32" in row else FP32 * device.peak_tflops["fp32"] * 1e12
    capability = row["capability"][0], row["capability"][1]
    tf32 = device.peak_tflops["tf32"] * 1e12
    return GPU(
        name=device.name,
        products=products,
        experts=of_experts(device),
        bandwidth=row["copy"] * max(device.bandwidth_gbs) * 1e9,
        cache=CACHED * row["cache_mb"] * 1e6,
        cache_bandwidth=row["cache_gbs"] * 1e9,
        multiprocessors=row["multiprocessors"],
        scalar=row["multiprocessors"] * row["clock_mhz"] * 1e6 * LANES / INSTRUCTIONS,
        attention=KERNELS[row["attention"]],
        attention_fp32=tf32 / FP32_PARTS * MMA[capability[0]] * KERNEL,
        capability=capability,
        host=HOST,
        source=f"{row['source']}; {device.cited}",
        assumed=ASSUMED,
    )
