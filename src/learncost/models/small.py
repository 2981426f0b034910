"""Build a small model of every family, for runs over all families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES, Architecture, Family

SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "n_enc": 2,
    "n_dec": 2,
    "num_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "decoder_ffn_dim": 20,
    "vocab_size": 29,
    "max_position_embeddings": 40,
    "embedding_size": 12,
    "rotary_dim": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 10,
    "shared_expert_intermediate_size": 14,
    "kv_lora_rank": 6,
    "q_lora_rank": 7,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "relative_attention_num_buckets": 8,
    "image_size": 12,
    "patch_size": 4,
    "max_source_positions": 10,
    "num_mel_bins": 6,
    "num_labels": 3,
    "sliding_window": 4,
    "intermediate_size_mlp": 18,
    "attention_chunk_size": 4,
    "floor_scale": 3,
    "interleave_moe_layer_step": 2,
    "state_size": 4,
    "n_groups": 2,
    "conv_kernel": 3,
    "vocab_size_per_layer_input": 29,
    "hidden_size_per_layer_input": 6,
    "altup_num_inputs": 3,
    "laurel_rank": 5,
    "num_kv_shared_layers": 1,
    "global_head_dim": 16,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 3,
    "mamba_d_ssm": 16,
    "mamba_n_heads": 4,
    "mamba_d_state": 4,
    **dict.fromkeys(("embedding_multiplier", "key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"), 0.6),
    **dict.fromkeys(("lm_head_multiplier", "attention_in_multiplier", "attention_out_multiplier"), 1.5),
    "mlp_multipliers": [0.8, 1.2],
    "ssm_multipliers": [0.3, 0.4, 0.6, 0.7, 0.8],
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 4,
    "moe_shared_expert_intermediate_size": 14,
}
"""Small values, most of them different, for all sizes and settings that a family may have."""


def learning(family: Family) -> Architecture:
    """Return the class of a family that learns from targets: its default class, or the first that does."""
    every = family.architectures
    return next(
        (architecture for architecture in every if family.heads[architecture.head]["outputs"] == "loss"), every[0]
    )


def small(name: str, **more: Any) -> Configuration:
    """Return a small model of a family with a trainable head; `more` has other sizes and settings."""
    try:
        return configure(contents(name, **more))
    except InputError as error:
        raise InputError(f"no small {name}: {error}") from None


def contents(name: str, **more: Any) -> dict[str, Any]:
    """Return the content of a config.json for a small model of a family."""
    family = FAMILIES[name]
    usual_sizes = {**SIZES, **more}
    # Derived sizes stay derived, except the number of key and value heads.
    sizes = {
        key: usual_sizes[key] for key, usual in family.sizes.items() if key in usual_sizes and not _follows(key, usual)
    }
    settings = {key: usual_sizes[key] for key in family.settings if key in usual_sizes}
    architecture = learning(family).name
    return {"model_type": name, **({"architectures": [architecture]} if architecture else {}), **sizes, **settings}


def _follows(key: str, usual: int | str | None) -> bool:
    return isinstance(usual, str) and key not in ("num_key_value_heads",)
