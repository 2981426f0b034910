"""Convert the inputs and results of an integer-only step between numbers and integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.ir.table import Table

LARGEST = {"int8": 127}
"""The largest integer of each number of bits; for others 2^29 - 1, so that a sum of two fits."""


def whole(table: Table, name: str, array: Any) -> Any:
    """Return an input as the integers that the table reads; an input that is not converted is returned unchanged.

    Raises `InputError` where a number exceeds the type's range by more than one unit.
    """
    value = table.values.get(name)
    if value is None or value.power is None:
        return array
    largest, numbers = LARGEST.get(value.dtype, 2**29 - 1), np.asarray(array, float) * 2.0**-value.power
    if np.max(np.abs(numbers), initial=0.0) > largest + 1:
        most, limit = np.max(np.abs(array)), 2.0**value.power * (largest + 1)
        raise InputError(
            f"{name} has numbers up to {most:g}, but integer-only steps support -{limit:g} to {limit:g}: scale it"
        )
    return np.clip(np.rint(numbers), -largest, largest)


def real(table: Table, name: str, array: Any) -> Any:
    """Return the real numbers that integers with a scale represent."""
    value = table.values.get(name)
    return array if value is None or value.power is None else np.asarray(array) * 2.0**value.power


def results(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's values with its results converted to numbers; weights remain integers."""
    renewed = set(table.renewed.values())
    numbers = {
        name: real(table, name, values[name]) for name in table.outputs if name in values and name not in renewed
    }
    return {**values, **numbers}
