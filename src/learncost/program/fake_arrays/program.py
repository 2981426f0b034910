"""The loading of a program's text, so that it runs on arrays without values."""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from types import FrameType
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.program.fake_arrays.array import BUFFER, FakeArray, order_of
from learncost.program.program import ProgramBuilder


class NumPy:
    """The functions of NumPy that emitted programs call, on arrays without values."""

    ndarray, inf = FakeArray, np.inf
    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder, self.add = builder, _Add()

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name, None)
        if isinstance(function, np.ufunc) and function.nout == 1:
            return lambda *operands, out=None: elementwise(self._builder, operands) if out is None else out
        raise InputError(f"the memory of np.{name} is unknown: add it to learncost.program.fake_arrays")

    def of_each(self, *arrays: FakeArray) -> FakeArray:
        """Run a function of each element."""
        return elementwise(self._builder, arrays)

    def zeros(self, shape: Any, dtype: Any) -> FakeArray:
        return FakeArray.new(self._builder, shape, dtype)

    def full(self, shape: Any, value: float, dtype: Any) -> FakeArray:
        return FakeArray.new(self._builder, shape, dtype)

    def array(self, array: FakeArray) -> FakeArray:
        return array.astype(array.dtype)

    zeros_like = array

    def eye(self, size: int, dtype: Any) -> FakeArray:
        return self.zeros((size, size), dtype)

    def arange(self, size: int) -> FakeArray:
        return self.zeros((size,), np.int64)

    def stack(self, arrays: Sequence[FakeArray]) -> FakeArray:
        return arrays[0].like((len(arrays), *arrays[0].shape))

    def concatenate(self, arrays: Sequence[FakeArray], axis: int = 0) -> FakeArray:
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return arrays[0].like(shape, np.result_type(*(array.dtype for array in arrays)))

    def cumsum(self, array: FakeArray, axis: int) -> FakeArray:
        return array.like(array.shape)

    def argsort(self, array: FakeArray, *_: Any, **__: Any) -> FakeArray:
        return array.like(array.shape, np.int64)

    def argmax(self, array: FakeArray, axis: int) -> FakeArray:
        return array.like(array.shape[:-1], np.int64)

    argmin = argmax

    def pad(self, array: FakeArray, ends: Sequence[tuple[int, int]]) -> FakeArray:
        shape = [size + before + behind for size, (before, behind) in zip(array.shape, ends, strict=True)]
        return array.like(shape)

    def tri(self, rows: int, columns: int, place: int = 0, dtype: Any = bool) -> FakeArray:
        return FakeArray.new(self._builder, (rows, columns), dtype)

    def where(self, condition: FakeArray, first: Any, second: Any) -> FakeArray:
        kind = np.result_type(*(x.dtype if isinstance(x, FakeArray) else x for x in (first, second)))
        return elementwise(self._builder, (condition, first, second), kind)

    def ascontiguousarray(self, array: FakeArray) -> FakeArray:
        return array if array.layout.flags.c_contiguous else array.like(array.shape)

    def broadcast_to(self, array: FakeArray, shape: Any) -> FakeArray:
        return array.view_of(np.broadcast_to(array.layout, shape))

    def take_along_axis(self, array: FakeArray, index: FakeArray, axis: int) -> FakeArray:
        return array.like(index.shape)

    def put_along_axis(self, array: FakeArray, index: FakeArray, values: FakeArray, axis: int) -> None:
        pass

    def flip(self, array: FakeArray, axes: Any) -> FakeArray:
        return array.view_of(array.layout)

    def sort(self, array: FakeArray, axis: int = -1, **_: Any) -> FakeArray:
        return array.like(array.shape)


class _Add:
    """`np.add`, of which programs use `at`, and sums with `out`: both are in-place."""

    def __call__(self, first: FakeArray, second: FakeArray, out: FakeArray) -> FakeArray:
        return out

    def at(self, array: FakeArray, index: Any, values: FakeArray) -> None:
        pass


ELIDED = 256 * 1024
"""Bytes from which NumPy writes a result into a temporary operand (NPY_MIN_ELIDE_BYTES)."""


def elementwise(builder: ProgramBuilder, operands: Sequence[Any], dtype: Any = None) -> FakeArray:
    """Run an elementwise function: allocate its result, and a buffer where operands are broadcast."""
    arrays = [operand for operand in operands if isinstance(operand, FakeArray)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    kind = dtype or np.result_type(
        *(operand.dtype if isinstance(operand, FakeArray) else operand for operand in operands)
    )
    result = FakeArray.new(builder, shape, kind, order_of(shape, arrays))
    spread = [array for array in arrays if array.shape and (array.shape != shape or not _dense(array))]
    if spread and len(shape) > 1 and prod(shape[-1:]) < BUFFER:
        builder.run("", scratch=min(BUFFER, prod(shape)) * kind.itemsize)
    return result


def _dense(array: FakeArray) -> bool:
    """Return whether its elements are contiguous, in some order of the axes."""
    steps = zip(array.shape, array.layout.strides, strict=True)
    return bool(sum((size - 1) * abs(step) for size, step in steps) < array.nbytes)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "MatMult": operator.matmul,
}
_OF_ONE: dict[str, Callable[[Any], Any]] = {"USub": operator.neg, "Invert": operator.invert, "Not": operator.not_}
_EITHER = ("Add", "Mult", "BitAnd", "BitOr")
_NEVER = ("Pow", "Mod")


def binary(name: str, left: Any, right: Any, temporaries: tuple[bool, bool]) -> Any:
    """Run an operator; `temporaries` are the operands that nothing else refers to."""
    if not isinstance(left, FakeArray) and not isinstance(right, FakeArray):
        return _OPERATORS[name](left, right)
    if name == "MatMult":
        return _product(left, right)
    if name not in _NEVER:
        if temporaries[0] and _gives_way(left, right):
            return left
        if name in _EITHER and temporaries[1] and _gives_way(right, left):
            return right
    builder = (left if isinstance(left, FakeArray) else right).builder
    return elementwise(builder, (left, right))


def _gives_way(operand: Any, other: Any) -> bool:
    if not isinstance(operand, FakeArray) or not operand.owns or operand.nbytes < ELIDED:
        return False
    if not isinstance(other, FakeArray):
        return bool(np.can_cast(np.asarray(other).dtype, operand.dtype))
    return other.shape in ((), operand.shape) and bool(np.can_cast(other.dtype, operand.dtype))


def _product(left: FakeArray, right: FakeArray) -> FakeArray:
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), *left.shape[-2:-1], *columns)
    return left.like(shape, np.result_type(left.dtype, right.dtype))


def unary(name: str, operand: Any, is_temporary: bool) -> Any:
    """Run a minus or a not, into a temporary operand where there is one."""
    if not isinstance(operand, FakeArray):
        return _OF_ONE[name](operand)
    if is_temporary and operand.owns and operand.nbytes >= ELIDED:
        return operand
    return elementwise(operand.builder, (operand,))


def compare(left: Any, right: Any) -> Any:
    """Return the boolean array of a comparison."""
    builder = (left if isinstance(left, FakeArray) else right).builder
    return elementwise(builder, (left, right), np.dtype(bool))


WRITTEN = ("erf", "hashed", "coin")
"""Elementwise functions that a program defines at its top; they are replaced in the program's namespace."""


class FewIterations(ast.NodeTransformer):
    """Rewrites loops so that of many equal iterations a few run; those over the weights of layers run completely."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        match node.iter:
            case ast.Call(ast.Name("range"), [count]) | ast.Call(
                ast.Name("reversed"), [ast.Call(ast.Name("range"), [count])]
            ):
                pass
            case _:
                return node
        if not any(isinstance(part, ast.GeneratorExp) for line in node.body for part in ast.walk(line)):
            node.iter = _call("iterations_", node.iter, count)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(saved, "pop"):
                return _call("pop_", node, saved, *node.args)
        return node


def _pop(saved: list[Any], place: int = -1) -> Any:
    """Return the next saved tensors of an iteration that ran, as `list.pop`; others saved nothing."""
    while (tensors := saved.pop(place)) is None:
        pass
    return tensors


class _Spelled(FewIterations):
    """Rewrites operators as calls with flags for temporary operands; NumPy is not imported."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Replace an in-place addition by its value, since it allocates nothing itself."""
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(node.value), node)

    def visit_Import(self, node: ast.Import) -> ast.Import | None:
        return None if node.names[0].name == "numpy" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        temporaries = ast.Tuple([ast.Constant(_temporary(operand)) for operand in (node.left, node.right)], ast.Load())
        self.generic_visit(node)
        return _call("binary_", node, ast.Constant(type(node.op).__name__), node.left, node.right, temporaries)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        is_temporary = ast.Constant(_temporary(node.operand))
        self.generic_visit(node)
        return _call("unary_", node, ast.Constant(type(node.op).__name__), node.operand, is_temporary)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            return node
        return _call("compare_", node, node.left, node.comparators[0])


def _temporary(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call)


def _call(name: str, at: ast.expr, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
    return ast.fix_missing_locations(ast.copy_location(call, at))


FILE = "<a program without values>"


def line_that_runs() -> str:
    """Return the number of the program's line that runs; "" before it runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return str(frame.f_lineno)
        frame = frame.f_back
    return ""


def namespace(tree: ast.Module, builder: ProgramBuilder, **names: Any) -> dict[str, Any]:
    """Return what a program defines beside the given names, with loops of which few iterations run."""
    names |= {"__name__": FILE, "iterations_": builder.iterations, "pop_": _pop}
    exec(compile(tree, FILE, "exec"), names)
    return names


class NumPyRun(nullcontext[None]):
    """The run of a program for NumPy on arrays without values."""

    def __init__(self, builder: ProgramBuilder) -> None:
        super().__init__()
        self.builder = builder

    def load(self, text: str) -> dict[str, Any]:
        """Return the namespace of a program."""
        numpy, operators = NumPy(self.builder), {"binary_": binary, "unary_": unary, "compare_": compare}
        names = namespace(_Spelled().visit(ast.parse(text)), self.builder, np=numpy, **operators)
        names |= {name: numpy.of_each for name in WRITTEN if name in names}
        return names

    def array(self, shape: Sequence[int], dtype: str) -> FakeArray:
        """Return an array that the program is given."""
        return FakeArray.new(self.builder, shape, dtype)

    def devices(self, axes: Mapping[str, int]) -> FakeDevice:
        """Return the first device of a mesh."""
        return FakeDevice(axes)


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
