"""Lists of two columns: what is learned from and what is right, in lines of CSV or of columns with tabs between."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learncost.ir.errors import InputError

DELIMITERS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}

NAMES: Mapping[str, Sequence[str]] = {
    "file": ("file", "filename", "file_name", "path", "image", "audio"),
    "label": ("label", "labels", "class", "category", "tags"),
    "text": ("text", "sentence", "words", "transcription", "transcript"),
    "source": ("source", "src", "input", "text", "question"),
    "target": ("target", "tgt", "output", "summary", "translation", "answer"),
}
"""How a first line calls its columns, by what they hold."""


@dataclass(frozen=True)
class ListLine:
    """A line of a list: where it stands, and its two columns."""

    path: Path
    number: int
    first: str
    second: str

    @property
    def where(self) -> str:
        return f"{self.path} line {self.number}"


def lists(paths: Iterable[str]) -> tuple[Path, ...]:
    """The lists that are named, and those that stand in the folders that are named. Raises InputError."""
    files: list[Path] = []
    for path in map(Path, paths):
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        files += [entry for entry in inside if entry.suffix.lower() in DELIMITERS]
    return tuple(files)


def lines(path: Path, columns: tuple[str, str]) -> Iterator[ListLine]:
    """The lines of a list; the first may say which of its columns are these two. Raises InputError."""
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
    """Where the columns stand, as the first line says it; None where it is no line of names."""
    column_places = [next((at for at, name in enumerate(names) if name in NAMES[column]), None) for column in columns]
    first, second = column_places
    return None if first is None or second is None or first == second else (first, second)
