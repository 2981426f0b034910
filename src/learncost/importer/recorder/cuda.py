"""Record what a GPU runs on a build of PyTorch without CUDA: the kernel of attention, and operators that have a kernel
on a GPU and are decomposed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from learncost.importer.replaced import attributes_replaced
from learncost.ir.dataclass import dataclass

aten = torch.ops.aten
NARROW = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""The largest head of cuDNN's attention, and of flash attention."""

HOPPER = (9, 0)
"""The compute capability from which on cuDNN's attention is preferred."""

KERNELS = ("silu_backward", "mish_backward")
"""Operators with a kernel on a GPU and a decomposition for all other devices (`native_functions.yaml`, 2.13)."""


@contextmanager
def on_gpu(capability: tuple[int, int] = (9, 0), compiled: bool = False) -> Iterator[None]:
    """Run operators on tensors of device "cuda" inside as on a GPU of this compute capability.

    compiled  whether torch.compile decomposes those with kernels that are no library's
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in () if compiled else KERNELS:
        library.impl(name, _no_values, "CUDA")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", GPUAttention(capability), key)
        if not compiled:
            library.impl("rms_norm", rms_norm, key)
    answers: dict[tuple[Any, str], Any] = {
        (torch.cuda.amp.common, "amp_definitely_not_available"): lambda: False,
        (torch.cuda, "is_bf16_supported"): lambda *_, **__: True,
        (torch.cuda, "get_device_capability"): lambda *_: capability,
    }
    try:
        with attributes_replaced(answers):
            yield
    finally:
        library._destroy()


def _no_values(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("there is no GPU")


@dataclass(frozen=True)
class GPUAttention:
    """The function `scaled_dot_product_attention` by the kernel that PyTorch 2.11 and later choose (`sdp_utils.cpp`).

    In bf16 and fp16 it is cuDNN's from compute capability 9.0 on (`check_prefer_cudnn_attention`) where no mask has a
    gradient, and flash attention below where there is no mask; else the efficient one, which has no shared keys: with
    these the scores are stored.
    """

    capability: tuple[int, int]

    def __call__(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Return the attention."""
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), float("-inf")
            )
        scale, enable_gqa = others.get("scale"), others.get("enable_gqa", False)
        learns = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        fits = query.dtype in NARROW and query.shape[-1] <= LARGEST_HEAD
        learned = attn_mask is not None and attn_mask.requires_grad
        if fits and self.capability >= HOPPER and not learned:
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, attn_mask, learns, dropout_p, is_causal, False, scale=scale
            )[0]
        if fits and attn_mask is None:
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        if enable_gqa and query.shape[-3] > key.shape[-3]:
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
            )[0]
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, learns, dropout_p, is_causal, scale=scale
        )[0]


class _RMSNorm(torch.autograd.Function):
    """`_fused_rms_norm` and its backward pass, which saves its operand and the inverse root of each row."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any) -> Any:
        result, root = torch.ops.learncost._fused_rms_norm(x, weight)
        context.save_for_backward(x, weight, root)
        return result

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return torch.ops.learncost._fused_rms_norm_backward(*gradients, *context.saved_tensors)


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Return `rms_norm` by its kernel, in the wider type of its operands."""
    weight = x.new_ones(tuple(shape)) if weight is None else weight
    kind = torch.promote_types(x.dtype, weight.dtype)
    return _RMSNorm.apply(x.to(kind), weight.to(kind))  # type: ignore[no-untyped-call]


_NORMS: Any = torch.library.Library("learncost", "DEF")  # type: ignore[no-untyped-call]
_NORMS.define("_fused_rms_norm(Tensor x, Tensor weight) -> (Tensor, Tensor)")
_NORMS.define("_fused_rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor root) -> (Tensor, Tensor)")


@partial(_NORMS.impl, "_fused_rms_norm", dispatch_key="Meta")
def _norm(x: Any, weight: Any) -> Any:
    return torch.empty_like(x), x.new_empty((*x.shape[: x.dim() - weight.dim()], 1), dtype=torch.float32)


@partial(_NORMS.impl, "_fused_rms_norm_backward", dispatch_key="Meta")
def _norm_backward(dy: Any, x: Any, weight: Any, root: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(weight)
