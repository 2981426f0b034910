"""The parts of a module as PyTorch's operators, written like the code that they model.

Modules are `plain`, optimized by hand, `transformers`, the most widely used code, and `litgpt`, a trainer's own. A part
is a method; differences of a family of transformers are data, `[module]` in its file. An imported module runs itself
(`running`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from learncost.ir.dataclass import dataclass, field, replace
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
    parallel_cross_entropy,
    rms_norm,
)

COMPOSED = ("gelu_new", "gelu_fast", "gelu_accurate")
"""transformers' activations that are composed of several operators (`transformers/activations.py`)."""


class Masks(Protocol):
    """The mask of a kind of attention, which all layers of that kind share."""

    def __call__(self, width: int, elements: int = 0) -> TapeTensor:
        """Return a mask of a width in bytes: per sequence, for booleans for all; or of a number of elements."""


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of attention in addition to queries, keys and values.

    groups    heads of queries per head of keys and values, of which there are `heads`
    elements  of all scores, of the result, of the rows, and of a mask for every sequence
    causal    later positions are masked; `windowed`: distant earlier ones too; `padded`: some keys
    filled    whether a sliding window has as many keys as there are
    added     biases of the scores
    cached    whether keys and values are of the same positions as the queries
    identical whether values are as wide as keys
    cache     the KV cache until the model returns
    held      what variables hold until the heads of the result are concatenated
    """

    groups: int
    heads: int
    elements: int
    results: int
    rows: int
    masked: int
    causal: bool
    windowed: bool
    filled: bool
    padded: bool
    added: Sequence[TapeTensor]
    capped: bool
    scaled: bool
    sink: TapeTensor | None
    dropped: bool
    cached: bool
    identical: bool
    cache: list[TapeTensor]
    held: list[TapeTensor]


@dataclass(frozen=True)
class Module:
    """The plain module.

    packed       weights that are one matrix
    attention    sdpa, eager, or disentangled: DeBERTa's
    cache        whether keys and values go through a cache
    conv1d       whether products with a bias are `Conv1D`, whose weights are not transposed
    upcast       whether the loss is computed in float
    written      the module's name of an activation, by its op
    rotary       "whole", or "part": the rest of a head is concatenated to the rotated part
    norm         where an RMS norm casts back to the module's type: before its scale, after it, or, own, nowhere, since
                 its operand is not cast to float
    scores       what eager attention computes in float: softmax, products, or nothing
    heads        views of the projections' results, or copies
    zeros        whether attention without a position bias has one of zeros, which requires a gradient under checkpoints
    holds        what Python names hold longer than it is read: embeddings until the model returns; or sublayers the
                 operand
                 of their last product until their norm is done
    checkpointed whether blocks are recomputed
    grouped      how keys reach the heads that share them: sdpa, or broadcast
    masks        needed, or always: a causal mask is created even where the fused kernel has a flag for it
    routing      the type of a token's gates: own, or float
    composed     layers whose layer norm is composed of other operators
    casts        products whose operand is cast to the type of the weight: a layer and its line
    floats       products, sums and ops in float: a layer and its line
    after        a line that runs before experts although the table has it after them: a layer and its line
    buffers      bytes of a module's buffers: rotary angles, masks
    chunk        positions of a chunk of Mamba-2's scan
    window       keys of a sliding window, whatever the number of positions; 0: none
    """

    packed: Sequence[Sequence[str]] = ()
    attention: str = "sdpa"
    cache: bool = False
    conv1d: bool = False
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
    casts: Sequence[str] = ()
    floats: Sequence[str] = ()
    after: str = ""
    buffers: int = 0
    chunk: int = 1
    window: int = 0

    name = "plain"
    summary = "a plain module (merged projections of one input, fused attention, norms and activations, no KV cache)"
    gathers = True
    mixes = False
    caches = True
    of_family = False
    stable = False
    linear_experts = hooked_again = False
    checkpoint = "frames"

    def joins(self, projections: Sequence[Projection], weights: Sequence[str]) -> list[list[Projection]]:
        """Return which products of one value are one: all with the same low-rank path. `weights` are the model's."""
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
        drops: bool = False,
    ) -> list[TapeTensor]:
        """Return a product plus its low-rank path, with dropout of its operand if it `drops`; `low` is the number of
        elements between A and B.
        """
        x = x.to(min(x.width, weight.width or x.width))
        result = linear(x, weight, sum(sizes), bias, name="addmm" if bias and self.conv1d else "linear")
        if path and weight.coded:
            result = result.copied()  # peft clones it
        if path:
            x = x.to(max(x.width, path[0].width))  # _cast_input_dtype
            x = x.dropout() if drops else x
            if len(path) > len(("A", "B")):
                product = None if drops else result + bias if bias else result
                result = (result + _decomposed(x, product, weight, path, low)).to(result.width)
            else:
                result = result + linear(linear(x, path[0], low), path[1], sum(sizes)) * 2.0
        return result.split(sizes) if len(sizes) > 1 else [result]

    def normed(self, x: TapeTensor, op: Op, weights: Sequence[TapeTensor], from_one: bool, rows: int) -> TapeTensor:
        """Run `functional.layer_norm`; or `rms_norm`, which is composed of other operators on a CPU."""
        if op.op == "normalize":
            return layer_norm(x, weights, rows)
        if x.tape.cuda:
            return rms_norm(x, [weights[0] + 1.0] if from_one else weights, rows)
        normed = x * (x.pow().mean(rows) + 1e-6).apply("rsqrt")
        return normed * (weights[0] + 1.0 if from_one else weights[0]) if weights else normed

    def rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        """Run `x * cosine + cat((-second, first)) * sine`, with the halves first and second of a head."""
        fixed = x * cosine
        first, second = x.split((x.elements // 2, x.elements // 2))
        return fixed + cat((-second, first)) * sine

    def attended(
        self, q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, masks: Masks
    ) -> TapeTensor:
        unfused = self.attention == "eager"
        mask = masks(q.width) if scores.windowed or scores.padded or (unfused and scores.causal) else None
        attend = _eager if scores.capped or scores.sink or unfused else _sdpa
        return attend(q, k, v, scores, mask)

    def activated(self, x: TapeTensor, op: str) -> TapeTensor:
        return x.apply(op)

    def routed(self, shares: TapeTensor) -> TapeTensor:
        """Return a token's gates in the type in which they multiply the experts' results."""
        return shares.in_float() if self.routing == "float" else shares

    def loss(self, scores: TapeTensor, targets: TapeTensor | None, parallel: bool = False) -> TapeTensor:
        scores = scores.in_float() if self.upcast else scores
        return parallel_cross_entropy(scores) if parallel else cross_entropy(scores, targets)


def _decomposed(
    x: TapeTensor, product: TapeTensor | None, weight: TapeTensor, path: Sequence[TapeTensor], low: int
) -> TapeTensor:
    """Run peft's `DoraLinearLayer.forward` (0.21.2, tuners/lora/dora.py) on a product without its bias, which None
    computes again; the norm of the adapted weight has no gradient, and products with an identity make the weight.
    """
    a, b, magnitude = path
    features = weight.elements // magnitude.elements
    x.tape.read()
    eye = x.tape.new(features**2, a.width, name="eye")
    inward, outward = (each.lowered().viewed_as(each.elements) for each in (a, b))
    middle = linear(eye, inward, a.elements)
    change = linear(middle, outward, weight.elements).to(x.width)
    base = weight.decoded()
    base = base.viewed_as(base.elements).to(x.width)
    adapted = base + change * 2.0
    x.tape.read(adapted)
    norm = x.tape.new(magnitude.elements, adapted.width, name="linalg_vector_norm")
    gain = magnitude * norm
    result = linear(linear(x, a, low), b, low * weight.elements // a.elements)
    product = linear(x, base, result.elements) if product is None else product
    added = (gain + 1.0) * product + gain * result * 2.0
    x.tape.hold(eye, middle, change, base, product, result)
    return added


@dataclass(frozen=True)
class Transformers(Module):
    """transformers' own code, 5.23."""

    name = "transformers"
    summary = (
        "Hugging Face's implementation (projections, masks, KV cache, norms in float32, composed activations and loss "
        "as in transformers)"
    )
    gathers = False
    mixes = True
    of_family = True

    def joins(self, projections: Sequence[Projection], weights: Sequence[str]) -> list[list[Projection]]:
        """Return the weights grouped by transformers' modules; a weight with an adapter is separate."""
        by_pack: dict[tuple[int, str], list[Projection]] = {}
        for place, (projection, weight) in enumerate(zip(projections, weights, strict=True)):
            pack = next((i for i, names in enumerate(self.packed) if weight in names), -1 - place)
            by_pack.setdefault((pack, projection.path[0]), []).append(projection)
        return list(by_pack.values())

    def normed(self, x: TapeTensor, op: Op, weights: Sequence[TapeTensor], from_one: bool, rows: int) -> TapeTensor:
        """Run `LlamaRMSNorm`; `GemmaRMSNorm`, whose scale is one plus its weight, in float; `T5LayerNorm`."""
        width = x.width
        if op.op == "normalize" and op.meta.layer in self.composed:  # DebertaLayerNorm
            hidden = x.in_float()
            mean = hidden.mean(rows)
            deviation = ((hidden + mean).pow().mean(rows) + 1e-6).apply("sqrt")
            hidden = (hidden + mean).divided(deviation).to(width)
            result = weights[0] * hidden + weights[1]
            x.tape.hold(mean, deviation, hidden)
            return result
        if op.op == "normalize":
            return layer_norm(x, weights, rows)
        if op.meta.block and weights:  # MambaBlock casts its residual to the weight's type, and norm_f does not
            width = min(width, weights[0].width)
            x = x.to(width)
        return _normed_in_float(x, weights, from_one, rows, width, self.norm)

    def rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        """Run `apply_rotary_pos_emb`, with slices in `rotate_half`."""
        if self.rotary == "part":
            turning, rest = x.slice(x.elements // 2), x.slice(x.elements - x.elements // 2)
            return cat((self._rotated(turning, cosine, sine), rest))
        return self._rotated(x, cosine, sine)

    def _rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        half = x.elements // 2
        return x * cosine + cat((-x.slice(half), x.slice(half)), x.transposed) * sine

    def attended(
        self, q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, masks: Masks
    ) -> TapeTensor:
        """Run keys and values through the cache, then `sdpa_attention_forward` or `eager_attention_forward`."""
        if self.attention == "disentangled":
            return _disentangled(q, k, v, scores, masks(FLOAT), self.heads == "copies")
        broadcast = self.grouped == "broadcast" and scores.groups > 1
        if broadcast and scores.heads > 1:
            q, k, v = q.repeated(1), k.repeated(scores.groups), v.repeated(scores.groups)
            scores, broadcast = replace(scores, groups=1), False
        if self.cache and scores.cached:
            k, v = cat((k,)), cat((v,), width=max(k.width, v.width))  # DynamicLayer has the type of its keys
            scores.cache.extend((k, v))
        if self.attention == "eager":
            mask = masks(q.width) if scores.causal or scores.padded else None
            if self.scores == "products":
                q, k = q.in_float(), k.in_float()
            return _eager(q, k, v, scores, mask, self.scores != "nothing")
        if self.masks == "always" and scores.added:  # position biases are in the mask of all layers
            return _sdpa(q, k, v, replace(scores, added=()), masks(q.width, scores.elements))
        scores = replace(scores, added=[bias.copied() for bias in scores.added])  # create_position_bias_mask
        scores.held.extend(scores.added)
        if self.zeros and not scores.added and self.checkpointed:
            return _math(q, k, v, scores, masks(q.width))
        windowed = scores.windowed or scores.filled  # _ignore_causal_mask_sdpa: kv_length >= local_attention_size
        needs_mask = windowed or scores.padded or (scores.causal and self.masks == "always")
        mask = masks(BOOLEAN).copied(scores.masked, q.width) if needs_mask else None  # convert_boolean_attn_mask
        if broadcast:
            return _math(q, k, v, scores, mask, broadcast=True)
        return _sdpa(q, k, v, scores, mask)

    def activated(self, x: TapeTensor, op: str) -> TapeTensor:
        written = self.written.get(op, op)
        if written in COMPOSED:
            return 0.5 * x * (1.0 + (0.8 * (x + 0.045 * x.pow())).apply("tanh"))
        return x.apply(written if written in POINTWISE else op)


@dataclass(frozen=True)
class LitGPT(Module):
    """litgpt's own code, 26857050, model.py."""

    name = "litgpt"
    summary = "litgpt's implementation (merged queries, keys and values, which every head has; RMS norms in float32)"
    stable = True  # a StableEmbedding of quantized models: the embedding before it and its gradient stay, lora.py:215

    def normed(self, x: TapeTensor, op: Op, weights: Sequence[TapeTensor], from_one: bool, rows: int) -> TapeTensor:
        if op.op == "normalize":
            return layer_norm(x, weights, rows)
        return _normed_in_float(x, weights, from_one, rows, x.width, "after")

    def attended(
        self, q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, masks: Masks
    ) -> TapeTensor:
        k, v = k.repeated(scores.groups), v.repeated(scores.groups)
        return super().attended(q, k, v, replace(scores, groups=1), masks)

    def rotated(self, x: TapeTensor, cosine: TapeTensor, sine: TapeTensor) -> TapeTensor:
        """Concatenate the rotated part and the rest of a head, which may be nothing."""
        return cat((super().rotated(x, cosine, sine),))


class Reentrant(Transformers):
    """The same with PyTorch's reentrant checkpoints."""

    name = "transformers-reentrant"
    checkpoint = "reentrant"


class Transformers4(Reentrant):
    """transformers' own code before 4.50: checkpoints are reentrant and around FSDP's wrapper of a block, logits are
    shifted in a copy (4.48, loss/loss_utils.py), and experts are linear modules, one after the other (4.48,
    modeling_mixtral.py).
    """

    name = "transformers-4"
    summary = f"{Transformers.summary}, before 4.50 (shifted logits are a copy, experts are linear modules),"
    linear_experts = hooked_again = True

    def loss(self, scores: TapeTensor, targets: TapeTensor | None, parallel: bool = False) -> TapeTensor:
        logits = scores.in_float() if self.upcast else scores
        shifted = logits.copied()
        result = super().loss(shifted, targets, parallel)
        scores.tape.hold(logits, shifted)
        return result


class Uncached(Transformers):
    """The same with `use_cache=False`."""

    name = "transformers-uncached"
    summary = Transformers.summary.replace("KV cache", "no KV cache")
    caches = False


class UserModule(Module):
    """An imported module, which runs itself: nothing is assumed about it."""

    name = "itself"
    summary = "the imported module itself, run on fake tensors,"


def _normed_in_float(
    x: TapeTensor, weights: Sequence[TapeTensor], from_one: bool, rows: int, width: int, cast: str
) -> TapeTensor:
    """Run an RMS norm that computes in float and casts its result to a width, at the place that `cast` names."""
    hidden = x.in_float()
    variance = hidden.pow().mean(rows)
    x.tape.hold(hidden)
    if cast == "own":
        hidden = x
    hidden = hidden * (variance + 1e-6).apply("rsqrt")
    if from_one:
        result = (hidden * (weights[0].in_float() + 1.0)).to(width)
    elif cast == "after" and weights:
        result = (weights[0] * hidden).to(width)
    else:
        result = weights[0] * hidden.to(width) if weights else hidden.to(width)
    x.tape.hold(hidden, variance)
    return result


def _sdpa(q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor | None) -> TapeTensor:
    """Run `functional.scaled_dot_product_attention`: the fused kernel where possible, otherwise its composition."""
    q, k, v = q.lowered(), k.lowered(), v.lowered()
    bias = mask
    for bias_part in scores.added:
        bias = bias_part if bias is None else bias + bias_part
    if bias and scores.groups > 1:
        k, v = k.repeated(scores.groups), v.repeated(scores.groups)
        scores = replace(scores, groups=1)
    dropped = scores.dropped and not q.tape.cuda  # CUDA kernels apply dropout, too
    grouped = scores.groups > 1 and q.tape.cuda and q.width >= FLOAT  # only bf16 and fp16 kernels support groups
    if scores.identical and not dropped and not grouped and not (bias and bias.learns):
        keys, causal = scores.elements // scores.rows, scores.causal and not bias
        with q.tape.given(keys=keys, groups=scores.groups, is_causal=causal):
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
    """Run `_scaled_dot_product_attention_math` (`aten/src/ATen/native/transformers/attention.cpp`).

    Its names hold operands in float, keys and values repeated, and scaled queries until its end. Broadcast keys are
    expanded by the product.
    """
    q, k, v = q.lowered(), k.lowered(), v.lowered()
    width, spread = q.width, scores.groups if broadcast else 1
    query, key, value = q.in_float(), k.in_float(), v.in_float()
    scaled = query * 0.5
    if not broadcast:
        key, value = key.repeated(scores.groups), value.repeated(scores.groups)
    shares = scaled.contiguous().product((key * 0.5).repeated(spread).contiguous(), scores.elements, scores.rows)
    if bias:
        shares = shares.add_(bias)
    shares = shares.apply("safe_softmax")
    if scores.dropped:
        shares = shares.dropout()
    converted = shares.to(width)
    result = shares.product(value.repeated(spread).contiguous(), scores.results, scores.rows).to(width)
    q.tape.hold(query, key, value, scaled, shares, converted)
    return result


def _eager(
    q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor | None, in_float: bool = True
) -> TapeTensor:
    """Run `eager_attention_forward`: scores, softmax in float, product with the values."""
    k, v = k.repeated(scores.groups), v.repeated(scores.groups)
    weights = q.contiguous().matmul(k.contiguous(), scores.elements, scores.rows)
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
    scores.held.extend((k, v))
    return weights.matmul(v.contiguous(), scores.results, scores.rows)


def _disentangled(
    q: TapeTensor, k: TapeTensor, v: TapeTensor, scores: AttentionInputs, mask: TapeTensor, newer: bool
) -> TapeTensor:
    """Run `DisentangledSelfAttention`: scores of contents, and those with positions, which are added to each other.

    DeBERTa v2 divides keys, v1 queries.
    """
    if newer:
        k = k * 0.5
    else:
        q = q * 0.5
    weights = q.contiguous().matmul(k.contiguous(), scores.elements, scores.rows)
    related: TapeTensor | None = None
    for bias in scores.added:
        related = related.add_(bias) if related else bias + 0.0
    if related:
        weights = weights + related
    weights = weights.masked(mask.apply("neg", BOOLEAN))
    weights = weights.apply("softmax")
    if scores.dropped:
        weights = weights.dropout()
    result = weights.matmul(v.contiguous(), scores.results, scores.rows)
    q.tape.hold(q, k, related)
    return result


MODULES: Mapping[str, type[Module]] = {
    module.name: module for module in (Transformers, Uncached, Reentrant, Transformers4, Module, LitGPT, UserModule)
}
"""The implementations that can be simulated, by name."""
DEFAULT_MODULE = Transformers.name


def module_named(name: str) -> type[Module]:
    """Return the implementation of a name. Raises `InputError` for an unknown one."""
    return named_one("module", name, MODULES)
