"""Text as bytes for a small decoder that predicts the next byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from learncost.engines.inputs import Batch
from learncost.engines.tokenizer import tokenizer
from learncost.engines.weights import initial_weights
from learncost.ir.errors import InputError
from learncost.models.argument import find
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.procedures.optimizer import DEFAULT
from learncost.training.contest.problem import Problem
from learncost.training.data import corpus
from learncost.training.data.examples import Examples

DECODER: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 168,
    "max_position_embeddings": 1024,
}
"""Half of `train`'s nano. Its head is not its embedding, so that the head alone can learn. Chosen, not published."""

MOST = 2**24  # tokens that are held in memory, of the beginning of what is given
CHECKED = 128  # windows that validate


def text(
    paths: Iterable[str], model: str | Mapping[str, Any], sizes: Mapping[str, Any], seq_len: int, share: float = 0.1
) -> Problem:
    """Return consecutive windows of `seq_len` tokens of files and of all files in folders.

    share   of the documents that validate; of a single one its end does
    Raises `InputError` for a path that is not there, too little text, a model that does not say the next token.
    """
    if isinstance(model, str) and find(model).layer is not None:
        raise InputError(
            f"{model} is a table: text requires a model family with a known vocabulary; use lc.Training for tables"
        )
    byte_tokens = tokenizer("bytes")
    configuration = configure(
        dict(model) if isinstance(model, Mapping) else model, {"vocab_size": byte_tokens.size, **sizes}
    )
    if configuration.head != "language-model" or configuration.two_sided:
        raise InputError(f"{configuration.name} is not a causal language model")
    built = build(configuration)
    with TemporaryDirectory(prefix="learncost-") as folder:
        corpus.prepare(paths, byte_tokens, share, Path(folder))
        loaded = corpus.load(Path(folder), "give the text again")
        training, validation = (np.array(part[:MOST], int) for part in (loaded.training, loaded.validation))
    if min(len(training) // 5, len(validation)) <= seq_len:
        raise InputError(f"{len(training) + len(validation):,} tokens are too few for sequences of {seq_len}")
    learned, checked = _windows(training, seq_len), _windows(validation, seq_len)
    spread = np.linspace(0, len(checked) - 1, min(CHECKED, len(checked))).astype(int)
    checked = Examples({name: array[spread] for name, array in checked.arrays.items()})
    batch = Batch(built, {name: array[:1] for name, array in learned.arrays.items()})
    fixed = {name: array for name, array in batch.inputs(built.table).items() if name not in batch.arrays}
    limited = {
        size: batch.sizes[size] for size in built.rules if size not in built.sizes
    }  # by the length, as windows are
    built = replace(built, sizes={**built.sizes, **limited})
    count = checked.arrays["targets"].size
    blocks, width = configuration.sizes["num_hidden_layers"], configuration.sizes["hidden_size"]
    return Problem(
        name=f"{configuration.family} of {blocks} blocks of {width}, sequences of {seq_len} bytes",
        model=built,
        training=learned,
        validation=checked,
        answers="targets",
        classes=byte_tokens.size,
        begin=lambda seed: initial_weights(built.table, built.sizes, seed),
        optimizer=DEFAULT,
        batch_size=8,
        facts=f"{len(training):,} bytes learned from; {count:,} of {len(validation):,} others validate",
        fixed=fixed,
    )


def _windows(tokens: Any, length: int) -> Examples:
    count = (len(tokens) - 1) // length
    parts = {"tokens": tokens[: count * length], "targets": tokens[1 : count * length + 1]}
    return Examples({name: array.reshape(count, length) for name, array in parts.items()})
