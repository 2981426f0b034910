"""The cases: modules with their inputs, and what they truly cost.

A MACC is one term of a matrix product, one multiplication with its addition. Biases, norms, softmax, activations,
look-ups and scalings are no matrix products and count nothing here. Both passes are the forward pass and the gradients
that autograd needs: a product of two values that need gradients costs twice itself in the backward pass, of one value
that needs none once itself. A parameter that two modules share is one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from conformance import blocks
from conformance.blocks import Attention, AttentionFunction, Block, LowRank, Model, Packed, frozen

B, S, D, HEADS, F, V = 2, 64, 128, 4, 512, 1000
"""Sequences, tokens of each, width, heads, hidden width of the feed-forward network, words."""
TARGETS, GROUPS, RANK, EXPERTS, CHOSEN, HIDDEN = 48, 2, 4, 8, 2, 256
"""Tokens that look at the S others, heads of keys and values, rank of LoRA, experts, of a token, their hidden width."""


@dataclass(frozen=True)
class Truth:
    """MACCs of the matrix products forward and in both passes (None: it has no backward), parameters, trained ones."""

    forward: int
    training: int | None
    parameters: int
    trained: int


@dataclass(frozen=True, eq=False)
class Case:
    """A module, its inputs by name, the truth; `parts` are amounts by which a wrong counter may be off, with names."""

    name: str
    make: Callable[[], nn.Module]
    truth: Truth
    parts: Mapping[str, int] = field(default_factory=dict)
    inputs: Callable[[], dict[str, Tensor]] = lambda: {"tokens": _words(S)}

    def built(self, device: str = "cpu") -> tuple[Any, dict[str, Tensor]]:
        """The module and its inputs, the same ones at every call."""
        return _built(self, device)


@cache
def _built(case: Case, device: str) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    with torch.device(device):
        return case.make(), case.inputs()


def _words(length: int) -> Tensor:
    return torch.randint(V, (B, length))


TOKENS = B * S  # 128

# One block. Four projections D x D and the two of the feed-forward network for each token; two products of attention of
# S x S scores for each sequence, the heads' widths making up D. Head: D x V for each token.
LINEAR = TOKENS * (4 * D * D + 2 * D * F)  # 25,165,824
PRODUCT = B * S * S * D  # 1,048,576: scores, and again values
HEAD = TOKENS * D * V  # 16,384,000
ONE = LINEAR + 2 * PRODUCT + HEAD  # 41,549,824 + 2,097,152 = 43,646,976

# Embedding V x D, which is the head, positions S x D, the last norm's gains and offsets; a block has four D x D
# with biases, D x F with F, F x D with D, and two norms.
OUTSIDE = V * D + S * D + 2 * D  # 136,448
INSIDE = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * 2 * D  # 198,272

BIASES = TOKENS * (4 * D + F + D)  # 147,456 additions
PARTS = {"attention": 2 * PRODUCT, "one product of attention": PRODUCT, "biases": BIASES, "head": HEAD}


def _model(attention: Callable[[], nn.Module], count: int = 1, tied: bool = True) -> Model:
    return Model(V, S, D, [Block(D, F, attention()) for _ in range(count)], tied)


def _block(name: str, attention: Callable[[], nn.Module], **truth: Any) -> Case:
    # Everything is trained, and the embedding lies below: each product has two gradients of its own size.
    known = {"forward": ONE, "training": 3 * ONE, "parameters": OUTSIDE + INSIDE, "trained": OUTSIDE + INSIDE} | truth
    return Case(name, lambda: _model(attention), Truth(**known), PARTS)


def _attention(attention: AttentionFunction, groups: int | None = None) -> Callable[[], Attention]:
    return lambda: Attention(D, HEADS, attention, groups)


class InEvaluation(Model):
    """The model as it answers: no gradients, evaluation mode."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens [B M]."""
        with torch.no_grad():
            return super().forward(tokens)


def _answering() -> nn.Module:
    return InEvaluation(V, S, D, [Block(D, F, Packed(D, HEADS))]).eval()


# Two blocks and a head of its own; embedding, positions and the first block are frozen. Forward: two blocks and the
# head. Backward: nothing in the first block. The second block's first products read a norm that is trained, so that
# every product of the second block, and the head, has both gradients.
FROZEN_FORWARD = 2 * (LINEAR + 2 * PRODUCT) + HEAD  # 70,909,952
FROZEN = FROZEN_FORWARD + 2 * (LINEAR + 2 * PRODUCT + HEAD)  # + 87,293,952 = 158,203,904


def _frozen() -> nn.Module:
    model: nn.Module = frozen(_model(_attention(blocks.by_matmul), 2, tied=False), "words", "positions", "blocks.0")
    return model


# LoRA on the projections of queries and values of two blocks, all else frozen, the head being the embedding.
# Forward: D x RANK and RANK x D for each token, twice a block.
ADAPTER = 2 * TOKENS * 2 * D * RANK  # 262,144 a block
LORA_FORWARD = FROZEN_FORWARD + 2 * ADAPTER  # 71,434,240
# Backward. The head and the second block's frozen weights pass the gradient on and have none: once themselves. Both
# products of the second block's attention have two gradients, and so have its adapters.
# In the first block nothing below the adapters is trained. The feed-forward network and the output projection pass the
# gradient on; values and queries depend on adapters, keys do not: three of the four gradients of attention's products.
# Of an adapter's three factors x, down and up only x needs no gradient: three of its four gradients, each of half its
# size. The frozen projections of queries, keys and values pass nothing on.
LORA = (
    LORA_FORWARD
    + (HEAD + LINEAR + 4 * PRODUCT + 2 * ADAPTER)
    + (TOKENS * (D * D + 2 * D * F) + 3 * PRODUCT + 3 * ADAPTER // 2)
)  # 71,434,240 + 46,268,416 + 22,413,312 = 140,115,968


def _lora() -> nn.Module:
    model = _model(_attention(blocks.by_matmul), 2)
    model.requires_grad_(False)
    for block in model.blocks:
        attention = block.get_submodule("attention")
        for name in ("query", "value"):
            layer = attention.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            setattr(attention, name, LowRank(layer, RANK))
    return model


# Queries, keys and values of GROUPS of the HEADS heads; the products of attention stay as they are.
GROUPED = TOKENS * (2 * D * D + 2 * D * D * GROUPS // HEADS) + 2 * PRODUCT  # 8,388,608
GROUPED_PARAMETERS = V * D + 2 * (D * D + D) + 2 * (D * D + D) * GROUPS // HEADS  # 177,536

# Queries and output for every target, keys and values for every source token, TARGETS x S scores.
CROSS_ATTENTION = 2 * B * TARGETS * S * D  # 1,572,864
CROSS = 2 * B * (TARGETS + S) * D * D + CROSS_ATTENTION  # 8,912,896

# The router, then for each token CHOSEN experts of three matrices, whichever they are.
ROUTED = TOKENS * (D * EXPERTS + CHOSEN * 3 * D * HIDDEN)  # 25,296,896
ROUTED_PARAMETERS = V * D + D * EXPERTS + EXPERTS * 3 * D * HIDDEN  # 915,456

# Two layers 32 x 32 of 16 rows of plain numbers: the first layer's input has no gradient. Five products of 16,384.
PLAIN = 16 * 32 * 32

# Two convolutions of images of 16 x 16, windows of 3 x 3, each with 32 results of 8 channels: all there are, then those
# of one group of four. The image has no gradient.
WINDOWS = B * 16 * 16 * 32 * 8 * 9

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _block("matmul", _attention(blocks.by_matmul)),
        _block("@", _attention(blocks.by_operator)),
        _block("einsum", _attention(blocks.by_einsum)),
        _block("bmm", _attention(blocks.by_bmm)),
        _block("baddbmm", _attention(blocks.by_baddbmm)),
        _block("scaled_dot_product_attention", _attention(blocks.by_fused_kernel)),
        _block("MultiheadAttention", lambda: Packed(D, HEADS)),
        Case(
            "MultiheadAttention in eval",
            _answering,
            Truth(ONE, None, OUTSIDE + INSIDE, OUTSIDE + INSIDE),
            PARTS | {"attention and its projections": 2 * PRODUCT + 4 * TOKENS * D * D},
        ),
        Case("tied head", lambda: blocks.TiedHead(V, D), Truth(HEAD, 3 * HEAD, V * D, V * D)),
        Case(
            "grouped queries",
            lambda: blocks.SelfAttention(V, D, _attention(blocks.by_matmul, GROUPS)()),
            Truth(GROUPED, 3 * GROUPED, GROUPED_PARAMETERS, GROUPED_PARAMETERS),
            {"attention": 2 * PRODUCT, "biases": TOKENS * (2 * D + 2 * D * GROUPS // HEADS)},
        ),
        Case(
            "cross-attention",
            lambda: blocks.CrossAttention(V, D, _attention(blocks.by_matmul)()),
            Truth(CROSS, 3 * CROSS, V * D + 4 * (D * D + D), V * D + 4 * (D * D + D)),
            {"attention": CROSS_ATTENTION, "biases": 2 * B * (TARGETS + S) * D},
            lambda: {"tokens": _words(TARGETS), "source": _words(S)},
        ),
        Case(
            "plain input",
            lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)),
            Truth(2 * PLAIN, 5 * PLAIN, 2 * (32 * 32 + 32), 2 * (32 * 32 + 32)),
            {"biases": 2 * 16 * 32},
            lambda: {"input": torch.randn(16, 32)},
        ),
        Case(
            "grouped convolution",
            lambda: nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=4)),
            Truth(2 * WINDOWS, 5 * WINDOWS, 2 * 32 * (8 * 9 + 1), 2 * 32 * (8 * 9 + 1)),
            {"biases": 2 * B * 16 * 16 * 32, "products of other groups": WINDOWS},
            lambda: {"input": torch.randn(B, 8, 16, 16)},
        ),
        Case(
            "frozen layers",
            _frozen,
            Truth(FROZEN_FORWARD, FROZEN, OUTSIDE + 2 * INSIDE + V * D, 2 * D + INSIDE + V * D),
            PARTS | {"attention": 4 * PRODUCT, "biases": 2 * BIASES},
        ),
        Case(
            "LoRA",
            _lora,
            Truth(LORA_FORWARD, LORA, OUTSIDE + 2 * INSIDE + 8 * D * RANK, 8 * D * RANK),
            PARTS | {"attention": 4 * PRODUCT, "biases": 2 * BIASES, "adapters": 2 * ADAPTER},
        ),
        Case(
            "mixture of experts",
            lambda: blocks.Experts(V, D, HIDDEN, EXPERTS, CHOSEN),
            Truth(ROUTED, 3 * ROUTED, ROUTED_PARAMETERS, ROUTED_PARAMETERS),
            {"experts": ROUTED - TOKENS * D * EXPERTS},
        ),
    )
}
"""Every case by its name."""
