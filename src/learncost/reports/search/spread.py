"""One step of a training over a requested mesh, or over the best one found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.placed_step import StepConfig, counts_of_blocks, stepped
from learncost.autoshard.stage_memory import split_of
from learncost.autoshard.step import PIPELINE, ParallelConfig, StepUsage, step_of
from learncost.devices.cluster import Cluster
from learncost.devices.sustained import sustained
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, counted, shown
from learncost.ir.table import Table
from learncost.models.sizes import check_size
from learncost.procedures.optimizer import DEFAULT, default_optimizer
from learncost.program.pipeline import CHUNKS, KINDS
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.types import communication_buffers_of, without_reserve
from learncost.reports.microbatches import in_microbatches
from learncost.reports.request import ON_DEVICE, Request
from learncost.reports.run import checkpoint_interval, executed_plan, prepare
from learncost.reports.search.search import batch_of, of_one, search
from learncost.sharding.clauses import Clause, clauses
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.presets import chosen, usual
from learncost.sharding.stages import BLOCKS, Pipeline, pipeline_of


@dataclass(frozen=True)
class MeshSharding:
    """The sharding of a step over the devices of a request.

    pipeline  whose stages the blocks make; None without one
    inner     the mesh of a stage, and the clauses over its axes
    parallel  the devices along each axis, the pipeline's as `PIPELINE`, with its schedule and microbatches
    """

    pipeline: Pipeline | None
    inner: Mesh
    clauses: tuple[Clause, ...]
    parallel: ParallelConfig


def mesh_sharding(request: Request, table: Table, several: Sequence[Clause] = ()) -> MeshSharding:
    """Return how the request cuts a step. Raises `InputError`.

    table    of the model
    several  the clauses; by default those of the request
    """
    grid = parse_mesh(str(request.mesh))
    several = tuple(several) or chosen(request.place, request.placement, grid.names)
    if grid.sizes.get(PIPELINE, 1) > 1 and all(clause.mesh != PIPELINE for clause in several):
        several = (*clauses(f"{BLOCKS} over {PIPELINE}"), *several)
    pipeline, schedule = pipeline_of(table, grid, several), request.schedule
    chunks, microbatches = chunks_of(request), (int(request.microbatch or 1), counted(request.microbatches) or 1)
    buffers = communication_buffers_of(request)
    parallel = ParallelConfig(grid.sizes, *microbatches, schedule, communication_buffers=buffers)
    if pipeline is None and grid.sizes.get(PIPELINE, 1) > 1:
        which, names = next(clause for clause in several if clause.mesh == PIPELINE), " ".join(counts_of_blocks(table))
        raise InputError(f"{PIPELINE} shards the stack of blocks: write {names} over {PIPELINE}, not {str(which)!r}")
    if pipeline is None and request.given.get("schedule"):
        raise InputError(f"--schedule {schedule} requires pipeline stages, for example --mesh pp=2,dp=2")
    if pipeline is None:
        return MeshSharding(None, grid, several, parallel)
    if pipeline.stages > 1 and request.procedure not in ("bp", "recompute"):  # whose microbatches pass once
        raise InputError(f"pipeline stages require --procedure bp or recompute, not {request.procedure}")
    chunks = (chunks or CHUNKS) if KINDS[schedule].several and pipeline.stages > 1 else 1
    if pipeline.blocks and chunks > 1:
        raise InputError(f"{str(pipeline.clause)!r} gives the blocks of one stage per device: use --schedule 1f1b")
    inner = pipeline.mesh if pipeline.mesh.axes else Mesh((("dp", 1),))
    mesh = {PIPELINE if axis == pipeline.axis else axis: size for axis, size in grid.axes}
    return MeshSharding(
        pipeline, inner, pipeline.clauses, replace(parallel, mesh=mesh, chunks=chunks, layers=pipeline.blocks)
    )


def chunks_of(request: Request) -> int:
    """Return the stages of a device of a pipeline, 0 for the fewest. Raises `InputError`."""
    schedule, chunks = request.schedule, 0 if request.chunks is None else check_size("chunks", request.chunks)
    if schedule not in KINDS:
        raise InputError(f"schedule must be one of {', '.join(KINDS)}, not {shown(schedule)}")
    if chunks > 1 and not KINDS[schedule].several:
        several = " or ".join(name for name, kind in KINDS.items() if kind.several)
        raise InputError(f"{schedule} has one stage per device: use --schedule {several} for {chunks} chunks")
    return chunks


OF_MEMORY_ALONE = ("no_sync", "checkpoint_every", *(name for name in ON_DEVICE.split() if name != "clip"))
"""The settings that change the memory of a step over a mesh alone; the norms of clipping are not counted."""

OF_MESH = (
    *("plan", "procedure", "optimizer", "accumulate", "schedule", "chunks", "communication_buffers"),
    *OF_MEMORY_ALONE,
)
"""The settings of a step that a search for its mesh has no choice of: it takes the usual ones."""


@dataclass(frozen=True)
class SpreadStep:
    """A step over many devices, the origin of its mesh, and the peak of the fullest device under the engine."""

    step: StepUsage
    placed: str
    memory: float
    peak: int
    split: Mapping[str, int]
    plan: str
    engine: str = GRAPH

    @property
    def fits(self) -> bool:
        return self.peak <= self.memory


def spread(request: Request, cluster: Cluster) -> SpreadStep:
    """Return one step over a mesh, by default over the fastest that fits."""
    devices = int(request.devices or 1)
    memory = float(without_reserve(cluster.device.ram, request.timed_by if request.mesh else GRAPH))
    if not request.is_sharded or request.mesh is None:
        of_mesh = [name for name in OF_MESH if name in request.given and request.given[name] != DEFAULT]
        if request.mesh is None and of_mesh:
            flag, value = of_mesh[0].replace("_", "-"), request.given[of_mesh[0]]
            raise InputError(f"--{flag} {value} requires --mesh; without --mesh the fastest mesh is used")
        if (engine := request.engine or GRAPH) != GRAPH:
            raise InputError(f"--engine {engine} requires --mesh; without --mesh the fastest mesh of {GRAPH} is used")
        best = search(replace(request, on=cluster), devices, top=1).best
        text = f"{best.zero}, the fastest mesh that learncost search finds"
        return SpreadStep(best.step, text, memory, best.step.peak, best.split, best.plan)
    grid = parse_mesh(request.mesh)
    if devices not in (1, grid.devices):
        raise InputError(f"the mesh {grid} has {grid.devices:,} devices, not {devices:,}")
    run, kind = prepare(of_one(request)).with_separate_trip_counts(), request.kind()
    length = run.model.tokens(run.axes) // run.axes["B"]
    request = in_microbatches(request, batch_of(None, length, grid.devices))
    cut = mesh_sharding(request, run.model.table)
    optimizer = request.optimizer or default_optimizer()
    config = StepConfig(cut.clauses, kind, "", request.procedure, optimizer, every=checkpoint_interval(request))
    rates = sustained(cluster.device, kind.values, request.timed_as)
    plan = executed_plan(stepped(run.model, config), request.plan, request.timed_by, rates)
    sizes = {**run.axes, "B": int(request.microbatch or 1) * cut.inner.devices}
    account = MeshAccount(run.model, sizes, cut.inner, replace(config, plan=plan))
    step = step_of(account, cut.parallel, run.axes, cluster, rates, length)
    text = ", ".join(filter(None, (request.place, request.placement))) or usual(cut.inner.names)
    peak: int = step.peak
    split: Mapping[str, int] = split_of(account, step, run.axes)
    from learncost.reports.memory.memory import engine_over, memory_on, memory_question  # are built on this module
    from learncost.reports.memory.runs import engine_of

    engine = engine_over(request.engine, request)
    if engine != GRAPH or any(name in request.given for name in OF_MEMORY_ALONE):
        question = memory_question(replace(request, budget=None))
        found = memory_on(engine_of(question.step(request.procedure, engine), engine))
        peak, split = found.peak, found.split
    return SpreadStep(step, text, memory, peak, split, plan, engine)


def described(step: StepUsage) -> str:
    """Return the text of a configuration: mesh, schedule and microbatches."""
    order = step.parallel.order if step.parallel.stages > 1 else step.parallel.order.partition(", ")[2]
    return f"{step.parallel}, {order} of {step.parallel.microbatch:,}"
