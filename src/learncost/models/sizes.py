"""Define the sizes of a model and of a run: canonical names, accepted spellings, and valid values.

Canonical names are Hugging Face's. The spellings of nanoGPT and GPT-2 (`n_embd`, `block_size`), of Pau & Aymone's
table 1 (`d_model`, `voc_size`, `M`, `N`), of DistilBERT (`dim`, `hidden_dim`) and of encoder-decoder configurations
(`encoder_layers`) are aliases. Only this module defines spellings.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, counted, nearest, shown
from learncost.ir.polynomial import LARGEST as LARGEST


@dataclass(frozen=True, slots=True)
class ModelSize:
    """One size: its canonical name, its symbol in formulas, its meaning, and its other spellings."""

    name: str
    symbol: str
    meaning: str
    spellings: tuple[str, ...] = ()


MODEL_SIZES = (
    ModelSize("hidden_size", "d_model", "width of the model", ("n_embd", "d_model", "dim")),
    ModelSize("num_hidden_layers", "n_layer", "blocks", ("n_layer", "n_layers", "num_layers")),
    ModelSize("num_attention_heads", "h", "attention heads of a block", ("n_head", "n_heads", "num_heads", "h")),
    ModelSize("head_dim", "d_k", "width of one head's queries, keys and values", ("d_k", "d_head")),
    ModelSize(
        "intermediate_size", "d_ff", "width of the feed-forward network", ("n_inner", "d_ff", "hidden_dim", "ffn_dim")
    ),
    ModelSize("vocab_size", "voc", "tokens in the vocabulary", ("voc", "voc_size", "n_vocab")),
    ModelSize(
        "max_position_embeddings",
        "max_len",
        "positions of the model",
        ("n_positions", "n_ctx", "block_size", "max_len"),
    ),
    ModelSize("type_vocab_size", "n_type", "token types"),
    ModelSize("n_enc", "n_enc", "blocks of the encoder", ("encoder_layers", "num_encoder_layers")),
    ModelSize("n_dec", "n_dec", "blocks of the decoder", ("decoder_layers", "num_decoder_layers")),
)
"""The sizes that a configuration may have."""

RUN_SIZES = (
    ModelSize(
        "seq_len", "N", "tokens in a sequence; those of the encoder where there is a decoder too", ("N", "seq_length")
    ),
    ModelSize("target_len", "M", "tokens in a sequence of the decoder", ("M", "target_length")),
    ModelSize("batch_size", "B", "sequences in a batch", ("B",)),
)
"""The sizes of one step, which are not in configurations."""

CANONICAL = {spelling: size.name for size in MODEL_SIZES + RUN_SIZES for spelling in (size.name, *size.spellings)}
"""Every accepted spelling and its canonical name."""

RUN_SPELLINGS = {spelling: size.name for size in RUN_SIZES for spelling in (size.name, *size.spellings)}
"""The spellings of the sizes of one step."""


def spelled(name: str) -> str:
    """Return a name as the alias table spells it: with underscores for hyphens, in lower case except for B, M and N."""
    name = name.replace("-", "_")
    return name if name in CANONICAL else name.lower()


def resolve(name: str) -> str:
    """Return the canonical name of a size given in any accepted spelling.

    Hyphens count as underscores, and case matters only for `B`, `M` and `N`.
    Raises InputError for an unknown size, and suggests the nearest spelling.
    """
    try:
        return CANONICAL[spelled(name)]
    except KeyError:
        raise InputError(f"unknown size {shown(name)}{nearest(name, CANONICAL)}") from None


def check_size(name: str, value: object, most: int = LARGEST) -> int:
    """Return a value as an integer from 1 to 10^12, or to `most`; text may also be 1e3 or 512k.

    `name` is the user's spelling for the message of the InputError.
    """
    number = counted(value) or 0
    if not 1 <= number <= most:
        raise InputError(f"{name} must be a whole number from 1 to {most:,}, not {shown(value)}")
    return number


LONGEST = 10**5  # entries of a list, nested ones included


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A given value with its spelling and source; the source of a flag is "", and its numbers may be text."""

    spelling: str
    value: object
    where: str = ""

    @property
    def label(self) -> str:
        """Return its name for error messages."""
        return f"{self.where}: {self.spelling}" if self.where else self.spelling

    @property
    def is_flag(self) -> bool:
        """Return whether it comes from the command line or a caller, not from a file."""
        return not self.where

    def size(self) -> int:
        """Return a whole number from 1 to 10^12."""
        if isinstance(self.value, str) and not self.is_flag:
            raise InputError(f"{self.label} must be a number, not the text {shown(self.value)}")
        if isinstance(self.value, float) and not self.is_flag:
            raise InputError(f"{self.label} must be a whole number as JSON writes it, not {shown(self.value)}")
        return check_size(self.label, self.value)

    def whole_number(self) -> int:
        """Return a whole number from 0 to 10^12."""
        value = self.value
        if isinstance(value, str) and self.is_flag and value.isdecimal() and len(value) <= 20:
            value = int(value)
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)  # type: ignore[arg-type]  # what does not convert is refused
        except TypeError:
            number_read = counted(value) if self.is_flag and not isinstance(value, str | bool) else None
            number = -1 if number_read is None else number_read
        if not 0 <= number <= LARGEST:
            raise InputError(f"{self.label} must be a whole number from 0 to {LARGEST:,}, not {shown(self.value)}")
        return number

    def probability(self) -> float:
        """Return an epsilon or a dropout probability: a number from 0 to below 1."""
        number = self._float()
        if number is None or not 0 <= number < 1:
            raise InputError(f"{self.label} must be a number from 0 to below 1, not {shown(self.value)}")
        return number

    def number(self) -> float:
        """Return a factor: a finite number of at least 0."""
        number = self._float()
        if number is None or not 0 <= number <= LARGEST:
            raise InputError(f"{self.label} must be a number from 0 to {LARGEST:,}, not {shown(self.value)}")
        return number

    def _float(self) -> float | None:
        value = self.value
        if isinstance(value, str) and self.is_flag:
            try:
                value = float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, int) and abs(value) > LARGEST:
            return None
        return float(value) if math.isfinite(value) else None

    def flag(self) -> bool:
        """Return a boolean."""
        value = self.value
        if isinstance(value, str) and self.is_flag:
            value = {"true": True, "false": False}.get(value.lower())
        if not isinstance(value, bool):
            raise InputError(f"{self.label} must be true or false, not {shown(self.value)}")
        return value

    def text(self) -> str:
        """Return a name; the names of a list are joined by bars. Empty names are refused."""
        if isinstance(self.value, list) and all(isinstance(word, str) for word in self.value):
            return "|".join(self.value)
        if not isinstance(self.value, str):
            raise InputError(f"{self.label} must be a text, not {shown(self.value)}")
        return self.value

    def entries(self) -> list[Any]:
        """Return a list of texts, numbers and nested lists of these."""
        left = [self.value]
        count = 0
        while left:
            item = left.pop()
            count += 1
            if isinstance(item, list) and count + len(left) + len(item) <= LONGEST:
                left += item
            elif item is self.value or isinstance(item, bool) or not isinstance(item, int | float | str):
                expected = f"a list of at most {LONGEST:,} texts and numbers"
                raise InputError(f"{self.label} must be {expected}, not {shown(self.value)}")
        assert isinstance(self.value, list)
        return self.value

    def one_of(self, names: Mapping[str, str]) -> str:
        """Return the value that a known name stands for."""
        meaning = names.get(self.value) if isinstance(self.value, str) else None
        if meaning is None:
            raise InputError(
                f"{self.label} {shown(self.value)} is not supported{nearest(self.value, names)}"
                f"; supported are {', '.join(names)}"
            )
        return meaning


def setting(entry: GivenValue, name: str, default: object, activations: Mapping[str, str]) -> Any:
    """Return a setting's value, validated by the type of its default."""
    if name == "activation":
        return entry.one_of(activations)
    if isinstance(default, bool):
        return entry.flag()
    if isinstance(default, int):
        return entry.whole_number()
    if isinstance(default, float):
        return entry.probability() if name.endswith("epsilon") else entry.number()
    return entry.entries() if isinstance(default, list) else entry.text()
