"""Live: which arrays are alive when - what forward must keep, the peak, and the arrays that make it.

An array lives from the line that defines it to the last line that reads it; inputs and weights live throughout, outputs
to the end. The table is read as written: a word's inner values are seen by reading the lowered table, and another name
for an array (a sum of one term) is the same array. Nothing is assumed to happen in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from learncost.equation.count import Count, base, checked_sizes, shape_of, size_of
from learncost.equation.displayed import Displayed
from learncost.equation.errors import InputError
from learncost.equation.line import Line, Word
from learncost.equation.precision import BYTES
from learncost.equation.repeat import walk as each
from learncost.equation.table import Table
from learncost.equation.value import RANDOM, Same
from learncost.layers.derive import Derived, derive
from learncost.layers.layer import Layer
from learncost.schedule.calls import AS_WRITTEN, IN_KERNELS, Rules, calls
from learncost.schedule.lifetimes import Array, Lifetimes, Walked, every_turn, some_turns
from learncost.schedule.stretches import Stretches


@dataclass(frozen=True)
class Held:
    """An array in memory: its name, its axes and shape, its bytes, and the layer whose line made it."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    bytes: Any
    layer: str = ""
    block: str | None = None
    role: str = ""  # weight, index, gradient, kept (of the forward pass, read later), or what is made and gone


@dataclass(frozen=True)
class Moment:
    """One line of the table, and the bytes that are alive while it runs.

    `loops` are the repeats that it stands in, from the outermost: the number of each, the size that says how often it
    turns, and how often that is. A line stands once for all turns, with the bytes of the one in which most is alive.
    """

    line: str
    layer: str
    macro_operation: str
    bytes: Any
    block: str | None = None
    loops: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class Stay:
    """An array, or several alike, over the lines at which it is alive: numbers of moments of a curve, both included.

    Where a line stands for several turns, it is what is alive in the turn in which most is.

    shape   of one of them, and `number`, how many there are: of what every turn keeps, those that are there
    bytes   of all of them
    macro_operation, layer, block  of the line that made it; "given" and "" of what came from outside
    role    as of `Held`
    part    what it is for, of those that the account of a step has; empty where only a table was read
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
    role: str = ""
    part: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        names = ("name", "axes", "shape", "number", "bytes", "first", "last", "macro_operation", "layer", "block")
        return {name: getattr(self, name) for name in names} | {"part": self.part}


@dataclass(frozen=True)
class Live(Displayed):
    """Which arrays are alive when. Bytes are exact whole numbers, or arrays where sizes were arrays.

    Attributes
    ----------
    kept
        Values of the forward pass that later passes read, its inputs included and its weights not: `name`, `axes`,
        `shape`, `bytes`.
    peak
        Bytes at the worst moment.
    peak_line
        The line that runs at that moment.
    witnesses
        The arrays that are alive then.
    curve
        The bytes at every line, in the order of the lines. A repeated block stands once.
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

    kept: tuple[Held, ...]
    peak: Any
    peak_line: str
    witnesses: tuple[Held, ...]
    curve: tuple[Moment, ...]
    dtype: str
    _stays: Callable[[], tuple[Stay, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def stays(self) -> tuple[Stay, ...]:
        """Every array with the first and the last line of the curve at which it is alive, and its bytes there.

        At every line they sum to the curve. None where sizes were arrays.
        """
        return self._stays()

    @property
    def kept_bytes(self) -> Any:
        """Bytes of all that is kept."""
        return sum(array.bytes for array in self.kept)


def live(
    table: Layer | Table | Derived,
    sizes: Mapping[str, Any],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: Rules = AS_WRITTEN,
) -> Live:
    """Which named arrays of a table are alive when, and how many bytes they take together.

    An array lives from the line that makes it to the last line that reads it; inputs and weights live throughout.

    Parameters
    ----------
    table
        A table as it stands; of a layer or a derivation the whole step: forward, backward and update.
    sizes
        Every size, by the names of the axes and of the counts of repeats. Arrays of sizes give arrays of bytes;
        `peak_line` and `witnesses` are then those of the first row. The turns of a repeat are one number.
    dtype
        The type of every array, indices included.
    widths
        Bytes of an element by role, where a role has another type: weight, index, gradient, kept; an array's own name
        goes before its role.
    rules
        What stays inside of a kernel, and what takes the place of something else: by default nothing does.

    Returns
    -------
    Live
        The peak, what makes it, and what is kept.

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
        raise InputError(f"no data type is called {dtype!r}; there are {', '.join(BYTES)}")
    if isinstance(table, Layer):
        table = derive(table)
    if isinstance(table, Derived):
        table = table.step
    counts = {count for _, turns in each(table.lines) for count in turns}
    if several := sorted(count for count in counts if not isinstance(_turns(count, sizes), int | None)):
        raise InputError(f"live takes one number of turns for a repeat: {several[0]} may be no array")
    walk = _walked(table, rules, sizes)
    needed = {name.partition("/")[0] for array in walk.arrays for name in array.count.sizes}
    missing = sorted((needed | {count.partition("/")[0] for count in counts if not count.isdigit()}) - sizes.keys())
    if missing:
        raise InputError(f"live needs every size: give {', '.join(missing)}")
    return walk.read(checked_sizes(sizes), dtype, widths or {})


def levels(
    table: Table,
    sizes: Mapping[str, Any],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: Rules = IN_KERNELS,
) -> tuple[Count, ...]:
    """The bytes at a line as polynomials in the sizes that are left out: what is solved for a size that fits.

    A line has one where it may be the worst: where something goes after it, and it brings something. A repeat whose
    turns are left out is taken to have more than `FEW` of them.
    """
    changes = _walked(table, rules, sizes).changes(lambda count: count.with_sizes(sizes), BYTES[dtype], widths or {})
    grows = [all(part >= 0 for part in change.terms.values()) for change in changes]
    falls = [bool(change) and all(part <= 0 for part in change.terms.values()) for change in changes]
    every = zip(accumulate(changes), falls, [*grows[1:], False], strict=True)
    return tuple(level for level, fell, grows_then in every if not fell and not grows_then)


def moments(
    table: Table,
    sizes: Mapping[str, int],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
    rules: Rules = IN_KERNELS,
    turns: Walked = every_turn,
) -> Iterator[tuple[Line, tuple[int, ...], int]]:
    """Every line as it runs, turn by turn, with the numbers of the turns around it and the bytes that are alive then.

    turns  which turns of a repeat are walked; by default all of them
    """
    walk = _Walk(table, rules, _turns_of(table, sizes), turns)
    levels_of_lines = walk.levels(lambda count: count.at(sizes), BYTES[dtype], widths or {})
    for (line, path, _), level in zip(walk.lines, levels_of_lines, strict=True):
        yield line, tuple(turn for _, turn in path), level


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
class Stretch:
    """An array between two moments, from 1, both included: its bytes as a polynomial, and whether it was given.

    turns   the count of the repeat whose turns keep it; "" of any other
    axes    of one of those that it stands for, `times` how many these are, `width` the bytes of an element
    macro_operation, layer, block  of the line that made it; `role`, as of `Held`
    """

    name: str
    count: Count
    first: int
    last: int
    given: bool
    turns: str = ""
    axes: tuple[str, ...] = ()
    times: int | Count = 1
    width: int = 1
    macro_operation: str = ""
    layer: str = ""
    block: str | None = None
    role: str = ""


def stretches(
    table: Table,
    widths: Mapping[str, int],
    rules: Rules = IN_KERNELS,
    turns: Mapping[str, int] | None = None,
    width: int = 4,
) -> tuple[tuple[Instant, ...], tuple[Stretch, ...]]:
    """The moments of a table, and the arrays over them, for sizes that are left open.

    widths  bytes of an element by role or by name, as of `live`; `width` where neither is told
    turns   of repeats, by their counts; one that is left out is taken to have more than `FEW` of them
    """
    walk = _walked(table, rules, turns or {})
    counts: dict[tuple[tuple[str, ...], int], Count] = {}
    kept_arrays = []
    for array in walk.arrays:
        of_element = walk.width(array, width, widths)
        if array.last < array.first or not of_element:
            continue
        key = array.axes, of_element
        if key not in counts:
            counts[key] = Count.of(array.axes, of_element)
        alone = isinstance(array.times, int) and array.times == 1
        kept_arrays.append(
            Stretch(
                _name(array),
                counts[key] if alone else counts[key] * array.times,
                array.first,
                array.last,
                bool(array.given),
                array.stack[1][0] if array.stack and array.stack[1] else "",
                array.axes,
                array.times,
                of_element,
                array.macro,
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


def _turns(count: str, sizes: Mapping[str, Any]) -> Any:
    """The turns of a repeat, or None where its size is left out."""
    has_size = count.isdigit() or base(count).partition("/")[0] in sizes
    return size_of(count, sizes) if has_size else None


def _walked(table: Table, rules: Rules, sizes: Mapping[str, Any]) -> _Walk:
    """The arrays of a table, remembered: at other lengths, in other types, and as polynomials they are the same."""
    return _walk(Same(table), rules, tuple(_turns_of(table, sizes).items()))


@lru_cache(maxsize=16)
def _walk(same: Same[Table], rules: Rules, turns: tuple[tuple[str, int | None], ...]) -> _Walk:
    return _Walk(same.content, rules, dict(turns))


def _turns_of(table: Table, sizes: Mapping[str, Any]) -> dict[str, int | None]:
    """The turns of every repeat, by its count."""
    return {count: _turns(count, sizes) for _, counts in each(table.lines) for count in counts}


class _Walk:
    """The arrays of a table under the rules of a runner, and what they are for."""

    def __init__(
        self,
        table: Table,
        rules: Rules,
        turns: Mapping[str, int | None],
        walked: Walked = some_turns,
    ) -> None:
        lifetimes = Lifetimes(table, calls(table, rules), turns.__getitem__, walked)
        self.lines, last = lifetimes.lines, len(lifetimes.lines)
        self.loops = {number: loop.repeat.count for loop, number in lifetimes.loops.items()}
        self.arrays = [array for array in lifetimes.arrays if array.over is None]
        for array in self.arrays:
            array.first, array.last = max(array.first, 1), last if array.given else min(array.last, last)
        self._weights, self._indices, self._gradients = frozenset(table.weights), table.indices, _gradients(table)
        self._fixed = frozenset(name for name in table.inputs if table.values[name].role in RANDOM)

    @cached_property
    def places(self) -> list[int]:
        """Of every moment the place of its line among all of them, each of which stands once for all its turns."""
        places: dict[tuple[tuple[int, ...], int], int] = {}
        keys = ((tuple(loop for loop, _ in path), number) for _, path, number in self.lines)
        return [places.setdefault(key, len(places)) for key in keys]

    def role(self, array: Array) -> str:
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

    def width(self, array: Array, width: int, widths: Mapping[str, int]) -> int:
        """Bytes of an element: by its name, by its role, or as of all."""
        return widths.get(_name(array), widths.get(self.role(array), width))

    def levels(self, value: Callable[[Count], Any], width: int, widths: Mapping[str, int]) -> Iterator[Any]:
        """What is alive at every moment, as it `changes`."""
        return accumulate(self.changes(value, width, widths))

    def changes(self, value: Callable[[Count], Any], width: int, widths: Mapping[str, int]) -> list[Any]:
        """What begins at every moment less what ended before, a count becoming a number or another count by `value`."""
        numbers: dict[tuple[tuple[str, ...], int], Any] = {}
        changes = [value(Count())] * (len(self.lines) + 2)
        for array in self.arrays:
            if array.last < array.first:
                continue
            key = array.axes, self.width(array, width, widths)
            if key not in numbers:
                numbers[key] = value(Count.of(array.axes, key[1]))
            change = numbers[key] if isinstance(array.times, int) and array.times == 1 else numbers[key] * array.times
            changes[array.first] = changes[array.first] + change
            changes[array.last + 1] = changes[array.last + 1] - change
        return changes[1:-1]

    def _kept(self) -> Iterator[Array]:
        """What is kept; of what no turn keeps for later ones, and every turn makes, that of one turn."""
        counted: set[tuple[str, tuple[int, ...]]] = set()
        for array in self.arrays:
            if array.kept and self.role(array) != "weight":
                loops = tuple(loop for loop, _ in self.lines[array.first - 1][1])
                if array.stack is not None or (array.name, loops) not in counted:
                    yield array
                counted.add((array.name, loops))

    def read(self, sizes: Mapping[str, Any], dtype: str, widths: Mapping[str, int]) -> Live:
        width = BYTES[dtype]

        def held(arrays: Iterable[Array]) -> list[Held]:
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
        curve, worst_turns = self._curve(levels, sizes)
        return Live(
            kept_arrays,
            peak,
            self.lines[worst][0].name,
            tuple(alive),
            curve,
            dtype,
            lambda: tuple(self._stays(worst_turns, sizes, width, widths)),
        )

    def _curve(self, levels: Sequence[Any], sizes: Mapping[str, Any]) -> tuple[tuple[Moment, ...], tuple[int, ...]]:
        """A line stands once, with the bytes of that of its turns in which most is alive; and which moment that is,
        from 1: none where the bytes are arrays."""
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
            moments.append(Moment(line.name, line.tag.layer, line.tag.macro, level, line.tag.block, loops))
        has_numbers = all(isinstance(level, int) for level in levels)
        return tuple(moments), tuple(place + 1 for place, _ in highest.values()) if has_numbers else ()

    def _stays(
        self, moments: Sequence[int], sizes: Mapping[str, Any], width: int, widths: Mapping[str, int]
    ) -> Iterator[Stay]:
        """The arrays at moments, those of a stack that are there as long as each other together."""
        groups: dict[Any, list[Array]] = {}
        stretches = Stretches(moments)
        for array in self.arrays:
            for stretch in stretches.within(array.first, array.last):
                groups.setdefault((array.stack[0] if array.stack else array, array.axes, *stretch), []).append(array)
        for (*_, first, last), several in groups.items():
            last_made = several[-1]
            number = sum(_at(array.times, sizes) for array in several)
            size = sum(int((array.count * self.width(array, width, widths)).at(sizes)) for array in several)
            shape = shape_of(last_made.axes, sizes)
            tags = last_made.macro, last_made.layer, last_made.block
            yield Stay(_name(last_made), last_made.axes, shape, number, size, first, last, *tags, self.role(last_made))


def _at(times: int | Count, sizes: Mapping[str, Any]) -> int:
    return times if isinstance(times, int) else int(times.at(sizes))


def _held(
    arrays: Iterable[Array],
    sizes: Mapping[str, Any],
    width: Callable[[Array], int],
    role: Callable[[Array], str],
) -> list[Held]:
    """Arrays as they are shown, the turns' parts of a stack together."""
    groups: dict[Any, list[Array]] = {}
    for array in arrays:
        groups.setdefault(array.stack[0] if array.stack else array, []).append(array)
    result = []
    for several in groups.values():
        first = several[-1]  # of a stack the first may be what went into the repeat
        axes, shape = first.axes, shape_of(first.axes, sizes)
        if first.stack:
            axes = first.stack[1]
            turns = shape_of(axes[: len(axes) - len(first.axes)], sizes)
            alive = sum(array.times for array in several if isinstance(array.times, int))
            shape = (*(turns if alive == prod(turns) else (alive,)), *shape)
        size = sum((array.count * width(array)).at(sizes) for array in several)
        result.append(Held(_name(first), axes, shape, size, first.layer, first.block, role(first)))
    return result


def _name(array: Array) -> str:
    return array.stack[0] if array.stack else array.name


def _gradients(table: Table) -> frozenset[str]:
    """What optimizers are given, under every name that it has in stacks."""
    lines = [line for line, _ in each(table.lines) if isinstance(line, Word) and "G" in line.given]
    updates = [line for line in lines if line.tag.macro == "optimizer_step"]
    return frozenset(line.right[line.given.index("G")].name for line in updates)
