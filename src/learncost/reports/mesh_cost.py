"""A step over a mesh for cost, memory and place: sharded axes and the traffic of each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import ONCE
from learncost.autoshard.placed_step import StepConfig
from learncost.autoshard.step import ParallelConfig, carried, devices_of, sends_of, sizes_of, stages_of, tied_gradients
from learncost.cost_models import price
from learncost.devices.collective import kind_of
from learncost.ir.dataclass import HIDDEN, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import lines_in_rings, walk
from learncost.ir.polynomial import shape_of, sharded_over, whole
from learncost.ir.table import Table
from learncost.models.model import Model, Structure
from learncost.passes.plan import planned
from learncost.passes.stages import iterations_of
from learncost.procedures.accumulation import check_accumulates
from learncost.procedures.optimizer import check_placed, default_optimizer, without_gradients
from learncost.procedures.staged import staged
from learncost.procedures.step import step
from learncost.program.checkpoints import fewer_recomputed
from learncost.reports.microbatches import DEFAULT_OVER_STAGES, in_microbatches
from learncost.reports.request import Request
from learncost.reports.run import PreparedRun, prepare
from learncost.reports.search.spread import MeshSharding, mesh_sharding
from learncost.reports.sheet import number, size_of
from learncost.sharding.clauses import Clause
from learncost.sharding.collective import Collective, collectives, widths_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.padding import Padded, filled_up
from learncost.sharding.place import Placed, place
from learncost.sharding.stages import Pipeline, pipeline_of, place_stages

RING = "in a ring: 2(p-1)/p of an all_reduce, (p-1)/p of the others"
"""The convention of the bytes that a device sends."""

FEW = 0.01
"""The share of the weights' elements up to which replicated weights are not listed: biases."""


@dataclass(frozen=True)
class AxisTraffic:
    """The traffic of one kind of collective that a device sends in a step along an axis of the mesh.

    runs     how often
    payload  bytes of all runs: of the larger of what goes in and what comes out, on one device
    ring     bytes of these that a device sends in a ring
    """

    mesh_axis: str
    op: str
    runs: int
    payload: int
    ring: int


@dataclass(frozen=True)
class OverMesh(Serializable):
    """The step of each device of a mesh, and its traffic.

    Attributes
    ----------
    placed
        The table that each device runs, and that of one device that it stands for.
    collectives
        A record for each line that sends: the collective, the axis of the mesh, bytes, how often, and why.
    sizes
        Of every axis, of all devices together.
    padded
        Which of them are larger than the model's, so that each device has an equal part.
    pipeline
        The pipeline of whose stages one is shown; None without one.
    stage
        That stage, its schedule and its microbatches, in words; empty without a pipeline.
    parallel
        The mesh with its microbatches and schedule; None of a step of another kind.
    device, places
        Of a pipeline, the device of these stages, and the places of the lines that they run; None: all.
    """

    placed: Placed = field(metadata=HIDDEN)
    collectives: tuple[Collective, ...] = field(metadata=Key(after="sent").field)
    sizes: Mapping[str, int] = field(default_factory=dict, metadata=HIDDEN)
    padded: tuple[Padded, ...] = field(default=(), metadata=Key(after="clauses").field)
    pipeline: Pipeline | None = field(default=None, metadata=HIDDEN)
    stage: str = field(default="", metadata=Key(optional=True, after="clauses").field)
    parallel: ParallelConfig | None = field(default=None, metadata=HIDDEN)
    device: int | None = field(default=None, metadata=HIDDEN)
    places: frozenset[int] | None = field(default=None, metadata=HIDDEN)

    def runs(self, place: int, phase: str) -> int:
        """Return how often a line of a phase runs for all microbatches: once after them, or not on this device."""
        return 0 if self.places is not None and place not in self.places else self.times(phase)

    def times(self, phase: str) -> int:
        """Return how often a phase runs for all microbatches: the optimizer step once after them."""
        return 1 if phase == "optimizer_step" or self.parallel is None else self.parallel.microbatches

    def of_microbatch(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes with the batch of a microbatch of all devices."""
        return {**sizes, "B": sizes["B"] // self.parallel.microbatches} if self.parallel and "B" in sizes else {**sizes}

    @property
    def grid(self) -> Mesh:
        """Return the mesh, with the axis of the pipeline."""
        stages = ((self.pipeline.axis, self.pipeline.stages),) if self.pipeline else ()
        return Mesh((*stages, *self.placed.mesh.axes))

    @property
    def mesh(self) -> str:
        """The text of the mesh, such as dp=2,tp=4."""
        return str(self.grid)

    @property
    @Key("mesh", after="placed")
    def mesh_sizes(self) -> Mapping[str, int]:
        """Return the number of devices along each axis."""
        return self.grid.sizes

    @property
    @Key(after="mesh_sizes")
    def devices(self) -> int:
        """The number of devices."""
        return self.grid.devices

    @property
    @Key(after="devices")
    def clauses(self) -> tuple[str, ...]:
        """The sharding rules of the placement."""
        stages = (str(self.pipeline.clause),) if self.pipeline else ()
        return (*stages, *map(str, self.placed.clauses))

    @cached_property
    @Key("sent_per_device")
    def sent(self) -> tuple[AxisTraffic, ...]:
        """The traffic of a device by mesh axis and collective."""
        groups: dict[tuple[str, str], list[Collective]] = {}
        for collective in self.collectives:
            groups.setdefault((collective.mesh_axis, collective.op), []).append(collective)
        order = self.grid.names
        rows = []
        for (axis, op), several in groups.items():
            runs = sum(collective.times for collective in several)
            payload = sum(collective.payload_bytes * collective.times for collective in several)
            ring = sum(
                in_a_ring(op, collective.payload_bytes * collective.times, collective.devices) for collective in several
            )
            rows.append(AxisTraffic(axis, op, runs, payload, ring))
        return tuple(sorted(rows, key=lambda row: (order.index(row.mesh_axis), -row.payload)))

    @property
    def payloads(self) -> dict[int, int]:
        """The payload bytes of all executions of a collective, by the position of its line."""
        return {collective.place: collective.payload_bytes * collective.times for collective in self.collectives}

    @cached_property
    def rounds(self) -> frozenset[int]:
        """Return the positions of the lines in ring iterations."""
        inside = {id(line) for line in lines_in_rings(self.placed.table.lines)}
        return frozenset(place for place, (line, _) in enumerate(walk(self.placed.table.lines)) if id(line) in inside)

    @property
    def convention(self) -> str:
        """The description of `ring` in `sent`."""
        return RING + (", all of a pass_on" if any(row.op == "pass_on" for row in self.sent) else "")

    @property
    def sentence(self) -> str:
        """The sentence on the traffic of a device."""
        if self.stage and not self.sent:
            return f"{self.stage} {DEFAULT_OVER_STAGES} learncost run-cost shows the traffic and time of the stages."
        if not self.sent:
            return "There is no communication."
        axes: dict[str, int] = {}
        for row in self.sent:
            axes[row.mesh_axis] = axes.get(row.mesh_axis, 0) + row.ring
        parts = ", ".join(f"{size_of(size)} over {axis}" for axis, size in axes.items())
        payload = sum(row.payload for row in self.sent)
        sends = f"{self.stage} It" if self.stage else "Each device"
        return f"{sends} sends {parts} per step, {self.convention}; the payload is {size_of(payload)}."

    @property
    def sharding(self) -> str:
        """The sentence on the sharding."""
        how = "Repeated on" if self.repeated == self.placed.mesh.names and not self.pipeline else "Sharded over"
        return f"{how} {number(self.devices)} devices, {self.mesh}: {self.cut_by}."

    @property
    def repeated(self) -> tuple[str, ...]:
        """The axes of the mesh over which nothing is sharded or sent: all of their devices compute the same."""
        axes = {axis for value in self.placed.table.known.values() for axis in value.axes}
        used = {name for axis in axes for name in sharded_over(axis)} | {each.mesh_axis for each in self.collectives}
        return tuple(name for name, size in self.placed.mesh.axes if size > 1 and name not in used)

    @property
    def cut_by(self) -> str:
        """The sharding rules, the padded axes, and the axes in zigzag order."""
        zigzag = [f"{axis} in zigzag over {' '.join(over)}" for axis, over in self.placed.zigzag.items()]
        same = [f"nothing of this step is sharded over {name}, whose devices all compute it" for name in self.repeated]
        return "; ".join((*self.clauses, *zigzag, *map(str, self.padded), *self._filled, *self._undivided, *same))

    @property
    def _filled(self) -> Iterator[str]:
        """Return the axes that are padded because they are not divisible by the mesh, and the padding that is sent."""
        wider = [f"{axis} {number(self.sizes[axis])} to {number(size)}" for axis, size in self.filled.items()]
        if wider:
            zeros = sum(each.filled_bytes * each.times for each in self.collectives)
            sent = f", {size_of(zeros)} of the payload" if zeros else ""
            yield f"shards are padded with zeros{sent}: {', '.join(wider)}"

    @property
    @Key(after="padded")
    def filled(self) -> dict[str, int]:
        """The axes of weights that the mesh does not divide, with their padded global sizes."""
        parts = sorted(self.placed.filled, key=lambda axis: axis.count("/"))
        mesh = self.placed.mesh.sizes
        return {
            whole(axis): self.placed.filled[axis] * prod(mesh[name] for name in sharded_over(axis))
            for axis in reversed(parts)
        }

    @property
    @Key(after="padded")
    def undivided(self) -> dict[str, list[str]]:
        """Return the weights that no dimension of can be sharded over each mesh axis."""
        return {mesh_axis: [*names] for mesh_axis, names in self.placed.undivided.items()}

    @property
    def _undivided(self) -> Iterator[str]:
        """Weights of a single place, which an axis of the mesh should cut, where they are more than a few."""
        table = self.placed.whole
        elements = {name: prod(shape_of(table.axes[name], self.sizes)) for name in table.weights}
        for mesh_axis, names in self.placed.undivided.items():
            share = sum(elements[name] for name in names) / sum(elements.values())
            if share > FEW:
                listed = f"{', '.join(names)}, {share:.0%} of the weights"
                which = "all weights" if len(names) == len(elements) else listed
                yield f"replicated along {mesh_axis}, since no dimension is larger than 1: {which}"

    @property
    def of_model(self) -> dict[str, int]:
        """The sizes of the model without padding."""
        return {**self.sizes, **{each.axis: each.size for each in self.padded}}

    @property
    def without_communication(self) -> dict[str, Any]:
        """Return what is sharded over what as data, without what is sent."""
        sent = ("sent_per_device", "collectives")
        return {name: value for name, value in self.to_dict().items() if name not in sent}


def in_a_ring(op: str, payload: int, devices: int) -> int:
    """Return the bytes that each of p devices sends in a ring: 2(p-1)/p for an all-reduce, (p-1)/p for others.

    Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations. What goes to one device
    alone is sent whole.
    """
    if kind_of(op) == "send":
        return payload
    return payload * (2 if op.startswith("all_reduce") else 1) * (devices - 1) // devices


Unplaced: TypeAlias = "tuple[Request, PreparedRun, MeshSharding, Model, Table, dict[str, int], tuple[Padded, ...]]"
"""A request in microbatches, its run over a mesh and how the mesh cuts it; the padded model, its step, sizes, axes."""


def over_mesh(request: Request, device: int | None = None) -> tuple[PreparedRun, OverMesh]:
    """Return the run and its step over a mesh, in microbatches; of a pipeline the stages of one device.

    device  of the pipeline; by default the one that computes most
    Raises `InputError` for indivisible axes and without a mesh.
    """
    return _placed(_unplaced(request), device)


def _placed(step_of: Unplaced, device: int | None = None) -> tuple[PreparedRun, OverMesh]:
    request, run, cut, _, table, sizes, padded = step_of
    placed = place(table, cut.inner, cut.clauses, sizes, plan=run.plan)
    parallel = cut.parallel
    if parallel.gradients != ONCE:
        check_accumulates(table)
    over = OverMesh(placed, (), sizes, padded, cut.pipeline, parallel=parallel)
    if cut.pipeline is not None:
        config = StepConfig(cut.clauses, request.kind(), run.plan, request.procedure, _optimizer(run))
        account = MeshAccount(run.model, over.of_microbatch(over.of_model), cut.inner, config)
        over = _on_device(over, account, run, device)
    several = collectives(over.placed, over.of_microbatch(over.sizes), widths_of(request.kind()))
    own = (run.model.table, run.model.depth), over.placed.table, run.axes, run.every
    fewer = fewer_recomputed(*own, over.placed.iterations)

    def times(each: Collective) -> int:
        of_blocks = fewer.get(each.place)
        in_blocks = each.times * of_blocks.fewer // of_blocks.whole if of_blocks else each.times
        return in_blocks * over.runs(each.place, each.phase)

    runs = (replace(each, times=times(each)) for each in several)
    return run, replace(over, collectives=(*(each for each in runs if each.times), *over.collectives))


def _on_device(over: OverMesh, account: MeshAccount, run: PreparedRun, device: int | None) -> OverMesh:
    """Return the part of a step that a device of a pipeline runs."""
    assert over.pipeline is not None
    assert over.parallel is not None
    parallel, devices = over.parallel, devices_of(stages_of(account, over.parallel, over.sizes), over.parallel)
    rows = price(over.placed.table, {}, run.book).rows
    several = []
    for mine in dict.fromkeys(devices) if device is None else (devices[device],):
        counts = {name: mine.iterations.get(name, 0) for name in account.step.blocks}
        sizes = {**over.sizes, **over.placed.sizes, **counts}
        places = account.places_of(rows, mine, over.placed)
        several.append((sum(row.flops.at(sizes) for row in rows if row.place in places), mine, counts, places))
    _, mine, counts, places = max(several, key=lambda each: each[0])
    number, most = devices.index(mine), "computes most" if device is None else "takes longest"
    ends = sends_of(parallel, number)
    sizes = account.sizes.filled(sizes_of(account, parallel, over.of_model))
    size = int(carried(account).at(sizes)) * account.step.kind.value
    why, of_step = "values and gradients between stages", ("forward", "", None, "values", parallel.stages, -1)
    sends = [Collective("send", over.pipeline.axis, size, 0, "", "", ends * parallel.microbatches, *of_step, why)]
    for name, summed, those in tied_gradients(account, sizes, devices):
        if number in those:
            why = f"stages {' and '.join(map(str, sorted(those)))} have the same weight: its gradients are summed"
            of_update = "optimizer_step", "", None, "gradients", len(those), -1, why
            sends.append(Collective("all_reduce", over.pipeline.axis, summed, 0, f"d{name}.tied", "", 1, *of_update))
    return replace(
        over,
        placed=replace(over.placed, iterations=counts),
        collectives=tuple(sends),
        places=places,
        device=number,
        stage=f"Stage {number + 1} of {parallel.stages} {most} ({parallel.order}).",
    )


def _optimizer(run: PreparedRun) -> str:
    check_placed(run.optimizer)
    return run.optimizer or default_optimizer(run.book)


def _unplaced(request: Request) -> Unplaced:
    """Return the run of a request with a mesh, how the mesh cuts it, and the padded model, its step and sizes."""
    if not request.is_sharded or request.mesh is None:
        raise InputError("give --mesh, for example --mesh dp=2,tp=4")
    request = in_microbatches(request)
    run = prepare(request)
    optimizer, cut = _optimizer(run), mesh_sharding(request, run.model.table)

    def step_of(model: Model) -> Table:
        table = step(model, request.procedure, optimizer, run.book.jacobian)
        return planned(without_gradients(table), run.plan, run.axes)

    return request, run, cut, *padded_step(Structure(run.model).model, step_of, cut.inner, cut.clauses, run.axes)


def over_stages(request: Request) -> tuple[PreparedRun, tuple[OverMesh, ...]]:
    """Return the run and its step over a mesh, for a pipeline that of every stage. Raises `InputError`."""
    request, run, cut, model, table, sizes, padded = whole = _unplaced(request)
    if cut.pipeline is None:
        run, over = _placed(whole)
        return run, (over,)
    if request.procedure != "bp":
        raise InputError(f"pipeline stages require --procedure bp, not {request.procedure}")
    parallel = cut.parallel
    sizes = {**sizes, "B": sizes["B"] // parallel.microbatches}
    layers = cut.pipeline.layers(iterations_of(model.table, sizes))
    steps = tuple(
        replace(each, table=planned(each.table, run.plan)) for each in staged(model, sizes, layers, _optimizer(run))
    )
    stages = place_stages(steps, cut.pipeline, parse_mesh(request.mesh or ""), sizes, table, run.plan)
    widths = widths_of(request.kind())
    return run, tuple(
        OverMesh(each, collectives(each, sizes, widths), sizes, padded, parallel=parallel) for each in stages
    )


def padded_step(
    model: Model, step_of: Callable[[Model], Table], grid: Mesh, clauses: Iterable[Clause], sizes: Mapping[str, int]
) -> tuple[Model, Table, dict[str, int], tuple[Padded, ...]]:
    """Return a model, its step and sizes with indivisible axes padded where allowed, and the padded axes."""
    table, clauses = step_of(model), tuple(clauses)
    pipeline = pipeline_of(model.table, grid, clauses)
    inner = (pipeline.mesh, pipeline.clauses) if pipeline else (grid, clauses)
    filled, sizes, padded = filled_up(model, table, *inner, sizes)
    return filled, step_of(filled) if padded else table, sizes, padded
