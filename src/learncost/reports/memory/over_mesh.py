"""The memory of one device of a mesh, by the account of a step over a mesh that run-cost and search use."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from math import prod

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import Static, updated_in_place
from learncost.autoshard.placed_step import StepConfig, stepped
from learncost.autoshard.stage_memory import StageMemory
from learncost.autoshard.step import ParallelConfig, StageUsage, memory_of, static_of
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.procedures.procedure import PAPER
from learncost.reports.memory.engine import Engine, MemoryUse
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.step import MemoryStep
from learncost.reports.mesh_cost import OverMesh, padded_step
from learncost.reports.request import Request
from learncost.reports.search.spread import MeshCut, mesh_cut
from learncost.sharding.clauses import parts_of
from learncost.sharding.collective import collectives, widths_of
from learncost.sharding.mesh import mesh as parse_mesh
from learncost.sharding.padding import sizes_of, with_filled
from learncost.sharding.place import place
from learncost.sharding.presets import chosen_for


@dataclass(frozen=True)
class MeshMemory:
    """The account of a step over a mesh, and the parts of its configuration that do not depend on the batch."""

    account: MeshAccount
    cut: MeshCut
    microbatches: int

    def way(self, sizes: Mapping[str, int]) -> ParallelConfig:
        """Return the configuration at the sizes of a microbatch of all devices."""
        shares = prod(self.cut.mesh.get(axis, 1) for axis in self.account.sizes.batch_axes)
        microbatch, left = divmod(sizes.get("B", shares), shares)
        if left:
            raise InputError(
                f"a microbatch of {sizes['B']:,} sequence{'s' if sizes['B'] > 1 else ''} is not divisible by the "
                f"{shares:,} shards of {' and '.join(self.account.sizes.batch_axes)}"
            )
        return self.cut.way(microbatch, self.microbatches)

    def stages(self, sizes: Mapping[str, int]) -> tuple[StageUsage, ...]:
        return memory_of(self.account, self.way(sizes), _whole(sizes))

    def static(self, sizes: Mapping[str, int]) -> Static:
        """Return the static memory of the device that has the most."""
        several = static_of(self.account, self.way(sizes), _whole(sizes))
        return max(several, key=lambda static: int(static.total))

    def fullest(self, sizes: Mapping[str, int]) -> StageMemory:
        """Return the memory of the device with the highest peak."""
        stage = max(self.stages(sizes), key=lambda stage: stage.peak)
        return StageMemory(self.account, self.way(sizes), _whole(sizes), stage)

    def peak(self, sizes: Mapping[str, int]) -> int:
        """Return the peak bytes of the fullest device."""
        return max(stage.peak for stage in self.stages(sizes))

    def takes(self, sizes: Mapping[str, int]) -> MemoryUse:
        """Return the memory of the fullest device, line by line."""
        found = self.fullest(sizes)
        given = found.stage.peak, found.moment, found.split, found.live_at_peak
        return MemoryUse(*given, lambda: (found.curve, found.stays()))

    def said(self, sizes: Mapping[str, int]) -> str:
        """Return the text on the stage with the highest peak."""
        peaks = [stage.peak for stage in self.stages(sizes)]
        number = peaks.index(max(peaks))
        return f"Stage {number + 1} of {len(peaks)} has the highest peak ({self.way(sizes).order})."


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if "/" not in name}


def placed_step(step: MemoryStep, request: Request, engine: Engine) -> MemoryStep:
    """Return a step as an engine has it on each device of a mesh.

    Where learncost train uses the engine, a vocabulary that is not divisible is not sharded. Raises `InputError` where
    an axis is not divisible.
    """
    grid = parse_mesh(str(request.mesh))
    trained = chosen_for(grid, step.run.axes, request.place, request.placement) if engine.trains else ()
    cut = mesh_cut(replace(request, procedure=step.procedure), step.model.table, trained)
    pipeline, inner = cut.pipeline, cut.inner
    if pipeline and engine.name != GRAPH:
        raise InputError(f"--engine {engine.name} does not support pipeline stages ({pipeline.clause}): use graph")
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
        over = OverMesh(placed, (), sizes, padded, pipeline, memory.said(sizes))
    result.mesh = request, engine
    result.placed(updated_in_place(placed), over, parts_of(table, inner, cut.clauses, sizes), memory)
    return result
