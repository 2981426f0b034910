"""Weights as the peers' models have them: Hugging Face's tensors, matrices outputs first, products of one input as one.

A fused product is what a careful user of PyTorch or JAX writes; GPT-2's checkpoints have its Q, K, V so already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.engines.hugging_face import from_checkpoint, to_checkpoint
from learncost.models.model import Model

Arrays = Mapping[str, Any]

_FUSED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
_TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2's checkpoints have these inputs first
_BARE = ("transformer.", "model.")


def packed(model: Model, weights: Arrays) -> dict[str, Any]:
    """The peers' arrays by their names, from the weights of the model's table."""
    theirs = {_without_prefix(name): array for name, array in to_checkpoint(model, weights).items()}
    result: dict[str, Any] = {}
    for name, array in theirs.items():
        fused, parts, block = _fused(name)
        if fused is None:
            result[name] = np.ascontiguousarray(array.T if name.endswith(_TURNED) else array)
        elif name.endswith(parts[0]):
            result[block + fused] = np.concatenate([theirs[block + part] for part in parts])
    return result


def unpacked(model: Model, arrays: Arrays) -> dict[str, Any]:
    """The weights of the model's table (or their gradients), from the peers' arrays."""
    theirs: dict[str, Any] = {}
    for name, array in arrays.items():
        fused = next((ending for ending in _FUSED if name.endswith(ending)), None)
        if fused is None:
            theirs[name] = array.T if name.endswith(_TURNED) else array
            continue
        rows = _rows(model)[fused]
        for part, part_array in zip(_FUSED[fused], np.split(array, np.cumsum(rows)[:-1]), strict=True):
            theirs[name.removesuffix(fused) + part] = part_array
    return from_checkpoint(model, theirs, "a side of the benchmark")


def _rows(model: Model) -> dict[str, tuple[int, ...]]:
    """How many outputs each part of a fused product has."""
    sizes = model.configuration.sizes
    keys = sizes["num_key_value_heads"] * sizes["head_dim"]
    attention = (sizes["num_attention_heads"] * sizes["head_dim"], keys, keys)
    return dict(zip(_FUSED, (attention, (sizes["intermediate_size"],) * 2), strict=True))


def _fused(name: str) -> tuple[str | None, tuple[str, ...], str]:
    """The fused product that a tensor is a part of, the parts, and the beginning of the block's names."""
    for fused, parts in _FUSED.items():
        for part in parts:
            if name.endswith(part):
                return fused, parts, name.removesuffix(part)
    return None, (), ""


def _without_prefix(name: str) -> str:
    for prefix in _BARE:
        name = name.removeprefix(prefix)
    return name
