"""The run of a program for NumPy on arrays without values: a class of arrays by NumPy's protocols for such classes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from types import FrameType
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from learncost.ir.errors import InputError
from learncost.program.program import ProgramBuilder

OBJECTS = "objects"
"""The role of Python's own objects of arrays."""

BUFFER = 8192
"""Elements of an operand that NumPy's iterator buffers (numpy.getbufsize())."""

ELIDED = 256 * 1024
"""Bytes from which NumPy writes a result into a temporary operand (NPY_MIN_ELIDE_BYTES)."""

_COMMUTATIVE = (np.add, np.multiply, np.bitwise_and, np.bitwise_or)
_FIRST = (*_COMMUTATIVE, np.subtract, np.true_divide, np.floor_divide, np.negative, np.invert)
"""The operators that write into a temporary operand: into either one, or into the first."""


class FakeArray(np.ndarray):
    """An array of NumPy whose elements are never read; a view refers to the array that owns its memory.

    builder       the program, in which it is in use as long as anything refers to it, as in CPython
    buffers       that of its object, and that of the memory that it owns
    is_temporary  whether it is an operand that nothing else refers to
    """

    builder: ProgramBuilder
    buffers: tuple[int, ...] = ()
    is_temporary = False

    @classmethod
    def new(cls, builder: ProgramBuilder, shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> Self:
        """Allocate an array; `order` are its axes from the outermost in memory, by default in order."""
        array: Self = laid(shape, dtype, order).view(cls)
        memory = builder.allocate(array.nbytes)
        builder.run("")
        array._begin(builder, memory)
        return array

    def _begin(self, builder: ProgramBuilder, *memory: int) -> None:
        """Count the array's object, with its shape and strides: few bytes, but for every saved array."""
        size = int(np.ndarray.__basicsize__ + 2 * np.dtype(np.intp).itemsize * self.ndim)
        self.builder, self.buffers = builder, (builder.allocate(size, OBJECTS), *memory)

    def __array_finalize__(self, whole: Any) -> None:
        if isinstance(whole, FakeArray) and not self.buffers:
            self._begin(whole.builder)

    def __del__(self) -> None:
        if self.buffers:
            self.builder.free(*self.buffers)

    @property
    def owns(self) -> bool:
        """Return whether it is no view."""
        return len(self.buffers) > 1

    def __repr__(self) -> str:
        return f"FakeArray({self.shape}, {self.dtype})"

    def like(self, shape: Sequence[int], dtype: Any = None, order: Sequence[int] | None = None) -> Self:
        """Allocate an array in the same program."""
        return self.new(self.builder, shape, dtype or self.dtype, order)

    def reshape(self, *shape: Any, **settings: Any) -> Any:
        """Return a view, or a copy where the layout has none."""
        try:
            return super().reshape(*shape, copy=False)
        except ValueError:  # a shape that does not fit is refused here
            return self.like(laid(self.shape, self.dtype).reshape(*shape).shape)

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, FakeArray) for item in items):
            shape, order = chosen(self.shape, items)
            return self.like(shape, None, order)
        # With an ellipsis a number stays an array, which nothing reads.
        return super().__getitem__(items if Ellipsis in items else (*items, Ellipsis))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into the array itself; nothing is allocated."""

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """Return a copy in a type, in the same layout."""
        return self.like(self.shape, dtype, order_of(self.shape, [self]))

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, out: Any = None, **settings: Any) -> Any:
        """Run an operator or an elementwise function, or the reduction by one."""
        arrays = [operand for operand in operands if isinstance(operand, FakeArray)]
        temporary = [isinstance(operand, FakeArray) and operand.is_temporary for operand in operands]
        for array in arrays:
            array.is_temporary = False
        if out is not None or method == "at":
            return out and out[0]
        if method == "reduce":
            return arrays[0]._reduced(**settings)
        if ufunc is np.matmul:
            return _product(*operands)
        first, *rest = operands
        if ufunc in _FIRST and temporary[0] and first._gives_way(*rest):
            return first
        if ufunc in _COMMUTATIVE and temporary[1] and rest[0]._gives_way(first):
            return rest[0]
        kinds = (type(x) if isinstance(x, int | float) else np.asarray(x).dtype for x in operands)
        made = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))[ufunc.nin :]
        results = tuple(elementwise(self.builder, arrays, kind) for kind in made)
        return results if ufunc.nout > 1 else results[0]

    def _gives_way(self, *others: Any) -> bool:
        """Return whether the result of an operator with other operands is written into this temporary one."""
        fits = (other.shape in ((), self.shape) for other in others if isinstance(other, FakeArray))
        casts = (np.can_cast(np.asarray(other).dtype, self.dtype) for other in others)
        return self.owns and self.nbytes >= ELIDED and all(fits) and all(casts)

    def _reduced(self, axis: Any = None, keepdims: bool = False, dtype: Any = None, **_: Any) -> Any:
        several = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        reduced = {each % self.ndim for each in several}
        kept = [at for at in range(self.ndim) if keepdims or at not in reduced]
        order = [kept.index(at) for at in order_of(self.shape, [self]) if at in kept]
        result = self.like([1 if at in reduced else self.shape[at] for at in kept], dtype, order)
        if not self.flags.c_contiguous or (dtype and dtype != self.dtype):
            self.builder.run("", scratch=min(BUFFER, self.size) * self.dtype.itemsize)
        return result

    def __array_function__(self, function: Any, types: Any, arguments: Any, settings: Any) -> Any:
        """Run a function of NumPy: as its own lines, which call others, or by what it allocates."""
        name = function.__name__
        if name in _OF_OTHERS:
            more = {"subok": True} if name == "broadcast_to" else {}
            return super().__array_function__(function, types, arguments, {**settings, **more})
        return _ALLOCATING.get(name, _unknown(name))(*arguments, **settings)


def _unknown(name: str) -> Callable[..., Any]:
    """Return a function that refuses what would read elements."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError(f"the memory of np.{name} is unknown: add it to learncost.program.fake_arrays")

    return refuse


_METHODS = ("astype", "clip", "max", "mean", "min", "reshape", "sum", "transpose", "view")
"""The methods of NumPy's arrays that read no elements here: all others are refused."""

for _name in dir(np.ndarray):
    if not _name.startswith("_") and callable(getattr(np.ndarray, _name)) and _name not in _METHODS:
        setattr(FakeArray, _name, _unknown(_name))


def laid(shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> Any:
    """Return a new layout; `order` are its axes from the outermost in memory to the innermost, by default in order."""
    kind = np.dtype(dtype)
    strides, step = [0] * len(shape), kind.itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis], step = step, step * max(1, shape[axis])
    return as_strided(np.zeros(1, kind), tuple(shape), strides)


def chosen(shape: Sequence[int], items: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the shape of an indexed array, and its axes from the outermost in memory to the innermost.

    NumPy decides both, by a small array whose sizes tell the axes apart. `items` are slices, numbers, None, ... and
    index arrays, at least one of them; numbers count as arrays.
    """
    arrays = [item.shape for item in items if isinstance(item, np.ndarray)]
    plain = [slice(None) if isinstance(item, np.ndarray | int) else item for item in items]
    whole = as_strided(np.zeros(1), tuple(shape), [0] * len(shape))[tuple(plain)].shape
    sizes = [*whole, *np.broadcast_shapes(*arrays)]
    apart = [2 + place for place in range(len(sizes))]

    def small(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            names = apart[len(apart) - item.ndim :]
            return np.zeros([name if size > 1 else 1 for name, size in zip(names, item.shape, strict=True)], int)
        return 0 if isinstance(item, int) else item if item is Ellipsis else slice(None)

    result = np.zeros(apart[: len(whole)], bool)[tuple(map(small, items))]
    order = sorted(range(result.ndim), key=lambda axis: -result.strides[axis])
    return [sizes[name - 2] if name > 1 else 1 for name in result.shape], order


def order_of(shape: Sequence[int], arrays: Sequence[FakeArray]) -> list[int]:
    """Return the axes of a result from the outermost in memory to the innermost, following its operands' layouts.

    NumPy's iterator sorts them (npyiter_find_best_axis_ordering), here of operands whose sizes tell the axes apart.
    """
    apart, operands = [2 + axis for axis in range(len(shape))], []
    for array in arrays:
        steps = np.broadcast_to(array.view(np.ndarray), shape).strides
        strides = [abs(step) if size > 1 else 0 for step, size in zip(steps, shape, strict=True)]
        operands.append(as_strided(np.zeros(1, bool), apart, strides))
    return [size - 2 for size in np.nditer(operands, ["multi_index"], order="K").itviews[0].shape]


def elementwise(builder: ProgramBuilder, arrays: Sequence[FakeArray], dtype: Any) -> FakeArray:
    """Run an elementwise function: allocate its result, and a buffer where operands are broadcast."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    result = FakeArray.new(builder, shape, dtype, order_of(shape, arrays))
    spread = [array for array in arrays if array.shape and (array.shape != shape or not _dense(array))]
    if spread and len(shape) > 1 and prod(shape[-1:]) < BUFFER:
        builder.run("", scratch=min(BUFFER, prod(shape)) * result.itemsize)
    return result


def _dense(array: FakeArray) -> bool:
    """Return whether its elements are contiguous, in some order of the axes."""
    steps = zip(array.shape, array.strides, strict=True)
    return bool(sum((size - 1) * abs(step) for size, step in steps) < array.nbytes)


def _product(left: FakeArray, right: FakeArray) -> FakeArray:
    columns = right.shape[-1:] if right.ndim > 1 else ()
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), *left.shape[-2:-1], *columns)
    return left.like(shape, np.result_type(left.dtype, right.dtype))


def _concatenate(arrays: Sequence[FakeArray], axis: int = 0) -> FakeArray:
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return arrays[0].like(shape, np.result_type(*(array.dtype for array in arrays)))


def _where(condition: FakeArray, first: Any, second: Any) -> FakeArray:
    arrays = [each for each in (condition, first, second) if isinstance(each, FakeArray)]
    kind = np.result_type(*(each.dtype if isinstance(each, FakeArray) else each for each in (first, second)))
    return elementwise(condition.builder, arrays, kind)


def _pad(array: FakeArray, ends: Sequence[tuple[int, int]]) -> FakeArray:
    return array.like([size + before + after for size, (before, after) in zip(array.shape, ends, strict=True)])


_OF_OTHERS = ("broadcast_to", "clip", "flip")
_ALLOCATING: Mapping[str, Callable[..., Any]] = {
    "argmax": lambda array, axis: array.like(array.shape[:-1], np.int64),
    "argmin": lambda array, axis: array.like(array.shape[:-1], np.int64),
    "argsort": lambda array, *_, **__: array.like(array.shape, np.int64),
    "concatenate": _concatenate,
    "cumsum": lambda array, axis: array.like(array.shape),
    "pad": _pad,
    "put_along_axis": lambda *_: None,
    "sort": lambda array, *_, **__: array.like(array.shape),
    "stack": lambda arrays: arrays[0].like((len(arrays), *arrays[0].shape)),
    "take_along_axis": lambda array, index, axis: array.like(index.shape),
    "where": _where,
    "zeros_like": lambda array: array.astype(array.dtype),
}
"""The functions of NumPy that emitted programs call and that read elements, by what they allocate."""


_MAKING: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "arange": lambda size: ((size,), np.int64),
    "eye": lambda size, dtype: ((size, size), dtype),
    "full": lambda shape, value, dtype: (shape, dtype),
    "tri": lambda rows, columns, place=0, dtype=bool: ((rows, columns), dtype),
    "zeros": lambda shape, dtype: (shape, dtype),
}
"""The functions that make an array of none, with its shape and its type."""


class NumPy:
    """NumPy for emitted programs: functions that make arrays of none make them without values."""

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        if name in _MAKING:
            return lambda *arguments, **settings: FakeArray.new(self._builder, *_MAKING[name](*arguments, **settings))
        return getattr(np, name)

    def of_each(self, *arrays: FakeArray) -> FakeArray:
        """Run a function of each element."""
        return elementwise(self._builder, arrays, np.result_type(*(array.dtype for array in arrays)))

    def array(self, array: FakeArray) -> Any:
        return array.astype(array.dtype)

    def ascontiguousarray(self, array: FakeArray) -> FakeArray:
        return array if array.flags.c_contiguous else array.like(array.shape)


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


class _Marked(FewIterations):
    """Marks the temporary operands of operators; NumPy is not imported."""

    def visit_Import(self, node: ast.Import) -> ast.Import | None:
        return None if node.names[0].name == "numpy" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node.left, node.right = _marked(node.left), _marked(node.right)
        self.generic_visit(node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        node.operand = _marked(node.operand)
        self.generic_visit(node)
        return node


def _marked(node: ast.expr) -> ast.expr:
    return _call("temporary_", node, node) if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Call) else node


def _temporary(value: Any) -> Any:
    if isinstance(value, FakeArray):
        value.is_temporary = True
    return value


def _call(name: str, at: ast.expr, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
    return ast.fix_missing_locations(ast.copy_location(call, at))


FILE = "<a program without values>"


def running_line() -> str:
    """Return the number of the program's line that runs; "" before it runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            return str(frame.f_lineno)
        frame = frame.f_back
    return ""


def namespace(tree: ast.Module, builder: ProgramBuilder, **names: Any) -> dict[str, Any]:
    """Return what a program defines in addition to the given names, with loops of which few iterations run."""
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
        numpy = NumPy(self.builder)
        names = namespace(_Marked().visit(ast.parse(text)), self.builder, np=numpy, temporary_=_temporary)
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
