"""What is alive where sizes are left open: as polynomials in them."""

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
    """The bytes at a line as polynomials in the sizes that are left out: what is solved for a size that fits.

    A line has one where it may be the worst: where something goes after it, and it brings something. A repeat whose
    turns are left out is taken to have more than `FEW` of them.
    """
    changes = walk_of(table, rules, sizes).changes(lambda count: count.with_sizes(sizes), BYTES[dtype], widths or {})
    grows = [all(part >= 0 for part in change.terms.values()) for change in changes]
    falls = [bool(change) and all(part <= 0 for part in change.terms.values()) for change in changes]
    every = zip(accumulate(changes), falls, [*grows[1:], False], strict=True)
    return tuple(level for level, fell, grows_then in every if not fell and not grows_then)


@dataclass(frozen=True)
class Instant:
    """A moment of a table whose sizes are left open.

    loops  the repeats around its line, from the outermost: the number of each, the size that says how often it turns
    place  of its line in a curve, where every line stands once for all its turns
    """

    line: Line
    loops: tuple[tuple[int, str], ...]
    place: int


@dataclass(frozen=True)
class SymbolicInterval:
    """An array between two moments, from 1, both included: its bytes as a polynomial, and whether it was given.

    iterations the count of the repeat whose turns keep it; "" of any other
    axes    of one of those that it stands for, `times` how many these are, `width` the bytes of an element
    macro_operation, layer, block  of the line that made it; `role`, as of `Held`
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
    """The moments of a table, and the arrays over them, for sizes that are left open.

    widths  bytes of an element by role or by name, as of `live`; `width` where neither is told
    iterations of repeats, by their counts; one that is left out is taken to have more than `FEW` of them
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
