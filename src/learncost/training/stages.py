"""Pipeline stages on several processes: the engine, and its steps, a program in the order of its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.backends import fill, leaves, unfold
from learncost.backends.stages import StagesProgram
from learncost.engines.core import PreparedStep, Values
from learncost.engines.emitted import executed_text
from learncost.engines.in_stages import StageUpdate, forward_in_stages, program_in_stages, step_in_stages
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options, refuse_schedule
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.models.configuration import Configuration
from learncost.models.model import build
from learncost.procedures.optimizer import without_gradients
from learncost.program.pipeline import CHUNKS, KINDS, Schedule, forward_once, schedule_of_batch
from learncost.sharding.clauses import Clause
from learncost.sharding.devices import counted, of_stage, part, together
from learncost.sharding.mesh import Mesh, mesh
from learncost.sharding.place import Placed
from learncost.sharding.presets import chosen_for
from learncost.sharding.stages import Pipeline, pipeline_of
from learncost.training.engine import Arrays
from learncost.training.mesh_engine import MeshEngine, MeshRunner, for_batch, mine, parts_of_batch
from learncost.training.parts import ArrayPart
from learncost.training.torch_engine import as_array

Staged = tuple[tuple[Placed, ...], StagesProgram]
"""The placed tables of the stages, and their program."""


class StagesRunner(MeshRunner):
    """Executes tables as pipeline stages: weights and state are those of this process's stages."""

    def __init__(
        self, training: Training, grid: Mesh, clauses: tuple[Clause, ...], options: Options, pipeline: Pipeline
    ) -> None:
        super().__init__(training, grid, clauses, options)
        self.pipeline = pipeline
        self._kind, self._microbatches = options.schedule or "1f1b", options.microbatches
        self._staged: dict[tuple[IdentityKey[Table], int], Staged] = {}
        self._chunks = CHUNKS if self._kind in KINDS and KINDS[self._kind].several else 1

    @property
    def within(self) -> tuple[Mesh, tuple[Clause, ...]]:
        return self.pipeline.mesh, self.pipeline.clauses

    def check(self, table: Table, sizes: Mapping[str, int]) -> None:
        self.staged(table, sizes)

    @property
    def stages(self) -> range:
        """The numbers of this process's stages."""
        devices = self.pipeline.stages
        return range(self.place[self.pipeline.axis], devices * self._chunks, devices)

    def order(self, batch: int) -> Schedule:
        """Return the schedule of a step with a global batch. Raises `InputError`."""
        parts = parts_of_batch(self.pipeline.clauses, self.mesh)
        return schedule_of_batch(self._kind, self.pipeline.stages, batch, parts, self._microbatches)

    def staged(self, table: Table, sizes: Mapping[str, int]) -> Staged:
        """Return the stages of a table and their program, for training steps in microbatches."""
        key = IdentityKey(table), sizes["B"]
        if key not in self._staged:
            inner, clauses = for_batch(*self.within, sizes)
            over = replace(self.pipeline, mesh=inner, clauses=clauses)
            whole, training = without_gradients(table), self.training
            model, settings = training.model_of(table), training.settings
            if model is None:
                order = forward_once(over.stages, self._chunks)
                placed = forward_in_stages(whole, over, self.mesh, sizes, order)
            else:
                order = self.order(sizes["B"])
                sizes = {**sizes, "B": sizes["B"] // order.microbatches}
                decays = settings.weight_decay > 0
                update = StageUpdate(settings.optimizer, self.plan or "", settings.clip > 0, decays)
                placed = step_in_stages(model, whole, update, over, self.mesh, sizes, order)
            if placed[0].zigzag:
                raise InputError("pipeline stages do not support the plan zigzag: remove it")
            title = f"Stages of {self.mesh}."
            precision = training.precision.name
            program = program_in_stages(placed, whole.outputs, order, over.axis, sizes, title, precision)
            self._staged[key] = placed, program
        return self._staged[key]

    def made(self, prepared: PreparedStep) -> _StagesStep:
        return _StagesStep(prepared, self)

    def broadcast(self, name: str, made: tuple[int, Any] | None, placed: tuple[Placed, ...]) -> Any:
        """Return a stage's result on all processes, from the shards of the stage's processes.

        made  on these processes: the number of the stage, and the part
        """
        import torch.distributed as distributed

        every: list[Any] = [None] * self.mesh.devices
        distributed.all_gather_object(every, made)
        there = [each for each in every if each is not None]
        number = there[0][0]
        return together(
            [array for stage, array in there if stage == number], placed[number].layouts[name], self.pipeline.mesh
        )


class _StagesStep:
    """The part of a table that this process runs for batches of one size; new values replace old ones."""

    def __init__(self, prepared: PreparedStep, runner: StagesRunner) -> None:
        self._runner = runner
        self._placed, program = runner.staged(prepared.table, prepared.sizes)
        self._functions = {number: program.stages[number] for number in runner.stages}
        self._sizes = prepared.sizes
        self._namespace = executed_text(program.text)
        known, self._renewed = prepared.table.known, prepared.table.renewed
        self._reported = [name for name in prepared.table.outputs if known[name].role not in ("gradient", "new")]
        self._begin = self._begins()

    def _begins(self) -> dict[tuple[int, str], int]:
        """Return where the iterations of a stage begin in this process's slice of a stacked array."""
        begins, ends = dict[tuple[int, str], int](), dict[str, int]()
        for number in self._functions:
            stage = self._placed[number]
            for name in (*stage.table.weights, *stage.table.inputs):
                if count := counted(stage, name):
                    begins[number, name] = ends.get(name, 0)
                    ends[name] = begins[number, name] + stage.iterations[count]
        return begins

    def __call__(self, prepared: PreparedStep) -> Values:
        import torch

        given = {}
        for number, functions in self._functions.items():
            trees = functions.takes
            tensors = {name: self._tensor(number, name, prepared) for tree in trees.values() for name in leaves(tree)}
            given[number] = {name: fill(tree, tensors, self._namespace) for name, tree in trees.items()}
        with torch.no_grad():
            results = self._namespace["step"](given, self._runner.devices)
            del given
            made = {
                number: {
                    name: tensor
                    for called, tree in functions.gives.items()
                    for name, tensor in unfold(tree, results[number][called])
                }
                for number, functions in self._functions.items()
            }
            for name, new in self._renewed.items():
                for number, arrays in made.items():
                    if new in arrays:
                        self._view(number, name, prepared).copy_(arrays[new])
        whole = {name: self._runner.broadcast(name, self._array(name, made), self._placed) for name in self._reported}
        arrays = self._runner.pool.arrays
        return whole | {new: arrays[name] for name, new in self._renewed.items() if name in arrays}

    def _array(self, name: str, made: Mapping[int, Mapping[str, Any]]) -> tuple[int, Any] | None:
        """Return an array that a stage of this process computed, with the stage's number."""
        for number, arrays in made.items():
            if name in arrays:
                return number, as_array(arrays[name])
        return None

    def _tensor(self, number: int, name: str, prepared: PreparedStep) -> Any:
        """Return a stage's shard of a step's input; weights and state are shards already."""
        import torch

        training, stage = self._runner.training, self._placed[number]
        if name in training.weights or name in training.state:
            return self._view(number, name, prepared)
        here = {**self._sizes, **stage.sizes_at(self._runner.place)}
        array = mine(of_stage(prepared.values[name], stage, name), stage.table.axes[name], here)
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self._runner.device)

    def _view(self, number: int, name: str, prepared: PreparedStep) -> Any:
        """Return weights or state of a stage as views of the process's arrays."""
        tensor = self._runner.pool.tensor(name, prepared.values[name])
        if (number, name) not in self._begin:
            return tensor
        stage = self._placed[number]
        return tensor.narrow(0, self._begin[number, name], stage.iterations[counted(stage, name)])


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
