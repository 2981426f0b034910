"""Examples with targets: pairs of texts, texts with classes, words with classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from learncost.engines.options import Options
from learncost.engines.tokenizer import Tokenizer
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.training.data.corpus import ListLine, lines, lists
from learncost.training.data.examples import Column, Examples, Ragged, Row, load, prepare
from learncost.training.data.task import Progress, Report, padded, predicted
from learncost.training.engine import Batch

RAGGED = Column("<u4", None)
CLASS = Column("<i4", ())
CLASSES = Column("<i4", None)


class ExampleReader(ABC):
    """The layout of examples in files, on disk and in batches.

    reads    what they are in files, in words
    holds    what the two columns of a list hold
    classes  whether each answer is one of few classes
    """

    reads: ClassVar[str]
    holds: ClassVar[tuple[str, str]]
    classes: ClassVar[bool] = False

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """The columns by name."""

    def lines(self, paths: Sequence[str]) -> Iterator[ListLine]:
        """Yield a line for each example. Raises InputError if there is none."""
        files = lists(paths)
        if not files:
            raise InputError(f"this model learns from {self.reads}; there is none in {', '.join(paths)}")
        for path in files:
            yield from lines(path, self.holds)

    def labels(self, paths: Sequence[str]) -> Sequence[str]:
        """Return the names of the classes in order."""
        return in_order({name for line in self.lines(paths) for name in self.classes_in(line)}) if self.classes else ()

    def classes_in(self, line: ListLine) -> Sequence[str]:
        """Return the classes of an example."""
        return (line.second,)

    @abstractmethod
    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        """Yield every example with its content. Raises InputError."""

    @abstractmethod
    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        """Return examples as a model's inputs; `longest` is the length of the longest row."""

    @abstractmethod
    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        """Return a line for each example: the target and the prediction."""


def in_order(names: set[str]) -> tuple[str, ...]:
    """Return the names of classes in numeric, then alphabetical order."""
    numbers = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numbers else None))


def number_of(line: ListLine, name: str, labels: Sequence[str]) -> int:
    """Return the number of a class. Raises InputError if the list has changed since its classes were read."""
    if name not in labels:
        raise InputError(f"{line.where}: class {name!r} was added after the run began: restore the list")
    return labels.index(name)


def shifted(targets: Any, start: int) -> Any:
    """Return the decoder's inputs: the start, then each target but the last (transformers' shift_tokens_right)."""
    before = np.roll(targets, 1, axis=1)
    before[:, 0] = start
    return np.maximum(before, 0)


@dataclass(frozen=True)
class Pairs(ExampleReader):
    """Pairs of texts: the encoder reads the first, the decoder predicts the second."""

    tokenizer: Tokenizer
    start: int
    lengths: tuple[int, int]
    reads = "pairs of texts, a .tsv with SOURCE, a tab and TARGET in each line"
    holds = ("source", "target")

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"encoder_tokens": RAGGED, "targets": RAGGED}

    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        for line in self.lines(paths):
            if not line.first or not line.second:
                raise InputError(f"{line.where} has an empty column: there must be a source and a target")
            source = line.first.encode()
            yield (
                source,
                {
                    "encoder_tokens": self.tokenizer.encode_alone(source),
                    "targets": self.tokenizer.encode_answer(line.second.encode()),
                },
            )

    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        widths = [min(most, longest[name]) for name, most in zip(self.columns, self.lengths, strict=True)]
        tokens, mask = padded(rows["encoder_tokens"], widths[0])
        targets, _ = padded(rows["targets"], widths[1], -1)
        read = {"encoder_tokens": tokens, "encoder_mask": mask}
        return {**read, "tokens": shifted(targets, self.start), "targets": targets}

    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        return [
            f"{self.tokenizer.decode(source[mask])!r}: {compared_text(self.tokenizer, targets, predictions)}"
            for source, mask, targets, predictions in zip(
                batch["encoder_tokens"], batch["encoder_mask"], batch["targets"], predicted(scores), strict=True
            )
        ]


def compared_text(tokenizer: Tokenizer, targets: Any, predictions: Any) -> str:
    """Return the target text, and the text predicted under teacher forcing."""
    mask = targets >= 0
    return f"{tokenizer.decode(targets[mask])!r}, predicted {tokenizer.decode(predictions[mask])!r}"


@dataclass(frozen=True)
class Classes(ExampleReader):
    """Texts with a class each."""

    tokenizer: Tokenizer
    length: int
    reads = "texts with classes, a .tsv with TEXT, a tab and LABEL in each line"
    holds = ("text", "label")
    classes = True

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"tokens": RAGGED, "labels": CLASS}

    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        for line in self.lines(paths):
            if not line.first:
                raise InputError(f"{line.where} has no text")
            text = line.first.encode()
            yield text, {"tokens": self.tokenizer.encode_alone(text), "labels": number_of(line, line.second, labels)}

    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        tokens, mask = padded(rows["tokens"], min(self.length, longest["tokens"]))
        return {"tokens": tokens, "mask": mask, "labels": np.asarray(rows["labels"])}

    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        texts = [self.tokenizer.decode(row[mask]) for row, mask in zip(batch["tokens"], batch["mask"], strict=True)]
        return [f"{text!r}: {verdict}" for text, verdict in zip(texts, classes_of(batch, scores, labels), strict=True)]


def classes_of(batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
    """Return the class of each example, and its prediction."""
    return [
        f"{labels[right]}, predicted {labels[predicted_label] if predicted_label < len(labels) else predicted_label}"
        for right, predicted_label in zip(batch["labels"], predicted(scores), strict=True)
    ]


@dataclass(frozen=True)
class Words(ExampleReader):
    """Texts of words with a class each, which is predicted at a word's first token."""

    tokenizer: Tokenizer
    length: int
    reads = "texts whose words have classes, a .tsv with TEXT, a tab and as many LABELS in each line"
    holds = ("text", "label")
    classes = True

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"tokens": RAGGED, "targets": CLASSES}

    def classes_in(self, line: ListLine) -> Sequence[str]:
        return line.second.split()

    def rows(self, paths: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[bytes, Row]]:
        for line in self.lines(paths):
            words, names = line.first.split(), line.second.split()
            if len(words) != len(names) or not words:
                raise InputError(f"{line.where} has {len(words)} words and {len(names)} labels: each word needs one")
            parts = [self.tokenizer.encode(f"{' ' if at else ''}{word}".encode()) for at, word in enumerate(words)]
            targets = [
                number_of(line, name, labels) if at == 0 else -1
                for part, name in zip(parts, names, strict=True)
                for at in range(len(part))
            ]
            yield line.first.encode(), {"tokens": [token for part in parts for token in part], "targets": targets}

    def batch(self, rows: Mapping[str, Any], longest: Mapping[str, int]) -> Batch:
        length = min(self.length, longest["tokens"])
        tokens, mask = padded(rows["tokens"], length)
        return {"tokens": tokens, "mask": mask, "targets": padded(rows["targets"], length, -1)[0]}

    def show(self, batch: Batch, scores: Any, labels: Sequence[str]) -> Sequence[str]:
        names = np.array([*labels, *map(str, range(len(labels), scores.shape[-1]))])
        return [
            f"{self.tokenizer.decode(tokens[keep])!r}: {' '.join(names[right[right >= 0]])}, "
            f"predicted {' '.join(names[predictions[right >= 0]])}"
            for tokens, keep, right, predictions in zip(
                batch["tokens"], batch["mask"], batch["targets"], predicted(scores), strict=True
            )
        ]


CHECKED = 1024
"""The largest number of validation examples."""


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
        """Return an example of zeros, with rows of length two where it is variable."""
        kinds = self.reader.columns.items()
        sizes = {name: (2,) if kind.shape is None else kind.shape for name, kind in kinds}
        rows = {name: np.zeros((1, *sizes[name]), kind.numbers) for name, kind in kinds}
        return self.reader.batch(rows, dict.fromkeys(rows, 2))

    def labels(self, paths: Sequence[str]) -> Sequence[str]:
        labels = self.reader.labels(paths)
        next(self.reader.rows(paths, labels))  # what is wrong with all of them is said before anything is made
        if self.classes and len(labels) < 2:
            raise InputError(f"at least two classes are needed, not {', '.join(labels) or 'none'}")
        return labels

    def prepare(self, options: Options, folder: Path, say: Report) -> None:
        say("reading the examples")
        labels = self.labels(options.paths)
        rows = Progress(say, "examples")(self.reader.rows(options.paths, labels))
        prepare(rows, self.reader.columns, options.validation_share, folder, {"labels": list(labels)})

    def load(self, options: Options, folder: Path, advice: str) -> RowsData:
        training, validation, facts = load(folder, advice)
        return RowsData(self.reader, options, training, validation, facts["labels"])


@dataclass(frozen=True)
class RowsData:
    """The examples of a run."""

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
        """The longest rows of the columns with rows of unequal length."""
        parts = (self.training.arrays.items(), self.validation.arrays.items())
        rows = [(name, column.longest) for part in parts for name, column in part if isinstance(column, Ragged)]
        return {name: max(length for other, length in rows if other == name) for name, _ in rows}

    def batch(self, step: int) -> Batch:
        size = (self.options.batch_size or 1) * self.options.accumulate
        places = self.training.stream(self.options.seed, step * size, size)
        return self.reader.batch(self.training.rows(places), self.longest)

    def check(self) -> Iterator[Batch]:
        """Return at most 1,024 evenly spaced validation examples."""
        total, size = len(self.validation), self.options.batch_size or 1
        places = np.linspace(0, total - 1, min(total, CHECKED)).astype(int)
        for at in range(0, len(places), size):
            yield self.reader.batch(self.validation.rows(places[at : at + size]), self.longest)

    def show(self, batch: Batch, scores: Any) -> Sequence[str]:
        return self.reader.show(batch, scores, self.labels)
