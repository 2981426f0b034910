"""Define the operations that a calibration times, for any library; those of NumPy serve machines without PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from learncost.ops import entries, entry
from learncost.ops.op_def import OpDef

TimedCall: TypeAlias = Callable[[], object]


def timed_ops() -> dict[str, str]:
    """Return the ops with a function in PyTorch, each as the right side of a layer's line.

    Excluded are primitives that select, primitives that are timed as moves, ops that reduce an axis, and ops with an
    operand that has no gradient, such as a bound.
    """
    lines = {}
    for row in entries():
        has_function = bool(row.gradient) if row.kind == "elementwise" else bool(row.body) and "torch" in row.spelled
        if not has_function or row.conditions or (row.body and not _is_of_a_line(row)):
            continue
        acts = "" if row.pointwise else "[d]"
        arrays = [f"{name}[B d]" for name in row.inputs[: len(row.inputs) - len(row.defaults)]]
        lines[row.name] = f"{row.name}{acts}({', '.join((*arrays, *map(str, row.defaults)))})"
    return lines


def _is_of_a_line(row: OpDef) -> bool:
    """Return whether an op is elementwise, with gradients for all operands."""
    made = {term.name: term.axes for line in row.body for term in line.left}
    differentiated = {term.name for line in row.gradient for term in line.left}
    given = row.inputs[: len(row.inputs) - len(row.defaults)]
    keeps = row.pointwise or all("n" in made[name] for name in row.outputs)
    return keeps and all(f"d{name}" in differentiated for name in given)


def operands(text: str) -> str:
    """Return the distinct names of the arrays in the right side of a line."""
    return " ".join(dict.fromkeys(re.findall(r"([A-Z])\[", text)))


class Bench(Protocol):
    """The operations of a library that a calibration times; each is a function that can run repeatedly.

    threads    the number of threads that run in parallel
    operators  whether lines run as PyTorch's operators, as in `Rates`
    larger     the factor by which operations are larger than on a CPU, so that they take longer than their launch
    """

    threads: int
    operators: bool
    larger: int

    @property
    def busy(self) -> Callable[[TimedCall], float] | None:
        """Return the seconds for which an operation keeps a device with a queue busy."""

    def wait(self) -> None:
        """Wait until all queued work has finished."""

    def product(self, orientation: str, m: int, n: int, k: int) -> TimedCall:
        """Return a matrix product that uses all threads, as a call."""

    def inner(self, m: int, n: int, k: int) -> tuple[TimedCall, int]:
        """Return a call of several matrix products of one thread each, or of a batch on a GPU, and their number."""

    def move(self, elements: int) -> TimedCall:
        """Return a call that adds two arrays of 4-byte elements into an existing third one."""

    def fill(self, bytes_: int) -> tuple[TimedCall, TimedCall]:
        """Return two calls, which fill a new array and an existing one; they are identical if results are never newly
        allocated."""

    def ops(self) -> Iterator[tuple[str, TimedCall, int]]:
        """Return a call of each op and primitive, by name, with its number of elements."""

    def calls(self) -> Mapping[str, tuple[TimedCall, int]]:
        """Return the smallest operations that measure the launch, the launch in the backward pass, the optimizer and a
        product, with their numbers of calls."""


POINTS = 70_000


class NumPyBench:
    """The bench of NumPy: its library multiplies matrices with several threads, everything else runs on one."""

    threads, operators = 1, True
    larger, busy = 1, None
    library = f"NumPy {np.__version__}"

    def wait(self) -> None:
        """Do nothing: NumPy's calls are synchronous."""

    def product(self, orientation: str, m: int, n: int, k: int) -> TimedCall:
        left, right = _factor(orientation[0], m, k), _factor(orientation[1], k, n)
        return partial(np.matmul, left, right)

    def inner(self, m: int, n: int, k: int) -> tuple[TimedCall, int]:
        return self.product("NN", m, n, k), 1

    def move(self, elements: int) -> TimedCall:
        left, right = (np.ones(elements, np.float32) for _ in range(2))
        return partial(np.add, left, right, out=np.empty_like(left))

    def fill(self, bytes_: int) -> tuple[TimedCall, TimedCall]:
        existing = np.ones(bytes_, np.uint8)
        return partial(np.ones_like, existing), partial(existing.fill, 1)

    def ops(self) -> Iterator[tuple[str, TimedCall, int]]:
        left, right = (np.linspace(0.1, 1, POINTS, dtype=np.float32) for _ in range(2))
        rows = [row for row in map(entry, timed_ops()) if row.kind and row.name != "erf"]
        pairs = ("add", "multiply", *(row.called or row.name for row in rows if len(row.inputs) == 2))
        for name in pairs:
            yield name, partial(getattr(np, name), left, right), POINTS
        for name in ("sum", "max", *(row.called or row.name for row in rows if len(row.inputs) == 1)):
            yield name, partial(getattr(np, name), left), POINTS

    def calls(self) -> Mapping[str, tuple[TimedCall, int]]:
        small = np.ones(4, np.float32)
        call = (partial(np.add, small, small), 1)
        return {"launch": call, "launch_backward": call, "optimizer": call, "product": (self.product("NN", 4, 4, 4), 1)}


def _factor(layout: str, rows: int, columns: int) -> np.ndarray:
    shape = (columns, rows) if layout == "T" else (rows, columns)
    array = np.random.default_rng(0).random(shape, np.float32)
    return array.T if layout == "T" else array
