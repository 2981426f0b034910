"""The engine on JAX: the step's emitted source, compiled by `jax.jit` for any device of XLA."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from learncost.backends import leaves
from learncost.engines.core import PreparedStep, Values
from learncost.engines.emitted import EmittedProgram
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.ir.errors import InputError, imported
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.models.configuration import Configuration
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import procedure as find_procedure
from learncost.training.engine import Arrays, NumPyEngine


class _JaxRunner:
    """Compiles each table once and executes it on JAX arrays of weights and state.

    Batches, scalars and the masks of dropout are made as on NumPy. A step gives weights and state away: XLA writes the
    new ones into the memory of the old.
    """

    updates_in_place, memory = False, None

    def __init__(self, training: Training) -> None:
        self._training = training
        self.place()

    def change_block(self) -> None:
        """Do nothing: blocks do not alternate on JAX."""

    def place(self) -> None:
        """Put weights and state on the device."""
        import jax

        training = self._training
        self._compiled: dict[IdentityKey[Table], _Compiled] = {}
        with exact(training.dtype):
            training.weights = {name: jax.numpy.array(array) for name, array in training.weights.items()}
            training.state = {name: jax.numpy.array(array) for name, array in training.state.items()}

    def __call__(self, prepared: PreparedStep) -> Values:
        training, key = self._training, IdentityKey(prepared.table)
        if key not in self._compiled:
            self._compiled[key] = _Compiled(prepared.table, training.model.sizes, training.precision.name)
        with exact(training.dtype):
            return self._compiled[key].step(prepared)


def exact(dtype: Any) -> AbstractContextManager[object]:
    """Return the context in which JAX supports this type: 64 bits must be enabled."""
    import jax

    wide: AbstractContextManager[object] = jax.enable_x64(np.dtype(dtype).itemsize == 8)
    return wide


class JaxEngine(NumPyEngine):
    """NumPy's engine with the same tables compiled by XLA; its default device is JAX's own."""

    name = "jax"
    _runner: _JaxRunner

    def __init__(self, configuration: Configuration, options: Options) -> None:
        imported("jax", "--engine jax needs JAX", "jax")  # refused here, before anything else is made
        kind = precision_of(options.dtype)
        if find_optimizer(options.optimizer).states:
            raise InputError(
                f"--engine jax does not round optimizer states, as {options.optimizer} does: choose torch or numpy"
            )
        if kind.values == "bf16" and not kind.masters:
            raise InputError(
                f"--engine jax keeps weights in fp32, and {kind.name} has them in bf16: choose torch or numpy"
            )
        if find_procedure(options.procedure).by_iterations:
            raise InputError(
                f"--engine jax updates no array in-place, as {options.procedure} needs: use torch or numpy"
            )
        super().__init__(configuration, options)

    def _made(self, options: Options) -> _JaxRunner:
        return _JaxRunner(self._training)

    @property
    def weights(self) -> Arrays:
        return {name: np.array(array) for name, array in self._training.weights.items()}

    @property
    def state(self) -> Arrays:
        return {name: np.array(array) for name, array in self._training.state.items()}

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        super().load(weights, state, steps)
        self._runner.place()


class _Compiled(EmittedProgram):
    """The program of a table under `jax.jit`. Fully renewed arguments (`W.new` of all `W`) are donated."""

    def __init__(self, table: Table, sizes: Mapping[str, int], precision: str) -> None:
        import jax

        self._table = without_gradients(table)
        super().__init__(self._table, sizes, "jax", precision)
        changed = {*table.renewed}
        parameters = [set(leaves(tree)) for tree in self.program.parameters]
        self.function = jax.jit(
            self.function,
            donate_argnums=[place for place, names in enumerate(parameters) if names <= changed],
            static_argnames=tuple(self.program.sizes.values()),
        )

    def step(self, prepared: PreparedStep) -> Values:
        """Return the results of a step by name."""
        values = {name: prepared.values[name] for name in (*self._table.weights, *self._table.inputs)}
        return self(values, **{late: prepared.sizes[name] for name, late in self.program.sizes.items()})
