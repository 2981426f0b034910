"""The static memory of a sharded step on its devices: weights, gradients and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from learncost.autoshard.placed_step import CutSizes, ShardedStep, StagePart
from learncost.ir.polynomial import Polynomial, base, shape_of, size_of
from learncost.ir.value import Axes
from learncost.passes.quantized import bytes_of_array
from learncost.procedures.optimizer import OptimizerState, state_of
from learncost.timing import Rates


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
class Static:
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
    sizes: CutSizes

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

    def static(self, sizes: Mapping[str, Any], part: StagePart, gradients: bool = True) -> Static:
        """Return the static bytes of a stage; arrays if sizes are arrays.

        gradients  whether gradients are stored throughout: sums of those of several microbatches
        """
        kind, part_sizes = self.step.kind, self.sizes.of_stage(sizes, part)
        mine = [held for held in self.held if self.step.within(held.segments, part)]
        learns = [held for held in mine if held.learns]
        weights = kind.weight * sum(held.weight.at(part_sizes) for held in mine)
        return Static(
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
