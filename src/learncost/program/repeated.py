"""Programs of modules with many equal blocks, from those of a few: what runs for a block is repeated for others.

Of three equal units of blocks the second one stands for more: its ops follow one another forward, and in reverse order
backward; what it reads of the unit before it or behind it, its copies read of the copy before or behind; an op over all
weights gets the operands of every copy. Extents of what is made of a list, such as the norms of all gradients, grow by
the same with every unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from learncost.ir.dataclass import replace
from learncost.program.program import (
    BEFORE,
    CLIP,
    FORWARD,
    OPTIMIZER,
    STATES,
    WEIGHTS,
    Buffer,
    Operand,
    Program,
    ProgramOp,
)

LISTS = ("aten::_foreach", "aten::_fused", "aten::stack", "aten::cat")
"""The beginnings of names of ops that read the gradients, weights or states of all weights."""

FIRST, MIDDLE, LAST = range(3)
"""The units of blocks: the middle one is repeated."""


class Units(NamedTuple):
    """Three equal units in a list of modules.

    path    of the list
    first   the number of the first block of the first unit
    period  the blocks of a unit
    """

    path: str
    first: int
    period: int

    def block(self, path: str) -> int | None:
        """Return the number of the block of the list that a module is in."""
        if not path.startswith(f"{self.path}."):
            return None
        number = path[len(self.path) + 1 :].partition(".")[0]
        return int(number) if number.isdigit() else None

    def unit(self, path: str) -> int | None:
        """Return the unit that a module is in."""
        number = self.block(path)
        unit = None if number is None else (number - self.first) // self.period
        return unit if unit in (FIRST, MIDDLE, LAST) else None

    def moved(self, path: str, by: int) -> str:
        """Return the path of the block that is so many units behind."""
        number = self.block(path)
        rest = path[len(f"{self.path}.{number}") :]
        return path if number is None else f"{self.path}.{number + by * self.period}{rest}"


def repeated(three: Program, four: Program, units: Units, more: int) -> Program | None:
    """Return the program of `more` further units than three; None where that of four is not three and another."""
    three, four = used(three), used(four)
    try:
        found = _Repetition(three, units)
        found.grow(four)
        return found.program(more) if found.program(1) == four else None
    except LookupError:  # an op or a buffer has none in its place in another unit
        return None


def used(program: Program) -> Program:
    """Return a program without buffers that are freed before its first op."""
    numbers = [number for number, buffer in enumerate(program.buffers) if buffer.last >= 0]
    new = {number: place for place, number in enumerate(numbers)}

    def operands(several: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(each._replace(buffer=new[each.buffer]) for each in several)

    ops = tuple(op._replace(inputs=operands(op.inputs), outputs=operands(op.outputs)) for op in program.ops)
    return replace(program, ops=ops, buffers=tuple(program.buffers[number] for number in numbers))


class _IrregularError(LookupError):
    """The ops of blocks are not in equal units."""


class _Place(NamedTuple):
    """The place of an op: the pass through the units (-1: the optimizer), the unit, and the place among its ops."""

    way: int
    unit: int
    at: int


class _Repetition:
    """A program of three units, which are found in every pass forward and backward, and its repetitions."""

    def __init__(self, program: Program, units: Units) -> None:
        self.of, self.units = program, units
        self.grows: dict[tuple[int, int], Operand] = {}
        self.more_bytes: dict[int, int] = {}
        self.starts: list[list[int]] = []
        self.places: dict[int, _Place] = {}
        self.runs: dict[int, tuple[int, int]] = {}
        self._find_ways()
        self.made: dict[int, list[int]] = {}
        for number, buffer in enumerate(program.buffers):
            if buffer.first != BEFORE:
                self.made.setdefault(buffer.first, []).append(number)
        self.unit = {number: self.places[first].unit for first, several in self.made.items() if first in self.places
                     for number in several}  # fmt: skip
        self._find_given()
        self._find_in_optimizer()

    def _find_ways(self) -> None:
        begins: dict[tuple[int, bool], dict[int, int]] = {}
        for place, op in enumerate(self.of.ops):
            unit = self.units.unit(op.path)
            if unit is not None and op.phase not in (CLIP, OPTIMIZER):
                begins.setdefault((op.microbatch, op.phase == FORWARD), {}).setdefault(unit, place)
        if not begins:
            raise _IrregularError
        for (_, forward), starts in begins.items():
            order = (FIRST, MIDDLE, LAST) if forward else (LAST, MIDDLE, FIRST)
            one, two, three = (starts.get(unit, -1) for unit in order)
            if not 0 <= one < two < three or two - one != three - two:
                raise _IrregularError
            for unit in order:
                for at in range(two - one):
                    self.places.setdefault(starts[unit] + at, _Place(len(self.starts), unit, at))
            self.starts.append([starts[unit] for unit in (FIRST, MIDDLE, LAST)])

    def _find_given(self) -> None:
        """Find the weights and states of the middle unit, which are there before the step."""
        readers: dict[int, set[int | None]] = {}
        learned: dict[int, None] = {}
        for place, op in enumerate(self.of.ops):
            for each in op.inputs:
                if self.of.buffers[each.buffer].first == BEFORE:
                    if op.phase not in (CLIP, OPTIMIZER):
                        unit = self.places[place].unit if place in self.places else None
                        readers.setdefault(each.buffer, set()).add(unit)
                    elif self.of.buffers[each.buffer].role == WEIGHTS:
                        learned[each.buffer] = None
        self.unit |= {buffer: MIDDLE for buffer, units in readers.items() if units == {MIDDLE}}
        given = [(number, each) for number, each in enumerate(self.of.buffers) if each.first == BEFORE]
        states = [number for number, each in given if each.role == STATES and number not in readers]
        if learned and len(states) % len(learned):
            raise _IrregularError
        several = len(states) // len(learned) if learned else 0
        for number, weight in enumerate(sorted(learned)):
            if self.unit.get(weight) == MIDDLE:
                self.unit |= dict.fromkeys(states[number * several : (number + 1) * several], MIDDLE)

    def _find_in_optimizer(self) -> None:
        """Find the ops behind the backward pass that are of one weight of the middle unit, and what they make."""
        for place, op in enumerate(self.of.ops):
            ours = [self.unit.get(each.buffer) == MIDDLE for each in op.inputs]
            if place in self.places or op.phase not in (CLIP, OPTIMIZER) or not any(ours):
                continue
            if op.name.startswith(LISTS):
                made = (each for each, its in zip(op.outputs, ours, strict=False) if its)
                self.unit |= {each.buffer: MIDDLE for each in made if self.of.buffers[each.buffer].first == place}
            else:
                self.places[place] = _Place(-1, MIDDLE, place)
                self.unit |= dict.fromkeys(self.made.get(place, ()), MIDDLE)
        ours_alone = sorted(place for place, there in self.places.items() if there.way < 0)
        for _, several in groupby(enumerate(ours_alone), lambda each: each[1] - each[0]):
            run = [place for _, place in several]
            self.runs |= dict.fromkeys(run, (run[0], run[-1] + 1))

    def program(self, more: int) -> Program:
        """Return the program with so many further copies of the middle unit."""
        order = list(self._order(more))
        buffers = self._buffers(more, {each: place for place, each in enumerate(order)})
        numbers = {each: place for place, (each, _) in enumerate(buffers)}
        ops = tuple(self._op(*each, more, numbers) for each in order)
        return replace(self.of, ops=ops, buffers=tuple(buffer for _, buffer in buffers))

    def grow(self, four: Program) -> None:
        """Find what grows with every unit, from the program of another one."""
        order = list(self._order(1))
        buffers = self._buffers(1, {each: place for place, each in enumerate(order)})
        if len(order) != len(four.ops) or len(buffers) != len(four.buffers):
            raise _IrregularError
        for (place, copy), op in zip(order, four.ops, strict=True):
            before, after = _all(self.of.ops[place]), _all(op)
            read = [number for number, _ in self._reads(place, copy, 1)]
            if len(read) != len(after):
                raise _IrregularError
            for number, each in zip(read, after, strict=True):
                if each != before[number]._replace(buffer=each.buffer):
                    self.grows[place, number] = each
        for ((number, _), buffer), there in zip(buffers, four.buffers, strict=True):
            self.more_bytes[number] = there.bytes - buffer.bytes

    def _order(self, more: int) -> Iterator[tuple[int, int]]:
        """Yield the ops in order, each with the number of its copy; others are their only one."""

        ways = (self.places[place].way if self._is_repeated(place) else None for place in range(len(self.of.ops)))
        for way, numbered in groupby(enumerate(ways), lambda each: each[1]):
            several = (place for place, _ in numbered)
            places, copies = list(several), range(1 if way is None else more + 1)
            backward = way is not None and way >= 0 and not self._is_forward(way)
            for copy in reversed(copies) if backward else copies:
                yield from ((place, copy) for place in places)

    def _is_repeated(self, place: int) -> bool:
        return place in self.places and self.places[place].unit == MIDDLE

    def _is_forward(self, way: int) -> bool:
        return self.starts[way][FIRST] < self.starts[way][LAST]

    def _buffers(self, more: int, index: Mapping[tuple[int, int], int]) -> list[tuple[tuple[int, int], Buffer]]:
        """Return the buffers with their number and copy, in the order in which they are made."""
        every = list[tuple[tuple[int, int], Buffer]]()
        for ours, several in groupby(enumerate(self.of.buffers), lambda each: self.unit.get(each[0]) == MIDDLE):
            numbered = list(several)
            for copy in range(more + 1 if ours else 1):
                for number, buffer in numbered:
                    made = (buffer.first, copy if self._is_repeated(buffer.first) else 0)
                    first = BEFORE if buffer.first == BEFORE else index[made]
                    size = buffer.bytes + self.more_bytes.get(number, 0) * more
                    new = replace(buffer, first=first, last=self._last(number, copy, more, index), bytes=size)
                    every.append(((number, copy), new))
        every.sort(key=lambda each: each[1].first)  # keeps the order of those that are given, or made by one op
        return every

    def _last(self, number: int, copy: int, more: int, index: Mapping[tuple[int, int], int]) -> int:
        """Return the last op of a copy of a buffer: as far from its unit as the buffer's from its own."""
        last, unit = self.of.buffers[number].last, self.unit.get(number)
        if last >= len(self.of.ops):
            return len(index)
        there = self.places.get(last)
        start, end = self.runs.get(self.of.buffers[number].first, (0, 0))
        if copy < more and end <= last < end + (end - start):  # a variable of a loop, until the next weight's
            return index[start + last - end, copy + 1]
        if there is None or MIDDLE not in (unit, there.unit):
            return index[last, 0]
        if there.way < 0:
            before = self.of.buffers[number].first == BEFORE
            return index[last, copy if unit == MIDDLE else more if before else 0]
        if unit is None:
            return index[last, more if self._is_forward(there.way) else 0]
        target = _target(unit, copy, there.unit, more)
        neighbour = FIRST if target < 0 else LAST if target > more else MIDDLE
        return index[self.starts[there.way][neighbour] + there.at, target if neighbour == MIDDLE else 0]

    def _op(self, place: int, copy: int, more: int, numbers: Mapping[tuple[int, int], int]) -> ProgramOp:
        op = self.of.ops[place]
        every, new = _all(op), list[Operand]()
        reads = list(self._reads(place, copy, more))
        for number, source in reads:
            grown = self._grown(every[number], self.grows.get((place, number)), more)
            new.append(grown._replace(buffer=numbers[source]))
        inputs = sum(number < len(op.inputs) for number, _ in reads)
        block = self.units.block(op.path)
        behind = block is not None and block >= self.units.first + LAST * self.units.period
        path = self.units.moved(op.path, more if behind else copy)
        op = op._replace(inputs=tuple(new[:inputs]), outputs=tuple(new[inputs:]), path=path)
        if self._is_repeated(place):
            return op
        arguments = {name: self._listed(self.of.ops[place], value, more) for name, value in op.arguments.items()}
        return op._replace(arguments=arguments)

    def _listed(self, op: ProgramOp, value: Any, more: int) -> Any:
        """Return an argument of an op over all weights, which may have a number for each."""
        if op.phase not in (CLIP, OPTIMIZER) or not isinstance(value, tuple) or len(op.inputs) % (len(value) or 1):
            return value
        ours = (self.unit.get(each.buffer) == MIDDLE for each in op.inputs[: len(value)])
        runs = groupby(zip(value, ours, strict=True), lambda each: each[1])
        return tuple(each for is_ours, run in runs for each in [each for each, _ in run] * (more + 1 if is_ours else 1))

    @staticmethod
    def _grown(three: Operand, four: Operand | None, more: int) -> Operand:
        if four is None:
            return three
        shape, strides = (
            tuple(one + more * (other - one) for one, other in zip(*each, strict=True))
            for each in ((three.shape, four.shape), (three.strides, four.strides))
        )
        return three._replace(shape=shape, strides=strides, offset=three.offset + more * (four.offset - three.offset))

    def _reads(self, place: int, copy: int, more: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the operands of a copy of an op: the number among those of the op, and the buffer with its copy."""
        op, there = self.of.ops[place], self.places.get(place)
        every = list(enumerate(_all(op)))
        if there and self._is_repeated(place):
            for number, each in every:
                yield number, self._read(there, number, each.buffer, copy, more)
            return
        before = [way for way, starts in enumerate(self.starts) if starts[MIDDLE] < place]
        nearest = more if not before or self._is_forward(max(before, key=lambda way: self.starts[way][MIDDLE])) else 0
        lists = there is None and op.phase in (CLIP, OPTIMIZER)
        for operands in (every[: len(op.inputs)], every[len(op.inputs) :]):
            for ours, several in groupby(operands, lambda each: self.unit.get(each[1].buffer) == MIDDLE):
                run = list(several)
                copies = range(more + 1) if ours and lists else (nearest if ours else 0,)
                yield from ((number, (each.buffer, copy)) for copy in copies for number, each in run)

    def _read(self, there: _Place, number: int, buffer: int, copy: int, more: int) -> tuple[int, int]:
        """Return what a copy of an op of the middle unit reads or writes in place of a buffer."""
        unit = self.unit.get(buffer)
        if unit == MIDDLE:
            return buffer, copy
        if unit is None or there.way < 0:
            return buffer, 0
        other = self.starts[there.way][LAST - unit] + there.at
        operands = _all(self.of.ops[other]) if other < len(self.of.ops) else ()
        if number < len(operands) and operands[number].buffer == buffer:  # all units read this very buffer
            return buffer, 0
        target = _target(MIDDLE, copy, unit, more)
        if not 0 <= target <= more:
            return buffer, 0
        first = self.of.buffers[buffer].first
        made = self.places[first]
        several = self.made.get(self.starts[made.way][MIDDLE] + made.at, [])
        if (at := self.made[first].index(buffer)) >= len(several):
            raise _IrregularError
        return several[at], target


def _target(unit: int, copy: int, other: int, more: int) -> int:
    """Return the number of the copy that is to a copy of a unit as another unit is to that unit."""
    return {FIRST: -1, MIDDLE: copy, LAST: more + 1}[unit] + other - unit


def _all(op: ProgramOp) -> tuple[Operand, ...]:
    return op.inputs + op.outputs
