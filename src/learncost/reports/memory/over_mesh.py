"""The memory of one device of a mesh, by the account of a step over a mesh that run-cost and search use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from math import prod

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import StaticBytes, updated_in_place
from learncost.autoshard.placed_step import StepConfig, stepped
from learncost.autoshard.stage_memory import StageMemory
from learncost.autoshard.step import ParallelConfig, StageUsage, memory_of, order_in_flight, stages_of, static_of
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import Statement
from learncost.ir.table import Table
from learncost.ops import is_log_softmax
from learncost.passes.stages import Stage
from learncost.passes.stages import cut as cut_in_stages
from learncost.procedures.procedure import PAPER
from learncost.reports.memory.engine import Engine, MemoryUse
from learncost.reports.memory.engines import DEFAULT_ENGINE, GRAPH
from learncost.reports.memory.step import MemoryStep
from learncost.reports.mesh_cost import OverMesh, padded_step
from learncost.reports.request import Request
from learncost.reports.search.spread import MeshSharding, mesh_sharding
from learncost.sharding.clauses import TOKENS, Clause, parts_of
from learncost.sharding.collective import collectives, widths_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.padding import sizes_of, with_filled
from learncost.sharding.place import place
from learncost.sharding.presets import chosen_for


@dataclass(frozen=True)
class MeshMemory:
    """The account of a step over a mesh, and the parts of its configuration that do not depend on the batch."""

    account: MeshAccount
    cut: MeshSharding
    microbatches: int

    def parallel(self, sizes: Mapping[str, int]) -> ParallelConfig:
        """Return the configuration at the sizes of a microbatch of all devices."""
        shares = prod(self.cut.parallel.mesh.get(axis, 1) for axis in self.account.sizes.batch_axes)
        return replace(self.cut.parallel, microbatch=sizes.get("B", shares) // shares, microbatches=self.microbatches)

    def forwards(
        self, table: Table, mesh: Mesh, several: Iterable[Clause], sizes: Mapping[str, int]
    ) -> tuple[Stage, ...]:
        """Return the stages of a forward table as the devices of each stage run them."""
        layers = [part.layers for part in stages_of(self.account, self.parallel(sizes), _whole(sizes))]
        return tuple(
            replace(stage, table=forward_of(stage.table, mesh, several, {**sizes, **stage.iterations}, table))
            for stage in cut_in_stages(table, sizes, layers).stages
        )

    def passes(self, sizes: Mapping[str, int], device: int) -> list[tuple[str, int, int]]:
        """Return the passes of a device with their chunks and microbatches, of as many as have the memory of all."""
        parallel = self.parallel(sizes)
        if (
            parallel.schedule == "1f1b"
        ):  # its second backward pass has sums of gradients, and as many in flight as any other
            parallel = replace(parallel, microbatches=min(parallel.microbatches, parallel.stages - device + 1))
        order = order_in_flight(parallel).orders[device]
        return [(each.kind, each.chunk, each.microbatch) for each in order]

    def statics(self, sizes: Mapping[str, int]) -> tuple[StaticBytes, ...]:
        """Return the static memory of every device of the pipeline."""
        return static_of(self.account, self.parallel(sizes), _whole(sizes))

    def stages(self, sizes: Mapping[str, int]) -> tuple[StageUsage, ...]:
        return memory_of(self.account, self.parallel(sizes), _whole(sizes))

    def static(self, sizes: Mapping[str, int]) -> StaticBytes:
        """Return the static memory of the device that has the most."""
        return max(self.statics(sizes), key=lambda static: int(static.total))

    def peak(self, sizes: Mapping[str, int]) -> int:
        """Return the peak bytes of the fullest device."""
        return max(stage.peak for stage in self.stages(sizes))

    def takes(self, sizes: Mapping[str, int]) -> MemoryUse:
        """Return the memory of the fullest device, line by line."""
        stage = max(self.stages(sizes), key=lambda stage: stage.peak)
        found = StageMemory(self.account, self.parallel(sizes), _whole(sizes), stage)
        given = stage.peak, found.peak_at, found.split, found.live_at_peak
        return MemoryUse(*given, lambda: (found.curve, found.intervals()))

    def highest(self, sizes: Mapping[str, int]) -> str:
        """Return the text on the stage with the highest peak."""
        peaks = [stage.peak for stage in self.stages(sizes)]
        number = peaks.index(max(peaks))
        return f"Stage {number + 1} of {len(peaks)} has the highest peak ({self.parallel(sizes).order})."


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if "/" not in name}


def forward_of(
    table: Table, mesh: Mesh, several: Iterable[Clause], sizes: Mapping[str, int], whole: Table | None = None
) -> Table:
    """Return the forward pass of each device as modules run it: with the axes and the collectives of all clauses but
    those that wrappers of a module have, and with log-softmax over a sharded vocabulary as a single op.

    whole  the table that this one is a stage of
    """
    apart = _apart(several)
    inner = Mesh(tuple(pair for pair in mesh.axes if pair[0] not in apart))
    own = [clause for clause in several if clause.mesh not in apart and not clause.largest]
    if not own:
        return table
    here = {**sizes, "B": sizes["B"] // replicas(several, mesh)}
    placed = place(table, inner, own, here, whole).table
    lines, parts = list[Statement](), dict[str, Op]()
    known = {line.name: line for line in table.lines if is_log_softmax(line)}
    for line in placed.lines:
        name, _, inside = line.name.partition("!") if isinstance(line, Line) else ("", "", "")
        if inside and isinstance(line, Op) and name in known:  # as loss_parallel of PyTorch
            parts.setdefault(name, line)
        elif isinstance(line, Line) and name in parts and not inside:
            first = parts[name]
            lines.append(replace(known[name], left=line.left, right=first.right[:1], axes=first.axes))
        elif not (inside and name in known):
            lines.append(line)
    return replace(placed, lines=tuple(lines))


def batch_axes(several: Iterable[Clause]) -> dict[str, tuple[str, ...]]:
    """Return the axes of the mesh that shard sequences or positions, with the roles whose largest axis they shard."""
    batch = {clause.mesh for clause in several if {*clause.axes} <= TOKENS and not clause.names}
    roles = {clause.mesh: tuple(sorted(clause.names)) for clause in several if clause.largest}
    return {axis: roles.get(axis, ()) for axis in sorted(batch | {*roles})}


def _apart(several: Iterable[Clause]) -> frozenset[str]:
    """Return the axes of the mesh that shard sequences alone, as wrappers of a module do it."""
    wide = {clause.mesh for clause in several if not clause.largest and clause.axes != ("B",)}
    return frozenset(clause.mesh for clause in several if clause.mesh not in wide)


def replicas(several: Iterable[Clause], mesh: Mesh) -> int:
    """Return how many devices run the same forward pass on other sequences."""
    return prod(mesh.sizes[axis] for axis in _apart(several))


def placed_step(step: MemoryStep, request: Request, engine: Engine) -> MemoryStep:
    """Return a step as an engine has it on each device of a mesh.

    Where learncost train uses the engine, a vocabulary that is not divisible is not sharded. Raises `InputError` where
    an axis is not divisible.
    """
    grid = parse_mesh(str(request.mesh))
    trained = chosen_for(grid, step.run.axes, request.place, request.placement) if engine.trains else ()
    cut = mesh_sharding(replace(request, procedure=step.procedure), step.model.table, trained)
    pipeline, inner = cut.pipeline, cut.inner
    if pipeline and not (engine.module or engine.name == GRAPH):
        supporting = f"use {GRAPH} or {DEFAULT_ENGINE}"
        raise InputError(f"--engine {engine.name} does not support pipeline stages ({pipeline.clause}): {supporting}")
    config = StepConfig(cut.clauses, step.kind, step.plan, step.procedure, step.optimizer.name, step.mode or PAPER)
    _, table, sizes, padded = padded_step(
        step.model, lambda model: stepped(model, config), inner, cut.clauses, step.sizes()
    )
    placed = place(table, inner, cut.clauses, sizes, plan=step.plan)
    memory = MeshMemory(MeshAccount(step.model, step.sizes(), inner, config), cut, step.accumulate)
    result = copy(step)
    if padded:
        result = step.of(with_filled(step.run.model, padded), {**step.run.axes, **sizes_of(padded)})
    over = OverMesh(placed, collectives(placed, sizes, widths_of(step.kind)), sizes, padded)
    if pipeline:
        over = OverMesh(placed, (), sizes, padded, pipeline, "" if engine.module else memory.highest(sizes))
    result.mesh = request, engine
    if engine.module:
        result.batch_axes, result.replicas = batch_axes(cut.clauses), replicas(cut.clauses, inner)
        result.forward = forward_of(result.declared, inner, cut.clauses, sizes)
        result.stages = memory.forwards(result.declared, inner, cut.clauses, sizes) if pipeline else ()
    result.placed(updated_in_place(placed), over, parts_of(table, inner, cut.clauses, sizes), memory)
    return result
