"""The parts of a module as PyTorch's operators, written like the code that they stand for.

Two modules are known: `plain`, written as for speed by hand, and `transformers`, whose code most people run. A part is
a method; what a family of transformers has otherwise is data, `[module]` in its file. A module that was read runs
itself (`running`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from learncost.ir.errors import named_one
from learncost.ir.line import Op
from learncost.program.autograd.calls import Projection
from learncost.program.autograd.operators import (
    BOOLEAN,
    FLOAT,
    POINTWISE,
    TapeTensor,
    cat,
    cross_entropy,
    flash_attention,
    layer_norm,
    linear,
    rms_norm,
)

COMPOSED = ("gelu_new", "gelu_fast", "gelu_accurate")
"""transformers' activations that are made of several operators (`transformers/activations.py`)."""


class Masks(Protocol):
    """The mask of a kind of attention, which all layers of that kind share."""

    def __call__(self, width: int, elements: int = 0) -> TapeTensor:
        """With so many bytes an element: one for every sequence, of booleans for all; or of so many elements."""


@dataclass(frozen=True)
class AttentionInputs:
    """What attention is given beside queries, keys and values.

    groups    heads of queries for one of keys and values, of which there are `heads`
    elements  of all scores, of the result, of the rows, and of a mask for every sequence
    causal    later positions are left out; `windowed`: those far before too; `padded`: some keys
    added     what is added to the scores
    cached    whether keys and values are of the positions that look at them
    alike     whether values are as wide as keys
    cache     what the cache holds until the model returns
    """

    groups: int
    heads: int
    elements: int
    results: int
    rows: int
    masked: int
    causal: bool
    windowed: bool
    padded: bool
    added: Sequence[TapeTensor]
    capped: bool
    scaled: bool
    sink: TapeTensor | None
    dropped: bool
    cached: bool
    identical: bool
    cache: list[TapeTensor]


@dataclass(frozen=True)
class Module:
    """The plain module.

    packed       weights that are one matrix
    attention    sdpa, eager, or disentangled: DeBERTa's
    cache        whether keys and values go through a cache
    upcast       whether the loss is computed in float
    written      how an activation is called, by its word
    rotary       whole, or part: the rest of a head is set beside what turned
    norm         where an RMS norm goes back to the module's type: before its scale, after it, or, own, nowhere, its
                 operand not being float
    scores       what eager attention computes in float: softmax, products, or nothing
    heads        views of what projections make, or copies
    zeros        whether attention without a bias of positions has one of zeros, which learns under checkpoints
    holds        what Python's names keep longer than it is read: embeddings until the model returns; or sublayers what
                 their last product reads until their norm is done
    checkpointed whether blocks run again
    grouped      how keys that several heads share reach them: sdpa, or broadcast
    masks        needed, or always: a causal mask is made even where the fused kernel knows it
    routing      in which type a token's shares of its experts are: own, or float
    composed     layers whose layer norm is composed of other operators
    floats       products in float: a layer and its line
    after        what is made before experts run where the table has it after them: a layer and its line
    buffers      bytes that a module has beside weights: positions' angles, masks
    """

    packed: Sequence[Sequence[str]] = ()
    attention: str = "sdpa"
    cache: bool = False
    upcast: bool = False
    written: Mapping[str, str] = field(default_factory=dict)
    rotary: str = "whole"
    norm: str = "before"
    scores: str = "softmax"
    heads: str = "views"
    zeros: bool = False
    checkpointed: bool = False
    holds: str = ""
    grouped: str = "sdpa"
    masks: str = "needed"
    routing: str = "own"
    composed: Sequence[str] = ()
    floats: Sequence[str] = ()
    after: str = ""
    buffers: int = 0

    name = "plain"
    said = "a plain module: products of one input as one, fused attention, norms and activations, no cache"
    gathers = True
    caches = True
    checkpoint = "frames"

    def joins(self, projections: Sequence[Projection], weights: Sequence[str]) -> list[list[Projection]]:
        """Which products of one value are one: all that have the same path of low rank. `weights` as the model's."""
        by_path: dict[str, list[Projection]] = {}
        for projection in projections:
            by_path.setdefault(projection.path[0], []).append(projection)
        return list(by_path.values())

    def linear(
        self,
        x: TapeTensor,
        weight: TapeTensor,
        bias: TapeTensor | None,
        sizes: Sequence[int],
        path: Sequence[TapeTensor],
        low: int,
    ) -> list[TapeTensor]:
        """A product, and one of low rank beside it; `low` is how many elements its middle has."""
        result = linear(x, weight, sum(sizes), bias)
        if path and weight.coded:
            result = result.copied()  # peft clones it
        if path:
            result = result + linear(linear(x, path[0], low), path[1], sum(sizes)) * 2.0
        return result.split(sizes) if len(sizes) > 1 else [result]

    def normed(self, x: TapeTensor, op: Op, weights: Sequence[TapeTensor], from_one: bool, rows: int) -> TapeTensor:
        """`functional.layer_norm`; and `rms_norm`, which on a processor is composed of others."""
        if op.op == "normalize":
            return layer_norm(x, weights, rows)
        if x.tape.cuda:
            return rms_norm(x, [weights[0] + 1.0] if from_one else weights, rows)
        normed = x * (x.pow().mean(rows) + 1e-6).apply("rsqrt")
        del x
        return normed * (weights[0] + 1.0 if from_one else weights[0]) if weights else normed

    def rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        """`x * cosine + cat((-second, first)) * sine`, a head's halves being first and second."""
        fixed = x * cosine
        first, second = x.split((x.elements // 2, x.elements // 2))
        del x
        return fixed + cat((-second, first)) * sine

    def attended(
        self, q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, masks: Masks
    ) -> TapeTensor:
        mask = masks(q.width) if scores.windowed or scores.padded else None
        attend = _eager if scores.capped or scores.sink else _sdpa
        return attend(q, k, v, scores, mask).transpose().contiguous()

    def activated(self, x: TapeTensor, op: str) -> TapeTensor:
        return x.apply(op)

    def routed(self, shares: TapeTensor) -> TapeTensor:
        """A token's shares of its experts, as what these make is multiplied by them."""
        return shares.in_float() if self.routing == "float" else shares

    def loss(self, scores: TapeTensor, targets: TapeTensor | None) -> TapeTensor:
        return cross_entropy(scores.in_float() if self.upcast else scores, targets)


@dataclass(frozen=True)
class Transformers(Module):
    """transformers' own code, 5.23."""

    name = "transformers"
    said = (
        "transformers' own module: its projections, masks, cache of keys and values, norms in float, composed "
        "activations, and its loss"
    )
    gathers = False

    def joins(self, projections: Sequence[Projection], weights: Sequence[str]) -> list[list[Projection]]:
        """The weights that one of transformers' modules holds; what has an adapter that others have not is apart."""
        by_pack: dict[tuple[int, str], list[Projection]] = {}
        for place, (projection, weight) in enumerate(zip(projections, weights, strict=True)):
            pack = next((i for i, names in enumerate(self.packed) if weight in names), -1 - place)
            by_pack.setdefault((pack, projection.path[0]), []).append(projection)
        return list(by_pack.values())

    def normed(self, x: TapeTensor, op: Op, weights: Sequence[TapeTensor], from_one: bool, rows: int) -> TapeTensor:
        """`LlamaRMSNorm`; `GemmaRMSNorm`, whose scale is one more than its weight, in float; `T5LayerNorm`."""
        width = x.width
        if op.op == "normalize" and op.meta.layer in self.composed:  # DebertaLayerNorm
            hidden = x.in_float()
            mean = hidden.mean(rows)
            deviation = ((hidden + mean).pow().mean(rows) + 1e-6).apply("sqrt")
            hidden = (hidden + mean).divided(deviation).to(width)
            return weights[0] * hidden + weights[1]
        if op.op == "normalize":
            return layer_norm(x, weights, rows)
        hidden = x.in_float()
        variance = hidden.pow().mean(rows)
        if self.norm == "own":
            hidden = x
        del x
        hidden = hidden * (variance + 1e-6).apply("rsqrt")
        if from_one:
            return (hidden * (weights[0].in_float() + 1.0)).to(width)
        if self.norm == "after":
            return (weights[0] * hidden).to(width)
        return weights[0] * hidden.to(width) if weights else hidden.to(width)

    def rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        """`apply_rotary_pos_emb`, with slices in `rotate_half`."""
        if self.rotary == "part":
            turning, rest = x.slice(x.elements // 2), x.slice(x.elements - x.elements // 2)
            return cat((self._turned(turning, cosine, sine), rest))
        return self._turned(x, cosine, sine)

    def _turned(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        half = x.elements // 2
        return x * cosine + cat((-x.slice(half), x.slice(half)), x.value.turned) * sine

    def attended(
        self, q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, masks: Masks
    ) -> TapeTensor:
        """Keys and values through the cache, then `sdpa_attention_forward` or `eager_attention_forward`."""
        if self.attention == "disentangled":
            return _disentangled(q, k, v, scores, masks(FLOAT), self.heads == "copies").transpose().contiguous()
        broadcast = self.grouped == "broadcast" and scores.groups > 1
        if broadcast and scores.heads > 1:
            q, k, v = q.repeated(1), k.repeated(scores.groups), v.repeated(scores.groups)
            scores, broadcast = replace(scores, groups=1), False
        if self.cache and scores.cached:
            k, v = cat((k,)), cat((v,))
            scores.cache.extend((k, v))
        if self.attention == "eager":
            mask = masks(q.width) if scores.causal or scores.padded else None
            if self.scores == "products":
                q, k = q.in_float(), k.in_float()
            return _eager(q, k, v, scores, mask, self.scores != "nothing").transpose().contiguous()
        if self.masks == "always" and scores.added:  # biases of positions are in the mask of all layers
            return _sdpa(q, k, v, replace(scores, added=()), masks(q.width, scores.elements)).transpose().contiguous()
        scores = replace(scores, added=[bias.copied() for bias in scores.added])  # create_position_bias_mask
        if self.zeros and not scores.added and self.checkpointed:
            return _math(q, k, v, scores, masks(q.width)).transpose().contiguous()
        needs_mask = scores.windowed or scores.padded or (scores.causal and self.masks == "always")
        mask = masks(BOOLEAN).copied(scores.masked, q.width) if needs_mask else None  # convert_boolean_attn_mask
        if broadcast:
            return _math(q, k, v, scores, mask, broadcast=True).transpose().contiguous()
        return _sdpa(q, k, v, scores, mask).transpose().contiguous()

    def activated(self, x: TapeTensor, op: str) -> TapeTensor:
        written = self.written.get(op, op)
        if written in COMPOSED:
            return 0.5 * x * (1.0 + (0.8 * (x + 0.045 * x.pow())).apply("tanh"))
        return x.apply(written if written in POINTWISE else op)


class Reentrant(Transformers):
    """The same under PyTorch's older checkpoints."""

    name = "transformers-reentrant"
    said = f"{Transformers.said}, with checkpoints by use_reentrant=True"
    checkpoint = "reentrant"


class Uncached(Transformers):
    """The same called with `use_cache=False`."""

    name = "transformers-uncached"
    said = Transformers.said.replace("cache of keys and values", "keys and values without a cache")
    caches = False


class Itself(Module):
    """A module that was read, as it runs itself: nothing is assumed of it."""

    name = "itself"
    said = "the module itself, run on tensors without values"


def _sdpa(q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor | None) -> TapeTensor:
    """`functional.scaled_dot_product_attention`: the fused kernel where it can be, else what it is composed of."""
    bias = mask
    for bias_part in scores.added:
        bias = bias_part if bias is None else bias + bias_part
    if bias and scores.groups > 1:
        k, v = k.repeated(scores.groups), v.repeated(scores.groups)
        scores = replace(scores, groups=1)
    dropped = scores.dropped and not q.tape.cuda  # whose kernels drop shares too
    grouped = scores.groups > 1 and q.tape.cuda and q.width >= FLOAT  # only the kernels for bf16 and fp16 know groups
    if scores.identical and not dropped and not grouped and not (bias and bias.learns):
        return flash_attention(q, k, v, scores.results, scores.rows, bias)
    return _math(q, k, v, scores, bias)


def _math(
    q: TapeTensor,
    k: TapeTensor,
    v: TapeTensor,
    scores: AttentionInputs,
    bias: TapeTensor | None,
    broadcast: bool = False,
) -> TapeTensor:
    """`_scaled_dot_product_attention_math` (`aten/src/ATen/native/transformers/attention.cpp`).

    Its names hold operands in float, keys and values repeated, and scaled queries to its end. Keys that are broadcast
    are spread by the product.
    """
    width, spread = q.width, scores.groups if broadcast else 1
    query, key, value = q.in_float(), k.in_float(), v.in_float()
    scaled = query * 0.5
    if not broadcast:
        key, value = key.repeated(scores.groups), value.repeated(scores.groups)
    shares = scaled.contiguous().matmul((key * 0.5).repeated(spread).contiguous(), scores.elements)
    if bias:
        shares = shares.add_(bias)
    shares = shares.apply("safe_softmax")
    if scores.dropped:
        shares = shares.dropout()
    converted = shares.to(width)
    result = shares.matmul(value.repeated(spread).contiguous(), scores.results).to(width)
    del converted, query
    return result


def _eager(
    q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor | None, in_float: bool = True
) -> TapeTensor:
    """`eager_attention_forward`: scores, softmax in float, shares of the values."""
    k, v = k.repeated(scores.groups), v.repeated(scores.groups)
    weights = q.contiguous().matmul(k.contiguous(), scores.elements)
    if scores.scaled:
        weights = weights * 0.5
    if scores.capped:
        weights = (weights / 50.0).apply("tanh") * 50.0
    for bias in scores.added:
        weights = weights + bias
    if mask:
        weights = weights + mask
    if scores.sink:
        weights = cat((weights, scores.sink.repeated(scores.rows // scores.sink.elements)))
        weights = weights + -1.0
    weights = (weights.in_float() if in_float else weights).apply("softmax").to(v.width)
    if scores.sink:
        weights = weights.slice(scores.elements)
    if scores.dropped:
        weights = weights.dropout()
    return weights.matmul(v.contiguous(), scores.results)


def _disentangled(
    q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor, newer: bool
) -> TapeTensor:
    """`DisentangledSelfAttention`: scores of contents, and those with positions, which are added to each other.

    The newer one divides keys, the other one queries.
    """
    if newer:
        k = k * 0.5
    else:
        q = q * 0.5
    weights = q.contiguous().matmul(k.contiguous(), scores.elements)
    related: TapeTensor | None = None
    for bias in scores.added:
        related = related.add_(bias) if related else bias + 0.0
        del bias
    if related:
        weights = weights + related
    weights = weights.masked(mask.apply("neg", BOOLEAN))
    weights = weights.apply("softmax")
    if scores.dropped:
        weights = weights.dropout()
    return weights.matmul(v.contiguous(), scores.results)


MODULES: Mapping[str, type[Module]] = {
    module.name: module for module in (Transformers, Uncached, Reentrant, Module, Itself)
}
"""Whose code is assumed, by name."""
USUAL_MODULE = Transformers.name


def module_named(name: str) -> type[Module]:
    """Whose code is meant. Raises `InputError` for a name that is not known."""
    return named_one("module", name, MODULES)
