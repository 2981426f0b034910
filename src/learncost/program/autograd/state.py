"""The state of a step under autograd in addition to its values: weights, masks, inputs, and sharded weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from learncost.ir.loop import Loop
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.table import Table
from learncost.program.account import Allocation
from learncost.program.autograd.asked import StepOptions
from learncost.program.autograd.blocks import blocks_of, places
from learncost.program.autograd.operators import TapeTensor
from learncost.program.autograd.tape import Tape, TapeNode, TapeValue
from learncost.program.autograd.wrapped import ParameterGroup, Sharded

ROOT = ()
"""The group of weights outside of blocks."""


@dataclass
class StepState:
    """The state of a step: weights and their leaves, masks, and tensors that live until the model returns."""

    tape: Tape
    table: Table
    sizes: Mapping[str, int]
    asked: StepOptions
    allocations: dict[str, Allocation] = field(default_factory=dict)
    leaves: dict[tuple[str, ...], TapeTensor] = field(default_factory=dict)
    masks: dict[tuple[object, ...], TapeTensor] = field(default_factory=dict)
    embedded: list[TapeTensor] = field(default_factory=list)
    cache: list[TapeTensor] = field(default_factory=list)
    inputs: list[TapeTensor] = field(default_factory=list)
    tokens: str = ""

    @cached_property
    def sharded(self) -> Sharded | None:
        """The sharded weights, where the module is wrapped with `fully_shard`."""
        wrapping = self.asked.wrapping
        return Sharded(self.tape, wrapping, self.asked.width) if wrapping and wrapping.parts > 1 else None

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The loops of the model, by identity."""
        return {id(line): number for number, line in enumerate(self.table.repeats) if line in self.table.lines}

    @cached_property
    def blocks(self) -> dict[str, tuple[int, int]]:
        """The weights that are stacks of the blocks', each with its loop and its block within an iteration."""
        result = dict[str, tuple[int, int]]()
        for repeat in (line for line in self.table.lines if id(line) in self.numbers):
            assert isinstance(repeat, Loop)
            for place, (lines, _, _) in enumerate(blocks_of(repeat, self.sharded_over)):
                reads = {name for line in lines for name in line.reads}
                stacks = (outer for inside, outer in repeat.each if inside in reads and outer in self.table.weights)
                result |= dict.fromkeys(stacks, (self.numbers[id(repeat)], place))
        return result

    def group(self, block: tuple[int, int], iteration: int) -> ParameterGroup:
        """Return the weights of a block of an iteration."""
        assert self.sharded
        names = [name for name, of in self.blocks.items() if of == block]
        return self.sharded.group((*block, iteration), [self.count(self.table.axes[name][1:]) for name in names])

    @cached_property
    def sharded_over(self) -> int:
        """The number of places of a block with a single live value, including its end; 0: an iteration is a block."""
        repeats = self.table.repeats
        all_places = sum(size_of(repeat.count, self.sizes) * len(places(repeat)) for repeat in repeats)
        return all_places // self.asked.blocks if self.asked.blocks and not all_places % self.asked.blocks else 0

    def leaf(self, names: Sequence[tuple[str, ...]], elements: int) -> TapeTensor:
        """Return a weight of an iteration, or several that are one."""
        key = tuple(part for name in names for part in name)
        if key not in self.leaves:
            allocation, width = (
                self.allocations[names[0][0]],
                0 if names[0][0] in self.asked.coded else self.asked.width,
            )
            learns = any(name[0] in self.asked.learning for name in names)
            if self.sharded:
                block = self.blocks.get(names[0][0])
                group = self.group(block, int(names[0][1])) if block else self.sharded.group(ROOT)
                allocation = group.allocation
            value = self.tape.weight(elements, width, allocation) if learns else TapeValue(elements, width, allocation)
            if self.sharded:
                group.weights.append(value)
            self.leaves[key] = TapeTensor(self.tape, value)
        return self.leaves[key]

    def embeds(self, weight: str, embedded: TapeTensor) -> None:
        """Keep an embedding until the model returns; under checkpoints that of the tokens requires a gradient."""
        if self.table.values[self.table.inputs[0]].role == "index":
            self.tokens = self.tokens or weight
        if self.asked.module.holds == "embeddings":
            self.embedded.append(embedded)
        if self.asked.checkpoint and not embedded.learns and weight == self.tokens:  # enable_input_require_grads
            embedded.value.node = TapeNode(None)
            self.inputs.append(embedded)

    def mask(self, key: tuple[object, ...], elements: int, width: int) -> TapeTensor:
        """Return a mask that is created once and lives until the model returns; with recomputation, as long as that."""
        if key not in self.masks:
            self.masks[key] = TapeTensor(self.tape, self.tape.new(elements, width))
        return self.masks[key]

    def count(self, axes: Sequence[str]) -> int:
        return int(prod(shape_of(axes, self.sizes)))
