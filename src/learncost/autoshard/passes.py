"""The memory of a sharded step on a device: the static one, of weights, gradients and optimizer states, and the saved
and peak memory of a microbatch's passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from learncost.autoshard.placed_step import BACKWARD, ShardedSizes, ShardedStep, StagePart, Walker
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, map_lines, map_loops, walk
from learncost.ir.polynomial import Polynomial, base, shape_of, size_of
from learncost.ir.precision import BYTES
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes
from learncost.liveness import SizedArray, SymbolicPoint, symbolic_liveness
from learncost.ops import entry
from learncost.ops.collectives import KIND
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.quantized import bytes_of_array
from learncost.passes.stages import split_backward
from learncost.procedures.accumulation import check_accumulates
from learncost.procedures.needed import needed
from learncost.procedures.optimizer import OptimizerState, state_of
from learncost.program.lifetimes import ScheduledArray
from learncost.sharding.place import Placed
from learncost.timing.rates import Rates


def updated_in_place(placed: Placed) -> Table:
    """Return the table of a device with an optimizer without states, which writes new weights over the old ones.

    New weights are gathered into the memory of the old ones, and shards of old ones share their memory.
    """
    table, whole = placed.table, placed.whole
    results = {value.of: name for name, value in table.known.items() if value.role == "new" and name in whole.known}

    def change(line: Line) -> tuple[Line, ...]:
        if not isinstance(line, Op) or line.meta.phase != "optimizer_step":
            return (line,)
        held = placed.holds.get(line.name, "")
        if entry(line.op).kind == KIND:
            return () if held in whole.weights or (held and whole.known[held].role == "new") else (line,)
        if line.op not in OPTIMIZERS:
            return (line,)
        operands = dict(zip(line.given, line.right, strict=True))
        weight = placed.holds.get(operands["W"].name, operands["W"].name)
        if weight not in results:  # what is stepped from is made of the weight before, so that it does not lie there
            left, right = line.left[:1], (operands["W"], operands["G"], operands["lr"])
        else:
            axes = table.known[weight].axes
            left = (Term(results[weight], axes),)
            right = (Term(weight, axes), operands["G"], operands["lr"])
        return (replace(line, left=left, right=right, op="sgd", given=("W", "G", "lr"), gives=("U",)),)

    states = {name for name, value in table.known.items() if value.role == "state"}
    renewed = {name for name, value in table.known.items() if value.role == "new" and value.of in states}
    gone = states | renewed

    def without_states(loop: Loop) -> Loop:
        kept = ((name, stack) for name, stack in loop.keep if stack not in gone)
        return replace(
            loop,
            each=tuple(pair for pair in loop.each if pair[1] not in gone),
            keep=tuple((placed.holds.get(n, n) if stack in results.values() else n, stack) for n, stack in kept),
        )

    lines = map_loops(map_lines(table.lines, change), without_states)
    read = {name for line, _ in walk(lines) for name in line.reads}
    unread = {name for name in table.inputs if table.values[name].role == "number"} - read
    return replace(
        table,
        lines=lines,
        inputs=tuple(name for name in table.inputs if name not in states | unread),
        outputs=tuple(name for name in table.outputs if name not in renewed),
    )


ONCE, SUMMED, SPLIT = "once", "summed", "split"
"""The lifetime of gradients: those of a single microbatch live until the optimizer reads them, the sums of several
throughout; the third is the second with weight updates as a separate pass."""

INDEX = 4
"""Bytes of an index."""


def purpose(placed: Placed, array: str) -> str:
    """Return what a sharded array is if it is a gathered weight or a gradient; empty otherwise."""
    name = placed.holds.get(array, array)
    value = placed.whole.known.get(name)
    if value is not None and value.role in ("gradient", "part") and value.of in placed.whole.weights:
        return "gradients"
    return "gathered weights" if name in placed.whole.weights and array not in placed.whole.weights else ""


class PassLine(NamedTuple):
    """A line of the passes: the letter of its pass, its segment, and its moment."""

    letter: str
    segment: int
    at: SymbolicPoint


class StageLiveness:
    """The arrays of one microbatch over the lines of a stage, for all sizes.

    Attributes: `moments`, the lines; `arrays`, what is live; `numbers`, the place of each array's bytes in `bytes`;
    `levels`, how many arrays of each of `bytes` are live at each line.
    """

    def __init__(self, moments: Sequence[PassLine], mine: Sequence[bool], arrays: Sequence[SizedArray]) -> None:
        counts: dict[object, int] = {}
        self.arrays = arrays
        numbers = [counts.setdefault(frozenset(a.size.terms.items()), len(counts)) for a in arrays]
        self.numbers = np.array(numbers, int)
        self.counts = [*{number: a.size for number, a in zip(numbers, arrays, strict=True)}.values()]
        columns = [(each.array.first, each.array.last, each.array.given != "") for each in arrays]
        self._first, self._last, self._given = np.array(columns, int).reshape(-1, 3).T
        changes = np.zeros((len(moments) + 2, len(counts)))
        np.add.at(changes, (self._first, self.numbers), 1)
        np.subtract.at(changes, (self._last + 1, self.numbers), 1)
        self.places = [place for place, is_mine in enumerate(mine) if is_mine]
        self.levels = changes.cumsum(axis=0)[1:-1][self.places]
        self.moments = [moments[place] for place in self.places]
        self._letters = [moment.letter for moment in moments]
        self._second: dict[str, list[int]] = {}
        for row, moment in enumerate(self.moments):
            for count in moment.at.second:
                self._second.setdefault(count, []).append(row)

    def at(self, values: Any, sizes: Mapping[str, Any]) -> Any:
        """Return the bytes live at each line, given `bytes`: loops of two have their first and last iteration."""
        levels = self.levels @ values
        for count, rows in self._second.items():
            levels[rows] *= Polynomial.of((count,)).at(sizes) > 2
        return levels

    def bytes(self, sizes: Mapping[str, Any]) -> Any:
        """Return the bytes of the distinct arrays; of several sizes, a row for each array."""
        if not self.counts:
            return np.zeros(0)
        return np.stack(np.broadcast_arrays(*(np.asarray(count.at(sizes), float) for count in self.counts)))

    def saved(self, letters: str) -> Any:
        """Return how many arrays of each of `bytes` are live from before the first line of passes to after it."""
        begin = next((n for n, each in enumerate(self._letters) if each in letters), len(self._letters))
        saved = (self._first <= begin) & (begin < self._last) & (self._given == 0)
        return np.bincount(self.numbers, saved, len(self.counts))


@dataclass(frozen=True)
class StageActivations:
    """The bytes of a microbatch in a stage: saved from forward to backward, and the peak of each pass.

    For separate weight updates: the bytes saved for them after the backward pass, and their peak.
    """

    saved: Any
    forward: Any
    backward: Any
    waiting: Any = 0
    update: Any = 0


LiveIntervals = tuple[tuple[PassLine, ...], tuple[SizedArray, ...]]


@dataclass(frozen=True)
class MicrobatchPasses:
    """The passes of a sharded step."""

    step: ShardedStep
    sizes: ShardedSizes

    @cached_property
    def _passes(self) -> Table:
        """Return the lines of a microbatch that gradients and results need, without the optimizer."""
        table = self.step.placed.table
        lines = tuple(line for line in table.lines if isinstance(line, Loop) or line.meta.phase != "optimizer_step")
        made = {name for line in lines for name in line.makes}
        updates = [line for line in table.lines if isinstance(line, Op) and line.meta.phase == "optimizer_step"]
        gradients = {name for line in updates for name in line.reads if name in made}
        outputs = (name for name in table.outputs if name in made)
        return needed(replace(table, lines=lines), dict.fromkeys((*outputs, *sorted(gradients))))

    @cached_property
    def _stretches(self) -> dict[str, LiveIntervals]:
        return {}

    def _read_as(self, gradients: str) -> LiveIntervals:
        """Return the moments of the passes and the arrays over them, by how long gradients live."""
        if gradients == ONCE:
            return self._read(updated_in_place(self.step.placed), gradients)
        check_accumulates(self.step.placed.table)
        if gradients == SUMMED:
            return self._read(self._passes, gradients)
        apart = split_backward(self._passes)
        updates = apart.table.lines[len(apart.table.lines) - apart.updates :]
        return self._read(apart.table, gradients, frozenset(name for line, _ in walk(updates) for name in line.makes))

    def _read(self, passes: Table, gradients: str, late: frozenset[str] = frozenset()) -> LiveIntervals:
        """Return the moments of passes and the arrays over them; `late` are results of separate weight updates."""
        liveness = symbolic_liveness(passes, self._widths(passes, gradients), width=self.step.kind.value)
        walker, again = Walker(self.step.blocks), Walker(self.step.blocks)
        moments = []
        for at in liveness.points:
            counts, phase = tuple(count for _, count in at.loops), at.line.meta.phase
            if at.line.name in late and phase in BACKWARD:  # recomputed values have their first names
                moments.append(PassLine("W", again.segment("weight_update", counts), at))
            else:
                letter = "B" if phase in BACKWARD or phase == "optimizer_step" else "F"
                moments.append(PassLine(letter, walker.segment(phase, counts), at))
        return tuple(moments), liveness.arrays

    def _widths(self, passes: Table, gradients: str) -> dict[str, int]:
        """Return the bytes of an element by role and by name: none of weights and sums, which are static."""
        placed, kind = self.step.placed, self.step.kind
        known = {**placed.whole.known, **placed.table.known}
        typed = {name: BYTES[value.dtype] for name, value in known.items() if value.dtype}
        scores = (name for name in known if not placed.scores.isdisjoint((name, placed.holds.get(name, name))))
        typed |= dict.fromkeys(scores, kind.scores) | self.step.model.quantized_widths
        typed |= {array: typed[name] for array, name in placed.holds.items() if name in typed}
        typed |= {name: kind.gradient for name in (*placed.holds, *known) if purpose(placed, name) == "gradients"}
        widths = {"weight": 0, "gradient": kind.gradient, "saved": kind.value, "": kind.value, "index": INDEX} | typed
        if gradients != ONCE:
            updates = [line for line, _ in walk(placed.table.lines) if line.meta.phase == "optimizer_step"]
            read = {name for line in updates for name in line.reads} & {*passes.outputs}
            widths |= dict.fromkeys((*(f"d{weight}" for weight in placed.table.weights), *read), 0)
        return widths | dict.fromkeys(self.step.model.masks, 0)

    def of_stage(self, part: StagePart, gradients: str = SUMMED) -> StageLiveness:
        """Return what is live in a stage, for all sizes."""
        key = part.outside, frozenset(part.iterations), gradients
        if key not in self._known:
            if gradients not in self._stretches:
                self._stretches[gradients] = self._read_as(gradients)
            moments, arrays = self._stretches[gradients]
            mine = [self.step.within((moment.segment,), part) for moment in moments]
            self._known[key] = StageLiveness(
                moments, mine, [each for each in arrays if self._within(each.array, part, mine)]
            )
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[object, ...], StageLiveness]:
        return {}

    def _within(self, array: ScheduledArray, part: StagePart, mine: Sequence[bool]) -> bool:
        iterations = base(array.iterations).partition("/")[0]
        return iterations in part.iterations if iterations in self.step.blocks else mine[array.first - 1]

    def activations(self, sizes: Mapping[str, Any], part: StagePart, gradients: str = SUMMED) -> StageActivations:
        """Return the bytes of a microbatch in a stage; arrays if sizes are arrays.

        gradients  how long gradients live: `ONCE`, `SUMMED` or `SPLIT`
        """
        alive, part_sizes = self.of_stage(part, gradients), self.sizes.of_stage(sizes, part)
        values = alive.bytes(part_sizes)
        saved, waiting = alive.saved("BW") @ values, alive.saved("W") @ values
        levels = alive.at(values, part_sizes)
        most = {"F": 0 * saved, "B": saved, "W": waiting}
        for letter, level in most.items():
            if rows := [row for row, moment in enumerate(alive.moments) if moment.letter == letter]:
                most[letter] = np.maximum(level, levels[rows].max(axis=0))
        masks = self.masks(part_sizes, part)
        return StageActivations(saved + masks, most["F"] + masks, most["B"] + masks, waiting, most["W"])

    def masks(self, sizes: Mapping[str, Any], part: StagePart) -> Any:
        """Return the bytes of a stage's dropout masks at its sizes, one per element."""
        return sum(
            Polynomial.of(self.step.placed.table.axes[name]).at(sizes)
            for name, segment in self._masks.items()
            if self.step.within((segment,), part)
        )

    @cached_property
    def _masks(self) -> dict[str, int]:
        """Return the dropout masks with the segment that reads them.

        A mask that recomputed lines read is drawn again from the seed and not saved.
        """
        first_segments, again = dict[str, int](), set[str]()
        for line, segment, reads in self.step.reading(self.step.placed.table):
            for mask in reads:
                if mask in self.step.model.masks:
                    first_segments.setdefault(mask, segment)
                    again.update([mask] if line.meta.phase == "recomputation" else [])
        return {mask: segment for mask, segment in first_segments.items() if mask not in again}


@dataclass(frozen=True)
class StoredWeight:
    """A weight on a device: its elements, those of its gradient, master weight and optimizer state, and its segments.

    state_axes  of its shard as the optimizer sees it
    learns      whether it has a gradient and a state
    """

    name: str
    weight: Polynomial
    gradient: Polynomial
    master: Polynomial
    state_axes: Axes
    segments: tuple[int, ...]
    learns: bool

    @cached_property
    def state(self) -> Polynomial:
        """Return the numbers of its optimizer state, one for each number of the weight."""
        return Polynomial.of(self.state_axes)


@dataclass(frozen=True)
class StaticBytes:
    """The static bytes of a stage, by role."""

    weights: Any
    gradients: Any
    states: Any
    masters: Any
    communication_buffers: int = 0

    @property
    def total(self) -> Any:
        return self.weights + self.gradients + self.states + self.masters + self.communication_buffers


@dataclass(frozen=True)
class StepWeights:
    """The weights of a sharded step."""

    step: ShardedStep
    sizes: ShardedSizes

    @cached_property
    def held(self) -> tuple[StoredWeight, ...]:
        """The weights with their static memory and segments."""
        whole = self.step.whole
        where: dict[str, list[int]] = {name: [] for name in whole.weights}
        for line, segment, reads in self.step.reading(whole):
            for weight in reads if line.meta.phase != "optimizer_step" else ():
                if weight in where and segment not in where[weight]:
                    where[weight].append(segment)
        renewed = {value.of for value in whole.known.values() if value.role == "new"}
        learning = {*renewed.intersection(self.step.model.learning), *self.step.states.projections}
        result = []
        for name in (*whole.weights, *self.step.states.projections):
            gradient = f"d{name}"
            axes = self.step.cut(name, whole.known[name])
            spec = axes
            if gradient in whole.known:
                cut = self.step.cut(gradient, whole.known[gradient])
                if len(cut) == len(axes):
                    spec = cut
                elif len(cut) + 1 == len(axes):
                    spec = (axes[0], *cut)
            learns, is_weight = name in learning, name in where
            result.append(
                StoredWeight(
                    name,
                    Polynomial.of(axes) if is_weight and name not in self.step.model.quantized_widths else Polynomial(),
                    Polynomial.of(spec),
                    Polynomial.of(self.step.state_axes(name, whole.axes[name])) if is_weight else Polynomial(),
                    self.step.state_axes(name, self.step.states.axes[name]) if learns else (),
                    tuple(where.get(name) or [0]),
                    learns,
                )
            )
        return tuple(result)

    def static(self, sizes: Mapping[str, Any], part: StagePart, gradients: bool = True) -> StaticBytes:
        """Return the static bytes of a stage; arrays if sizes are arrays.

        gradients  whether gradients are stored throughout: sums of those of several microbatches
        """
        kind, part_sizes = self.step.kind, self.sizes.of_stage(sizes, part)
        mine = [held for held in self.held if self.step.within(held.segments, part)]
        learns = [held for held in mine if held.learns]
        weights = kind.weight * sum(held.weight.at(part_sizes) for held in mine)
        return StaticBytes(
            weights + (self._quantized(part_sizes) if self.step.model.quantized else 0),
            kind.gradient * sum(held.gradient.at(part_sizes) for held in learns) if gradients else 0,
            sum(self._state_bytes(held, part_sizes) for held in learns),
            kind.master * sum(held.master.at(part_sizes) for held in learns),
        )

    def _quantized(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of the codes and scales of quantized weights."""
        axes = self.step.placed.table.axes
        arrays = (array for weight in self.step.model.quantized for array in (weight.codes, *weight.scales))
        return sum(bytes_of_array(replace(a, axes=axes.get(a.name, a.axes)), sizes) for a in arrays)

    @cached_property
    def optimizer(self) -> OptimizerState:
        return state_of(self.step.config.optimizer)

    def _state_bytes(self, held: StoredWeight, sizes: Mapping[str, Any]) -> Any:
        """Return the bytes of optimizer state of a weight."""
        of_number = self.step.states.of_a_number(self.optimizer, held.name, self.step.kind.states)
        if of_number is not None:
            return of_number * held.state.at(sizes)
        shape = [*shape_of(held.state_axes, sizes)]
        return self.step.states.bytes(self.optimizer, held.name, shape, self.step.kind.states)

    def workspace(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of one gradient per matrix of a block, in the weights' type; of one expert only.

        TransformerEngine's fused weight gradient products return an empty array of that shape to autograd, one per
        shape, which is kept (transformer_engine/pytorch/module/base.py, get_dummy_wgrad).
        """
        most = 0
        for number, name in enumerate(self.step.blocks):
            block_sizes = {**sizes, **{block: int(block == name) for block in self.step.blocks}}
            size = 0
            for held in self.held:
                if 2 * number + 1 in held.segments and len(self.step.placed.table.axes[held.name]) > 2:
                    axes = self.step.placed.table.axes[held.name]
                    experts = int(size_of(axes[1], block_sizes)) if base(axes[1]).partition("/")[0] == "e" else 1
                    size += int(held.weight.at(block_sizes)) // experts
            most = max(most, size)
        return most * self.step.kind.weight

    def optimizer_seconds(self, sizes: Mapping[str, Any], part: StagePart, rates: Rates) -> Any:
        """Return the seconds of the optimizer in a stage: it reads and writes every state at the bandwidth."""
        kind, part_sizes = self.step.kind, self.sizes.of_stage(sizes, part)
        mine = [held for held in self.held if held.learns and self.step.within(held.segments, part)]
        if not mine:
            return 0.0
        points = sum(held.state.at(part_sizes) for held in mine)
        updates = 2 * kind.master + kind.weight if kind.master else 2 * kind.weight  # read, and written
        states = int(self.optimizer.bytes([1024, 1024], kind.states)) // 2**20
        moved = points * (2 * states + updates + kind.gradient)
        return moved / rates.bandwidth(float("inf")) + len(mine) * rates.optimizer
