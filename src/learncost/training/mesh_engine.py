"""The engine on several processes: each runs its sharded step on PyTorch, with functional collectives.

Every process draws the same weights, batches and masks and takes its own parts of them, so that what is learned does
not depend on the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.engines.adapted import merged
from learncost.engines.options import Options
from learncost.engines.weights import shape
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration
from learncost.models.model import build, run_sizes
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.sharding.clauses import ShardSpecs
from learncost.sharding.devices import filled_part, own_part
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import mesh
from learncost.sharding.presets import chosen_for
from learncost.training.engine import Arrays, Batch, NumPyEngine
from learncost.training.mesh_runner import MeshRunner, mine, parts_of_batch
from learncost.training.parts import KINDS, ArrayPart, Parts
from learncost.training.torch_engine import check_codes


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
            raise InputError(f"--mesh lays weights out once, so {options.procedure} is for one process")
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
        self._runner.check(training.table(), self._micro(options))  # what cannot be is said at once
        self._cut = False

    def _made(self, options: Options) -> MeshRunner:
        sizes = self._training.model.sizes
        clauses = chosen_for(self._mesh, sizes, options.place, options.placement)
        return MeshRunner(self._training, self._mesh, clauses, options)

    def _micro(self, options: Options) -> Mapping[str, int]:
        """Return the sizes of one microbatch."""
        return {**self._sizes, "B": self._sizes["B"] // options.accumulate}

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
                real, first = own_part(array, self._cut_as(name), here)
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
                (name := full.removeprefix(f"{kind}.")): filled_part(_joined(several), self._cut_as(name), here)
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
