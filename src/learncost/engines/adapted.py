"""The weights of a model that is adapted or quantized: begun from those of the plain model, and put back into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from learncost.engines.quantize import dequantized, quantize
from learncost.engines.weights import initial_weights
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Product, Sum
from learncost.ir.loop import Loop
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.models.model import Model
from learncost.passes.rewrite_lora import RANK

Arrays = dict[str, Any]


def begun(model: Model, plain: Mapping[str, Any], seed: int, dtype: Any) -> Arrays:
    """The weights of an adapted or quantized model: the plain model's, cut in its stretches of layers; codes and scales
    of those that are quantized; low-rank paths as they are drawn, their second half 0, so that the model is the same.
    """
    start_weights: Arrays = {}
    drawn = initial_weights(model.table, model.sizes, seed, dtype)
    drawn |= {name: np.zeros_like(drawn[name]) for name in _second_halves(model.table)}
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
            raise InputError(f"the weight {weight} is {array.shape}, but must be {expected}")
        start_weights |= quantize(quantized, array, model.sizes) if quantized else {weight: array}
    return start_weights


def _second_halves(table: Table) -> set[str]:
    """The weights that end a low-rank path, B of A B: they sum over the rank."""
    ups = ((line, outer) for line, _, outer in _lines(table) if line.meta.layer == "lora" and isinstance(line, Product))
    return {outer.get(line.right[-1].name, line.right[-1].name) for line, outer in ups if RANK in line.sides.summed}


def _stretches(model: Model) -> dict[str, tuple[str, slice]]:
    """Of every weight, in order, the plain one that it is of, and which of its turns it is where repeats were split."""
    stored = {weight.codes.name: weight for weight in model.quantized}
    stretches: dict[str, tuple[str, slice]] = {}
    begin: dict[str, int] = {}
    for name in model.table.weights:
        quantized = stored.get(name)
        group = quantized.group if quantized else model.table.values[name].group
        iterations = slice(None)
        if group:
            first = begin.get(group, 0)
            begin[group] = first + int(model.table.axes[name][0])  # the turns of a part of a repeat
            iterations = slice(first, begin[group])
        weight = quantized.weight if quantized else name
        stretches[weight] = (group or weight, iterations)
    return stretches


def _codes(model: Model) -> dict[str, str]:
    """The arrays of codes, and the weights that they stand for."""
    return {weight.codes.name: weight.weight for weight in model.quantized}


def merged(model: Model, plain: Table, weights: Mapping[str, Any]) -> Arrays:
    """The weights of the plain model that computes the same: paths added to the matrices beside which they run, codes
    as what they stand for. Raises `InputError` where one matrix would have to be two.
    """
    plain_weights = {weight.weight: dequantized(weight, weights, model.sizes) for weight in model.quantized}
    plain_weights |= {name: weights[name] for name in model.table.weights if name not in _codes(model)}
    made = {name for line, _, _ in _lines(model.table) for name in line.makes}
    codes = {codes: weight for codes, weight in _codes(model).items() if weight not in made}  # which products read
    added = dict(plain_weights)
    readers: dict[str, int] = {}
    for line, lines, outer in _lines(model.table):
        read = {outer.get(name, name) for name in line.reads}
        for name in {codes.get(name, name) for name in read} & plain_weights.keys():
            readers[name] = readers.get(name, 0) + 1
        path = _path(line, lines)
        if path is not None:
            weight, a, b, scale = path
            target = outer.get(weight.name, weight.name)
            target = codes.get(target, target)
            added[target] = added[target] + scale * _product(weight, a, b, plain_weights, outer)
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
    """Every line with those that make the values of its scope, and the stacks that names of its scope are slices of."""
    scopes: list[Table | Loop] = [table, *table.repeats]
    for scope in scopes:
        makers = {name: line for line in scope.lines if isinstance(line, Line) for name in line.makes}
        outer = dict(scope.each) if isinstance(scope, Loop) else {}
        for line in scope.lines:
            if isinstance(line, Line):
                yield line, makers, outer


def _path(line: Line, makers: Mapping[str, Line]) -> tuple[Term, Term, Term, float] | None:
    """Of the sum of a product and of the low-rank path beside it: the weight, A, B and what the path is scaled by."""
    if not isinstance(line, Sum) or line.meta.layer != "lora":
        return None
    base, scaled = (makers[term.name] for term in line.right)
    up = makers[scaled.right[0].name]
    factor = scaled.right[1]
    middle = makers[up.right[0].name]
    a, b = middle.right[-1], up.right[-1]
    others = {term.name for term in middle.right[:-1]}
    if others and others.isdisjoint(base.reads):  # a product of codes, behind which their scales stand
        base = makers[base.right[0].name]
    weight, *more = (term for term in base.right if term.name not in others)
    if more:  # codes that learn, with their scales
        raise InputError(
            "a low-rank path and a matrix that learns as codes cannot be merged into one: leave lora out, or choose a "
            "precision whose matrices are frozen (learncost list precisions)"
        )
    assert isinstance(base, Product)
    assert isinstance(factor, Literal)
    assert isinstance(weight, Term)
    assert isinstance(a, Term)
    assert isinstance(b, Term)
    return weight, a, b, factor.number({})


def _product(weight: Term, a: Term, b: Term, arrays_of: Mapping[str, Any], outer: Mapping[str, str]) -> Any:
    """A B in the order of the weight's axes, for all turns at once where the weight is a stack."""
    letters: dict[str, str] = {}

    def spelled(term: Term) -> str:
        iterations = ("turns",) if term.name in outer else ()
        return "".join(letters.setdefault(axis, chr(97 + len(letters))) for axis in (*iterations, *term.declared))

    left, right, product = spelled(a), spelled(b), spelled(weight)
    arrays = (np.asarray(arrays_of[outer.get(term.name, term.name)], float) for term in (a, b))
    return np.einsum(f"{left},{right}->{product}", *arrays)
