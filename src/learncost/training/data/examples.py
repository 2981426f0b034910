"""Examples as rows, stored in columns on disk, and shuffled in every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.weights import generator
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.models.storage import read_json, write_json
from learncost.training.data.columns import METADATA_FILE, PARTS, Split, columns, mapped

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """The contents of a column: numbers of a type in rows of one shape; None: of unequal length."""

    numbers: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Ragged:
    """Consecutive rows of unequal length."""

    numbers: Any
    ends: Any

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, places: Any) -> list[Any]:
        return [np.asarray(self.numbers[self.ends[at - 1] if at else 0 : self.ends[at]]) for at in places]

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return int(np.diff(self.ends, prepend=0).max(initial=0))


@dataclass(frozen=True)
class Examples:
    """Arrays by name with a row for each example."""

    arrays: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def rows(self, places: Any) -> dict[str, Any]:
        """Return some rows of a column, as a list if their lengths are unequal."""
        return {name: array[places] for name, array in self.arrays.items()}

    def part(self, first: int, last: int) -> Examples:
        """Return the examples from `first` to before `last`."""
        return Examples({name: array[first:last] for name, array in self.arrays.items()})

    def stream(self, seed: int, start: int, count: int) -> Any:
        """Return the examples at some positions of an endless sequence; every epoch is shuffled anew.

        The row follows from the seed alone, so that those whose batches differ still learn from the same one.
        """
        total = len(self)
        places = np.arange(start, start + count)
        shuffled = np.empty(count, int)
        for epoch in range(start // total, (start + count - 1) // total + 1):
            of_epoch = places // total == epoch
            shuffled[of_epoch] = _shuffled(seed, epoch, total)[places[of_epoch] % total]
        return shuffled


@lru_cache(maxsize=2)
def _shuffled(seed: int, epoch: int, total: int) -> Any:
    return generator(seed, "epoch", epoch).permutation(total)


def prepare(
    rows: Iterable[tuple[bytes, Row]], kinds: Mapping[str, Column], share: float, folder: Path, facts: Mapping[str, Any]
) -> None:
    """Write examples, each with what it is made of, into the run's folder; the facts about them are written last.

    share   of the examples that validate
    """
    types = {name: kind.numbers for name, kind in kinds.items()}
    types |= {_ends(name): "<i8" for name, kind in kinds.items() if kind.shape is None}
    with columns(folder, types) as written:

        def put(part: str, row: Row) -> None:
            written.put(part, row)
            written.put(part, {_ends(n): [written.sizes[part][n]] for n, kind in kinds.items() if kind.shape is None})

        split = Split(share, put)
        for content, row in rows:
            split.add(content, row)
        if not split.end():
            raise InputError("at least two examples are needed: one for training and one for validation")
    shapes = {name: kind.shape for name, kind in kinds.items()}
    counts = {"examples": split.counts, "types": types, "shapes": shapes, "sizes": written.sizes}
    write_json(folder / METADATA_FILE, {**facts, **counts, "digests": written.digests()})


def _ends(name: str) -> str:
    return f"{name}.ends"


def load(folder: Path, advice: str) -> tuple[Examples, Examples, dict[str, Any]]:
    """Return the training and validation examples in a run's folder, and the facts about them.

    Raises InputError where they are damaged.
    """
    facts = read_json(folder / METADATA_FILE, advice)
    parts = []
    try:
        for part in PARTS:
            count = facts["examples"][part]
            columns = {
                name: mapped(folder, part, name, kind, facts["sizes"][part][name], facts["digests"][part][name], advice)
                for name, kind in facts["types"].items()
            }
            shapes = facts["shapes"].items()
            parts.append(
                Examples(
                    {
                        name: Ragged(columns[name], columns[_ends(name)])
                        if size is None
                        else columns[name].reshape(count, *size)
                        for name, size in shapes
                    }
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / METADATA_FILE} is damaged; {advice}") from None
    training, validation = parts
    return training, validation, facts
