"""The beginning of a run: its model is chosen, and everything that it was told is written into its folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from learncost.equation.errors import InputError
from learncost.ledger.memory import memory
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.training import hugging_face
from learncost.training.engine import engine, usual
from learncost.training.files import cannot_write, read_json, safetensors, written
from learncost.training.folder import CONFIG, TOKENIZER, Folder
from learncost.training.generate import Decoder
from learncost.training.options import Options, presets, suited
from learncost.training.tokenizer import Tokenizer, tokenizer


def begin(options: Options, folder: Folder) -> None:
    """Check what a run is told and make its folder. Raises InputError before anything is written."""
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
    if name != "bytes":
        _copy(Path(name), folder.path / TOKENIZER)
    folder.begin(options, keys)


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
        budget=options.budget,
    )
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
    Decoder(configuration, own.weights)


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


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target.parent, error) from None
    with written(target) as temporary:
        shutil.copyfile(source, temporary)
