"""Matrix products of every kind, and scaled dot-product attention: two of them with a softmax between."""

from __future__ import annotations

import math
from typing import Any

import torch

from learncost.importer.axes import AxisClass, equal
from learncost.importer.constants import Mask
from learncost.importer.equations import DimensionCondition, NumberOperand
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.views import called, merged
from learncost.importer.unit_dims import matrix_product
from learncost.importer.views import GivenTensor, IndexedAxis, StoredValue, View, ViewAxis
from learncost.ir.dataclass import replace


def shifted(reader: GraphReader, value: View, bias: Any) -> View:
    return value if bias is None else reader.add(value, bias)


@rule("linear")
def linear(reader: GraphReader, x: Any, weight: Any, bias: Any = None) -> View:
    x, weight = reader.view(x), reader.view(weight)
    called(x, "d")
    called(weight, *(("f", "d") if len(weight.dims) == 2 else ("d",)))
    front = [f"i{place}" for place in range(len(x.dims) - 1)]
    out = [*front, "f"] if len(weight.dims) == 2 else front
    letters = ["f", "d"] if len(weight.dims) == 2 else ["d"]
    if len(weight.dims) == 1:  # the name that it gives then
        reader.recorder.operator = "mv" if front else "dot"
    result = matrix_product(reader.recorder, x, weight, [*front, "d"], letters, out)
    return shifted(reader, result, bias)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot")
def mm(reader: GraphReader, x: Any, z: Any) -> View:
    """Record torch.matmul: the last axis with the second to last, and all axes before them broadcast."""
    x, z = reader.view(x), reader.view(z)
    first = ["m", "n"] if len(x.dims) > 1 else ["n"]
    second = ["n", "p"] if len(z.dims) > 1 else ["n"]
    if len(z.dims) == 1 and reader.recorder.operator == "matmul":  # the name that it gives then
        reader.recorder.operator = "mv" if len(x.dims) > 1 else "dot"
    batch = max(len(x.dims) - len(first), len(z.dims) - len(second))
    front = [f"b{place}" for place in range(batch)]
    letters_x = [*front[batch - (len(x.dims) - len(first)) :], *first]
    letters_z = [*front[batch - (len(z.dims) - len(second)) :], *second]
    out = [*front, *first[:-1], *second[1:]]
    return matrix_product(reader.recorder, x, z, letters_x, letters_z, out)


@rule("bilinear")
def bilinear(reader: GraphReader, x: Any, z: Any, weight: Any, bias: Any = None) -> View:
    x, z, weight = map(reader.view, (x, z, weight))
    front = [f"i{place}" for place in range(len(x.dims) - 1)]
    half = reader.recorder.matmul([(x, [*front, "d"]), (weight, "fde")], [*front, "f", "e"])
    result = reader.recorder.matmul([(half, [*front, "f", "e"]), (z, [*front, "e"])], [*front, "f"])
    return shifted(reader, result, bias)


@rule("transformers.grouped_mm_fallback", "_grouped_mm")
def grouped(reader: GraphReader, x: Any, weight: Any, offsets: Any = None, *_: Any, **__: Any) -> View:
    """Record a grouped product of rows: the matrix is indexed by the group of the row."""
    x, weight = reader.view(x), reader.view(weight)
    if not isinstance(offsets, GivenTensor) or len(x.dims) != 2 or len(weight.dims) != 3:
        raise reader.refusal("a grouped product without given offsets")
    weight.dims[0][0].axis.keep_whole()
    slots = x.dims[0]
    group = StoredValue("group", tuple(slot.axis for slot in slots), "groups", str(offsets.node.name))
    index = View.of(group, [len(slots)])
    experts = View(
        weight.stored,
        tuple(IndexedAxis(index) if each is weight.dims[0][0] else each for each in weight.index),
        (index.dims[0], *weight.dims[1:]),
        weight.spread,
    )
    return reader.recorder.line([(x, "sd"), (experts, "sdf")], "sf")


@rule("scaled_dot_product_attention")
def attention(reader: GraphReader, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> View:
    given = reader.settings
    mask, is_causal, scale = given.attn_mask, given.is_causal, given.scale
    q, k, v = map(reader.view, (query, key, value))
    if given.enable_gqa and k.shape[-3] != q.shape[-3]:
        k, v = (_repeated(each, q.shape[-3] // k.shape[-3]) for each in (k, v))
    called(q, "h", "M", "k")
    called(k, "h", "N", "k")
    called(v, "h", "N", "k")
    most = max(len(q.dims), len(k.dims), len(v.dims))
    front = [f"b{place}" for place in range(most - 2)]

    def letters(view: View, *last: str) -> list[str]:
        return [*front[most - len(view.dims) :], *last]

    if is_causal := is_causal and not equal(k.shape[-2], 1):  # the only key is visible to all queries
        q, k, v = (merged(reader, each, len(each.dims) - 2) for each in (q, k, v))
    seen = Mask() if is_causal else None
    if mask is not None and not is_causal and _single(q, k) and (seen := reader.mask(mask)) is not None:
        is_causal, mask = True, None
    where = [DimensionCondition("N", "<=", "M", seen.window)] if seen is not None and _single(q, k) else []
    if is_causal and not where:
        raise reader.refusal("a causal attention of one position to several")
    recorder = reader.recorder
    out = [*front, "M", "N"]
    raw = recorder.matmul([(q, letters(q, "M", "k")), (k, letters(k, "N", "k"))], out, where=where, hint="R")
    points = [slot.axis for slot in q.dims[-1]]
    factor = NumberOperand(1.0, tuple(points), -0.5) if scale is None else NumberOperand(float(scale))
    if factor.axes and factor.power == -0.5 and isinstance(q.shape[-1], int) and q.shape[-1] == 1:
        factor = NumberOperand(1.0)
    scores = recorder.line([(raw, out), factor], out, where=where, hint="S")
    if mask is not None:
        scores = masked(reader, scores, mask)
    if scores.dims[-1]:
        shares = recorder.line([(scores, out)], out, op="softmax", acts=["N"], where=where, hint="P")
    else:
        shares = reader.add(reader.multiply(0.0, scores), 1.0)
    return recorder.matmul([(shares, out), (v, letters(v, "N", "j"))], [*front, "M", "j"], where=where, hint="A")


def _repeated(view: View, times: Any) -> View:
    """Return a view whose heads are each read by several heads of queries."""
    slot = ViewAxis(AxisClass(times))
    rows = [*view.dims[:-3], (*view.dims[-3], slot), *view.dims[-2:]]
    return replace(view, dims=tuple(rows), spread=view.spread | {slot})


def _single(q: View, k: View) -> bool:
    return len(q.dims[-2]) == 1 and len(k.dims[-2]) == 1


def masked(reader: GraphReader, scores: View, mask: Any) -> View:
    """Return scores under a mask: a boolean one keeps where true, a float one is added. The graph tells which, also for
    masks that lines compute.
    """
    node = reader.node
    given = node.kwargs["attn_mask"] if "attn_mask" in node.kwargs else node.args[3]
    if given.meta["val"].dtype == torch.bool:
        return reader.op("select", mask, scores, -math.inf)
    return reader.add(scores, mask)
