"""Embedding bags: the sum, mean or maximum of rows at several positions."""

from __future__ import annotations

from typing import Any, NamedTuple

from learncost.importer.axes import equal
from learncost.importer.nodes import operator_name, shape_of, size_of
from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.indexing import embedding
from learncost.importer.rules.reductions import extreme, mean_of, summed
from learncost.importer.rules.views import reshaped
from learncost.importer.views import View

SUM, MEAN = 0, 1
"""PyTorch's numbers of the modes of a bag; the third is the maximum."""


class BagSettings(NamedTuple):
    """The settings of `embedding_bag`."""

    scale_grad_by_freq: bool = False
    mode: int = SUM
    sparse: bool = False
    per_sample_weights: Any = None
    include_last_offset: bool = False
    padding_idx: int | None = -1


@rule("_embedding_bag", "embedding_bag.padding_idx", "embedding_bag", settings=BagSettings)
def embedding_bag(
    reader: GraphReader, weight: Any, places: Any, offsets: Any, *, settings: BagSettings
) -> list[View | None]:
    """Record bags of equal length, as for a matrix of positions; sums and means of others are decomposed."""
    length = None if settings.include_last_offset or settings.scale_grad_by_freq else _length(offsets)
    if length is None or settings.padding_idx not in (None, -1):
        raise reader.refusal("an EmbeddingBag in max mode with offsets or padding_idx, or with scale_grad_by_freq,")
    rows = embedding(reader, weight, places)
    if settings.per_sample_weights is not None:
        share = reader.view(settings.per_sample_weights)
        rows = reader.multiply(rows, share.with_dims([*share.dims, ()]))
    count, width = size_of(offsets.node.meta["val"].shape[0]), rows.shape[-1]
    bags = reshaped(reader, rows, [count, length, width])
    if settings.mode == SUM:
        return [summed(reader, bags, [1]), None, None, None]
    by_mode = mean_of(reader, bags, [1]) if settings.mode == MEAN else extreme(reader, "max", bags, [1], False)
    return [by_mode, None, None, None]


def _length(offsets: Any) -> Any:
    """Return the length of the bags if the offsets are its multiples from zero: `arange(0, B M, M)`."""
    node = offsets.node if isinstance(offsets, GivenTensor) else None
    if node is None or node.op != "call_function" or operator_name(node.target) != "arange.start_step":
        return None
    start, end, step = (size_of(getattr(each, "meta", {}).get("val", each)) for each in node.args)
    return step if equal(start, 0) and equal(end, step * shape_of(node)[0]) else None
