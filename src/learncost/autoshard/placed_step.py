"""A step of one microbatch, sharded once for all meshes of a structure, and the sizes of its shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.line import Line
from learncost.ir.loop import map_loops, repeats, walk
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import Precision
from learncost.ir.table import Table
from learncost.ir.value import Axes, Value
from learncost.models.model import Model, Structure
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.plan import check_segments, plan_of, planned
from learncost.passes.stages import shares_of
from learncost.procedures.optimizer import DEFAULT, StoredStates, without_gradients
from learncost.procedures.procedure import PAPER
from learncost.procedures.step import step
from learncost.sharding.clauses import PADDED_ROLES, Clause, ShardSpecs, in_words
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import Mesh
from learncost.sharding.padding import Padded, paddable, padded_of
from learncost.sharding.place import Placed, place
from learncost.sharding.zigzag import causal_axes

BACKWARD = frozenset(("backward", "weight_update", "recomputation"))
"""The phases that begin the backward pass."""


@dataclass(frozen=True)
class StepConfig:
    """The settings of a sharded step that do not depend on the sizes of the mesh.

    clauses  what is sharded over which mesh axis
    kind     the types of weights, activations, gradients and states
    plan     the passes that rewrite the step
    mode     the update rule of a procedure with several
    every    of so many blocks the first is recomputed
    """

    clauses: tuple[Clause, ...]
    kind: Precision
    plan: str = ""
    procedure: str = "bp"
    optimizer: str = DEFAULT
    mode: str = PAPER
    every: int = 1


@dataclass(frozen=True, eq=False)
class StagePart(Displayed):
    """A stage: the iterations of its loops, by their counts, and the segments outside of loops."""

    iterations: Mapping[str, Any]
    outside: frozenset[int]

    @property
    def layers(self) -> int:
        return int(sum(self.iterations.values()))

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return tuple(sorted(self.iterations.items())), self.outside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StagePart) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)


def together(parts: Iterable[StagePart]) -> StagePart:
    """Return several stages of a device as one, with the iterations of all."""
    iterations: dict[str, Any] = {}
    outside = frozenset[int]()
    for part in parts:
        iterations |= {name: iterations.get(name, 0) + number for name, number in part.iterations.items()}
        outside |= part.outside
    return StagePart(iterations, outside)


def counts_of_blocks(table: Table) -> tuple[str, ...]:
    """Return the counts of a forward table's block loops, in order."""
    return tuple(base(line.count).partition("/")[0] for line in table.repeats)


def parts_of(table: Table, sizes: Mapping[str, int], layers: Sequence[int]) -> tuple[StagePart, ...]:
    """Return the stages of a model by their numbers of blocks, as its table is cut.

    Raises `InputError` if these are not all blocks.
    """
    stages: list[tuple[dict[str, int], set[int]]] = [({}, set()) for _ in layers]
    stages[0][1].add(0)
    stage, shares = 0, shares_of(table, sizes, layers)
    for number, (repeat, pieces) in enumerate(zip(table.repeats, shares, strict=True), start=1):
        name, _, several = base(repeat.count).partition("/")
        for stage, taken, _begun in pieces:
            stages[stage][0][name] = stages[stage][0].get(name, 0) + taken * int(several or 1)
        stages[stage if number < len(shares) else -1][1].add(2 * number)
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
    whole      the step of one device
    two        the mesh over which it is placed, two devices per axis, and the sizes there
    specs      the sharding of static tensors by its clauses
    """

    model: Model
    config: StepConfig
    blocks: tuple[str, ...]
    paddable: frozenset[str]
    whole: Table
    two: Mesh
    sizes: Mapping[str, int]
    specs: ShardSpecs

    @cached_property
    def placed(self) -> Placed:
        """Return the step over two devices per axis, with named ring iterations; it is made where it is asked for."""
        placed = place(
            self.whole, self.two, self.config.clauses, self.sizes, like=self.specs.like, plan=self.config.plan
        )
        lines = map_loops(
            placed.table.lines, lambda loop: replace(loop, count=ring_steps(loop.around)) if loop.around else loop
        )
        return replace(placed, table=replace(placed.table, lines=lines))

    @property
    def kind(self) -> Precision:
        return self.config.kind

    @cached_property
    def states(self) -> StoredStates:
        """Return the weights as the optimizer sees them."""
        return StoredStates(self.model, self.whole)

    def cut(self, name: str, value: Value) -> Axes:
        """Return the axes of a shard of a value."""
        return ShardLayout(self.specs.spec(name, value)).cut(value.axes)

    def state_axes(self, name: str, axes: Axes) -> Axes:
        """Return the axes of a shard of the optimizer state of a weight."""
        return self.cut(f"{name}.state", Value(tuple(axes), "state", name))

    def is_alike(self, mesh: Mesh, sizes: Mapping[str, int]) -> bool:
        """Return whether `*` shards as much of weights, gradients and states over a mesh of other sizes.

        It does so where it shards other axes, too, if both are divisible, and one mesh axis alone shards by `*`; of two
        mesh axes, the sharded axes decide what is sent over each.
        """
        other = self.specs.over(mesh, _padded(self.model, self.config.clauses, mesh, sizes))
        values = {n: value for n, value in self.whole.known.items() if self.specs.kind(n, value)[0] in PADDED_ROLES}
        values |= {f"{name}.state": Value(self.whole.axes[name], "state", name) for name in self.whole.weights}
        for name, value in values.items():
            ours, theirs = self.specs.applied_clauses(name, value), other.applied_clauses(name, value)
            if ours == theirs:
                continue
            by_largest = sum(place >= len(self.specs.clauses) for place, _ in ours.values())
            divides = other.divides(ours) and other.divides(theirs)
            if ours.keys() != theirs.keys() or by_largest > 1 or not divides:
                return False
        return True

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
def _stepped(structure: Structure, procedure: str, optimizer: str, plan: str, mode: str) -> Table:
    """Return the step of one device, under a plan, which is placed in several ways."""
    return planned(without_gradients(step(structure.model, procedure, optimizer, mode=mode)), plan)


def stepped(model: Model, config: StepConfig) -> Table:
    """Return the step of one device; an optimizer of which only the state is known has the lines of the default one."""
    optimizer = config.optimizer if config.optimizer in OPTIMIZERS else DEFAULT
    return _stepped(Structure(model), config.procedure, optimizer, config.plan, config.mode)


def placed_step(
    model: Model, sizes: Mapping[str, int], mesh: Mesh, config: StepConfig, table: Table | None = None
) -> ShardedStep:
    """Shard a step, or the table of a pass. Raises `InputError` for sharded sizes that are not divisible."""
    # Over two devices per axis, all meshes have one structure; `*` shards what it shards over the mesh itself.
    two = Mesh(tuple((axis, min(size, 2)) for axis, size in mesh.axes))
    table, clauses = table or stepped(model, config), config.clauses
    check_segments(table, sizes)
    sizes = {**sizes, "B": mesh.devices * sizes["B"]} if "B" in sizes else sizes
    sizes = _padded(model, clauses, mesh, sizes)
    specs = ShardSpecs(table, mesh, clauses, sizes)
    for name, value in table.known.items():
        specs.applied_clauses(name, value)  # refuses sizes that are not divisible
    large = {axis: size * two.devices if size > 1 else 1 for axis, size in sizes.items()}  # it is divisible by two
    shards = ShardSpecs(table, two, clauses, large, like=specs)
    return ShardedStep(model, config, counts_of_blocks(model.table), paddable(model.table), table, two, large, shards)


def _padded(model: Model, clauses: Sequence[Clause], mesh: Mesh, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes of which those that may be padded are divisible by the mesh axes whose clauses name them."""
    parts = {
        axis: prod(mesh.sizes.get(each.mesh, 1) for each in clauses if axis in each.axes)
        for axis in paddable(model.table) & sizes.keys()
    }
    return {**sizes, **{axis: sizes[axis] + -sizes[axis] % number for axis, number in parts.items()}}


def ring_steps(mesh_axis: str) -> str:
    """Return the name in sizes of a ring's iterations: one fewer than its devices."""
    return f"{mesh_axis}-1"


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
class ShardedSizes:
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
