"""Which array lies where: every value of a step with its first and last moment, and its place in one arena.

The loops are walked turn by turn, so that what a turn keeps is there until the turn backwards has read it, and no
longer. A value that a call may write over one that nothing reads afterwards takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.readings.emit.placed.calls import Axes, Call, Item, Loop, axes_within

ALIGNED = 64
"""Every place begins at a multiple of so many bytes: a line of the cache, and the widest vector registers."""
FOREVER = 10**9


@dataclass(eq=False)
class Value:
    """An array: its bytes, its first and last moment, and where it lies.

    given   what the caller owns, by its name in the table: a weight, a state, an input; else it is in the arena
    part    the stack that it is a turn's part of, and the turn
    over    the value whose place it takes
    """

    name: str
    bytes: int
    first: int
    last: int
    given: str = ""
    part: tuple[Value, int] | None = None
    over: Value | None = None
    place: int = -1

    @property
    def root(self) -> Value:
        """The value whose memory it is."""
        value = self
        while value.over is not None:
            value = value.over
        return value

    @property
    def owner(self) -> str:
        """The name of what the caller owns that it lies in; empty in the arena."""
        root = self.root
        return root.part[0].root.given if root.part else root.given


Stack: TypeAlias = "list[Value]"
Names: TypeAlias = "dict[str, Value | Stack]"
Path: TypeAlias = "tuple[tuple[int, int], ...]"  # the loops around, by their numbers in the program, with the turns


@dataclass
class Timeline:
    """The values of a step. `fields` are those that each scope's calls name, for each turn of the loops around."""

    table: Table
    count: Callable[[str], int]  # the turns of a loop
    size: Callable[[str, Axes], int]  # the bytes of a name, given the axes of its scope
    moment: int = 0
    values: list[Value] = field(default_factory=list)
    fields: dict[Path, dict[str, Value]] = field(default_factory=dict)
    loops: dict[int, int] = field(default_factory=dict)
    parts: dict[tuple[int, int], Value] = field(default_factory=dict)
    pairs: list[tuple[Value, Value, int, bool]] = field(default_factory=list)
    bytes: int = 0

    def lay_out(self, items: Iterable[Item]) -> None:
        """Walk the step, then give every value its place."""
        axes = dict(self.table.axes)
        names: Names = {}
        for name in (*self.table.inputs, *self.table.weights):
            value = self._value(name, axes)
            value.first, value.last, value.given = 0, 0, name
            names[name] = value
        self._walk(tuple(items), names, axes, (), set(self.table.outputs))
        self.moment = FOREVER  # what leaves the step is read when it is over, and with a part the whole that it lies in
        for name in self.table.outputs:
            found = names[name]
            if isinstance(found, Value):
                self.fields.setdefault((), {})[name] = found
            for value in found if isinstance(found, list) else [found]:
                if not value.given:
                    self._touch(value)
        self._share()
        self._place()

    # The walk.

    def _value(self, name: str, axes: Axes) -> Value:
        value = Value(name, self.size(name, axes), self.moment, self.moment)
        self.values.append(value)
        return value

    def _walk(self, items: tuple[Item, ...], names: Names, axes: Axes, path: Path, handed: set[str]) -> None:
        for item in items:
            if isinstance(item, Loop):
                self._loop(item, items, names, axes, path, handed)
            else:
                self._call(item, names, axes, path)

    def _call(self, call: Call, names: Names, axes: Axes, path: Path) -> None:
        self.moment += 1
        fields = self.fields.setdefault(path, {})
        for name in call.reads:
            found = names[name]
            assert isinstance(found, Value), f"{name} is read as a whole"
            self._touch(found)
            fields[name] = found
        for name in call.writes:
            names[name] = fields[name] = self._value(name, axes)
        for read, written in call.shares:
            pair = fields[read], fields[written]
            self.pairs.append((*pair, self.moment, (read, written) in call.required))

    def _touch(self, value: Value) -> None:
        value.last = max(value.last, self.moment)
        if value.part:
            self._touch(value.part[0])

    def _loop(
        self,
        loop: Loop,
        around: tuple[Item, ...],
        names: Names,
        axes: Axes,
        path: Path,
        handed: set[str],
    ) -> None:
        repeat = loop.repeat
        number = self.loops.setdefault(id(loop), len(self.loops))
        count, inside = self.count(repeat.count), axes_within(repeat, axes)
        carried = {carry.start: names[carry.initial] for carry in repeat.carry}
        stacks: dict[str, Stack] = {}
        wholes: dict[str, Value] = {}
        for _, outer in repeat.keep:
            if _is_read_whole(outer, around, handed):
                wholes[outer] = self._value(outer, axes)
        for turn in reversed(range(count)) if repeat.reverse else range(count):
            own: Names = {**names, **carried}
            for inner, outer in repeat.each:
                own[inner] = self._slice(names[outer], turn, count)
            ends = {carry.end for carry in repeat.carry} | {inner for inner, _ in repeat.keep}
            self._walk(loop.body, own, inside, (*path, (number, turn)), ends)
            for inner, outer in repeat.keep:
                value = own[inner]
                assert isinstance(value, Value)
                if outer in wholes:
                    value.part = (wholes[outer], turn)
                    self._touch(value)
                stacks.setdefault(outer, [value] * count)[turn] = value
            carried = {carry.start: own[carry.end] for carry in repeat.carry}
        names |= {**stacks, **wholes}
        names |= {carry.final: carried[carry.start] for carry in repeat.carry}

    def _slice(self, stack: Value | Stack, turn: int, count: int) -> Value:
        if isinstance(stack, list):
            return stack[turn]
        key = (id(stack), turn)
        if key not in self.parts:
            part = Value(stack.name, stack.bytes // max(count, 1), stack.first, stack.last, part=(stack, turn))
            self.parts[key] = part
        return self.parts[key]

    # Places.

    def _share(self) -> None:
        """Let values take the place of those that their call reads last: first those that must."""
        taken: set[tuple[int, int]] = set()  # one value of a call takes the place of another
        for read, written, moment, required in sorted(self.pairs, key=lambda pair: (pair[2], not pair[3])):
            root = read.root
            if written.over is not None or (id(root), moment) in taken:
                continue
            if required:
                if read.last > moment:
                    raise InputError(f"{read.name} is read after it was changed: the step cannot be done in place")
                written.over = read
            elif not (root.given or root.part or written.part) and root.last == moment and root.bytes == written.bytes:
                written.over = root
                root.last = max(root.last, written.last)
            else:
                continue
            taken.add((id(root), moment))

    def _place(self) -> None:
        """Offsets in the arena, the largest values first, each where it is free from its first to its last moment."""
        own = [value for value in self.values if value.over is None and not value.given and value.part is None]
        own.sort(key=lambda value: (-value.bytes, value.first))
        begins, ends, firsts, lasts = (np.zeros(len(own), np.int64) for _ in range(4))
        for done, value in enumerate(own):
            size = -(-value.bytes // ALIGNED) * ALIGNED
            alive = np.flatnonzero((firsts[:done] <= value.last) & (lasts[:done] >= value.first))
            value.place = _lowest(size, begins[alive], ends[alive])
            begins[done], ends[done] = value.place, value.place + size
            firsts[done], lasts[done] = value.first, value.last
        self.bytes = int(ends.max(initial=0))


def _lowest(size: int, begins: np.ndarray, ends: np.ndarray) -> int:
    """The lowest place with so many bytes that no other value takes."""
    order = np.argsort(begins)
    free = np.concatenate(([0], np.maximum.accumulate(ends[order])))
    room = np.concatenate((begins[order], [FOREVER * FOREVER])) - free
    return int(free[np.flatnonzero(room >= size)[0]])


def _is_read_whole(name: str, around: tuple[Item, ...], handed: set[str]) -> bool:
    """Whether a stack is read other than slice by slice, or leaves the program as new memory."""
    if name in handed and not name.endswith(".new"):
        return True
    for item in around:
        if isinstance(item, Loop):
            if name in item.repeat.shared or name in {carry.initial for carry in item.repeat.carry}:
                return True
        elif name in item.reads:
            return True
    return False
