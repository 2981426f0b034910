"""Weights as codes and scales, and back: what the lines of a quantized table read, on NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.equation.count import shape_of
from learncost.equation.precision import Blocks
from learncost.layers.rewrite_quantized import Quantized, levels_of, places_of

Arrays = dict[str, Any]


def quantize(one: Quantized, weight: Any, sizes: Mapping[str, int]) -> Arrays:
    """Codes and scales of a weight, by name: each number's nearest level of its block's largest (absmax).

    Codes are bytes here, whatever they are packed in. Dettmers et al. 2023, QLoRA, equations (1) and (2) and section 3.
    """
    rows = _in_rows(one, weight, sizes)
    scales = _largest(rows, one.kind.block)
    codes = _nearest(one.kind, rows, _spread(scales, one.kind.block, rows.shape[1]))
    found = {one.codes.name: _as_stored(one, codes, sizes)}
    first = one.scales[0]
    shape = shape_of(first.axes, sizes)
    if one.second is None:
        kind = np.float16 if one.kind.scales == "fp16" else np.float32
        return found | {first.name: scales.astype(kind).astype(np.float32).reshape(shape)}
    # The scales of a row of blocks, in blocks of the results that they belong to.
    turned = scales.swapaxes(1, 2)
    second = _largest(turned, one.second.block)
    inner = _nearest(one.second, turned, _spread(second, one.second.block, turned.shape[1]))
    outer = one.scales[1]
    found[first.name] = inner.swapaxes(1, 2).reshape(shape)
    return found | {outer.name: second.swapaxes(1, 2).astype(np.float32).reshape(shape_of(outer.axes, sizes))}


def dequantized(one: Quantized, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The weight that codes and scales stand for, in the order of its axes."""
    rows = _in_rows(one, arrays[one.codes.name], sizes)
    first, blocks = one.scales[0], -(-rows.shape[1] // (one.kind.block or rows.shape[1]))
    scales = np.asarray(arrays[first.name]).reshape(rows.shape[0], blocks, rows.shape[2])
    if one.second is not None:
        second = np.asarray(arrays[one.scales[1].name]).reshape(rows.shape[0], blocks, -1).swapaxes(1, 2)
        levels = np.asarray(one.second.levels)[scales].swapaxes(1, 2)
        scales = (levels * _spread(second, one.second.block, levels.shape[1])).swapaxes(1, 2)
    return _as_stored(one, np.asarray(one.kind.levels)[rows] * _spread(scales, one.kind.block, rows.shape[1]), sizes)


def constants(quantized: Iterable[Quantized], sizes: Mapping[str, int], dtype: Any) -> Arrays:
    """What all weights of a type read alike, by name: levels, and in which block every place is."""
    found: Arrays = {}
    for one in quantized:
        for kind, axes in ((one.kind, one.inside), (one.second, one.out)):
            if kind is None:
                continue
            found[levels_of(kind)] = np.asarray(kind.levels, dtype)
            if kind.block:
                shape = shape_of(axes, sizes)
                found[places_of(axes, kind)] = (np.arange(prod(shape)) // kind.block).reshape(shape)
    return found


def _in_rows(one: Quantized, array: Any, sizes: Mapping[str, int]) -> Any:
    """An array of a weight as turns by what is summed by results."""
    array, own = np.asarray(array), one.axes
    order = [own.index(axis, len(one.stack)) for axis in (*one.inside, *one.out)]
    moved = array.transpose([*range(len(one.stack)), *order])
    turns, inside = prod(shape_of(one.stack, sizes)), prod(shape_of(one.inside, sizes))
    return moved.reshape(turns, inside, -1)


def _as_stored(one: Quantized, rows: Any, sizes: Mapping[str, int]) -> Any:
    """Turns by what is summed by results as the weight has its axes."""
    axes = (*one.stack, *one.inside, *one.out)
    array = rows.reshape(shape_of(axes, sizes))
    start = len(one.stack)
    order = [*range(start), *(start + (*one.inside, *one.out).index(axis) for axis in one.axes[start:])]
    return np.ascontiguousarray(array.transpose(order))


def _largest(rows: Any, block: int) -> Any:
    """The largest absolute value of every block along the middle axis."""
    size = block or rows.shape[1]
    starts = np.arange(0, rows.shape[1], size)
    return np.maximum.reduceat(np.abs(rows), starts, axis=1)


def _spread(scales: Any, block: int, size: int) -> Any:
    """A scale for every place of its block."""
    return np.repeat(scales, block or size, axis=1)[:, :size]


def _nearest(kind: Blocks, rows: Any, scales: Any) -> Any:
    """The codes of the nearest levels; of a block of zeros any code will do."""
    levels = np.asarray(kind.levels)
    middles = (levels[1:] + levels[:-1]) / 2
    parts = np.divide(rows, scales, out=np.zeros(rows.shape, float), where=scales != 0)
    return np.searchsorted(middles, parts).astype(np.uint8)
