"""Run a table's emitted program on NumPy; it frees every value after its last use, as predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.backends import fill, program, unfold
from learncost.backends.executed import executed
from learncost.engines.core import Core, Interpreter, PreparedStep, Values
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.procedures.optimizer import without_gradients
from learncost.timing.traced import EMITTED, SOURCE

TYPES: Mapping[str, str] = {"float32": "fp32", "float64": "fp64"}
"""NumPy's types by their names in predictions."""

_Key = tuple[IdentityKey[Table], tuple[tuple[str, int], ...]]
"""The source of a program: a table and the sizes of its axes."""


def executed_text(text: str) -> dict[str, Any]:
    """Return what a program's text defines. It has no __name__: torch.compile would look for a module of that name."""
    namespace: dict[str, Any] = {SOURCE: text}
    exec(compile(text, EMITTED, "exec"), namespace)
    return namespace


class EmittedProgram:
    """A table's program: a function from named arrays to named results.

    library    numpy, torch or jax, whose arrays it takes
    precision  that the program is written for
    """

    def __init__(
        self, table: Table, sizes: Mapping[str, int], library: str = "numpy", precision: str | None = None
    ) -> None:
        self.program = program(table, library, sizes=sizes, dtype=precision)
        self.namespace = executed_text(self.program.text)
        self.function: Callable[..., Any] = self.namespace[self.program.function]

    def __call__(self, values: Mapping[str, Any], *devices: Any, **late: int) -> dict[str, Any]:
        """Return the results; on a mesh of devices, those of this device.

        late  sizes that were not known when the program was written, by its names for them
        """
        arguments = [fill(tree, values, self.namespace) for tree in self.program.parameters]
        with np.errstate(all="ignore"):  # a diverging training shows in its loss
            result = self.function(*arguments, *devices, **late)
        results = result if len(self.program.results) > 1 else (result,)
        trees = zip(self.program.results, results, strict=True)
        return {name: value for tree, result in trees for name, value in unfold(tree, result)}


class Programs:
    """An executor of tables as emitted programs, which free every value after its last use.

    The step returns weights and state, but no gradients.
    """

    updates_in_place = False

    def change_block(self) -> None:
        """Do nothing: the programs of all blocks remain for their next use."""

    def __init__(self, training: Core) -> None:
        self._training, self._interpreter = training, Interpreter(training)
        self._programs: dict[_Key, EmittedProgram] = {}
        self._peaks: dict[_Key, int] = {}

    @property
    def memory(self) -> int | None:
        """Return the predicted peak bytes of the last program; None before any ran."""
        return max(self._peaks.values(), default=None)

    def __call__(self, prepared: PreparedStep) -> Values:
        if self._training.precision.values == "bf16":
            return self._interpreter(prepared)  # NumPy has no bf16: the interpreter rounds its results
        key = (IdentityKey(prepared.table), tuple(prepared.sizes.items()))
        if key not in self._programs:
            table = without_gradients(prepared.table)
            self._programs[key] = EmittedProgram(table, prepared.sizes)
            self._peaks[key] = self._predicted(table, prepared.sizes)
        return self._programs[key](prepared.values)

    def _predicted(self, table: Table, sizes: Mapping[str, int]) -> int:
        """Return the peak bytes of the program plus the bytes of the training's other arrays."""
        read, training = {*table.weights, *table.inputs}, self._training
        arrays = {**training.weights_read, **training.state}
        unread: int = sum(array.nbytes for name, array in arrays.items() if name not in read)
        return executed(table, sizes, TYPES[training.dtype.name]).peak + unread
