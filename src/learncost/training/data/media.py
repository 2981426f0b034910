"""Images with classes, and sounds with their transcripts."""

from __future__ import annotations

import wave
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.tokenizer import Tokenizer
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, imported
from learncost.training.data.corpus import ListLine, lists
from learncost.training.data.examples import Column, Row
from learncost.training.data.readers import CLASS, RAGGED, ExampleReader, classes_of, compared_text, number_of, shifted
from learncost.training.data.task import padded, predicted
from learncost.training.engine import Batch

FORMATS: Mapping[str, str] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""The formats that are read, by how the names of files end."""

MODES: Mapping[int, str] = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's names of pixels with so many channels."""

MEAN = DEVIATION = 0.5
"""Pixels from 0 to 1 become those from -1 to 1, as transformers' ViTImageProcessor and Dosovitskiy et al.'s code do."""


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
        images = imported("PIL.Image", "images need the package Pillow", "images")
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


RATE, WINDOW, STRIDE = 16_000, 400, 160
"""Radford et al. 2022, section 2.2: samples a second; windows of 25 ms, one every 10 ms."""


@lru_cache
def mel_filters(channels: int) -> Any:
    """Return triangular filters [frequencies, channels] of equal area, evenly spaced on Slaney's scale to 8 kHz.

    The scale is linear below 1,000 Hz, 200/3 Hz a mel, and logarithmic above, 27 mels for a factor of 6.4 (Slaney 1998,
    Auditory Toolbox).
    """
    step, border, factor = 200 / 3, 1000.0, np.log(6.4) / 27
    highest = border / step + np.log(RATE / 2 / border) / factor
    mels = np.linspace(0, highest, channels + 2)
    edges = np.where(mels < border / step, mels * step, border * np.exp(factor * (mels - border / step)))
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    triangles = np.minimum((frequencies - low) / (middle - low), (high - frequencies) / (high - middle))
    return np.maximum(0, triangles) * 2 / (high - low)


def log_mel(sound: Any, frames: int, channels: int) -> Any:
    """Return the log-mel spectrogram [frames, channels] of samples from -1 to 1, padded with silence or cut.

    Logarithms of the power to base 10, the lowest 8 below the highest, then a quarter of them and 1 (Radford et al.'s
    code, whisper/audio.py).
    """
    signal = np.zeros(frames * STRIDE)
    signal[: min(len(sound), len(signal))] = sound[: len(signal)]
    signal = np.pad(signal, WINDOW // 2, mode="reflect")
    pieces = np.lib.stride_tricks.sliding_window_view(signal, WINDOW)[::STRIDE][:frames]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(pieces * hann)) ** 2
    logarithms = np.log10(np.maximum(power @ mel_filters(channels), 1e-10))
    return np.maximum(logarithms, logarithms.max() - 8) / 4 + 1


@dataclass(frozen=True)
class Sounds(ExampleReader):
    """Sounds with a transcript each."""

    tokenizer: Tokenizer
    start: int
    frames: int
    channels: int
    length: int
    reads = "sounds with texts, a .tsv with the FILE of a WAV, a tab and TEXT in each line"
    holds = ("file", "text")

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"features": Column("<f4", (self.frames, self.channels)), "targets": RAGGED}

    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        for line in self.lines(paths):
            if not line.second:
                raise InputError(f"{line.where} has no text")
            content = read(line)
            features = log_mel(samples(line, content), self.frames, self.channels)
            yield content, {"features": features, "targets": self.tokenizer.encode_answer(line.second.encode())}

    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        targets, _ = padded(rows["targets"], min(self.length, longest["targets"]), -1)
        return {"features": np.asarray(rows["features"]), "tokens": shifted(targets, self.start), "targets": targets}

    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        both = zip(batch["targets"], predicted(scores), strict=True)
        return [compared_text(self.tokenizer, targets, predictions) for targets, predictions in both]


def samples(line: ListLine, content: bytes) -> Any:
    """Return the samples of a WAV from -1 to 1, at 16,000 per second, averaged over channels. Raises InputError."""
    try:
        with wave.open(BytesIO(content)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{place(line)} is not a readable WAV: {error or 'it ends too early'}") from None
    data = data[: len(data) // (width * channels) * width * channels]
    if width == 1:  # the only width without a sign
        samples_read = (np.frombuffer(data, np.uint8) - 128.0) / 128
    else:
        raw = np.frombuffer(data, np.uint8).reshape(-1, width)
        wide = np.zeros((len(raw), 4), np.uint8)
        wide[:, 4 - width :] = raw  # the least significant byte first, in the upper bytes of 32 bits
        samples_read = wide.view("<i4")[:, 0] / 2.0**31
    if not len(samples_read):
        raise InputError(f"{place(line)} has no samples")
    return resampled(samples_read.reshape(-1, channels).mean(axis=1), rate)


def resampled(sound: Any, rate: int) -> Any:
    """Return a sound resampled to 16,000 samples per second, without frequencies above their limit."""
    length = max(1, round(len(sound) * RATE / rate))
    if length == len(sound):
        return sound
    waves = np.fft.rfft(sound)[: length // 2 + 1]
    if length < len(sound) and length % 2 == 0:  # the shortest wave stands there once, and twice in what it is of
        waves[-1] = 2 * waves[-1].real
    elif length > len(sound) and len(sound) % 2 == 0:
        waves[-1] /= 2
    return np.fft.irfft(waves, length) * (length / len(sound))
