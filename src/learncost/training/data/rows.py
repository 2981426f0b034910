"""Examples with answers as what a run learns from: an example a row, shuffled anew in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.training.data.examples import Examples, Ragged, load, prepare
from learncost.training.data.readers import ExampleReader
from learncost.training.data.task import Progress, Say
from learncost.training.engine import Batch

CHECKED = 1024
"""How many examples validate at most."""


@dataclass(frozen=True)
class ExampleRows:
    """Examples that a reader finds in files."""

    reader: ExampleReader

    @property
    def reads(self) -> str:
        return self.reader.reads

    @property
    def classes(self) -> bool:
        return self.reader.classes

    @property
    def example(self) -> Batch:
        """Numbers that are 0, two of each row whose length is free."""
        kinds = self.reader.columns.items()
        sizes = {name: (2,) if kind.shape is None else kind.shape for name, kind in kinds}
        rows = {name: np.zeros((1, *sizes[name]), kind.numbers) for name, kind in kinds}
        return self.reader.batch(rows, dict.fromkeys(rows, 2))

    def labels(self, paths: Sequence[str]) -> Sequence[str]:
        labels = self.reader.labels(paths)
        next(self.reader.rows(paths, labels))  # what is wrong with all of them is said before anything is made
        if self.classes and len(labels) < 2:
            raise InputError(f"there must be two classes at least, and {', '.join(labels) or 'none'} is all there is")
        return labels

    def prepare(self, options: Options, folder: Path, say: Say) -> None:
        say("reading the examples")
        labels = self.labels(options.paths)
        rows = Progress(say, "examples")(self.reader.rows(options.paths, labels))
        prepare(rows, self.reader.columns, options.validation_share, folder, {"labels": list(labels)})

    def load(self, options: Options, folder: Path, advice: str) -> RowsData:
        training, validation, facts = load(folder, advice)
        return RowsData(self.reader, options, training, validation, facts["labels"])


@dataclass(frozen=True)
class RowsData:
    """A run's examples."""

    reader: ExampleReader
    options: Options
    training: Examples
    validation: Examples
    labels: Sequence[str]

    @property
    def bytes_per_token(self) -> None:
        return None

    @property
    def longest(self) -> Mapping[str, int]:
        """Of the columns whose rows are of unequal length."""
        parts = (self.training.arrays.items(), self.validation.arrays.items())
        rows = [(name, column.longest) for part in parts for name, column in part if isinstance(column, Ragged)]
        return {name: max(length for other, length in rows if other == name) for name, _ in rows}

    def batch(self, step: int) -> Batch:
        size = (self.options.batch_size or 1) * self.options.accumulate
        places = self.training.stream(self.options.seed, step * size, size)
        return self.reader.batch(self.training.rows(places), self.longest)

    def check(self) -> Iterator[Batch]:
        """At most 1,024 of the examples that validate, evenly spread."""
        total, size = len(self.validation), self.options.batch_size or 1
        places = np.linspace(0, total - 1, min(total, CHECKED)).astype(int)
        for at in range(0, len(places), size):
            yield self.reader.batch(self.validation.rows(places[at : at + size]), self.longest)

    def show(self, batch: Batch, scores: Any) -> Sequence[str]:
        return self.reader.show(batch, scores, self.labels)
