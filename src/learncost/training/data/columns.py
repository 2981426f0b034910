"""Arrays on disk, one per file, written row by row and memory-mapped for reading; and the validation split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.models.storage import cannot_write, digest, written

PARTS = ("training", "validation")
METADATA_FILE = "data.json"
"""The file of the facts about what was prepared, written last."""


def file_of(part: str, name: str) -> str:
    """Return the file of a column of a part, which has its numbers in little-endian order."""
    return f"{part}.{name}"


@dataclass
class Columns:
    """The columns of both parts during writing."""

    folder: Path
    types: Mapping[str, str]
    sizes: dict[str, dict[str, int]]
    _files: dict[tuple[str, str], BinaryIO] = field(default_factory=dict)

    def put(self, part: str, row: Mapping[str, Any]) -> None:
        """Add to the columns of a part. Raises InputError."""
        for name, values in row.items():
            array = np.asarray(values, self.types[name])
            try:
                self._files[part, name].write(array.tobytes())
                self._files[part, name].flush()
            except OSError as error:
                raise cannot_write(self.folder / file_of(part, name), error) from None
            self.sizes[part][name] += array.size

    def digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of the columns of each part after writing."""
        return {part: {name: self._digest(part, name) for name in self.types} for part in PARTS}

    def _digest(self, part: str, name: str) -> str:
        return digest({part: _mapped(self.folder / file_of(part, name), self.types[name])})


@contextmanager
def columns(folder: Path, types: Mapping[str, str]) -> Iterator[Columns]:
    """Yield columns to write in the folder; their files appear when the block ends without an error."""
    written_columns = Columns(folder, types, {part: dict.fromkeys(types, 0) for part in PARTS})
    with ExitStack() as stack:
        for part, name in ((part, name) for part in PARTS for name in types):
            temporary = stack.enter_context(written(folder / file_of(part, name)))
            written_columns._files[part, name] = stack.enter_context(temporary.open("wb"))
        yield written_columns


def mapped(folder: Path, part: str, name: str, numbers: str, count: int, fingerprint: str, advice: str) -> Any:
    """Return a memory-mapped column. Raises InputError, ending with `advice`, if its digest differs."""
    path = folder / file_of(part, name)
    try:
        if path.stat().st_size != count * np.dtype(numbers).itemsize:
            raise InputError(f"{path} is damaged: it should hold {count:,} {name}; {advice}")
        column = _mapped(path, numbers)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; {advice}") from None
    if digest({part: column}) != fingerprint:
        raise InputError(f"{path} is damaged: its digest differs; {advice}")
    return column


def _mapped(path: Path, numbers: str) -> Any:
    """Return the memory-mapped numbers of a file; an empty file cannot be mapped."""
    return np.memmap(path, numbers, "r") if path.stat().st_size else np.zeros(0, numbers)


@dataclass
class Split:
    """Assigns rows to training and validation by a hash of their content, so that equal rows are in one part.

    One row waits, so that there is one of both at the end.

    share  of the rows that validate: those whose hash is in the lowest part of all hashes
    """

    share: float
    put: Callable[[str, Any], None]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    held: Any = None

    def add(self, content: bytes, row: Any) -> None:
        """Add a row with its content."""
        if self.held is None:
            self.held = row
        else:
            self.to("validation" if _place(content) < self.share else "training", row)

    def to(self, part: str, row: Any) -> None:
        """Write a row to a part."""
        self.put(part, row)
        self.counts[part] += 1

    def end(self) -> bool:
        """Move the waiting row to an empty part; return False if there is no other row."""
        if self.held is None or not any(self.counts.values()):
            return False
        self.to("validation" if not self.counts["validation"] else "training", self.held)
        return True


def _place(content: bytes) -> float:
    """Return the position of a row between 0 and 1: the same content always at the same place."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") / 2**64
