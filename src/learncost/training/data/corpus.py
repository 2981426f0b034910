"""Text as two long rows of tokens, and random windows of them.

It is read from text files, from all text files in folders, and from lists of two columns.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.tokenizer import Tokenizer
from learncost.ir.dataclass import asdict, dataclass
from learncost.ir.errors import InputError
from learncost.models.storage import read_json, write_json
from learncost.training.data.columns import METADATA_FILE, PARTS, Split, columns, mapped


@dataclass
class SkippedFiles:
    """The number of files that are no documents, counted during reading."""

    binary: int = 0
    empty: int = 0
    unreadable: int = 0


def documents(paths: Iterable[str], skipped: SkippedFiles) -> Iterator[bytes]:
    """Yield every document in the order of paths and names in folders, each file once.

    A document is a file in UTF-8 without a null character. Links to folders are not followed.
    Raises InputError for a path that is not there.
    """
    files_read: set[tuple[int, int]] = set()
    for path in _files(paths):
        try:
            about = path.stat()
            if (about.st_dev, about.st_ino) in files_read or not path.is_file():
                continue
            files_read.add((about.st_dev, about.st_ino))
            text = path.read_bytes()
        except OSError:
            skipped.unreadable += 1
            continue
        if not text:
            skipped.empty += 1
        elif not _is_text(text):
            skipped.binary += 1
        else:
            yield text


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for name in paths:
        if not name:  # to the system it is the folder at hand
            raise InputError(f"not a path: {name!r}")
        path = Path(name)
        try:
            if path.is_file():
                path.open("rb").close()  # a file that was named must be readable
                yield path
                continue
            os.scandir(path).close()
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror or error}") from None
        except ValueError:
            raise InputError(f"not a path: {name!r}") from None
        for folder, inner, files in os.walk(path):
            inner.sort()
            yield from (Path(folder, file) for file in sorted(files))


@dataclass(frozen=True)
class Corpus:
    """The tokens of a run: two long memory-mapped arrays of consecutive documents."""

    training: Any
    validation: Any
    bytes_per_token: float
    facts: dict[str, Any]

    def windows(self, size: int, length: int, seed: int, step: int) -> Any:
        """Return windows [size, length + 1] at positions that depend only on seed and step.

        The places are numbers of Philox, a counter-based generator (Salmon et al. 2011), at the counter of the step, so
        that a run that resumes draws what it would have drawn.
        """
        starts = philox(seed, step).random_raw(size) % np.uint64(len(self.training) - length)
        return _windows(self.training, starts, length)

    def check(self, length: int) -> Any:
        """Return fixed, evenly spaced windows of the validation tokens: 16,384 tokens, or all."""
        length = min(length, len(self.validation) - 1)
        last = len(self.validation) - length - 1
        number = max(1, min(16_384, len(self.validation)) // length)
        return _windows(self.validation, np.linspace(0, last, number).astype(int), length)


def philox(seed: int, step: int, stream: int = 0) -> np.random.Philox:
    """Return the random generator of a step; `stream` distinguishes several of one step."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64), counter=[0, 0, 0, step])


def _windows(tokens: Any, starts: Any, length: int) -> Any:
    return np.stack([np.asarray(tokens[int(start) : int(start) + length + 1], np.int64) for start in starts])


def prepare(paths: Iterable[str], tokenizer: Tokenizer, share: float, folder: Path) -> None:
    """Write the tokens of the documents into the run's folder; the facts about them are written last.

    share   of the documents that validate. A single document is cut: its end validates
    """
    skipped = SkippedFiles()
    numbers = "<u2" if tokenizer.size <= 2**16 else "<u4"
    read = tokens = 0
    with columns(folder, {"tokens": numbers}) as written:
        split = Split(share, lambda part, encoded: written.put(part, {"tokens": encoded}))
        for text in documents(paths, skipped):
            encoded = np.append(_numbers(tokenizer.encode(text)), tokenizer.end)
            read, tokens = read + len(text), tokens + len(encoded)
            split.add(text, encoded)
        if not split.end():
            if (alone := split.held) is None:
                raise InputError("the paths contain no text: give UTF-8 files that are not empty")
            cut = len(alone) - max(1, int(len(alone) * share))
            split.to("training", alone[:cut])
            split.to("validation", alone[cut:])
    facts = {
        "documents": split.counts,
        "skipped": asdict(skipped),
        "bytes": read,
        "tokens": {part: written.sizes[part]["tokens"] for part in PARTS},
        "bytes_per_token": read / max(tokens, 1),
        "numbers": numbers,
        "digests": {part: columns["tokens"] for part, columns in written.digests().items()},
    }
    write_json(folder / METADATA_FILE, facts)


def _numbers(encoded: Sequence[int]) -> Any:
    return np.frombuffer(encoded, np.uint8) if isinstance(encoded, bytes) else np.array(encoded, np.int64)


def load(folder: Path, advice: str) -> Corpus:
    """Return the tokens in a run's folder. Raises InputError if they are damaged."""
    facts = read_json(folder / METADATA_FILE, advice)
    bytes_per_token = facts.get("bytes_per_token")
    try:
        if not isinstance(bytes_per_token, float):
            raise TypeError
        facts_of = {part: (facts["numbers"], int(facts["tokens"][part]), facts["digests"][part]) for part in PARTS}
        columns = {
            part: mapped(folder, part, "tokens", *column_facts, advice) for part, column_facts in facts_of.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / METADATA_FILE} is damaged; {advice}") from None
    return Corpus(columns["training"], columns["validation"], bytes_per_token, facts)


DELIMITERS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}

NAMES: Mapping[str, Sequence[str]] = {
    "file": ("file", "filename", "file_name", "path", "image", "audio"),
    "label": ("label", "labels", "class", "category", "tags"),
    "text": ("text", "sentence", "words", "transcription", "transcript"),
    "source": ("source", "src", "input", "text", "question"),
    "target": ("target", "tgt", "output", "summary", "translation", "answer"),
}
"""The names of columns in a header, by their content."""


@dataclass(frozen=True)
class ListLine:
    """A line of a list: its position and its two columns."""

    path: Path
    number: int
    first: str
    second: str

    @property
    def where(self) -> str:
        return f"{self.path} line {self.number}"


def lists(paths: Iterable[str]) -> tuple[Path, ...]:
    """Return the given lists and those in given folders. Raises InputError."""
    files: list[Path] = []
    for path in map(Path, paths):
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        files += [entry for entry in inside if entry.suffix.lower() in DELIMITERS]
    return tuple(files)


def lines(path: Path, columns: tuple[str, str]) -> Iterator[ListLine]:
    """Yield the lines of a list, whose first line may name the two columns. Raises InputError."""
    delimiter = DELIMITERS[path.suffix.lower()]
    between = "a comma" if delimiter == "," else "a tab"
    places = None
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            quoted = delimiter == ","
            reader = csv.reader(
                file, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True
            )
            for row in reader:
                number = reader.line_num
                if not any(cell.strip() for cell in row):
                    continue
                if places is None:
                    places = _places([cell.strip().lower() for cell in row], columns)
                    if places is not None:
                        continue
                    places = (0, 1)
                if len(row) <= max(places) or (places == (0, 1) and len(row) > 2):
                    raise InputError(
                        f"{path} line {number} has {len(row)} {'column' if len(row) == 1 else 'columns'}, and must be "
                        f"{columns[0]} and {columns[1]} with {between} between"
                    )
                yield ListLine(path, number, row[places[0]].strip(), row[places[1]].strip())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8, after its line {number}") from None
    except csv.Error as error:
        raise InputError(f"{path} line {number + 1}: {error}") from None


def _places(names: Sequence[str], columns: tuple[str, str]) -> tuple[int, int] | None:
    """Return the positions of the columns from the first line; None where it is no line of names."""
    column_places = [next((at for at, name in enumerate(names) if name in NAMES[column]), None) for column in columns]
    first, second = column_places
    return None if first is None or second is None or first == second else (first, second)
