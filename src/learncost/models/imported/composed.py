"""Operators of which some calls are read by their parts: what those do no rule has lines for."""

from __future__ import annotations

import math
from typing import Any


def attention_with_dropout(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` written out, as its documentation has it: shares are dropped between its products.

    A call that drops nothing stays what it is.
    """
    import torch

    if not dropout_p:
        return NotImplemented
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(times, -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.dropout(scores.softmax(-1), dropout_p, True) @ value


def drops(node: Any) -> bool:
    """Whether a call of attention drops some of its shares."""
    return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
