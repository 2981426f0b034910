"""What the cases are made of, as people write it: attention in every way, blocks, LoRA, experts. Plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention over queries, keys and values [B h M k], [B h N k], [B h N k]; the result is [B h M k]."""


def by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Both products by torch.matmul."""
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return torch.matmul(scores.softmax(-1), v)


def by_operator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Both products by @."""
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Both products by torch.einsum."""
    scores = torch.einsum("bhmk,bhnk->bhmn", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhmn,bhnk->bhmk", scores.softmax(-1), v)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Both products by torch.bmm, heads and sequences as one axis."""
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q3, k3.transpose(1, 2)) * q.shape[-1] ** -0.5
    return torch.bmm(scores.softmax(-1), v3).view_as(q)


def by_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores and scaling in one call, values by bmm, as GPT-2 and Bloom were once written."""
    q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
    nothing = torch.zeros(1, 1, 1, device=q.device)
    scores = torch.baddbmm(nothing, q3, k3.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v3).view_as(q)


def by_fused_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All of it by one function."""
    return functional.scaled_dot_product_attention(q, k, v)


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank beside it (Hu et al. 2021, equation 3)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x)) * 0.5


class Attention(nn.Module):
    """Multi-head attention with biases; with fewer heads of keys and values, each of these serves several queries'."""

    def __init__(self, width: int, heads: int, attention: AttentionFunction, groups: int | None = None) -> None:
        super().__init__()
        self.attention, self.size = attention, width // heads
        self.repeats = heads // (groups or heads)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width // self.repeats)
        self.value = nn.Linear(width, width // self.repeats)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (
            layer(z).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer, z in ((self.query, x), (self.key, y), (self.value, y))
        )
        if self.repeats > 1:
            k, v = (z.repeat_interleave(self.repeats, dim=1) for z in (k, v))
        return self.output(self.attention(q, k, v).transpose(1, 2).flatten(2))


class Packed(nn.Module):
    """torch's own nn.MultiheadAttention, called as its documentation does."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.attention(x, y, y)[0]


class Block(nn.Module):
    """Attention and feed-forward network, a norm before each and a skip around each."""

    def __init__(self, width: int, hidden: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        before = self.norms[0](x)
        x = x + self.attention(before, before)
        return x + self.feed_forward(self.norms[1](x))


class Model(nn.Module):
    """Embedding, learned positions, blocks, norm and head: logits of tokens [B M]."""

    def __init__(self, words: int, length: int, width: int, blocks: list[nn.Module], tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class TiedHead(nn.Module):
    """An embedding, and a head that reads the same matrix."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens))


class SelfAttention(nn.Module):
    """An embedding and an attention over itself."""

    def __init__(self, words: int, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attention = attention

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return self.attention(x, x)


class CrossAttention(nn.Module):
    """An attention of one text's tokens over another's, both embedded by one matrix."""

    def __init__(self, words: int, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attention = attention

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        return self.attention(self.words(tokens), self.words(source))


class GatedFeedForward(nn.Module):
    """SwiGLU without biases (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """An embedding and a mixture of experts, each run on the tokens that chose it, as Mixtral's first code did."""

    def __init__(self, words: int, width: int, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(width, hidden) for _ in range(experts))
        self.chosen = chosen

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).flatten(0, 1)
        shares, chosen = self.router(x).softmax(-1).topk(self.chosen)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            result = result.index_add(0, row, expert(x[row]) * shares[row, place, None])
        return result


def frozen(module: Any, *names: str) -> Any:
    """The module, with its parameters whose names begin so not trained."""
    for name, parameter in module.named_parameters():
        if name.startswith(names):
            parameter.requires_grad_(False)
    return module
