"""Run the step of `emit --backend triton`: on a GPU as one CUDA graph, under TRITON_INTERPRET=1 on the CPU."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from learncost.backends import triton as printed
from learncost.backends.placed import InPlaceProgram
from learncost.engines.in_place import InPlace
from learncost.ir.errors import InputError
from learncost.ir.table import Table

LEAST = (8, 0)
"""The least compute capability for which the kernels are compiled: that of an A100."""


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def check_device(device: str) -> None:
    """Raise `InputError` for a device that PyTorch does not know or see."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"--device {device} cannot be used here: {reason}") from None


def check_gpu(device: str) -> None:
    """Raise `InputError` where a device cannot run kernels in Triton."""
    if find_spec("triton") is None:
        raise InputError(f"--device {device} needs Triton: pip install triton")
    if is_interpreted():
        return
    check_device(device)
    if (found := torch.cuda.get_device_capability(device)) < LEAST:
        name, (major, minor) = torch.cuda.get_device_name(device), found
        raise InputError(
            f"--device {device} needs compute capability {LEAST[0]}.{LEAST[1]}, that of an A100, and {name} has "
            f"{major}.{minor}: give --device cpu"
        )


def free_bytes(device: str) -> int | None:
    """Return the bytes that are free on a GPU; None in Triton's interpreter."""
    return None if is_interpreted() else torch.cuda.mem_get_info(device)[0]


class StepInTriton(InPlace):
    """A step in place with kernels in Triton. The first step compiles them; from then on it is one CUDA graph."""

    def __init__(
        self,
        table: Table,
        sizes: Mapping[str, int],
        dtype: str,
        tensors: Mapping[str, torch.Tensor],
        arena: torch.Tensor | None = None,
        device: str = "cuda",
    ) -> None:
        self.device = "cpu" if is_interpreted() else device
        self._replay: Callable[[], None] | None = None
        super().__init__(table, sizes, dtype, tensors, arena)

    def _loaded(self, table: Table, sizes: Mapping[str, int], dtype: str) -> tuple[InPlaceProgram, dict[str, Any]]:
        program = printed.in_triton(table, sizes, dtype, "A step that learncost trains.")
        namespace = names_of(program.text)
        self._captured = namespace["captured"]
        return program, namespace

    @property
    def says(self) -> str:
        """The text on its kernels, and on what PyTorch's operators compute."""
        others = [f"{each.name} by PyTorch's operators" for each in self.program.functions if each.operators]
        return ", ".join((f"kernels in Triton on {self.device}", *others))

    def _allocated(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _run(self) -> None:
        from triton.errors import TritonError

        try:
            if self._replay is not None:
                self._replay()
            elif self.device == "cpu":
                self._step(self._memory, self._kernels)
            else:
                self._replay = self._captured(self._memory)
        except TritonError as error:
            reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "no reason")
            raise InputError(f"a kernel does not compile in Triton: {reason}: give --device cpu") from None


def names_of(text: str) -> dict[str, Any]:
    """Return what an emitted file defines; Triton reads the text of its kernels where tracebacks do."""
    name = f"<step in Triton {len(linecache.cache)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    namespace: dict[str, Any] = {"__name__": "learncost_emitted"}
    exec(compile(text, name, "exec"), namespace)
    return namespace
