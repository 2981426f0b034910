"""Parallel configurations of a training: meshes, schedules, plans and microbatches with their bytes and seconds.

A structure is sharded once, over a mesh of two devices per axis, and read as polynomials; every mesh with the same
axes substitutes its sizes. All configurations of a structure are evaluated together, as arrays of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import isqrt
from typing import Any

import numpy as np

from learncost.autoshard.account import MeshAccount, SegmentPass, SymbolicCollective
from learncost.autoshard.passes import ONCE, SUMMED
from learncost.autoshard.placed_step import StagePart, StepConfig
from learncost.autoshard.step import (
    ONE_DEVICE,
    PIPELINE,
    DeviceTimes,
    ParallelConfig,
    between_stages,
    devices_of,
    once_per_step,
    order_in_flight,
    sizes_of,
    stage_seconds,
    stages_of,
    tied_sums,
)
from learncost.devices.cluster import Cluster
from learncost.devices.collective import MeshGroup, groups, transfer
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import walk
from learncost.ir.polynomial import base
from learncost.ir.precision import Precision
from learncost.ir.term import Term
from learncost.models.model import Model
from learncost.passes.plan import CHECKPOINTS, FUSED_ATTENTION
from learncost.program import pipeline
from learncost.program.pipeline import StageTimes, peak
from learncost.sharding.clauses import Clause, check_timed, clauses
from learncost.sharding.mesh import mesh
from learncost.timing.rates import Rates

TENSOR = "h g f v over tp, M over tp of values"
EXPERTS = "e over ep of experts, B over ep"


@dataclass(frozen=True)
class ContextParallel:
    """Attention over sharded sequences: clauses of cp, an extra plan, and the text for screens."""

    place: str
    plan: str
    title: str


CONTEXTS = {
    "gathered": ContextParallel("M over cp", "zigzag", ""),
    "ring": ContextParallel("M over cp", "zigzag,ring", "ring attention"),
    "ulysses": ContextParallel("h g over cp of scores, M over cp", "", "heads sharded in attention (Ulysses)"),
}
"""Gathered keys and values, ring attention with balanced shards of causal sequences, or heads sharded in place of
sequences (Jacobs et al. 2023, DeepSpeed Ulysses)."""

NO_CONTEXT_PARALLELISM = next(iter(CONTEXTS))
"""The placeholder for all of them if no sequence is sharded."""

ZERO = {"zero-1": "states", "zero-3": "weights gradients states"}
ZERO_AXES = ("dp", "ep", "cp")
"""The roles that are sharded over data parallel devices."""

PLANS = {
    FUSED_ATTENTION: "",
    f"{FUSED_ATTENTION},recompute=gelu+norm+relu+silu": "recomputes activations, norms",
    f"{FUSED_ATTENTION},{CHECKPOINTS}": "recomputes blocks",
}
"""The recompute plans with their text for screens; each saves less than the one before and is never faster: save all
needed activations, recompute those without a product, or save only each block's input."""

NO_RECOMPUTATION = next(iter(PLANS))

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
    context: str = NO_CONTEXT_PARALLELISM
    again: str = ""

    @property
    def clauses(self) -> tuple[Clause, ...]:
        return clauses(self.text)

    @property
    def config(self) -> StepConfig:
        return StepConfig(self.clauses, self.kind, self.plan)


@dataclass(frozen=True)
class Candidate:
    """A parallel configuration with its structure and the bytes on the fullest device."""

    structure: ShardedStructure
    parallel: ParallelConfig
    memory: int


def structures(
    model: Model, kinds: Sequence[Precision], plans: Sequence[str], axes: Sequence[str], contexts: Sequence[str] = ()
) -> list[ShardedStructure]:
    """Return the sharding structures of a model over some mesh axes."""
    result = []
    several = (contexts or tuple(CONTEXTS)) if "cp" in axes else (NO_CONTEXT_PARALLELISM,)
    for kind, plan, context, (zero, cut) in product(kinds, plans, several, ZERO.items()):
        attends = CONTEXTS[context]
        text = [f"{attends.place}, * over cp of {cut}"] if "cp" in axes else []  # tp gathers a part of it
        text += [TENSOR] if "tp" in axes else []
        text += [f"{EXPERTS}, * over ep of {cut}"] if "ep" in axes else []
        text += [f"B over dp, * over dp of {cut}"] if "dp" in axes else []
        plans = ",".join(filter(None, (plan, attends.plan if "cp" in axes else "")))
        result.append(ShardedStructure(zero, plans, kind, tuple(axes), ", ".join(text), context, plan))
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
    """Return whether a line reads experts at an index that another line computes."""
    terms = (term for term in line.right if isinstance(term, Term) and len(term.axes) > 2)
    return any(axis.axis == "e" for term in terms for axis in term.indexed_axes)


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
        return [size for size in _divisors(left) if size <= most[axis] and (axis == "tp" or size.bit_count() == 1)]

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
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def configs(shape: Mapping[str, int], batch: int, layers: int) -> Iterator[ParallelConfig]:
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


@dataclass(frozen=True)
class StageGroup:
    """Stages of several configurations with the same segments and loops: sizes and iterations are arrays over them.

    configs  the configuration of each stage, by its place
    """

    part: StagePart
    configs: tuple[int, ...]
    sizes: Mapping[str, Any]


@dataclass(frozen=True)
class LinkSeconds:
    """The time of a collective over the links of several configurations."""

    latency: Any
    moving: Any
    payload: Any


class ConfigLinks:
    """The transfers of collectives over the meshes of several configurations."""

    def __init__(self, cluster: Cluster, several: Sequence[Mapping[str, MeshGroup]]) -> None:
        self.cluster, self.several = cluster, several
        self.known: dict[tuple[str, str], tuple[Any, Any]] = {}

    def __call__(self, sending: SymbolicCollective, sizes: Mapping[str, Any]) -> LinkSeconds:
        key = sending.op, sending.mesh_axis
        if key not in self.known:
            groups_of = [each.get(sending.mesh_axis, ONE_DEVICE) for each in self.several]
            takes = {group: transfer(sending.op, 1.0, group, self.cluster) for group in {*groups_of}}
            columns = ([getattr(takes[group], name) for group in groups_of] for name in ("latency", "moving"))
            latency, per_byte = map(np.array, columns)
            self.known[key] = latency, per_byte
        latency, per_byte = self.known[key]
        payload = sending.payload.at(sizes)
        return LinkSeconds(latency, per_byte * payload, payload)


class StructureCost:
    """A sharded structure and the costs of its configurations, evaluated together as arrays of their sizes.

    They are those of `step.memory_of` and `step.step_of` for each configuration alone.
    """

    def __init__(self, model: Model, sizes: Mapping[str, int], structure: ShardedStructure, cluster: Cluster) -> None:
        self.model, self.sizes, self.structure, self.cluster = model, dict(sizes), structure, cluster
        two = mesh(",".join(f"{axis}=2" for axis in structure.axes))
        batch = 2 ** sum(axis in ("dp", "ep") for axis in structure.axes)
        placed_sizes = {**sizes, "B": batch}
        self.account = MeshAccount(model, placed_sizes, two, structure.config)
        self._parts: dict[int, tuple[StagePart, ...]] = {}
        self._devices: dict[tuple[int, int], tuple[StagePart, ...]] = {}
        self._allowed: dict[tuple[Any, ...], bool] = {}

    def parts(self, parallel: ParallelConfig) -> tuple[StagePart, ...]:
        """Return the stages of a configuration."""
        number = parallel.stages * parallel.chunks
        if number not in self._parts:
            self._parts[number] = stages_of(self.account, parallel, self.sizes)
        return self._parts[number]

    def devices(self, parallel: ParallelConfig) -> tuple[StagePart, ...]:
        """Return what each device of the pipeline of a configuration has of its stages."""
        key = parallel.stages, parallel.chunks
        if key not in self._devices:
            self._devices[key] = devices_of(self.parts(parallel), parallel)
        return self._devices[key]

    def allows(self, parallel: ParallelConfig) -> bool:
        """Return whether a mesh can shard the sizes, with timed collectives and blocks split into stages."""
        key = parallel.microbatch, tuple(parallel.mesh.items()), parallel.chunks
        if key not in self._allowed:
            try:
                check_timed(self.structure.clauses, parallel.mesh)
                self.parts(parallel)
                why = self.account.sizes.divides(sizes_of(self.account, parallel, self.sizes))
                self._allowed[key] = not why
            except InputError:
                self._allowed[key] = False
        return self._allowed[key]

    def _arrays(self, several: Sequence[ParallelConfig]) -> dict[str, Any]:
        """Return the sizes of a microbatch of several configurations, as arrays."""
        shapes = {
            axis: np.array([parallel.mesh.get(axis, 1) for parallel in several], float) for axis in self.structure.axes
        }
        batch = np.array([parallel.microbatch for parallel in several], float)
        for axis in self.account.sizes.batch_axes:
            batch = batch * shapes[axis]
        return {**self.sizes, **shapes, "B": batch}

    def _groups(
        self, several: Sequence[ParallelConfig], by_gradients: bool, fill: Callable[[Mapping[str, Any]], Any]
    ) -> tuple[list[tuple[str, StageGroup]], list[dict[StagePart, tuple[int, int]]]]:
        """Return the distinct stages of configurations in groups, and the place of each by group and row.

        by_gradients  whether those whose gradients live longer have separate groups; else the devices are among them
        fill          the sizes of shards
        """
        rows: dict[tuple[Any, ...], list[tuple[int, StagePart]]] = {}
        places: list[dict[StagePart, tuple[int, int]]] = []
        order: dict[tuple[Any, ...], int] = {}
        for number, parallel in enumerate(several):
            places.append({})
            for part in dict.fromkeys((*self.parts(parallel), *(() if by_gradients else self.devices(parallel)))):
                key = part.outside, tuple(part.iterations), parallel.gradients if by_gradients else SUMMED
                mine = rows.setdefault(key, [])
                places[number][part] = order.setdefault(key, len(order)), len(mine)
                mine.append((number, part))
        groups_of = []
        for (outside, names, gradients), mine in rows.items():
            ways_of = tuple(number for number, _ in mine)
            iterations = {name: np.array([float(part.iterations[name]) for _, part in mine]) for name in names}
            sizes = fill(self._arrays([several[number] for number in ways_of]))
            groups_of.append((gradients, StageGroup(StagePart(iterations, outside), ways_of, sizes)))
        return groups_of, places

    def static(self, several: Sequence[ParallelConfig]) -> list[int]:
        """Return the static bytes on the device that has the most, of every configuration; nothing is placed."""
        groups_of, places = self._groups(several, True, self.account.sizes.of_weights)
        columns = []
        for gradients, group in groups_of:
            static = self.account.weights.static(group.sizes, group.part, gradients != ONCE).total
            columns.append(np.broadcast_to(static, len(group.configs)).tolist())
        result = []
        for parallel, place in zip(several, places, strict=True):
            every_stage = [columns[place[part][0]][place[part][1]] for part in self.parts(parallel)]
            result.append(int(max(sum(every_stage[device :: parallel.stages]) for device in range(parallel.stages))))
        return result

    def memory(self, several: Sequence[ParallelConfig]) -> list[int]:
        """Return the bytes on the fullest device of every configuration."""
        groups_of, places = self._groups(several, True, self.account.sizes.filled)
        columns = []
        for gradients, group in groups_of:
            values = self.account.passes.activations(group.sizes, group.part, gradients)
            static = self.account.weights.static(group.sizes, group.part, gradients != ONCE).total
            every = (static, values.saved, values.forward, values.backward, values.waiting, values.update)
            columns.append([np.broadcast_to(each, len(group.configs)).tolist() for each in every])
        result = []
        for parallel, place in zip(several, places, strict=True):
            parts, order, most = self.parts(parallel), order_in_flight(parallel), 0
            every_stage = [[column[place[part][1]] for column in columns[place[part][0]]] for part in parts]
            statics, *values_of = map(list, zip(*every_stage, strict=True))
            for device in range(parallel.stages):
                same = device and parts[device :: parallel.stages] == parts[device - 1 :: parallel.stages]
                if not same or device not in order.lighter:
                    static = int(sum(statics[device :: parallel.stages]))
                    most = max(most, static + int(peak(order, device, *values_of)))
            result.append(most)
        return result

    def times(self, several: Sequence[ParallelConfig], rates: Rates) -> list[ConfigTime]:
        """Return the seconds of the passes of every configuration."""
        groups_of, places = self._groups(several, False, self.account.sizes.filled)
        computed, mesh_groups = self._computed(several, rates), [groups(w.mesh, self.cluster.devices) for w in several]
        columns = []
        for _, group in groups_of:
            mine = np.array(group.configs)
            moved = ConfigLinks(self.cluster, [mesh_groups[parallel] for parallel in mine])
            here = {where: each[mine] for where, each in computed.items()}
            taken = stage_seconds(
                self.account, group.part, group.sizes, several[0], DeviceTimes(here, moved, self.cluster.shared, rates)
            )
            columns.append([np.broadcast_to(sum(taken[name]), len(mine)).tolist() for name in "FBWO"])
        result = []
        for parallel, place, of_axes in zip(several, places, mesh_groups, strict=True):
            parts = self.parts(parallel)
            each = [[column[place[part][1]] for column in columns[place[part][0]]] for part in parts]
            forward, backward, update, _ = map(list, zip(*each, strict=True))
            once = [columns[place[part][0]][-1][place[part][1]] for part in self.devices(parallel)]
            local_sizes = self.account.sizes.filled(sizes_of(self.account, parallel, self.sizes))
            send = between_stages(self.account, local_sizes, of_axes, self.cluster)
            tied = tied_sums(
                self.account, local_sizes, self.devices(parallel), self.cluster, of_axes.get(PIPELINE, ONE_DEVICE)
            )
            times = StageTimes(forward, backward, update, send)
            result.append(ConfigTime(parallel, times, once_per_step(once, tied) + rates.step))
        return result

    def _computed(self, several: Sequence[ParallelConfig], rates: Rates) -> dict[SegmentPass, Any]:
        """Return the seconds of one iteration of each segment in each pass, of every configuration."""
        inner = [
            (parallel.mesh.get("cp", 1), parallel.mesh.get("ep", 1), parallel.mesh.get("tp", 1), parallel.microbatch)
            for parallel in several
        ]
        points = sorted({*inner})
        result: dict[SegmentPass, Any] = {}
        for cp in sorted({point[0] for point in points}):  # a ring of one iteration is no loop
            of_cp = {point: place for place, point in enumerate(each for each in points if each[0] == cp)}
            alone = [_one_pass(point) for point in of_cp]
            arrays = self.account.sizes.filled(self._arrays(alone))
            times, _products = self.account.computed(arrays, rates, self.account.step.kind.values)
            places = np.array([of_cp.get(point, -1) for point in inner])
            for where, each in times.items():
                values = np.broadcast_to(np.asarray(each), len(of_cp))
                result[where] = np.where(places >= 0, values[places], result.get(where, 0.0))
        return result


def _one_pass(point: tuple[int, int, int, int]) -> ParallelConfig:
    """Return one pass over the parts of a batch, which computes as long for any number of them."""
    cp, ep, tp, microbatch = point
    return ParallelConfig({"ep": ep, "cp": cp, "tp": tp}, microbatch)


@dataclass(frozen=True)
class ConfigTime:
    """The seconds of a configuration: of its stages, and of what runs once per step."""

    parallel: ParallelConfig
    stages: StageTimes
    once: float

    def _by(self, seconds_of: Callable[..., float]) -> float:
        parallel = self.parallel
        return (
            seconds_of(parallel.schedule, parallel.stages, parallel.microbatches, parallel.chunks, self.stages)
            + self.once
        )

    @property
    def least(self) -> float:
        """Return a lower bound of the seconds of a step."""
        return self._by(pipeline.least_seconds)

    @cached_property
    def seconds(self) -> float:
        """Return the seconds of a step."""
        return self._by(pipeline.seconds)


def sharded_axes(shape: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of a mesh with several devices, without the pipeline's; dp for one device."""
    return tuple(axis for axis, size in shape.items() if size > 1 and axis != PIPELINE) or ("dp",)


def is_apart(structure: ShardedStructure, shape: Mapping[str, int]) -> bool:
    """Return whether a structure differs from zero-1 on a mesh: zero-3 has devices to shard over, and no stages."""
    sharded_over = shape[PIPELINE] == 1 and any(shape[axis] > 1 for axis in ZERO_AXES)
    return structure.zero == "zero-1" or sharded_over
