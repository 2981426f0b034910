"""Quantize and dequantize weights on NumPy for the lines of a quantized table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.ir.polynomial import shape_of
from learncost.ir.precision import BlockScales
from learncost.passes.quantized import Quantized, levels_of, places_of

Arrays = dict[str, Any]


def quantize(quantized: Quantized, weight: Any, sizes: Mapping[str, int]) -> Arrays:
    """Return codes and scales of a weight, by name: the nearest level relative to the block's absmax.

    Codes are unpacked bytes here. Dettmers et al. 2023, QLoRA, equations (1) and (2) and section 3.
    """
    rows = _in_rows(quantized, weight, sizes)
    if quantized.kind.powers:
        return _by_powers(quantized, rows, sizes)
    scales = _largest(rows, quantized.kind.block)
    if quantized.kind.learns:  # also for a column of zeros
        scales = np.where(scales > 0, scales, np.max(scales) or 1.0)
    codes = _nearest(quantized.kind, rows, _spread(scales, quantized.kind.block, rows.shape[1]))
    arrays = {quantized.codes.name: _as_stored(quantized, codes, sizes)}
    first = quantized.scales[0]
    shape = shape_of(first.axes, sizes)
    if quantized.kind.behind:
        levels = quantized.kind.levels or ()
        whole = (codes.astype(int) - len(levels) // 2).astype(np.int8)  # integers, as products read them
        return {
            quantized.codes.name: _as_stored(quantized, whole, sizes),
            first.name: (scales / (len(levels) // 2 / levels[-1])).astype(np.float32).reshape(shape),
        }
    if quantized.second is None:
        kind = np.float16 if quantized.kind.scales == "fp16" else np.float32
        return arrays | {first.name: scales.astype(kind).astype(np.float32).reshape(shape)}
    # The scales of a row of blocks, in blocks of their outputs.
    turned = scales.swapaxes(1, 2)
    second = _largest(turned, quantized.second.block)
    inner = _nearest(quantized.second, turned, _spread(second, quantized.second.block, turned.shape[1]))
    outer = quantized.scales[1]
    arrays[first.name] = inner.swapaxes(1, 2).reshape(shape)
    return arrays | {outer.name: second.swapaxes(1, 2).astype(np.float32).reshape(shape_of(outer.axes, sizes))}


def dequantized(quantized: Quantized, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Return the weight of codes and scales, in the order of its axes."""
    rows = _in_rows(quantized, arrays[quantized.codes.name], sizes)
    if quantized.kind.powers:
        powers = np.asarray(arrays[quantized.scales[0].name], float).reshape(-1, 1, 1)
        return _as_stored(quantized, rows * 2.0**powers, sizes)
    first, blocks = quantized.scales[0], -(-rows.shape[1] // (quantized.kind.block or rows.shape[1]))
    scales = np.asarray(arrays[first.name]).reshape(rows.shape[0], blocks, rows.shape[2])
    if quantized.second is not None:
        second = np.asarray(arrays[quantized.scales[1].name]).reshape(rows.shape[0], blocks, -1).swapaxes(1, 2)
        levels = np.asarray(quantized.second.levels)[scales].swapaxes(1, 2)
        scales = (levels * _spread(second, quantized.second.block, levels.shape[1])).swapaxes(1, 2)
    numbers = rows.astype(float) if quantized.kind.behind else np.asarray(quantized.kind.levels)[rows]
    return _as_stored(quantized, numbers * _spread(scales, quantized.kind.block, rows.shape[1]), sizes)


def _by_powers(quantized: Quantized, rows: Any, sizes: Mapping[str, int]) -> Arrays:
    """Return the codes of a weight and their power-of-two scale, chosen so that the largest code is from 32 to 64."""
    largest = np.max(np.abs(rows), axis=(1, 2), keepdims=True)
    powers = np.ceil(np.log2(np.where(largest > 0, largest, 1.0) / 64))
    codes = np.clip(np.rint(rows / 2.0**powers), -127, 127).astype(np.int8)
    (scale,) = quantized.scales
    return {
        quantized.codes.name: _as_stored(quantized, codes, sizes),
        scale.name: powers.reshape(shape_of(scale.axes, sizes)),
    }


def constants(quantized: Iterable[Quantized], sizes: Mapping[str, int], dtype: Any) -> Arrays:
    """Return the inputs that all weights of a type share, by name: the levels, and the block number of every
    position."""
    arrays: Arrays = {}
    for weight in quantized:
        for kind, axes in ((weight.kind, weight.inside), (weight.second, weight.out)):
            if kind is None:
                continue
            arrays[levels_of(kind)] = np.asarray(kind.levels, dtype)
            if kind.block:
                shape = shape_of(axes, sizes)
                arrays[places_of(axes, kind)] = (np.arange(prod(shape)) // kind.block).reshape(shape)
    return arrays


def _in_rows(quantized: Quantized, array: Any, sizes: Mapping[str, int]) -> Any:
    """Return a weight reshaped to iterations x inputs x outputs."""
    array, axes = np.asarray(array), quantized.axes
    order = [axes.index(axis, len(quantized.stack)) for axis in (*quantized.inside, *quantized.out)]
    moved = array.transpose([*range(len(quantized.stack)), *order])
    iterations, inside = prod(shape_of(quantized.stack, sizes)), prod(shape_of(quantized.inside, sizes))
    return moved.reshape(iterations, inside, -1)


def _as_stored(quantized: Quantized, rows: Any, sizes: Mapping[str, int]) -> Any:
    """Return iterations x inputs x outputs reshaped to the weight's axes."""
    axes = (*quantized.stack, *quantized.inside, *quantized.out)
    array = rows.reshape(shape_of(axes, sizes))
    start = len(quantized.stack)
    order = [
        *range(start),
        *(start + (*quantized.inside, *quantized.out).index(axis) for axis in quantized.axes[start:]),
    ]
    return np.ascontiguousarray(array.transpose(order))


def _largest(rows: Any, block: int) -> Any:
    """Return the largest absolute value of every block along the middle axis."""
    size = block or rows.shape[1]
    starts = np.arange(0, rows.shape[1], size)
    return np.maximum.reduceat(np.abs(rows), starts, axis=1)


def _spread(scales: Any, block: int, size: int) -> Any:
    """Return the scale for every position of its block."""
    return np.repeat(scales, block or size, axis=1)[:, :size]


def _nearest(kind: BlockScales, rows: Any, scales: Any) -> Any:
    """Return the codes of the nearest levels; a block of zeros may have any code."""
    levels = np.asarray(kind.levels)
    middles = (levels[1:] + levels[:-1]) / 2
    parts = np.divide(rows, scales, out=np.zeros(rows.shape, float), where=scales != 0)
    return np.searchsorted(middles, parts).astype(np.uint8)
