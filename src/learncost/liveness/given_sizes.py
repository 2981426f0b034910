"""Liveness for given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from learncost.autodiff.derive import Derived, derive
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.polynomial import checked_sizes
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.liveness.answer import Live
from learncost.liveness.walk import Walk, iterations_of, walk_of
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
    return walk.read(checked_sizes(sizes), dtype, widths or {})


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
    levels_of_lines = walk.levels(lambda count: count.at(sizes), BYTES[dtype], widths or {})
    for (line, path, _), level in zip(walk.lines, levels_of_lines, strict=True):
        yield line, tuple(iteration for _, iteration in path), level
