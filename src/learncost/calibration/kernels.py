"""Time learncost's engine: PyTorch's products with given outputs, and every op as a compiled kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from learncost.autodiff.derive import derive
from learncost.backends.c import KernelFunction, KernelLines, kernel
from learncost.calibration.operations import TimedCall, operands, timed_ops
from learncost.calibration.torch import COLUMNS, ROWS, TorchBench, factors
from learncost.engines.compiler import CompiledKernels
from learncost.engines.in_place import library_products
from learncost.ir.dataclass import replace
from learncost.ir.line import FusedKernel, Line, Op
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.layers.layer import layer
from learncost.ops import entry

_OTHERS = {"add": "X[B d] + Z[B d]", "multiply": "X[B d] Z[B d]"}
_ADAMW = (
    "own(W G M V lr b1 c1 b2 c2 k1 k2 eps decay;) -> U M2 V2\n"
    "U[B d] M2[B d] V2[B d] = adamw(W[B d], G[B d], M[B d], V[B d], "
    "lr[], b1[], c1[], b2[], c2[], k1[], k2[], eps[], decay[])"
)


class KernelBench(TorchBench):
    """The bench of learncost's engine on the CPU: matrix products of the engine's library, and compiled kernels."""

    operators = False

    def product(self, orientation: str, m: int, n: int, k: int) -> TimedCall:
        left, right = factors(orientation, m, n, k, self.dtype, self.device)
        out = torch.empty(m, n, dtype=self.dtype)

        def operation() -> None:
            with library_products():
                torch.mm(left, right, out=out)

        return operation

    def fill(self, bytes_: int) -> tuple[TimedCall, TimedCall]:
        _, existing = super().fill(bytes_)
        return existing, existing  # the arena is allocated once

    def ops(self) -> Iterator[tuple[str, TimedCall, int]]:
        tables = {name: _table(f"own({operands(text)};) -> Y\nY[B d] = {text}") for name, text in _OTHERS.items()}
        bias = derive(layer("own(X; b) -> Y\nY[B d] = X[B d] + b[d]"), ("b",))
        tables["sum"] = replace(bias.update, values=bias.step.values)  # of all rows, as a bias's gradient is one
        tables["adamw"] = _table(_ADAMW)
        for op, text in timed_ops().items():
            op_layer = layer(f"own({operands(text)};) -> Y\nY[B d] = {text}")
            tables[op] = derive(op_layer).step if entry(op).body else op_layer.table
        functions: dict[str, tuple[KernelFunction, Mapping[str, tuple[str, ...]]]] = {}
        for name, table in tables.items():
            for line, _ in walk(table.lines):
                title = f"{name}'" if isinstance(line, Op) and line.part == "gradient" else name
                functions[title] = _function(f"one_{len(functions)}", (line,), table), table.axes
        kernels = CompiledKernels([function for function, _ in functions.values()])
        for name, (function, axes) in functions.items():
            yield name, self._calling(kernels, function, axes), ROWS * COLUMNS

    def _calling(
        self, kernels: CompiledKernels, function: KernelFunction, axes: Mapping[str, Sequence[str]]
    ) -> TimedCall:
        """Return a compiled kernel with the arrays that it is called on."""
        sizes = {"B": ROWS, "d": COLUMNS}
        arrays = [self._random(*(sizes[axis] for axis in axes[name])) for name in (*function.reads, *function.writes)]

        def operation(arguments: Sequence[Any] = arrays, call: Any = kernels[function.name]) -> None:
            call(*[array.data_ptr() for array in arguments])

        return operation

    def calls(self) -> Mapping[str, tuple[TimedCall, int]]:
        table = _table("own(X Z;) -> Y\nY[B d] = X[B d] + Z[B d]")
        function = _function("smallest", [line for line, _ in walk(table.lines)], table, {"B": 4, "d": 8})
        call = self._calling(CompiledKernels([function]), function, table.axes)
        left, right = factors("NN", 4, 4, 4, self.dtype, self.device)
        product = partial(torch.mm, left, right, out=torch.empty(4, 4))
        return {
            "launch": (call, 1),
            "launch_backward": (call, 1),
            "optimizer": (call, 1),
            "product": (product, 1),
        }


def _table(text: str) -> Table:
    return layer(text).table


def _function(name: str, lines: Sequence[Line], table: Table, sizes: Mapping[str, int] | None = None) -> KernelFunction:
    """Return the lines as one kernel, whose iterations process one row each."""
    tag_kernel = FusedKernel(name, ("B",))
    tagged = [replace(line, meta=replace(line.meta, kernel=tag_kernel)) for line in lines]
    results = frozenset(term.name for line in tagged for term in line.left)
    types = dict.fromkeys(table.axes, "fp32")
    return kernel(KernelLines(tagged, table.axes, results, types, sizes or {"B": ROWS, "d": COLUMNS}, name))
