"""NumPy's operators, where there is no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from learncost.calibration.operations import Doing, timed_ops
from learncost.ops import entry

POINTS = 70_000


class NumPyBench:
    """Products with the threads that NumPy's library takes; everything else on one."""

    threads, operators = 1, True
    larger, busy = 1, None
    library = f"NumPy {np.__version__}"

    def wait(self) -> None:
        """Everything is done when it returns."""

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
