"""The sizes of a sharded step: which axes are sharded over which mesh axes, and the shard sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from learncost.autoshard.placed_step import ShardedStep, StagePart, ring_steps
from learncost.ir.loop import repeats
from learncost.ir.polynomial import base, size_of
from learncost.passes.plan import plan_of
from learncost.sharding.clauses import in_words
from learncost.sharding.padding import Padded, padded_of
from learncost.sharding.zigzag import causal_axes


class FilledSizes(dict[str, Any]):
    """Sizes with those of shards."""


def _sharded(axes: Iterable[str]) -> frozenset[str]:
    return frozenset(base(axis) for axis in axes if "/" in axis and not axis.partition("/")[2][0].isdigit())


def _with_shards(sizes: Mapping[str, Any], axes: Iterable[str]) -> FilledSizes:
    result = FilledSizes(sizes)
    for axis in axes:
        name, *over = axis.split("/")
        number: Any = 1
        for each in over:
            number = number * (int(each) if each.isdigit() else sizes.get(each, 1))
        result[axis] = -(-size_of(name, sizes) // number)
    return result


@dataclass(frozen=True)
class CutSizes:
    """The sharded sizes that follow from the sizes of a step and its mesh."""

    step: ShardedStep

    @cached_property
    def _rings(self) -> tuple[str, ...]:
        """Return the mesh axes with ring communication."""
        return tuple(dict.fromkeys(repeat.around for repeat in repeats(self.step.placed.table.lines) if repeat.around))

    @cached_property
    def ring_steps(self) -> frozenset[str]:
        """Return the names in sizes of the ring iterations."""
        return frozenset(map(ring_steps, self._rings))

    @cached_property
    def sharded_over(self) -> tuple[str, ...]:
        """Return every sharded axis of the placed step, such as f/tp."""
        known = self.step.placed.table.known.values()
        return tuple(sorted({*_sharded(axis for value in known for axis in value.axes), *self._of_weights}))

    @cached_property
    def _of_weights(self) -> frozenset[str]:
        """Return the sharded axes of weights, their gradients and states."""
        step, whole = self.step, self.step.whole
        names = [name for weight in whole.weights for name in (weight, f"d{weight}") if name in whole.known]
        axes = {axis for name in names for axis in step.cut(name, whole.known[name])}
        axes |= {axis for name in whole.weights for axis in step.state_axes(name, whole.axes[name])}
        return _sharded({*axes, *(axis for n, axes in step.states.axes.items() for axis in step.state_axes(n, axes))})

    @cached_property
    def _named(self) -> tuple[str, ...]:
        """Return the sharded axes of the step's values, whose size must be divisible where clauses name them."""
        known = self.step.whole.known
        return tuple(sorted(_sharded(axis for name, value in known.items() for axis in self.step.cut(name, value))))

    @cached_property
    def _in_zigzag(self) -> frozenset[str]:
        """Return the sizes that are in zigzag order where they are sharded: each device has two ranges of them."""
        has = any(plan.name == "zigzag" for plan, _ in plan_of(self.step.config.plan))
        return causal_axes(self.step.whole) if has else frozenset()

    def divides(self, sizes: Mapping[str, int]) -> str:
        """Return why sizes cannot be sharded; nothing if they can.

        `*` shards flat parts, the last one padded; a vocabulary is padded.
        """
        for name, over, size, number in self._parts(sizes):
            if size % number and name not in self.step.paddable:
                parts = "ranges in zigzag over" if name in self._in_zigzag else "devices of"
                return (
                    f"{in_words(name)} is {size:,}, which is not divisible by the {number:,} {parts} "
                    f"{' and '.join(over)}: the next divisible size is {-(-size // number) * number:,}"
                )
        return ""

    def cut_over(self, mesh_axis: str) -> tuple[str, ...]:
        """Return the sizes that a mesh axis must divide, as clauses name them, without padded ones."""
        named = {axis for clause in self.step.specs.clauses if clause.mesh == mesh_axis for axis in clause.axes}
        axes = (axis.split("/") for axis in self._named)
        names = (name for name, *over in axes if mesh_axis in over and name in named - self.step.paddable)
        return tuple(dict.fromkeys(names))

    def padded(self, sizes: Mapping[str, int]) -> tuple[Padded, ...]:
        """Return the padded sizes."""
        parts = {name: (size, number) for name, _, size, number in self._parts(sizes) if name in self.step.paddable}
        return padded_of((name, *cut) for name, cut in parts.items())

    def _parts(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, list[str], int, int]]:
        """Yield the axes that clauses name, the mesh axes, the sizes and the numbers of shards."""
        named = {(axis, clause.mesh) for clause in self.step.specs.clauses for axis in clause.axes}
        for axis in self._named:
            name, *over = axis.split("/")
            over = [each for each in over if (name, each) in named]
            number = prod(sizes.get(each, 1) for each in over)
            yield name, over, int(size_of(name, sizes)), number * (2 if number > 1 and name in self._in_zigzag else 1)

    def filled(self, sizes: Mapping[str, Any]) -> FilledSizes:
        """Return sizes with those of every sharded axis, such as f/tp, and the ring iterations.

        A size that is not divisible counts as its largest shard.
        """
        if isinstance(sizes, FilledSizes):
            return sizes
        rings = {ring_steps(axis): sizes.get(axis, 1) - 1 for axis in self._rings}
        return _with_shards({**sizes, **rings}, self.sharded_over)

    def of_weights(self, sizes: Mapping[str, Any]) -> FilledSizes:
        """Return sizes with those of the sharded axes of weights alone, for which nothing has to be placed."""
        return _with_shards(sizes, self._of_weights)

    @cached_property
    def batch_axes(self) -> tuple[str, ...]:
        """Return the mesh axes that shard the batch."""
        return tuple(
            dict.fromkeys(each for axis in self._named if axis.startswith("B/") for each in axis.split("/")[1:])
        )

    def of_stage(self, sizes: Mapping[str, Any], part: StagePart) -> dict[str, Any]:
        """Return the sizes of a stage, with the iterations of its loops."""
        iterations = {name: part.iterations.get(name, 0) for name in self.step.blocks if not name.isdigit()}
        return {**self.filled(sizes), **iterations}
