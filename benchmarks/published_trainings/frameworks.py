"""What frameworks of published trainings do, once for each of them: nothing is said of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from learncost.devices.attention import ATTENTION_RATES, attention_rates
from learncost.ir.precision import PRECISIONS, Precision
from learncost.timing.rates import AttentionRates


@dataclass(frozen=True)
class Framework:
    """What a framework does, as it says itself: the plan that stands for its kernels, types, overlap, buffers.

    sorted_rows  how often rows are copied around each of their ways to experts and back
    once_a_node  whether a row of several experts goes to each node once
    attention  its kernels of attention by the family of the device, where they are not the usual ones, and of_that,
               what it attains of their rate
    """

    plan: str
    kind: Precision
    overlap: bool
    workspace: bool
    why: str
    attention: Mapping[str, AttentionRates] = field(default_factory=dict)
    of_that: float = 1.0
    sorted_rows: int = 0
    once_a_node: bool = False

    @property
    def of_config(self) -> dict[str, Any]:
        """What a parallel configuration has of it."""
        return {"workspace": self.workspace, "sorted_rows": self.sorted_rows, "once_a_node": self.once_a_node}


_MIXED = PRECISIONS["bf16-masters"]

ON_H100 = attention_rates(
    989,
    {64: (282, 306, 318, 321, 322, 324), 128: (309, 350, 362, 368, 370, 370), 256: (275, 313, 321, 323, 324, 326)},
    {64: (198, 238, 264, 279, 280, 282), 128: (216, 273, 300, 320, 322, 322), 256: (193, 244, 266, 281, 282, 284)},
)
"""FlashAttention-2 on H100: forward figure 5 of Shah et al. 2024, FlashAttention-3; backward 0.70, 0.78, 0.83 of it and
then 0.87, as their figure 6 begins for heads of 64, and as the 335 TFLOP/s of both passes end (Dao 2023, figure 7)."""

FLASH = {"H100": ON_H100, "A100": ATTENTION_RATES["FlashAttention-2"]}
"""PyTorch's own kernels are FlashAttention-2's; those of cuDNN, which TransformerEngine takes, are the usual ones."""

FLASH_1 = 0.325 / 0.615
"""FlashAttention's own attained 25 to 40 % on A100 (Dao 2023, abstract), where its successor's attain 50 to 73 %."""

ALL_TO_ALL, DEEP_EP = 2, 1
"""Megatron-Core's tokens are sorted by expert before they are sent, and those that came by expert again
(megatron/core/transformer/moe/token_dispatcher.py, permute and sort_chunks_by_idxs). Behind DeepEP's kernels, which
send a row to each node once (DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437, section 3.2.2), they are sorted once."""

FRAMEWORKS = {
    "megatron-2022": Framework(
        "fused", replace(PRECISIONS["fp16-masters"], gradients="fp32"), False, False,
        "Korthikanti et al. 2022: scores are stored, dropout has masks of a byte, gradients are summed in fp32",
    ),
    "megatron-te": Framework(
        "flash,fused,recompute=silu,zigzag,keep=dispatch", replace(_MIXED, gradients="fp32"), False, True,
        "flash attention and TransformerEngine's kernels: a gate's activation is made again; gradients are summed in "
        "fp32 by products that leave a buffer of each shape; nothing overlaps, as the rows' guide says",
        sorted_rows=ALL_TO_ALL,
    ),
    "deepspeed": Framework(
        "fused", PRECISIONS["fp16-masters"], False, False,
        "Megatron-DeepSpeed: weights and gradients in 16 bits, states and masters in fp32",
    ),
    "deepspeed-fp32": Framework(
        "fused", replace(PRECISIONS["bf16-masters"], gradients="fp32"), False, False,
        "the same with gradients summed in fp32",
    ),
    "bridge": Framework(
        "flash,fused,recompute=silu,zigzag,keep=dispatch", replace(_MIXED, gradients="fp32"), True, True,
        "as Megatron-LM with TransformerEngine, with its overlaps of gradients and weights",
        sorted_rows=DEEP_EP, once_a_node=True,
    ),
    "fsdp-eager": Framework(
        "flash,zigzag", replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "FSDP2: weights, gradients and states in fp32, cut; weights gathered in bf16 beside what is computed",
        FLASH,
    ),
    "composer": Framework(
        "flash,zigzag", replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "llm-foundry: FSDP of PyTorch with the kernels of FlashAttention in Triton (attn_impl: triton)",
        FLASH, FLASH_1,
    ),
    "fsdp-compile": Framework(
        "flash,fused,zigzag", replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "FSDP2 under torch.compile, whose kernels join pointwise lines",
        FLASH,
    ),
    "nanotron": Framework(
        "flash,zigzag,keep=all_gather", replace(_MIXED, gradients="fp32"), True, False,
        "FlashAttention-2, PyTorch's operators, gradients summed in fp32, tensor parallelism with the sequence, whose "
        "products keep what was gathered (nanotron/parallel/tensor_parallel/functional.py, column_linear), ZeRO-1",
        FLASH,
    ),
    "automodel": Framework(
        "flash,fused,recompute=silu,zigzag,keep=dispatch",
        replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "NeMo AutoModel: FSDP2 with TransformerEngine's kernels",
        sorted_rows=DEEP_EP, once_a_node=True,
    ),
}  # fmt: skip

FRAMEWORKS["bridge-all-to-all"] = replace(FRAMEWORKS["bridge"], sorted_rows=ALL_TO_ALL, once_a_node=False)


def bridge_of(model: str) -> str:
    """Return the framework of Megatron Bridge by the model: its recipes of gpt-oss send rows by plain all-to-alls
    (src/megatron/bridge/recipes/gpt_oss/h100/gpt_oss.py, moe_token_dispatcher_type; commit 067f987d)."""
    return "bridge-all-to-all" if "gpt-oss" in model.lower() else "bridge"


OTHER_PRODUCTS = "norm+silu+attn.K.unrotated+A+mlp.V"
"""What torchtitan's selective recomputation by operators makes again: every other product, and what is pointwise."""

TENSOR, SEQUENCE = "h f v over tp", "h f v over tp, M over tp of values"
ZERO_1, ZERO_2 = "B over dp, * over dp of states", "B over dp, * over dp of gradients states"
ZERO_3 = "B over dp, * over dp of weights gradients states"


def cut(axes: Mapping[str, int], data: str, tensor: str = SEQUENCE, within: str = "states") -> str:
    """The clauses of a mesh by its axes: `data` of dp, `tensor` of tp; `within` is what ep and cp cut besides.

    cp stands before tp, so that what tp gathers is a part of a sequence still.
    """
    by_axis = {
        "cp": f"M over cp, * over cp of {within}",
        "tp": tensor,
        "ep": f"e over ep of experts, B over ep, * over ep of {within}",
        "dp": data,
    }
    return ", ".join(text for axis, text in by_axis.items() if axis in axes)
