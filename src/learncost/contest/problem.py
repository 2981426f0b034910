"""A problem: a model with one right answer for each of its rows, examples to learn it from, others to check it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import log
from typing import Any

import numpy as np

from learncost.engines.weights import generator
from learncost.models.model import Model
from learncost.readings.run import infer_sizes

Arrays = dict[str, Any]

RATES: Mapping[str, tuple[float, ...]] = {
    "sgd": (1e-2, 1e-1, 1.0, 10.0, 100.0),
    "momentum": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
    "adamw": (1e-4, 1e-3, 1e-2, 1e-1),
}
"""The learning rates that are tried where none are given, the same for all procedures. They are as wide as they are
because PEPITA's modulation is small: without AdamW, whose steps do not depend on how large a gradient is, it asks for
rates that backpropagation does not bear."""


@dataclass(frozen=True)
class Examples:
    """Arrays by the names of the model's inputs, an example a row each; `answers` is the name of the right answers."""

    arrays: Mapping[str, Any]
    answers: str

    def __len__(self) -> int:
        return len(self.arrays[self.answers])

    @property
    def right(self) -> Any:
        """The right answers, [examples] or [examples, positions]."""
        return self.arrays[self.answers]

    def rows(self, which: Any) -> Arrays:
        """Some of them as a batch, with the share of each answer in the loss: all count the same."""
        found: Arrays = {name: np.asarray(array[which]) for name, array in self.arrays.items()}
        right = found[self.answers]
        return found | {"share": np.full(right.shape, -1 / right.size)}

    def part(self, first: int, last: int) -> Examples:
        """Those from `first` to before `last`."""
        return replace(self, arrays={name: array[first:last] for name, array in self.arrays.items()})

    def stream(self, seed: int, start: int, count: int) -> Any:
        """Which examples stand at some places of an endless row: every epoch is a shuffle of its own.

        The row follows from the seed alone, so that procedures whose batches differ still learn from the same one.
        """
        total = len(self)
        places = np.arange(start, start + count)
        found = np.empty(count, int)
        for epoch in range(start // total, (start + count - 1) // total + 1):
            own = places // total == epoch
            found[own] = _shuffled(seed, epoch, total)[places[own] % total]
        return found


@lru_cache(maxsize=2)
def _shuffled(seed: int, epoch: int, total: int) -> Any:
    return generator(seed, "epoch", epoch).permutation(total)


@dataclass(frozen=True)
class Problem:
    """What is to be learned.

    fixed      what the model reads beside the examples, the same at every step
    projected  inputs that PEPITA adds the error to through a fixed random matrix; none: the one-hot tokens
    begin      from a seed to the weights that every procedure starts from
    optimizer, batch_size  what suits it, where nothing is said
    facts      what its table says about the data
    """

    name: str
    model: Model
    training: Examples
    validation: Examples
    classes: int
    begin: Callable[[int], Arrays]
    optimizer: str
    batch_size: int
    facts: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    projected: tuple[str, ...] = ()

    def sizes(self, batch_size: int) -> dict[str, int]:
        """The sizes of all axes in a step on so many examples."""
        return self._sizes | {"B": batch_size}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        arrays = {**self.begin(0), **self.training.rows(slice(1)), **self.fixed}
        return infer_sizes(self.model.table, arrays, self.model.sizes)

    @cached_property
    def chance(self) -> tuple[float, float]:
        """Loss and accuracy on the validation of a guess that knows only how often each class is in the training.

        Every class counts once more than it is there, so that none has no probability.
        """
        counts = np.bincount(np.ravel(self.training.right), minlength=self.classes) + 1
        right = np.ravel(self.validation.right)
        return float(-np.log(counts / counts.sum())[right].mean()), float((right == counts.argmax()).mean())

    @property
    def diverged(self) -> float:
        """A loss that nothing comes back from: ten times that of equal probabilities."""
        return 10 * log(self.classes)
