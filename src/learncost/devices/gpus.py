"""The constants of published GPUs from which the kernels of a recorded program are timed."""

from __future__ import annotations

from learncost.devices.attention import ATTENTION_RATES, constants
from learncost.devices.device import Device
from learncost.devices.rates import best_product
from learncost.devices.sustained import relative
from learncost.ir.errors import InputError
from learncost.timing.clocks import ISSUE, OTHERS
from learncost.timing.kernels import ATTENTION, CONVOLVED, FUSED, PRODUCT, TILED
from learncost.timing.rates import GPU, HostCPU

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


def kernels_of(name: str) -> tuple[tuple[int, int], int]:
    """Return the compute capability and the multiprocessors of a GPU, by default those of an H100 SXM."""
    row = constants().get(name) or constants()["NVIDIA H100 SXM"]
    return (row["capability"][0], row["capability"][1]), int(row["multiprocessors"])


def gpu(device: Device) -> GPU:
    """Return the constants of a published GPU. Raises `InputError` if its multiprocessors are not known."""
    row = constants().get(device.name)
    if row is None:
        known = ", ".join(constants())
        raise InputError(f"the kernels of a step are timed on {known}, not on {device.name}")
    products = {dtype: best_product(device, dtype) for dtype in device.peak_tflops if dtype not in ("fp32", "int8")}
    products["fp32"] = row["fp32"] * 1e12 if "fp32" in row else FP32 * device.peak_tflops["fp32"] * 1e12
    capability = row["capability"][0], row["capability"][1]
    tf32 = device.peak_tflops["tf32"] * 1e12
    return GPU(
        name=device.name,
        products=products,
        experts=relative("experts", device),
        bandwidth=row["copy"] * max(device.bandwidth_gbs) * 1e9,
        cache=CACHED * row["cache_mb"] * 1e6,
        cache_bandwidth=row["cache_gbs"] * 1e9,
        multiprocessors=row["multiprocessors"],
        scalar=row["multiprocessors"] * row["clock_mhz"] * 1e6 * LANES / INSTRUCTIONS,
        attention=ATTENTION_RATES[row["attention"]],
        attention_fp32=tf32 / FP32_PARTS * MMA[capability[0]] * KERNEL,
        capability=capability,
        host=HOST,
        source=f"{row['source']}; {device.cited}",
        assumed=ASSUMED,
    )
