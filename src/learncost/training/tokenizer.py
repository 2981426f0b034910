"""From text to token numbers and back: bytes, or a tokenizer of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from learncost.equation.errors import InputError


class Tokenizer(Protocol):
    """Text to numbers below `size` and back; `end` is the number of the token that ends a document."""

    size: int
    end: int

    def encode(self, text: bytes) -> Sequence[int]:
        """The tokens of a text in UTF-8, without the end."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; what is no UTF-8 is shown as �."""


class Bytes:
    """Every byte is a token, and 256 ends a document."""

    size, end = 257, 256

    def encode(self, text: bytes) -> Sequence[int]:
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.end).decode("utf-8", errors="replace")


ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "[SEP]")
"""What the tokenizers of published models call the end of a document."""


class FromFile:
    """The tokenizer in a tokenizer.json of Hugging Face, by the package tokenizers."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Theirs
        except ImportError:
            raise InputError("--tokenizer FILE needs the package tokenizers: pip install 'learncost[train]'") from None
        try:
            self._own: Any = Theirs.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        except Exception as error:  # the package raises plain Exceptions
            raise InputError(f"{path} is not a tokenizer.json: {' '.join(str(error).split())}") from None
        self.size = self._own.get_vocab_size()
        known = (self._own.token_to_id(name) for name in ENDS)
        end = next((number for number in known if number is not None), None)
        if end is None:
            raise InputError(f"{path} has no token that ends a document: none of {', '.join(ENDS)}")
        self.end = int(end)

    def encode(self, text: bytes) -> Sequence[int]:
        encoded = self._own.encode(text.decode("utf-8"), add_special_tokens=False)
        return list(encoded.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._own.decode([int(token) for token in tokens]))


def tokenizer(name: str) -> Tokenizer:
    """`bytes`, or the path of a tokenizer.json. Raises InputError."""
    return Bytes() if name == "bytes" else FromFile(Path(name))
