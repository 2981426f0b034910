"""Tokens on the disk, and the batches that are drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.training.documents import Skipped, documents
from learncost.training.files import cannot_write, digest, read_json, write_json, written
from learncost.training.tokenizer import Tokenizer

PARTS = ("training", "validation")
FACTS = "data.json"


def file_of(part: str) -> str:
    """The file of a part's tokens: whole numbers, the least significant byte first, each document with its end."""
    return f"{part}.tokens"


@dataclass(frozen=True)
class Corpus:
    """The tokens of a run: two long arrays, mapped from the disk, in which documents stand one after the other."""

    training: Any
    validation: Any
    bytes_per_token: float
    facts: dict[str, Any]

    def batch(self, size: int, length: int, seed: int, step: int) -> tuple[Any, Any]:
        """Tokens and the next ones [size, length], from places that depend on the seed and the step alone.

        The places are numbers of Philox, a counter-based generator (Salmon et al. 2011), at the counter of the step, so
        that a run that resumes draws what it would have drawn.
        """
        counter = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=[0, 0, 0, step])
        starts = counter.random_raw(size) % np.uint64(len(self.training) - length)
        return _windows(self.training, starts, length)

    def check(self, length: int) -> tuple[Any, Any]:
        """Windows of the validation's tokens, evenly spread and always the same: 16,384 tokens, or all where fewer."""
        length = min(length, len(self.validation) - 1)
        last = len(self.validation) - length - 1
        number = max(1, min(16_384, len(self.validation)) // length)
        return _windows(self.validation, np.linspace(0, last, number).astype(int), length)


def _windows(tokens: Any, starts: Any, length: int) -> tuple[Any, Any]:
    rows = np.stack([np.asarray(tokens[int(start) : int(start) + length + 1], np.int64) for start in starts])
    return rows[:, :-1], rows[:, 1:]


def prepare(paths: Iterable[str], tokenizer: Tokenizer, share: float, folder: Path) -> None:
    """Write the tokens of the documents into the run's folder; the facts about them are written last.

    share   of the documents that validate: those whose text's hash is in the lowest part of all hashes. A single
            document is cut: its end validates
    """
    skipped = Skipped()
    numbers = "<u2" if tokenizer.size <= 2**16 else "<u4"
    counts = dict.fromkeys(PARTS, 0)
    read = tokens = 0
    with ExitStack() as stack:
        files = {
            part: stack.enter_context(stack.enter_context(written(folder / file_of(part))).open("wb")) for part in PARTS
        }

        def put(part: str, encoded: Any) -> None:
            try:
                files[part].write(encoded.tobytes())
                files[part].flush()
            except OSError as error:
                raise cannot_write(folder / file_of(part), error) from None
            counts[part] += 1

        held: Any = None  # one document waits, so that there is a training and a validation document at the end
        for text in documents(paths, skipped):
            encoded = np.append(_numbers(tokenizer.encode(text)), tokenizer.end).astype(numbers)
            read, tokens = read + len(text), tokens + len(encoded)
            if held is None:
                held = encoded
            else:
                put("validation" if _place(text) < share else "training", encoded)
        _put_last(held, counts, share, put)
    facts = {
        "documents": counts,
        "skipped": asdict(skipped),
        "bytes": read,
        "tokens": {part: (folder / file_of(part)).stat().st_size // np.dtype(numbers).itemsize for part in PARTS},
        "bytes_per_token": read / max(tokens, 1),
        "numbers": numbers,
        "digests": {part: digest({part: _mapped(folder / file_of(part), numbers)}) for part in PARTS},
    }
    write_json(folder / FACTS, facts)


def _numbers(encoded: Sequence[int]) -> Any:
    return np.frombuffer(encoded, np.uint8) if isinstance(encoded, bytes) else np.array(encoded, np.int64)


def _place(text: bytes) -> float:
    """Where a document stands between 0 and 1: the same text always at the same place."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64


def _put_last(held: Any, counts: dict[str, int], share: float, put: Callable[[str, Any], None]) -> None:
    """The first document goes where one is missing; one that is alone is cut."""
    if held is None:
        raise InputError("there is no text in what was given: a document is a file in UTF-8 that is not empty")
    if not any(counts.values()):
        cut = len(held) - max(1, int(len(held) * share))
        put("training", held[:cut])
        put("validation", held[cut:])
    else:
        put("validation" if not counts["validation"] else "training", held)


def _mapped(path: Path, numbers: str) -> Any:
    """The tokens of a file, which stay on the disk; an empty file cannot be mapped."""
    return np.memmap(path, numbers, "r") if path.stat().st_size else np.zeros(0, numbers)


def load(folder: Path, advice: str) -> Corpus:
    """The tokens in a run's folder; InputError where they are damaged."""
    facts = read_json(folder / FACTS, advice)
    found = {}
    bytes_per_token = facts.get("bytes_per_token")
    if not isinstance(bytes_per_token, float):
        raise InputError(f"{folder / FACTS} is damaged; {advice}")
    for part in PARTS:
        path = folder / file_of(part)
        try:
            numbers, count = np.dtype(facts["numbers"]), int(facts["tokens"][part])
            if path.stat().st_size != count * numbers.itemsize:
                raise InputError(f"{path} is damaged: it should hold {count:,} tokens; {advice}")
            found[part] = _mapped(path, facts["numbers"])
            if digest({part: found[part]}) != facts["digests"][part]:
                raise InputError(f"{path} is damaged: its digest differs; {advice}")
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{folder / FACTS} is damaged; {advice}") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}; {advice}") from None
    return Corpus(found["training"], found["validation"], bytes_per_token, facts)
