"""Images with classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from learncost.ir.errors import InputError, to_install
from learncost.training.data.corpus import ListLine, lists
from learncost.training.data.examples import Column, Row
from learncost.training.data.readers import CLASS, ExampleReader, classes_of, number_of
from learncost.training.engine import Batch

FORMATS: Mapping[str, str] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""The formats that are read, by how the names of files end."""

MODES: Mapping[int, str] = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's names of pixels with so many channels."""

MEAN = DEVIATION = 0.5
"""Pixels from 0 to 1 become those from -1 to 1, as transformers' ViTImageProcessor and Dosovitskiy et al.'s code do."""


def pillow() -> Any:
    """Return Pillow's module Image. Raises InputError."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(f"images need the package Pillow: {to_install('images')}") from None
    return Image


@dataclass(frozen=True)
class Images(ExampleReader):
    """Images with a class each."""

    height: int
    width: int
    channels: int
    reads = "images with classes, a .csv with FILE,LABEL in each line or a folder of PNGs for each class"
    holds = ("file", "label")
    classes = True

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"image": Column("|u1", (self.channels, self.height, self.width)), "labels": CLASS}

    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        for line in self.lines(paths):
            content = read(line)
            yield content, {"image": self._pixels(line, content), "labels": number_of(line, line.second, labels)}

    def lines(self, paths: Sequence[str]) -> Iterator[ListLine]:
        """Yield an image per line of lists, or per file of class folders."""
        in_folders = [
            ListLine(folder, 0, str(file.relative_to(folder)), file.parent.name)
            for folder in map(Path, () if lists(paths) else paths)
            for file in sorted(folder.glob("*/*"))
            if file.suffix.lower() in FORMATS
        ]
        yield from in_folders or super().lines(paths)

    def _pixels(self, line: ListLine, content: bytes) -> Any:
        """Return an image [channels, height, width] from 0 to 255, resized to this size.

        Bilinear, as transformers' ViTImageProcessor resizes.
        """
        images = pillow()
        if self.channels not in MODES:
            raise InputError(f"images have 1, 3 or 4 channels, and the model reads {self.channels}: --num-channels")
        try:
            with images.open(BytesIO(content), formats=tuple(sorted(set(FORMATS.values())))) as image:
                picture = image.convert(MODES[self.channels])
                if picture.size != (self.width, self.height):
                    picture = picture.resize((self.width, self.height), images.Resampling.BILINEAR)
        except Exception as error:  # the package raises what its decoders raise
            reason = "it must be a PNG or a JPEG" if isinstance(error, images.UnidentifiedImageError) else str(error)
            raise InputError(f"{place(line)} is not a readable image: {reason}") from None
        return np.asarray(picture, np.uint8).reshape(self.height, self.width, self.channels).transpose(2, 0, 1)

    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        image = (np.asarray(rows["image"], np.float32) / 255 - MEAN) / DEVIATION
        return {"image": image, "labels": np.asarray(rows["labels"], np.int64)}

    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        return classes_of(batch, scores, labels)


def place(line: ListLine) -> str:
    """Return the path of a file and the line that names it."""
    return str(line.path / line.first) if not line.number else f"{line.where}: {line.path.parent / line.first}"


def read(line: ListLine) -> bytes:
    """Return the file of a line, relative to the list or its folder. Raises InputError."""
    folder = line.path.parent if line.number else line.path
    try:
        return (folder / line.first).read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{line.where}: there is no file {folder / line.first}; name files relative to the list in the first "
            f"column, or in the column file"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{place(line)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
