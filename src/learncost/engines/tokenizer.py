"""Convert text to token numbers and back: bytes, or a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from learncost.ir.errors import InputError, imported


class Tokenizer(Protocol):
    """A converter of text to token numbers below `size` and back.

    `end` is the number of the end-of-document token, `mask` that of the mask token.
    """

    size: int
    end: int
    mask: int

    def encode(self, text: bytes) -> Sequence[int]:
        """Return the tokens of a UTF-8 text, without the end-of-document token."""

    def encode_alone(self, text: bytes) -> Sequence[int]:
        """Return the tokens of a single text, with start and end tokens."""

    def encode_answer(self, text: bytes) -> Sequence[int]:
        """Return the target tokens of a decoder, including the end token."""

    def number(self, name: str) -> int:
        """Return the number of a special token by name; the number of the end-of-document token if it does not
        exist."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; invalid UTF-8 becomes �."""

    def files(self) -> Mapping[str, bytes]:
        """Return the files that transformers' AutoTokenizer reads, by file name."""


class ByteTokenizer:
    """The byte tokenizer: every byte is a token, 256 ends a document, and 257 is the optional mask."""

    end, mask = 256, 257

    def __init__(self, masks: bool = False) -> None:
        self.size = 258 if masks else 257

    def encode(self, text: bytes) -> Sequence[int]:
        return text

    def encode_alone(self, text: bytes) -> Sequence[int]:
        return [self.end, *text, self.end]

    def encode_answer(self, text: bytes) -> Sequence[int]:
        return [*text, self.end]

    def number(self, name: str) -> int:
        return self.mask if name in MASKS and self.size > self.mask else self.end

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < self.end).decode("utf-8", errors="replace")

    def files(self) -> Mapping[str, bytes]:
        """Return the files of a BPE tokenizer without merges, whose vocabulary has one letter for each byte."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        special = {ENDS[0]: self.end} | ({MASKS[0]: self.mask} if self.size > self.mask else {})
        table = {
            "version": "1.0",
            "added_tokens": [{"content": name, "id": at, "special": True, **flags} for name, at in special.items()],
            "pre_tokenizer": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in enumerate(_letters())}, "merges": []},
        }
        return {TOKENIZER: json.dumps(table, indent=1).encode(), TOKENIZER_CONFIG: _config(ENDS[0])}


def _letters() -> list[str]:
    """Return a visible letter for every byte: itself if visible, else letters from 256 (GPT-2's bytes_to_unicode)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def _config(end: str) -> bytes:
    """Return a tokenizer_config.json with the end token; the token's name within a text is not parsed as the token."""
    keys = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end, "pad_token": end}
    more = {"clean_up_tokenization_spaces": False, "split_special_tokens": True}
    return json.dumps({**keys, **more}, indent=1).encode()


TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "[SEP]")
"""The names of the end-of-document token in published tokenizers."""

MASKS = ("[MASK]", "<mask>")
"""The names of the mask token in published tokenizers."""


class FileTokenizer:
    """The tokenizer of a Hugging Face tokenizer.json, by the package tokenizers."""

    def __init__(self, path: Path, masks: bool = False) -> None:
        theirs = imported("tokenizers", "--tokenizer FILE needs the package tokenizers", "train")
        try:
            self._content = path.read_bytes()
            self._own: Any = theirs.Tokenizer.from_str(self._content.decode())
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        except Exception as error:  # the package raises plain Exceptions
            raise InputError(f"{path} is not a tokenizer.json: {' '.join(str(error).split())}") from None
        self.size = self._own.get_vocab_size()
        end = next((name for name in ENDS if self._own.token_to_id(name) is not None), "")
        if not end:
            raise InputError(f"{path} has no end-of-document token: add one of {', '.join(ENDS)}")
        self.end = self.number(end)
        mask = next((name for name in MASKS if self._own.token_to_id(name) is not None), None)
        if masks and mask is None:
            raise InputError(f"{path} has no mask token, which this model needs: add {' or '.join(MASKS)}")
        self.mask = self.number(mask or end)
        config_path = path.with_name(TOKENIZER_CONFIG)
        self._config = config_path.read_bytes() if config_path.is_file() else _config(end)

    def encode(self, text: bytes) -> Sequence[int]:
        return self._encoded(text, add_special_tokens=False)

    def encode_alone(self, text: bytes) -> Sequence[int]:
        return self._encoded(text, add_special_tokens=True)

    def _encoded(self, text: bytes, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text. Raises `InputError` for a text that cannot be encoded."""
        decoded = text.decode("utf-8")
        try:
            return list(self._own.encode(decoded, add_special_tokens=add_special_tokens).ids)
        except Exception as error:  # the package raises plain Exceptions
            raise InputError(f"the tokenizer cannot encode a text: {error}") from None

    def encode_answer(self, text: bytes) -> Sequence[int]:
        tokens = self.encode_alone(text)
        return tokens if tokens[-1:] == [self.end] else [*tokens, self.end]

    def number(self, name: str) -> int:
        token = self._own.token_to_id(name)
        return self.end if token is None else int(token)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._own.decode([int(token) for token in tokens]))

    def files(self) -> Mapping[str, bytes]:
        """Return copies of the tokenizer's file and of its configuration, if it has one."""
        return {TOKENIZER: self._content, TOKENIZER_CONFIG: self._config}


def tokenizer(name: str, masks: bool = False) -> Tokenizer:
    """Return the byte tokenizer, or that of a tokenizer.json; `masks` requires a mask token. Raises InputError."""
    return ByteTokenizer(masks) if name == "bytes" else FileTokenizer(Path(name), masks)
