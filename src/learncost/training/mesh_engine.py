"""The engine on several processes: each runs its part of the placed step on PyTorch, with functional collectives.

Every process draws the same weights, batches and masks and takes its own parts of them, so that what is learned does
not depend on the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.engines.adapted import merged
from learncost.engines.core import Prepared, Values
from learncost.engines.numpy_engine import Training
from learncost.engines.weights import shape
from learncost.equation.count import first_of, shape_of
from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.equation.value import Same
from learncost.models.configuration import Configuration
from learncost.models.model import build, run_sizes
from learncost.placement.bucketed import bucketed
from learncost.placement.clauses import Clause, Homes
from learncost.placement.devices import part, together
from learncost.placement.layout import Layout
from learncost.placement.mesh import Mesh, mesh
from learncost.placement.place import Placed, place
from learncost.placement.presets import chosen_for
from learncost.plans.plan import planned
from learncost.plans.planner import smallest
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.training.engine import Arrays, Batch, NumPyEngine
from learncost.training.options import Options
from learncost.training.parts import KINDS, Part, Parts
from learncost.training.torch_engine import Emitted, Pool, check_device

if TYPE_CHECKING:
    from learncost.engines.in_place import InPlace


class _MeshRunner:
    """Executes tables as placed over the mesh: weights and state are this process's parts, all else is cut here."""

    keeps_place = True

    def __init__(self, training: Training, grid: Mesh, clauses: tuple[Clause, ...], options: Options) -> None:
        self.training, self.mesh, self.clauses = training, grid, clauses
        self._plan, self.device = options.plan, options.device
        self._devices: Any = None
        self.forget()

    def forget(self) -> None:
        """What was written; weights and state are those that the training has now."""
        self.pool = Pool(self.device, self.training.low)
        self._steps: dict[tuple[Same[Table], tuple[tuple[str, int], ...]], _PlacedStep] = {}

    def turned(self) -> None:
        """Blocks do not take turns here."""

    @property
    def devices(self) -> Any:
        """The DeviceMesh, on which all processes have to ask for it together the first time."""
        if self._devices is None:
            from torch.distributed.device_mesh import init_device_mesh

            shape_of_mesh = tuple(number for _, number in self.mesh.axes)
            kind = self.device.partition(":")[0]
            self._devices = init_device_mesh(kind, shape_of_mesh, mesh_dim_names=self.mesh.names)
        return self._devices

    @property
    def place(self) -> Mapping[str, int]:
        """Where this process stands on the axes of the mesh."""
        return dict(zip(self.mesh.names, self.devices.get_coordinate(), strict=True))

    def placed(self, table: Table, sizes: Mapping[str, int]) -> tuple[str, Placed]:
        """A table under the plan that is told, or the one that the planner chooses for a process's part of a batch."""
        if self._plan is not None:
            return self._plan, placed_over(planned(table, self._plan, sizes), self.mesh, self.clauses, sizes)
        parts = _parts_of_batch(self.clauses, self.mesh)
        plan = smallest(table, {**sizes, "B": max(sizes["B"] // parts, 1)}, self.training.precision.name)
        try:
            return plan, placed_over(planned(table, plan, sizes), self.mesh, self.clauses, sizes)
        except InputError:  # which the plan as it is derived may not be
            return "", placed_over(table, self.mesh, self.clauses, sizes)

    def __call__(self, prepared: Prepared) -> Values:
        key = (Same(prepared.table), tuple(prepared.sizes.items()))
        if key not in self._steps:
            self._steps[key] = _PlacedStep(prepared, self)
        return self._steps[key](prepared)

    def gathered(self, array: Any, layout: Layout) -> Any:
        """The whole of which every process has a part, on all of them."""
        if not layout.over:
            return array
        import torch
        import torch.distributed as distributed

        mine = torch.from_numpy(np.ascontiguousarray(array))
        parts = [torch.empty_like(mine) for _ in range(self.mesh.devices)]
        distributed.all_gather(parts, mine)
        return together([each.numpy() for each in parts], layout, self.mesh)


class _PlacedStep:
    """A table for batches of one size, placed, and run in place where every line can be; else as operators."""

    def __init__(self, prepared: Prepared, runner: _MeshRunner) -> None:
        self._runner = runner
        table = without_gradients(prepared.table)
        self._sizes = dict(prepared.sizes)
        self.plan, self.placed = runner.placed(table, self._sizes)
        self._renewed = table.renewed
        grid = self.placed.mesh
        self._here = self._sizes | grid.sizes_at(runner.place)
        self._owned = tuple(dict.fromkeys((*self.placed.table.weights, *self._renewed)))
        self._run = self._made(prepared, self._sizes | grid.sizes)

    def _made(self, prepared: Prepared, sizes: Mapping[str, int]) -> InPlace | Emitted:
        runner, table = self._runner, bucketed(self.placed.table)
        precision, pool = runner.training.precision.name, runner.pool
        if runner.device == "cpu":
            from learncost.engines.in_place import InPlace

            own = self._own(prepared)
            tensors = {name: pool.tensor(name, own[name]) for name in self._owned}
            is_double = np.float64 in {own[name].dtype for name in table.weights}
            try:
                step = InPlace(table, sizes, "fp64" if is_double else precision, tensors, pool.arena, runner.devices)
            except InputError:
                pass  # as where a line counts places on a part of an axis
            else:
                pool.arena = step.arena
                return step
        return Emitted(table, sizes, precision, runner.device, devices=runner.devices)

    def _own(self, prepared: Prepared) -> Values:
        """This process's parts of what a step is given."""
        table = self.placed.table
        names = (*table.weights, *table.inputs)
        return {name: _mine(prepared.values[name], table.axes[name], self._here) for name in names}

    def __call__(self, prepared: Prepared) -> Values:
        pool, own = self._runner.pool, self._own(prepared)
        tensors = {name: pool.tensor(name, own[name]) for name in self._owned}
        if isinstance(self._run, Emitted):
            results_by_name = self._run(tensors, own)
            for name, new in self._renewed.items():
                pool.tensors[name].copy_(results_by_name.pop(new))
        else:
            results_by_name = self._run(own)
        results = {name: self._result(name, tensor) for name, tensor in results_by_name.items()}
        return results | {new: pool.arrays[name] for name, new in self._renewed.items()}

    def _result(self, name: str, tensor: Any) -> Any:
        """What a step gives beside new weights: a gradient that is added up stays a part, all else is whole."""
        array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).cpu().numpy()
        if self.placed.whole.known[name].role in ("gradient", "new"):
            return array
        return self._runner.gathered(array, self.placed.layouts[name])


def _mine(array: Any, axes: tuple[str, ...], here: Mapping[str, int]) -> Any:
    """A process's part of a whole array; of one that is its part already, that."""
    return array if np.shape(array) == shape_of(axes, here) else part(array, axes, here)


def _parts_of_batch(clauses: Iterable[Clause], grid: Mesh) -> int:
    """Into how many parts a batch is cut."""
    return math.prod(grid.sizes[clause.mesh] for clause in clauses if clause.axes == ("B",))


def placed_over(table: Table, grid: Mesh, clauses: tuple[Clause, ...], sizes: Mapping[str, int]) -> Placed:
    """A table over a mesh; a batch that does not divide is computed by all devices alike.

    Raises `InputError` where another axis does not divide.
    """
    if sizes["B"] % _parts_of_batch(clauses, grid):
        clauses = tuple(clause for clause in clauses if clause.axes != ("B",))
        used = {clause.mesh for clause in clauses}
        grid = Mesh(tuple((name, count if name in used else 1) for name, count in grid.axes))
    return place(table, grid, clauses, sizes)


class MeshEngine(NumPyEngine):
    """NumPy's engine with every table placed over the mesh that the options say, and run on PyTorch."""

    name = "torch"
    plans = True
    _runner: _MeshRunner

    def __init__(self, configuration: Configuration, options: Options) -> None:
        if options.engine not in (None, "torch"):
            raise InputError(f"--mesh is for --engine torch, not for --engine {options.engine}")
        if options.budget is not None:
            raise InputError("--budget chooses the plan of one process: leave it out, or leave --mesh out")
        if find_procedure(options.procedure).by_turns:
            raise InputError(f"--mesh lays weights out once, so {options.procedure} is for one process")
        check_device(options)
        self._mesh = mesh(options.mesh or "")
        super().__init__(configuration, replace(options, engine="torch"))
        training = self._training
        model = training.model
        target = options.target_len if model.two_sided else None
        sizes = run_sizes(model, (options.batch_size or 1) * options.accumulate, options.seq_len, target)
        table = without_gradients(training.table())
        self._check_batch(options)
        self._sizes = sizes
        homes = Homes(table, self._mesh, self._runner.clauses, sizes)
        self._layouts = {
            name: Layout(homes.home(name, table.known[name])) for name in (*training.weights, *training.state)
        }
        self._axes = {name: table.axes[name] for name in self._layouts}
        self._whole = {name: shape(table, name, sizes) for name in self._layouts}
        self._runner.placed(table, self._micro(options))  # what cannot be is said at once
        self._cut = False

    def _made(self, options: Options) -> _MeshRunner:
        sizes = self._training.model.sizes
        clauses = chosen_for(self._mesh, sizes, options.place, options.placement)
        return _MeshRunner(self._training, self._mesh, clauses, options)

    def _micro(self, options: Options) -> Mapping[str, int]:
        """The sizes of one batch that is computed at once."""
        return {**self._sizes, "B": self._sizes["B"] // options.accumulate}

    def _check_batch(self, options: Options) -> None:
        number = _parts_of_batch(self._runner.clauses, self._mesh)
        batch = options.batch_size or 1
        if batch % number:
            raise InputError(
                f"--batch-size {batch} is of all processes together and cannot be cut over {number}: the next that can "
                f"is {-(-batch // number) * number}"
            )

    def _own(self, arrays: Mapping[str, Any]) -> Arrays:
        """This process's parts of whole arrays."""
        here = self._sizes_here()
        return {
            name: np.array(_mine(array, self._layouts[name].cut(self._axes[name]), here))
            for name, array in arrays.items()
        }

    def _sizes_here(self) -> Mapping[str, int]:
        """The sizes of the step, with where this process stands."""
        return {**self._sizes, **self._mesh.sizes_at(self._runner.place)}

    def _take_parts(self) -> None:
        """Keep this process's parts of weights and state alone; before the first step, by all processes together."""
        if not self._cut:
            self._cut = True
            training = self._training
            training.weights, training.state = self._own(training.weights), self._own(training.state)
            self._runner.forget()

    def _gathered(self, arrays: Mapping[str, Any]) -> Arrays:
        """The wholes of which every process has a part, on all of them."""
        return {name: self._runner.gathered(array, self._layouts[name]) for name, array in arrays.items()}

    @property
    def weights(self) -> Arrays:
        self._take_parts()
        self._runner.pool.fetch()
        return self._gathered(super().weights)

    @property
    def state(self) -> Arrays:
        self._take_parts()
        self._runner.pool.fetch()
        return self._gathered(super().state)

    @property
    def plain_weights(self) -> Arrays:
        weights, training = self.weights, self._training
        if training.is_plain:
            return weights
        plain = merged(training.model, build(training.configuration).table, weights)
        return {name: np.asarray(array, training.dtype) for name, array in plain.items()}

    @property
    def says(self) -> str:
        """On how many processes the steps run, and what is cut over them."""
        clauses = ", ".join(map(str, self._runner.clauses))
        processes = "1 process" if self._mesh.devices == 1 else f"{self._mesh.devices} processes"
        return f"engine torch, {processes}, {self._mesh}: {clauses}{self._states}"

    @property
    def learns(self) -> str:
        training = self._training
        count = sum(int(np.prod(self._whole[name])) for name in training.model.learning)
        return training.learns.rpartition(":")[0] + f": {count:,} parameters"

    @property
    def memory(self) -> int | None:
        """Nobody lays out what operators allocate."""
        return None

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        training = self._training
        training.weights = self._empty(training.weights)
        training.state = self._empty(training.state)
        training.load(weights, state, steps)
        self._cut = False
        self._take_parts()

    def parts(self) -> Parts:
        self._take_parts()
        self._runner.pool.fetch()
        here = self._sizes_here()
        return {
            f"{kind}.{name}": Part(
                np.ascontiguousarray(array),
                tuple(first_of(axis, here) for axis in self._layouts[name].cut(self._axes[name])),
                self._whole[name],
            )
            for kind, arrays in zip(KINDS, (super().weights, super().state), strict=True)
            for name, array in arrays.items()
        }

    def load_parts(self, parts: Parts, steps: int) -> None:
        self._take_parts()
        weights, state = (
            {name.removeprefix(f"{kind}."): part.array for name, part in parts.items() if name.startswith(f"{kind}.")}
            for kind in KINDS
        )
        self._training.load(weights, state, steps)
        self._runner.forget()

    def _empty(self, arrays: Mapping[str, Any]) -> Arrays:
        """Whole arrays that take no memory, for their types and shapes."""
        return {name: np.broadcast_to(np.zeros((), array.dtype), self._whole[name]) for name, array in arrays.items()}

    def step(self, batch: Batch, learning_rate: float) -> float:
        self._take_parts()
        return super().step(batch, learning_rate)

    def loss(self, batch: Batch) -> float:
        self._take_parts()
        return super().loss(batch)

    def look(self, batch: Batch) -> tuple[float, Any]:
        self._take_parts()
        return super().look(batch)
