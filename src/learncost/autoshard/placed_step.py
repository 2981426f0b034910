"""A step of one microbatch, placed once for all meshes of a structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import Precision
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.clauses import Clause, ShardSpecs
from learncost.sharding.mesh import Mesh
from learncost.sharding.padding import paddable
from learncost.sharding.place import Placed, place

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


@dataclass(frozen=True)
class ShardedStep:
    """A placed step with what it was placed of.

    model      its table is that of one device
    blocks     the counts of its repeats of blocks
    paddable   axes that are filled up where they do not divide
    placed     over two devices an axis, with the turns of rings by name
    homes      where its clauses have what is held
    """

    model: Model
    kind: Precision
    optimizer: str
    blocks: tuple[str, ...]
    paddable: frozenset[str]
    placed: Placed
    specs: ShardSpecs

    def width(self, name: str, role: str) -> int:
        """Bytes of a number of an array of the placed table, by the role of what it holds."""
        if self.is_score(name):
            return self.kind.scores
        weight = min(self.kind.weight, self.kind.value)  # weights are sent in the type that they are multiplied in
        widths = {"weights": weight, "gradients": self.kind.gradient, "states": 4}
        return widths.get(role, self.kind.value)

    def is_score(self, name: str) -> bool:
        return not self.placed.scores.isdisjoint((name, self.placed.holds.get(name, name)))

    def reading(self, table: Table) -> Iterator[tuple[Line, int, list[str]]]:
        """The lines of a table, each with its segment and what it reads; of a turn's slice the stack is told."""
        walker = Walker(self.blocks)

        def visit(
            lines: Sequence[Line | Loop], counts: tuple[str, ...], stacks: Mapping[str, str]
        ) -> Iterator[tuple[Line, int, list[str]]]:
            for line in lines:
                if isinstance(line, Loop):
                    inner = {**stacks, **{inside: stacks.get(outer, outer) for inside, outer in line.each}}
                    yield from visit(line.lines, (*counts, line.count), inner)
                else:
                    segment = walker.segment(line.meta.phase, counts)
                    yield line, segment, [stacks.get(name, name) for name in line.reads]

        return visit(table.lines, (), {})

    def within(self, segments: Sequence[int], part: StagePart) -> bool:
        """Whether a stage has one of these segments."""
        return any(
            segment in part.outside if segment % 2 == 0 else self.blocks[segment // 2] in part.iterations
            for segment in segments
        )


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
    """Place a step. Raises `InputError` for what clauses cut and does not divide."""
    # Placed over two devices an axis, all meshes have one structure; what `*` cuts lies in flat parts, padded.
    two = Mesh(tuple((axis, min(size, 2)) for axis, size in mesh.axes))
    filled_up = paddable(model.table)
    sizes = {**sizes, "B": mesh.devices * sizes["B"]}
    sizes |= {axis: sizes[axis] + -sizes[axis] % mesh.devices for axis in filled_up & sizes.keys()}
    stepped = planned(without_gradients(step(model, procedure, optimizer)), plan, sizes)
    specs = ShardSpecs(stepped, mesh, clauses, sizes)
    for name, value in stepped.known.items():
        specs.winners(name, value)  # refuses what does not divide
    large = {axis: size * two.devices if size > 1 else 1 for axis, size in sizes.items()}  # two divide it, whatever
    placed = place(stepped, two, clauses, large)
    return ShardedStep(
        model,
        kind,
        optimizer,
        blocks_of(model.table),
        filled_up,
        replace(placed, table=replace(placed.table, lines=_of_any_ring(placed.table.lines))),
        ShardSpecs(stepped, two, clauses, large),
    )


def turns_round(mesh_axis: str) -> str:
    """What sizes call the turns of a ring of devices: one fewer than they are."""
    return f"{mesh_axis}-1"


def _of_any_ring(lines: Sequence[Statement]) -> tuple[Statement, ...]:
    """The lines with the turns of their rings by name, where they were placed over two devices."""
    return tuple(
        replace(line, lines=_of_any_ring(line.lines), count=turns_round(line.around) if line.around else line.count)
        if isinstance(line, Loop)
        else line
        for line in lines
    )
