"""A table cut into the stages of a pipeline: repeats of blocks are cut between turns, what is read later is sent.

Every stage is a table of its own. A line that only reads what is given stands where it is read first; any other stands
behind the turns before it, so that an embedding is of the first stage, a head and a loss of the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.polynomial import base, size_of
from learncost.ir.table import Table


@dataclass(frozen=True)
class StageValue(Displayed):
    """A value that one stage makes and another one reads: what it is called in either, and their numbers."""

    made: str
    read: str
    source: int
    target: int


@dataclass(frozen=True)
class Stage(Displayed):
    """One stage: its forward table, which has what is sent to it as inputs and what it sends as outputs.

    iterations of each repeat, by its count, as the sizes of the stage have it
    first  the turn of the whole model that is its first, by the same
    """

    number: int
    table: Table
    iterations: Mapping[str, int]
    first: Mapping[str, int]


@dataclass(frozen=True)
class Stages(Displayed):
    """The stages of a table, what goes between them, and the weights that several stages have."""

    stages: tuple[Stage, ...]
    sent: tuple[StageValue, ...]
    tied: Mapping[str, tuple[int, ...]]


def iterations_of(table: Table, sizes: Mapping[str, int]) -> int:
    """How many turns the repeats of blocks have together."""
    return sum(int(size_of(line.count, sizes)) for line in table.repeats)


def even(iterations: int, stages: int) -> tuple[int, ...]:
    """As many turns in each stage. Raises `InputError` where that is not whole, with what is."""
    if iterations % stages:
        parts = [number for number in range(1, iterations + 1) if iterations % number == 0]
        larger = next((number for number in parts if number > stages), iterations)
        raise InputError(
            f"{iterations} blocks cannot be cut into {stages} equal stages: the next number of stages that divides "
            f"them is {larger}; or say how many blocks each stage has"
        )
    return (iterations // stages,) * stages


def cut(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> Stages:
    """The stages of a forward table.

    sizes   of the counts of its repeats
    layers  how many turns of blocks each stage has, from the first to the last
    Raises `InputError` where they are not all that there are.
    """
    iterations = iterations_of(table, sizes)
    if sum(layers) != iterations or min(layers, default=0) < 0:
        raise InputError(f"stages of {', '.join(map(str, layers))} blocks are not the {iterations} that the model has")
    return _Cut(*_counted_apart(table, sizes), tuple(layers)).stages()


def _counted_apart(table: Table, sizes: Mapping[str, int]) -> tuple[Table, Mapping[str, int]]:
    """A table whose repeats have counts of their own, as a stage has other turns of each; numbers are given names."""
    counts, values, lines = Counter(repeat.count for repeat in table.repeats), dict(table.values), list[Statement]()
    sizes = dict(sizes)
    for line in table.lines:
        if isinstance(line, Loop) and (counts[line.count] > 1 or line.count.isdecimal()):
            count = f"turns.{sum(isinstance(each, Loop) for each in lines)}"
            sizes[count] = int(size_of(line.count, sizes))
            for _, stack in (*line.each, *line.keep):
                values[stack] = values[stack].along((count, *values[stack].axes[1:]))
            line = replace(line, count=count)
        lines.append(line)
    return replace(table, lines=tuple(lines), values=values), sizes


class _Cut:
    """The pieces of a table by their stages."""

    def __init__(self, table: Table, sizes: Mapping[str, int], layers: tuple[int, ...]) -> None:
        self.table, self.sizes, self.layers = table, sizes, layers
        self.given = {*table.inputs, *table.weights}
        self.pieces: list[list[Statement]] = [[] for _ in layers]
        self.iterations: list[dict[str, int]] = [{} for _ in layers]
        self.first: list[dict[str, int]] = [{} for _ in layers]
        self.made: dict[str, int] = {}  # the stage that makes a value
        self.sent: dict[tuple[str, str, int], StageValue] = {}
        self.values = dict(table.values)

    def stages(self) -> Stages:
        lazy: dict[str, Line] = {}  # lines that read only what is given, until somebody reads them
        stage, left = 0, self.layers[0]
        for line in self.table.lines:
            if isinstance(line, Line):
                if all(name in self.given or name in lazy for name in line.reads):
                    lazy |= dict.fromkeys(line.makes, line)
                else:
                    self._put(line, stage, lazy)
                continue
            remaining, begun = int(size_of(line.count, self.sizes)), 0
            pieces = []
            while remaining:
                while not left:
                    stage += 1
                    left = self.layers[stage]
                taken = min(left, remaining)
                pieces.append((stage, taken, begun))
                left, remaining, begun = left - taken, remaining - taken, begun + taken
            self._put_repeat(line, pieces, lazy)
            if line is self.table.repeats[-1]:  # what is behind all blocks is of the last stage, be it without blocks
                stage = len(self.layers) - 1
        for name in self.table.outputs:
            if name in lazy:
                self._put(lazy.pop(name), len(self.layers) - 1, lazy)
        return self._made()

    def _put(self, line: Statement, stage: int, lazy: dict[str, Line]) -> None:
        """A statement in a stage, behind the lines that it waits for; what others make is sent there."""
        for name in line.reads:
            if waiting := lazy.pop(name, None):
                for other in waiting.makes:
                    lazy.pop(other, None)
                self._put(waiting, stage, lazy)
            elif self.made.get(name, stage) != stage:
                key = name, name, stage
                self.sent.setdefault(key, StageValue(name, name, self.made[name], stage))
        self.pieces[stage].append(line)
        self.made |= dict.fromkeys(line.makes, stage)

    def _put_repeat(self, repeat: Loop, pieces: Sequence[tuple[int, int, int]], lazy: dict[str, Line]) -> None:
        """A repeat in pieces: what it carries goes from each to the next one."""
        count, _, parts = base(repeat.count).partition("/")
        carried = repeat.carry
        if len(pieces) > 1 and repeat.keep:  # of which each stage would have its own turns alone
            raise InputError(
                f"what {count} blocks keep for later ones, {', '.join(stack for _, stack in repeat.keep)}, is of all "
                "of them, so that they cannot be cut: let a stage begin before them or after them"
            )
        for place, (stage, iterations, begun) in enumerate(pieces):
            last = place == len(pieces) - 1
            carry = carried if last else tuple(replace(c, final=self._between(c, place)) for c in carried)
            if place:
                carry = tuple(
                    Carry(c.start, c.end, self._between(original, place - 1), c.final)
                    for c, original in zip(carry, carried, strict=True)
                )
            for c in carry if place else ():
                self.sent[c.initial, c.initial, stage] = StageValue(c.initial, c.initial, pieces[place - 1][0], stage)
                self.made[c.initial] = stage
            self._put(replace(repeat, carry=carry), stage, lazy)
            self.iterations[stage][count] = iterations * int(parts or 1)
            self.first[stage][count] = begun * int(parts or 1)

    def _between(self, carry: Carry, place: int) -> str:
        """What is carried, as it is called between the pieces of its repeat: behind the first one, X.4.between.0."""
        name = f"{carry.final}.between.{place}"
        self.values[name] = self.table.values[carry.final]
        return name

    def _made(self) -> Stages:
        stages, sent, values = [], tuple(self.sent.values()), self.values
        for number, lines in enumerate(self.pieces):
            read = {name for line in lines for name in line.reads}
            used = read | {name for line in lines for name in line.makes}
            received = tuple(dict.fromkeys(each.read for each in sent if each.target == number))
            sends = tuple(dict.fromkeys(each.made for each in sent if each.source == number))
            outputs = tuple(name for name in self.table.outputs if self.made.get(name) == number)
            stages.append(
                Stage(
                    number,
                    Table(
                        tuple(lines),
                        {name: value for name, value in values.items() if name in used},
                        (*(name for name in self.table.inputs if name in read), *received),
                        tuple(name for name in self.table.weights if name in read),
                        (*sends, *(name for name in outputs if name not in sends)),
                        title=self.table.title,
                    ),
                    self.iterations[number],
                    self.first[number],
                )
            )
        having = {
            name: tuple(stage.number for stage in stages if name in stage.table.weights and not _sliced(stage, name))
            for name in self.table.weights
        }
        return Stages(tuple(stages), sent, {name: numbers for name, numbers in having.items() if len(numbers) > 1})


def _sliced(stage: Stage, name: str) -> bool:
    """Whether a weight is a stack of the turns' own."""
    return any(name == stack for line in stage.table.repeats for _, stack in line.each)
