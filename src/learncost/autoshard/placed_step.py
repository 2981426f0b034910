"""A step of one microbatch, sharded once for all meshes of a structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, map_loops, walk
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import Precision
from learncost.ir.table import Table
from learncost.models.model import Model, Structure
from learncost.passes.plan import check_segments, planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.clauses import Clause, ShardSpecs
from learncost.sharding.mesh import Mesh
from learncost.sharding.padding import paddable
from learncost.sharding.place import Placed, place

BACKWARD = frozenset(("backward", "weight_update", "recomputation"))
"""The phases that begin the backward pass."""


@dataclass(frozen=True, eq=False)
class StagePart(Displayed):
    """A stage: the iterations of its loops, by their counts, and the segments outside of loops."""

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
    """Return the counts of a forward table's block loops, in order."""
    return tuple(base(line.count).partition("/")[0] for line in table.repeats)


def parts_of(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> tuple[StagePart, ...]:
    """Return the stages of a model by their numbers of blocks, as `passes/stages.py` splits its table.

    Raises `InputError` if these are not all blocks.
    """
    counts = [int(size_of(repeat.count, sizes)) for repeat in table.repeats]
    if sum(layers) != sum(counts) or min(layers, default=0) < 0:
        text = ", ".join(map(str, layers))
        raise InputError(f"stages of {text} blocks do not add up to the model's {sum(counts)} blocks")
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
    """Finds the segment of each line, in execution order."""

    def __init__(self, blocks: Sequence[str]) -> None:
        self.blocks = tuple(blocks)
        self.passed: list[str] = []  # the block loops so far
        self.back = False

    def segment(self, phase: str, counts: Iterator[str] | Sequence[str]) -> int:
        """Return the segment of the next line.

        phase   its phase; counts, those of the surrounding loops
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


@dataclass(frozen=True)
class ShardedStep:
    """A sharded step with the model that it was derived from.

    model      its table is that of one device
    blocks     the counts of its block loops
    paddable   axes that are padded if they are not divisible
    placed     the step over two devices per axis, with named ring iterations
    specs      the sharding of static tensors by its clauses
    """

    model: Model
    kind: Precision
    optimizer: str
    blocks: tuple[str, ...]
    paddable: frozenset[str]
    placed: Placed
    specs: ShardSpecs

    def is_score(self, name: str) -> bool:
        return not self.placed.scores.isdisjoint((name, self.placed.holds.get(name, name)))

    def reading(self, table: Table) -> Iterator[tuple[Line, int, list[str]]]:
        """Yield the lines of a table with segment and operands; a slice is replaced by its stack."""
        walker = Walker(self.blocks)
        for line, nest in walk(table.lines):
            segment = walker.segment(line.meta.phase, nest.counts)
            yield line, segment, [nest.stacks.get(name, name) for name in line.reads]

    def within(self, segments: Sequence[int], part: StagePart) -> bool:
        """Return whether a stage has one of these segments."""
        return any(
            segment in part.outside if segment % 2 == 0 else self.blocks[segment // 2] in part.iterations
            for segment in segments
        )


@lru_cache(maxsize=16)
def _stepped(structure: Structure, procedure: str, optimizer: str, plan: str) -> Table:
    """The step of one device, under a plan, which is placed in several ways."""
    return planned(without_gradients(step(structure.model, procedure, optimizer)), plan)


def placed_step(
    model: Model,
    sizes: Mapping[str, int],
    mesh: Mesh,
    clauses: Sequence[Clause],
    kind: Precision,
    plan: str,
    procedure: str,
    optimizer: str,
) -> ShardedStep:
    """Shard a step. Raises `InputError` for sharded sizes that are not divisible."""
    # Over two devices per axis, all meshes have one structure; `*` shards flat padded parts.
    two = Mesh(tuple((axis, min(size, 2)) for axis, size in mesh.axes))
    filled_up = paddable(model.table)
    sizes = {**sizes, "B": mesh.devices * sizes["B"]}
    sizes |= {axis: sizes[axis] + -sizes[axis] % mesh.devices for axis in filled_up & sizes.keys()}
    stepped = _stepped(Structure(model), procedure, optimizer, plan)
    check_segments(stepped, sizes)
    specs = ShardSpecs(stepped, mesh, clauses, sizes)
    for name, value in stepped.known.items():
        specs.winners(name, value)  # refuses sizes that are not divisible
    large = {axis: size * two.devices if size > 1 else 1 for axis, size in sizes.items()}  # it is divisible by two
    placed = place(stepped, two, clauses, large)
    return ShardedStep(
        model,
        kind,
        optimizer,
        blocks_of(model.table),
        filled_up,
        replace(placed, table=replace(placed.table, lines=map_loops(placed.table.lines, _of_any_ring))),
        ShardSpecs(stepped, two, clauses, large),
    )


def ring_steps(mesh_axis: str) -> str:
    """Return the name in sizes of a ring's iterations: one fewer than its devices."""
    return f"{mesh_axis}-1"


def _of_any_ring(loop: Loop) -> Loop:
    """Return a loop of lines that are sharded over two devices, with named ring iterations."""
    return replace(loop, count=ring_steps(loop.around)) if loop.around else loop
