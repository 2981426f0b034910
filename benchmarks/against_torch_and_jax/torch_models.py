"""GPT-2 and Llama as plain modules of PyTorch, written as for speed by hand: fused products, fused attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own custom

from against_torch_and_jax.settings import activation, refuse
from learncost.models.configuration import Configuration

_ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def module(configuration: Configuration) -> nn.Module:
    """The model, which called with tokens and targets [B, M] gives the mean loss. Raises InputError."""
    refuse(configuration)
    return {"gpt2": GPT2, "llama": Llama}[configuration.family](configuration)


class GPT2(nn.Module):
    """Radford et al. 2019: learned positions, norms before, biases, the embedding as head."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        sizes, self.tied = configuration.sizes, configuration.tied
        width, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(sizes["max_position_embeddings"], width)
        self.h = nn.ModuleList(GPT2Block(configuration) for _ in range(sizes["num_hidden_layers"]))
        self.ln_f = nn.LayerNorm(width, configuration.layer_norm_epsilon)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if self.tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return _loss(self.lm_head(self.ln_f(x)), targets)


class GPT2Block(nn.Module):
    """Attention and a feed-forward network, each on the norm of what it is added to."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        sizes, epsilon = configuration.sizes, configuration.layer_norm_epsilon
        width = sizes["hidden_size"]
        self.ln_1 = nn.LayerNorm(width, epsilon)
        self.attn = GPT2Attention(width, sizes["num_attention_heads"], sizes["head_dim"])
        self.ln_2 = nn.LayerNorm(width, epsilon)
        self.mlp = GPT2FeedForward(width, sizes["intermediate_size"], configuration.activation)

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2Attention(nn.Module):
    """Queries, keys and values by one product."""

    def __init__(self, width: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads, self.head = heads, head
        self.c_attn = nn.Linear(width, 3 * heads * head)
        self.c_proj = nn.Linear(heads * head, width)

    def forward(self, x: torch.Tensor) -> Any:
        B, M, _ = x.shape
        q, k, v = (part.view(B, M, self.heads, self.head).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(a.transpose(1, 2).reshape(B, M, -1))


class GPT2FeedForward(nn.Module):
    """Two products with an activation between them."""

    def __init__(self, width: int, inner: int, word: str) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation = activation(word, _ACTIVATIONS)

    def forward(self, x: torch.Tensor) -> Any:
        return self.c_proj(self.activation(self.c_fc(x)))


class Llama(nn.Module):
    """Touvron et al. 2023: rotary positions, RMS norms, gated feed-forward network, no biases."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        sizes = configuration.sizes
        width, vocabulary, head = sizes["hidden_size"], sizes["vocab_size"], sizes["head_dim"]
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(configuration) for _ in range(sizes["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width, configuration.layer_norm_epsilon)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if configuration.tied:
            self.lm_head.weight = self.embed_tokens.weight
        speeds = configuration.settings["rope_theta"] ** -(torch.arange(0, head, 2) / head)
        angles = torch.arange(sizes["max_position_embeddings"])[:, None] * torch.cat((speeds, speeds))
        self.cosine: torch.Tensor
        self.sine: torch.Tensor
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x, M = self.embed_tokens(tokens), tokens.shape[1]
        for block in self.layers:
            x = block(x, self.cosine[:M], self.sine[:M])
        return _loss(self.lm_head(self.norm(x)), targets)


class LlamaBlock(nn.Module):
    """As GPT-2's, with the angles of the positions."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        sizes, epsilon = configuration.sizes, configuration.layer_norm_epsilon
        width = sizes["hidden_size"]
        self.input_layernorm = nn.RMSNorm(width, epsilon)
        self.self_attn = LlamaAttention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(width, epsilon)
        self.mlp = LlamaFeedForward(width, sizes["intermediate_size"], configuration.activation)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaAttention(nn.Module):
    """Heads in groups, each with one head of keys and values, where there are fewer of these."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        width, self.head = sizes["hidden_size"], sizes["head_dim"]
        self.heads, self.keys = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        self.qkv_proj = nn.Linear(width, (self.heads + 2 * self.keys) * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Any:
        B, M, _ = x.shape
        counts = (self.heads, self.keys, self.keys)
        parts = self.qkv_proj(x).view(B, M, -1, self.head).transpose(1, 2).split(counts, dim=1)
        q, k = (_rotated(part, cosine, sine) for part in parts[:2])
        grouped = self.heads != self.keys
        a = F.scaled_dot_product_attention(q, k, parts[2], is_causal=True, enable_gqa=grouped)
        return self.o_proj(a.transpose(1, 2).reshape(B, M, -1))


class LlamaFeedForward(nn.Module):
    """Gate and value by one product."""

    def __init__(self, width: int, inner: int, word: str) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(width, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.activation = activation(word, _ACTIVATIONS)

    def forward(self, x: torch.Tensor) -> Any:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate) * up)


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions, a head's first half paired with its second."""
    first, second = x.chunk(2, dim=-1)
    return (x * cosine + torch.cat((-second, first), dim=-1) * sine).to(x.dtype)


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
