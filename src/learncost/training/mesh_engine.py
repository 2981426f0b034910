"""The engine on several processes: each runs its sharded step on PyTorch, with functional collectives.

A step is the placed table, in place with compiled kernels or as operators.

Every process draws the same weights, batches and masks and takes its own parts of them, so that what is learned does
not depend on the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.engines.adapted import merged
from learncost.engines.core import PreparedStep, Values
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.engines.weights import shape
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, shape_of, whole
from learncost.ir.table import Table
from learncost.models.configuration import Configuration
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.memory.planner import smallest
from learncost.sharding.clauses import Clause, ShardSpecs
from learncost.sharding.collective import bucketed
from learncost.sharding.devices import own_shard, padded_shard, part, together
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import Mesh, mesh
from learncost.sharding.place import Placed, place
from learncost.sharding.presets import chosen_for
from learncost.sharding.zigzag import ordered
from learncost.training.engine import Arrays, Batch, NumPyEngine
from learncost.training.parts import KINDS, ArrayPart, Parts
from learncost.training.torch_engine import TensorStep, TorchProgram, TorchRunner, as_array, check_codes

if TYPE_CHECKING:
    from learncost.engines.in_place import InPlace


class MeshRunner(TorchRunner):
    """Executes tables placed over the mesh. Weights and state are this process's shards; it shards other arrays."""

    def __init__(self, training: Training, grid: Mesh, clauses: tuple[Clause, ...], options: Options) -> None:
        super().__init__(training, options.plan, options.device)
        self.mesh, self.clauses = grid, clauses
        self._devices: Any = None

    @property
    def devices(self) -> Any:
        """Return the DeviceMesh; the first call is collective."""
        if self._devices is None:
            from torch.distributed.device_mesh import init_device_mesh

            shape_of_mesh = tuple(number for _, number in self.mesh.axes)
            kind = self.device.partition(":")[0]
            self._devices = init_device_mesh(kind, shape_of_mesh, mesh_dim_names=self.mesh.names)
        return self._devices

    @property
    def place(self) -> Mapping[str, int]:
        """Return this process's coordinates in the mesh."""
        return dict(zip(self.mesh.names, self.devices.get_coordinate(), strict=True))

    @property
    def within(self) -> tuple[Mesh, tuple[Clause, ...]]:
        """Return the devices among which weights are sharded, and their sharding rules."""
        return self.mesh, self.clauses

    def check(self, table: Table, sizes: Mapping[str, int]) -> None:
        """Raise `InputError` for a table that cannot be placed."""
        self.placed(without_gradients(table), sizes)

    def placed(self, table: Table, sizes: Mapping[str, int], plan: str | None = None) -> Placed:
        """Return a table over the mesh, under the given plan or none.

        The clauses are about the step; the table may be a part of it without a batch, the update behind microbatches.
        """
        plan = plan or "" if self.plan is None else self.plan
        over, step = for_batch(self.mesh, self.clauses, sizes), self.training.table()
        return place(planned(table, plan, sizes), *over, sizes, step, plan=plan)

    def chosen(self, table: Table, sizes: Mapping[str, int]) -> str:
        """Return the planner's plan for a process's share of a batch."""
        parts = parts_of_batch(self.clauses, self.mesh)
        return smallest(table, {**sizes, "B": max(sizes["B"] // parts, 1)}, self.training.precision.name)

    def made(self, prepared: PreparedStep) -> Any:
        return _RunnableStep(prepared, self)

    def all(self, flag: bool) -> bool:
        """Return whether the flag is set in every process."""
        import torch
        import torch.distributed as distributed

        if distributed.is_initialized():
            agreed = torch.tensor(flag, dtype=torch.uint8)
            distributed.all_reduce(agreed, distributed.ReduceOp.MIN)
            flag = bool(agreed)
        return flag

    def gathered(self, array: Any, layout: ShardLayout) -> Any:
        """Return the global array from all processes' shards, on all of them."""
        if not layout.over:
            return array
        import torch
        import torch.distributed as distributed

        mine = torch.from_numpy(np.ascontiguousarray(array))
        parts = [torch.empty_like(mine) for _ in range(self.mesh.devices)]
        distributed.all_gather(parts, mine)
        return together([each.numpy() for each in parts], layout, self.mesh)


class _RunnableStep(TensorStep):
    """A placed table for batches of one size."""

    def __init__(self, prepared: PreparedStep, runner: MeshRunner) -> None:
        super().__init__(prepared, runner.pool)
        self._runner = runner
        in_place: InPlace | None = None
        plan = runner.chosen(self.table, self.sizes) if runner.plan is None else runner.plan
        self._take(runner.placed(self.table, self.sizes, plan))
        with suppress(InputError):  # as where a line counts places on a part of an axis, or nothing compiles here
            in_place = self._compiled(prepared)
        # What is sent, and in which messages, is the same on all.
        if not runner.all(in_place is not None):
            in_place = None
        self.run = in_place or self._emitted()

    def _take(self, placed: Placed) -> None:
        self.placed = placed
        for name in self.owned:
            if any(base(whole(axis)) in placed.zigzag for axis in placed.table.axes[name]):
                raise InputError(f"{name} depends on positions, which the plan zigzag reorders: remove zigzag")
        self._here = self.sizes | placed.sizes_at(self._runner.place)

    def _compiled(self, prepared: PreparedStep) -> InPlace:
        runner, sizes = self._runner, self.sizes | self.placed.sizes
        if runner.device != "cpu":
            raise InputError("kernels in place require a CPU")
        table, arrays = bucketed(self.placed.table), self._own(prepared)
        return self.in_place(table, arrays, sizes, runner.training.precision.name, runner.devices)

    def _emitted(self) -> TorchProgram:
        runner, sizes = self._runner, self.sizes | self.placed.sizes
        precision = runner.training.precision.name
        return TorchProgram(bucketed(self.placed.table), sizes, precision, runner.device, devices=runner.devices)

    def _own(self, prepared: PreparedStep) -> Values:
        """Return this process's shards of a step's inputs."""
        table = self.placed.table
        names = (*table.weights, *table.inputs)
        return {name: mine(self._ordered(name, prepared.values[name]), table.axes[name], self._here) for name in names}

    def _ordered(self, name: str, array: Any) -> Any:
        """Return an array of a batch with its reordered positions, if any; weights and states have none."""
        if name in self.owned:
            return array
        return ordered(array, self.placed.table.axes[name], self.placed.zigzag, self._here)

    def __call__(self, prepared: PreparedStep) -> Values:
        tensors = self.ran(self._own(prepared))
        results = {name: self._result(name, tensor) for name, tensor in tensors.items()}
        return results | self.pool.renewed(self.table)

    def _result(self, name: str, tensor: Any) -> Any:
        """Return a result of a step: an accumulated gradient stays a shard, other results are gathered."""
        array = as_array(tensor)
        if self.placed.whole.known[name].role in ("gradient", "new"):
            return array
        whole = self._runner.gathered(array, self.placed.layouts[name])
        return ordered(whole, self.placed.whole.axes[name], self.placed.zigzag, self._here, back=True)


def mine(array: Any, axes: tuple[str, ...], here: Mapping[str, int]) -> Any:
    """Return a process's shard of a global array; a shard is returned as it is."""
    return array if np.shape(array) == shape_of(axes, here) else part(array, axes, here)


def parts_of_batch(clauses: Iterable[Clause], grid: Mesh) -> int:
    """Return the number of shards of a batch."""
    return math.prod(grid.sizes[clause.mesh] for clause in clauses if clause.axes == ("B",))


def for_batch(grid: Mesh, clauses: tuple[Clause, ...], sizes: Mapping[str, int]) -> tuple[Mesh, tuple[Clause, ...]]:
    """Return a mesh and its sharding rules, without those of an indivisible batch, which is replicated."""
    if sizes["B"] % parts_of_batch(clauses, grid):
        clauses = tuple(clause for clause in clauses if clause.axes != ("B",))
        used = {clause.mesh for clause in clauses}
        grid = Mesh(tuple((name, count if name in used else 1) for name, count in grid.axes))
    return grid, clauses


class MeshEngine(NumPyEngine):
    """NumPy's engine with every table placed over the mesh of the options, and run on PyTorch."""

    name = "torch"
    plans = True
    _runner: MeshRunner
    _stages_axis = ""

    def __init__(self, configuration: Configuration, options: Options) -> None:
        if options.engine not in (None, "torch"):
            raise InputError(f"--mesh is for --engine torch, not for --engine {options.engine}")
        if options.budget is not None:
            raise InputError("--budget cannot be combined with --mesh: remove one of them")
        if find_procedure(options.procedure).by_iterations:
            raise InputError(f"--mesh shards weights once, so {options.procedure} requires one process: remove --mesh")
        from learncost.engines.in_triton import check_device  # with PyTorch

        check_device(options.device)
        check_codes(options)
        self._mesh = mesh(options.mesh or "")
        super().__init__(configuration, replace(options, engine="torch"))
        training = self._training
        model = training.model
        target = options.target_len if model.two_sided else None
        sizes = run_sizes(model, (options.batch_size or 1) * options.accumulate, options.seq_len, target)
        table = without_gradients(training.table())
        self._check_batch(options)
        self._sizes = sizes
        specs = ShardSpecs(table, *self._runner.within, sizes)
        self._layouts = {
            name: ShardLayout(specs.spec(name, table.known[name])) for name in (*training.weights, *training.state)
        }
        self._axes, self._filled = {name: table.axes[name] for name in self._layouts}, dict(specs.filled)
        self._whole = {name: shape(table, name, sizes) for name in self._layouts}
        self._names = dict(zip(KINDS, map(tuple, (training.weights, training.state)), strict=True))
        sizes = {**self._sizes, "B": self._sizes["B"] // options.accumulate}  # of one microbatch
        self._runner.check(training.table(), sizes)  # what cannot be is said at once
        self._cut = False

    def _made(self, options: Options) -> MeshRunner:
        sizes = self._training.model.sizes
        clauses = chosen_for(self._mesh, sizes, options.place, options.placement)
        return MeshRunner(self._training, self._mesh, clauses, options)

    def _check_batch(self, options: Options) -> None:
        number = parts_of_batch(self._runner.clauses, self._mesh)
        batch = options.batch_size or 1
        if batch % number:
            raise InputError(
                f"the global --batch-size {batch} is not divisible by {number} data parallel processes: the next "
                f"divisible size is {-(-batch // number) * number}"
            )

    def _own(self, arrays: Mapping[str, Any]) -> Arrays:
        """Return this process's shards of global arrays."""
        here = self._sizes_here()
        return {name: np.array(mine(array, self._cut_as(name), here)) for name, array in arrays.items()}

    def _sizes_here(self) -> Mapping[str, int]:
        """Return the sizes of the step, with this process's coordinates."""
        return {**self._sizes, **self._filled, **self._mesh.sizes_at(self._runner.place)}

    def _take_parts(self) -> None:
        """Keep only this process's shards of weights and state; before the first step, collectively."""
        if not self._cut:
            self._cut = True
            training = self._training
            training.weights, training.state = self._own(training.weights), self._own(training.state)
            self._runner.forget()

    def _gathered(self, kind: str) -> Arrays:
        """Return global arrays, of which processes have shards or none, on the first process; collectively."""
        import torch.distributed as distributed

        parts, wholes, place = self.parts(), Arrays(), self._runner.place
        for name in self._names[kind]:
            over = {*self._layouts[name].over, self._stages_axis}
            is_replica = any(place[axis] for axis in place.keys() - over)  # it has what the first one has, too
            every: list[Any] | None = [None] * self._mesh.devices if distributed.get_rank() == 0 else None
            distributed.gather_object(() if is_replica else parts.get(f"{kind}.{name}", ()), every)
            if every is None:
                continue
            there = [each for several in every for each in several]
            wholes[name] = np.empty(self._whole[name], there[0].array.dtype)
            for each in there:
                places = zip(each.first, each.array.shape, strict=True)
                wholes[name][tuple(slice(at, at + many) for at, many in places)] = each.array
        return wholes

    @property
    def weights(self) -> Arrays:
        return self._gathered("model")

    @property
    def state(self) -> Arrays:
        return self._gathered("optimizer")

    @property
    def plain_weights(self) -> Arrays:
        weights = self.weights
        return self._plain(weights) if weights else weights

    def _plain(self, weights: Arrays) -> Arrays:
        training = self._training
        if training.is_plain:
            return weights
        plain = merged(training.model, build(training.configuration).table, weights)
        return {name: np.asarray(array, training.dtype) for name, array in plain.items()}

    @property
    def says(self) -> str:
        """The text on the number of processes and the sharding."""
        clauses = ", ".join(map(str, self._runner.clauses))
        processes = "1 process" if self._mesh.devices == 1 else f"{self._mesh.devices} processes"
        return f"engine torch, {processes}, {self._mesh}: {clauses}{self._states}"

    @property
    def memory(self) -> int | None:
        """None: operators allocate without a fixed layout."""
        return None

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        training = self._training
        training.weights = self._empty(training.weights)
        training.state = self._empty(training.state)
        # What the others have been given of the state of all, which is zeros before the first step, is nothing.
        training.load(weights, state or self._empty(training.state), steps)
        self._cut = False
        self._take_parts()

    def parts(self) -> Parts:
        self._take_parts()
        self._runner.pool.fetch()
        here, parts = self._sizes_here(), dict[str, tuple[ArrayPart, ...]]()
        for kind, arrays in zip(KINDS, (super().weights, super().state), strict=True):
            for name, array in arrays.items():
                real, first = own_shard(array, self._cut_as(name), here)
                parts[f"{kind}.{name}"] = self._apart(name, real, first)
        return parts

    def _apart(self, name: str, real: Any, first: tuple[int, ...]) -> tuple[ArrayPart, ...]:
        """Return the shard of an array on a process, with its position in the global array."""
        return (ArrayPart(np.ascontiguousarray(real), first, self._whole[name]),)

    def _cut_as(self, name: str) -> tuple[str, ...]:
        return self._layouts[name].cut(self._axes[name])

    def load_parts(self, parts: Parts, steps: int) -> None:
        self._take_parts()
        here = self._sizes_here()
        weights, state = (
            {
                (name := full.removeprefix(f"{kind}.")): padded_shard(_joined(several), self._cut_as(name), here)
                for full, several in parts.items()
                if full.startswith(f"{kind}.")
            }
            for kind in KINDS
        )
        self._training.load(weights, state, steps)
        self._runner.forget()

    def _empty(self, arrays: Mapping[str, Any]) -> Arrays:
        """Return global arrays without memory, for their types and shapes."""
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


def _joined(parts: tuple[ArrayPart, ...]) -> Any:
    """Return the shard of an array on a process, iteration by iteration."""
    return parts[0].array if len(parts) == 1 else np.concatenate([part.array for part in parts])
