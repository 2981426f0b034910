"""The task of a model: batches from plain files, and the display of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from learncost.engines.options import Options
from learncost.ir.dataclass import dataclass
from learncost.training.engine import Batch

Report = Callable[[str], None]
"""An observer of the reading progress."""


class Data(Protocol):
    """The data of a run. Its batches depend only on the run's options and the step."""

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text per target if every token is a target; else None."""

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""

    def check(self) -> Iterator[Batch]:
        """Yield the batches of the validation, always the same."""

    def show(self, batch: Batch, scores: Any) -> Sequence[str]:
        """Return a line for each of a batch's first examples: the target and the prediction."""


class Task(Protocol):
    """The task of a model by its head and its inputs.

    reads     what it is in files, in words
    classes   whether each answer is one of few classes, of which the right ones are counted
    example   a batch with which a model can be tried before there are data
    """

    @property
    def reads(self) -> str: ...

    @property
    def classes(self) -> bool: ...

    @property
    def example(self) -> Batch: ...

    def labels(self, paths: Sequence[str]) -> Sequence[str]:
        """Return the names of the classes in the files, in numeric order; none if the files have none."""

    def prepare(self, options: Options, folder: Path, say: Report) -> None:
        """Write the data into the folder. Raises InputError."""

    def load(self, options: Options, folder: Path, advice: str) -> Data:
        """Return the data in the folder. Raises InputError for damaged or too few data."""


def answers(batch: Batch) -> tuple[Any, ...]:
    """Return the targets of a batch, negative for none."""
    return tuple(np.asarray(batch[name]) for name in ("targets", "labels") if name in batch)


def count(batch: Batch) -> int:
    """Return the number of targets in a batch."""
    return sum(int((answer >= 0).sum()) for answer in answers(batch))


def right(batch: Batch, scores: Any) -> int:
    """Return the number of correct predictions: the highest of several classes, or a single score above 0."""
    (answer,) = answers(batch)
    return int((predicted(scores) == answer).sum())


def predicted(scores: Any) -> Any:
    """Return the classes that scores [..., classes] predict."""
    return (scores[..., 0] > 0).astype(int) if scores.shape[-1] == 1 else scores.argmax(axis=-1)


def padded(rows: Sequence[Any], length: int, nothing: int = 0) -> tuple[Any, Any]:
    """Return rows of unequal length as an array of this width, padded or cut, and its mask."""
    padded_rows = np.full((len(rows), length), nothing, np.int64)
    filled = np.zeros((len(rows), length), bool)
    for at, row in enumerate(rows):
        padded_rows[at, : len(row)] = row[:length]
        filled[at, : len(row)] = True
    return padded_rows, filled


@dataclass(frozen=True)
class Progress:
    """Reports the number of read examples at intervals."""

    say: Report
    what: str
    every: int = 1000

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows, 1):
            yield row
            if number % self.every == 0:
                self.say(f"{number:,} {self.what} are read")
