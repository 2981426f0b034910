"""Run a step's emitted program in one arena, with PyTorch's matrix products and compiled kernels."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learncost.backends.placed import TYPES, InPlaceProgram, placed
from learncost.engines import processor
from learncost.engines.compiler import Call, CompiledKernels, compiler
from learncost.engines.emitted import executed_text
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class InPlace:
    """A compiled step that can run repeatedly: its program, kernels, arena and the tensors that it changes in place.

    On a CPU the kernels are in C. `StepInTriton` is the same step on a GPU.

    table    a step's table whose outputs are results and new weights, no gradients
    sizes    the sizes of all axes and trip counts
    dtype    fp32, fp64, or bf16-masters for products in bf16 with weights in fp32
    tensors  weights and optimizer state by name; the step changes these tensors in place, and bf16 copies of weights
    arena    memory to reuse if it is large enough: that of another step that never runs at the same time
    devices  the DeviceMesh of its collectives, on a mesh of devices
    copies   the bf16 copies of weights, by the weights' names
    Raises `InputError` where a line cannot be computed in place, or without a compiler.
    """

    device = "cpu"

    def __init__(
        self,
        table: Table,
        sizes: Mapping[str, int],
        dtype: str,
        tensors: Mapping[str, torch.Tensor],
        arena: torch.Tensor | None = None,
        devices: DeviceMesh | None = None,
    ) -> None:
        self.program, namespace = self._loaded(table, sizes, dtype)
        copied = self.program.copies
        tensors = {name: tensors[weight].bfloat16() for name, weight in copied.items()} | dict(tensors)
        self.copies = {weight: tensors[name] for name, weight in copied.items()}
        # A weight that no line updates in place is copied, for example if two lines compute it.
        self._moved = {new: tensors[old] for old, new in table.renewed.items() if new in self.program.results}
        self._given = {name: tensors[name] for name in self.program.given if name in tensors}
        self._inputs = {}
        self._numbers: dict[str, float] = {}
        for name, (axes, kind) in self.program.given.items():
            if name not in tensors:
                shape = shape_of(axes, sizes)
                self._inputs[name] = torch.empty(shape, dtype=getattr(torch, TYPES[kind]), device=self.device)
        if arena is None or len(arena) < self.program.bytes:
            arena = self._allocated(self.program.bytes)
        self.arena = arena
        self._memory: SimpleNamespace = namespace["lay_out"]({**self._given, **self._inputs}, arena)
        self._kernels: SimpleNamespace = namespace["KERNELS"]
        self._step: Callable[..., None] = namespace["step"]
        self._devices = (devices,) if self.program.meets else ()

    def _loaded(self, table: Table, sizes: Mapping[str, int], dtype: str) -> tuple[InPlaceProgram, dict[str, Any]]:
        """Return the program of a step, and what its text defines, with compiled kernels."""
        program = placed(table, sizes, dtype)
        namespace = executed_text(program.text)
        kernels = CompiledKernels(program.functions)
        named = {function.name: _on_tensors(kernels[function.name]) for function in program.functions}
        return program, namespace | {"KERNELS": SimpleNamespace(**named)}

    def _allocated(self, size: int) -> torch.Tensor:
        return _large(size)

    def _run(self) -> None:
        with library_products():
            self._step(self._memory, self._kernels, *self._devices)

    @property
    def says(self) -> str:
        """The text on its kernels."""
        return f"kernels compiled by {' '.join(compiler() or ())}"

    @property
    def batch(self) -> int:
        """Return the bytes of a step's inputs."""
        return sum(tensor.nbytes for tensor in self._inputs.values())

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Run one step on arrays or tensors by name and return its results, in memory that the next step overwrites."""
        for name, tensor in self._inputs.items():
            array = arrays[name]
            if not tensor.ndim:  # most hyperparameters do not change
                if self._numbers.get(name) == array:
                    continue
                self._numbers[name] = float(array)
            tensor.copy_(array if torch.is_tensor(array) else torch.as_tensor(np.require(array, requirements="W")))
        with torch.inference_mode():
            self._run()
            results = {
                name: getattr(self._memory, output).view(shape)
                for name, (output, shape) in self.program.results.items()
            }
            for new, tensor in self._moved.items():
                tensor.copy_(results[new])
            return results


def _large(size: int) -> torch.Tensor:
    """Return memory in huge pages where the system supports them, since these need fewer page table lookups."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Private, because shared memory uses another kind of pages.
        memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, max(size, 1))
    return torch.frombuffer(memory, dtype=torch.uint8)


def _on_tensors(call: Call) -> Call:
    """Return a kernel that accepts tensors instead of addresses, followed by sizes."""
    return lambda *arguments: call(
        *[argument if isinstance(argument, int) else argument.data_ptr() for argument in arguments]
    )


@contextmanager
def library_products() -> Iterator[None]:
    """Select the fastest exact library for fp32 products on this machine."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_library())
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _library() -> str:
    """Return PyTorch's setting of the fp32 precision that selects the fastest exact library: `highest` selects MKL on
    Intel's CPUs; a lower one selects oneDNN, unless it then rounds the factors."""
    if processor.cpu_field("vendor_id") == "GenuineIntel":
        return "highest"
    return next((precision for precision in ("medium", "high") if _is_exact(precision)), "highest")


def _is_exact(precision: str) -> bool:
    """Return whether products at this setting are exact fp32; bf16 tiles would round the factors of large matrices."""
    generator = torch.Generator().manual_seed(0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    errors = []
    for rows, inner in ((16, 512), (64, 64), (128, 256)):
        left, right = (torch.randn(rows, inner, generator=generator) for _ in range(2))
        errors += [(left @ right.t() - (left.double() @ right.t().double())).abs().max().item()]
        errors += [(left.t() @ right - (left.t().double() @ right.double())).abs().max().item()]
    torch.set_float32_matmul_precision(before)
    # Sums of up to 512 products of about 1: the error is at most about 1e-4 in fp32, and 0.1 with bf16 factors.
    return max(errors) < 2e-3
