"""A table's program on NumPy, as `emit` writes it: what nothing reads any more is gone, as the prediction has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.equation.table import Table
from learncost.readings.emit import fill, program, unfold


class Emitted:
    """A table's program, called with arrays by the table's names; its results by theirs."""

    def __init__(self, table: Table, sizes: Mapping[str, int]) -> None:
        self._program = program(table, "numpy", sizes=sizes)
        self._namespace: dict[str, Any] = {"__name__": "learncost_emitted"}
        exec(compile(self._program.text, "<emitted by learncost>", "exec"), self._namespace)

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        arguments = [fill(tree, values, self._namespace) for tree in self._program.parameters]
        with np.errstate(all="ignore"):  # a training that diverges says so by its loss
            result = self._namespace[self._program.function](*arguments)
        results = result if len(self._program.results) > 1 else (result,)
        trees = zip(self._program.results, results, strict=True)
        return {name: value for tree, own in trees for name, value in unfold(tree, own)}
