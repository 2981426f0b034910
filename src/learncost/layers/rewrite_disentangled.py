"""Rewritings of attention that make it disentangled: scores of contents against relative positions, as DeBERTa's code.

`rows` holds a row for each bucket of distances (axis a), and delta[M N] the row for query M and key N, which both terms
read: He et al. 2021, equation (4), and transformers' DisentangledSelfAttention. A weight that the layer has already is
shared (share_att_key of DeBERTa v2 and v3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learncost.equation.table import Line, Literal, Read, Term
from learncost.equation.value import Value
from learncost.layers.layer import Layer
from learncost.layers.rewrite_attention import Step, given, refined

ROWS = "a"


def with_content_to_position(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Scores with those of each query against the keys of its distances: S + scale Q (rows W)^T."""
    return _with_term(layer, "Q", weight, scale, "c2p", unread)


def with_position_to_content(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Scores with those of each key against the queries of its distances: S + scale K (rows W)^T."""
    return _with_term(layer, "K", weight, scale, "p2c", unread)


def _with_term(layer: Layer, content: str, weight: str, scale: float, name: str, unread: str) -> Layer:
    """`unread` is a weight that the rows are multiplied by too, and that nothing reads: forward alone."""
    batch, head, query, key = layer.table.axes["S"]
    own, width = layer.table.axes[content], layer.table.axes["XQ"][-1]
    _, position, *inner = own
    axes = {"rows": (ROWS, width), weight: (width, *inner)}
    projected, scores = Term(f"{name}.P", (ROWS, *inner)), (batch, head, position, ROWS)

    def refine(step: Step, left: Term, raw: Term) -> Iterable[Line]:
        whole, scaled = Term(f"{name}.R", scores), Term(f"{name}.S", scores)
        yield step.product(projected, Term("rows", axes["rows"]), Term(weight, axes[weight]))
        if unread:
            beside = Term(f"{name}.unread", (ROWS, *layer.table.axes[unread][1:]))
            yield step.product(beside, Term("rows", axes["rows"]), Term(unread, layer.table.axes[unread]))
        yield step.product(whole, Term(content, own), projected)
        yield step.product(scaled, whole, Literal(scale))
        at = Read(ROWS, Term("delta", (query, key)))
        yield step.sum(left, raw, Term(scaled.name, (batch, head, position, at)))

    layer = refined(layer, "S", f"before_{name}", refine)
    table = layer.table
    if "rows" not in table.inputs:
        table = replace(table, values={**table.values, "rows": Value(axes["rows"])}, inputs=(*table.inputs, "rows"))
    layer = given(replace(layer, table=table), indices={"delta": (query, key)})
    return layer if weight in table.weights else given(layer, weights={weight: axes[weight]})
