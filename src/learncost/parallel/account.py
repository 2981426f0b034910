"""What a placed step of one microbatch takes on a device, by segments of the model, as polynomials in all sizes.

It is read once for a structure of placement; the sizes of the mesh and of the stages are put in afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from learncost.books.book import book
from learncost.equation.count import Count, base, larger, size_of
from learncost.equation.line import Line, Word
from learncost.equation.precision import Precision
from learncost.equation.repeat import Repeat, Statement, walk
from learncost.equation.table import Table
from learncost.equation.term import Term
from learncost.equation.value import INDICES
from learncost.layers.parted import parted
from learncost.layers.rewrite_padded import paddable
from learncost.models.model import Model
from learncost.parallel.segments import BACKWARD, Part, Walker, blocks_of
from learncost.placement.clauses import Clause, Homes
from learncost.placement.collective import BYTES_OF_AN_INDEX
from learncost.placement.layout import Layout
from learncost.placement.mesh import Mesh
from learncost.placement.padding import Padded, padded_of
from learncost.placement.place import Placed, place
from learncost.plans.plan import planned
from learncost.procedures.optimizer import state_of, without_gradients
from learncost.procedures.step import step
from learncost.readings.live import Stretch, stretches
from learncost.readings.price import Row, price
from learncost.readings.time import Rates
from learncost.readings.time.predict import parts as seconds_of
from learncost.readings.time.work import WorkAxes, works_axes
from learncost.vocabulary.collectives import is_collective, sends

PASSES = {"forward": "F", "recomputation": "B", "backward": "B", "weight_update": "W", "optimizer_step": "O"}
"""Macro-operations by the pass of a pipeline that they are of; O is the optimizer, once a step."""


@dataclass(frozen=True)
class Sending:
    """A collective by the sizes: its word, mesh axis, the bytes of its payload, the pass and segment it stands in.

    turns   how often it runs each time, of the repeats around it
    role    what it moves: weights, gradients, states, values or inputs
    rounds  whether it moves parts round a ring of devices, beside the lines of their turns
    copies  of rows that go to their experts or come back: how many there are of each
    """

    word: str
    mesh_axis: str
    payload: Count
    turns: Count
    macro: str
    segment: int
    role: str
    line: str
    rounds: bool = False
    copies: Count | None = None


class Where(NamedTuple):
    """Where time goes: the segment, the letter of the pass, and whether in turns of a ring of devices."""

    segment: int
    letter: str
    rounds: bool = False


@dataclass(frozen=True)
class Held:
    """A weight on a device: its elements, those of its gradient, of the optimizer's state; and where it stands."""

    name: str
    weight: Count
    gradient: Count
    state: Count
    segments: tuple[int, ...]
    learns: bool


@dataclass(frozen=True)
class Static:
    """Bytes that a stage holds all the time, by what they are."""

    weights: Any
    gradients: Any
    states: Any
    masters: Any

    @property
    def total(self) -> Any:
        return self.weights + self.gradients + self.states + self.masters


class Moment(NamedTuple):
    """A line of the passes: the letter of its pass, and its segment."""

    letter: str
    segment: int


@dataclass(frozen=True)
class Activations:
    """Bytes of a microbatch in a stage: what is kept from forward to backward, and the most while either runs.

    Of weight updates that are apart: what waits for them behind the backward pass, and the most while they run.
    """

    kept: Any
    forward: Any
    backward: Any
    waiting: Any = 0
    update: Any = 0


class Account:
    """The account of a placed step.

    model      its table is that of one device; `clauses` cut it over axes of `mesh`
    sizes      of a step of one microbatch, all devices together
    """

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int],
        mesh: Mesh,
        clauses: Sequence[Clause],
        kind: Precision,
        plan: str = "",
        procedure: str = "bp",
        optimizer: str = "adamw",
    ) -> None:
        self.model, self.kind, self.plan = model, kind, plan
        self.optimizer = optimizer
        self.blocks = blocks_of(model.table)
        self.paddable = paddable(model.table)
        # Placed over two devices an axis, all meshes have one structure; what `*` cuts lies in flat parts, padded.
        two = Mesh(tuple((axis, min(size, 2)) for axis, size in mesh.axes))
        sizes = {**sizes, "B": mesh.devices * sizes["B"]}
        sizes |= {axis: sizes[axis] + -sizes[axis] % mesh.devices for axis in self.paddable & sizes.keys()}
        stepped = planned(without_gradients(step(model, procedure, optimizer)), plan, sizes)
        homes = Homes(stepped, mesh, clauses, sizes)
        for name, value in stepped.known.items():
            homes.winners(name, value)  # refuses what does not divide
        large = {axis: size * two.devices if size > 1 else 1 for axis, size in sizes.items()}  # two divide it, whatever
        placed = place(stepped, two, clauses, large)
        self.placed: Placed = replace(placed, table=replace(placed.table, lines=_of_any_ring(placed.table.lines)))
        self.homes = Homes(stepped, two, clauses, large)

    @cached_property
    def _rings(self) -> tuple[str, ...]:
        """The axes of the mesh round which parts go."""
        return tuple(dict.fromkeys(repeat.around for repeat in _repeats(self.placed.table.lines) if repeat.around))

    @cached_property
    def _turns_round(self) -> frozenset[str]:
        return frozenset(map(turns_round, self._rings))

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """Every axis as it is cut, such as f/tp: what has to divide."""
        table = self.placed.table
        axes = {axis for value in table.known.values() for axis in value.axes}
        return tuple(sorted({base(axis) for axis in axes if "/" in axis and not axis.partition("/")[2][0].isdigit()}))

    def divides(self, sizes: Mapping[str, int]) -> str:
        """Why sizes cannot be cut so; nothing where they can.

        What `*` cuts lies in flat parts, the last one padded; a vocabulary is filled up.
        """
        for name, over, size, number in self._parts(sizes):
            if size % number and name not in self.paddable:
                return (
                    f"{name} is {size:,} and cannot be cut over {' and '.join(over)}, {number:,} devices: the next "
                    f"size that can is {-(-size // number) * number:,}"
                )
        return ""

    def cut_over(self, mesh_axis: str) -> tuple[str, ...]:
        """What an axis of the mesh has to divide, as clauses cut it by name; what is filled up aside."""
        named = {axis for clause in self.homes.clauses if clause.mesh == mesh_axis for axis in clause.axes}
        axes = (axis.split("/") for axis in self.cuts)
        names = (name for name, *over in axes if mesh_axis in over and name in named - self.paddable)
        return tuple(dict.fromkeys(names))

    def padded(self, sizes: Mapping[str, int]) -> tuple[Padded, ...]:
        """What is filled up."""
        parts = {name: (size, number) for name, _, size, number in self._parts(sizes) if name in self.paddable}
        return padded_of((name, *cut) for name, cut in parts.items())

    def _parts(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, list[str], int, int]]:
        """Axes that clauses name, over what each is cut, their sizes, and into how many parts."""
        named = {(axis, clause.mesh) for clause in self.homes.clauses for axis in clause.axes}
        for axis in self.cuts:
            name, *over = axis.split("/")
            over = [each for each in over if (name, each) in named]
            stretches = 2 if over and name in (self.placed.table.zigzag or ()) else 1
            number = prod(sizes.get(each, 1) for each in over)
            yield name, over, int(size_of(name, sizes)), number * (stretches if number > 1 else 1)

    def filled(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes with those of every cut axis, such as f/tp, and the turns of rings.

        Of what does not divide it is the largest part.
        """
        filled_sizes = dict(sizes)
        if self.cuts and self.cuts[0] in filled_sizes:
            return filled_sizes
        filled_sizes |= {turns_round(axis): sizes.get(axis, 1) - 1 for axis in self._rings}
        for axis in self.cuts:
            name, *over = axis.split("/")
            number: Any = 1
            for each in over:
                number = number * (int(each) if each.isdigit() else sizes.get(each, 1))
            whole = size_of(name, sizes)
            filled_sizes[axis] = -(-whole // number)
        return filled_sizes

    @cached_property
    def batch_axes(self) -> tuple[str, ...]:
        """The mesh axes that cut the batch."""
        return tuple(dict.fromkeys(each for axis in self.cuts if axis.startswith("B/") for each in axis.split("/")[1:]))

    def width(self, name: str, role: str) -> int:
        """Bytes of a number of an array of the placed table, by the role of what it holds."""
        if self._score(name):
            return self.kind.scores
        weight = min(self.kind.weight, self.kind.value)  # weights are sent in the type that they are multiplied in
        widths = {"weights": weight, "gradients": self.kind.gradient, "states": 4}
        return widths.get(role, self.kind.value)

    def _score(self, name: str) -> bool:
        return not self.placed.scores.isdisjoint((name, self.placed.holds.get(name, name)))

    def _reading(self, table: Table) -> Iterator[tuple[Line, int, list[str]]]:
        """The lines of a table, each with its segment and what it reads; of a turn's slice the stack is told."""
        walker = Walker(self.blocks)

        def visit(
            lines: Sequence[Line | Repeat], counts: tuple[str, ...], stacks: Mapping[str, str]
        ) -> Iterator[tuple[Line, int, list[str]]]:
            for line in lines:
                if isinstance(line, Repeat):
                    inner = {**stacks, **{inside: stacks.get(outer, outer) for inside, outer in line.each}}
                    yield from visit(line.lines, (*counts, line.count), inner)
                else:
                    segment = walker.segment(line.tag.macro, counts)
                    yield line, segment, [stacks.get(name, name) for name in line.reads]

        return visit(table.lines, (), {})

    # What is held all the time.

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """The weights."""
        table, whole = self.placed.table, self.placed.whole
        where: dict[str, list[int]] = {name: [] for name in table.weights}
        for line, segment, reads in self._reading(whole):
            for weight in reads if line.tag.macro != "optimizer_step" else ():
                if weight in where and segment not in where[weight]:
                    where[weight].append(segment)
        states: dict[str, list[str]] = {}
        for name in whole.inputs:
            if whole.values[name].role == "state":
                states.setdefault(whole.values[name].of, []).append(name)
        result = []
        for weight in table.weights:
            gradient = f"d{weight}"
            learns = weight in states or gradient in whole.values or gradient in whole.known
            axes = table.axes[weight]
            home = axes
            if gradient in whole.known:
                value = whole.known[gradient]
                cut = Layout(self.homes.home(gradient, value)).cut(value.axes)
                if len(cut) == len(axes):
                    home = cut
                elif len(cut) + 1 == len(axes):
                    home = (axes[0], *cut)
            state = table.axes[states[weight][0]] if weight in states else axes
            result.append(
                Held(weight, Count.of(axes), Count.of(home), Count.of(state), tuple(where[weight] or [0]), learns)
            )
        return tuple(result)

    def static(self, sizes: Mapping[str, Any], part: Part) -> Static:
        """Bytes that a stage holds all the time; arrays where sizes are."""
        kind, per_point = self.kind, self.bytes_of_state
        weights: Any = 0
        gradients: Any = 0
        points: Any = 0
        learning, part_sizes = set(self.model.learning), self.sizes_of_stage(sizes, part)
        for held in self.held:
            if self.within(held.segments, part):
                weights = weights + held.weight.at(part_sizes)
                if held.name in learning:
                    gradients = gradients + held.gradient.at(part_sizes)
                    points = points + held.state.at(part_sizes)
        return Static(kind.weight * weights, kind.gradient * gradients, per_point * points, kind.master * points)

    def sizes_of_stage(self, sizes: Mapping[str, Any], part: Part) -> dict[str, Any]:
        """The sizes of a stage: its turns are those of its repeats."""
        return {**self.filled(sizes), **{name: part.turns.get(name, 0) for name in self.blocks}}

    @cached_property
    def bytes_of_state(self) -> int:
        """Bytes that the optimizer remembers of a number."""
        return int(state_of(self.optimizer).bytes([1024, 1024], self.kind.states)) // 2**20

    def within(self, segments: Sequence[int], part: Part) -> bool:
        """Whether a stage has one of these segments."""
        return any(
            segment in part.outside if segment % 2 == 0 else self.blocks[segment // 2] in part.turns
            for segment in segments
        )

    def workspace(self, sizes: Mapping[str, int]) -> int:
        """Bytes of one gradient of each of a block's matrices, in the type of the weights, of experts of one.

        TransformerEngine's products that add to the gradient themselves give autograd an empty array of that shape in
        its place, one of each shape, which is kept (transformer_engine/pytorch/module/base.py, get_dummy_wgrad).
        """
        most = 0
        for number, name in enumerate(self.blocks):
            block_sizes = {**sizes, **{block: int(block == name) for block in self.blocks}}
            size = 0
            for held in self.held:
                if 2 * number + 1 in held.segments and len(self.placed.table.axes[held.name]) > 2:
                    axes = self.placed.table.axes[held.name]
                    experts = int(size_of(axes[1], block_sizes)) if base(axes[1]).partition("/")[0] == "e" else 1
                    size += int(held.weight.at(block_sizes)) // experts
            most = max(most, size)
        return most * self.kind.weight

    def optimizer_seconds(self, sizes: Mapping[str, int], part: Part, rates: Rates) -> float:
        """Seconds of the optimizer in a stage: every number of a state is read and written, at the bandwidth."""
        part_sizes = self.sizes_of_stage(sizes, part)
        kind, learning = self.kind, set(self.model.learning)
        points = sum(
            int(held.state.at(part_sizes))
            for held in self.held
            if held.name in learning and self.within(held.segments, part)
        )
        updates = 2 * kind.master + kind.weight if kind.master else 2 * kind.weight  # read, and written
        moved = points * (2 * self.bytes_of_state + updates + kind.gradient)
        return float(moved / rates.bandwidth(float("inf")) + rates.optimizer)

    # What passes leave.

    @cached_property
    def _passes(self) -> Table:
        """What a microbatch runs, without the optimizer."""
        table = self.placed.table
        lines = tuple(line for line in table.lines if isinstance(line, Repeat) or line.tag.macro != "optimizer_step")
        read = {name for line in lines for name in line.reads}
        made = {name for line in lines for name in line.makes}
        updates = [line for line in table.lines if isinstance(line, Word) and line.tag.macro == "optimizer_step"]
        gradients = {name for line in updates for name in line.reads if name in made}
        outputs = tuple(name for name in table.outputs if name in made)
        inputs = tuple(name for name in table.inputs if name in read)
        return Table(
            lines,
            table.values,
            inputs,
            tuple(name for name in table.weights if name in read),
            tuple(dict.fromkeys((*outputs, *sorted(gradients)))),
        )

    @cached_property
    def _stretches(self) -> tuple[tuple[Moment, ...], tuple[Stretch, ...]]:
        """The moments of the passes, and the arrays over them."""
        return self._read(self._passes, frozenset())

    @cached_property
    def _stretches_parted(self) -> tuple[tuple[Moment, ...], tuple[Stretch, ...]]:
        """The same where weight updates are a pass of their own."""
        apart = parted(self._passes)
        updates = apart.table.lines[len(apart.table.lines) - apart.updates :]
        return self._read(apart.table, frozenset(name for line, _ in walk(updates) for name in line.makes))

    def _read(self, passes: Table, late: frozenset[str]) -> tuple[tuple[Moment, ...], tuple[Stretch, ...]]:
        """The moments of passes, and the arrays over them; `late` is what weight updates make that are apart."""
        table, kind = self.placed.table, self.kind
        updates = [line for line in table.lines if isinstance(line, Word) and line.tag.macro == "optimizer_step"]
        gradients = {name for line in updates for name in line.reads} & {*passes.outputs}
        persistent = {f"d{weight}" for weight in table.weights} | gradients
        widths = {"weight": 0, "gradient": kind.gradient, "kept": kind.value, "": kind.value, "index": 4}
        known = set(table.known)
        widths |= {name: kind.scores for name in known if self._score(name)}
        widths |= dict.fromkeys((*persistent, *self.model.masks), 0)
        instants, arrays = stretches(passes, widths)
        walker, again = Walker(self.blocks), Walker(self.blocks)
        moments = []
        for at in instants:
            counts, macro = tuple(count for _, count in at.loops), at.line.tag.macro
            if at.line.name in late and macro in BACKWARD:  # what is made again has the name that it had
                moments.append(Moment("W", again.segment("weight_update", counts)))
            else:
                moments.append(Moment("B" if macro in BACKWARD else "F", walker.segment(macro, counts)))
        return tuple(moments), arrays

    def activations(self, sizes: Mapping[str, Any], part: Part, updates_apart: bool = False) -> Activations:
        """Bytes of a microbatch in a stage; arrays where sizes are.

        updates_apart  whether its weight updates are a pass of their own
        """
        moments, arrays = self._stretches_parted if updates_apart else self._stretches
        part_sizes = self.sizes_of_stage(sizes, part)
        letters = [moment.letter for moment in moments]
        begin, late = (next((n for n, each in enumerate(letters) if each in way), len(letters)) for way in ("BW", "W"))
        values: dict[int, Any] = {}
        changes: list[Any] = [0] * (len(moments) + 2)
        kept: Any = 0
        waiting: Any = 0
        mine = [self.within((moment.segment,), part) for moment in moments]
        for array in arrays:
            turns = base(array.turns).partition("/")[0]
            if not (turns in part.turns if turns in self.blocks else mine[array.first - 1]):
                continue
            key = id(array.count)
            if key not in values:
                values[key] = array.count.at(part_sizes)
            size = values[key]
            changes[array.first] = changes[array.first] + size
            changes[array.last + 1] = changes[array.last + 1] - size
            if array.first <= begin < array.last and not array.given:
                kept = kept + size
            if array.first <= late < array.last and not array.given:
                waiting = waiting + size
        level: Any = 0
        most: dict[str, Any] = {"F": 0, "B": kept, "W": waiting}
        for number, moment in enumerate(moments):
            level = level + changes[number + 1]
            if mine[number]:
                most[moment.letter] = larger(most[moment.letter], level)
        masks = sum(
            Count.of(self.placed.table.axes[name]).at(part_sizes)
            for name, segment in self._masks.items()
            if self.within((segment,), part)
        )
        return Activations(kept + masks, most["F"] + masks, most["B"] + masks, waiting, most["W"])

    @cached_property
    def _masks(self) -> dict[str, int]:
        """The drawn masks of dropout, a byte an element, with the segment that reads them.

        One that lines read which run again is drawn again, from the seed, and not kept.
        """
        first_segments, again = dict[str, int](), set[str]()
        for line, segment, reads in self._reading(self.placed.table):
            for mask in reads:
                if mask in self.model.masks:
                    first_segments.setdefault(mask, segment)
                    again.update([mask] if line.tag.macro == "recomputation" else [])
        return {mask: segment for mask, segment in first_segments.items() if mask not in again}

    # What is sent.

    @cached_property
    def sendings(self) -> tuple[Sending, ...]:
        """The collectives of a step of one microbatch, in the order of the lines."""
        placed, table, result = self.placed, self.placed.table, []
        indices = {name for name, value in placed.whole.known.items() if value.role in INDICES}
        walker = Walker(self.blocks)
        owners = {held.name: held.segments[0] for held in self.held}
        for line, counts in walk(table.lines):
            segment = walker.segment(line.tag.macro, counts)
            if not sends(line):
                continue
            name = placed.holds.get(line.name, line.name)
            known = placed.whole.known.get(name)
            role, owner = self.homes.kind(name, known) if known else ("values", name)
            if line.tag.macro == "optimizer_step":
                segment = owners.get(owner, segment)
            width = BYTES_OF_AN_INDEX if name in indices else self.width(line.name, role)
            sides = [term.declared for term in (line.left[0], line.right[0]) if isinstance(term, Term)]
            result.append(
                Sending(
                    line.word,
                    line.axes[0],
                    Count.of(_larger(sides), width),
                    Count.of(counts),
                    line.tag.macro,
                    segment,
                    role,
                    line.name,
                    bool(self._turns_round.intersection(counts)),
                    _copies(line) if role not in INDICES and name not in indices else None,
                )
            )
        return tuple(result)

    # How long it takes.

    @cached_property
    def _rows(self) -> tuple[Row, ...]:
        return price(self.placed.table, {}, book("run")).rows

    def seconds(self, sizes: Mapping[str, Any], rates: Rates, dtype: str) -> dict[Where, Any]:
        """Seconds of one turn of each segment in each pass, computing alone; arrays where sizes are."""
        walker = Walker(self.blocks)
        places = [
            walker.segment(row.macro_operation, [name for term in row.repeat.terms for name in term])
            for row in self._rows
        ]
        key = dtype, rates.operators, tuple(rates.words)
        if key not in self._works:
            self._works[key] = tuple(works_axes(self._rows, dtype, rates.operators, rates.words))
        works = [work.at(sizes) for work in self._works[key]]
        by_place: dict[Where, Any] = {}
        for work, seconds in zip(works, seconds_of(works, rates), strict=True):
            segment, line = places[work.main], self._rows[work.main].source
            if is_collective(line):
                continue  # its time is that of the links
            turns = sizes[self.blocks[segment // 2]] if segment % 2 else 1
            where = Where(
                segment, PASSES.get(work.macro, "F"), bool(self._turns_round & self._rows[work.main].repeat.sizes)
            )
            by_place[where] = by_place.get(where, 0.0) + seconds.total / max(1, turns)
        return by_place

    @cached_property
    def _works(self) -> dict[tuple[str, bool, tuple[str, ...]], tuple[WorkAxes, ...]]:
        return {}


def _copies(line: Word) -> Count | None:
    """Of rows that are sent by a choice, how many each has: the last axis of what chooses."""
    if line.word not in ("dispatch", "combine"):
        return None
    choice = line.right[-1]
    return Count.of(choice.declared[-1:]) if isinstance(choice, Term) else None


def turns_round(mesh_axis: str) -> str:
    """What sizes call the turns of a ring of devices: one fewer than they are."""
    return f"{mesh_axis}-1"


def _repeats(lines: Sequence[Statement]) -> Iterator[Repeat]:
    for line in lines:
        if isinstance(line, Repeat):
            yield line
            yield from _repeats(line.lines)


def _of_any_ring(lines: Sequence[Statement]) -> tuple[Statement, ...]:
    """The lines with the turns of their rings by name, where they were placed over two devices."""
    return tuple(
        replace(line, lines=_of_any_ring(line.lines), count=turns_round(line.around) if line.around else line.count)
        if isinstance(line, Repeat)
        else line
        for line in lines
    )


def _larger(sides: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> tuple[str, ...]:
    """Of two sides of a collective the one that is cut less."""
    return min(sides, key=lambda axes: sum(axis.count("/") for axis in axes))
