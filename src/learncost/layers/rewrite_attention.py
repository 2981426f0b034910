"""Rewrites of attention: norms of queries and keys, rotary positions, biases of scores, caps, scales, windows.

Each keeps the name of the value that it refines, so that they may follow one another in the order in which a model
applies them. External values (cosines, slopes, buckets) are inputs without a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.layers.layer import Layer
from learncost.layers.refinement import refined
from learncost.layers.rewrite import rewritten
from learncost.ops import entry


def with_norms(
    layer: Layer,
    gains: Mapping[str, str],
    along: tuple[str, ...] = ("k",),
    epsilon: float = 1e-6,
    shifts: Mapping[str, str] = {},
    from_one: bool = False,
) -> Layer:
    """Add root mean square norms of queries and keys: {"Q": "gQ", "K": "gK"}. Qwen3 norms each head, OLMo 2 all of
    them.

    A value is normalized along those of the axes that it has; its gain has the same. With `shifts`, {"Q": "sQ", "K":
    "sK"}, it is layer normalization, as in Phi; with `from_one` a gain is learned as its difference from one, as in
    Gemma 3.
    """
    for name, gain in gains.items():
        kind = "norm" if name in shifts else "rms_norm_from_one" if from_one else "rms_norm"
        normed_axes = tuple(axis for axis in layer.table.axes[name] if axis in along)
        layer = refined(layer, kind, name, {"epsilon": epsilon}, {"g": gain, "s": shifts.get(name, "")}, normed_axes)
    return layer


def with_unit_rms(layer: Layer, names: Iterable[str], epsilon: float, along: tuple[str, ...] = ("k",)) -> Layer:
    """Add root mean square norms without gains, as Llama 4 applies to queries and keys after rotary positions."""
    for name in names:
        layer = refined(layer, "unit_rms", name, {"epsilon": epsilon}, along=along)
    return layer


def with_temperature(layer: Layer, queries: str = "Q") -> Layer:
    """Multiply queries by temperature[M], which grows with the position, as Llama 4 does without positions."""
    return refined(layer, "temperature", queries)


def with_rotary(layer: Layer, queries: str = "Q", keys: str | None = "K") -> Layer:
    """Add rotary positions, Su et al. 2021, equation (34): x cos + rotated(x) sin, where rotated(x) reads x at flip.

    Queries and keys have a batch axis, then the positions, and last the rotated width. Inputs `cosine`, `sine` are for
    the queries' positions, `key_cosine`, `key_sine` for the keys'; the sign of the rotated part is in the sine. flip[k]
    = k +- half is Llama's layout, k +- 1 that of GPT-J; for partial rotary positions, the rest has cosine 1 and sine 0.
    Without `keys` only one value is rotated, for layers that read the keys of another one.
    """
    layer = refined(layer, "rotary", queries)
    if keys is None:
        return layer
    layer = refined(layer, "rotary", keys, names={"cosine": "key_cosine", "sine": "key_sine"})
    inputs = (*(name for name in layer.table.inputs if name != "flip"), "flip")  # which both read, comes last
    return replace(layer, table=replace(layer.table, inputs=inputs))


def with_softcap(layer: Layer, cap: float, name: str = "S") -> Layer:
    """Add soft capping of scores or logits, c tanh(x / c): Gemma Team 2024 (Gemma 2), section 2."""
    return refined(layer, "softcap", name, {"cap": cap, "inverse": 1 / cap})


def with_scale(layer: Layer, scale: float, name: str = "S") -> Layer:
    """Set the scale of the scores, such as Gemma's query_pre_attn_scalar^-0.5."""

    if not any(isinstance(line, Product) and line.name == name for line in layer.table.lines):
        raise InputError(f"{layer.name} has no product that defines {name}")

    def change(line: Line) -> tuple[Line]:
        if line.name != name or not isinstance(line, Product):
            return (line,)
        return (replace(line, right=tuple(Literal(scale) if isinstance(t, Literal) else t for t in line.right)),)

    return rewritten(layer, change)


def without_scale(layer: Layer, name: str = "S") -> Layer:
    """Remove the scale of the scores, as in T5: drop the line that scales them, and give its operand its name."""
    (line,) = (product for product in layer.table.lines if isinstance(product, Product) and product.name == name)
    (raw,) = (term.name for term in line.right if isinstance(term, Term))

    def change(line: Line) -> Iterable[Line]:
        if line.name == name:
            return ()
        return (line.renamed({raw: name}),)

    return rewritten(layer, change, values={n: v for n, v in layer.table.values.items() if n != raw})


def with_alibi(layer: Layer, name: str = "S") -> Layer:
    """Add a bias to scores that is linear in the distance, with a slope for each head: Press et al. 2022, section 3."""
    return refined(layer, "alibi", name)


def with_relative_bias(layer: Layer, name: str = "S") -> Layer:
    """Add a learned bias to scores for each head and bucket of distances: Raffel et al. 2020, section 2.1.

    bucket[M N] holds the row of the weight `relative` for query M and key N.
    """
    return refined(layer, "relative_bias", name)


def with_bias(layer: Layer, name: str = "S") -> Layer:
    """Add a bias to scores that is the last input, computed once for many blocks, as in T5: bias[h M N]."""
    return refined(layer, "bias", name)


def with_visible(layer: Layer, name: str = "S") -> Layer:
    """Restrict attention to visible[M N]: sliding windows, chunks, documents. It is dense, so priced in full."""
    return refined(layer, "visible", name)


def with_sinks(layer: Layer, sinks: str = "sinks", name: str = "S") -> Layer:
    """Add a learned logit for each head to the softmax of attention, whose share is dropped: gpt-oss."""
    heads = layer.table.axes[name][1:-2]
    new_op = entry("softmax_with_sink")

    def change(line: Line) -> tuple[Line]:
        if not isinstance(line, Op) or line.op != "softmax" or line.right[0].name != name:
            return (line,)
        meta = replace(line.meta, locals=(*line.meta.locals, sinks))
        right = (*line.right, Term(sinks, heads))
        return (replace(line, op=new_op.name, right=right, given=new_op.inputs, gives=new_op.outputs, meta=meta),)

    table = rewritten(layer, change).table
    return replace(
        layer, table=replace(table, values={**table.values, sinks: Value(heads)}, weights=(*table.weights, sinks))
    )
