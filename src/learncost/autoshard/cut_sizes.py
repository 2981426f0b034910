"""The sizes of a placed step: what is cut, over what, and how large its parts are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from learncost.autoshard.placed_step import ShardedStep, StagePart, turns_round
from learncost.ir.loop import repeats
from learncost.ir.polynomial import base, size_of
from learncost.sharding.padding import Padded, padded_of


@dataclass(frozen=True)
class CutSizes:
    """What follows of the sizes of a step, of a mesh among them."""

    step: ShardedStep

    @cached_property
    def _rings(self) -> tuple[str, ...]:
        """The axes of the mesh round which parts go."""
        return tuple(dict.fromkeys(repeat.around for repeat in repeats(self.step.placed.table.lines) if repeat.around))

    @cached_property
    def turns_round(self) -> frozenset[str]:
        """What sizes call the turns of its rings."""
        return frozenset(map(turns_round, self._rings))

    @cached_property
    def sharded_over(self) -> tuple[str, ...]:
        """Every axis as it is cut, such as f/tp: what has to divide."""
        table = self.step.placed.table
        axes = {axis for value in table.known.values() for axis in value.axes}
        return tuple(sorted({base(axis) for axis in axes if "/" in axis and not axis.partition("/")[2][0].isdigit()}))

    def divides(self, sizes: Mapping[str, int]) -> str:
        """Why sizes cannot be cut so; nothing where they can.

        What `*` cuts lies in flat parts, the last one padded; a vocabulary is filled up.
        """
        for name, over, size, number in self._parts(sizes):
            if size % number and name not in self.step.paddable:
                return (
                    f"{name} is {size:,} and cannot be cut over {' and '.join(over)}, {number:,} devices: the next "
                    f"size that can is {-(-size // number) * number:,}"
                )
        return ""

    def cut_over(self, mesh_axis: str) -> tuple[str, ...]:
        """What an axis of the mesh has to divide, as clauses cut it by name; what is filled up aside."""
        named = {axis for clause in self.step.specs.clauses if clause.mesh == mesh_axis for axis in clause.axes}
        axes = (axis.split("/") for axis in self.sharded_over)
        names = (name for name, *over in axes if mesh_axis in over and name in named - self.step.paddable)
        return tuple(dict.fromkeys(names))

    def padded(self, sizes: Mapping[str, int]) -> tuple[Padded, ...]:
        """What is filled up."""
        parts = {name: (size, number) for name, _, size, number in self._parts(sizes) if name in self.step.paddable}
        return padded_of((name, *cut) for name, cut in parts.items())

    def _parts(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, list[str], int, int]]:
        """Axes that clauses name, over what each is cut, their sizes, and into how many parts."""
        named = {(axis, clause.mesh) for clause in self.step.specs.clauses for axis in clause.axes}
        for axis in self.sharded_over:
            name, *over = axis.split("/")
            over = [each for each in over if (name, each) in named]
            stretches = 2 if over and name in (self.step.placed.table.zigzag or ()) else 1
            number = prod(sizes.get(each, 1) for each in over)
            yield name, over, int(size_of(name, sizes)), number * (stretches if number > 1 else 1)

    def filled(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes with those of every cut axis, such as f/tp, and the turns of rings.

        Of what does not divide it is the largest part.
        """
        filled_sizes = dict(sizes)
        if self.sharded_over and self.sharded_over[0] in filled_sizes:
            return filled_sizes
        filled_sizes |= {turns_round(axis): sizes.get(axis, 1) - 1 for axis in self._rings}
        for axis in self.sharded_over:
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
        return tuple(
            dict.fromkeys(each for axis in self.sharded_over if axis.startswith("B/") for each in axis.split("/")[1:])
        )

    def of_stage(self, sizes: Mapping[str, Any], part: StagePart) -> dict[str, Any]:
        """The sizes of a stage: its turns are those of its repeats."""
        return {**self.filled(sizes), **{name: part.iterations.get(name, 0) for name in self.step.blocks}}
