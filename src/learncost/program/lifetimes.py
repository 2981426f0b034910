"""Lifetimes: every array of scheduled calls with its first and its last moment; a repeat is its turns, one by one.

All readings of memory are folds over these arrays: what is alive at a moment, the peak, and where each array lies.
A repeat is walked turn by turn. Where only bytes are asked for, the first two turns and the last two stand for all: in
between, what is alive at a line grows or shrinks by the same from turn to turn, so that nothing is larger there than at
both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, defined
from learncost.ir.polynomial import Polynomial
from learncost.ir.table import Table
from learncost.program.calls import Axes, Call, CallLoop, InPlaceSlot, Item, axes_within

FOREVER = 10**9
"""The moment when a step is over."""

ITSELF = frozenset((0,))

FEW = 4
"""Turns up to which all of them are walked; of more the first two and the last two."""


@dataclass(eq=False)
class ScheduledArray:
    """An array, and the moments of its first and its last use: numbers of calls from 1; 0 is before all of them.

    times    how many alike arrays it stands for, those of turns that are not walked: a number, or a Count
    given    its name in the table, where it comes from outside: a weight, a state, an input
    stack    of a turn's part of a stack, the stack's name and axes
    part     the whole that it is a turn's part of, and the turn: it has no memory of its own
    over     the array in whose place it is made
    phase, layer, block  of the line that makes it; `readers`, the macro-operations that read it
    bytes, place         of itself, and from the beginning of the arena, where arrays are laid out
    """

    name: str
    axes: tuple[str, ...]
    first: int
    last: int
    times: int | Polynomial = 1
    given: str = ""
    stack: tuple[str, tuple[str, ...]] | None = None
    part: tuple[ScheduledArray, int] | None = None
    over: ScheduledArray | None = None
    phase: str = "given"
    layer: str = ""
    block: str | None = None
    readers: set[str] = field(default_factory=set)
    bytes: int = 0
    place: int = -1

    @property
    def count(self) -> Polynomial:
        """How many elements it has, all that it stands for together."""
        return Polynomial.of(self.axes) * self.times

    @property
    def root(self) -> ScheduledArray:
        """The array whose memory it is."""
        array = self
        while array.over is not None:
            array = array.over
        return array

    @property
    def owner(self) -> str:
        """The name of what the caller owns that it lies in; empty where it is the step's own."""
        root = self.root
        return root.part[0].owner if root.part else root.given

    @property
    def kept(self) -> bool:
        """A value of the forward pass, or an input of it, that another macro-operation reads."""
        mine = "forward" in self.readers if self.phase == "given" else self.phase == "forward"
        return mine and bool(self.readers - {"forward"})


@dataclass(eq=False)
class Stack:
    """What the turns of a repeat have kept, by their numbers."""

    parts: dict[int, ScheduledArray | Stack] = field(default_factory=dict)

    def arrays(self) -> Iterator[ScheduledArray]:
        for part in self.parts.values():
            yield from _arrays(part)


Names: TypeAlias = "dict[str, ScheduledArray | Stack]"
Wanted: TypeAlias = "Mapping[str, frozenset[int]]"  # as whole arrays: a name itself (0), its slices (1), theirs (2)
Path: TypeAlias = "tuple[tuple[int, int], ...]"  # the loops around, by their numbers in the program, with the turns


@dataclass(frozen=True)
class LoopIteration:
    """A turn of a repeat; or so many that are not walked, which are as the one before them."""

    number: int
    walked: bool = True
    times: int | Polynomial = 1


Walked: TypeAlias = "Callable[[Loop, int | None], tuple[LoopIteration, ...]]"  # which turns of a repeat are walked


def every_iteration(repeat: Loop, count: int | None) -> tuple[LoopIteration, ...]:
    """All turns, in the order in which they run; of a count that is known."""
    assert count is not None
    iterations = tuple(map(LoopIteration, range(count)))
    return iterations[::-1] if repeat.reverse else iterations


def some_iterations(repeat: Loop, count: int | None) -> tuple[LoopIteration, ...]:
    """The turns that stand for all; a count that is not known is taken as more than a few."""
    if count is not None and count <= FEW:
        return every_iteration(repeat, count)
    others = Polynomial.of((repeat.count,)) + Polynomial.of((), -FEW) if count is None else count - FEW
    iterations = (
        LoopIteration(0),
        LoopIteration(1),
        LoopIteration(2, False, others),
        LoopIteration(-2),
        LoopIteration(-1),
    )
    return iterations[::-1] if repeat.reverse else iterations


class Lifetimes:
    """The arrays of a step's calls.

    arrays  all of them, in the order in which they are made; what is given first
    lines   the line that runs at every moment, the path of its turn, and its number in its scope
    fields  those that each scope's calls name, for each turn of the loops around
    outputs  those that leave the step, by name
    pairs   an operand and a result of a call that may be one memory, or are (`over`), and the moment

    count   the turns of a repeat, where they are known
    iterations which of them are walked
    wholes  whether a stack that is read as a whole, or handed out, lies in memory as one
    """

    def __init__(
        self,
        table: Table,
        items: Iterable[Item],
        count: Callable[[str], int | None],
        iterations: Walked = some_iterations,
        wholes: bool = False,
    ) -> None:
        self.table, self.items, self.count, self.iterations, self.wholes = (
            table,
            tuple(items),
            count,
            iterations,
            wholes,
        )
        self.moment = 0
        self.arrays: list[ScheduledArray] = []
        self.lines: list[tuple[Line, Path, int]] = []
        self.fields: dict[Path, dict[str, ScheduledArray]] = {}
        self.loops: dict[CallLoop, int] = {}
        self.pairs: list[tuple[ScheduledArray, ScheduledArray, int]] = []
        self.outputs: dict[str, ScheduledArray | Stack] = {}
        self._parts: dict[tuple[ScheduledArray, int], ScheduledArray] = {}
        self._walk_all()

    def by_iteration(self, loops: tuple[int, ...]) -> list[tuple[Path, dict[str, ScheduledArray]]]:
        """The arrays that a scope's calls name, turn by turn; `loops` are the numbers of the loops around it."""
        return sorted(
            (path, arrays) for path, arrays in self.fields.items() if tuple(number for number, _ in path) == loops
        )

    def same(self, first: str, second: str, loops: tuple[int, ...]) -> bool:
        """Whether two names of a scope are one memory, in every turn."""
        return all(f[first].root is f[second].root for _, f in self.by_iteration(loops) if first in f and second in f)

    def _walk_all(self) -> None:
        axes = dict(self.table.axes)
        handed_in = (*self.table.inputs, *self.table.weights)
        makes = defined(self.table.lines)
        others = [name for line in self.table.lines for name in line.reads if name not in makes]
        names: Names = {}
        for name in dict.fromkeys((*handed_in, *others)):
            names[name] = array = self._new(name, axes[name] if name in axes else _met(self.table, name), 0)
            array.given = name if name in handed_in else ""
        fixed = {name for name in self.table.outputs if self.table.known[name].role == "new"}
        self._walk(self.items, names, axes, (), {name: ITSELF for name in self.table.outputs if name not in fixed})
        self.moment = FOREVER  # what leaves the step is read when it is over, and with a part the whole that it lies in
        for name in self.table.outputs:
            self.outputs[name] = lifetime = names[name]
            if isinstance(lifetime, ScheduledArray):
                self.fields.setdefault((), {})[name] = lifetime
            for array in _arrays(lifetime):
                if not array.given:
                    self._touch(array)

    def _new(self, name: str, axes: tuple[str, ...], moment: int) -> ScheduledArray:
        array = ScheduledArray(name, axes, moment, moment)
        self.arrays.append(array)
        return array

    def _touch(self, array: ScheduledArray) -> None:
        array.last = max(array.last, self.moment)
        if array.part:
            self._touch(array.part[0])

    def _walk(self, items: Sequence[Item], names: Names, axes: Axes, path: Path, handed: Wanted) -> None:
        self.fields.setdefault(path, {})
        for number, item in enumerate(items):
            if isinstance(item, CallLoop):
                self._loop(item, items, names, axes, path, handed)
            else:
                self._call(item, names, axes, path, number)

    def _call(self, call: Call, names: Names, axes: Axes, path: Path, number: int) -> None:
        self.moment += 1
        (line, *_) = call.lines
        self.lines.append((line, path, number))
        fields = self.fields[path]
        for name in call.reads:
            lifetime = names[name]
            if isinstance(lifetime, ScheduledArray):
                fields[name] = lifetime
            for array in _arrays(lifetime):
                self._touch(array)
                array.readers.add(line.meta.phase)
        same = {share.written: share.read for share in call.shares if share.place is InPlaceSlot.SAME}
        for name in call.writes:
            if name in same:
                names[name] = names[same[name]]
                continue
            array = self._new(name, axes[name], self.moment)
            array.phase, array.layer, array.block = line.meta.phase, line.meta.layer, line.meta.block
            names[name] = fields[name] = array
        for share in call.shares:
            if share.place is not InPlaceSlot.SAME:
                read, written = names[share.read], names[share.written]
                assert isinstance(read, ScheduledArray), f"{share.read} is read as a whole"
                assert isinstance(written, ScheduledArray)
                if share.place is InPlaceSlot.OVER:
                    written.over = read
                self.pairs.append((read, written, self.moment))

    # Repeats.

    def _loop(
        self, loop: CallLoop, around: Sequence[Item], names: Names, axes: Axes, path: Path, handed: Wanted
    ) -> None:
        repeat = loop.repeat
        number = self.loops.setdefault(loop, len(self.loops))
        count, inside = self.count(repeat.count), axes_within(repeat, axes)
        carried = {carry.start: names[carry.initial] for carry in repeat.carry}
        stacks = {outer: Stack() for _, outer in repeat.keep}
        wholes: dict[str, ScheduledArray] = {}
        ends = {carry.end: ITSELF for carry in repeat.carry}
        for inner, outer in repeat.keep if self.wholes else ():
            depths = _wanted(outer, around, handed)
            if 0 in depths:
                wholes[outer] = self._new(outer, axes[outer], self.moment)
            ends[inner] = ends.get(inner, frozenset()) | {max(depth - 1, 0) for depth in depths}
        scope: Names = {}
        for iteration in self.iterations(repeat, count):
            slices = {inner: self._slice(names[outer], iteration.number, inner, inside) for inner, outer in repeat.each}
            if not iteration.walked:
                for lifetime in slices.values():
                    for array in _arrays(lifetime):
                        self._touch(array)
                carried = self._skip(repeat, iteration, scope, stacks)
                continue
            scope = {**names, **carried, **slices}
            self._walk(loop.body, scope, inside, (*path, (number, iteration.number)), ends)
            for inner, outer in repeat.keep:
                stacks[outer].parts[iteration.number] = scope[inner]
                for array in _arrays(scope[inner]):
                    if outer in wholes:
                        if array.given or array.part:
                            raise InputError(f"{outer} collects {inner}, which lies elsewhere: it would be a copy")
                        array.part = (wholes[outer], iteration.number)
                        self._touch(array)
                    elif not (array.given or array.part or self._of_another(array, outer, stacks)):
                        array.stack = (outer, axes.get(outer) or (repeat.count, *array.axes))
            carried = {carry.start: scope[carry.end] for carry in repeat.carry}
        names |= stacks
        names |= wholes
        names |= {carry.final: carried[carry.start] for carry in repeat.carry}

    def _of_another(self, array: ScheduledArray, outer: str, stacks: Mapping[str, Stack]) -> bool:
        """Whether it is in another stack of the same repeat, as what left a turn and goes into the next one is."""
        return array.stack is not None and array.stack[0] != outer and array.stack[0] in stacks

    def _skip(self, repeat: Loop, iteration: LoopIteration, scope: Names, stacks: Mapping[str, Stack]) -> Names:
        """What turns that are not walked keep, and hand on: as the turn before them did, whose names are `scope`."""
        for carry in repeat.carry:
            for array in _arrays(scope[carry.end]):
                self._touch(array)
        kept_arrays = {array for inner, _ in repeat.keep for array in _arrays(scope[inner])}
        # Where what goes into a turn is kept, and what leaves it too, the one is what left the turn before.
        again = {
            start: end
            for carry in repeat.carry
            if (end := scope[carry.end]) in kept_arrays and (start := scope[carry.start]) is not end
        }
        twins: dict[ScheduledArray, ScheduledArray] = {}
        for inner, outer in repeat.keep:
            lifetime = scope[inner]
            stacks[outer].parts[iteration.number] = self._twin(again.get(lifetime, lifetime), iteration.times, twins)
        # What is handed on and not kept is one array, whatever those that it stands for are read by.
        return {
            carry.start: twins[end] if (end := scope[carry.end]) in twins else self._twin(end, 1, {}, identical=False)
            for carry in repeat.carry
        }

    def _twin(
        self,
        original: ScheduledArray | Stack,
        times: int | Polynomial,
        twins: dict[ScheduledArray, ScheduledArray],
        identical: bool = True,
    ) -> ScheduledArray | Stack:
        """Return that many more arrays of the same kind, from the next call on; `identical` ones share readers."""
        if isinstance(original, Stack):
            return Stack({number: self._twin(part, times, twins, identical) for number, part in original.parts.items()})
        if original not in twins:
            moment = self.moment + 1
            readers = original.readers if identical else set[str]()
            times = _times(original.times, times)
            twins[original] = replace(original, first=moment, last=moment, times=times, given="", readers=readers)
            self.arrays.append(twins[original])
        return twins[original]

    def _slice(self, original: ScheduledArray | Stack, iteration: int, name: str, axes: Axes) -> ScheduledArray | Stack:
        """A turn's part of a stack; where that was made by other turns, the whole."""
        if isinstance(original, Stack):
            return original.parts.get(iteration, original)
        key = (original, iteration)
        if key not in self._parts:
            self._parts[key] = ScheduledArray(
                name, axes.get(name, ()), original.first, original.last, part=key, readers=original.readers
            )
        return self._parts[key]


def _wanted(name: str, items: Iterable[Item], handed: Wanted) -> frozenset[int]:
    """At which depths a stack is read other than slice by slice, or leaves the scope."""
    depths = set(handed.get(name, ()))
    for item in items:
        if isinstance(item, Call):
            depths |= ITSELF if name in item.reads else set()
            continue
        repeat = item.repeat
        ends = dict.fromkeys((*(carry.end for carry in repeat.carry), *(inner for inner, _ in repeat.keep)), ITSELF)
        if name in repeat.shared:
            depths |= _wanted(name, item.body, ends)
        if name in {carry.initial for carry in repeat.carry}:
            depths |= ITSELF
        for inner, outer in repeat.each:
            if outer == name:
                depths |= {depth + 1 for depth in _wanted(inner, item.body, ends)}
    return frozenset(depths)


def _times(left: int | Polynomial, right: int | Polynomial) -> int | Polynomial:
    if isinstance(left, int):
        return left * right if isinstance(right, int) else right * left
    return left * right


def _arrays(array: ScheduledArray | Stack) -> Iterator[ScheduledArray]:
    if isinstance(array, ScheduledArray):
        yield array
    else:
        yield from array.arrays()


def _met(table: Table, name: str) -> tuple[str, ...]:
    """The axes of a name that a part of a table reads, and only that."""
    return next(line.axes[name] for line in table.repeats if name in line.axes)
