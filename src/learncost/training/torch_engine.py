"""The engine on PyTorch: the step's table as emitted source, executed as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.equation.table import Table
from learncost.models.configuration import Configuration
from learncost.models.model import build
from learncost.readings.emit import fill, program, unfold
from learncost.training.engine import Arrays, NumPyEngine
from learncost.training.options import Options


class TorchEngine(NumPyEngine):
    """Weights and the optimizer's state are tensors; everything else that a step reads is made as on NumPy.

    So batches, scalars and the masks of dropout are the same, and only the arithmetic differs.
    """

    name = "torch"

    def __init__(self, configuration: Configuration, options: Options) -> None:
        super().__init__(configuration, options)
        if options.accumulate > 1:
            raise InputError("--engine torch does not accumulate yet: choose numpy or jax")
        try:
            import torch
        except ImportError:
            raise InputError("--engine torch needs PyTorch: pip install 'learncost[torch]'") from None
        self._torch = torch
        own = self._training
        table = own.table()
        gradients = {f"d{weight}" for weight in table.weights}
        kept = tuple(name for name in table.outputs if name not in gradients)
        self._step = _Emitted(replace(table, outputs=kept), own.model.sizes)
        self._forward = _Emitted(build(configuration).table, own.model.sizes)
        self._tensors: dict[str, Any] = {}
        self._take(own.weights | own.state)

    @property
    def weights(self) -> Arrays:
        return {name: self._tensors[name].numpy() for name in self._training.weights}

    @property
    def state(self) -> Arrays:
        return {name: self._tensors[name].numpy() for name in self._training.state}

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        super().load(weights, state, steps)
        self._take(self._training.weights | self._training.state)

    def step(self, tokens: Any, targets: Any, learning_rate: float) -> float:
        own = self._training
        own.learning_rate = learning_rate
        found = self._step(self._tensors, own.prepare(tokens, targets).values, self._torch)
        self._tensors = {name: found.get(f"{name}.new", tensor) for name, tensor in self._tensors.items()}
        own.steps += 1
        return float(found["loss"])

    def loss(self, tokens: Any, targets: Any) -> float:
        found = self._forward(self._tensors, self._training.inputs(tokens, targets), self._torch)
        return float(found["loss"])

    def _take(self, arrays: Mapping[str, Any]) -> None:
        self._tensors = {name: self._torch.from_numpy(np.array(array)) for name, array in arrays.items()}


class _Emitted:
    """The program of a table, called with values by the names of the table."""

    def __init__(self, table: Table, sizes: Mapping[str, int]) -> None:
        self._program = program(table, "torch", sizes=sizes)
        self._namespace: dict[str, Any] = {"__name__": "learncost_emitted"}
        exec(compile(self._program.text, "<emitted by learncost>", "exec"), self._namespace)
        self._reads = tuple(table.inputs)

    def __call__(self, tensors: Mapping[str, Any], arrays: Mapping[str, Any], torch: Any) -> dict[str, Any]:
        values = dict(tensors)
        for name in self._reads:
            if name not in values:
                values[name] = torch.from_numpy(np.ascontiguousarray(arrays[name]))
        arguments = [fill(tree, values, self._namespace) for tree in self._program.parameters]
        with torch.inference_mode():
            result = self._namespace[self._program.function](*arguments)
        results = result if len(self._program.results) > 1 else (result,)
        trees = zip(self._program.results, results, strict=True)
        return {name: value for tree, own in trees for name, value in unfold(tree, own)}
