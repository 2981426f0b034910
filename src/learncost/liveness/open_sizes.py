"""Liveness for open sizes, as polynomials in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from learncost.ir.line import Line
from learncost.ir.polynomial import Polynomial
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.liveness.walk import name_of, walk_of
from learncost.program.calls import IN_KERNELS, ScheduleRules


def levels(
    table: Table,
    sizes: Mapping[str, Any],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: ScheduleRules = IN_KERNELS,
) -> tuple[Polynomial, ...]:
    """Return the bytes at lines as polynomials in the open sizes; they are solved for a size that fits.

    Only lines that may be the peak are included: those that allocate, where something is freed next. A loop whose trip
    count is open is taken to have more than `FEW` iterations.
    """
    changes = walk_of(table, rules, sizes).changes(lambda count: count.with_sizes(sizes), BYTES[dtype], widths or {})
    grows = [all(part >= 0 for part in change.terms.values()) for change in changes]
    falls = [bool(change) and all(part <= 0 for part in change.terms.values()) for change in changes]
    every = zip(accumulate(changes), falls, [*grows[1:], False], strict=True)
    return tuple(level for level, fell, grows_then in every if not fell and not grows_then)


@dataclass(frozen=True)
class Instant:
    """A moment of a table whose sizes are open.

    loops  the loops around its line, from the outermost: the number of each, and the size that is its trip count
    place  the number of its line in a curve, where every line occurs once for all its iterations
    """

    line: Line
    loops: tuple[tuple[int, str], ...]
    place: int


@dataclass(frozen=True)
class SymbolicInterval:
    """A live interval for open sizes: the first and last moment, from 1, both included, and the bytes as a polynomial.

    given   whether it is an input
    iterations  the trip count of the loop whose iterations save it; "" for any other
    axes    of one of the arrays that it stands for, `times` the number of these, `width` the bytes of an element
    macro_operation, layer, block  of the line that defines it; `role`, as in `LiveArray`
    """

    name: str
    count: Polynomial
    first: int
    last: int
    given: bool
    iterations: str = ""
    axes: tuple[str, ...] = ()
    times: int | Polynomial = 1
    width: int = 1
    macro_operation: str = ""
    layer: str = ""
    block: str | None = None
    role: str = ""


def stretches(
    table: Table,
    widths: Mapping[str, int],
    rules: ScheduleRules = IN_KERNELS,
    iterations: Mapping[str, int] | None = None,
    width: int = 4,
) -> tuple[tuple[Instant, ...], tuple[SymbolicInterval, ...]]:
    """Return the moments of a table, and the live intervals over them, for open sizes.

    widths  bytes of an element by role or by name, as in `live`; `width` is the default
    iterations  of loops, by their trip counts; one that is left out is taken to have more than `FEW`
    """
    walk = walk_of(table, rules, iterations or {})
    counts: dict[tuple[tuple[str, ...], int], Polynomial] = {}
    kept_arrays = []
    for array in walk.arrays:
        of_element = walk.width(array, width, widths)
        if array.last < array.first or not of_element:
            continue
        key = array.axes, of_element
        if key not in counts:
            counts[key] = Polynomial.of(array.axes, of_element)
        alone = isinstance(array.times, int) and array.times == 1
        kept_arrays.append(
            SymbolicInterval(
                name_of(array),
                counts[key] if alone else counts[key] * array.times,
                array.first,
                array.last,
                bool(array.given),
                array.stack[1][0] if array.stack and array.stack[1] else "",
                array.axes,
                array.times,
                of_element,
                array.phase,
                array.layer,
                array.block,
                walk.role(array),
            )
        )
    instants = tuple(
        Instant(line, tuple((loop, walk.loops[loop]) for loop, _ in path), place)
        for (line, path, _), place in zip(walk.lines, walk.places, strict=True)
    )
    return instants, tuple(kept_arrays)
