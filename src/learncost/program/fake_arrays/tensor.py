"""PyTorch's tensors without values, each with a shape, a type, a layout, and its CPU allocation, and a mesh of devices
without values, with the allocations of communication.

The functional collectives allocate their results. The backend's own memory is not counted: gloo copies what it gathers,
and what it reduces and scatters (ProcessGroupGloo.cpp), NCCL copies nothing. Dispatched rows are assumed to be
balanced. Programs for NumPy communicate as threads, with the allocations of their helpers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from learncost.dataclass import dataclass
from learncost.program.fake_arrays.array import FakeArray, StridedLayout
from learncost.program.program import ProgramBuilder

BFLOAT16 = np.dtype("float16")
"""The stand-in for bfloat16, which NumPy lacks: a type of the same size and the same promotion."""

Number: TypeAlias = "float | int"
Function: TypeAlias = "Callable[..., ShapeTensor]"


class ShapeTensor(StridedLayout):
    """A tensor of PyTorch without values.

    Methods are those that emitted programs call; those that end in _ are in-place, and allocate nothing.
    """

    __slots__ = ()
    device = "cpu"

    # Views, and copies where no view is possible.

    def permute(self, *axes: int) -> ShapeTensor:
        return self.view_of(self.layout.transpose(axes))

    def expand(self, *shape: int) -> ShapeTensor:
        return self.view_of(np.broadcast_to(self.layout, shape))

    def transpose(self, first: int, second: int) -> ShapeTensor:
        return self.view_of(self.layout.swapaxes(first, second))

    def view(self, *shape: Any) -> ShapeTensor:
        if isinstance(shape[0], np.dtype):
            return self.view_of(self.layout.view(shape[0]))
        return self.reshape(*shape)

    def view_as(self, other: ShapeTensor) -> ShapeTensor:
        return self.view(other.shape)

    def flatten(self, first: int = 0, last: int = -1) -> ShapeTensor:
        last %= max(1, len(self.shape))
        return self.reshape(*self.shape[:first], -1, *self.shape[last + 1 :])

    def unflatten(self, axis: int, shape: Sequence[int]) -> ShapeTensor:
        return self.reshape(*self.shape[:axis], *shape, *self.shape[axis + 1 :])

    def movedim(self, axis: int, to: int) -> ShapeTensor:
        return self.view_of(np.moveaxis(self.layout, axis, to))

    def chunk(self, number: int, axis: int = 0) -> list[ShapeTensor]:
        return [self.view_of(part) for part in np.array_split(self.layout, number, axis)]

    def split(self, sizes: Sequence[int], axis: int = 0) -> list[ShapeTensor]:
        ends = np.cumsum(sizes)
        return [self.narrow(axis, int(end) - size, size) for end, size in zip(ends, sizes, strict=True)]

    def unbind(self) -> list[ShapeTensor]:
        return [self[place] for place in range(self.shape[0])]

    def narrow(self, axis: int, first: int, length: int) -> ShapeTensor:
        return self[(*[slice(None)] * axis, slice(first, first + length))]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def gathered(self, index_shape: tuple[int, ...], rest: tuple[int, ...], before: int) -> ShapeTensor:
        return self.like((*rest[:before], *index_shape, *rest[before:]))

    # Elementwise.

    def to(self, dtype: Any) -> ShapeTensor:
        return self if dtype == self.dtype else elementwise(self.builder, (self,), dtype)

    def float(self) -> ShapeTensor:
        return self.to(np.dtype("float32"))

    def bfloat16(self) -> ShapeTensor:
        return self.to(BFLOAT16)

    def clamp(self, min: Number | None = None, max: Number | None = None) -> ShapeTensor:
        return elementwise(self.builder, (self,))

    clip = clamp

    def _binary(self, other: Any) -> ShapeTensor:
        return elementwise(self.builder, (self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
    __pow__ = __rpow__ = __and__ = __or__ = __mod__ = __floordiv__ = _binary

    def _condition(self, other: Any) -> ShapeTensor:
        return elementwise(self.builder, (self, other), bool)

    __lt__ = __le__ = __gt__ = __ge__ = _condition
    __eq__ = __ne__ = _condition  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> ShapeTensor:
        return elementwise(self.builder, (self,))

    __invert__ = __neg__

    def _in_place(self, *_: Any, **__: Any) -> ShapeTensor:
        return self

    __iadd__ = scatter_add_ = index_add_ = index_put_ = copy_ = zero_ = addmm_ = baddbmm_ = _in_place

    # Others.

    def numel(self) -> int:
        return int(self.layout.size)

    def data_ptr(self) -> int:
        """Return its address, relative to others of the same allocation."""
        return int(self.layout.__array_interface__["data"][0])

    def argsort(self, stable: bool = True) -> ShapeTensor:
        return self.like(self.shape, np.int64)

    def bincount(self, minlength: int) -> SentRows:
        return SentRows(self.like((minlength,), np.int64), self.numel())

    def _reduced(self, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> ShapeTensor:
        reduced = self.reduced(dim)
        sizes = [1 if at in reduced else size for at, size in enumerate(self.shape) if keepdim or at not in reduced]
        return self.like(sizes, dtype)

    sum = mean = amax = amin = _reduced

    def detach(self) -> ShapeTensor:
        return self

    def __matmul__(self, other: ShapeTensor) -> ShapeTensor:
        return self.like(self.product_shape(other))

    def gather(self, axis: int, index: ShapeTensor) -> ShapeTensor:
        return self.like(index.shape)

    def index_select(self, axis: int, index: ShapeTensor) -> ShapeTensor:
        return self.like((*self.shape[:axis], *index.shape, *self.shape[axis + 1 :]))

    def where(self, condition: ShapeTensor, other: Any) -> ShapeTensor:
        return elementwise(self.builder, (condition, self, other), self.dtype)

    def select_scatter(self, source: ShapeTensor, axis: int, index: int) -> ShapeTensor:
        return self.like(self.shape)

    def tril(self, place: int = 0) -> ShapeTensor:
        return self.like(self.shape)

    def new_zeros(self, shape: Sequence[int]) -> ShapeTensor:
        return self.like(shape)

    def new_full(self, shape: Sequence[int], value: Number) -> ShapeTensor:
        return self.like(shape)


class SentRows(ShapeTensor):
    """The numbers of rows sent to each device, if they are balanced."""

    __slots__ = ("rows",)

    def __init__(self, counts: ShapeTensor, rows: int) -> None:
        super().__init__(counts.layout, counts.allocation)
        self.rows = rows

    def view_of(self, layout: Any) -> ShapeTensor:  # type: ignore[override]
        return ShapeTensor(layout, self.allocation)

    def tolist(self) -> list[int]:
        """Return a number for each device."""
        (devices,) = self.shape
        return [(self.rows + place) // devices for place in range(devices)]


def elementwise(builder: ProgramBuilder, operands: Sequence[Any], dtype: Any = None) -> ShapeTensor:
    """Run an elementwise function of tensors and numbers; the result follows its operands' layouts."""
    tensors = [operand for operand in operands if isinstance(operand, ShapeTensor)]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    kinds = [tensor.dtype for tensor in tensors if tensor.shape] or [tensor.dtype for tensor in tensors]
    return ShapeTensor.new(builder, shape, dtype or np.result_type(*kinds), _order(shape, tensors))


def _order(shape: Sequence[int], tensors: Sequence[ShapeTensor]) -> list[int]:
    """Return the axes of a result from the outermost, as `TensorIteratorBase::reorder_dimensions` sorts them."""
    strides = [np.broadcast_to(tensor.layout, tuple(shape)).strides for tensor in tensors]
    order = list(reversed(range(len(shape))))  # from the innermost

    def swaps(inner: int, outer: int) -> int:
        for operand_strides in strides:
            inner_stride, outer_stride = operand_strides[inner], operand_strides[outer]
            if inner_stride and outer_stride and inner_stride != outer_stride:
                return -1 if inner_stride < outer_stride else 1
            if inner_stride and outer_stride and shape[inner] > shape[outer]:
                return 1
        return 0

    for place in range(1, len(order)):
        at = place
        for before in reversed(range(place)):
            verdict = swaps(order[before], order[at])
            if verdict > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict < 0:
                break
    return order[::-1]


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
