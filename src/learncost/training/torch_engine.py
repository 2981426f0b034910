"""The engine on PyTorch: the step under a plan, in place with compiled kernels or as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.backends.precision import LOW
from learncost.engines.core import PreparedStep, Values
from learncost.engines.emitted import EmittedProgram
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.engines.rounding import widened
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, imported
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.models.configuration import Configuration
from learncost.passes.plan import planned
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.optimizer import without_gradients
from learncost.reports.memory.planner import fastest, smallest
from learncost.training.engine import Arrays, NumPyEngine

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from learncost.backends.placed import InPlaceLayout
    from learncost.engines.in_place import InPlace


class TorchRunner:
    """Executes tables in tensors that share memory with NumPy's arrays, which steps update.

    Batches, scalars and the masks of dropout are made as on NumPy, and only the arithmetic differs.
    """

    updates_in_place = True

    def __init__(self, training: Training, plan: str | None, device: str, deterministic: bool = False) -> None:
        self.training, self.plan, self.device, self.deterministic = training, plan, device, deterministic
        self.gpu = device if device.startswith("cuda") else ""
        if self.gpu:
            from learncost.engines.in_triton import is_interpreted

            self.device = "cpu" if is_interpreted() else device
        training.weights = {name: widened(array) for name, array in training.weights.items()}
        training.state = {name: widened(array) for name, array in training.state.items()}
        self.forget()

    def forget(self) -> None:
        """Discard compiled programs and tensors; weights and state are read again from the training."""
        self.pool = TensorPool(self.device, self.training.low)
        self._steps: dict[tuple[IdentityKey[Table], tuple[tuple[str, int], ...]], Any] = {}

    def fetch(self) -> None:
        """Copy weights and state from the device into NumPy's arrays."""
        self.pool.fetch()

    def change_block(self) -> None:
        """Discard the state of the previous trainable block and its compiled programs."""
        self.fetch()
        self.forget()

    def __call__(self, prepared: PreparedStep) -> Values:
        key = (IdentityKey(prepared.table), tuple(prepared.sizes.items()))
        if key not in self._steps:
            self._steps[key] = self.made(prepared)
        values: Values = self._steps[key](prepared)
        return values

    def made(self, prepared: PreparedStep) -> Any:
        """Return the step of a table for arrays of one size."""
        precision = self.training.precision.name
        return _TorchStep(prepared, self.plan, precision, self.pool, self.gpu, self.deterministic)

    @property
    def says(self) -> str:
        """The description of how the steps are executed: plan, kernels, and which of them are not deterministic."""
        return "; ".join(dict.fromkeys(step.says for step in self._steps.values()))

    @property
    def memory(self) -> int | None:
        """The bytes of persistent arrays, a batch and all arenas; None if operators allocate.

        It is what `learncost memory --engine torch` says; on a GPU --engine cuda, which adds libraries' workspaces.
        """
        steps = self._steps.values()
        if not steps or any(step.arena is None for step in steps):
            return None
        arenas = {step.arena for step in steps if step.arena is not None}  # steps may have one together
        own = (*self.pool.tensors.values(), *self.pool.copies.values(), *arenas)
        return int(max(step.batch for step in steps) + sum(tensor.nbytes for tensor in own))

    @property
    def plan_taken(self) -> str | None:
        """The plan of the first table that ran."""
        return next((step.plan for step in self._steps.values()), self.plan)


class TorchEngine(NumPyEngine):
    """NumPy's engine with its tables on PyTorch, under the planner's or a given plan."""

    name = "torch"
    plans = True
    _runner: TorchRunner

    def __init__(self, configuration: Configuration, options: Options) -> None:
        imported("torch", "--engine torch needs PyTorch", "torch")  # refused here, before anything else is made
        from learncost.engines.in_triton import check_device, check_gpu

        (check_gpu if options.device.startswith("cuda") else check_device)(options.device)
        check_codes(options)
        if options.device != "cpu" and find_optimizer(options.optimizer).states:
            raise InputError(f"--device {options.device} does not round optimizer states, as {options.optimizer} does")
        if options.deterministic and not options.device.startswith("cuda"):
            raise InputError("--deterministic is for --device cuda: steps on a CPU are bit-identical without it")
        super().__init__(configuration, options)
        if options.plan is not None:
            planned(self._training.table(), options.plan, self._training.model.sizes)  # what cannot be is said at once

    def _made(self, options: Options) -> TorchRunner:
        return TorchRunner(self._training, options.plan, options.device, options.deterministic)

    @property
    def weights(self) -> Arrays:
        self._runner.fetch()
        return self._training.weights

    @property
    def state(self) -> Arrays:
        self._runner.fetch()
        return self._training.state

    @property
    def says(self) -> str:
        """The text on the executed steps: plan and kernels."""
        return f"engine torch, {self._runner.says}{self._states}"

    @property
    def plan(self) -> str | None:
        """The plan of the first executed table, usually the step's."""
        return self._runner.plan_taken

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        super().load(weights, state, steps)
        self._runner.forget()


def check_codes(options: Options) -> None:
    """Refuse trainable quantized weights, which the kernels of a step on PyTorch would write as fp32."""
    if precision_of(options.dtype).learned:
        example = f"as in {options.dtype}: use --engine numpy"
        raise InputError(f"--engine torch does not support trainable quantized weights, {example}")


@dataclass
class TensorPool:
    """The tensors that all programs of a training share, on a CPU as views of arrays, and the largest arena.

    low     names whose tensors are bf16
    copies  the bf16 copies of weights that steps on a GPU read, by the weights' names
    """

    device: str = "cpu"
    low: frozenset[str] = frozenset()
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, torch.Tensor] = field(default_factory=dict)
    arena: torch.Tensor | None = None

    def tensor(self, name: str, array: Any) -> torch.Tensor:
        """Return the tensor of a name with an array's numbers; a new one shares the array's memory."""
        import torch

        if name not in self.tensors:
            self.arrays[name] = np.require(array, requirements=("C", "W"))
            tensor = torch.from_numpy(self.arrays[name]).to(self.device, copy=self.device != "cpu")
            self.tensors[name] = tensor.bfloat16() if name in self.low else tensor
        elif array.ndim and not any(array.strides):  # one number, such as the 0 with which sums over microbatches begin
            self.tensors[name].fill_(array.item(0))
        elif not _same(self.arrays[name], array):
            self.tensors[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
            self.copy((name,))
        return self.tensors[name]

    def copy(self, names: Iterable[str]) -> None:
        """Round weights that changed to their copies."""
        for name in names:
            if name in self.copies:
                self.copies[name].copy_(self.tensors[name])

    def held(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of arrays whose numbers may be outdated."""
        own = self.arrays
        return {name: self.tensors[name] for name, array in arrays.items() if name in own and _same(own[name], array)}

    def fetch(self, names: Iterable[str] | None = None) -> None:
        """Copy tensors of another memory, all or some, into their arrays."""
        for name in self.tensors if names is None else names:
            tensor = self.tensors[name]
            if self.device != "cpu" or name in self.low:
                self.arrays[name][...] = as_array(tensor)

    def renewed(self, table: Table) -> Values:
        """Return the updated arrays of a table; accumulated gradients with their numbers, which another table reads."""
        self.fetch(name for name in table.renewed if table.values[name].role == "gathered")
        return {new: self.arrays[name] for name, new in table.renewed.items()}


def _same(first: Any, second: Any) -> bool:
    """Return whether two arrays of one name share memory."""
    return first is second or bool(first.__array_interface__["data"] == second.__array_interface__["data"])


def as_array(tensor: torch.Tensor) -> Any:
    """Return the tensor as an array, bf16 as fp32."""
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).cpu().numpy()


class MemoryNeededError(InputError):
    """A step does not fit the memory of its device."""


class TensorStep:
    """A table for arrays of one size, in place if every line supports it, else as PyTorch's operators.

    owned  the arrays whose memory persists from step to step
    """

    run: InPlace | TorchProgram

    def __init__(self, prepared: PreparedStep, pool: TensorPool) -> None:
        self.table, self.sizes, self.pool = without_gradients(prepared.table), dict(prepared.sizes), pool
        self.owned = tuple(dict.fromkeys((*self.table.weights, *self.table.renewed)))

    def in_place(
        self,
        table: Table,
        arrays: Mapping[str, Any],
        sizes: Mapping[str, int],
        precision: str,
        *devices: DeviceMesh,
        gpu: str = "",
        deterministic: bool = False,
    ) -> InPlace:
        """Return the compiled step on the pool's tensors and arena, on a GPU in Triton. Raises `InputError`."""
        from learncost.engines.in_place import InPlace

        pool, is_double = self.pool, np.float64 in {arrays[name].dtype for name in self.table.weights}
        tensors = {name: pool.tensor(name, arrays[name]) for name in self.owned}
        tensors |= {f"{name}{LOW}": copy for name, copy in pool.copies.items()}
        dtype = "fp64" if is_double else precision
        if gpu:
            from learncost.engines.in_triton import StepInTriton

            step: InPlace = StepInTriton(table, sizes, dtype, tensors, pool.arena, gpu, deterministic)
        else:
            step = InPlace(table, sizes, dtype, tensors, pool.arena, *devices)
        pool.arena = step.arena
        pool.copies |= step.copies
        return step

    def ran(self, arrays: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the results by name; new weights and states have the old ones' tensors."""
        tensors = {name: self.pool.tensor(name, arrays[name]) for name in self.owned}
        results: dict[str, torch.Tensor]
        copied: Iterable[str] = ()
        if isinstance(self.run, TorchProgram):
            results = self.run.step(tensors | self.pool.held(arrays), arrays)
            for name, new in self.table.renewed.items():
                self.pool.tensors[name].copy_(results.pop(new))
        else:
            results, copied = self.run({**arrays, **self.pool.held(arrays)}), self.run.copies
        self.pool.copy(name for name in self.table.renewed if name not in copied)
        return results


class _TorchStep(TensorStep):
    """A step of one process, with the arena and the bytes of its inputs if it is in place."""

    def __init__(
        self,
        prepared: PreparedStep,
        plan: str | None,
        precision: str,
        pool: TensorPool,
        gpu: str = "",
        deterministic: bool = False,
    ) -> None:
        super().__init__(prepared, pool)
        self.gpu, how = gpu, f"on PyTorch's operators on {pool.device}"
        if gpu:
            self.plan = self._fitting(prepared, plan, precision)
        else:
            self.plan = smallest(self.table, self.sizes, precision) if plan is None else plan
        table = planned(self.table, self.plan)
        self.arena: torch.Tensor | None = None
        self.batch = 0
        if pool.device == "cpu" or gpu:
            try:
                self.run = step = self.in_place(
                    table, prepared.values, self.sizes, precision, gpu=gpu, deterministic=deterministic
                )
                self.arena, self.batch = step.arena, step.batch
            except InputError as error:
                how = f"on PyTorch's operators, as {error}"
        if self.arena is None:
            self.run = TorchProgram(table, self.sizes, precision, pool.device)
            self.run.says = how

    @property
    def says(self) -> str:
        """The text on the plan and the kernels, and on what a first step has measured."""
        return f"plan {self.plan or 'none'}, {self.run.says}"

    def _fitting(self, prepared: PreparedStep, plan: str | None, precision: str) -> str:
        """Return the plan on a GPU, which the planner chooses for its free memory where none is given.

        Raises `MemoryNeededError` for a step that the GPU has no memory for, with the plan of one that fits.
        """
        import torch

        from learncost.backends import triton
        from learncost.engines.in_triton import free_bytes, is_interpreted

        gpu, pool, table, sizes = self.gpu, self.pool, self.table, self.sizes
        try:
            held = sum(pool.tensor(name, prepared.values[name]).nbytes for name in self.owned)
        except torch.OutOfMemoryError:
            size = sum(prepared.values[name].nbytes for name in self.owned)
            raise MemoryNeededError(
                f"weights and states take {size:,} bytes, for which {gpu} has no memory: give a smaller model, an "
                "optimizer with fewer states, or --device cpu"
            ) from None
        free, others = free_bytes(gpu), (*pool.copies.values(), *([] if pool.arena is None else [pool.arena]))
        budget = None if free is None else free + held + sum(each.nbytes for each in others)

        def planner() -> str:
            on = "" if is_interpreted() else torch.cuda.get_device_name(gpu)
            return fastest(table, sizes, precision, budget, on)

        def laid_out(plan: str) -> InPlaceLayout:
            return triton.laid_out(planned(table, plan), sizes, precision)

        given = planner() if plan is None else plan
        try:
            needed = triton.needed(layout := laid_out(given))
        except InputError:
            return given  # PyTorch's operators run it
        if budget is None or needed <= budget:
            return given
        other = given if plan is None else planner()
        smaller, why = triton.needed(laid_out(other)), ""
        advice = f"--plan {other}, which takes {smaller - held:,}" if smaller <= budget else "a smaller --batch-size"
        largest = max(layout.functions, key=lambda function: function.allocates)
        if largest.operators and smaller > budget:
            why = f", {largest.allocates:,} of them in {largest.name}, which PyTorch's operators compute"
            advice = "--device cpu, whose kernels allocate nothing"
        raise MemoryNeededError(
            f"a step takes {needed - held:,} bytes besides weights and states{why}, and {gpu} has {free:,} free: "
            f"give {advice}"
        )

    def __call__(self, prepared: PreparedStep) -> Values:
        results = {name: self._handed(tensor) for name, tensor in self.ran(prepared.values).items()}
        return results | {new: self.pool.arrays[name] for name, new in self.table.renewed.items()}

    def _handed(self, tensor: torch.Tensor) -> Any:
        """Return a result as an array; a single number stays on a GPU until somebody reads it."""
        return tensor.clone() if self.gpu and not tensor.ndim else as_array(tensor)


class TorchProgram(EmittedProgram):
    """The program of a table as PyTorch's operators.

    On CUDA `torch.compile` takes it whole and writes its kernels.

    devices  the mesh that its collectives are over, where it is one of several
    says     the text on why
    """

    says = ""

    def __init__(
        self, table: Table, sizes: Mapping[str, int], precision: str, device: str, devices: DeviceMesh | None = None
    ) -> None:
        import torch

        super().__init__(table, sizes, "torch", precision)
        self._reads, self._device = tuple(table.inputs), device
        self._devices = (devices,) if self.program.meets else ()
        if device.startswith("cuda"):
            self.function = torch.compile(self.function, dynamic=False)

    def step(self, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the results by name, from tensors that stay and from the arrays of a batch."""
        import torch

        values = dict(tensors)
        for name in self._reads:
            if name not in values:
                array = arrays[name]
                array = array if torch.is_tensor(array) else torch.from_numpy(np.require(array, None, ("C", "W")))
                values[name] = array.to(self._device)
        with torch.inference_mode():
            return self(values, *self._devices)
