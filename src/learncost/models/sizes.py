"""The sizes of a model and of a run: canonical names, every accepted spelling, and what a size may be.

Canonical names are Hugging Face's. The spellings of nanoGPT and GPT-2 (`n_embd`, `block_size`), of Pau & Aymone's
table 1 (`d_model`, `voc_size`, `M`, `N`), of DistilBERT (`dim`, `hidden_dim`) and of encoder-decoder configurations
(`encoder_layers`) lead to them. This table is the only place that knows a spelling.
"""

from __future__ import annotations

from dataclasses import dataclass

from learncost.ir.errors import InputError, counted, nearest, shown
from learncost.ir.polynomial import LARGEST as LARGEST


@dataclass(frozen=True, slots=True)
class ModelSize:
    """One size: its canonical name, its symbol in formulas, what it counts, and its other spellings."""

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
        "positions that the model has",
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
"""The sizes of one step, which no configuration holds."""

CANONICAL = {spelling: size.name for size in MODEL_SIZES + RUN_SIZES for spelling in (size.name, *size.spellings)}
"""Every accepted spelling and its canonical name."""

OF_A_RUN = {spelling: size.name for size in RUN_SIZES for spelling in (size.name, *size.spellings)}
"""Those of the sizes of one step."""


def spelled(name: str) -> str:
    """Return `name` as the alias table spells it: underscores for hyphens, lower case except for B, M and N."""
    name = name.replace("-", "_")
    return name if name in CANONICAL else name.lower()


def resolve(name: str) -> str:
    """Return the canonical name of a size given in any accepted spelling.

    Hyphens count as underscores, and case matters for `B`, `M` and `N` alone.
    Raises InputError, naming the nearest known spelling, where there is no such size.
    """
    try:
        return CANONICAL[spelled(name)]
    except KeyError:
        raise InputError(f"unknown size {shown(name)}{nearest(name, CANONICAL)}") from None


def check_size(name: str, value: object) -> int:
    """Return `value` as the integer that it is: a whole number from 1 to 10^12, or as text, also as 1e3 or 512k.

    `name` is the spelling that the user gave; the message of the InputError names it.
    """
    problem = f"{name} must be a whole number from 1 to {LARGEST:,}, not {shown(value)}"
    number = counted(value) or 0
    if not 1 <= number <= LARGEST:
        raise InputError(problem)
    return number
