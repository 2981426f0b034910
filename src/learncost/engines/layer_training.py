"""Train a user's layer on NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.engines.core import Core, OptimizerSettings, PreparedStep, Values
from learncost.engines.inputs import with_derived
from learncost.interpreter import infer_sizes
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError, nearest
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.models.model import Model, axes_of, from_layer
from learncost.procedures.inference import scored
from learncost.procedures.step import iterations_of, run_by


class LayerTraining(Core):
    """The training of a user's layer on NumPy. The layer's only output is `loss`.

    `weights` and `state` are dictionaries of arrays, and `steps` is their number. `step` takes the layer's inputs by
    name. A share of targets (`share: share of targets`) may be omitted: it is -1/count where a target is not negative.

    Parameters
    ----------
    layer
        The layer, or a full model, whose table's inputs are then given by name.
    weights
        Initial arrays by name.
    procedure
        The learning procedure: bp (the default), recompute, pepita, fa and others (`learncost list procedures`).
    optimizer
        sgd (the default), momentum, adamw or rmsprop.
    projected
        Inputs or embeddings to which PEPITA adds the output error through a fixed random matrix.
    settings
        The other arguments of `lc.Training`: learning_rate, momentum, betas, epsilon, weight_decay, mode, sign, scale,
        seed, dtype, accumulate, clip.

    Raises
    ------
    InputError
        For a layer with another output, a missing or unknown weight, an array of the wrong shape, an unknown input.

    Examples
    --------
    >>> import numpy as np
    >>> regression = lc.layer('''regression(X T; w) -> loss
    ...   P[B] = X[B d] w[d]
    ...   E[B] = P[B] - T[B]
    ...   loss[] = E[B] E[B]
    ... ''')
    >>> training = lc.LayerTraining(regression, {"w": np.zeros(2)}, optimizer="sgd", learning_rate=0.1)
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> [round(training.step(X=X, T=np.array([1.0, 2.0])), 3) for _ in range(3)]
    [5.0, 3.2, 2.048]
    """

    def __init__(
        self,
        layer: Layer | Model,
        weights: Mapping[str, Any],
        procedure: str = "bp",
        optimizer: str = "sgd",
        *,
        projected: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(OptimizerSettings(procedure, optimizer, **settings))
        if isinstance(layer, Model):
            self.model = model = replace(layer, projected=projected or layer.projected)
        else:
            self.model = model = from_layer(layer, projected)
        if not model.learns:
            name = model.configuration.name
            raise InputError(f"{name} must have `loss` as its only output, not {model.table.outputs}")
        self._blocks = iterations_of(model, self._chosen)
        self._tables = {self.iteration: self._step_table(model)}
        self._forward = run_by(model, procedure).table
        self._looking = replace(self._forward, outputs=("loss", scored(self._forward)))
        if missing := set(model.table.weights) - set(weights):
            raise InputError(f"the weight {min(missing)} is missing")
        if unknown := set(weights) - set(model.table.weights):
            name = min(unknown)
            raise InputError(f"{model.configuration.name} has no weight {name}{nearest(name, model.table.weights)}")
        self._begin({name: np.asarray(weights[name], self.dtype) for name in model.table.weights}, self.table())

    def table(self) -> Table:
        """Return the table that a step executes."""
        if self.iteration not in self._tables:
            self._tables[self.iteration] = self._step_table(self.model)
        return self._tables[self.iteration]

    def tables(self) -> tuple[tuple[Table, int], ...]:
        """Return the tables of the steps of a round, each with its number of steps."""
        iterations = dict.fromkeys(range(self._blocks), 1)
        if self._chosen.finds:
            iterations = {1: 1, 0: self._chosen.held - 1}
        return tuple(
            (self._step_table(self.model, iteration), steps) for iteration, steps in iterations.items() if steps
        )

    def _of_iteration(self) -> Table:
        return self.table()

    def step(self, **inputs: Any) -> float:
        """Run one training step on the layer's named inputs and return the loss before it."""
        values = self._run(self.prepare(**inputs))
        self._take(self.table(), values)
        return float(values["loss"])

    def updates(self, **inputs: Any) -> Values:
        """Return the gradient of every weight that the optimizer would read."""
        return self._updates(self._run(self.prepare(**inputs)))

    def forward(self, **inputs: Any) -> Values:
        """Return every named value of a forward pass."""
        values, sizes, _ = self._given(inputs)
        return self._run(PreparedStep(self._forward, values, sizes))

    def look(self, **inputs: Any) -> tuple[float, Any]:
        """Return the loss of a forward pass and its class scores."""
        values, sizes, _ = self._given(inputs)
        results = self._run(PreparedStep(self._looking, values, sizes))
        return float(results["loss"]), results[self._looking.outputs[1]]

    def prepare(self, **inputs: Any) -> PreparedStep:
        """Return the step's table with the arrays that it reads."""
        values, sizes, count = self._given(inputs)
        table = self.table()
        values |= self._projections(table, sizes) | self._scalars(table, count) | self.state
        return PreparedStep(table, values, sizes)

    def _given(self, inputs: Mapping[str, Any]) -> tuple[Values, dict[str, int], int]:
        sizes = {name: size for name, size in inputs.items() if name not in self.model.table.inputs}
        for name in sizes.keys() - {*axes_of(self.model.table), *self.model.sizes}:
            input_names = ", ".join(self.model.table.inputs)
            raise InputError(
                f"there is no input {name}{nearest(name, self.model.table.inputs)} (inputs: {input_names})"
            )
        arrays_given = {name: np.asarray(array) for name, array in inputs.items() if name not in sizes}
        arrays_given, count = with_derived(self.model.table, arrays_given, {})
        arrays = {n: a if a.dtype.kind in "iub" else a.astype(self.dtype) for n, a in arrays_given.items()}
        arrays |= self.weights | self.weights_read
        return arrays, infer_sizes(self.model.table, arrays, {**self.model.sizes, **sizes}), count
