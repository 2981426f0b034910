"""Steps of one of several processes: the placed table, in place with compiled kernels or as operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.engines.core import Prepared, Values
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base, shape_of, whole
from learncost.ir.table import Table
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.reports.memory.planner import smallest
from learncost.sharding.clauses import Clause
from learncost.sharding.collective import bucketed
from learncost.sharding.devices import part, together
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed, place
from learncost.sharding.zigzag import ordered
from learncost.training.torch_engine import TensorStep, TorchProgram, TorchRunner

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
        """Return a table over the mesh, under the given plan or none."""
        plan = plan or "" if self.plan is None else self.plan
        return placed_over(planned(table, plan, sizes), self.mesh, self.clauses, sizes, self.training.table(), plan)

    def chosen(self, table: Table, sizes: Mapping[str, int]) -> str:
        """Return the planner's plan for a process's share of a batch."""
        parts = parts_of_batch(self.clauses, self.mesh)
        return smallest(table, {**sizes, "B": max(sizes["B"] // parts, 1)}, self.training.precision.name)

    def made(self, prepared: Prepared) -> Any:
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

    def __init__(self, prepared: Prepared, runner: MeshRunner) -> None:
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

    def _compiled(self, prepared: Prepared) -> InPlace:
        runner, sizes = self._runner, self.sizes | self.placed.sizes
        if runner.device != "cpu":
            raise InputError("kernels are compiled for the processor")
        table, arrays = bucketed(self.placed.table), self._own(prepared)
        return self.in_place(table, arrays, sizes, runner.training.precision.name, runner.devices)

    def _emitted(self) -> TorchProgram:
        runner, sizes = self._runner, self.sizes | self.placed.sizes
        precision = runner.training.precision.name
        return TorchProgram(bucketed(self.placed.table), sizes, precision, runner.device, devices=runner.devices)

    def _own(self, prepared: Prepared) -> Values:
        """Return this process's shards of a step's inputs."""
        table = self.placed.table
        names = (*table.weights, *table.inputs)
        return {name: mine(self._ordered(name, prepared.values[name]), table.axes[name], self._here) for name in names}

    def _ordered(self, name: str, array: Any) -> Any:
        """Return an array of a batch with its reordered positions, if any; weights and states have none."""
        if name in self.owned:
            return array
        return ordered(array, self.placed.table.axes[name], self.placed.zigzag, self._here)

    def __call__(self, prepared: Prepared) -> Values:
        tensors = self.ran(self._own(prepared))
        results = {name: self._result(name, tensor) for name, tensor in tensors.items()}
        return results | self.pool.renewed(self.table)

    def _result(self, name: str, tensor: Any) -> Any:
        """Return a result of a step: an accumulated gradient stays a shard, other results are gathered."""
        array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).cpu().numpy()
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


def placed_over(
    table: Table,
    grid: Mesh,
    clauses: tuple[Clause, ...],
    sizes: Mapping[str, int],
    step: Table | None = None,
    plan: str = "",
) -> Placed:
    """Return a table over a mesh; an indivisible batch is replicated on all devices.

    step  of which it may be a part, such as the update behind microbatches, which has no batch: clauses are about this
    Raises `InputError` where another axis does not divide.
    """
    return place(table, *for_batch(grid, clauses, sizes), sizes, step, plan=plan)


def for_batch(grid: Mesh, clauses: tuple[Clause, ...], sizes: Mapping[str, int]) -> tuple[Mesh, tuple[Clause, ...]]:
    """Return a mesh and its sharding rules, without those of an indivisible batch, which is replicated."""
    if sizes["B"] % parts_of_batch(clauses, grid):
        clauses = tuple(clause for clause in clauses if clause.axes != ("B",))
        used = {clause.mesh for clause in clauses}
        grid = Mesh(tuple((name, count if name in used else 1) for name, count in grid.axes))
    return grid, clauses
