"""A mesh of devices without values: the interface that programs for PyTorch use, and the allocations of communication.

The functional collectives allocate their results. The backend's own memory is not counted: gloo copies what it gathers,
and what it reduces and scatters (ProcessGroupGloo.cpp), NCCL copies nothing. Dispatched rows are assumed to be
balanced. Programs for NumPy communicate as threads, with the allocations of their helpers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from learncost.program.fake_arrays.array import FakeArray
from learncost.program.fake_arrays.tensor import ShapeTensor


@dataclass(frozen=True)
class FakeGroup:
    """The devices along an axis of a mesh, from the view of the first one."""

    devices: int

    @property
    def group_name(self) -> FakeGroup:
        """The group as collectives receive it."""
        return self

    def size(self) -> int:
        """Return the number of devices."""
        return self.devices

    def rank(self) -> int:
        """Return the rank of this device."""
        return 0


class DeviceMesh:
    """A mesh of devices by its axes, from the view of the first device: all others have arrays of the same shapes."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.mesh_dim_names = tuple(axes)
        self._groups = {name: FakeGroup(number) for name, number in axes.items()}

    def __getitem__(self, over: str) -> FakeGroup:
        return self._groups[over]

    def get_group(self, over: str) -> FakeGroup:
        """Return the devices along an axis."""
        return self._groups[over]

    def get_local_rank(self, over: str) -> int:
        """Return the rank of this device along an axis."""
        return self._groups[over].rank()

    def size(self, place: int) -> int:
        """Return the number of devices along an axis, by the axis's number."""
        return self._groups[self.mesh_dim_names[place]].size()


class Collectives:
    """The functions of `torch.ops._c10d_functional` that programs call."""

    def all_reduce(self, tensor: ShapeTensor, how: str, group: FakeGroup) -> ShapeTensor:
        return tensor.like(tensor.shape)

    def all_reduce_(self, tensor: ShapeTensor, how: str, group: FakeGroup) -> ShapeTensor:
        return tensor

    def all_gather_into_tensor(self, tensor: ShapeTensor, number: int, group: FakeGroup) -> ShapeTensor:
        return tensor.like((number * tensor.shape[0], *tensor.shape[1:]))

    def reduce_scatter_tensor(self, tensor: ShapeTensor, how: str, number: int, group: FakeGroup) -> ShapeTensor:
        return tensor.like((tensor.shape[0] // number, *tensor.shape[1:]))

    def all_to_all_single(
        self, tensor: ShapeTensor, here: Sequence[int], there: Sequence[int], group: FakeGroup
    ) -> ShapeTensor:
        return tensor.like((sum(here), *tensor.shape[1:]))

    def wait_tensor(self, tensor: ShapeTensor) -> ShapeTensor:
        return tensor


def distributed() -> Any:
    """Return the functions of `torch.distributed` that programs call; numbers of rows are known before."""
    return SimpleNamespace(all_to_all_single=lambda here, there, group: None)


class FakeDevice:
    """The first device of a mesh for programs on NumPy; all others have arrays of the same shapes."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.sizes, self.place = dict(axes), dict.fromkeys(axes, 0)

    def meet(self, over: str, arrays: Any, make: Callable[[list[Any]], FakeArray]) -> FakeArray:
        """Return the result of a function of the arrays of all devices along an axis."""
        return make([arrays] * self.sizes[over])

    def rows(self, owner: FakeArray, over: str, place: int) -> FakeArray:
        """Return the rows that the device at a coordinate of an axis owns, if they are balanced."""
        return FakeArray.new(owner.builder, ((len(owner) + place) // self.sizes[over],), np.int64)
