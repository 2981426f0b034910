"""Append-only files of a run: metrics, a line of JSON for each step, and samples."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from learncost.models.storage import WriteAdvice, cannot_write


class MetricsLog:
    """An append-only file; a resumed run truncates it to its length at the last checkpoint."""

    def __init__(self, path: Path, length: int, kept: WriteAdvice) -> None:
        self._path, self._kept = path, kept
        try:
            self._file = path.open("ab")
            if path.stat().st_size > length:
                os.truncate(path, length)
        except OSError as error:
            raise cannot_write(path, error, kept) from None

    def add(self, text: str) -> None:
        """Write a text, at once. Raises InputError."""
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise cannot_write(self._path, error, self._kept) from None

    def settle(self) -> None:
        """Flush everything to the disk before a checkpoint refers to it."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self._path, error, self._kept) from None

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what could not be written was reported when it was added
            self._file.close()


class NoLog(MetricsLog):
    """The log of a process that does not write."""

    def __init__(self) -> None: ...

    def add(self, text: str) -> None:
        """Do nothing: another process writes."""

    def settle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
