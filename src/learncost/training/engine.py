"""Engines that run the steps of a training, by their names; NumPy's is the definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from learncost.backends.precision import check_runs
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.engines.emitted import Programs
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options, refuse_schedule
from learncost.engines.rounding import two_bytes, widened
from learncost.ir.errors import InputError, named_one, to_install
from learncost.ir.precision import precision_of
from learncost.models.configuration import Configuration
from learncost.procedures.accumulation import accumulated
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.training.parts import Parts

Arrays = dict[str, Any]

Batch = Mapping[str, Any]
"""Arrays by the names of `lc.Training.step`: tokens, targets, labels, image and so on."""


class NumPyEngine:
    """Weights, the optimizer's state, and steps that change them; this one executes the priced tables as the programs
    of `emit --backend numpy`: exact and slow. Other engines are this one with another runner of the same tables.

    `weights` and `state` are NumPy arrays by name: of the weights of the model's table (those of a repeat are stacks),
    and of the optimizer, called `weight.part`. `steps` counts; everything that is drawn (dropout) follows from the seed
    and from it, so that these three are all that a checkpoint holds.
    """

    name = "numpy"
    plans = False  # whether it runs the step under a plan

    def __init__(self, configuration: Configuration, options: Options) -> None:
        check_runs(precision_of(options.dtype))
        if options.device != "cpu" and self.name != "torch":
            raise InputError(f"--device is for --engine torch: --engine {self.name} chooses its own")
        if options.plan is not None and not self.plans:
            raise InputError(f"--engine {self.name} does not support plans: remove --plan")
        self._training = Training(
            configuration,
            options.procedure,
            options.optimizer,
            learning_rate=options.learning_rate or 0.0,
            betas=(0.9, options.beta_2),
            weight_decay=options.weight_decay,
            dropout=options.dropout,
            mode=options.mode,
            seed=options.seed,
            dtype=precision_of(options.dtype).array,
            accumulate=options.accumulate,
            clip=options.clip,
            precision=options.dtype,
            **options.learns,
        )
        self._training.runner = self._runner = self._made(options)

    def _made(self, options: Options) -> Any:
        """Return the programs that execute the tables."""
        return Programs(self._training)

    @property
    def weights(self) -> Arrays:
        """The current weights."""
        return {name: widened(array) for name, array in self._training.weights.items()}

    @property
    def state(self) -> Arrays:
        """The optimizer state."""
        return {name: widened(array) for name, array in self._training.state.items()}

    @property
    def plain_weights(self) -> Arrays:
        """The weights of the equivalent plain model: low-rank paths merged, codes dequantized."""
        return self._training.plain_weights

    @property
    def is_plain(self) -> bool:
        """Return whether its weights are those of the plain model."""
        return self._training.is_plain

    @property
    def learns(self) -> str:
        """The text on the trained parameters."""
        return self._training.learns

    @property
    def steps(self) -> int:
        """The number of completed steps."""
        return self._training.steps

    @property
    def says(self) -> str:
        """The description of how the steps were executed."""
        kept = ", weights in bf16 of 2 bytes by ml_dtypes, values of the step rounded in fp32"
        if two_bytes() is None:
            kept = f", bf16 rounded in fp32, which takes 4 bytes a number (2 with ml_dtypes: {to_install('bf16')})"
        return f"engine {self.name}{kept if self._training.low else ''}{self._states}"

    @property
    def _states(self) -> str:
        eight = bool(find_optimizer(self._training.settings.optimizer).states)
        return ", states rounded to 8 bits after every step and kept in fp32" if eight else ""

    @property
    def memory(self) -> int | None:
        """The bytes of weights, state and steps, if the engine has a fixed layout."""
        bytes_taken: int | None = self._runner.memory
        return bytes_taken

    def parts(self) -> Parts | None:
        """Return this process's shards as model.NAME and optimizer.NAME; None for one process."""
        return None

    def load(self, weights: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> None:
        """Load weights, state and the number of steps."""
        self._training.load(weights, state, steps)

    def load_parts(self, parts: Parts, steps: int) -> None:
        """Load shards as returned by `parts`, and the number of steps."""
        raise NotImplementedError("an engine of one process has no parts")

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Run a step on a batch with the arguments of `lc.Training.step`; return its loss in nats per target."""
        self._training.learning_rate = learning_rate
        return self._training.step(**batch)

    def loss(self, batch: Batch) -> float:
        """Return the loss of a batch without dropout or an update."""
        return float(self._training.forward(**batch)["loss"])

    def look(self, batch: Batch) -> tuple[float, Any]:
        """Return the loss of a batch, and the scores [..., classes] to compare with its answers."""
        loss, scores = self._training.look(**batch)
        return loss, np.asarray(scores)

    def flops(self, batch: Batch) -> int:
        """Return the priced FLOPs of the matrix products of a step on such a batch, over all microbatches."""
        training, parts = self._training, self._training.settings.accumulate
        sizes = training.prepare(**batch).sizes
        sizes = {**sizes, "B": sizes["B"] // parts}
        runs = [(training.table(), 1)]
        if parts > 1:
            halves = accumulated(training.table())
            runs = [(halves.gather, parts), (halves.update, 1)]
        return sum(times * int(price(table, sizes, book("matmul")).flops) for table, times in runs)


def _torch(configuration: Configuration, options: Options) -> NumPyEngine:
    from learncost.training.torch_engine import TorchEngine

    return TorchEngine(configuration, options)


def _jax(configuration: Configuration, options: Options) -> NumPyEngine:
    from learncost.training.jax_engine import JaxEngine

    return JaxEngine(configuration, options)


ENGINES: Mapping[str, Callable[[Configuration, Options], NumPyEngine]] = {
    "numpy": NumPyEngine,
    "torch": _torch,
    "jax": _jax,
}
"""Every engine by its name."""


def usual() -> str:
    """Return the default engine: PyTorch's, if PyTorch is installed."""
    return "torch" if find_spec("torch") else "numpy"


def engine(configuration: Configuration, options: Options) -> NumPyEngine:
    """Return the engine of the options, with initial weights."""
    if options.mesh is not None:
        from learncost.training.stages import mesh_engine

        return mesh_engine(configuration, options)
    refuse_schedule(options)
    return named_one("engine", options.engine or usual(), ENGINES)(configuration, options)
