"""The documents of a training: text files, and all text files in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from learncost.ir.errors import InputError


@dataclass
class Skipped:
    """Files that are no documents, counted while the documents are read."""

    binary: int = 0
    empty: int = 0
    unreadable: int = 0


def documents(paths: Iterable[str], skipped: Skipped) -> Iterator[bytes]:
    """Every document, in the order of the paths and of the names in folders; each file once.

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
