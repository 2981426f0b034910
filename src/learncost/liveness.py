"""Liveness analysis: which arrays are live at each line, what forward must save, the peak, and the live arrays there.

An array is live from the line that defines it to the last line that reads it; inputs and weights are live throughout,
outputs to the end. The table is read as written: an operator's inner values appear after lowering, and a second name
for an array (a sum of one term) is the same array. No operation is in-place.

The arrays of a table under an engine's rules are walked once for all sizes and types; the rest are folds over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from learncost.autodiff.derive import Derived, derive
from learncost.ir.dataclass import HIDDEN, Serializable, dataclass, field, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, base, checked_sizes, shape_of, size_of
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.value import RANDOM, IdentityKey
from learncost.layers.layer import Layer, table_of
from learncost.program.calls import AS_WRITTEN, IN_KERNELS, ScheduleRules, scheduled
from learncost.program.lifetimes import Lifetimes, ScheduledArray, WalkedIterations, every_iteration, some_iterations
from learncost.program.program import IntervalSet


@dataclass(frozen=True)
class LiveArray:
    """An array in memory: its name, its axes and shape, its bytes, and the layer whose line defines it."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    bytes: Any
    layer: str = ""
    block: str | None = None
    role: str = ""  # weight, index, gradient, saved (a saved tensor), or "" for a temporary


@dataclass(frozen=True)
class ProgramPoint:
    """One line of the table, and the bytes that are live while it runs.

    `loops` are the loops around it, from the outermost: the number of each, the size that is its trip count, and that
    count. A line occurs once for all iterations, with the bytes of the iteration in which most is live.
    """

    line: str
    layer: str
    macro_operation: str
    bytes: Any
    block: str | None = None
    loops: tuple[tuple[int, str, int], ...] = ()

    @property
    def iterations(self) -> int:
        """Return how often the line runs in the loops around it."""
        return prod(iterations for *_, iterations in self.loops)


@dataclass(frozen=True)
class LiveInterval(Serializable):
    """The live interval of an array, or of several equal ones: the first and last moment of a curve, both included.

    A line of a loop occurs once, for the iteration in which most is live.
    shape   of one of them, and `number`, how many there are: of the saved tensors of iterations, those that are live
    bytes   of all of them
    macro_operation, layer, block  of the line that defines it; "given" and "" for an input
    role    as in `LiveArray`
    part    its category in the account of a step; empty where only a table was read
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    number: int
    bytes: int
    first: int
    last: int
    macro_operation: str = ""
    layer: str = ""
    block: str | None = None
    role: str = field(default="", metadata=HIDDEN)
    part: str = ""

    @property
    def kind(self) -> str:
        """Its part of the memory, or the pass that computed it."""
        return kind_of(self.part, self.macro_operation)


def kind_of(part: str, macro_operation: str) -> str:
    """Return the kind of an array: its part of the memory, or the pass that computed it."""
    if part in _PARTS:
        return part
    return "batch" if macro_operation == "given" else macro_operation.replace("_", " ")


@dataclass(frozen=True)
class Live(Displayed):
    """The live arrays of a table over time. Bytes are exact whole numbers, or arrays where sizes were arrays.

    Attributes
    ----------
    saved
        Saved tensors: values of the forward pass that later passes read, including its inputs and without its weights,
        with `name`, `axes`, `shape`, `bytes`.
    peak
        The peak memory in bytes.
    peak_line
        The line that runs at the peak.
    live_at_peak
        The live arrays at the peak.
    curve
        The bytes at every line, in the order of the lines. A loop's lines occur once.
    dtype
        The data type of the arrays.

    Examples
    --------
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> found = lc.live(linear, {"B": 1, "M": 2, "d": 3, "f": 4})
    >>> found.peak, found.peak_line
    (208, 'dW')
    >>> [(held.name, held.bytes) for held in found.saved], found.saved_bytes
    ([('X', 24)], 24)
    """

    saved: tuple[LiveArray, ...]
    peak: Any
    peak_line: str
    live_at_peak: tuple[LiveArray, ...]
    curve: tuple[ProgramPoint, ...]
    dtype: str
    _intervals: Callable[[], tuple[LiveInterval, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def intervals(self) -> tuple[LiveInterval, ...]:
        """Every array with the first and the last line of the curve at which it is live, and its bytes there.

        Their sum at a line is the curve. Empty where sizes were arrays.
        """
        return self._intervals()

    @property
    def saved_bytes(self) -> Any:
        """Bytes of all saved tensors."""
        return sum(array.bytes for array in self.saved)


@dataclass(frozen=True)
class SymbolicPoint:
    """A moment of a table whose sizes are open.

    loops  the loops around its line, from the outermost: the number of each, and the size that is its trip count
    second  the trip counts of those whose second iteration, from either end, it is in
    place  the number of its line in a curve, where every line occurs once for all its iterations
    """

    line: Line
    loops: tuple[tuple[int, str], ...]
    second: tuple[str, ...]
    place: int

    def moment(self, size: Any, sizes: Mapping[str, Any]) -> ProgramPoint:
        """Return the moment at given sizes, with its bytes."""
        loops = tuple((loop, count, int(size_of(count, sizes))) for loop, count in self.loops)
        return ProgramPoint(
            self.line.name, self.line.meta.layer, self.line.meta.phase, size, self.line.meta.block, loops
        )


class SizedArray(NamedTuple):
    """An array, the bytes of one of its elements, and its bytes for open sizes."""

    array: ScheduledArray
    width: int
    size: Polynomial


Sized: TypeAlias = "Iterable[tuple[ScheduledArray, Any]]"
"""Arrays with their bytes at given sizes."""


def sized(arrays: Iterable[SizedArray], value: Callable[[Polynomial], Any]) -> Sized:
    """Yield arrays with their bytes; `value` converts each polynomial."""
    values: dict[int, Any] = {}
    for array, _, size in arrays:
        if id(size) not in values:
            values[id(size)] = value(size)
        yield array, values[id(size)]


def live_arrays(arrays: Sized, sizes: Mapping[str, Any]) -> list[LiveArray]:
    """Return arrays as they are shown, those of all iterations as one."""
    groups: dict[object, list[tuple[ScheduledArray, Any]]] = {}
    for array, size in arrays:
        groups.setdefault(array.group, []).append((array, size))
    result = []
    for several in groups.values():
        last = several[-1][0]  # the first of a stack may be the loop's initial value
        axes, shape = last.axes, shape_of(last.axes, sizes)
        if last.stack:
            _, axes = last.stack
            iterations = shape_of(axes[: len(axes) - len(last.axes)], sizes)
            number = sum(array.number(sizes) for array, _ in several)
            shape = (*(iterations if number == prod(iterations) else (number,)), *shape)
        total = sum(size for _, size in several)
        result.append(LiveArray(last.title, axes, shape, total, last.layer, last.block, last.role))
    return result


def live_intervals(arrays: Sized, moments: Sequence[int], sizes: Mapping[str, Any]) -> Iterator[LiveInterval]:
    """Yield the live intervals over some moments; those of a stack that are equal are one."""
    groups: dict[Any, list[tuple[ScheduledArray, int]]] = {}
    program_points = IntervalSet(moments)
    for array, size in arrays:
        for ends in program_points.within(array.first, array.last):
            groups.setdefault((array.group, array.axes, *ends), []).append((array, size))
    for (*_, first, end), several in groups.items():
        last = several[-1][0]
        number, total = sum(array.number(sizes) for array, _ in several), sum(size for _, size in several)
        metas = last.phase, last.layer, last.block, last.role
        yield LiveInterval(last.title, last.axes, shape_of(last.axes, sizes), number, total, first, end, *metas)


def highest(places: Iterable[int], levels: Iterable[Any]) -> dict[int, tuple[int, Any]]:
    """Return the largest bytes of every line of a curve by its place, and where these are in `levels`."""
    found: dict[int, tuple[int, Any]] = {}
    for at, (place, level) in enumerate(zip(places, levels, strict=True)):
        before = found.get(place)
        if before is None:
            found[place] = at, level
        elif not isinstance(level, int):
            found[place] = before[0], np.maximum(level, before[1])
        elif level > before[1]:
            found[place] = at, level
    return found


@dataclass(frozen=True)
class Liveness:
    """The moments of a table, and the arrays over them."""

    points: tuple[SymbolicPoint, ...]
    arrays: tuple[SizedArray, ...]

    def changes(self, value: Callable[[Polynomial], Any]) -> list[Any]:
        """Return allocations minus deallocations at every moment; `value` converts each polynomial."""
        changes = [value(Polynomial())] * (len(self.points) + 2)
        for array, change in sized(self.arrays, value):
            changes[array.first] = changes[array.first] + change
            changes[array.last + 1] = changes[array.last + 1] - change
        return changes[1:-1]

    def levels(self, sizes: Mapping[str, Any]) -> list[Any]:
        """Return the bytes that are live at every moment."""
        return list(accumulate(self.changes(lambda count: count.at(sizes))))

    @property
    def saved(self) -> Iterator[SizedArray]:
        """The saved tensors; one that every iteration overwrites is counted once."""
        counted: set[tuple[str, tuple[int, ...]]] = set()
        for each in self.arrays:
            array = each.array
            if array.saved and array.role != "weight":
                loops = tuple(loop for loop, _ in self.points[array.first - 1].loops)
                if array.stack or (array.name, loops) not in counted:
                    yield each
                counted.add((array.name, loops))

    def at(self, sizes: Mapping[str, Any], dtype: str) -> Live:
        """Return the live arrays over time at given sizes."""

        def value(count: Polynomial) -> Any:
            return count.at(sizes)

        saved, levels = tuple(live_arrays(sized(self.saved, value), sizes)), self.levels(sizes)
        if not levels:
            return Live(saved, 0, "", (), (), dtype)
        has_numbers = all(isinstance(level, int) for level in levels)
        if has_numbers:
            peak: Any = max(levels)
            worst = levels.index(peak)
        else:
            rows = np.stack(np.broadcast_arrays(*levels))
            peak, worst = rows.max(axis=0), int(rows.reshape(len(levels), -1)[:, 0].argmax())
        there = (each for each in self.arrays if each.array.first <= worst + 1 <= each.array.last)
        alive = live_arrays(sized(there, value), sizes)
        alive.sort(key=lambda array: -int(np.ravel(array.bytes)[0]))
        lines = highest((instant.place for instant in self.points), levels).values()
        curve = tuple(self.points[at].moment(level, sizes) for at, level in lines)
        moments = [at + 1 for at, _ in lines] if has_numbers else []
        return Live(
            saved,
            peak,
            self.points[worst].line.name,
            tuple(alive),
            curve,
            dtype,
            lambda: tuple(live_intervals(sized(self.arrays, value), moments, sizes)),
        )


def _iterations(count: str, sizes: Mapping[str, Any]) -> Any:
    """Return the trip count of a loop, or None where its size is left out."""
    has_size = count.isdigit() or base(count).partition("/")[0] in sizes
    return size_of(count, sizes) if has_size else None


def walk_of(table: Table, rules: ScheduleRules, sizes: Mapping[str, Any]) -> Walk:
    """Return the cached walk of a table; it is the same at other lengths, in other types, and for polynomials."""
    return _walk(IdentityKey(table), rules, tuple(iterations_of(table, sizes).items()))


@lru_cache(maxsize=16)
def _walk(same: IdentityKey[Table], rules: ScheduleRules, iterations: tuple[tuple[str, int | None], ...]) -> Walk:
    return Walk(same.content, rules, dict(iterations))


def iterations_of(table: Table, sizes: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the trip count of every loop, by its size."""
    return {count: _iterations(count, sizes) for _, nest in walk(table.lines) for count in nest.counts}


class Walk:
    """The arrays of a table under an engine's rules, with their roles.

    lines   the line at every moment, the path of its iterations, and its number in its scope
    """

    def __init__(
        self,
        table: Table,
        rules: ScheduleRules,
        iterations: Mapping[str, int | None],
        walked: WalkedIterations = some_iterations,
    ) -> None:
        lifetimes = Lifetimes(table, scheduled(table, rules.calls), iterations.__getitem__, walked)
        self.lines, last = lifetimes.lines, len(lifetimes.lines)
        counts = {number: loop.repeat.count for loop, number in lifetimes.loops.items()}
        places: dict[tuple[tuple[int, ...], int], int] = {}
        self.points = tuple(
            SymbolicPoint(
                line,
                tuple((loop, counts[loop]) for loop, _ in path),
                tuple(counts[loop] for loop, iteration in path if iteration in (1, -2)),
                places.setdefault((tuple(loop for loop, _ in path), number), len(places)),
            )
            for line, path, number in self.lines
        )
        weights, indices, gradients = frozenset(table.weights), table.indices, _gradients(table)
        fixed = frozenset(name for name in table.inputs if table.values[name].role in RANDOM)

        self.arrays = [array for array in lifetimes.arrays if array.over is None]
        for array in self.arrays:
            array.first, array.last = max(array.first, 1), last if array.given else min(array.last, last)
            names = {array.name, array.title}
            if array.given and array.given in weights | fixed:
                array.role = "weight" if array.given in weights else "projection"
            elif names & (indices | gradients):
                array.role = "index" if names & indices else "gradient"
            else:
                array.role = "saved" if array.saved else ""

    def liveness(self, width: int, widths: Mapping[str, int]) -> Liveness:
        """Return the arrays with their bytes; those of an element are by its name, by its role, or the default."""
        counts: dict[Any, Polynomial] = {}
        arrays = []
        for array in self.arrays:
            if array.last < array.first:
                continue
            of_element = widths.get(array.title, widths.get(array.role, width))
            times = array.times if isinstance(array.times, int) else frozenset(array.times.terms.items())
            key = array.axes, of_element, times
            if key not in counts:
                counts[key] = Polynomial.of(array.axes, of_element) * array.times
            arrays.append(SizedArray(array, of_element, counts[key]))
        return Liveness(self.points, tuple(arrays))


def _gradients(table: Table) -> frozenset[str]:
    """Return the gradients that optimizers read, under every name that they have in stacks."""
    lines = [line for line, _ in walk(table.lines) if isinstance(line, Op) and "G" in line.given]
    updates = [line for line in lines if line.meta.phase == "optimizer_step"]
    return frozenset(line.right[line.given.index("G")].name for line in updates)


SPLIT = ("weights", "master weights", "gradients", "optimizer state", "activations", "workspace")
"""The parts of memory. Activations are values of the forward pass that later passes read, and the batch; workspace is
what is defined and freed within a pass."""

BUFFERS = "communication buffers"
"""The part of the memory of what is sent, where a trainer keeps it in addition to the arrays of the step."""

FIXED = "fixed matrices"
"""The part of the memory of random matrices that are drawn once and read in every step."""

_PARTS = frozenset(("weights", FIXED, "master weights", "optimizer state", "gradients"))
"""The parts that are kinds of arrays, whatever pass computed them."""

KINDS = {
    "weight": "weights",
    "gradient": "gradients",
    "saved": "activations",
    "index": "activations",
    "projection": FIXED,
}
"""The part of an array, by its role; workspace otherwise."""


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
    table = table_of(table)
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
    iterations: WalkedIterations = every_iteration,
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


def symbolic_liveness(
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
