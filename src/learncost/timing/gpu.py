"""The constants of a GPU and of the CPU that launches its kernels, from which the time of a program follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostCPU:
    """The seconds that the CPU takes to issue a step, in eager PyTorch.

    operator, view        of an operator with a kernel and of a view, in the forward pass and the optimizer
    backward, its_view    the same in the backward pass, which C++ runs
    module                of the call of a module
    weight, optimizer     per weight that is learned, and of the step of an optimizer
    latency               from a launch until its kernel starts on an idle GPU
    wait                  of the CPU after it waited for a value
    """

    operator: float
    view: float
    backward: float
    its_view: float
    module: float
    weight: float
    optimizer: float
    latency: float
    wait: float


@dataclass(frozen=True)
class AttentionRates:
    """The FLOP/s of attention kernels by head size, at `lengths` of the sequence, and the share of this that a causal
    one attains, which computes half of the scores."""

    lengths: tuple[int, ...]
    forward: Mapping[int, tuple[float, ...]]
    backward: Mapping[int, tuple[float, ...]]
    causal: tuple[float, ...]


@dataclass(frozen=True)
class GPU:
    """The constants of a GPU.

    products           attained FLOP/s of large matrix products by data type
    experts            the rate of grouped products relative to others
    bandwidth          attained bytes per second of a large copy
    cache              the bytes that stay in the cache between two kernels
    cache_bandwidth    bytes per second to and from the cache
    multiprocessors    the number of streaming multiprocessors, which share the tiles of a product
    scalar             elements per second of kernels that compute an offset for every element
    attention          rates of fused attention in bf16 and fp16
    attention_fp32     FLOP/s of fused attention in fp32
    capability         the compute capability, which decides the kernel of attention
    assumed            the relative uncertainty of the time of each kind of kernel, and of the CPU
    """

    name: str
    products: Mapping[str, float]
    experts: float
    bandwidth: float
    cache: float
    cache_bandwidth: float
    multiprocessors: int
    scalar: float
    attention: AttentionRates
    attention_fp32: float
    capability: tuple[int, int]
    host: HostCPU
    source: str = ""
    assumed: Mapping[str, float] = field(default_factory=dict)
