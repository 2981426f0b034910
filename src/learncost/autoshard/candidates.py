"""Parallel configurations of a training: meshes, schedules, plans and microbatches with their bytes and seconds.

A structure is sharded once, over a mesh of two devices per axis, and read as polynomials; every mesh substitutes its
sizes. Bytes of all configurations of a structure are evaluated together, as arrays of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from learncost.autoshard.account import PASSES, MeshAccount, SegmentPass
from learncost.autoshard.placed_step import StagePart
from learncost.autoshard.step import PIPELINE, ParallelConfig, PassTime, carried
from learncost.devices.cluster import Cluster
from learncost.devices.collective import MeshGroup, groups, transfer
from learncost.ir.line import Line
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import base, size_of
from learncost.ir.precision import Precision
from learncost.ir.term import Read, Term
from learncost.models.model import Model
from learncost.sharding.clauses import Clause, clauses
from learncost.sharding.mesh import mesh
from learncost.timing import Rates

TENSOR = "h g f v over tp, M over tp of values"
EXPERTS = "e over ep of experts, B over ep"


@dataclass(frozen=True)
class ContextParallel:
    """Attention over sharded sequences: clauses of cp, an extra plan, and the text for screens."""

    place: str
    plan: str
    said: str


CONTEXTS = {
    "gathered": ContextParallel("M over cp", "zigzag", ""),
    "ring": ContextParallel("M over cp", "zigzag,ring", "ring attention"),
    "ulysses": ContextParallel("h g over cp of scores, M over cp", "", "heads sharded in attention (Ulysses)"),
}
"""Gathered keys and values, ring attention with balanced shards of causal sequences, or heads sharded in place of
sequences (Jacobs et al. 2023, DeepSpeed Ulysses)."""

WHOLE = next(iter(CONTEXTS))
"""The placeholder for all of them if no sequence is sharded."""

ZERO = {"zero-1": "states", "zero-3": "weights gradients states"}
"""The roles that are sharded over data parallel devices."""

PLANS = {
    "flash,fused": "",
    "flash,fused,recompute=gelu+norm+relu+silu": "recomputes activations, norms",
    "flash,fused,recompute=block": "recomputes blocks",
}
"""The recompute plans with their text for screens; each saves less than the one before and is never faster: save all
needed activations, recompute those without a product, or save only each block's input."""

KEEPING_ALL = next(iter(PLANS))

MICROBATCHES = (1, 2, 4, 8)
CHUNKS = (2, 4)
LONG = 16384
"""The sequence length from which sequences are sharded, too."""


@dataclass(frozen=True)
class ShardedStructure:
    """A sharding structure: clauses over axes of at least one device each, the plan and the types."""

    zero: str
    plan: str
    kind: Precision
    axes: tuple[str, ...]
    text: str
    context: str = WHOLE
    again: str = ""

    def over(self, model: Model, axes: Sequence[str]) -> ShardedStructure:
        """Return the structure over these axes only, without the lines of other axes."""
        several = structures(model, [self.kind], [self.again], axes, [self.context])
        return next(each for each in several if each.zero == self.zero)

    @property
    def clauses(self) -> tuple[Clause, ...]:
        return clauses(self.text)


@dataclass(frozen=True)
class Candidate:
    """A parallel configuration with its structure, the bytes on the fullest device and the closed-form step time."""

    structure: ShardedStructure
    way: ParallelConfig
    memory: int = 0
    seconds: float = 0.0


def structures(
    model: Model, kinds: Sequence[Precision], plans: Sequence[str], axes: Sequence[str], contexts: Sequence[str] = ()
) -> list[ShardedStructure]:
    """Return the sharding structures of a model over some mesh axes."""
    result = []
    several = (contexts or tuple(CONTEXTS)) if "cp" in axes else (WHOLE,)
    for kind, plan, context, (zero, cut) in product(kinds, plans, several, ZERO.items()):
        attends = CONTEXTS[context]
        text = [f"{attends.place}, * over cp of {cut}"] if "cp" in axes else []  # tp gathers a part of it
        text += [TENSOR] if "tp" in axes else []
        text += [f"{EXPERTS}, * over ep of {cut}"] if "ep" in axes else []
        text += [f"B over dp, * over dp of {cut}"] if "dp" in axes else []
        said = ",".join(filter(None, (plan, attends.plan if "cp" in axes else "")))
        result.append(ShardedStructure(zero, said, kind, tuple(axes), ", ".join(text), context, plan))
    return result


def axes_of(model: Model, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes for a model: dp, ep for experts, cp for long sequences, tp for heads and widths."""
    counts = {base(axis) for line, _ in walk(model.table.lines) for axis in line.loops}
    axes = ["dp"]
    if sizes.get("e", 1) > 1 and any(_chosen(line) for line, _ in walk(model.table.lines)):
        axes.append("ep")
    if sizes.get("M", 1) >= LONG:
        axes.append("cp")
    if {"h", "f"} & counts & sizes.keys():
        axes.append("tp")
    return tuple(axes)


def _chosen(line: Line) -> bool:
    """Whether a line reads experts at an index that another line computes."""
    terms = (term for term in line.right if isinstance(term, Term) and len(term.axes) > 2)
    return any(isinstance(axis, Read) and axis.axis == "e" for term in terms for axis in term.axes)


def meshes(
    devices: int,
    axes: Sequence[str],
    sizes: Mapping[str, int],
    node: int,
    layers: int,
    batch: int,
    whole: Sequence[str],
) -> Iterator[dict[str, int]]:
    """Return the meshes of a number of devices: tp within a node, at most one pipeline stage per block.

    whole  the sizes that tp has to divide
    """
    most = {
        "tp": min((node, *(sizes[name] for name in whole))),
        "cp": max(1, sizes.get("M", 1) // 4096),
        "ep": sizes.get("e", 1),
    }

    def parts(axis: str, left: int) -> list[int]:
        if axis not in axes:
            return [1]
        return [size for size in _divisors(left) if size <= most[axis] and (axis == "tp" or _even(size))]

    for tp in parts("tp", devices):
        if any(sizes[name] % tp for name in whole):
            continue
        for cp in parts("cp", devices // tp):
            for ep in parts("ep", devices // tp // cp):
                if sizes.get("e", 1) % ep or min(ep, tp) > 1:  # `check_timed` refuses both
                    continue
                left = devices // tp // cp // ep
                for pp in _divisors(left):
                    dp = left // pp
                    if pp <= layers and dp * ep <= batch and batch % (dp * ep) == 0:
                        yield {PIPELINE: pp, "dp": dp, "ep": ep, "cp": cp, "tp": tp}


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0] if number <= 4096 else _of_large(number)


def _of_large(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _even(size: int) -> bool:
    return size & (size - 1) == 0


def ways(shape: Mapping[str, int], batch: int, layers: int) -> Iterator[ParallelConfig]:
    """Return the schedules and microbatches of a mesh for a batch."""
    each = batch // (shape["dp"] * shape["ep"])
    cut_mesh = {axis: size for axis, size in shape.items() if size > 1} or {"dp": 1}
    stages = shape[PIPELINE]
    for microbatch in MICROBATCHES:
        if each % microbatch:
            continue
        number = each // microbatch
        if stages == 1:
            yield ParallelConfig(cut_mesh, microbatch, number)
            continue
        yield ParallelConfig(cut_mesh, microbatch, number, "1f1b")
        yield ParallelConfig(cut_mesh, microbatch, number, "zb-h1")
        for chunks in CHUNKS:
            if number % stages == 0 and layers // stages >= chunks and layers % (stages * chunks) == 0:
                yield ParallelConfig(cut_mesh, microbatch, number, "interleaved", chunks)


class StructureCost:
    """A sharded structure and the costs of its configurations."""

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int],
        structure: ShardedStructure,
        cluster: Cluster,
        times: dict[tuple[Any, ...], dict[SegmentPass, float]] | None = None,
    ) -> None:
        self.times = {} if times is None else times  # shared by all structures with the same computation
        self.model, self.sizes, self.structure, self.cluster = model, dict(sizes), structure, cluster
        two = mesh(",".join(f"{axis}=2" for axis in structure.axes))
        batch = 2 ** sum(axis in ("dp", "ep") for axis in structure.axes)
        placed_sizes = {**sizes, "B": batch}
        self.account = MeshAccount(model, placed_sizes, two, structure.clauses, structure.kind, structure.plan)
        self._moved: dict[tuple[Any, ...], dict[str, PassTime]] = {}

    @cached_property
    def iterations(self) -> dict[str, int]:
        """Return the blocks of every loop."""
        return {
            base(line.count).partition("/")[0]: int(size_of(line.count, self.sizes))
            for line in self.model.table.lines
            if isinstance(line, Loop)
        }

    @property
    def layers(self) -> int:
        return sum(self.iterations.values())

    def sizes_of(self, way: ParallelConfig) -> dict[str, int]:
        """Return the sizes of a microbatch under a configuration, for every axis of the structure."""
        shape = {axis: way.mesh.get(axis, 1) for axis in self.structure.axes}
        batch = way.microbatch * shape.get("dp", 1) * shape.get("ep", 1)
        return self.account.sizes.filled({**self.sizes, **shape, "B": batch})

    def attends(self, shape: Mapping[str, int]) -> bool:
        """Whether this structure can compute attention on a mesh that shards sequences."""
        sizes = {**self.sizes, **{axis: shape.get(axis, 1) for axis in self.structure.axes}}
        batch = shape.get("dp", 1) * shape.get("ep", 1)
        return shape.get("cp", 1) > 1 and not self.account.sizes.divides({**sizes, "B": batch})

    def _sizes_of_all(self, several: Sequence[ParallelConfig]) -> dict[str, Any]:
        """Return the sizes of a microbatch of many configurations, as arrays."""
        shapes = {axis: np.array([way.mesh.get(axis, 1) for way in several], float) for axis in self.structure.axes}
        batch = np.array([way.microbatch for way in several], float) * shapes.get("dp", 1) * shapes.get("ep", 1)
        return self.account.sizes.filled({**self.sizes, **shapes, "B": batch})

    def memory(self, several: Sequence[ParallelConfig]) -> np.ndarray[Any, Any]:
        """Return the bytes on the fullest device of every configuration: the first or the last pipeline stage.

        Every stage is assumed to have the largest number of blocks; shown configurations are evaluated exactly.
        """
        every = self._sizes_of_all(several)
        stages = np.array([way.stages for way in several], dtype=float)
        chunks = np.array([way.chunks for way in several], dtype=float)
        number = np.array([way.microbatches for way in several], dtype=float)
        flight = np.minimum(number, stages)
        flight = np.where(chunks > 1, np.minimum(number, stages + (stages - 1) / chunks), flight)
        held = np.array([way.schedule == "zb-h1" for way in several])
        alone = stages == 1
        alone_seconds, first, last = (
            self._bytes(every, self._part(frozenset(outside), stages))
            for outside in (self._outside, (0,), self._outside[-1:])
        )
        beginning = first[0] + first[1] * (np.maximum(flight, 1) - 1) + np.where(held, first[4], first[2])
        others = np.where(chunks > 1, np.minimum(number, stages - (stages - 1) / chunks), 1.0)
        others = np.where((chunks > 1) & (number == stages), number, others)  # then all forward passes come first
        end = last[0] + np.where(held, last[3] * (flight - 1) + last[4], last[1] * (others - 1) + last[2])
        return np.asarray(np.where(alone, alone_seconds[0] + alone_seconds[2], np.maximum(beginning, end)))

    @property
    def _outside(self) -> list[int]:
        return list(range(0, 2 * len(self.account.blocks) + 1, 2))

    def _part(self, outside: frozenset[int], stages: Any) -> StagePart:
        total = float(self.layers)
        blocks = np.ceil(total / stages)
        if len(self.iterations) == 1:
            return StagePart(dict.fromkeys(self.account.blocks, blocks), outside)
        # With several kinds of blocks, a stage has them in proportion.
        return StagePart({name: blocks * iterations / total for name, iterations in self.iterations.items()}, outside)

    def _bytes(self, sizes: Mapping[str, Any], part: StagePart) -> tuple[Any, ...]:
        """The static, saved and peak bytes of a stage; and of separate weight updates."""
        values, apart = (self.account.passes.activations(sizes, part, updates_apart) for updates_apart in (False, True))
        most = np.maximum(values.forward, values.backward)
        most_apart = np.maximum(np.maximum(apart.forward, apart.backward), apart.update)
        return self.account.weights.static(sizes, part).total, values.kept, most, apart.waiting, most_apart

    def seconds(self, way: ParallelConfig, rates: Rates) -> float:
        """Return the seconds of a step if all stages are equal, as in the published bubble formulas."""
        way_sizes = self.sizes_of(way)
        times = self._computed(way, way_sizes, rates)
        moved = self._sent(way)
        stages, number = way.stages, way.microbatches
        passes = dict.fromkeys("FBW", 0.0)
        for name in passes:
            spent = replace(moved.get(name, PassTime()), shared=self.cluster.shared)
            for where, each in times.items():
                if where.letter == name:
                    seconds = each * (self.iterations_of(where.segment) if where.segment % 2 else 1)
                    spent.compute += seconds
                    spent.rounds += seconds if where.rounds else 0.0
            passes[name] = (spent.compute + spent.waiting) / stages
        total = sum(passes.values())
        bubble = (stages - 1) * total / way.chunks
        if way.schedule == "zb-h1":
            bubble = (stages - 1) * max(0.0, passes["F"] + passes["B"] - passes["W"])
        send = 0.0
        if stages > 1:
            mesh_groups = groups(way.mesh, self.cluster.devices)
            size = float(carried(self.account).at(way_sizes)) * self.account.kind.value
            send = 2 * (stages * way.chunks - 1) * transfer("send", size, mesh_groups[PIPELINE], self.cluster).seconds
        last = moved.get("O", PassTime())
        once = self._optimizer(way_sizes, rates) / stages
        exposed = max(0.0, last.beside / stages - passes["B"] - passes["W"]) + last.waits / stages
        return float(number * total + bubble + send + once + exposed)

    def iterations_of(self, segment: int) -> int:
        """Return the iterations of a loop."""
        return self.sizes[self.account.blocks[segment // 2]]

    def _computed(self, way: ParallelConfig, way_sizes: Mapping[str, int], rates: Rates) -> dict[SegmentPass, float]:
        """Return the seconds of one iteration of each segment in each pass, linear in the number of sequences."""
        inner = tuple((axis, way_sizes[axis]) for axis in self.structure.axes if axis != "dp")
        first, last = MICROBATCHES[0], MICROBATCHES[-1]
        few, many = (self._at(inner, number, rates) for number in (first, last))
        share = (way.microbatch - first) / (last - first)
        return {where: few[where] + share * (many[where] - few[where]) for where in few}

    def _at(self, inner: tuple[tuple[str, int], ...], microbatch: int, rates: Rates) -> dict[SegmentPass, float]:
        key = *self._alike(rates), inner, microbatch
        if key not in self.times:
            self._compute([(inner, microbatch)], rates)
        return self.times[key]

    def prepare(self, several: Sequence[ParallelConfig], rates: Rates) -> None:
        """Evaluate compute and communication of all configurations together, with the results of `seconds`."""
        if not several:
            return
        self._move(several)
        inners = {
            tuple((axis, way.mesh.get(axis, 1)) for axis in self.structure.axes if axis != "dp") for way in several
        }
        points = [(inner, number) for inner in sorted(inners) for number in (MICROBATCHES[0], MICROBATCHES[-1])]
        self._compute([each for each in points if (*self._alike(rates), *each) not in self.times], rates)

    def _alike(self, rates: Rates) -> tuple[Any, ...]:
        """Return the key that structures with the same computation share."""
        return self.structure.plan, self.structure.context, rates.dtype

    def _compute(self, points: Sequence[tuple[tuple[tuple[str, int], ...], int]], rates: Rates) -> None:
        if not points:
            return
        shapes = [dict(inner) for inner, _ in points]
        shape = {axis: np.array([float(each[axis]) for each in shapes]) for axis in shapes[0]}
        batch = np.array([float(number * each.get("ep", 1)) for each, (_, number) in zip(shapes, points, strict=True)])
        sizes = self.account.sizes.filled({**self.sizes, **shape, "dp": 1, "B": batch})
        times = self.account.seconds(sizes, rates, self.account.kind.values)
        along = {where: np.broadcast_to(np.asarray(each), len(points)).tolist() for where, each in times.items()}
        for number, point in enumerate(points):
            key = *self._alike(rates), *point
            self.times[key] = {where: several[number] for where, several in along.items()}

    def _sent(self, way: ParallelConfig) -> dict[str, PassTime]:
        """Return the seconds of the collectives of a microbatch, by pass."""
        if _moves(way) not in self._moved:
            self._move([way])
        return self._moved[_moves(way)]

    def _move(self, several: Sequence[ParallelConfig]) -> None:
        """Return the collective seconds of all configurations, as `_sent` does for one."""
        identical = {_moves(way): way for way in several}
        several = [way for key, way in identical.items() if key not in self._moved]
        if not several:
            return
        sizes = self._sizes_of_all(several)
        of_ways = [groups(way.mesh, self.cluster.devices) for way in several]
        links: dict[tuple[str, str], Any] = {}
        passes: dict[str, PassTime] = {}
        for sending in self.account.sendings:
            key = sending.op, sending.mesh_axis
            if key not in links:
                links[key] = self._link(sending.op, [each.get(sending.mesh_axis, MeshGroup(1, 1)) for each in of_ways])
            latency, per_byte = links[key]
            name = PASSES.get(sending.phase, "F")
            calls = 1 if name == "O" else sending.iterations.at(sizes)
            seconds = calls * (latency + per_byte * sending.payload.at(sizes))
            passes.setdefault(name, PassTime()).send(sending, seconds, several[0])
        for number, way in enumerate(several):
            self._moved[_moves(way)] = {
                name: PassTime(*(float(np.broadcast_to(each, len(several))[number]) for each in vars(spent).values()))
                for name, spent in passes.items()
            }

    def _link(self, op: str, several: Sequence[MeshGroup]) -> tuple[Any, Any]:
        """Return the seconds per call and per byte of a collective, for several groups."""
        known = {group: transfer(op, 1.0, group, self.cluster) for group in {*several}}
        latency, moving = ([getattr(known[group], name) for group in several] for name in ("latency", "moving"))
        return np.array(latency), np.array(moving)

    def _optimizer(self, way_sizes: Mapping[str, int], rates: Rates) -> float:
        whole = StagePart({name: self.sizes[name] for name in self.account.blocks}, frozenset(self._outside))
        return self.account.weights.optimizer_seconds(way_sizes, whole, rates)


def _is_apart(reading: StructureCost, shape: Mapping[str, int]) -> bool:
    """Whether a structure differs from the others on a mesh: zero-3 has devices to shard weights over, without
    pipeline stages, and context parallelism has sequences to shard.
    """
    structure = reading.structure
    sharded_over = shape[PIPELINE] == 1 and any(shape[axis] > 1 for axis in ("dp", "ep", "cp"))
    return (structure.zero == "zero-1" or sharded_over) and (structure.context == WHOLE or reading.attends(shape))


def _moves(way: ParallelConfig) -> tuple[Any, ...]:
    """Return the part of a configuration that decides the collective time of a microbatch."""
    return way.microbatch, tuple(way.mesh.items())


LEAST, MOST = 0.75, 1.03
"""The least and the largest share of its closed form's bytes that the fullest device of a step, evaluated exactly,
takes: tests/test_search.py measures them."""


def candidates(
    readings: Sequence[StructureCost],
    shapes: Sequence[Mapping[str, int]],
    batch: int,
    rates: Mapping[str, Rates],
    capacity: float,
    kept: set[tuple[Any, ...]],
) -> tuple[list[Candidate], int, Candidate | None]:
    """Return the configurations that may fit, fastest first, the number that do not, and the smallest of those.

    kept  configurations that surely fit under a plan that saves more, which is never slower; those that surely fit here
          are added
    """
    fitting: list[Candidate] = []
    others = 0
    nearest: Candidate | None = None
    for reading in readings:
        several = [way for shape in shapes if _is_apart(reading, shape) for way in ways(shape, batch, reading.layers)]
        if not several:
            continue
        for way, size in zip(several, reading.memory(several), strict=True):
            candidate = Candidate(reading.structure, way, int(size))
            if size > capacity:
                others += 1
                nearest = candidate if nearest is None or size < nearest.memory else nearest
            if size * LEAST > capacity:
                continue
            key = (
                reading.structure.zero,
                reading.structure.context,
                reading.structure.kind.name,
                str(way),
                way.schedule,
                way.chunks,
                way.microbatch,
            )
            if key not in kept:
                fitting.append(candidate)
                if size * MOST <= capacity:
                    kept.add(key)
    by_structure = {reading.structure: reading for reading in readings}
    for reading in readings:
        mine = [each.way for each in fitting if each.structure == reading.structure]
        reading.prepare(mine, rates[reading.structure.kind.values])
    timed = [
        replace(each, seconds=by_structure[each.structure].seconds(each.way, rates[each.structure.kind.values]))
        for each in fitting
    ]
    return sorted(timed, key=lambda each: each.seconds), others, nearest
