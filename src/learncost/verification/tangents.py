"""Tangents held to gradients: along any direction the outputs move as the gradients say, and so do complex steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from learncost.autodiff.derive import derive
from learncost.autodiff.tangent import MARK, along_inputs
from learncost.interpreter import execute
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.passes.lower import lower
from learncost.verification.check import (
    STEP,
    seeds_of,
    sound_arrays,
    takes_complex,
    tally,
    values_of,
)
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes

ENOUGH = 1e-12
"""Of the sum of all parts of a slope, how far two orders of adding them may be apart."""


def with_tangent(table: Table) -> Table:
    """The table with tangents along directions of all that has a gradient."""
    return along_inputs(table, derive(table).gradients)


def along(table: Table, name: str, smallest: int = 2) -> Iterator[Check]:
    """The tangent of all outputs with the gradients times the direction, and with a complex step; its count."""
    derived = derive(table)
    if not derived.gradients:
        return
    what = "the tangent with <gradient, direction>"
    try:
        moved = with_tangent(table)
    except InputError as refusal:
        yield Check(name, what, str(refusal), None)
        return
    sizes = small_sizes(table, smallest)
    arrays, seeds = sound_arrays(table, sizes), seeds_of(table, sizes)
    generator = np.random.default_rng(5)
    names = tuple(derived.gradients)
    directions = {n: generator.standard_normal(np.shape(arrays[n])) for n in names}
    given = {**arrays, **{f"{n}{MARK}": direction for n, direction in directions.items()}}
    tangents = values_of(moved, given, sizes)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    slope = sum(
        float(np.sum(seeds[f"d{output}"] * tangents[f"{output}{MARK}"]))
        for output in table.outputs
        if f"{output}{MARK}" in tangents
    )
    parts = [values[derived.gradients[n]] * directions[n] for n in names]
    whole = max(sum(float(np.sum(np.abs(part))) for part in parts), 1e-300)
    difference = abs(slope - sum(float(np.sum(part)) for part in parts)) / whole
    yield Check(name, what, f"apart by {difference:.1e} of all parts", difference <= ENOUGH)
    if takes_complex(table):
        stepped = {n: arrays[n] + STEP * 1j * directions[n] if n in directions else arrays[n] for n in arrays}
        execute(lower(table), stepped, sizes)
        imaginary = sum(float(np.sum(seeds[f"d{o}"] * np.imag(stepped[o]))) for o in table.outputs) / STEP
        difference = abs(slope - imaginary) / whole
        yield Check(name, "the tangent with a complex step", f"apart by {difference:.1e}", difference <= ENOUGH)
    yield tally(f"{name} and its tangent", moved, given, sizes)
