"""Steps of one of several processes that has a stage of a pipeline: the program that `emit` writes, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from learncost.engines.core import Prepared, Values
from learncost.engines.in_stages import forward_in_stages, program_in_stages, step_in_stages
from learncost.engines.numpy_engine import Training
from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.equation.value import Same
from learncost.placement.clauses import Clause
from learncost.placement.devices import of_stage, together
from learncost.placement.mesh import Mesh
from learncost.placement.place import Placed
from learncost.placement.stages import Pipeline
from learncost.procedures.optimizer import without_gradients
from learncost.readings.emit import fill, leaves, unfold
from learncost.readings.emit.stages import StagesProgram
from learncost.schedule.pipeline import KINDS, Schedule, schedule
from learncost.training.mesh_runner import MeshRunner, for_batch, mine, parts_of_batch
from learncost.training.options import Options

Staged = tuple[tuple[Placed, ...], StagesProgram]
"""What the devices of each stage run, and the program of it."""


class StagesRunner(MeshRunner):
    """Executes tables as stages of a pipeline: weights and state are those of this process's stage."""

    def __init__(
        self, training: Training, grid: Mesh, clauses: tuple[Clause, ...], options: Options, pipeline: Pipeline
    ) -> None:
        super().__init__(training, grid, clauses, options)
        self.pipeline = pipeline
        self._kind, self._microbatches = options.schedule or "1f1b", options.microbatches
        self._staged: dict[tuple[Same[Table], int], Staged] = {}
        if self._kind in KINDS and (KINDS[self._kind].parted or KINDS[self._kind].several):
            raise InputError(f"a training has one stage on each process: --schedule gpipe or 1f1b, not {self._kind}")

    def forget(self) -> None:
        super().forget()
        self._runs: dict[tuple[Same[Table], tuple[tuple[str, int], ...]], _StagesStep] = {}

    @property
    def within(self) -> tuple[Mesh, tuple[Clause, ...]]:
        return self.pipeline.mesh, self.pipeline.clauses

    def check(self, table: Table, sizes: Mapping[str, int]) -> None:
        self.staged(table, sizes)

    @property
    def stage(self) -> int:
        """The number of this process's stage."""
        return self.place[self.pipeline.axis]

    def order(self, batch: int) -> Schedule:
        """The schedule of a step of so many sequences of all processes. Raises `InputError`."""
        parts = parts_of_batch(self.pipeline.clauses, self.mesh)
        number = self._microbatches or max(batch // parts, 1)
        if batch % (number * parts):
            following = -(-batch // (number * parts)) * number * parts
            raise InputError(
                f"--batch-size {batch} cannot be cut into {number} microbatches for each of {parts} processes: the "
                f"next that can is {following}"
            )
        return schedule(self._kind, self.pipeline.stages, number)

    def staged(self, table: Table, sizes: Mapping[str, int]) -> Staged:
        """The stages of a table, and their program: of a step of the training in microbatches, else at once."""
        key = Same(table), sizes["B"]
        if key not in self._staged:
            inner, clauses = for_batch(*self.within, sizes)
            over = replace(self.pipeline, mesh=inner, clauses=clauses)
            whole, training = without_gradients(table), self.training
            model, settings = training.model_of(table), training.settings
            if model is None:
                order = schedule("gpipe", over.stages, 1)
                placed = forward_in_stages(whole, over, self.mesh, sizes)
            else:
                order = self.order(sizes["B"])
                sizes = {**sizes, "B": sizes["B"] // order.microbatches}
                plan, decays = self.plan or "", settings.weight_decay > 0
                placed = step_in_stages(model, whole, settings.optimizer, plan, over, self.mesh, sizes, order, decays)
            if placed[0].table.zigzag:
                raise InputError("the plan zigzag puts positions in another order, which stages of a pipeline have not")
            title = f"Stages of {self.mesh}."
            program = program_in_stages(placed, whole.outputs, order, over.axis, sizes, title)
            self._staged[key] = placed, program
        return self._staged[key]

    def __call__(self, prepared: Prepared) -> Values:
        key = (Same(prepared.table), tuple(prepared.sizes.items()))
        if key not in self._runs:
            self._runs[key] = _StagesStep(prepared, self)
        return self._runs[key](prepared)

    def told(self, name: str, array: Any, placed: tuple[Placed, ...]) -> Any:
        """On all processes what one stage has made, each of whose processes has a part of it."""
        import torch.distributed as distributed

        parts: list[Any] = [None] * self.mesh.devices
        distributed.all_gather_object(parts, array)
        number = next(
            place[self.pipeline.axis] for place, each in zip(self.mesh.places(), parts, strict=True) if each is not None
        )
        there = [
            each for place, each in zip(self.mesh.places(), parts, strict=True) if place[self.pipeline.axis] == number
        ]
        return together(there, placed[number].layouts[name], self.pipeline.mesh)


class _StagesStep:
    """A table for batches of one size: what this process runs of it."""

    def __init__(self, prepared: Prepared, runner: StagesRunner) -> None:
        self._runner, self._number = runner, runner.stage
        self._placed, program = runner.staged(prepared.table, prepared.sizes)
        self._stage, self._functions = self._placed[self._number], program.stages[self._number]
        self._here = {**prepared.sizes, **self._stage.sizes_at(runner.place)}
        self._namespace: dict[str, Any] = {"__name__": "learncost_emitted", "__source__": program.text}
        exec(compile(program.text, "<emitted by learncost>", "exec"), self._namespace)
        known = prepared.table.known
        self._told = [name for name in prepared.table.outputs if known[name].role not in ("gradient", "new")]

    def __call__(self, prepared: Prepared) -> Values:
        import torch

        takes = self._functions.takes
        tensors = {name: self._tensor(name, prepared) for tree in takes.values() for name in leaves(tree)}
        given = {name: fill(tree, tensors, self._namespace) for name, tree in takes.items()}
        with torch.no_grad():
            results = self._namespace["step"]({self._number: given}, self._runner.devices)[self._number]
        arrays = {
            name: tensor.cpu().numpy()
            for called, tree in self._functions.gives.items()
            for name, tensor in unfold(tree, results[called])
        }
        told = {name: self._runner.told(name, arrays.get(name), self._placed) for name in self._told}
        renewed = {*prepared.table.renewed.values()}
        return told | {name: array for name, array in arrays.items() if name in renewed}

    def _tensor(self, name: str, prepared: Prepared) -> Any:
        """This process's part of what a step is given; of weights and state it has its part already."""
        import torch

        training, array = self._runner.training, prepared.values[name]
        if name not in training.weights and name not in training.state:
            array = mine(of_stage(array, self._stage, name), self._stage.table.axes[name], self._here)
        tensor = torch.from_numpy(np.require(array, requirements=("C", "W")))
        return tensor.to(self._runner.device)
