"""Matrix products of every kind."""

from __future__ import annotations

from typing import Any

from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.reductions import summed
from learncost.importer.rules.views import called
from learncost.importer.unit_dims import matrix_product
from learncost.importer.views import At, StoredValue, View


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


def multiplied(reader: GraphReader, x: Any, z: Any) -> View:
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


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot")
def mm(reader: GraphReader, x: Any, z: Any) -> View:
    return multiplied(reader, x, z)


@rule("addbmm")
def addbmm(reader: GraphReader, shift: Any, x: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> View:
    result = summed(reader, multiplied(reader, x, z), [0])
    if alpha != 1:
        result = reader.multiply(result, alpha)
    return reader.add(shift if beta == 1 else reader.multiply(shift, beta), result)


@rule("bilinear")
def bilinear(reader: GraphReader, x: Any, z: Any, weight: Any, bias: Any = None) -> View:
    x, z, weight = map(reader.view, (x, z, weight))
    front = [f"i{place}" for place in range(len(x.dims) - 1)]
    half = reader.recorder.matmul([(x, [*front, "d"]), (weight, "fde")], [*front, "f", "e"])
    return shifted(
        reader,
        reader.recorder.matmul([(half, [*front, "f", "e"]), (z, [*front, "e"])], [*front, "f"]),
        bias,
    )


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
        tuple(At(index) if each is weight.dims[0][0] else each for each in weight.index),
        (index.dims[0], *weight.dims[1:]),
        weight.spread,
    )
    return reader.recorder.line([(x, "sd"), (experts, "sdf")], "sf")
