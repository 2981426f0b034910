"""Text as two long rows of tokens, and the windows that are drawn from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.tokenizer import Tokenizer
from learncost.ir.errors import InputError
from learncost.models.storage import read_json, write_json
from learncost.training.data.columns import FACTS, PARTS, Split, columns, mapped
from learncost.training.data.documents import Skipped, documents


@dataclass(frozen=True)
class Corpus:
    """The tokens of a run: two long arrays, mapped from the disk, in which documents stand one after the other."""

    training: Any
    validation: Any
    bytes_per_token: float
    facts: dict[str, Any]

    def windows(self, size: int, length: int, seed: int, step: int) -> Any:
        """So many tokens and the one after them [size, length + 1], from places that depend on seed and step alone.

        The places are numbers of Philox, a counter-based generator (Salmon et al. 2011), at the counter of the step, so
        that a run that resumes draws what it would have drawn.
        """
        starts = philox(seed, step).random_raw(size) % np.uint64(len(self.training) - length)
        return _windows(self.training, starts, length)

    def check(self, length: int) -> Any:
        """Windows of the validation's tokens, evenly spread and always the same: 16,384 tokens, or all where fewer."""
        length = min(length, len(self.validation) - 1)
        last = len(self.validation) - length - 1
        number = max(1, min(16_384, len(self.validation)) // length)
        return _windows(self.validation, np.linspace(0, last, number).astype(int), length)


def philox(seed: int, step: int, turn: int = 0) -> np.random.Philox:
    """The random numbers of a step; `turn` tells those of the same step apart that are drawn for something else."""
    return np.random.Philox(key=np.array([seed, turn], np.uint64), counter=[0, 0, 0, step])


def _windows(tokens: Any, starts: Any, length: int) -> Any:
    return np.stack([np.asarray(tokens[int(start) : int(start) + length + 1], np.int64) for start in starts])


def prepare(paths: Iterable[str], tokenizer: Tokenizer, share: float, folder: Path) -> None:
    """Write the tokens of the documents into the run's folder; the facts about them are written last.

    share   of the documents that validate. A single document is cut: its end validates
    """
    skipped = Skipped()
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
                raise InputError("there is no text in what was given: a document is a file in UTF-8 that is not empty")
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
    write_json(folder / FACTS, facts)


def _numbers(encoded: Sequence[int]) -> Any:
    return np.frombuffer(encoded, np.uint8) if isinstance(encoded, bytes) else np.array(encoded, np.int64)


def load(folder: Path, advice: str) -> Corpus:
    """The tokens in a run's folder; InputError where they are damaged."""
    facts = read_json(folder / FACTS, advice)
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
        raise InputError(f"{folder / FACTS} is damaged; {advice}") from None
    return Corpus(columns["training"], columns["validation"], bytes_per_token, facts)
