"""Live: which arrays are alive when - what forward must keep, the peak, and the arrays that make it.

An array lives from the line that defines it to the last line that reads it; inputs and weights live throughout, outputs
to the end. The table is read as written: a word's inner values are seen by reading the lowered table, and another name
for an array (a sum of one term) is the same array. Nothing is assumed to happen in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from learncost.equation.arrays import BYTES, alias
from learncost.equation.count import Count, checked_sizes, shape_of
from learncost.equation.errors import InputError
from learncost.equation.table import Line, Repeat, Statement, Table, Term, Word
from learncost.equation.table import walk as each
from learncost.layers.derive import Derived, derive
from learncost.layers.layer import Layer


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
    """One line of the table, and the bytes that are alive while it runs."""

    line: str
    layer: str
    macro_operation: str
    bytes: Any
    block: str | None = None


@dataclass(frozen=True)
class Live:
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

    @property
    def kept_bytes(self) -> Any:
        """Bytes of all that is kept."""
        return sum(held.bytes for held in self.kept)


def live(
    table: Layer | Table | Derived,
    sizes: Mapping[str, Any],
    dtype: str = "fp32",
    widths: Mapping[str, int] | None = None,
) -> Live:
    """Which named arrays of a table are alive when, and how many bytes they take together.

    An array lives from the line that makes it to the last line that reads it; inputs and weights live throughout.

    Parameters
    ----------
    table
        A table as it stands; of a layer or a derivation the whole step: forward, backward and update.
    sizes
        Every size, by the names of the axes and of the counts of repeats. Arrays of sizes give arrays of bytes;
        `peak_line` and `witnesses` are then those of the first row.
    dtype
        The type of every array, indices included.
    widths
        Bytes of an element by role, where a role has another type: weight, index, gradient, kept; an array's own name
        goes before its role.

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
    walk = _walked(table)
    needed = {name.partition("/")[0] for array in walk.arrays for name in array.count.sizes}
    missing = sorted(needed - sizes.keys())
    if missing:
        raise InputError(f"live needs every size: give {', '.join(missing)}")
    return _read(walk, checked_sizes(sizes), dtype, widths or {})


def _walked(table: Table) -> _Walk:
    walk = _Walk(dict(table.axes), table.indices, _gradients(table))
    scope = _Names(table.axes, {})
    for name in (*table.inputs, *table.weights):
        walk.give(scope, name, weight=name in table.weights)
    walk.statements(table.lines, scope)
    for name in table.outputs:
        scope.find(name).last = len(walk.lines)
    return walk


def _gradients(table: Table) -> frozenset[str]:
    """What optimizers are given, under every name that it has in stacks."""
    lines = [line for line, _ in each(table.lines) if isinstance(line, Word) and "G" in line.given]
    updates = [line for line in lines if line.tag.macro == "optimizer_step"]
    return frozenset(line.right[line.given.index("G")].name for line in updates)


def levels(
    table: Table, sizes: Mapping[str, Any], dtype: str = "fp32", widths: Mapping[str, int] | None = None
) -> tuple[Count, ...]:
    """The bytes at every line as polynomials in the sizes that are left out: what is solved for a size that fits."""
    return tuple(_levels(_walked(table), lambda count: count.with_sizes(sizes), BYTES[dtype], widths or {}))


def _levels(walk: _Walk, value: Callable[[Count], Any], width: int, widths: Mapping[str, int]) -> Iterator[Any]:
    """What is alive at every line, a count becoming a number or another count by `value`.

    What begins and what ends at a line is added to what was alive at the one before.
    """
    known: dict[tuple[tuple[str, ...], int], Any] = {}
    changes = [value(Count())] * (len(walk.lines) + 1)
    for array in walk.arrays:
        if (last := min(array.last, len(walk.lines) - 1)) < array.first:
            continue
        key = array.axes, walk.width(array, width, widths)
        if key not in known:
            known[key] = value(array.count * key[1])
        changes[array.first] = changes[array.first] + known[key]
        changes[last + 1] = changes[last + 1] - known[key]
    return accumulate(changes[:-1])


def _read(walk: _Walk, sizes: Mapping[str, Any], dtype: str, widths: Mapping[str, int]) -> Live:
    width = BYTES[dtype]
    curve = []
    for line, alive in zip(walk.lines, _levels(walk, lambda count: count.at(sizes), width, widths), strict=True):
        tag = line.tag
        curve.append(Moment(line.name, tag.layer, tag.macro, alive, tag.block))
    levels = [moment.bytes for moment in curve]
    kept = tuple(_held(a, sizes, walk.width(a, width, widths), walk.role(a)) for a in walk.arrays if a.kept)
    if not levels:
        return Live(kept, 0, "", (), (), dtype)
    if all(isinstance(level, int) for level in levels):
        peak: Any = max(levels)
        worst = levels.index(peak)
    else:
        rows = np.stack(np.broadcast_arrays(*levels))
        peak, worst = rows.max(axis=0), int(rows.reshape(len(levels), -1)[:, 0].argmax())
    held = [a for a in walk.arrays if a.first <= worst <= a.last]
    witnesses = [_held(a, sizes, walk.width(a, width, widths), walk.role(a)) for a in held]
    witnesses.sort(key=lambda held: -int(np.ravel(held.bytes)[0]))
    return Live(kept, peak, curve[worst].line, tuple(witnesses), tuple(curve), dtype)


def _held(array: _Array, sizes: Mapping[str, Any], width: int, role: str) -> Held:
    shape = shape_of(array.axes, sizes)
    return Held(array.name, array.axes, shape, (array.count * width).at(sizes), array.layer, array.block, role)


@dataclass
class _Array:
    """An array, and the moments (numbers of lines) of its first and last use."""

    name: str
    axes: tuple[str, ...]
    first: int
    last: int
    macro: str = "forward"
    layer: str = ""
    block: str | None = None
    weight: bool = False
    read: set[str] = field(default_factory=set)  # the macro-operations that read it

    @property
    def count(self) -> Count:
        return Count.of(self.axes)

    @property
    def kept(self) -> bool:
        """A forward value that another macro-operation reads."""
        mine = "forward" in self.read if self.macro == "given" else self.macro == "forward"
        return mine and not self.weight and bool(self.read - {"forward"})


@dataclass
class _Names:
    """Names of a scope and the arrays that they stand for; names that it lacks are those of the scope around it."""

    axes: Mapping[str, tuple[str, ...]]
    arrays: dict[str, _Array]
    outer: _Names | None = None

    def find(self, name: str) -> _Array:
        if name in self.arrays or self.outer is None:
            return self.arrays[name]
        return self.outer.find(name)

    def has(self, name: str) -> bool:
        return name in self.arrays or (self.outer is not None and self.outer.has(name))


@dataclass
class _Walk:
    axes: Mapping[str, tuple[str, ...]]
    indices: frozenset[str]
    gradients: frozenset[str]
    lines: list[Line] = field(default_factory=list)
    arrays: list[_Array] = field(default_factory=list)

    def role(self, array: _Array) -> str:
        if array.weight:
            return "weight"
        if array.name in self.indices:
            return "index"
        if array.name in self.gradients:
            return "gradient"
        return "kept" if array.kept else ""

    def width(self, array: _Array, width: int, widths: Mapping[str, int]) -> int:
        """Bytes of an element: by its name, by its role, or as of all."""
        return widths.get(array.name, widths.get(self.role(array), width))

    def give(self, scope: _Names, name: str, weight: bool = False) -> _Array:
        """An array from outside: there from the start; inputs and weights stay to the end."""
        axes = scope.axes[name] if name in scope.axes else self.axes[name]
        array = _Array(name, axes, 0, 10**18, "given", weight=weight)
        self.arrays.append(array)
        scope.arrays[name] = array
        return array

    def statements(self, lines: Iterable[Statement], scope: _Names) -> None:
        for line in lines:
            if isinstance(line, Repeat):
                self.repeat(line, scope)
            else:
                self.line(line, scope)

    def line(self, line: Line, scope: _Names) -> None:
        now = len(self.lines)
        self.lines.append(line)
        for name in line.reads:
            array = self.find(scope, name)
            array.last = max(array.last, now)
            array.read.add(line.tag.macro)
        if alias(line) and isinstance(line.right[0], Term):
            scope.arrays[line.name] = scope.find(line.right[0].name)
            return
        for term in line.left:
            tag = line.tag
            array = _Array(term.name, term.declared, now, now, tag.macro, tag.layer, tag.block)
            self.arrays.append(array)
            scope.arrays[term.name] = array

    def find(self, scope: _Names, name: str) -> _Array:
        """The array of a name; one that nothing defined comes from outside and is there until its last read."""
        if scope.has(name):
            return scope.find(name)
        outermost = scope
        while outermost.outer is not None:
            outermost = outermost.outer
        array = self.give(outermost, name)
        array.last = 0
        return array

    def repeat(self, line: Repeat, scope: _Names) -> None:
        """One turn stands for all. A slice of a stack is the stack; what is kept lies in the stack alone."""
        begin = len(self.lines)
        inner = _Names({**scope.axes, **line.axes}, {}, scope)
        for inside, outer in line.each:
            inner.arrays[inside] = self.find(scope, outer)
        starts = {}
        for carry in line.carry:
            initial = self.find(scope, carry.initial)
            initial.last = max(initial.last, begin - 1)
            start = _Array(carry.start, line.axes[carry.start], begin, begin)
            self.arrays.append(start)
            starts[carry.start] = inner.arrays[carry.start] = start
        before = len(self.arrays)
        self.statements(line.lines, inner)
        end = len(self.lines) - 1
        made = [array for array in self.arrays[before:] if array.macro != "given"]
        self.shared(line, inner, scope, end)
        for carry in line.carry:
            last = inner.find(carry.end)
            last.last = max(last.last, end)
            start = starts[carry.start]
            self.find(scope, carry.initial).read |= start.read
            start.macro, start.layer, start.block = last.macro, last.layer, last.block
            final = _Array(carry.final, last.axes, end + 1, -1, last.macro, last.layer, last.block)
            self.arrays.append(final)
            scope.arrays[carry.final] = final
        scope.arrays |= self.stacks(line, inner, scope, begin, [*starts.values(), *made])

    def shared(self, line: Repeat, inner: _Names, scope: _Names, end: int) -> None:
        """What all turns read, and the stacks that they are given, live to the end of the last turn."""
        for name in (*line.shared, *(outer for _, outer in line.each)):
            array = self.find(scope, name)
            array.last = max(array.last, end)

    def stacks(self, line: Repeat, inner: _Names, scope: _Names, begin: int, made: list[_Array]) -> dict[str, _Array]:
        """The stacks of what is kept; the arrays inside that they hold are not counted a second time."""
        known: dict[int, _Array] = {}
        ends = {id(inner.find(carry.end)): carry.start for carry in line.carry}
        kept = {id(inner.find(inside)) for inside, _ in line.keep}
        again = {start for array, start in ends.items() if array in kept}  # turn t's start is turn t - 1's end
        stacks = {}
        for inside, outer in line.keep:
            array = inner.find(inside)
            if id(array) not in known:
                times = "1" if inside in again else line.count
                whole = scope.axes.get(outer, ())
                axes = whole if line.part(inside, whole) else (times, *array.axes)
                stack = _Array(outer, axes, begin, begin, array.macro, array.layer, array.block)
                self.arrays.append(stack)
                known[id(array)] = stack
            stacks[outer] = known[id(array)]
        for array in made:
            if id(array) in known:
                self.arrays = [other for other in self.arrays if other is not array]
        return stacks
