"""The live intervals of a table at given sizes, and as polynomials where sizes are symbolic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from learncost.autodiff.derive import Derived, derive
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.polynomial import Polynomial, checked_sizes
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.liveness.walk import Live, Liveness, Walk, iterations_of, walk_of
from learncost.program.calls import AS_WRITTEN, IN_KERNELS, ScheduleRules
from learncost.program.lifetimes import Walked, every_iteration


def live(
    table: Layer | Table | Derived,
    sizes: Mapping[str, Any],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: ScheduleRules = AS_WRITTEN,
) -> Live:
    """Return which arrays of a table are live at each line, and their total bytes.

    An array is live from the line that defines it to the last line that reads it; inputs and weights are live
    throughout.

    Parameters
    ----------
    table
        A table, which is read as it is; a layer or a derivation stands for its full step: forward, backward and update.
    sizes
        Every size, by the names of the axes and of the trip counts of loops. Arrays of sizes give arrays of bytes;
        `peak_line` and `live_at_peak` are then those of the first row. A trip count must be one number.
    dtype
        The type of every array, including indices.
    widths
        Bytes of an element by role, where a role has another type: weight, index, gradient, kept; an array's own name
        takes precedence over its role.
    rules
        The rules for values inside of kernels and for in-place operations; by default there are none.

    Returns
    -------
    Live
        The peak, the live arrays there, and the saved tensors.

    Raises
    ------
    InputError
        For a size that is missing, and for an unknown type.

    Examples
    --------
    >>> norm = lc.layer('''scaled(X; g) -> Y
    ...   Y[B M d] = X[B M d] g[d]
    ... ''')
    >>> lc.live(norm, {"B": 2, "M": 3, "d": 4}, dtype="bf16").peak
    208
    """
    if dtype not in BYTES:
        raise InputError(f"no data type is called {dtype!r}; use one of {', '.join(BYTES)}")
    if isinstance(table, Layer):
        table = derive(table)
    if isinstance(table, Derived):
        table = table.step
    iterations = iterations_of(table, sizes)
    if several := sorted(count for count, number in iterations.items() if not isinstance(number, int | None)):
        raise InputError(f"the trip count of a loop must be one number: give {several[0]} as a number, not as an array")
    walk = walk_of(table, rules, sizes)
    needed = {name.partition("/")[0] for array in walk.arrays for name in array.count.sizes}
    missing = sorted((needed | {count.partition("/")[0] for count in iterations if not count.isdigit()}) - sizes.keys())
    if missing:
        raise InputError(f"live needs every size: give {', '.join(missing)}")
    return walk.liveness(BYTES[dtype], widths or {}).at(checked_sizes(sizes), dtype)


def moments(
    table: Table,
    sizes: Mapping[str, int],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: ScheduleRules = IN_KERNELS,
    iterations: Walked = every_iteration,
) -> Iterator[tuple[Line, tuple[int, ...], int]]:
    """Yield every line in execution order, with the numbers of the iterations around it and the bytes that are live.

    iterations the iterations of a loop that are walked; by default all of them
    """
    walk = Walk(table, rules, iterations_of(table, sizes), iterations)
    for (line, path, _), level in zip(walk.lines, walk.liveness(BYTES[dtype], widths or {}).levels(sizes), strict=True):
        yield line, tuple(iteration for _, iteration in path), level


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
    liveness = walk_of(table, rules, sizes).liveness(BYTES[dtype], widths or {})
    changes = liveness.changes(lambda count: count.with_sizes(sizes))
    grows = [all(part >= 0 for part in change.terms.values()) for change in changes]
    falls = [bool(change) and all(part <= 0 for part in change.terms.values()) for change in changes]
    every = zip(accumulate(changes), falls, [*grows[1:], False], strict=True)
    return tuple(level for level, fell, grows_then in every if not fell and not grows_then)


def stretches(
    table: Table,
    widths: Mapping[str, int],
    rules: ScheduleRules = IN_KERNELS,
    iterations: Mapping[str, int] | None = None,
    width: int = 4,
) -> Liveness:
    """Return the moments of a table, and the arrays over them, for open sizes.

    widths  bytes of an element by role or by name, as in `live`; `width` is the default
    iterations  of loops, by their trip counts; one that is left out is taken to have more than `FEW`
    """
    liveness = walk_of(table, rules, iterations or {}).liveness(width, widths)
    return replace(liveness, arrays=tuple(array for array in liveness.arrays if array.width))
