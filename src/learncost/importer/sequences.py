"""Attention over sequences of several lengths in one row: the pairs of tokens that its products are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from learncost.importer.constants import GivenError, NodeConstants

OFFSETS = ("cu_seq", "cum_seq")
"""The prefixes of the offsets of sequences in attention kernels."""

OVER_SEQUENCES = ("aten::_flash_attention_forward", "aten::_efficient_attention_forward", "torch_attn::_varlen_attn")
"""PyTorch's attentions that read them, whose products are two forward and five backward (torch.utils.flop_counter)."""

LISTED = 8
"""A source lists the lengths of up to so many sequences."""

_TOP_LEFT, _BOTTOM_RIGHT = 1, 2  # `custom_mask_type` of aten::_efficient_attention_forward


@dataclass(frozen=True)
class Sequences:
    """The sequences of an attention and its causal mask.

    lengths   the queries and the keys of each sequence
    causal    the kind of its causal mask, 0 where it has none
    window    how many keys before its own place a query sees under that mask; -1: all
    """

    lengths: tuple[tuple[int, int], ...]
    causal: int = 0
    window: int = -1

    @property
    def pairs(self) -> int:
        """The pairs of a query and a key of the same sequence."""
        return sum(queries * keys for queries, keys in self.lengths)

    @property
    def visible(self) -> Fraction | None:
        """The share of the pairs that the causal mask leaves; None without a mask."""
        seen = sum(self._seen(*lengths) for lengths in self.lengths)
        return Fraction(seen, self.pairs) if self.causal and self.pairs else None

    def _seen(self, queries: int, keys: int) -> int:
        """Return the pairs of one sequence under the mask; its diagonal ends at the last key or begins at the first."""
        first = keys - queries if self.causal == _BOTTOM_RIGHT else 0
        seen = 0
        for last in range(first, first + queries):
            lowest = 0 if self.window < 0 else max(0, last - self.window)
            seen += max(0, min(last, keys - 1) - lowest + 1)
        return seen

    def __str__(self) -> str:
        every = [str(queries) if queries == keys else f"{queries} by {keys}" for queries, keys in self.lengths]
        if len(every) > LISTED:
            return f"{len(every)} sequences of {sum(queries for queries, _ in self.lengths)} tokens in all"
        return f"sequences of {', '.join(every)} tokens"


def has_offsets(node: Any) -> bool:
    """Return whether a node of a graph is attention over packed sequences."""
    return any(name.startswith(OFFSETS) and value is not None for name, value in _arguments(node).items())


def sequences(node: Any, values: NodeConstants) -> Sequences | None:
    """Return the sequences of such a node; None where their lengths are not known.

    values   the tensors that the module holds and the whole numbers of the example inputs
    """
    named = _arguments(node)
    offsets = [value for name, value in named.items() if name.startswith(OFFSETS) and value is not None]
    used = [value for name, value in named.items() if name in ("seqused_k", "seqlen_k", "block_table")]
    if not offsets or any(each is not None for each in used) or not {"query", "key", "value"} <= named.keys():
        return None
    tokens = [named[name].meta["val"].shape[-3] for name in ("query", "key")]
    queries, keys = (_lengths(each, many, values) for each, many in zip((offsets[0], offsets[-1]), tokens, strict=True))
    if queries is None or keys is None or len(queries) != len(keys):
        return None
    return Sequences(tuple(zip(queries, keys, strict=True)), *_mask(named))


def _mask(named: Mapping[str, Any]) -> tuple[int, int]:
    """Return the kind of the causal mask and its window, as the arguments of an attention have them."""
    size = named.get("window_size")
    if isinstance(size, int):  # the last keys up to the query's own
        before, after = size - 1, 0
    else:
        sides = size or [named.get(f"window_size_{side}") for side in ("left", "right")]
        before, after = (-1 if side is None else side for side in sides)
    causal = named.get("custom_mask_type") or (_BOTTOM_RIGHT if named.get("is_causal") or after == 0 else 0)
    return causal, before


def flops(node: Any, over: Sequences) -> tuple[int, int]:
    """Return the FLOPs of the products, forward and backward, where a kernel computes the scores a second time."""
    named = _arguments(node)
    heads, points = named["query"].meta["val"].shape[-2:]
    values = named["value"].meta["val"].shape[-1]
    return 2 * heads * over.pairs * (points + values), 2 * heads * over.pairs * (3 * points + 2 * values)


def _arguments(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by the names of its schema, with the defaults of those that it leaves out."""
    schema = node.target._schema.arguments if hasattr(node.target, "_schema") else ()
    named = {each.name: each.default_value for each in schema if each.has_default_value()}
    return named | {each.name: value for each, value in zip(schema, node.args, strict=False)} | dict(node.kwargs)


def _lengths(offsets: Any, tokens: Any, values: NodeConstants) -> list[int] | None:
    """Return the lengths between offsets that go from 0 to the number of tokens; None if they are unknown."""
    try:
        places = [int(each) for each in values.at(offsets, {}).tolist()]
    except (GivenError, RuntimeError, TypeError, IndexError):
        return None
    lengths = [after - before for before, after in pairwise(places)]
    if not lengths or min(lengths) < 0 or places[0] != 0 or not isinstance(tokens, int) or places[-1] != tokens:
        return None
    return lengths
