"""Runs a step in place: PyTorch's products and compiled kernels on one arena, as the emitted program says."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from learncost.backends.placed import TYPES, placed
from learncost.engines import processor
from learncost.engines.compiler import Call, CompiledKernels
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class InPlace:
    """A step, ready to run again and again: its program, its kernels, its arena and the tensors that it changes.

    table    a step's table whose outputs are results and new weights, no gradients
    sizes    of all axes and counts
    dtype    fp32, fp64, or bf16-masters for products in bf16 with weights in fp32
    tensors  weights and the optimizer's state by name: these very tensors are changed
    arena    memory to use if it is large enough, of another step that never runs at the same time
    devices  the DeviceMesh that its collectives are over, where it is one of several
    Raises `InputError` where a line cannot be computed in place or where there is no compiler.
    """

    def __init__(
        self,
        table: Table,
        sizes: Mapping[str, int],
        dtype: str,
        tensors: Mapping[str, torch.Tensor],
        arena: torch.Tensor | None = None,
        devices: DeviceMesh | None = None,
    ) -> None:
        self.program = placed(table, sizes, dtype)
        # What no line changes in its place, as where two lines make a weight anew or none reads the old, is moved.
        self._moved = {new: tensors[old] for old, new in table.renewed.items() if new in self.program.results}
        namespace: dict[str, Any] = {"__name__": "learncost_emitted", "__source__": self.program.text}
        exec(compile(self.program.text, "<emitted by learncost>", "exec"), namespace)
        self._given = {name: tensors[name] for name in self.program.given if name in tensors}
        self._inputs = {}
        for name, (axes, kind) in self.program.given.items():
            if name not in tensors:
                shape = shape_of(axes, sizes)
                self._inputs[name] = torch.empty(shape, dtype=getattr(torch, TYPES[kind]))
        if arena is None or len(arena) < self.program.bytes:
            arena = _large(self.program.bytes)
        self.arena = arena
        self._memory: SimpleNamespace = namespace["lay_out"]({**self._given, **self._inputs}, arena)
        kernels = CompiledKernels(self.program.functions)
        names = [function.name for function in self.program.functions]
        self._kernels = SimpleNamespace(**{name: _on_tensors(kernels[name]) for name in names})
        self._step = namespace["step"]
        self._devices = (devices,) if self.program.meets else ()

    @property
    def batch(self) -> int:
        """The bytes of what every step is given anew."""
        return sum(tensor.nbytes for tensor in self._inputs.values())

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """One step on arrays by name: the results that are new, in memory that the next step writes over."""
        for name, tensor in self._inputs.items():
            tensor.copy_(torch.as_tensor(np.require(arrays[name], requirements="W")))
        with torch.inference_mode(), library_products():
            self._step(self._memory, self._kernels, *self._devices)
            results = {
                name: getattr(self._memory, output).view(shape)
                for name, (output, shape) in self.program.results.items()
            }
            for new, tensor in self._moved.items():
                tensor.copy_(results[new])
            return results


def _large(size: int) -> torch.Tensor:
    """Memory in large pages where the system has them to give: fewer of them to find than small ones."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Private, as memory that may be shared with other processes has pages of its own kind.
        memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, max(size, 1))
    return torch.frombuffer(memory, dtype=torch.uint8)


def _on_tensors(call: Call) -> Call:
    """A kernel that takes tensors in the place of their addresses, and sizes after them."""
    return lambda *arguments: call(
        *[argument if isinstance(argument, int) else argument.data_ptr() for argument in arguments]
    )


@contextmanager
def library_products() -> Iterator[None]:
    """Products in fp32 by the library that does them fastest here, exactly."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_library())
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _library() -> str:
    """The precision that makes PyTorch take this library: `highest` for MKL, which is at home on Intel's processors;
    a lower one for oneDNN, which may then round the factors, and is left where it does."""
    if processor.cpu_field("vendor_id") == "GenuineIntel":
        return "highest"
    return next((precision for precision in ("medium", "high") if _is_exact(precision)), "highest")


def _is_exact(precision: str) -> bool:
    """Whether products at this setting are those of fp32 here: bf16 tiles would round the factors, of matrices that
    fill them."""
    generator = torch.Generator().manual_seed(0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    errors = []
    for rows, inner in ((16, 512), (64, 64), (128, 256)):
        left, right = (torch.randn(rows, inner, generator=generator) for _ in range(2))
        errors += [(left @ right.t() - (left.double() @ right.t().double())).abs().max().item()]
        errors += [(left.t() @ right - (left.t().double() @ right.double())).abs().max().item()]
    torch.set_float32_matmul_precision(before)
    # Sums of up to 512 products of about 1: fp32 is wrong by about 1e-4 at most, factors rounded to bf16 by 0.1.
    return max(errors) < 2e-3
