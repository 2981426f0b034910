"""Convert weights between a plain model and its adapted or quantized form, whose codes and scales NumPy computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.engines.weights import initial_weights
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Product, Sum
from learncost.ir.loop import Loop
from learncost.ir.polynomial import shape_of
from learncost.ir.precision import BlockScales
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.models.model import Model
from learncost.passes.quantized import Quantized, levels_of, places_of
from learncost.passes.rewrite_lora import RANK

Arrays = dict[str, Any]


def begun(model: Model, plain: Mapping[str, Any], seed: int, dtype: Any) -> Arrays:
    """Return the initial weights of an adapted or quantized model, which computes the same as the plain model: its
    weights are split into ranges of layers or quantized, the second matrix of each low-rank path is 0, and DoRA's
    magnitudes are the norms of the columns.
    """
    start_weights: Arrays = {}
    drawn = initial_weights(model.table, model.sizes, seed, dtype)
    for line, _, outer in _lines(model.table):  # the second matrices of low-rank paths, B of A B, sum over the rank
        if line.meta.layer == "lora" and isinstance(line, Product) and RANK in line.sides.summed:
            name = outer.get(line.right[-1].name, line.right[-1].name)
            drawn[name] = np.zeros_like(drawn[name])
    stored, stretches = {weight.codes.name: weight for weight in model.quantized}, _stretches(model)
    for name in model.table.weights:
        quantized = stored.get(name)
        if quantized is not None and name in plain:
            start_weights |= {array.name: plain[array.name] for array in (quantized.codes, *quantized.scales)}
            continue
        weight = quantized.weight if quantized else name
        group, iterations = stretches[weight]
        array = plain[weight] if weight in plain else plain[group][iterations] if group in plain else None
        array = drawn[name] if array is None else np.array(array, dtype)
        expected = shape_of(quantized.axes if quantized else model.table.axes[name], model.sizes)
        if array.shape != expected:
            raise InputError(f"the weight {weight} has shape {array.shape}, but must have {expected}")
        start_weights |= quantize(quantized, array, model.sizes) if quantized else {weight: array}
    coded = {weight.weight: weight for weight in model.quantized}
    for magnitude, name, axes, columns in _magnitudes(model.table):
        array = dequantized(coded[name], start_weights, model.sizes) if name in coded else start_weights[name]
        start_weights[magnitude] = np.sqrt(np.einsum(f"{axes},{axes}->{columns}", array, array)).astype(dtype)
    return start_weights


def _magnitudes(table: Table) -> Iterator[tuple[str, str, str, str]]:
    """Yield DoRA's magnitudes, each with its weight, and letters for the axes of the weight and of the magnitude."""
    for line, makers, outer in _lines(table):
        if line.meta.layer == "lora" and line.meta.local.endswith(".gain"):
            magnitude, adapted = line.right[0], line
            while not isinstance(adapted, Sum):  # back from the norm to the adapted weight
                adapted = makers[adapted.right[-1].name]
            weight = adapted.right[0]
            name = outer.get(weight.name) or outer.get(f"{weight.name}.codes", weight.name).removesuffix(".codes")
            letters = {axis: chr(98 + place) for place, axis in enumerate(weight.loops)}
            stack = "a" * (magnitude.name in outer)
            axes, columns = (stack + "".join(map(letters.__getitem__, term.loops)) for term in (weight, magnitude))
            yield outer.get(magnitude.name, magnitude.name), name, axes, columns


def _stretches(model: Model) -> dict[str, tuple[str, slice]]:
    """Map each weight to the weight of the plain model that contains it, and to the range of its iterations there."""
    stored = {weight.codes.name: weight for weight in model.quantized}
    stretches: dict[str, tuple[str, slice]] = {}
    begin: dict[str, int] = {}
    for name in model.table.weights:
        quantized = stored.get(name)
        group = quantized.group if quantized else model.table.values[name].group
        iterations = slice(None)
        if group:
            first = begin.get(group, 0)
            begin[group] = first + int(model.table.axes[name][0])  # the iterations of a part of a loop
            iterations = slice(first, begin[group])
        weight = quantized.weight if quantized else name
        stretches[weight] = (group or weight, iterations)
    return stretches


def _codes(model: Model) -> dict[str, str]:
    """Map the name of each array of codes to its weight."""
    return {weight.codes.name: weight.weight for weight in model.quantized}


def merged(model: Model, plain: Table, weights: Mapping[str, Any]) -> Arrays:
    """Return the weights of the equivalent plain model: low-rank paths merged into their matrices, codes dequantized.

    Raises `InputError` where a matrix cannot be merged.
    """
    plain_weights = {weight.weight: dequantized(weight, weights, model.sizes) for weight in model.quantized}
    plain_weights |= {name: weights[name] for name in model.table.weights if name not in _codes(model)}
    made = {name for line, _, _ in _lines(model.table) for name in line.makes}
    # Codes that products read directly:
    codes = {codes: weight for codes, weight in _codes(model).items() if weight not in made}
    added = dict(plain_weights)
    readers: dict[str, int] = {}
    for line, lines, outer in _lines(model.table):
        read = {outer.get(name, name) for name in line.reads if line.meta.layer != "lora"}
        for name in {codes.get(name, name) for name in read} & plain_weights.keys():
            readers[name] = readers.get(name, 0) + 1
        path = _path(line, lines)
        if path is not None:
            weight, a, b, scale = path
            target = outer.get(weight.name, weight.name)
            target = codes.get(target, target)
            added[target] = added[target] + scale * _product(weight, a, b, plain_weights, outer)
    for magnitude, name, axes, columns in _magnitudes(model.table):
        norms = np.sqrt(np.einsum(f"{axes},{axes}->{columns}", added[name], added[name]))
        added[name] = np.einsum(f"{axes},{columns}->{axes}", added[name], plain_weights[magnitude] / norms)
    for name, array in added.items():
        if array is not plain_weights[name] and readers[name] > 1:
            raise InputError(f"{name} is read in several places, of which one has a low-rank path: it cannot be merged")
    parts: dict[str, list[str]] = {}
    for name, (group, _) in _stretches(model).items():
        parts.setdefault(group, []).append(name)
    return {
        name: added[name] if parts[name] == [name] else np.concatenate([added[part] for part in parts[name]])
        for name in plain.weights
    }


def _lines(table: Table) -> Iterator[tuple[Line, Mapping[str, Line], Mapping[str, str]]]:
    """Yield every line with the lines that define its scope's values and the stacks that its slices are read from."""
    scopes: list[Table | Loop] = [table, *table.repeats]
    for scope in scopes:
        makers = {name: line for line in scope.lines if isinstance(line, Line) for name in line.makes}
        outer = dict(scope.each) if isinstance(scope, Loop) else {}
        for line in scope.lines:
            if isinstance(line, Line):
                yield line, makers, outer


def _path(line: Line, makers: Mapping[str, Line]) -> tuple[Term, Term, Term, float] | None:
    """Return the weight, A, B and the scale of a line that adds a low-rank path to a product, or to a weight (DoRA)."""
    if not isinstance(line, Sum) or line.meta.layer != "lora":
        return None
    of_weight = line.meta.local.endswith(".adapted")
    scaled = makers.get(line.right[1].name)
    if not isinstance(scaled, Product) or line.meta.local.endswith(".added"):  # other sums of DoRA
        return None
    up, factor = makers[scaled.right[0].name], scaled.right[1]
    base = line if of_weight else makers[line.right[0].name]
    middle = up if of_weight else makers[up.right[0].name]
    a, b = middle.right[0 if of_weight else -1], up.right[-1]
    others = {line.right[1].name} if of_weight else {term.name for term in middle.right[:-1]}
    if others and others.isdisjoint(base.reads):  # a product of codes, followed by their scales
        base = makers[base.right[0].name]
    weight, *more = (term for term in base.right if term.name not in others)
    if more:  # trainable codes with their scales
        raise InputError(
            "a low-rank path cannot be merged into a trainable quantized matrix: remove lora, or choose a "
            "precision with frozen matrices (learncost list precisions)"
        )
    assert isinstance(factor, Literal)
    assert isinstance(weight, Term)
    assert isinstance(a, Term)
    assert isinstance(b, Term)
    return weight, a, b, factor.number({})


def _product(weight: Term, a: Term, b: Term, arrays_of: Mapping[str, Any], outer: Mapping[str, str]) -> Any:
    """Return A B in the order of the weight's axes, for all iterations of a stack."""
    letters: dict[str, str] = {}

    def spelled(term: Term) -> str:
        iterations = ("iterations",) if term.name in outer else ()
        return "".join(letters.setdefault(axis, chr(97 + len(letters))) for axis in (*iterations, *term.declared))

    left, right, product = spelled(a), spelled(b), spelled(weight)
    arrays = (np.asarray(arrays_of[outer.get(term.name, term.name)], float) for term in (a, b))
    return np.einsum(f"{left},{right}->{product}", *arrays)


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
    if quantized.kind.scales_sums:
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
    transposed = scales.swapaxes(1, 2)
    second = _largest(transposed, quantized.second.block)
    inner = _nearest(quantized.second, transposed, _spread(second, quantized.second.block, transposed.shape[1]))
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
    numbers = rows.astype(float) if quantized.kind.scales_sums else np.asarray(quantized.kind.levels)[rows]
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
