"""bf16, 8-bit optimizer states and the fixed point of integer-only steps on NumPy.

bf16 is stored in two bytes by the package ml_dtypes, else rounded in fp32 with four bytes. Arithmetic is fp32 in both
cases, and results are rounded to the nearest, ties to even, as on a CPU.

8-bit states are rounded after every step to codes and a scale for each block of a weight's state (Dettmers et al. 2022,
8-bit optimizers via block-wise quantization, section 2.2: dynamic tree quantization, whose levels have up to seven bits
of exponent). Arrays stay fp32, so that any engine can read them, but hold only 8-bit values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.ir.precision import BlockScales
from learncost.ir.table import Table

EXPONENTS = 7


@cache
def two_bytes() -> Any:
    """Return the type of ml_dtypes (`pip install learncost[bf16]`), None without it."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def rounded(array: Any) -> Any:
    """Return an fp32 array rounded to bf16."""
    array = np.asarray(array, np.float32)
    bits = array.view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(array), nearest.view(np.float32), array)


def stored(array: Any) -> Any:
    """Return rounded numbers, in two bytes each with ml_dtypes."""
    kind = two_bytes()
    return rounded(array) if kind is None else rounded(array).astype(kind)


def widened(array: Any) -> Any:
    """Return a two-byte array as fp32; any other unchanged."""
    array = np.asarray(array)
    kind = two_bytes()
    return array.astype(np.float32) if kind is not None and array.dtype == kind else array


@cache
def levels(signed: bool) -> Any:
    """Return the 256 code values in order: linear between powers of ten, 0 and 1; negative ones if `signed`."""
    numbers = [0.0, 1.0]
    for place in range(EXPONENTS):
        boundaries = np.linspace(0.1, 1, 2 ** (place if signed else place + 1) + 1)
        means = 10.0 ** (place - EXPONENTS + 1) * (boundaries[:-1] + boundaries[1:]) / 2
        numbers += [*means, *(-means if signed else ())]
    return np.sort(np.array(numbers))


def eight_bits(array: Any, kind: BlockScales, iterations: int = 1) -> Any:
    """Round a state to a code per number and a scale per block; a state below `kind.least` numbers is unchanged.

    iterations  the number of iterations whose states are stacked; each is rounded in separate blocks
    """
    rows = np.asarray(array, np.float32).reshape(iterations, -1)
    size = rows.shape[1]
    if size < kind.least:
        return array
    blocks = -(-size // kind.block)
    padded = np.zeros((iterations, blocks * kind.block), np.float32)
    padded[:, :size] = rows
    cut = padded.reshape(iterations, blocks, kind.block)
    scales = np.abs(cut).max(axis=2, keepdims=True)
    parts = np.divide(cut, scales, out=np.zeros_like(cut), where=scales > 0)
    numbers = levels(bool(rows.min() < 0))
    codes = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, parts)
    decoded = (numbers[codes] * scales).astype(np.float32).reshape(iterations, -1)[:, :size]
    return decoded.reshape(array.shape).astype(array.dtype)


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
