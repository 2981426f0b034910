"""The saved and peak memory of a microbatch's passes on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from learncost.autoshard.cut_sizes import CutSizes
from learncost.autoshard.placed_step import BACKWARD, ShardedStep, StagePart, Walker
from learncost.ir.line import Op
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import Polynomial, base, larger
from learncost.ir.table import Table
from learncost.liveness import SymbolicInterval, stretches
from learncost.passes.parted import parted


class PassLine(NamedTuple):
    """A line of the passes: the letter of its pass, and its segment."""

    letter: str
    segment: int


@dataclass(frozen=True)
class StageActivations:
    """The bytes of a microbatch in a stage: saved from forward to backward, and the peak of each pass.

    For separate weight updates: the bytes saved for them after the backward pass, and their peak.
    """

    kept: Any
    forward: Any
    backward: Any
    waiting: Any = 0
    update: Any = 0


@dataclass(frozen=True)
class MicrobatchPasses:
    """The passes of a sharded step."""

    step: ShardedStep
    sizes: CutSizes

    @cached_property
    def _passes(self) -> Table:
        """Return the lines of a microbatch, without the optimizer."""
        table = self.step.placed.table
        lines = tuple(line for line in table.lines if isinstance(line, Loop) or line.meta.phase != "optimizer_step")
        read = {name for line in lines for name in line.reads}
        made = {name for line in lines for name in line.makes}
        updates = [line for line in table.lines if isinstance(line, Op) and line.meta.phase == "optimizer_step"]
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
    def _stretches(self) -> tuple[tuple[PassLine, ...], tuple[SymbolicInterval, ...]]:
        """Return the moments of the passes and the arrays over them."""
        return self._read(self._passes, frozenset())

    @cached_property
    def _stretches_parted(self) -> tuple[tuple[PassLine, ...], tuple[SymbolicInterval, ...]]:
        """Return the same with weight updates as a separate pass."""
        apart = parted(self._passes)
        updates = apart.table.lines[len(apart.table.lines) - apart.updates :]
        return self._read(apart.table, frozenset(name for line, _ in walk(updates) for name in line.makes))

    def _read(self, passes: Table, late: frozenset[str]) -> tuple[tuple[PassLine, ...], tuple[SymbolicInterval, ...]]:
        """Return the moments of passes and the arrays over them; `late` are results of separate weight updates."""
        table, kind = self.step.placed.table, self.step.kind
        updates = [line for line in table.lines if isinstance(line, Op) and line.meta.phase == "optimizer_step"]
        gradients = {name for line in updates for name in line.reads} & {*passes.outputs}
        persistent = {f"d{weight}" for weight in table.weights} | gradients
        widths = {"weight": 0, "gradient": kind.gradient, "kept": kind.value, "": kind.value, "index": 4}
        known = set(table.known)
        widths |= {name: kind.scores for name in known if self.step.is_score(name)}
        widths |= dict.fromkeys((*persistent, *self.step.model.masks), 0)
        instants, arrays = stretches(passes, widths)
        walker, again = Walker(self.step.blocks), Walker(self.step.blocks)
        moments = []
        for at in instants:
            counts, phase = tuple(count for _, count in at.loops), at.line.meta.phase
            if at.line.name in late and phase in BACKWARD:  # recomputed values have their first names
                moments.append(PassLine("W", again.segment("weight_update", counts)))
            else:
                moments.append(PassLine("B" if phase in BACKWARD else "F", walker.segment(phase, counts)))
        return tuple(moments), arrays

    def activations(self, sizes: Mapping[str, Any], part: StagePart, updates_apart: bool = False) -> StageActivations:
        """Return the bytes of a microbatch in a stage; arrays if sizes are arrays.

        updates_apart  whether its weight updates are a separate pass
        """
        moments, arrays = self._stretches_parted if updates_apart else self._stretches
        part_sizes = self.sizes.of_stage(sizes, part)
        letters = [moment.letter for moment in moments]
        begin, late = (next((n for n, each in enumerate(letters) if each in way), len(letters)) for way in ("BW", "W"))
        values: dict[int, Any] = {}
        changes: list[Any] = [0] * (len(moments) + 2)
        kept: Any = 0
        waiting: Any = 0
        mine = [self.step.within((moment.segment,), part) for moment in moments]
        for array in arrays:
            iterations = base(array.iterations).partition("/")[0]
            if not (iterations in part.iterations if iterations in self.step.blocks else mine[array.first - 1]):
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
            Polynomial.of(self.step.placed.table.axes[name]).at(part_sizes)
            for name, segment in self._masks.items()
            if self.step.within((segment,), part)
        )
        return StageActivations(kept + masks, most["F"] + masks, most["B"] + masks, waiting, most["W"])

    @cached_property
    def _masks(self) -> dict[str, int]:
        """Return the dropout masks, one byte per element, with the segment that reads them.

        A mask that recomputed lines read is drawn again from the seed and not saved.
        """
        first_segments, again = dict[str, int](), set[str]()
        for line, segment, reads in self.step.reading(self.step.placed.table):
            for mask in reads:
                if mask in self.step.model.masks:
                    first_segments.setdefault(mask, segment)
                    again.update([mask] if line.meta.phase == "recomputation" else [])
        return {mask: segment for mask, segment in first_segments.items() if mask not in again}
