"""Lifetimes: the first and the last moment of every array of scheduled calls; a loop is walked iteration by iteration.

All memory analyses are folds over these arrays: the live arrays of a moment, the peak, and the arena. Where only bytes
are needed, the first two iterations and the last two stand for all: in between, the live bytes at a line grow or shrink
by the same amount in every iteration, so that none exceeds those at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, defined
from learncost.ir.polynomial import Polynomial
from learncost.ir.table import Table
from learncost.program.calls import Axes, Call, CallLoop, InPlaceSlot, Item, axes_within

END_OF_STEP = 10**9
"""The end-of-step sentinel."""

ITSELF = frozenset((0,))

FEW = 4
"""The number of iterations up to which all are walked; of more only the first two and the last two."""


@dataclass(eq=False)
class ScheduledArray:
    """An array, and the moments of its first and its last use: numbers of calls from 1; 0 is before all of them.

    times    how many equal arrays it stands for, of iterations that are not walked: a number, or a `Polynomial`
    given    its name in the table for an input: a weight, a state, an input
    stack    for an iteration's slice of a stack, the stack's name and axes
    part     the array that it is an iteration's slice of, and the iteration: it has no separate memory
    over     the array that it overwrites
    phase, layer, block  of the line that defines it; `readers`, the phases that read it
    role     weight, projection, index, gradient, saved (a saved tensor), or "" for a temporary, where it is known
    bytes, place         its size, and its offset in the arena, where arrays are placed
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
    role: str = ""
    bytes: int = 0
    place: int = -1

    @property
    def count(self) -> Polynomial:
        """The number of its elements, over all arrays that it stands for."""
        return Polynomial.of(self.axes) * self.times

    @property
    def title(self) -> str:
        """Its name; for a slice of a stack, that of the stack."""
        return self.stack[0] if self.stack else self.name

    @property
    def iterations(self) -> str:
        """The trip count of the loop whose iterations save it; "" for any other."""
        return self.stack[1][0] if self.stack and self.stack[1] else ""

    @property
    def group(self) -> object:
        """The stack that it is a slice of; itself for any other."""
        return self.stack or self

    def number(self, sizes: Mapping[str, Any]) -> int:
        """Return the number of the arrays that it stands for."""
        return self.times if isinstance(self.times, int) else int(self.times.at(sizes))

    @property
    def root(self) -> ScheduledArray:
        """The array that owns its memory."""
        array = self
        while array.over is not None:
            array = array.over
        return array

    @property
    def owner(self) -> str:
        """The name of the caller's array that contains it; "" where it is the step's own."""
        root = self.root
        return root.part[0].owner if root.part else root.given

    @property
    def saved(self) -> bool:
        """Return whether it is a saved tensor: a value or input of the forward pass that another phase reads."""
        mine = "forward" in self.readers if self.phase == "given" else self.phase == "forward"
        return mine and bool(self.readers - {"forward"})


@dataclass(eq=False)
class Stack:
    """The slices that the iterations of a loop have saved, by number."""

    parts: dict[int, ScheduledArray | Stack] = field(default_factory=dict)

    def arrays(self) -> Iterator[ScheduledArray]:
        for part in self.parts.values():
            yield from _arrays(part)


Names: TypeAlias = "dict[str, ScheduledArray | Stack]"
FullArrays: TypeAlias = "Mapping[str, frozenset[int]]"  # as full arrays: a name itself (0), its slices (1), theirs (2)
Path: TypeAlias = "tuple[tuple[int, int], ...]"  # the loops around, by number, with the iterations


@dataclass(frozen=True)
class LoopIteration:
    """An iteration of a loop; or `times` iterations that are not walked and equal the one before them."""

    number: int
    walked: bool = True
    times: int | Polynomial = 1


WalkedIterations: TypeAlias = (
    "Callable[[Loop, int | None], tuple[LoopIteration, ...]]"  # the iterations that are walked
)


def every_iteration(repeat: Loop, count: int | None) -> tuple[LoopIteration, ...]:
    """Return all iterations, in execution order, for a known trip count."""
    assert count is not None
    iterations = tuple(map(LoopIteration, range(count)))
    return iterations[::-1] if repeat.reverse else iterations


def some_iterations(repeat: Loop, count: int | None) -> tuple[LoopIteration, ...]:
    """Return the iterations that stand for all; an unknown trip count is taken as more than a few."""
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

    arrays  all of them, in the order of their definition; inputs first
    lines   the line at every moment, the path of its iterations, and its number in its scope
    fields  the arrays that each scope's calls name, for each iteration of the loops around
    outputs  those that leave the step, by name
    pairs   an operand and a result of a call that may share memory, or do (`over`), and the moment
    count   the trip count of a loop, where it is known
    iterations  which of them are walked
    wholes  whether a stack that is read in full, or is an output, is contiguous in memory
    """

    def __init__(
        self,
        table: Table,
        items: Iterable[Item],
        count: Callable[[str], int | None],
        iterations: WalkedIterations = some_iterations,
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

    @property
    def roots(self) -> list[ScheduledArray]:
        """The arrays of the step that have memory of their own: no input, no slice, and over no other array."""
        return [array for array in self.arrays if array.over is None and not array.given and array.part is None]

    def by_iteration(self, loops: tuple[int, ...]) -> list[tuple[Path, dict[str, ScheduledArray]]]:
        """Return the arrays that a scope's calls name, by iteration; `loops` are the numbers of the loops around it."""
        return sorted(
            (path, arrays) for path, arrays in self.fields.items() if tuple(number for number, _ in path) == loops
        )

    def same(self, first: str, second: str, loops: tuple[int, ...]) -> bool:
        """Return whether two names of a scope share memory, in every iteration."""
        return all(f[first].root is f[second].root for _, f in self.by_iteration(loops) if first in f and second in f)

    def _walk_all(self) -> None:
        axes = dict(self.table.axes)
        handed_in = (*self.table.inputs, *self.table.weights)
        makes = defined(self.table.lines)
        others = [name for line in self.table.lines for name in line.reads if name not in makes]
        names: Names = {}
        for name in dict.fromkeys((*handed_in, *others)):
            met = next((line.axes[name] for line in self.table.repeats if name in line.axes), ())  # in a part alone
            names[name] = array = self._new(name, axes.get(name, met), 0)
            array.given = name if name in handed_in else ""
        fixed = {name for name in self.table.outputs if self.table.known[name].role == "new"}
        self._walk(self.items, names, axes, (), {name: ITSELF for name in self.table.outputs if name not in fixed})
        self.moment = (
            END_OF_STEP  # outputs are read at the end of the step, and with a slice the array that contains it
        )
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

    def _walk(self, items: Sequence[Item], names: Names, axes: Axes, path: Path, handed: FullArrays) -> None:
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
                assert isinstance(read, ScheduledArray), f"{share.read} is read in full"
                assert isinstance(written, ScheduledArray)
                if share.place is InPlaceSlot.OVER:
                    written.over = read
                self.pairs.append((read, written, self.moment))

    # Loops.

    def _loop(
        self, loop: CallLoop, around: Sequence[Item], names: Names, axes: Axes, path: Path, handed: FullArrays
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
                            raise InputError(f"cannot collect {inner} in the stack {outer} without a copy")
                        array.part = (wholes[outer], iteration.number)
                        self._touch(array)
                    # a loop-carried value can be in another stack of the same loop
                    elif not (array.given or array.part or (array.stack and outer != array.stack[0] in stacks)):
                        array.stack = (outer, axes.get(outer) or (repeat.count, *array.axes))
            carried = {carry.start: scope[carry.end] for carry in repeat.carry}
        names |= stacks
        names |= wholes
        names |= {carry.final: carried[carry.start] for carry in repeat.carry}

    def _skip(self, repeat: Loop, iteration: LoopIteration, scope: Names, stacks: Mapping[str, Stack]) -> Names:
        """Return the loop-carried values after iterations that are not walked, like those of the scope before."""
        for carry in repeat.carry:
            for array in _arrays(scope[carry.end]):
                self._touch(array)
        saved_arrays = {array for inner, _ in repeat.keep for array in _arrays(scope[inner])}
        # Where both the input and the result of an iteration are saved, the input is the previous iteration's result.
        again = {
            start: end
            for carry in repeat.carry
            if (end := scope[carry.end]) in saved_arrays and (start := scope[carry.start]) is not end
        }
        twins: dict[ScheduledArray, ScheduledArray] = {}
        for inner, outer in repeat.keep:
            lifetime = scope[inner]
            stacks[outer].parts[iteration.number] = self._twin(again.get(lifetime, lifetime), iteration.times, twins)
        # A loop-carried value that is not saved is one array, whatever reads those that it stands for.
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
        """Return `times` more arrays of the same kind, from the next call on; `identical` ones share readers."""
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
        """Return an iteration's slice of a stack; the full stack where other iterations defined it."""
        if isinstance(original, Stack):
            return original.parts.get(iteration, original)
        key = (original, iteration)
        if key not in self._parts:
            self._parts[key] = ScheduledArray(
                name, axes.get(name, ()), original.first, original.last, part=key, readers=original.readers
            )
        return self._parts[key]


def _wanted(name: str, items: Iterable[Item], handed: FullArrays) -> frozenset[int]:
    """Return the depths at which a stack is read other than slice by slice, or leaves the scope."""
    depths = set(handed.get(name, ()))
    for item in items:
        if isinstance(item, Call):
            depths |= ITSELF if name in item.reads else set()
            continue
        repeat = item.repeat
        ends = dict.fromkeys(repeat.ends, ITSELF)
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
