"""Initial weights, from what a table does with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod, sqrt
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np

from learncost.ir.line import Line, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.term import Operand, Read, Term

DEVIATION = 0.02
"""Of the normal distribution that matrices are drawn from: BERT's and GPT-2's initializer_range."""


def deviations(table: Table, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the deviation of the normal distribution that each matrix of a layer of one's own is drawn from.

    It is the root of 2 over the inputs of each sum (He et al. 2015, equation 10), of the line with the fewest; 0.02 of
    rows that are read at an index.
    """
    inputs: dict[str, int] = {}
    looked_up = set[str]()
    for line, outer in _with_stacks(table.lines, {}):
        for term in line.right:
            name = outer.get(term.name, term.name)
            if not isinstance(term, Term) or name not in table.weights:
                continue
            if any(isinstance(axis, Read) and isinstance(axis.at, Term) for axis in term.axes):
                looked_up.add(name)
            elif isinstance(line, Product):
                out = {axis for each in line.left for axis in each.loops}
                summed = prod(shape_of([axis for axis in term.loops if axis not in out], sizes))
                inputs[name] = min(summed, inputs.get(name, summed))
    return {
        name: DEVIATION if name in looked_up or name not in inputs else sqrt(2 / inputs[name])
        for name, kind in kinds(table).items()
        if kind == "matrix"
    }


def _with_stacks(lines: Iterable[Statement], outer: Mapping[str, str]) -> Iterator[tuple[Line, Mapping[str, str]]]:
    """Every line, with the stacks that names of its scope are slices of."""
    for line in lines:
        if isinstance(line, Loop):
            stacks = {inside: outer.get(stack, stack) for inside, stack in line.each}
            yield from _with_stacks(line.lines, {**outer, **stacks})
        else:
            yield line, outer


def shape(table: Table, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one of a table's names."""
    return shape_of(table.axes[name], sizes)


def generator(seed: int, *parts: int | str) -> np.random.Generator:
    """Random numbers that depend on a seed and on names and numbers alone, not on the order of drawing."""
    return np.random.default_rng([seed, *(crc32(p.encode()) if isinstance(p, str) else p for p in parts)])


def initial_weights(
    table: Table,
    sizes: Mapping[str, int],
    seed: int = 0,
    dtype: Any = float,
    spread: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """The weights that a training starts from, by name; those of a repeat are stacks.

    What is added as it is (a bias, the shift of a norm) starts at 0, what multiplies element by element (the gain of a
    norm) at 1, everything else is normal with deviation 0.02, or what `spread` says, drawn from the seed and the
    weight's name.
    """
    kind_of = kinds(table)
    result = {}
    for name in table.weights:
        size, kind = shape(table, name, sizes), kind_of[name]
        if kind == "matrix":
            array = spread.get(name, DEVIATION) * generator(seed, name).standard_normal(size)
        else:
            array = np.full(size, 1.0 if kind == "gain" else 0.0)
        result[name] = array.astype(dtype)
    return result


def in_rows(array: Any) -> Any:
    """Return a NumPy array in C order with the strides of a new one, copied only where they differ.

    BLAS sums a product in an order that follows from the strides: the same numbers laid out otherwise round otherwise.
    """
    if not isinstance(array, np.ndarray):  # JAX lays its arrays out itself
        return array
    strides = [array.itemsize * prod(array.shape[place + 1 :]) for place in range(array.ndim)]
    return array if array.strides == tuple(strides) else np.array(array, order="C")


def kinds(table: Table) -> dict[str, str]:
    """What every weight of a table is: a bias, a gain or a matrix."""
    kind_of = _kinds(table.lines)
    return {name: kind_of.get(name, "matrix") for name in table.weights}


def _kinds(lines: Iterable[Statement]) -> dict[str, str]:
    """What each name on the right of a line is there: a bias, a gain or a matrix; a matrix anywhere is a matrix."""
    kind_of: dict[str, str] = {}
    for line in lines:
        if isinstance(line, Loop):
            outer = dict(line.each)
            kinds_inside = {outer.get(name, name): kind for name, kind in _kinds(line.lines).items()}
        else:
            kinds_inside = {term.name: _kind(line, term) for term in line.right if isinstance(term, Term)}
        kind_of |= {name: kind for name, kind in kinds_inside.items() if kind_of.get(name) != "matrix"}
    return kind_of


def _kind(line: Line, term: Operand) -> str:
    if isinstance(line, Sum) and not term.indexed:
        return "bias"
    if isinstance(line, Product) and not term.indexed and set(line.loops) == set(line.left[0].loops):
        return "gain"
    return "matrix"
