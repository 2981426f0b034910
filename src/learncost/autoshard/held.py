"""The static memory of a sharded step on its devices: weights, gradients and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from learncost.autoshard.cut_sizes import CutSizes
from learncost.autoshard.placed_step import ShardedStep, StagePart
from learncost.ir.polynomial import Polynomial, base, size_of
from learncost.procedures.optimizer import state_of
from learncost.sharding.layout import ShardLayout
from learncost.timing import Rates


@dataclass(frozen=True)
class StoredWeight:
    """A weight on a device: its elements, those of its gradient and optimizer state, and its segment."""

    name: str
    weight: Polynomial
    gradient: Polynomial
    state: Polynomial
    segments: tuple[int, ...]
    learns: bool


@dataclass(frozen=True)
class Static:
    """The static bytes of a stage, by role."""

    weights: Any
    gradients: Any
    states: Any
    masters: Any

    @property
    def total(self) -> Any:
        return self.weights + self.gradients + self.states + self.masters


@dataclass(frozen=True)
class StepWeights:
    """The weights of a sharded step."""

    step: ShardedStep
    sizes: CutSizes

    @cached_property
    def held(self) -> tuple[StoredWeight, ...]:
        """The weights."""
        table, whole = self.step.placed.table, self.step.placed.whole
        where: dict[str, list[int]] = {name: [] for name in table.weights}
        for line, segment, reads in self.step.reading(whole):
            for weight in reads if line.meta.phase != "optimizer_step" else ():
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
            spec = axes
            if gradient in whole.known:
                value = whole.known[gradient]
                cut = ShardLayout(self.step.specs.spec(gradient, value)).cut(value.axes)
                if len(cut) == len(axes):
                    spec = cut
                elif len(cut) + 1 == len(axes):
                    spec = (axes[0], *cut)
            state = table.axes[states[weight][0]] if weight in states else axes
            result.append(
                StoredWeight(
                    weight,
                    Polynomial.of(axes),
                    Polynomial.of(spec),
                    Polynomial.of(state),
                    tuple(where[weight] or [0]),
                    learns,
                )
            )
        return tuple(result)

    def static(self, sizes: Mapping[str, Any], part: StagePart) -> Static:
        """Return the static bytes of a stage; arrays if sizes are arrays."""
        kind, per_point = self.step.kind, self.bytes_of_state
        weights: Any = 0
        gradients: Any = 0
        points: Any = 0
        learning, part_sizes = set(self.step.model.learning), self.sizes.of_stage(sizes, part)
        for held in self.held:
            if self.step.within(held.segments, part):
                weights = weights + held.weight.at(part_sizes)
                if held.name in learning:
                    gradients = gradients + held.gradient.at(part_sizes)
                    points = points + held.state.at(part_sizes)
        return Static(kind.weight * weights, kind.gradient * gradients, per_point * points, kind.master * points)

    @cached_property
    def bytes_of_state(self) -> int:
        """Return the optimizer state's bytes per number."""
        return int(state_of(self.step.optimizer).bytes([1024, 1024], self.step.kind.states)) // 2**20

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
        part_sizes = self.sizes.of_stage(sizes, part)
        kind, learning = self.step.kind, set(self.step.model.learning)
        mine = [held for held in self.held if held.name in learning and self.step.within(held.segments, part)]
        points = sum(held.state.at(part_sizes) for held in mine)
        updates = 2 * kind.master + kind.weight if kind.master else 2 * kind.weight  # read, and written
        moved = points * (2 * self.bytes_of_state + updates + kind.gradient)
        return moved / rates.bandwidth(float("inf")) + len(mine) * rates.optimizer
