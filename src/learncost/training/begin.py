"""The beginning of a run: its model is chosen, and what it is told is checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.ledger.memory import Memory, memory
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.training import hugging_face
from learncost.training.engines import engine, usual
from learncost.training.files import read_json, safetensors
from learncost.training.folder import CONFIG
from learncost.training.generate import Decoder
from learncost.training.options import Options, presets, suited
from learncost.training.tokenizer import TOKENIZER, Tokenizer, tokenizer


@dataclass(frozen=True)
class Beginning:
    """What is written into a new run's folder: its options, its config.json, the files of its tokenizer."""

    options: Options
    config: Mapping[str, Any]
    files: Mapping[str, bytes]


def begin(options: Options) -> Beginning:
    """What a run is told, checked: nothing is written yet. Raises InputError."""
    safetensors()
    if not options.paths:
        raise InputError("train needs PATH: text files, or folders with text files in them")
    for path in options.paths:
        if not Path(path).exists():
            raise InputError(f"no such file or folder: {path}")
    name = _tokenizer(options)
    own = tokenizer(name)
    configuration = _configuration(options, own)
    if configuration.head != "language-model" or configuration.family not in FAMILIES or configuration.two_sided:
        raise InputError(f"{configuration.name} is not a language model that says the next token")
    options = suited(options, configuration.sizes.get("max_position_embeddings", 0))
    assert options.batch_size is not None
    options = replace(options, engine=options.engine or usual())
    if options.budget is not None:
        options = replace(options, plan=_within(configuration, options))
    _try(configuration, options)
    options = replace(
        options,
        paths=tuple(str(Path(path).resolve()) for path in options.paths),
        start=str(Path(options.start).resolve()) if options.start else None,
        tokenizer="bytes" if name == "bytes" else TOKENIZER,
    )
    if options.start:
        keys = read_json(Path(options.start) / CONFIG, hugging_face.ADVICE)
    else:
        keys = hugging_face.config(configuration, own.end, options.dropout)
    return Beginning(options, keys, own.files())


def _within(configuration: Configuration, options: Options) -> str:
    """The plan under which a step takes no more bytes than there are."""
    given = {"engine": options.engine != "torch", "plan": options.plan is not None, "device": options.device != "cpu"}
    given |= {"accumulate": options.accumulate > 1, "clip": options.clip > 0}
    if wrong := next((name for name, value in given.items() if value), None):
        raise InputError(f"--budget chooses the plan of a step of --engine torch on a processor: leave --{wrong} out")
    found = memory(
        configuration,
        options.procedure,
        options.batch_size or 1,
        options.seq_len,
        optimizer=options.optimizer,
        dropout=options.dropout,
        dtype=options.dtype,
        plan="auto",
        engine="torch",
        mode=options.mode,
        budget=options.budget,
        **options.learns,
    )
    assert isinstance(found, Memory)  # one procedure, one engine
    assert found.budget is not None
    if found.peak > found.budget:
        raise InputError(
            f"--budget: a step takes at least {found.peak:,} bytes, under the plan {found.plan}, and there are "
            f"{found.budget:,}; {(found.fits or {})['batch_size']} sequences fit: --batch-size"
        )
    return found.plan


def _try(configuration: Configuration, options: Options) -> None:
    """Run a few tokens through the model, so that what cannot be done is refused while nothing is written."""
    model = build(configuration)
    assert options.batch_size is not None
    run_sizes(model, options.batch_size, options.seq_len, None)  # checks the length
    own = engine(configuration, options)
    if options.start:
        own.load(hugging_face.read(model, Path(options.start)), own.state, 0)
    try:
        own.loss(np.zeros((1, 2), int), np.zeros((1, 2), int))
    except KeyError as missing:
        raise InputError(f"{configuration.name} cannot be trained yet: nothing gives its input {missing}") from None
    Decoder(configuration, own.plain_weights)


def _tokenizer(options: Options) -> str:
    """What is asked for; else the one beside the checkpoint to start from, else bytes."""
    if options.tokenizer:
        return options.tokenizer
    beside = Path(options.start or "") / TOKENIZER
    return str(beside) if options.start and beside.is_file() else "bytes"


def _configuration(options: Options, own: Tokenizer) -> Configuration:
    """The model: of the checkpoint to start from, or of the preset, with the vocabulary of the tokenizer."""
    if options.start:
        if options.sizes or options.model != Options.model:
            raise InputError("--from FOLDER has its own model: leave --model and all sizes out")
        if not Path(options.start).is_dir():
            raise InputError(f"no such folder: {options.start}; --from takes a checkpoint as transformers saves it")
        configuration = configure(f"{options.start}/{CONFIG}")
        if configuration.sizes["vocab_size"] < own.size:
            raise InputError(
                f"the vocabulary of {options.start} has {configuration.sizes['vocab_size']:,} tokens, but the "
                f"tokenizer has {own.size:,}: give the checkpoint's own with --tokenizer FILE"
            )
        hugging_face.layout(configuration.family)
        return configuration
    model = presets()[options.model].config if options.model in presets() else options.model
    return configure(model, {"vocab_size": own.size, **options.sizes})
