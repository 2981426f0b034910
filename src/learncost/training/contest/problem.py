"""A learning problem: a model with one right answer per row, and examples for training and validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Any

import numpy as np

from learncost.engines.inputs import derived_inputs
from learncost.interpreter import infer_sizes
from learncost.models.model import Model
from learncost.training.data.examples import Examples

Arrays = dict[str, Any]

RATES: Mapping[str, tuple[float, ...]] = {
    "sgd": (1e-2, 1e-1, 1.0, 10.0, 100.0),
    "momentum": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
    "adamw": (1e-4, 1e-3, 1e-2, 1e-1),
    "adamw8bit": (1e-4, 1e-3, 1e-2, 1e-1),
    "rmsprop": (1e-4, 1e-3, 1e-2, 1e-1),
}
"""The learning rates that are tried where none are given, the same for all procedures. They are as wide as they are
because PEPITA's modulation is small: without AdamW, whose steps do not depend on how large a gradient is, it asks for
rates that backpropagation does not bear."""


@dataclass(frozen=True)
class Problem:
    """A learning problem.

    answers    the name of the right answers among the examples' arrays
    fixed      the model's other inputs, the same at every step
    begin      from a seed to the weights that every procedure starts from
    optimizer, batch_size  what suits it, where nothing is said
    facts      what its table says about the data
    """

    name: str
    model: Model
    training: Examples
    validation: Examples
    answers: str
    classes: int
    begin: Callable[[int], Arrays]
    optimizer: str
    batch_size: int
    facts: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def sizes(self, batch_size: int) -> dict[str, int]:
        """Return the sizes of all axes in a step on a number of examples."""
        return self._sizes | {"B": batch_size}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        arrays = {**self.begin(0), **self.training.rows(slice(1)), **self.fixed}
        arrays |= derived_inputs(self.model.table, arrays, {}, np.float64(1))
        return infer_sizes(self.model.table, arrays, self.model.sizes)

    @cached_property
    def chance(self) -> tuple[float, float]:
        """Return the validation loss and accuracy of a guess from the class frequencies of the training data.

        Every class counts once more than it is there, so that none has no probability.
        """
        counts = np.bincount(np.ravel(self.training.arrays[self.answers]), minlength=self.classes) + 1
        right = np.ravel(self.validation.arrays[self.answers])
        return float(-np.log(counts / counts.sum())[right].mean()), float((right == counts.argmax()).mean())

    @property
    def diverged(self) -> float:
        """Return the loss from which a training counts as diverged: ten times that of equal probabilities."""
        return 10 * log(self.classes)
