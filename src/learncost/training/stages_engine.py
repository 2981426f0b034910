"""The engine on several processes, each with pipeline stages: some blocks, and the model's ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.engines.options import Options, refuse_schedule
from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of
from learncost.models.configuration import Configuration
from learncost.models.model import build
from learncost.sharding.devices import counted, of_stage, part
from learncost.sharding.mesh import mesh
from learncost.sharding.place import Placed
from learncost.sharding.presets import chosen_for
from learncost.sharding.stages import Pipeline, pipeline_of
from learncost.training.engine import Arrays
from learncost.training.mesh_engine import MeshEngine
from learncost.training.parts import ArrayPart
from learncost.training.stages_runner import StagesRunner


def mesh_engine(configuration: Configuration, options: Options) -> MeshEngine:
    """Return the engine for a mesh, with pipeline stages if blocks are sharded over an axis."""
    grid, model = mesh(options.mesh or ""), build(configuration)
    clauses = chosen_for(grid, model.sizes, options.place, options.placement)
    if pipeline := pipeline_of(model.table, grid, clauses):
        return StagesEngine(configuration, options, pipeline)
    refuse_schedule(options)
    return MeshEngine(configuration, options)


class StagesEngine(MeshEngine):
    """The mesh's engine with blocks split into stages; it trains a batch in microbatches by the schedule.

    Of a stack a process has the iterations of its stages, one behind another.
    """

    _runner: StagesRunner

    def __init__(self, configuration: Configuration, options: Options, pipeline: Pipeline) -> None:
        refused = {
            f"--procedure {options.procedure}": options.procedure != "bp",
            f"--precision {options.dtype}": precision_of(options.dtype).is_whole,
            "--accumulate": options.accumulate > 1,
        }
        if wrong := next((name for name, is_asked in refused.items() if is_asked), None):
            instead = ": --microbatches cuts the batch" if options.accumulate > 1 else ""
            raise InputError(f"pipeline stages are trained by bp in floating point: remove {wrong}{instead}")
        self._pipeline, self._stages_axis = pipeline, pipeline.axis
        super().__init__(configuration, options)

    def _made(self, options: Options) -> StagesRunner:
        clauses = chosen_for(self._mesh, self._training.model.sizes, options.place, options.placement)
        return StagesRunner(self._training, self._mesh, clauses, options, self._pipeline)

    @property
    def _stages(self) -> tuple[Placed, ...]:
        """Return the placed tables of this process's stages."""
        placed, _ = self._runner.staged(self._training.table(), self._sizes)
        return tuple(placed[number] for number in self._runner.stages)

    def _own(self, arrays: Mapping[str, Any]) -> Arrays:
        here, parts = self._sizes_here(), dict[str, list[Any]]()
        for stage in self._stages:
            for name in (*stage.table.weights, *stage.table.inputs):
                if name in arrays:
                    cut = part(of_stage(arrays[name], stage, name), self._cut_as(name), {**here, **stage.iterations})
                    parts.setdefault(name, []).append(cut)
        return {
            name: np.concatenate(several) if len(several) > 1 else np.array(several[0])
            for name, several in parts.items()
        }

    def _apart(self, name: str, real: Any, first: tuple[int, ...]) -> tuple[ArrayPart, ...]:
        parts, begin = list[ArrayPart](), 0
        for stage in self._stages:
            if name in {*stage.table.weights, *stage.table.inputs} and (count := counted(stage, name)):
                end = begin + stage.iterations[count]
                where = (stage.first[count], *first[1:])
                parts.append(ArrayPart(np.ascontiguousarray(real[begin:end]), where, self._whole[name]))
                begin = end
        return tuple(parts) or super()._apart(name, real, first)

    @property
    def says(self) -> str:
        order = self._runner.order(self._sizes["B"])
        return f"{super().says}; {order.name} of {order.microbatches} microbatches"
