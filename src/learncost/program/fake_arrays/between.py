"""A mesh of devices without values: what programs for PyTorch ask of it, and the rooms of what is sent over it.

The functional collectives give their results rooms of their own. What their backend takes for itself is not counted:
gloo has copies of what it gathers, and of what it reduces and scatters (ProcessGroupGloo.cpp), NCCL has none. Rows that
go to who owns what they read are taken to be balanced.

Programs for NumPy meet as threads, and have what their helpers make.
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
    """The devices along an axis of a mesh, as its first one sees them."""

    devices: int

    @property
    def group_name(self) -> FakeGroup:
        """What collectives are told."""
        return self

    def size(self) -> int:
        """How many they are."""
        return self.devices

    def rank(self) -> int:
        """Which of them this one is."""
        return 0


class DeviceMesh:
    """A mesh of devices by its axes, as the first device sees it: every other one has arrays of the same shapes."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.mesh_dim_names = tuple(axes)
        self._groups = {name: FakeGroup(number) for name, number in axes.items()}

    def __getitem__(self, over: str) -> FakeGroup:
        return self._groups[over]

    def get_group(self, over: str) -> FakeGroup:
        """The devices along an axis."""
        return self._groups[over]

    def get_local_rank(self, over: str) -> int:
        """Which of them this one is."""
        return self._groups[over].rank()

    def size(self, place: int) -> int:
        """How many they are, by the number of the axis."""
        return self._groups[self.mesh_dim_names[place]].size()


class Collectives:
    """What programs call `torch.ops._c10d_functional`."""

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
    """What programs call `torch.distributed`: who sends how many rows is told, and known before."""
    return SimpleNamespace(all_to_all_single=lambda here, there, group: None)


class FakeDevice:
    """A device of a mesh for programs on NumPy, the first one: what it meets has arrays of the same shapes."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.sizes, self.place = dict(axes), dict.fromkeys(axes, 0)

    def meet(self, over: str, arrays: Any, make: Callable[[list[Any]], FakeArray]) -> FakeArray:
        """What is made of the arrays of all along an axis."""
        return make([arrays] * self.sizes[over])

    def rows(self, owner: FakeArray, over: str, place: int) -> FakeArray:
        """The rows that the device at a place of an axis owns: of all that there are as many as balance."""
        return FakeArray.new(owner.account, ((len(owner) + place) // self.sizes[over],), np.int64)
