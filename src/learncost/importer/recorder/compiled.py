"""Record what `torch.compile` generates on tensors without values, and without a GPU.

Dynamo, AOTAutograd and inductor compile the module as they do in a run: which tensors are saved, which operators are
one kernel, and which memory is reused is decided by them. Their program then runs, but for its kernels in Triton or
C++, which are recorded and not compiled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import async_compile, config, scheduler
from torch._inductor.utils import fresh_cache
from torch.utils import _triton

from learncost.importer.recorder.recorder import Recorder
from learncost.importer.replaced import attributes_replaced
from learncost.ir.errors import InputError
from learncost.program.program import CUDA, REREAD, ROW, Operand, StepRequest

SETTINGS = {"force_disable_caches": True, "compile_threads": 1, "triton.autotune_at_compile_time": False,
            "shape_padding": False}  # fmt: skip
"""Settings of inductor: what is generated here is not kept for runs, and no product is padded, which it decides by a
benchmark on the GPU (`pad_mm.py`)."""

THREADS = {"regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024,
           "warp_size": 32}  # fmt: skip
"""The limits of a multiprocessor of NVIDIA's data center GPUs from V100 on (CUDA programming guide, table of compute
capabilities)."""


class GeneratedKernel:
    """A kernel in Triton or C++, recorded with what it reads and writes in place of its run."""

    def __init__(self, recorder: Recorder, name: str, pointers: Sequence[str], source: str) -> None:
        self._recorder, self._name, self._pointers = recorder, name, pointers
        loops = re.split(r"\n +for r\d?_?offset in", source)
        self._loads = Counter(re.findall(r"tl\.load\((\w+)", source))
        self._passes = Counter(each for part in loops[1:] for each in set(re.findall(r"tl\.load\((\w+)", part)))
        self._added = set(re.findall(r"tl\.atomic_add\((\w+)", source))

    def run(self, *given: Any, **_: Any) -> None:
        """Record the kernel: a pointer that is loaded in n places reads at most n elements at each point."""
        if not self._recorder.is_active:
            return  # the step before, which compiles
        named = dict(zip(self._pointers, given, strict=False))
        numels = {name: each for name, each in named.items() if name.endswith("numel")}
        points = prod(numels.values())
        summed = prod(each for name, each in numels.items() if name.startswith("r"))
        read, written, again, row = list[Operand](), list[Operand](), 0, 0
        for name, tensor in named.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            several = min(tensor.numel(), points * max(self._loads[name], 1)) if points > 1 else tensor.numel()
            operand = self._recorder.operand(tensor, self._name)
            if several < tensor.numel():
                operand = operand._replace(shape=(several,), strides=(1,), offset=0)
            if name.startswith("in_") or name in self._added:
                read.append(operand)
            if self._passes[name] > 1:
                again += (self._passes[name] - 1) * several * tensor.element_size()
                row = max(row, summed * tensor.element_size())
            if "out_ptr" in name:
                written.append(operand)
        self._recorder.launch(self._name, read, written, {REREAD: again, ROW: row} if again else {})

    __call__ = run


@contextmanager
def generated(recorder: Recorder, request: StepRequest) -> Iterator[None]:
    """Compile modules inside as for a GPU or a CPU, and record the kernels of their programs."""
    if request.device == CUDA and find_spec("triton") is None:
        raise InputError("torch.compile generates kernels in Triton for a GPU: pip install triton")
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, run in (("empty.memory_format", torch.ops.aten.empty.memory_format),
                      ("empty_strided", torch.ops.aten.empty_strided)):  # fmt: skip
        library.impl(name, _on_cpu(run), "CUDA")  # inductor computes constants of one value
    major, minor = request.capability
    gpu = SimpleNamespace(
        name="", major=major, minor=minor, multi_processor_count=request.multiprocessors, total_memory=0, **THREADS
    )
    guards, compiler = torch._C._dynamo.guards, async_compile.AsyncCompile
    answers: dict[tuple[Any, str], Any] = {
        (torch._C, "_cuda_getCurrentRawStream"): lambda _: 0,
        (torch.cuda, "set_device"): lambda _: None,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "get_device_properties"): lambda *_: gpu,
        (torch.cuda, "_DeviceGuard"): lambda _: recorder.in_compiled(),
        (torch.version, "cuda"): "13.0",
        (guards, "_empty_strided_cuda"): lambda *sizes: _empty("cuda", *sizes),
        (guards, "_empty_strided_cpu"): lambda *sizes: _empty("cpu", *sizes),
        (guards, "_reinterpret_tensor"): lambda *given: _view(recorder, *given),
        (guards, "assert_size_stride"): lambda *_: None,
        (guards, "assert_alignment"): lambda *_: None,
        (CudaInterface, "is_available"): staticmethod(lambda: True),
        (CudaInterface, "current_device"): staticmethod(lambda: 0),
        (CudaInterface, "is_bf16_supported"): staticmethod(lambda *_, **__: True),
        (CudaInterface, "raise_if_triton_unavailable"): staticmethod(lambda *_: None),
        (CudaInterface, "get_device_properties"): staticmethod(lambda *_: gpu),
        (CudaInterface, "get_compute_capability"): staticmethod(lambda *_: 10 * major + minor),
        (CudaInterface.Worker, "get_device_properties"): staticmethod(lambda *_: gpu),
        (_triton, "triton_hash_with_backend"): lambda: "",
        (scheduler, "has_triton"): lambda *_: True,
        (compiler, "triton"): lambda _, name, source, **__: _in_triton(recorder, name, source),
        (compiler, "cpp_pybinding"): lambda _, types, source: _in_cpp(recorder, types, source),
        (compiler, "wait"): lambda *_: None,
    }
    try:
        with attributes_replaced(answers), config.patch(SETTINGS), fresh_cache():
            yield
    finally:
        torch._dynamo.reset()
        library._destroy()


def _on_cpu(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: run(*args, **{**named, "device": "cpu"})


def _empty(device: str, sizes: Any, strides: Any, kind: Any) -> Any:
    return torch.empty_strided(sizes, strides, dtype=kind, device=device)


def _view(recorder: Recorder, tensor: Any, sizes: Any, strides: Any, offset: int = 0) -> Any:
    with recorder.in_compiled():  # programs return some behind their guard of the device
        return torch.as_strided(tensor, sizes, strides, tensor.storage_offset() + offset)


def _in_triton(recorder: Recorder, name: str, source: str) -> GeneratedKernel:
    found = re.search(rf"def {name}\((.*?)\)", source)
    pointers = [each.split(":")[0].strip() for each in found[1].split(",")] if found else []
    return GeneratedKernel(recorder, f"triton::{name}", pointers, source)


def _in_cpp(recorder: Recorder, types: Sequence[str], source: str) -> GeneratedKernel:
    found = re.search(r"void +\w+\((.*?)\)", source, re.DOTALL)
    pointers = [each.split("*")[-1].split()[-1] for each in found[1].split(",")] if found else []
    return GeneratedKernel(recorder, "cpp::fused", pointers, "")
