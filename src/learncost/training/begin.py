"""The start of a run: choice of the model and validation of options before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learncost.engines import hugging_face
from learncost.engines.inputs import data
from learncost.engines.options import Options, presets, suited
from learncost.engines.state import from_state, stored
from learncost.engines.tokenizer import TOKENIZER, ByteTokenizer, Tokenizer
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.layers.layer import Layer
from learncost.models.argument import find, layer_given, names_module
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.models.sizes import spelled
from learncost.models.storage import read_json, safetensors
from learncost.procedures.procedure import PAPER, procedure
from learncost.reports.memory.memory import Memory, memory
from learncost.training.data.task import Task
from learncost.training.data.tasks import next_token, task, tokenizer_of
from learncost.training.engine import NumPyEngine, engine, usual
from learncost.training.folder import CONFIG, TABLE
from learncost.training.generate import Decoder


@dataclass(frozen=True)
class NewRun:
    """The contents of a new run's folder: its options, its config.json, the files of its tokenizer and of a module."""

    options: Options
    config: Mapping[str, Any]
    files: Mapping[str, bytes]
    initial: Mapping[str, Any]


def begin(options: Options) -> NewRun:
    """Check the options of a new run; nothing is written yet. Raises InputError."""
    safetensors()
    if not options.paths:
        raise InputError("train requires PATH: the training data, such as text files or folders of them")
    for path in options.paths:
        if not Path(path).exists():
            raise InputError(f"no such file or folder: {path}")
    if "forward in two streams" in procedure(options.procedure).moves:
        raise InputError(
            f"{options.procedure} changes the model, which no config.json can describe: use contest or lc.Training"
        )
    name = _tokenizer(options)
    configuration, tokenizer = _configuration(options, name)
    for flag, given in {"prompt": options.prompt != Options.prompt, "sample-every": options.sample_every}.items():
        if given and not next_token(configuration) and (flag == "prompt" or configuration.layer is not None):
            raise InputError(f"--{flag} applies to models that continue a text, not to {configuration.name}")
    options = suited(options, configuration)
    assert options.batch_size is not None
    options = replace(options, engine=options.engine or usual())
    data_task = task(configuration, tokenizer, options)
    configuration = _with_classes(configuration, data_task, options)
    if options.budget is not None:
        options = replace(options, plan=_within(configuration, options))
    _try(configuration, options, data_task)
    options = replace(
        options,
        paths=tuple(str(Path(path).resolve()) for path in options.paths),
        start=str(Path(options.start).resolve()) if options.start else None,
        tokenizer=None if tokenizer is None else "bytes" if name == "bytes" else TOKENIZER,
    )
    if options.start:
        keys = read_json(Path(options.start) / CONFIG, hugging_face.ADVICE)
    else:
        keys = hugging_face.config(configuration, options.dropout, tokenizer)
    files, initial = {} if tokenizer is None else dict(tokenizer.files()), dict[str, Any]()
    if (layer := configuration.layer) is not None:
        assert layer.origin is not None
        initial = from_state(stored(layer, build(configuration).sizes), layer.origin.values(), options.model)
        files |= {TABLE: layer.text.encode()}
    return NewRun(options, keys, files, initial)


def _within(configuration: Configuration, options: Options) -> str:
    """Return a plan under which a step fits the available bytes."""
    unsupported = {
        "engine": options.engine != "torch",
        "plan": options.plan is not None,
        "device": options.device != "cpu",
    }
    unsupported |= {"accumulate": options.accumulate > 1, "clip": options.clip > 0}
    if wrong := next((name for name, value in unsupported.items() if value), None):
        raise InputError(f"--budget cannot be combined with --{wrong}: it chooses the plan of --engine torch on a CPU")
    prediction = memory(
        configuration,
        options.procedure,
        options.batch_size or 1,
        options.seq_len,
        options.target_len if configuration.two_sided else None,
        optimizer=options.optimizer,
        dropout=options.dropout,
        dtype=options.dtype,
        plan="auto",
        engine="torch",
        mode=options.mode if procedure(options.procedure).modes else PAPER,
        budget=options.budget,
        **options.learns,
    )
    assert isinstance(prediction, Memory)  # one procedure, one engine
    if prediction.nothing_fits:
        raise InputError(f"budget: {prediction._lacking}")
    assert prediction.budget is not None
    if prediction.peak > prediction.budget:
        raise InputError(
            f"--budget: a step needs at least {prediction.peak:,} bytes, under the plan {prediction.plan}, and "
            f"{prediction.budget:,} are available; {(prediction.fits or {})['batch_size']} sequences fit: --batch-size"
        )
    return prediction.plan


def _try(configuration: Configuration, options: Options, data_task: Task) -> None:
    """Run a little through the model, so that what cannot be done is refused while nothing is written."""
    model = build(configuration)
    assert options.batch_size is not None
    target = options.target_len if model.two_sided else None
    run_sizes(model, options.batch_size, options.seq_len, target)  # checks the lengths
    engine(configuration, options)
    numpy_engine = NumPyEngine(configuration, replace(options, engine="numpy", plan=None, device="cpu"))  # no compiler
    if options.start:
        numpy_engine.load(hugging_face.read(model, Path(options.start)), numpy_engine.state, 0)
    try:
        numpy_engine.loss(data_task.example)
    except KeyError as missing:
        raise InputError(f"{configuration.name} cannot be trained yet: its input {missing} is not supported") from None
    if next_token(configuration):
        Decoder(configuration, numpy_engine.plain_weights)


def _with_classes(configuration: Configuration, data_task: Task, options: Options) -> Configuration:
    """Return the configuration with the number of classes of the files, unless given. Raises InputError for fewer."""
    labels = data_task.labels(options.paths)
    if not labels:
        return configuration
    if any(spelled(name) == "num_labels" for name in options.sizes):
        if configuration.settings["num_labels"] < len(labels):
            raise InputError(f"remove --num-labels: the data has {len(labels):,} classes ({', '.join(options.paths)})")
        return configuration
    return replace(configuration, settings={**configuration.settings, "num_labels": len(labels)})


def _tokenizer(options: Options) -> str:
    """Return the requested tokenizer; else that in the folder of the initial checkpoint, else bytes."""
    if options.tokenizer:
        return options.tokenizer
    tokenizer_file = Path(options.start or "") / TOKENIZER
    return str(tokenizer_file) if options.start and tokenizer_file.is_file() else "bytes"


def _configuration(options: Options, name: str) -> tuple[Configuration, Tokenizer | None]:
    """Return the model, of the initial checkpoint or the preset, with its tokenizer's vocabulary, and the tokenizer."""
    if options.start:
        if options.sizes or options.model != Options.model:
            raise InputError("--from FOLDER cannot be combined with --model or sizes: the checkpoint has its own model")
        if not Path(options.start).is_dir():
            raise InputError(f"no such folder: {options.start}; --from requires a checkpoint saved by transformers")
        configuration = configure(f"{options.start}/{CONFIG}")
        hugging_face.layout(configuration.family)
        tokenizer = tokenizer_of(configuration, name)
        if tokenizer is not None and configuration.sizes["vocab_size"] < tokenizer.size:
            raise InputError(
                f"the vocabulary of {options.start} has {configuration.sizes['vocab_size']:,} tokens, but the "
                f"tokenizer has {tokenizer.size:,}: use the checkpoint's tokenizer with --tokenizer FILE"
            )
        return configuration, tokenizer
    called = str(getattr(options.model, "name", options.model))  # of a table that was read its name
    known = layer_given(options.model) is None and called in presets()
    model = presets()[called].config if known else options.model
    layer = layer_given(model)
    if layer is None and names_module(called):
        from learncost.importer.files.reading import layer_of  # imports PyTorch

        layer = layer_of(called)
    if layer is not None:
        return _of_module(called, layer, options, name)
    family = str(find(model).values.get("model_type"))  # `configure` reports one that is none
    has_words = "vocab_size" in FAMILIES[family if family in FAMILIES else "decoder"].sizes

    def configured(size: int, **more: int) -> Configuration:
        words = {"vocab_size": size} if has_words else {}
        return configure(model, {**words, **more, **options.sizes})

    with_vocabulary, more = configured(ByteTokenizer.end), dict[str, int]()
    if with_vocabulary.head == "none" and "architecture" not in map(spelled, options.sizes):
        more = {"num_labels": 2}  # a model that is bare unless it has classes to tell
        try:
            with_vocabulary = configured(ByteTokenizer.end, **more)
        except InputError:
            more = {}
    tokenizer = tokenizer_of(with_vocabulary, name)
    return (with_vocabulary if tokenizer is None else configured(tokenizer.size, **more)), tokenizer


def _of_module(called: str, layer: Layer, options: Options, name: str) -> tuple[Configuration, Tokenizer]:
    """Return the model of an imported module that predicts the next token, and the tokenizer."""
    if layer.origin is None:
        raise InputError(f"{called} is a table, which has no initial weights: use lc.Training or lc.LayerTraining")
    if not isinstance(options.model, str):
        raise InputError(f"train takes a module by its file, such as FILE.py:build, and not {called}: use lc.compile")
    configuration = configure(layer, options.sizes)
    reads = {datum.name: datum for datum in data(build(configuration))}
    if reads.keys() != {"tokens", "targets"}:
        raise InputError(
            f"{called} reads {', '.join(reads)}, and train gives a module tokens and targets [B, M]: use lc.compile"
        )
    tokenizer = tokenizer_of(configuration, name)
    assert tokenizer is not None
    for datum in reads.values():
        if (size := configuration.values.get(datum.places, tokenizer.size)) < tokenizer.size:
            raise InputError(
                f"{called} has {size:,} different {datum.name}, and the tokenizer has {tokenizer.size:,}: build it "
                "with as many"
            )
    return configuration, tokenizer
