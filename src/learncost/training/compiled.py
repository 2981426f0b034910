"""A training step of a PyTorch module in memory: forward pass, derived backward pass and update, in one arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.engines.inputs import Datum, data, is_on_gpu
from learncost.engines.numpy_engine import Training
from learncost.engines.state import from_state, stored, to_state
from learncost.importer.from_module import from_module
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError
from learncost.layers.layer import Layer
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.procedures.optimizer import DEFAULT
from learncost.training.torch_engine import TorchRunner


class CompiledStep(Displayed):
    """A training step of a module, which `lc.compile` returns: with a batch, it updates its weights, and says the loss.

    Parameters
    ----------
    layer
        The module's table, for `lc.memory(step.layer, engine="cuda", B=8)` and all other questions.
    training
        The weights and the optimizer's state.
    runner
        The programs of the step on a device.
    names
        What the training calls the inputs of forward, by their names there.
    """

    def __init__(self, layer: Layer, training: Training, runner: TorchRunner, names: Mapping[str, Datum]) -> None:
        self.layer, self._training, self._runner, self._names = layer, training, runner, names

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the loss of a batch, before the update. Takes what forward takes, as arrays or tensors, also on a GPU.

        It is a float; with device cuda a tensor there, for which only who reads it waits, as with `loss.item()`.
        """
        if len(inputs) > len(self._names):
            raise InputError(f"the step takes {len(self._names)} inputs, not {len(inputs)}: {', '.join(self._names)}")
        batch = dict(zip(self._names, inputs, strict=False)) | named
        if unknown := [name for name in batch if name not in self._names]:
            raise InputError(f"the step has no input {unknown[0]}: it takes {', '.join(self._names)}")
        data_given = {self._names[name].name: _fitting(self._names[name], value) for name, value in batch.items()}
        loss = self._training.stepped(**data_given)
        return loss if self._runner.gpu else float(loss)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step, which may be set."""
        return self._training.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._training.learning_rate = rate

    @property
    def says(self) -> str:
        """The description of how the steps were executed: the plan and the kernels."""
        return self._runner.says

    @property
    def memory(self) -> int | None:
        """The bytes of weights, optimizer state, batch and arena, once a step has run; None if operators allocate."""
        return self._runner.memory

    def state_dict(self) -> dict[str, Any]:
        """Return the trained weights as tensors by their paths, as `module.load_state_dict` takes them."""
        import torch

        self._runner.fetch()
        arrays = {**self._training.weights, **self._training.state}
        found = to_state(stored(self.layer, self._training.model.sizes), arrays)
        return {path: torch.from_numpy(np.ascontiguousarray(array)) for path, array in found.items()}


def compile(
    module: Any,
    inputs: Any,
    symbols: Mapping[str, str] | None = None,
    *,
    optimizer: str = DEFAULT,
    device: str = "cpu",
    plan: str | None = None,
    **settings: Any,
) -> CompiledStep:
    """Return a training step of a module whose forward returns the loss: forward, backward and update in one arena.

    The backward pass is derived from the module's table, and the planner chooses what is kept. The module itself is not
    changed: the step has a copy of its weights (`state_dict`).

    Parameters
    ----------
    module, inputs, symbols
        As for `lc.from_module`.
    optimizer
        adamw (the default), sgd or momentum.
    device
        cpu (the default): PyTorch's products and kernels in C; or cuda: the step of emit in Triton as one CUDA
        graph, which has not run on a GPU yet.
    plan
        The plan of the step. The default is the planner's choice.
    settings
        The other arguments of `lc.Training`: `learning_rate` (0.001 by default; the step's attribute may be changed
        between steps), `precision` (fp32, fp64 or bf16-masters), betas, weight_decay, clip and others. With device
        cuda also `deterministic`: two runs are bit-identical, and the step's `says` has what that costs.

    Returns
    -------
    CompiledStep
        The step: `step(x, y)` is the loss before the update, with device cuda a tensor on the device.

    Raises
    ------
    InputError
        As for `lc.from_module`, for a module without a loss or without values, and for a device that is not there.

    Examples
    --------
    >>> import torch
    >>> class Line(torch.nn.Linear):
    ...     def forward(self, x, y):
    ...         return torch.nn.functional.mse_loss(super().forward(x), y)
    >>> line = Line(1, 1)
    >>> step = lc.compile(line, {"x": "float B 1", "y": "float B 1"}, optimizer="sgd", learning_rate=0.1)
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> losses = [step(x, 3 * x + 1) for _ in range(100)]
    >>> losses[-1] < 0.01 * losses[0]
    True
    """
    if inputs is None:
        raise InputError("lc.compile needs the module's inputs, such as {'x': 'float B 3 64 64'}")
    from learncost.engines.in_triton import check_device, check_gpu

    (check_gpu if device.startswith("cuda") else check_device)(device)
    layer = from_module(module, inputs, symbols)
    assert isinstance(layer, Layer)
    assert layer.origin is not None
    model, called = build(configure(layer, {})), type(module).__name__
    if not model.learns:
        raise InputError(f"{called} {model.without_loss}")
    weights = from_state(stored(layer, model.sizes), layer.origin.values(), called)
    deterministic = bool(settings.pop("deterministic", False))
    settings = {"learning_rate": 0.001, "precision": "fp32", **settings, "weights": weights}
    training = Training(layer, "bp", optimizer, **settings)
    training.runner = runner = TorchRunner(training, plan, device, deterministic)
    return CompiledStep(layer, training, runner, _named(layer, training, inputs))


def _named(layer: Layer, training: Training, inputs: Any) -> dict[str, Datum]:
    """Return the data of a training by the names of the inputs of forward, in order."""
    read = {datum.name: datum for datum in data(training.model)}
    given = list(inputs) if isinstance(inputs, Mapping) else list(read)
    made = [name for name, datum in read.items() if name not in given and not (datum.places or datum.answers)]
    if made:
        raise InputError(f"{layer.name} reads {', '.join(made)}, which it makes of integers: lc.compile cannot run it")
    if len(given) != len(read):
        raise InputError(f"{layer.name} reads {', '.join(read)} of {', '.join(given)}: leave out the other inputs")
    rest = iter([datum for name, datum in read.items() if name not in given])
    return {name: read[name] if name in read else next(rest) for name in given}


def _fitting(datum: Datum, value: Any) -> Any:
    """Return a tensor as an array, without axes of size 1 that the table does not have; numbers on a GPU stay there."""
    array = value.detach() if hasattr(value, "detach") else value
    if datum.places or not is_on_gpu(array):
        array = np.asarray(array.cpu() if array is not value else array)
    ones = [axis for axis, size in enumerate(array.shape) if size == 1]
    more = max(array.ndim - len(datum.axes), 0)
    return array.squeeze(tuple(ones[len(ones) - more :])) if 0 < more <= len(ones) else array
