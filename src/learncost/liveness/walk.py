"""The arrays of a table under an engine's rules, walked once for all sizes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from learncost.ir.displayed import Displayed
from learncost.ir.line import Op
from learncost.ir.loop import walk as each
from learncost.ir.polynomial import Polynomial, base, shape_of, size_of
from learncost.ir.precision import BYTES
from learncost.ir.serializable import HIDDEN, Serializable
from learncost.ir.table import Table
from learncost.ir.value import RANDOM, IdentityKey
from learncost.program.allocation_log import IntervalSet
from learncost.program.calls import ScheduleRules, calls
from learncost.program.lifetimes import Lifetimes, ScheduledArray, Walked, some_iterations


@dataclass(frozen=True)
class LiveArray:
    """An array in memory: its name, its axes and shape, its bytes, and the layer whose line defines it."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    bytes: Any
    layer: str = ""
    block: str | None = None
    role: str = ""  # weight, index, gradient, kept (a saved tensor), or "" for a temporary


@dataclass(frozen=True)
class Moment:
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


@dataclass(frozen=True)
class Live(Displayed):
    """The live arrays of a table over time. Bytes are exact whole numbers, or arrays where sizes were arrays.

    Attributes
    ----------
    kept
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
    >>> [(held.name, held.bytes) for held in found.kept], found.kept_bytes
    ([('X', 24)], 24)
    """

    kept: tuple[LiveArray, ...]
    peak: Any
    peak_line: str
    live_at_peak: tuple[LiveArray, ...]
    curve: tuple[Moment, ...]
    dtype: str
    _stays: Callable[[], tuple[LiveInterval, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def stays(self) -> tuple[LiveInterval, ...]:
        """Every array with the first and the last line of the curve at which it is live, and its bytes there.

        Their sum at a line is the curve. Empty where sizes were arrays.
        """
        return self._stays()

    @property
    def kept_bytes(self) -> Any:
        """Bytes of all saved tensors."""
        return sum(array.bytes for array in self.kept)


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
    return {count: _iterations(count, sizes) for _, nest in each(table.lines) for count in nest.counts}


class Walk:
    """The arrays of a table under an engine's rules, with their roles."""

    def __init__(
        self,
        table: Table,
        rules: ScheduleRules,
        iterations: Mapping[str, int | None],
        walked: Walked = some_iterations,
    ) -> None:
        lifetimes = Lifetimes(table, calls(table, rules), iterations.__getitem__, walked)
        self.lines, last = lifetimes.lines, len(lifetimes.lines)
        self.loops = {number: loop.repeat.count for loop, number in lifetimes.loops.items()}
        self.arrays = [array for array in lifetimes.arrays if array.over is None]
        for array in self.arrays:
            array.first, array.last = max(array.first, 1), last if array.given else min(array.last, last)
        self._weights, self._indices, self._gradients = frozenset(table.weights), table.indices, _gradients(table)
        self._fixed = frozenset(name for name in table.inputs if table.values[name].role in RANDOM)

    @cached_property
    def places(self) -> list[int]:
        """The number of the line of every moment; a line counts once for all its iterations."""
        places: dict[tuple[tuple[int, ...], int], int] = {}
        keys = ((tuple(loop for loop, _ in path), number) for _, path, number in self.lines)
        return [places.setdefault(key, len(places)) for key in keys]

    def role(self, array: ScheduledArray) -> str:
        names = {array.name, array.stack[0] if array.stack else ""}
        if array.given in self._weights and array.given:
            return "weight"
        if array.given in self._fixed and array.given:
            return "projection"
        if names & self._indices:
            return "index"
        if names & self._gradients:
            return "gradient"
        return "kept" if array.kept else ""

    def width(self, array: ScheduledArray, width: int, widths: Mapping[str, int]) -> int:
        """Return the bytes of an element: by its name, by its role, or the default."""
        return widths.get(name_of(array), widths.get(self.role(array), width))

    def levels(self, value: Callable[[Polynomial], Any], width: int, widths: Mapping[str, int]) -> Iterator[Any]:
        """Yield the bytes that are live at every moment."""
        return accumulate(self.changes(value, width, widths))

    def changes(self, value: Callable[[Polynomial], Any], width: int, widths: Mapping[str, int]) -> list[Any]:
        """Return allocations minus deallocations at every moment; `value` converts each polynomial."""
        numbers: dict[tuple[tuple[str, ...], int], Any] = {}
        changes = [value(Polynomial())] * (len(self.lines) + 2)
        for array in self.arrays:
            if array.last < array.first:
                continue
            key = array.axes, self.width(array, width, widths)
            if key not in numbers:
                numbers[key] = value(Polynomial.of(array.axes, key[1]))
            change = numbers[key] if isinstance(array.times, int) and array.times == 1 else numbers[key] * array.times
            changes[array.first] = changes[array.first] + change
            changes[array.last + 1] = changes[array.last + 1] - change
        return changes[1:-1]

    def _kept(self) -> Iterator[ScheduledArray]:
        """Yield the saved tensors; one that every iteration overwrites is counted once."""
        counted: set[tuple[str, tuple[int, ...]]] = set()
        for array in self.arrays:
            if array.kept and self.role(array) != "weight":
                loops = tuple(loop for loop, _ in self.lines[array.first - 1][1])
                if array.stack is not None or (array.name, loops) not in counted:
                    yield array
                counted.add((array.name, loops))

    def read(self, sizes: Mapping[str, Any], dtype: str, widths: Mapping[str, int]) -> Live:
        width = BYTES[dtype]

        def held(arrays: Iterable[ScheduledArray]) -> list[LiveArray]:
            return _held(arrays, sizes, lambda array: self.width(array, width, widths), self.role)

        kept_arrays = tuple(held(self._kept()))
        levels = list(self.levels(lambda count: count.at(sizes), width, widths))
        if not levels:
            return Live(kept_arrays, 0, "", (), (), dtype)
        if all(isinstance(level, int) for level in levels):
            peak: Any = max(levels)
            worst = levels.index(peak)
        else:
            rows = np.stack(np.broadcast_arrays(*levels))
            peak, worst = rows.max(axis=0), int(rows.reshape(len(levels), -1)[:, 0].argmax())
        alive = held(array for array in self.arrays if array.first <= worst + 1 <= array.last)
        alive.sort(key=lambda array: -int(np.ravel(array.bytes)[0]))
        curve, worst_iterations = self._curve(levels, sizes)
        return Live(
            kept_arrays,
            peak,
            self.lines[worst][0].name,
            tuple(alive),
            curve,
            dtype,
            lambda: tuple(self._stays(worst_iterations, sizes, width, widths)),
        )

    def _curve(self, levels: Sequence[Any], sizes: Mapping[str, Any]) -> tuple[tuple[Moment, ...], tuple[int, ...]]:
        """Return the curve, each line with its largest bytes over iterations, and the moments of those, numbered from
        1.

        The moments are empty where the bytes are arrays.
        """
        highest: dict[int, tuple[int, Any]] = {}
        for moment, (place, level) in enumerate(zip(self.places, levels, strict=True)):
            if place not in highest:
                highest[place] = moment, level
            elif not isinstance(level, int):
                highest[place] = highest[place][0], np.maximum(level, highest[place][1])
            elif level > highest[place][1]:
                highest[place] = moment, level
        moments = []
        for place, level in highest.values():
            line, path, _ = self.lines[place]
            loops = tuple((loop, self.loops[loop], int(size_of(self.loops[loop], sizes))) for loop, _ in path)
            moments.append(Moment(line.name, line.meta.layer, line.meta.phase, level, line.meta.block, loops))
        has_numbers = all(isinstance(level, int) for level in levels)
        return tuple(moments), tuple(place + 1 for place, _ in highest.values()) if has_numbers else ()

    def _stays(
        self, moments: Sequence[int], sizes: Mapping[str, Any], width: int, widths: Mapping[str, int]
    ) -> Iterator[LiveInterval]:
        """Yield the live intervals over the given moments; members of a stack with equal intervals are one."""
        groups: dict[Any, list[ScheduledArray]] = {}
        stretches = IntervalSet(moments)
        for array in self.arrays:
            for stretch in stretches.within(array.first, array.last):
                groups.setdefault((array.stack[0] if array.stack else array, array.axes, *stretch), []).append(array)
        for (*_, first, last), several in groups.items():
            last_made = several[-1]
            number = sum(_at(array.times, sizes) for array in several)
            size = sum(int((array.count * self.width(array, width, widths)).at(sizes)) for array in several)
            shape = shape_of(last_made.axes, sizes)
            metas = last_made.phase, last_made.layer, last_made.block
            yield LiveInterval(
                name_of(last_made), last_made.axes, shape, number, size, first, last, *metas, self.role(last_made)
            )


def _at(times: int | Polynomial, sizes: Mapping[str, Any]) -> int:
    return times if isinstance(times, int) else int(times.at(sizes))


def _held(
    arrays: Iterable[ScheduledArray],
    sizes: Mapping[str, Any],
    width: Callable[[ScheduledArray], int],
    role: Callable[[ScheduledArray], str],
) -> list[LiveArray]:
    """Return the arrays for display; the slices of a stack are one."""
    groups: dict[Any, list[ScheduledArray]] = {}
    for array in arrays:
        groups.setdefault(array.stack[0] if array.stack else array, []).append(array)
    result = []
    for several in groups.values():
        first = several[-1]  # the first of a stack may be the loop's initial value
        axes, shape = first.axes, shape_of(first.axes, sizes)
        if first.stack:
            axes = first.stack[1]
            iterations = shape_of(axes[: len(axes) - len(first.axes)], sizes)
            alive = sum(array.times for array in several if isinstance(array.times, int))
            shape = (*(iterations if alive == prod(iterations) else (alive,)), *shape)
        size = sum((array.count * width(array)).at(sizes) for array in several)
        result.append(LiveArray(name_of(first), axes, shape, size, first.layer, first.block, role(first)))
    return result


def name_of(array: ScheduledArray) -> str:
    """Return the name of an array; for a slice, the name of its stack."""
    return array.stack[0] if array.stack else array.name


def _gradients(table: Table) -> frozenset[str]:
    """Return the gradients that optimizers read, under every name that they have in stacks."""
    lines = [line for line, _ in each(table.lines) if isinstance(line, Op) and "G" in line.given]
    updates = [line for line in lines if line.meta.phase == "optimizer_step"]
    return frozenset(line.right[line.given.index("G")].name for line in updates)
