"""The operations that are timed, for any library.

NumPy's are here, for a machine without PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from learncost.ops import entries, entry
from learncost.ops.op_def import OpDef

Doing: TypeAlias = Callable[[], object]


def timed_ops() -> dict[str, str]:
    """The ops that can be timed, as right sides of a layer's line: those with a function in PyTorch.

    Selecting primitives, primitives timed as moves, ops that reduce an axis, and ops with an operand without gradient,
    such as a bound, are excluded.
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
    turned = {term.name for line in row.gradient for term in line.left}
    given = row.inputs[: len(row.inputs) - len(row.defaults)]
    keeps = row.pointwise or all("n" in made[name] for name in row.outputs)
    return keeps and all(f"d{name}" in turned for name in given)


def operands(text: str) -> str:
    """Return the distinct names of the arrays in the right side of a line."""
    return " ".join(dict.fromkeys(re.findall(r"([A-Z])\[", text)))


class Bench(Protocol):
    """The timed operations of a library, each as a function that can run repeatedly.

    threads    at work at once; `operators` as in `Rates`
    larger     the factor by which operations must be larger than on a CPU to outlast their launch
    """

    threads: int
    operators: bool
    larger: int

    @property
    def busy(self) -> Callable[[Doing], float] | None:
        """Return the device seconds of an operation, for a device with a queue."""

    def wait(self) -> None:
        """Wait until all queued work has finished."""

    def product(self, orientation: str, m: int, n: int, k: int) -> Doing:
        """Return one product with all threads."""

    def inner(self, m: int, n: int, k: int) -> tuple[Doing, int]:
        """Return several one-thread products and their number (on a GPU, one batch)."""

    def move(self, elements: int) -> Doing:
        """Return the sum of two arrays of 4-byte elements into an existing third one."""

    def fill(self, bytes_: int) -> tuple[Doing, Doing]:
        """Return the fill of a new array and of an existing one; the same if results are never new."""

    def ops(self) -> Iterator[tuple[str, Doing, int]]:
        """Return each op or primitive by name, with its number of elements."""

    def calls(self) -> Mapping[str, tuple[Doing, int]]:
        """Return the smallest launch, launch_backward, optimizer and product, with their numbers of calls."""


POINTS = 70_000


class NumPyBench:
    """NumPy: products use its library's threads, everything else one thread."""

    threads, operators = 1, True
    larger, busy = 1, None
    library = f"NumPy {np.__version__}"

    def wait(self) -> None:
        """Do nothing: NumPy's calls are synchronous."""

    def product(self, orientation: str, m: int, n: int, k: int) -> Doing:
        left, right = _factor(orientation[0], m, k), _factor(orientation[1], k, n)
        return partial(np.matmul, left, right)

    def inner(self, m: int, n: int, k: int) -> tuple[Doing, int]:
        return self.product("NN", m, n, k), 1

    def move(self, elements: int) -> Doing:
        left, right = (np.ones(elements, np.float32) for _ in range(2))
        return partial(np.add, left, right, out=np.empty_like(left))

    def fill(self, bytes_: int) -> tuple[Doing, Doing]:
        existing = np.ones(bytes_, np.uint8)
        return partial(np.ones_like, existing), partial(existing.fill, 1)

    def ops(self) -> Iterator[tuple[str, Doing, int]]:
        left, right = (np.linspace(0.1, 1, POINTS, dtype=np.float32) for _ in range(2))
        rows = [row for row in map(entry, timed_ops()) if row.kind and row.name != "erf"]
        pairs = ("add", "multiply", *(row.called or row.name for row in rows if len(row.inputs) == 2))
        for name in pairs:
            yield name, partial(getattr(np, name), left, right), POINTS
        for name in ("sum", "max", *(row.called or row.name for row in rows if len(row.inputs) == 1)):
            yield name, partial(getattr(np, name), left), POINTS

    def calls(self) -> Mapping[str, tuple[Doing, int]]:
        small = np.ones(4, np.float32)
        call = (partial(np.add, small, small), 1)
        return {"launch": call, "launch_backward": call, "optimizer": call, "product": (self.product("NN", 4, 4, 4), 1)}


def _factor(way: str, rows: int, columns: int) -> np.ndarray:
    shape = (columns, rows) if way == "T" else (rows, columns)
    array = np.random.default_rng(0).random(shape, np.float32)
    return array.T if way == "T" else array
