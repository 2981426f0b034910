"""Split a table into pipeline stages: loops over blocks are cut between iterations, and values that later stages read
are sent; and a step into three passes, as schedules run them: forward, backward, and then the gradients of weights.

Every stage is a separate table. A line that reads only inputs is in the first stage that reads its result; any other
line is in the stage of the iterations before it, so that the embedding is in the first stage, and the head and the loss
are in the last.

A line belongs to the last pass if only gradients of weights depend on it. A reversed loop with lines of both passes
becomes two loops: the first saves the values that the iterations of the second read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import AT_MOST_ONCE, Carry, Loop, Statement, groups, in_kernel, walk
from learncost.ir.polynomial import base, size_of
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.ops.collectives import is_collective


@dataclass(frozen=True)
class StageValue(Displayed):
    """A value that one stage sends to another: its name in each stage, and the stages' numbers."""

    made: str
    read: str
    source: int
    target: int


@dataclass(frozen=True)
class Stage(Displayed):
    """A pipeline stage: its forward table, with received values as inputs and sent values as outputs.

    iterations  the number of iterations of each loop, by its trip count's name
    first       the first of the model's iterations that it runs, by the same name
    between     the values that it receives and sends
    """

    number: int
    table: Table
    iterations: Mapping[str, int]
    first: Mapping[str, int]
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageStep(Displayed):
    """The step of one pipeline stage.

    sends, receives  the values sent to and received from other stages: activations forward, gradients backward
    tied             the gradients of tied weights, each with the numbers of the stages that sum it before the update
    """

    stage: Stage
    table: Table
    sends: tuple[StageValue, ...]
    receives: tuple[StageValue, ...]
    tied: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stages(Displayed):
    """The stages of a table, the values sent between them, and the tied weights that several stages have."""

    stages: tuple[Stage, ...]
    sent: tuple[StageValue, ...]
    tied: Mapping[str, tuple[int, ...]]


def iterations_of(table: Table, sizes: Mapping[str, int]) -> int:
    """Return the total number of iterations of loops over blocks."""
    return sum(int(size_of(line.count, sizes)) for line in table.repeats)


def even(iterations: int, stages: int) -> tuple[int, ...]:
    """Return equal numbers of iterations for all stages. Raises `InputError` if the stages do not divide them."""
    if iterations % stages:
        parts = [number for number in range(1, iterations + 1) if iterations % number == 0]
        larger = next((number for number in parts if number > stages), iterations)
        raise InputError(
            f"{iterations} blocks are not divisible into {stages} equal stages: use {larger} stages, or give the "
            f"number of blocks of each stage"
        )
    return (iterations // stages,) * stages


def cut(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> Stages:
    """Return the stages of a forward table.

    sizes   the sizes of its loops' trip counts
    layers  the number of blocks of each stage, from the first to the last
    Raises `InputError` if they do not sum to the number of blocks.
    """
    return _StagePieces(with_separate_trip_counts(table), len(layers)).stages(shares_of(table, sizes, layers))


def shares_of(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Return the stages that run each loop over blocks: their numbers, how many iterations, and the first of these.

    Raises `InputError` if the layers of stages do not sum to the number of blocks.
    """
    iterations, stage, left = iterations_of(table, sizes), 0, layers[0] if layers else 0
    if sum(layers) != iterations or min(layers, default=0) < 0:
        raise InputError(f"stages of {', '.join(map(str, layers))} blocks must sum to the model's {iterations}")
    result = []
    for loop in table.repeats:
        count, begun, pieces = int(size_of(loop.count, sizes)), 0, list[tuple[int, int, int]]()
        while begun < count:
            while not left:
                stage += 1
                left = layers[stage]
            taken = min(left, count - begun)
            pieces.append((stage, taken, begun))
            left, begun = left - taken, begun + taken
        result.append(pieces)
    return result


def with_separate_trip_counts(table: Table) -> Table:
    """Return the table with a separate name for the trip count of each loop, as stages set each one."""
    counts, values, lines = Counter(repeat.count for repeat in table.repeats), dict(table.values), list[Statement]()
    for line in table.lines:
        if isinstance(line, Loop) and (counts[line.count] > 1 or line.count.isdecimal()):
            count = (
                f"{AT_MOST_ONCE if line.runs_once else 'iterations.'}{sum(isinstance(each, Loop) for each in lines)}"
            )
            for _, stack in (*line.each, *line.keep):
                values[stack] = values[stack].along((count, *values[stack].axes[1:]))
            line = replace(line, count=count)
        lines.append(line)
    return replace(table, lines=tuple(lines), values=values)


class _StagePieces:
    """The pieces of a table, by their stages."""

    def __init__(self, table: Table, number: int) -> None:
        self.table = table
        self.given = {*table.inputs, *table.weights}
        self.pieces: list[list[Statement]] = [[] for _ in range(number)]
        self.iterations: list[dict[str, int]] = [{} for _ in range(number)]
        self.first: list[dict[str, int]] = [{} for _ in range(number)]
        self.made: dict[str, int] = {}  # the stage that defines a value
        self.sent: dict[tuple[str, str, int], StageValue] = {}
        self.values = dict(table.values)

    def stages(self, shares: Iterable[Sequence[tuple[int, int, int]]]) -> Stages:
        lazy: dict[str, Line] = {}  # lines that read only inputs, until their results are read
        stage, last, of_loops = 0, len(self.pieces) - 1, iter(shares)
        for line in self.table.lines:
            if isinstance(line, Line):
                if all(name in self.given or name in lazy for name in line.reads):
                    lazy |= dict.fromkeys(line.makes, line)
                else:
                    self._put(line, stage, lazy)
                continue
            pieces = next(of_loops)
            self._put_repeat(line, pieces, lazy)
            stage = pieces[-1][0] if pieces else stage
            if line is self.table.repeats[-1]:  # lines after all blocks are in the last stage, even if it has no blocks
                stage = last
        for name in self.table.outputs:
            if name in lazy:
                self._put(lazy.pop(name), last, lazy)
        return self._made()

    def _put(self, line: Statement, stage: int, lazy: dict[str, Line]) -> None:
        """Add a statement to a stage after the delayed lines that it needs, and send values of other stages to it."""
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
        """Add a loop in pieces, which send the loop-carried values from each stage to the next."""
        count, _, parts = base(repeat.count).partition("/")
        carried = repeat.carry
        if len(pieces) > 1 and repeat.keep:  # since each stage would have only its own iterations
            raise InputError(
                f"the stack {', '.join(stack for _, stack in repeat.keep)} of {count} blocks is read by later lines, "
                "so these blocks cannot be split: begin a stage before or after them"
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
        """Return the name of a loop-carried value between the pieces of its loop, such as X.4.between.0 after the
        first."""
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
                    (*received, *sends),
                )
            )
        stacks = [{stack for line in stage.table.repeats for _, stack in line.each} for stage in stages]
        alone = [(stage.number, {*stage.table.weights} - sliced) for stage, sliced in zip(stages, stacks, strict=True)]
        having = {name: tuple(number for number, names in alone if name in names) for name in self.table.weights}
        return Stages(tuple(stages), sent, {name: numbers for name, numbers in having.items() if len(numbers) > 1})


Values = dict[str, Value]


@dataclass(frozen=True)
class SplitBackward(Displayed):
    """A step whose last `updates` statements are a separate pass that computes the gradients of weights."""

    table: Table
    updates: int


def split_backward(table: Table) -> SplitBackward:
    """Return a step of forward, backward and weight update with the weight update as a separate last pass.

    A step that is already split is unchanged. The optimizer's lines must be in another table.
    """
    values = dict(table.values)
    before, last_lines = _split_backward(table.lines, values, {*table.outputs})
    return SplitBackward(replace(table, lines=(*before, *last_lines), values=values), len(last_lines))


def _split_backward(
    lines: Sequence[Statement], values: Values, handed: Set[str], wanted: Set[str] = frozenset()
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return the lines of a scope before the last pass, and those of the last pass; saved tensors are added to
    `values`.

    handed  the names that leave the scope
    wanted  those among them that are read before the last pass
    """
    before, last_lines = list[Statement](), list[Statement]()
    soon, late = {*wanted}, set[str]()  # the names that lines of each pass read
    for unit in reversed([tuple(group) for group in groups(lines, in_kernel)]):  # no kernel is split
        first: tuple[Statement, ...] = unit
        second: tuple[Statement, ...] = ()
        if isinstance(unit[0], Loop):
            first, second = _split_loop(unit[0], values, soon)
        elif _is_late(unit, soon, late, handed):
            first, second = (), unit
        before += reversed(first)
        last_lines += reversed(second)
        soon.update(name for line in first for name in line.reads)
        late.update(name for line in second for name in line.reads)
    return tuple(reversed(before)), tuple(reversed(last_lines))


def _is_late(lines: Sequence[Statement], soon: Set[str], late: Set[str], handed: Set[str]) -> bool:
    """Return whether only gradients of weights depend on the lines."""
    makes = {name for line in lines for name in line.makes}
    phases = {inner.meta.phase for inner, _ in walk(lines)}
    if "forward" in phases or not soon.isdisjoint(makes):
        return False
    if phases == {"weight_update"}:
        return True
    meets = any(is_collective(line) for line in lines)  # collectives keep their order on all devices
    return makes <= late and handed.isdisjoint(makes) and not meets


def _split_loop(repeat: Loop, values: Values, soon: Set[str]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return a loop as two: one for the passes before the last, one for the last pass; either may be missing.

    soon  the names of the enclosing scope that are read before the last pass
    """
    if repeat.around or all(inner.meta.phase == "forward" for inner, _ in walk(repeat.lines)):
        return (repeat,), ()
    wanted = {carry.end for carry in repeat.carry if carry.final in soon}
    wanted |= {name for name, stack in repeat.keep if stack in soon}
    while True:
        own = dict(repeat.values)
        first, second = _split_backward(repeat.lines, own, {*repeat.ends}, wanted)
        reads = [dict.fromkeys(name for line in lines for name in line.reads) for lines in (first, second)]
        late = {name for line in second for name in line.makes}
        # The first loop must not read a value that only the last pass carries.
        crossing = {c.end for c in repeat.carry if c.end in late and c.start in reads[0]}
        if not crossing:
            break
        wanted |= crossing
    if not second:
        return (repeat,), ()
    carry = [[c for c in repeat.carry if (c.end in late) == last] for last in (False, True)]
    each = [[pair for pair in repeat.each if pair[0] in read] for read in reads]
    keep = [[pair for pair in repeat.keep if (pair[0] in late) == last] for last in (False, True)]
    there = {name for line in first for name in line.makes} | {c.start for c in carry[0]}
    for name in reads[1]:
        if name in there:
            stack = dict(keep[0]).get(name) or _free(f"{name}*", values)
            values.setdefault(stack, Value((repeat.count, *own[name].axes), "saved", name))
            keep[0] += [(name, stack)] if (name, stack) not in keep[0] else []
            each[1].append((name, stack))
    before, last_lines = (
        (replace(repeat, lines=lines, values=own, carry=tuple(c), each=tuple(e), keep=tuple(k)),)
        for lines, c, e, k in zip((first, second), carry, each, keep, strict=True)
    )
    return before if first or carry[0] or keep[0] else (), last_lines


def _free(name: str, values: Mapping[str, Value]) -> str:
    """Return a name that is unused in a scope."""
    while name in values:
        name += "*"
    return name
