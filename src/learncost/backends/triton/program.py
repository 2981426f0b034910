"""The step in Triton as a program of GPU kernels, from which its time follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from learncost.backends.c import KernelFunction, Launch
from learncost.backends.placed.layout import InPlaceLayout
from learncost.backends.placed.program import TYPES
from learncost.backends.triton.attention import BACKWARD
from learncost.backends.triton.blocks import GROUPED
from learncost.backends.triton.operators import OPERATOR
from learncost.program.calls import Axes, Call, CallLoop, Item, MatrixView, axes_within
from learncost.program.lifetimes import Path, ScheduledArray
from learncost.program.program import CUDA, Buffer, Operand, Program, ProgramOp


def launched(layout: InPlaceLayout) -> Program:
    """Return the kernels of a step in the order of their launches, every iteration of a loop by itself.

    An operand of a kernel is the whole array, also where a kernel reads some of its rows.
    """
    return _Launches(layout).program()


class _Launches:
    def __init__(self, layout: InPlaceLayout) -> None:
        self.layout = layout
        self.numbers: dict[ScheduledArray, int] = {}

    def program(self) -> Program:
        ops = tuple(self._ops(self.layout.items, self.layout.table.axes, ()))
        touched: dict[int, list[int]] = {}
        for place, op in enumerate(ops):
            for operand in (*op.inputs, *op.outputs):
                touched.setdefault(operand.buffer, []).append(place)
        buffers = [
            Buffer(root.bytes, CUDA, root.role, root.name, *((-1, len(ops)) if root.owner else (places[0], places[-1])))
            for root, places in zip(self.numbers, map(touched.__getitem__, self.numbers.values()), strict=True)
        ]
        return Program(ops, tuple(buffers), CUDA)

    def _ops(self, items: Sequence[Item], axes: Axes, path: Path) -> Iterator[ProgramOp]:
        for item in items:
            if isinstance(item, Call):
                yield from _LaunchedCall(self, item, axes, self.layout.lifetimes.fields[path], path).ops()
                continue
            yield from self._loop(item, axes, path)

    def _loop(self, loop: CallLoop, axes: Axes, path: Path) -> Iterator[ProgramOp]:
        number, inside = self.layout.lifetimes.loops[loop], axes_within(loop.repeat, axes)
        iterations = range(self.layout.count(loop.repeat.count))
        for iteration in reversed(iterations) if loop.repeat.reverse else iterations:
            yield from self._ops(loop.body, inside, (*path, (number, iteration)))


class _LaunchedCall:
    """The kernels of one call in one iteration."""

    def __init__(
        self, launches: _Launches, call: Call, axes: Axes, fields: Mapping[str, ScheduledArray], path: Path
    ) -> None:
        self.launches, self.call, self.axes, self.fields, self.path = launches, call, axes, fields, path

    def ops(self) -> Iterator[ProgramOp]:
        call, (made, *_) = self.call, self.call.writes
        if call.added and not self.launches.layout.lifetimes.same(call.added, made, tuple(n for n, _ in self.path)):
            yield self._op("aten::copy_", (call.added,), (made,))
        if call.product:
            factors = (self._matrix(call.product.left), self._matrix(call.product.right))
            yield self._op("aten::addmm_" if call.added else "aten::mm", factors, (made,))
        elif call.scatter:
            if not call.added:
                yield self._op("aten::zero_", (), (made,))
            yield self._op("aten::index_put_", (call.scatter.index, call.scatter.rows), (made,), {"accumulate": True})
        elif isinstance(call.function, KernelFunction):
            arrays = (*call.function.reads, *call.function.writes)
            for launch in call.function.launches:
                if launch.name == OPERATOR:
                    yield self._operator(launch, arrays[0])
                    continue
                if launch.name == GROUPED:
                    yield self._op("aten::sort", [arrays[at] for at in launch.reads], ())
                    continue
                reads, writes = ([arrays[at] for at in places] for places in (launch.reads, launch.writes))
                if launch.shapes:
                    name = f"aten::scaled_dot_product_flash_attention{'_backward' if launch.name == BACKWARD else ''}"
                    kind = self._operand(reads[3 if launch.name == BACKWARD else 2]).dtype  # of the values
                    operands = [
                        self._operand(read)._replace(shape=shape, dtype=kind, strides=_strides(shape))
                        for read, shape in zip(reads, launch.shapes, strict=True)
                    ]
                    yield self._op(name, operands, writes, {"is_causal": launch.causal}, launch.name)
                    continue
                known = {"product": launch.product, "dtype": self._operand(reads[0]).dtype} if launch.product else {}
                yield self._op("triton::tiles_" if known else "triton::rows_", reads, writes, known, launch.name)
        else:
            yield self._op("aten::zero_", (), (made,))

    def _operator(self, launch: Launch, like: str) -> ProgramOp:
        """Return an operator on arrays that are in no arena, of the type of those that are."""
        shapes = launch.shapes
        *reads, made = (self._operand(like)._replace(shape=each, strides=_strides(each)) for each in shapes)
        op = self._op("triton::tiles_" if launch.product else "triton::rows_", reads, (), {}, launch.name)
        known = {"product": launch.product, "dtype": made.dtype} if launch.product else {}
        return op._replace(outputs=(made,), arguments=known)

    def _op(
        self,
        name: str,
        reads: Sequence[str | Operand],
        writes: Sequence[str],
        arguments: Mapping[str, object] | None = None,
        kernel: str = "",
    ) -> ProgramOp:
        meta = self.call.lines[0].meta
        inputs = tuple(each if isinstance(each, Operand) else self._operand(each) for each in reads)
        outputs = tuple(map(self._operand, writes))
        return ProgramOp(name, "", inputs, outputs, arguments or {}, meta.phase, 0, kernel or name, meta.layer)

    def _operand(self, name: str) -> Operand:
        layout, array = self.launches.layout, self.fields[name]
        numbers, shape = self.launches.numbers, layout.shape(array.axes)
        number = numbers.setdefault(array.root, len(numbers))
        return Operand(number, shape, TYPES[layout.dtypes[name]], _strides(shape), 0)

    def _matrix(self, view: MatrixView) -> Operand:
        operand = self._operand(view.name)
        shape = prod(operand.shape[: view.rows]), prod(operand.shape[view.rows :])
        strides = shape[1], 1
        if view.transposed:
            shape, strides = shape[::-1], strides[::-1]
        return operand._replace(shape=shape, strides=strides)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))
