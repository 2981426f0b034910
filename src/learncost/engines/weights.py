"""Draw initial weights according to their use in a table."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np

from learncost.ir.line import Line, Product, Sum
from learncost.ir.loop import walk
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.term import Operand, Term

DEVIATION = 0.02
"""The standard deviation of initial matrices: BERT's and GPT-2's initializer_range."""


def deviations(table: Table, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the standard deviation of each initial matrix of a user's layer.

    It is sqrt(2 / fan-in) (He et al. 2015, equation 10) for the smallest fan-in of the lines that read the matrix; 0.02
    for a matrix whose rows are looked up.
    """
    inputs: dict[str, int] = {}
    looked_up = set[str]()
    for line, nest in walk(table.lines):
        for term in line.right:
            name = nest.stacks.get(term.name, term.name)
            if not isinstance(term, Term) or name not in table.weights:
                continue
            if any(isinstance(axis.at, Term) for axis in term.indexed_axes):
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


def shape(table: Table, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a value of a table by its name."""
    return shape_of(table.axes[name], sizes)


def generator(seed: int, *parts: int | str) -> np.random.Generator:
    """Return a random generator seeded by a seed, names and numbers, so that the order of drawing does not matter."""
    return np.random.default_rng([seed, *(crc32(p.encode()) if isinstance(p, str) else p for p in parts)])


def initial_weights(
    table: Table,
    sizes: Mapping[str, int],
    seed: int = 0,
    dtype: Any = float,
    spread: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the initial weights of a training by name; weights of a loop are stacked over its iterations.

    Biases and norm shifts start at 0, elementwise factors (the gain of a norm) at 1, everything else is normal with
    standard deviation 0.02, or as in `spread`, drawn from the seed and the weight's name.
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
    """Return a NumPy array in C order with the strides of a new array; it is copied only if its strides differ.

    BLAS's order of summation depends on the strides, so another layout of the same numbers rounds differently.
    """
    if not isinstance(array, np.ndarray):  # JAX lays its arrays out itself
        return array
    strides = [array.itemsize * prod(array.shape[place + 1 :]) for place in range(array.ndim)]
    return array if array.strides == tuple(strides) else np.array(array, order="C")


def kinds(table: Table) -> dict[str, str]:
    """Return the kind of every weight of a table: bias, gain or matrix."""
    kind_of: dict[str, str] = {}
    for line, nest in walk(table.lines):
        for term in line.right:
            name = nest.stacks.get(term.name, term.name)
            if isinstance(term, Term) and kind_of.get(name) != "matrix":
                kind_of[name] = _kind(line, term)
    return {name: kind_of.get(name, "matrix") for name in table.weights}


def _kind(line: Line, term: Operand) -> str:
    if isinstance(line, Sum) and not term.indexed:
        return "bias"
    if isinstance(line, Product) and not term.indexed and set(line.loops) == set(line.left[0].loops):
        return "gain"
    return "matrix"
