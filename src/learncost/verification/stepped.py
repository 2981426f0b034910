"""Steps of several procedures on the same arrays, and comparison of their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.verification.check import error, finite_arrays, values_of, worst
from learncost.verification.report import Check
from learncost.verification.sample import grouped, small_sizes


def sizes_of(model: Model, table: Table) -> dict[str, int]:
    """Return sizes that are equal for every procedure, with trip counts as multiples of groups."""
    sizes = small_sizes(table)
    return sizes | small_sizes(model.table) | {count: sizes[count] for count in grouped(table)}


def arrays_of(model: Model, table: Table, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return arrays that are equal for every procedure: the model's, then one for each further name.

    Substitutes of a weight, also those of each block, equal that weight.
    """
    arrays = finite_arrays(model.table, sizes)
    for name in table.inputs:
        value = table.values[name]
        if name in arrays:
            continue
        if value.role == "projection" and value.of in table.weights:
            whole = shape_of(value.axes, sizes)
            arrays[name] = np.broadcast_to(arrays[value.of], whole).copy()
        else:
            alone = Table((), table.values, (name,))
            arrays |= finite_arrays(alone, sizes, seed=sum(map(ord, name)))
    return arrays


def gradients_of(model: Model, table: Table, sizes: Mapping[str, int], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of a step by weight."""
    given = {key: array for key, array in arrays.items() if key in (*table.inputs, *table.weights)}
    values = values_of(table, given, sizes)
    return {weight: values[f"d{weight}"] for weight in model.table.weights if f"d{weight}" in values}


def held(name: str, compared: str, results: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    """Compare found values with expected ones; different names are a failure."""
    if results.keys() != expected.keys() or not results:
        return Check(name, compared, "other weights have gradients", False)
    text, passed = worst({key: error(results[key], expected[key]) for key in expected})
    return Check(name, compared, text, passed)
