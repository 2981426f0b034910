"""The functions of PyTorch that emitted programs call, on tensors without values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.ops import entries
from learncost.program.fake_arrays.array import Functions
from learncost.program.fake_arrays.tensor import (
    BFLOAT16,
    Collectives,
    Function,
    SentRows,
    ShapeTensor,
    distributed,
    elementwise,
)
from learncost.program.program import ProgramBuilder


@cache
def _elementwise() -> frozenset[str]:
    """Return the names of PyTorch's elementwise functions in emitted programs."""
    rows = [row for row in entries() if row.pointwise and row.kind != "move"]
    spelled = (row.spelled.get("torch") or f"torch.{row.called or row.name}(" for row in rows)
    return frozenset(text.partition("(")[0] for text in spelled)


class Torch(Functions[ShapeTensor]):
    """The functions of `torch` that programs call."""

    def __init__(self, builder: ProgramBuilder) -> None:
        super().__init__(builder, ShapeTensor)
        self.Tensor, self.bool, self.bfloat16 = ShapeTensor, np.dtype("bool"), BFLOAT16
        self.distributed, self.ops = distributed(), SimpleNamespace(_c10d_functional=Collectives())
        self.nn = SimpleNamespace(functional=Functional())
        self.linalg = SimpleNamespace(vector_norm=ShapeTensor.sum)
        self.int64, self.uint8, self.int8 = np.dtype("int64"), np.dtype("uint8"), np.dtype("int8")

    def __getattr__(self, name: str) -> Function:
        if f"torch.{name}" in _elementwise():
            return lambda *operands, **_: elementwise(self._builder, operands)
        raise InputError(f"the memory of torch.{name} is unknown: add it to learncost.program.fake_arrays")

    def of_each(self, *tensors: ShapeTensor) -> ShapeTensor:
        """Run a function of each element."""
        return elementwise(self._builder, tensors)

    def where(self, condition: ShapeTensor, first: Any, second: Any) -> ShapeTensor:
        kind = next((value.dtype for value in (first, second) if isinstance(value, ShapeTensor)), self.float32)
        return elementwise(self._builder, (condition, first, second), kind)

    def softmax(self, tensor: ShapeTensor, axis: int) -> ShapeTensor:
        tensor = tensor.contiguous()
        return tensor.like(tensor.shape)

    log_softmax = softmax

    def einsum(self, equation: str, first: ShapeTensor, second: ShapeTensor) -> ShapeTensor:
        """Run `at::einsum`: copies of operands that are not matrices yet, and one batched product."""
        operands, result = equation.split("->")
        a, b = operands.split(",")
        size = dict(zip(a + b, first.shape + second.shape, strict=True))
        summed = sorted(x for x in size if x not in result)
        first = first.sum([a.index(x) for x in summed if x not in b], keepdim=True) if set(summed) - set(b) else first
        second = (
            second.sum([b.index(x) for x in summed if x not in a], keepdim=True) if set(summed) - set(a) else second
        )
        inner = [x for x in summed if x in a and x in b]
        batch = [x for x in result if x in a and x in b]
        rows = [x for x in result if x in a and x not in b]
        columns = [x for x in result if x not in a]
        if not inner:
            return elementwise(self._builder, (_spread(first, a, result), _spread(second, b, result)))
        if rows and columns and result.index(columns[0]) < result.index(rows[0]):
            first, second, a, b, rows, columns = second, first, b, a, columns, rows
        groups, height, depth, width = (prod(size[x] for x in part) for part in (batch, rows, inner, columns))
        left = _spread(first, a, [*batch, *rows, *inner]).reshape(groups, height, depth)
        right = _spread(second, b, [*batch, *inner, *columns]).reshape(groups, depth, width)
        order = [*batch, *rows, *columns]
        product = (left @ right).view([size[x] for x in order])
        return product.permute(*(order.index(x) for x in result))

    def mm(self, first: ShapeTensor, second: ShapeTensor, out: ShapeTensor) -> ShapeTensor:
        return out

    bmm = mm

    def flip(self, tensor: ShapeTensor, axes: Sequence[int]) -> ShapeTensor:
        return tensor.like(tensor.shape)

    def zeros_like(self, tensor: ShapeTensor) -> ShapeTensor:
        return elementwise(self._builder, (tensor,))

    def empty_like(self, tensor: ShapeTensor) -> ShapeTensor:
        empty = elementwise(self._builder, (tensor,))
        return SentRows(empty, tensor.rows) if isinstance(tensor, SentRows) else empty

    def ones(self, *shape: int, dtype: Any, device: Any = None) -> ShapeTensor:
        return ShapeTensor.new(self._builder, shape, dtype)


class Functional:
    """The functions of `functional` that programs call."""

    def __getattr__(self, name: str) -> Function:
        if f"functional.{name}" in _elementwise():
            return lambda tensor, *_, **__: elementwise(tensor.builder, (tensor,))
        raise InputError(f"the memory of functional.{name} is unknown: add it to learncost.program.fake_arrays")

    def pad(self, tensor: ShapeTensor, ends: Sequence[int], value: float = 0) -> ShapeTensor:
        more = [before + behind for before, behind in zip(ends[::2], ends[1::2], strict=True)]
        rest = [0] * (tensor.ndim - len(more))
        return tensor.like([size + added for size, added in zip(tensor.shape, [*rest, *more[::-1]], strict=True)])

    def layer_norm(self, tensor: ShapeTensor, shape: Sequence[int], eps: float) -> ShapeTensor:
        tensor = tensor.contiguous()
        rows = tensor.shape[: -len(shape)]
        result, mean, deviation = tensor.like(tensor.shape), tensor.like(rows), tensor.like(rows)
        del mean, deviation
        return result

    def rms_norm(self, tensor: ShapeTensor, shape: Sequence[int], eps: float) -> ShapeTensor:
        mean = (tensor**2).mean(tuple(range(-len(shape), 0)), keepdim=True)
        root = elementwise(tensor.builder, (mean,))
        return tensor * root


def _spread(tensor: ShapeTensor, axes: str, order: Sequence[str]) -> ShapeTensor:
    """Return a view with its axes in an order; axes that it lacks have length 1."""
    index: Any = tuple(slice(None) if x in axes else None for x in order)
    return tensor.permute(*(axes.index(x) for x in order if x in axes), *_left(axes, order))[index]


def _left(axes: str, order: Sequence[str]) -> list[int]:
    return [place for place, x in enumerate(axes) if x not in order]
