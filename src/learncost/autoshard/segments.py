"""A model's table in segments: what stands before, between and behind its repeats of blocks, and the repeats.

Segment 2 i is what stands outside of the repeats after i of them, segment 2 r + 1 is repeat r; the backward pass goes
through them the other way round. A stage of a pipeline has segments that follow each other, and of a repeat some turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, size_of
from learncost.ir.table import Table

BACKWARD = frozenset(("backward", "weight_update", "recomputation"))
"""Macro-operations that begin the way back."""


@dataclass(frozen=True, eq=False)
class StagePart(Displayed):
    """A stage: the turns of every repeat that it has, by its count, and the segments outside of repeats."""

    iterations: Mapping[str, Any]
    outside: frozenset[int]

    @property
    def layers(self) -> int:
        return int(sum(self.iterations.values()))

    def _key(self) -> tuple[object, ...]:
        return tuple(sorted(self.iterations.items())), self.outside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StagePart) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def blocks_of(table: Table) -> tuple[str, ...]:
    """The counts of a forward table's repeats of blocks, in order."""
    return tuple(base(line.count).partition("/")[0] for line in table.repeats)


def parts_of(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> tuple[StagePart, ...]:
    """The stages of a model by how many blocks each has: `passes/stages.py` cuts its table so.

    Raises `InputError` where the blocks are not all that there are.
    """
    counts = [int(size_of(repeat.count, sizes)) for repeat in table.repeats]
    if sum(layers) != sum(counts) or min(layers, default=0) < 0:
        text = ", ".join(map(str, layers))
        raise InputError(f"stages of {text} blocks are not the {sum(counts)} that the model has")
    stages: list[tuple[dict[str, int], set[int]]] = [({}, set()) for _ in layers]
    stage, left = 0, layers[0] if layers else 0
    stages[0][1].add(0)
    for number, (repeat, iterations) in enumerate(zip(table.repeats, counts, strict=True)):
        name, _, several = base(repeat.count).partition("/")
        while iterations:
            while not left:
                stage += 1
                left = layers[stage]
            taken = min(left, iterations)
            stages[stage][0][name] = stages[stage][0].get(name, 0) + taken * int(several or 1)
            left, iterations = left - taken, iterations - taken
        stages[stage if number < len(counts) - 1 else -1][1].add(2 * number + 2)
    return tuple(StagePart(dict(iterations_of), frozenset(outside)) for iterations_of, outside in stages)


class Walker:
    """Tells of lines, in the order in which they run, the segment that they stand in."""

    def __init__(self, blocks: Sequence[str]) -> None:
        self.blocks = tuple(blocks)
        self.passed: list[str] = []  # the repeats of blocks that were gone through, on the way
        self.back = False

    def segment(self, phase: str, counts: Iterator[str] | Sequence[str]) -> int:
        """The segment of the next line.

        macro   its macro-operation; counts, those of the repeats around it
        """
        if phase in BACKWARD and not self.back:
            self.back, self.passed = True, []
        names = (base(count).partition("/")[0] for count in counts)
        if (name := next((each for each in names if each in self.blocks), "")) in self.blocks:
            if name not in self.passed:
                self.passed.append(name)
            return 2 * self.blocks.index(name) + 1
        done = len(self.passed)
        return 2 * (len(self.blocks) - done if self.back else done)
