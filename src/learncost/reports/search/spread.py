"""One step of a training over a requested mesh, or over the best one found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.candidates import CHUNKS
from learncost.autoshard.placed_step import StepConfig, blocks_of, stepped
from learncost.autoshard.stage_memory import split_of
from learncost.autoshard.step import PIPELINE, ParallelConfig, StepUsage, step_of
from learncost.devices.cluster import Cluster
from learncost.devices.sustained import sustained
from learncost.ir.errors import InputError, counted, shown
from learncost.models.model import Model
from learncost.passes.plan import usual_plan
from learncost.procedures.optimizer import default_optimizer
from learncost.program.pipeline import KINDS
from learncost.reports.request import Request
from learncost.reports.run import prepare
from learncost.reports.search.search import batch_of, of_one, search
from learncost.sharding.clauses import Clause
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.presets import chosen, usual
from learncost.sharding.stages import BLOCKS

SIZES = ("batch_size", "seq_len")


@dataclass(frozen=True)
class SpreadRequest:
    """The request for a step over a mesh.

    schedule    of the pipeline, and chunks: stages on a device, of schedules that have several; 0: the fewest
    microbatch  sequences of a microbatch on each part of the batch
    """

    schedule: str = "1f1b"
    microbatch: int = 1
    chunks: int = 0


def schedule_asked(request: Request) -> SpreadRequest:
    """Return the checked options of the pipeline. Raises `InputError`."""
    schedule = request.schedule
    if schedule not in KINDS:
        raise InputError(f"schedule must be one of {', '.join(KINDS)}, not {shown(schedule)}")
    said = {"microbatch": request.microbatch, "chunks": request.chunks}
    whole = {name: 1 if said[name] is None else counted(said[name]) or 0 for name in ("microbatch", "chunks")}
    if wrong := [name for name, value in whole.items() if not 1 <= value <= LARGEST]:
        raise InputError(f"{wrong[0]} must be a whole number from 1 to {LARGEST:,}, not {shown(said[wrong[0]])}")
    if whole["chunks"] > 1 and not KINDS[schedule].several:
        several = " or ".join(name for name, kind in KINDS.items() if kind.several)
        raise InputError(f"{schedule} has one stage per device: use --schedule {several} for {whole['chunks']} chunks")
    return SpreadRequest(schedule, whole["microbatch"], 0 if request.chunks is None else whole["chunks"])


def pipeline_asked(request: Request) -> SpreadRequest:
    """Return the checked options of the pipeline. Raises `InputError`, also for options that require a mesh."""
    given = [name for name in ("microbatch", "chunks", "plan") if getattr(request, name) is not None]
    given += [] if request.procedure == "bp" else [f"procedure {request.procedure}"]
    if request.mesh is None and given:
        raise InputError(f"--{given[0]} requires --mesh; without --mesh the fastest mesh is used")
    return schedule_asked(request)


LARGEST = 10**6
"""Sequences of a microbatch, and stages on a device."""


@dataclass(frozen=True)
class Spread:
    """A step over many devices, and the origin of its mesh."""

    step: StepUsage
    placed: str
    memory: float
    asked: bool
    split: Mapping[str, int]
    plan: str

    @property
    def fits(self) -> bool:
        return self.step.peak <= self.memory


def spread(request: Request, cluster: Cluster) -> Spread:
    """Return one step over a mesh, by default over the fastest that fits."""
    mesh, place, placement, asked = request.mesh, request.place, request.placement, pipeline_asked(request)
    devices = int(request.devices or 1)
    memory = float(cluster.device.ram)
    if not request.is_sharded or mesh is None:
        best = search(replace(request, on=cluster), devices, top=1).best
        text = f"{best.zero}, the fastest mesh that learncost search finds"
        return Spread(best.step, text, memory, False, best.split, best.plan)
    grid = parse_mesh(mesh)
    if devices not in (1, grid.devices):
        raise InputError(f"the mesh {grid} has {grid.devices:,} devices, not {devices:,}")
    if grid.sizes.get(PIPELINE, 1) > 1:
        check_staged(request.procedure)
    run, kind = prepare(of_one(request)), request.kind()
    length = run.model.tokens(run.axes) // run.axes["B"]
    batch = batch_of(request.batch_size, length, grid.devices)
    inner = Mesh(tuple((axis, size) for axis, size in grid.axes if axis != PIPELINE) or (("dp", 1),))
    cut = _within_stages(chosen(place, placement, inner.names), run.model)
    number = asked.microbatch * prod(inner.sizes.values())
    optimizer = request.optimizer or default_optimizer()
    config = StepConfig(cut, kind, "", request.procedure, optimizer)
    plan = usual_plan(stepped(run.model, config)) if request.plan is None else request.plan
    config = replace(config, plan=plan)
    account = MeshAccount(run.model, {**run.axes, "B": number}, inner, config)
    shares = prod(inner.sizes.get(axis, 1) for axis in account.sizes.batch_axes)
    if batch % shares:
        larger = -(-batch // shares) * shares
        raise InputError(
            f"{batch:,} sequences are not divisible by the {shares:,} shards of "
            f"{' and '.join(account.sizes.batch_axes)}: the next divisible batch_size is {larger:,}"
        )
    each = batch // shares
    if each % asked.microbatch:
        raise InputError(
            f"a batch shard has {each:,} sequences, which is not divisible by microbatches of {asked.microbatch:,}: "
            f"the next divisible batch_size is {-(-each // asked.microbatch) * asked.microbatch * shares:,}"
        )
    several = KINDS[asked.schedule].several and grid.sizes.get(PIPELINE, 1) > 1
    chunks = (asked.chunks or CHUNKS[0]) if several else 1
    way = ParallelConfig(grid.sizes, asked.microbatch, each // asked.microbatch, asked.schedule, chunks)
    step = step_of(account, way, run.axes, cluster, sustained(cluster.device, kind.values), length)
    text = ", ".join(filter(None, (place, placement))) or usual(inner.names)
    return Spread(step, text, memory, True, split_of(account, step, run.axes), plan)


def check_staged(procedure: str) -> None:
    """Raise `InputError` for a procedure without a pipeline, whose microbatches do not pass once forward and back."""
    if procedure not in ("bp", "recompute"):
        raise InputError(f"pipeline stages require --procedure bp or recompute, not {procedure}")


def _within_stages(several: Sequence[Clause], model: Model) -> tuple[Clause, ...]:
    """Return the sharding rules without `blocks over pp` or `n_layer over pp`, which makes pipeline stages."""
    blocks = blocks_of(model.table)
    for clause in several:
        if clause.mesh == PIPELINE and not {*clause.axes} <= {BLOCKS, *blocks}:
            raise InputError(
                f"{PIPELINE} shards the stack of blocks: write {' '.join(blocks)} over {PIPELINE}, not {str(clause)!r}"
            )
        if clause.mesh == PIPELINE and clause.names:
            raise InputError(f"only equal stages are supported: write {BLOCKS} over {PIPELINE}, not {str(clause)!r}")
    return tuple(clause for clause in several if clause.mesh != PIPELINE)


def described(step: StepUsage) -> str:
    """Return the text of a configuration: mesh, schedule and microbatches."""
    way = step.way
    schedule = "" if way.stages == 1 else f", {way.schedule}" + (f" of {way.chunks} chunks" if way.chunks > 1 else "")
    several = "microbatch" if way.microbatches == 1 else "microbatches"
    return f"{way}{schedule}, {way.microbatches:,} {several} of {way.microbatch:,}"
