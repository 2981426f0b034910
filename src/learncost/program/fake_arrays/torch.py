"""The run of a program for PyTorch on tensors of its device "meta", which have no values, and a mesh without processes.

The functional collectives allocate their results. The backend's own memory is not counted: gloo copies what it gathers,
and what it reduces and scatters (ProcessGroupGloo.cpp), NCCL copies nothing. Dispatched rows are assumed to be
balanced.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed._functional_collectives  # the results of collectives on the device meta
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from learncost.ir.dataclass import dataclass
from learncost.program.fake_arrays.numpy import FewIterations, namespace
from learncost.program.program import ProgramBuilder

_OF_ROWS = (
    torch.ops.aten._softmax.default,
    torch.ops.aten._log_softmax.default,
    torch.ops.aten.native_layer_norm.default,
)
"""Operators whose CPU kernels copy an input that is not contiguous (SoftMax.cpp, layer_norm.cpp)."""


class TorchRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which every operator records the memory that its results are the first to use."""

    def __init__(self, builder: ProgramBuilder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.builder, self._known = builder, dict[int, Any]()
        self._rows = 0

    def load(self, text: str) -> dict[str, Any]:
        """Return the namespace of a program."""
        names = namespace(FewIterations().visit(ast.parse(text)), self.builder)
        names["torch"] = _Torch()
        return names

    def array(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Return a tensor that the program is given."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def devices(self, axes: Mapping[str, int]) -> MetaMesh:
        """Return the mesh."""
        return MetaMesh(axes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._result(func, args, kwargs or {})
        new = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and self._is_new(each)]
        if new:
            copies = func in _OF_ROWS and not args[0].is_contiguous()
            self.builder.run("", scratch=args[0].nbytes if copies else 0)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if func is torch.ops.aten.bincount.default:
            self._rows, (_, _, devices) = args[0].numel(), args
            return args[0].new_empty((devices,))
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            (devices,) = args[0].shape  # the numbers of rows that each device gets, read by the program
            return torch.tensor([(self._rows + place) // devices for place in range(devices)])
        return func(*args, **kwargs)

    def _is_new(self, tensor: torch.Tensor) -> bool:
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._known:
            return False
        buffer = self.builder.allocate(memory.nbytes())

        def free(_: object) -> None:
            del self._known[key]
            self.builder.free(buffer)

        self._known[key] = weakref.ref(memory, free)
        return True


class _Torch:
    """PyTorch for a program of which not all iterations run, as one of several processes."""

    distributed = SimpleNamespace(all_to_all_single=lambda here, there, group: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def stack(self, tensors: Sequence[torch.Tensor | None], dim: int = 0) -> torch.Tensor:
        """Return the stack of the results of iterations; those that did not run have the first one's shape."""
        return torch.stack([tensors[0] if each is None else each for each in tensors], dim)  # type: ignore[misc]


@dataclass(frozen=True)
class MetaGroup:
    """The devices along an axis of a mesh, from the view of the first one."""

    group_name: str
    devices: int

    def size(self) -> int:
        """Return the number of devices."""
        return self.devices

    def rank(self) -> int:
        """Return the rank of this device."""
        return 0


class MetaMesh:
    """A mesh of devices by its axes, from the view of the first device: all others have tensors of the same shapes."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.mesh_dim_names = tuple(axes)
        self._groups = {name: MetaGroup(name, number) for name, number in axes.items()}

    def __getitem__(self, over: str) -> MetaGroup:
        return self._groups[over]

    get_group = __getitem__

    def get_local_rank(self, over: str) -> int:
        """Return the rank of this device along an axis."""
        return self._groups[over].rank()

    def size(self, place: int) -> int:
        """Return the number of devices along an axis, by the axis's number."""
        return self._groups[self.mesh_dim_names[place]].size()
