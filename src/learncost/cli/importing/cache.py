"""Tables that were read before: a text for each file, input and flag, good as long as nothing that was read changed.

No file of the user's is run to find one, and PyTorch is not imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from learncost.ir.errors import InputError
from learncost.models.files import user_folder
from learncost.models.storage import written
from learncost.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Remembered:
    """A table that was read: its text, and what was said while it was read."""

    text: str
    said: tuple[str, ...]


@dataclass(frozen=True)
class CachePlace:
    """Where the table of a file, with these inputs and flags, is kept.

    asked  whatever else the table depends on, as JSON has it
    """

    file: Path
    asked: Any

    @cached_property
    def path(self) -> Path:
        return user_folder("tables") / f"{self._key}.json"

    @cached_property
    def _key(self) -> str:
        environment = [FORMAT, __version__, sys.version, sys.prefix, _packages(), _reader()]
        text = json.dumps([*environment, str(self.file.resolve()), self.asked])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def read(self) -> Remembered | None:
        """What is kept; None where there is nothing, or where a file changed that the user's code had read."""
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
            text, files = str(record["text"]), record["files"]
            if record["digest"] == _told(text) and all(_digest(Path(file)) == told for file, told in files.items()):
                return Remembered(text, tuple(map(str, record["said"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    def write(self, table: Remembered, files: Iterable[Path]) -> None:
        """Keep a table with the files that it was made of; nothing happens where that cannot be written."""
        digests = {str(file): _digest(file) for file in sorted({self.file.resolve(), *files})}
        record = {"files": digests, "said": table.said, "text": table.text, "digest": _told(table.text)}
        with suppress(OSError, InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written(self.path) as temporary:
                temporary.write_text(json.dumps(record), encoding="utf-8")


LARGE = 2**24
"""Bytes from which on a file, such as one of weights, is told by its size and its time."""


def _told(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        stat = file.stat()
        if stat.st_size > LARGE:
            return f"{stat.st_size} {stat.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _packages() -> list[str]:
    """The packages that are installed, with their versions: the names of their folders of metadata."""
    folders = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    names = (entry.name for folder in folders if folder.is_dir() for entry in os.scandir(folder))
    return sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))


READERS = ("importer", "ir", "layers", "ops")
"""The packages whose code decides what is read of a module."""


def _reader() -> list[tuple[str, int, int]]:
    """The files of this package that read modules: a table that another state of them read is read again."""
    package = Path(__file__).parents[2]
    folders = [package / name for name in READERS]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in (file.stat(),)]
