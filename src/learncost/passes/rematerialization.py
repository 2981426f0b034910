"""Rematerialize: recompute forward lines of loops in the backward pass instead of saving their results.

A chosen line runs just before the first backward line that reads its result, from saved tensors or from results of
other recomputed lines; so does a loop inside a block, such as a scan over positions, if all of its lines are chosen.
Tensors that the backward pass no longer reads are no longer saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import Loop, Statement, defined, groups, in_kernel, map_lines, map_scopes, visit, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value

Values = dict[str, Value]
Chosen = Callable[[Statement], bool]


class Dequantization(NamedTuple):
    """The note on a line that dequantizes a weight, or its scales: the types of its codes, its scales and its result.

    A result of "" has the data type of the run.
    """

    codes: str
    scales: str
    result: str = ""


def dequantization(line: object) -> Dequantization | None:
    """Return the note of a line that dequantizes; None for anything else."""
    note = line.meta.note if isinstance(line, Line) else None
    return note if isinstance(note, Dequantization) else None


def recomputed(table: Table, chosen: Callable[[Line], bool], whole: bool = False) -> Table:
    """Return the step with the chosen lines of every loop recomputed in the loop that reverses it.

    chosen  whether a forward line may be recomputed; a chosen line of a kernel stands for all lines of the kernel
    whole   whether all of them run at the beginning of the backward iteration, even if no line there needs them
    """
    values, units = dict(table.values), _units_of(table, chosen)

    def again(first: tuple[Statement, ...], second: tuple[Statement, ...], inner: Values) -> Sequence[Statement]:
        # Units are single chosen lines, chosen loops, or all lines of a kernel.
        chosen_units = [tuple(group) for group in groups(first, in_kernel) if any(map(units, group))]
        making = _Rematerialized(chosen_units, defined(second))
        if whole:
            making.all()
        for line in second:
            making.before(line)
            making.out.append(line)
        inner |= {new: inner[name] for name, new in making.names.items()}
        return making.out

    return replace(table, lines=map_pairs(table.lines, values, set(table.outputs), again, units), values=values)


def _units_of(table: Table, chosen: Callable[[Line], bool]) -> Chosen:
    """Return whether a statement is recomputed as a unit: a chosen line, or a loop of chosen lines inside a block.

    A loop is inside a block if another loop is around it and if neither it nor a loop in it slices weights, as a loop
    over layers does.
    """
    loops = [(loop, nest) for loop, nest in visit(table.lines) if isinstance(loop, Loop)]
    layers = {
        id(around)
        for loop, nest in loops
        if any(nest.stacks.get(stack, stack) in table.weights for _, stack in loop.each)
        for around in (*nest.loops, loop)
    }
    units = {
        id(loop)
        for loop, nest in loops
        if nest.loops and id(loop) not in layers and all(chosen(line) for line, _ in walk(loop.lines))
    }
    return lambda line: id(line) in units if isinstance(line, Loop) else chosen(line)


def run_once(table: Table) -> Table:
    """Return the table without recomputation, whose forward results must be saved, as by `recomputed`.

    Dequantization of weights in the backward pass remains, as dequantized weights are never saved.
    """
    lines = map_scopes(table.lines, _once)
    return table if lines == table.lines else replace(table, lines=lines)


def _once(lines: Sequence[Statement]) -> tuple[Statement, ...]:
    needed: set[str] = set()
    result: list[Statement] = []
    for line in reversed(lines):
        again = phases((line,)) <= {"recomputation"}
        if not again or (dequantization(line) and not needed.isdisjoint(line.makes)):
            needed |= set(line.reads) if isinstance(line, Line) else set()
            result.append(line)
    return tuple(reversed(result))


def map_pairs(
    lines: tuple[Statement, ...],
    values: Values,
    outputs: set[str],
    change: Callable[[tuple[Statement, ...], tuple[Statement, ...], Values], Sequence[Statement]],
    chosen: Chosen = lambda line: False,
) -> tuple[Statement, ...]:
    """Replace the lines of every loop that reverses another one by the result of `change`, inner loops first.

    outputs  the names that other scopes read
    change   receives the lines of both loops and the values of their scopes, to which it may add
    chosen   whether a forward loop remains as it is
    New stacks are added to `values`.
    """
    result = list(lines)
    for (before, forward), (after, reverse), elsewhere in pairs(lines, outputs):
        if not chosen(forward):
            inner_values = {**forward.values}
            handed = {n for n, outer in forward.keep if outer in elsewhere} | {carry.end for carry in forward.carry}
            inner = map_pairs((*forward.lines, *reverse.lines), inner_values, handed, change, chosen)
            first, second = inner[: len(forward.lines)], inner[len(forward.lines) :]
            changed = change(first, second, inner_values)
            result[before], result[after] = joined(forward, reverse, first, changed, elsewhere, values, inner_values)
    return tuple(result)


def pairs(
    lines: Sequence[Statement], outputs: Iterable[str]
) -> Iterator[tuple[tuple[int, Loop], tuple[int, Loop], set[str]]]:
    """Yield every loop and the loop that reverses it, with their positions, and the names that other lines read.

    `outputs` are the names that other scopes read.
    """
    for after, reverse in enumerate(lines):
        if not isinstance(reverse, Loop) or phases((reverse,)) <= FORWARD:
            continue
        read = {outer for _, outer in reverse.each}
        for before, line in enumerate(lines[:after]):
            if not isinstance(line, Loop) or line.reverse == reverse.reverse:
                continue
            if not read.isdisjoint(outer for _, outer in line.keep):
                others = (*lines[:after], *lines[after + 1 :])
                yield (before, line), (after, reverse), {*outputs, *(name for other in others for name in other.reads)}
                break


FORWARD = frozenset(("forward", "recomputation"))


def phases(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the phases of lines, those inside loops included."""
    return frozenset(line.meta.phase for line, _ in walk(lines))


def joined(
    forward: Loop,
    reverse: Loop,
    first: tuple[Statement, ...],
    second: Sequence[Statement],
    elsewhere: set[str],
    values: Values,
    inner_values: Values,
) -> tuple[Loop, Loop]:
    """Return both loops with these lines; the forward loop saves the values that the reversed loop and `elsewhere`
    read.

    values        the values of the enclosing scope, to which new stacks are added
    inner_values  the values of both loops
    """
    remade = defined(second)
    read = dict.fromkeys(name for line in second for name in line.reads if name not in remade)
    sources = dict((*reverse.each, *forward.each))
    stacks = dict(forward.keep)
    given = {name for name, outer in reverse.each if outer in stacks.values()}
    left = {carry.end for carry in forward.carry} | {name for name, outer in forward.keep if outer in elsewhere}
    first = collecting(first, {*read, *left}, inner_values)
    second = collecting(second, {*reverse.ends}, inner_values)
    inside = {carry.start for carry in forward.carry} | defined(first)
    each = []
    for name in read:
        if name in inside and name not in given | dict(forward.each).keys():
            sources[name] = stacks.setdefault(name, f"{name}*")
            values.setdefault(sources[name], Value((forward.count, *inner_values[name].axes), "saved", name))
        if name in sources:
            each.append((name, sources[name]))
    needed = elsewhere | {outer for _, outer in each}
    order = {pair: i for i, pair in enumerate(reverse.each)}
    each.sort(key=lambda pair: order.get(pair, len(order)))
    return (
        replace(
            forward, lines=first, values=inner_values, keep=tuple(pair for pair in stacks.items() if pair[1] in needed)
        ),
        replace(reverse, lines=tuple(second), values={**inner_values, **reverse.values}, each=tuple(each)),
    )


def collecting(lines: Sequence[Statement], left: Set[str], values: Mapping[str, Value]) -> tuple[Statement, ...]:
    """Return the lines of a scope in which forward loops collect the stacks that are read there, and no others.

    left  the names that other scopes read
    """
    read = {name for line in lines for name in line.reads} | left
    missing = [(values[name].of, name) for name in read - defined(lines) if name in values]
    return tuple(
        replace(
            line,
            keep=(
                *(pair for pair in line.keep if pair[1] in read),
                *(pair for pair in missing if values[pair[1]].role == "saved" and pair[0] in line.inside),
            ),
        )
        if isinstance(line, Loop) and phases((line,)) <= FORWARD
        else line
        for line in lines
    )


@dataclass
class _Rematerialized:
    """The lines of a backward iteration so far, and the forward lines that may still be recomputed before the next
    line."""

    units: Sequence[tuple[Statement, ...]]
    reverse_names: frozenset[str]  # names that backward lines define, as kernels recompute them
    out: list[Statement] = field(default_factory=list)
    waiting: dict[str, tuple[Statement, ...]] = field(init=False)
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = {name: unit for unit in self.units for line in unit for name in line.makes}
        self.names = {name: f"{name}.again" for name in self.waiting if name in self.reverse_names}

    def all(self) -> None:
        for unit in self.units:
            self.run(unit)

    def before(self, line: Statement) -> None:
        """Emit the recomputation of a backward line's operands."""
        self.make(name for name in line.reads if name not in self.reverse_names)

    def make(self, names: Iterable[str]) -> None:
        for name in names:
            if unit := self.waiting.get(name):
                self.run(unit)

    def run(self, unit: tuple[Statement, ...]) -> None:
        for line in unit:
            for name in line.makes:
                self.waiting.pop(name, None)
        for line in unit:
            self.make(line.reads)
        self.out += as_recomputation((line.renamed(self.names) for line in unit), "again")


def as_recomputation(lines: Iterable[Statement], mark: str) -> tuple[Statement, ...]:
    """Return lines and loops as recomputation, each line in a copy of its kernel whose name ends in the mark."""

    def change(line: Line) -> tuple[Line, ...]:
        kernel = line.meta.kernel and replace(line.meta.kernel, name=f"{line.meta.kernel.name}_{mark}")
        return (replace(line, meta=replace(line.meta, phase="recomputation", kernel=kernel)),)

    return map_lines(lines, change)


def in_phase(lines: Iterable[Statement], phase: str) -> tuple[Line, ...]:
    """Return the lines in another phase; loops are left out."""
    return tuple(replace(line, meta=replace(line.meta, phase=phase)) for line in lines if isinstance(line, Line))


Path = tuple[str, ...]


def checkpointed(table: Table) -> Table:
    """Return the step with the recomputation of its checkpoints; the table itself if it has none."""
    if not any(line.meta.again for line, _ in walk(table.lines)):
        return table
    values = dict(table.values)

    def inside(first: tuple[Statement, ...], second: tuple[Statement, ...], inner: Values) -> Sequence[Statement]:
        return _with_checkpoints((*first, *second), inner)[len(first) :]

    lines = map_pairs(table.lines, values, set(table.outputs), inside)
    return replace(table, lines=_with_checkpoints(lines, values), values=values)


@dataclass(frozen=True)
class _LineCheckpoint:
    """A checkpoint: its path, the positions of its forward lines, and the number of these that are recomputed."""

    path: Path
    places: tuple[int, ...]
    count: int

    def reruns(self, line: Line) -> bool:
        """Return whether a line is recomputed; the checkpoint's policy may save its result instead."""
        return not _marks(line)[len(self.path) - 1].endswith("-")


def _with_checkpoints(lines: Sequence[Statement], values: Values) -> tuple[Statement, ...]:
    forward = {
        place: line for place, line in enumerate(lines) if isinstance(line, Line) and line.meta.phase == "forward"
    }
    reverse = {
        place: line
        for place, line in enumerate(lines)
        if isinstance(line, Line) and line.meta.phase in ("backward", "weight_update") and line.meta.again
    }
    maker = {name: place for place, line in forward.items() for name in line.makes}
    whole = map(path_of, reverse.values())
    paths = dict.fromkeys(path[:length] for path in whole for length in range(1, len(path) + 1))
    found = {path: _found(path, forward, reverse, maker) for path in sorted(paths, key=len)}
    copied = {
        path: {
            name for place in each.places[: each.count] if each.reruns(forward[place]) for name in forward[place].makes
        }
        for path, each in found.items()
    }

    def names(path: Path, reads: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the new names of recomputed values that a recomputed or backward line of a checkpoint reads."""
        for name in reads:
            made = path_of(forward[maker[name]]) if name in maker else ()
            depth = next((i for i in range(min(len(path), len(made)), 0, -1) if path[:i] == made[:i]), 0)
            for length in range(depth, 0, -1):
                if name in copied.get(path[:length], ()):
                    yield name, _again(name, len(made) - length)
                    break

    added: dict[int, list[Line]] = {}
    for path, each in found.items():
        begin = min(place for place, line in reverse.items() if path_of(line)[: len(path)] == path)
        for line in (forward[place] for place in each.places[: each.count]):
            if each.reruns(line):
                own = {name: _again(name, len(path_of(line)) - len(path)) for name in line.makes}
                values.update({new: values[name] for name, new in own.items()})
                changed = line.renamed({**dict(names(path, line.reads)), **own})
                added.setdefault(begin, []).extend(in_phase((changed,), "recomputation"))
    result: list[Statement] = []
    for place, statement in enumerate(lines):
        result += added.get(place, [])
        if place in reverse:
            line = reverse[place]
            statement = line.renamed(dict(names(path_of(line), line.reads)))
        result.append(statement)
    return tuple(result)


def _found(path: Path, forward: dict[int, Line], reverse: dict[int, Line], maker: dict[str, int]) -> _LineCheckpoint:
    """Return the checkpoint of a path, whose recomputation ends at the last tensor that autograd saved in it."""
    places = tuple(place for place, line in forward.items() if path_of(line)[: len(path)] == path)
    if not places or _is_whole(path, forward[places[0]]):
        return _LineCheckpoint(path, places, len(places))
    end = 0  # lines with smaller numbers are recomputed
    for line in reverse.values():
        of_line = path_of(line)
        if of_line[: len(path)] != path:
            continue
        if len(of_line) > len(path):  # the line is in an inner checkpoint, which saves its inputs
            inner = of_line[: len(path) + 1]
            within = [place for place in places if path_of(forward[place])[: len(inner)] == inner]
            if within:
                whole = _is_whole(inner, forward[within[0]])
                end = max(end, within[-1] + 1 if whole else within[0])
            continue
        for name in line.reads:
            readers = (
                place for place in places if path_of(forward[place]) == path and _keeps(forward[place], name, line)
            )
            end = max(end, max(readers, default=0), maker[name] + 1 if maker.get(name) in places else 0)
    return _LineCheckpoint(path, places, sum(place < end for place in places))


def _keeps(line: Line, name: str, gradient: Line) -> bool:
    """Return whether a line saves an operand that this line of its gradient reads."""
    if (line.meta.module, line.meta.operator) != (
        gradient.meta.module,
        gradient.meta.operator,
    ) or name not in line.reads:
        return False
    return isinstance(line, Op) or (isinstance(line, Product) and sum(isinstance(t, Term) for t in line.right) > 1)


def _marks(line: Line) -> Path:
    return tuple(filter(None, line.meta.again.split("/")))


def path_of(line: Line) -> Path:
    """Return the path of the checkpoints around a line: their marks, the outermost first."""
    return tuple(mark.rstrip("!-") for mark in _marks(line))


def _is_whole(path: Path, line: Line) -> bool:
    """Return whether the checkpoint around a line is recomputed completely."""
    return "!" in _marks(line)[len(path) - 1]


def _again(name: str, above: int) -> str:
    """Return the name of a value that is recomputed by its checkpoint, or by the checkpoint `above` levels up."""
    return f"{name}.again{above + 1 if above else ''}"


def first_name(name: str) -> str:
    """Return the name that a recomputed value of a checkpoint has in the forward pass."""
    return re.sub(r"\.again\d*$", "", name)
