"""The options of a training: validated once, stored in the run's folder as training.json."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import Serializable, dataclass, field, fields, replace
from learncost.ir.errors import InputError
from learncost.ir.precision import check_trained, precision_of
from learncost.models.configuration import Configuration, family_of
from learncost.models.expression import evaluate
from learncost.procedures.optimizer import DEFAULT

LEARNS = ("train", "train_layers", "lora", "lora_rank", "lora_alpha", "dora")
"""The options for the trainable parameters."""

MINIMUM_INTERVAL = 50
"""The fewest steps between validations and between samples, each of which takes as long as several steps."""

MINUTES = 2.0
"""The default duration of a training in minutes."""


@dataclass(frozen=True)
class Options(Serializable):
    """The options of a training; a None follows from the model or the number of steps, see `resolved`.

    Parameters
    ----------
    paths
        UTF-8 text files and folders of them; other files in a folder are skipped and counted. Lists of examples: a .csv
        FILE,LABEL of images (or a folder for each class), a .tsv FILE, tab, TEXT of WAVs, one of SOURCE and TARGET, or
        of TEXT and LABEL.
    model
        nano (the default) or small, a preset (`learncost list models`), a config.json, or FILE.py:NAME, a module whose
        inputs are tokens and targets. Sizes as flags change it.
    start
        Start from a transformers checkpoint in this folder, of a GPT-2 or Llama model.
    tokenizer
        bytes, or a tokenizer.json of Hugging Face. The default is the checkpoint's own, else bytes.
    engine
        The engine that executes the steps: torch (the default if PyTorch is installed), numpy or jax.
    procedure
        The learning procedure: {choices} (`learncost list procedures`). The default is bp.
    mode
        The update rule of pepita and mempepita: stable (the default) or paper.
    optimizer
        The optimizer: adamw (the default), momentum or sgd.
    batch_size
        Sequences in a microbatch.
    accumulate
        The number of microbatches in a step (gradient accumulation). Gradients are averaged; memory is that of one
        microbatch. The default is 1.
    seq_len
        Tokens in a sequence. Longer texts of a list are truncated.
    target_len
        The most tokens in a decoder sequence of an encoder-decoder. The default is `seq_len`.
    dropout
        The dropout probability. The default is 0.
    learning_rate
        The peak learning rate, after warm-up; it then follows a half cosine.
    final_learning_rate
        The final learning rate as a share of the peak. The default is 0.1.
    warm_up
        The number of warm-up steps. The default is a tenth of all, at most 100.
    beta_2
        The second beta of adamw. The default is 0.99.
    weight_decay
        The weight decay. The default is 0.01.
    clip
        The largest global gradient norm. The default is 0 (no clipping).
    plan
        The plan of the step, such as recompute=gelu+norm. The default is the engine's choice.
    device
        With `engine` torch: cpu (the default), or cuda, which runs the step of emit in Triton as a CUDA graph.
    deterministic
        With `device` cuda: two runs are bit-identical. The output says what that costs, and without it which kernels
        are not deterministic.
    budget
        With `engine` torch: available memory for a step, such as 2GB. It decides which activations are saved and which
        are recomputed.
    seed
        The seed of weights, batches, dropout and samples. The default is 0.
    steps
        The number of steps. The default is as many as fit in `minutes`, measured before the first.
    minutes
        The time limit in minutes. The default is 2. With `steps` too, the run stops at the limit and is saved.
    validate_every
        Steps between validations on held-out documents. The default is a tenth of all, at least 50. The last step is
        always validated.
    save_every
        Steps between checkpoints. The default is a tenth of all.
    sample_every
        Steps between samples. The default is a quarter of all, at least 50.
    validation_share
        The held-out share of documents or examples. The default is 0.05.
    peak_flops
        The peak FLOP/s of this machine, such as 2e11. Adds the MFU to the output.
    prompt
        The prompt of samples. The default is a new line.
    mesh
        The mesh of the processes that torchrun starts: axes with their sizes, such as dp=2,tp=2.
    placement
        Named sharding rules, comma-separated: {choices} (`learncost list placements`). The default follows from the
        names of the mesh axes: dp and shard, tp, cp, ep, pp.
    schedule
        With pipeline stages (a mesh with pp): the schedule: 1f1b (the default), gpipe, or interleaved with two stages
        on each process.
    microbatches
        With pipeline stages: the number of microbatches per process. The default is one per sequence.
    train
        The trainable parameters: all, head, embeddings, biases, or a comma-separated list of weights and modules. All
        others are frozen.
    """

    paths: tuple[str, ...] = ()
    model: str = "nano"
    sizes: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    tokenizer: str | None = None
    engine: str | None = None
    procedure: str = "bp"
    mode: str = "stable"
    optimizer: str = DEFAULT
    dtype: str = "fp32"
    batch_size: int | None = None
    accumulate: int = 1
    seq_len: int | None = None
    target_len: int | None = None
    dropout: float = 0.0
    learning_rate: float | None = None
    final_learning_rate: float = 0.1
    warm_up: int | None = None
    beta_2: float = 0.99
    weight_decay: float = 0.01
    clip: float = 0.0
    plan: str | None = None
    device: str = "cpu"
    deterministic: bool = False
    budget: str | None = None
    seed: int = 0
    steps: int | None = None
    minutes: float | None = None
    validate_every: int | None = None
    save_every: int | None = None
    sample_every: int | None = None
    validation_share: float = 0.05
    peak_flops: float | None = None
    prompt: str = "\n"
    train: str | None = None
    train_layers: str | None = None
    lora: str | None = None
    lora_rank: str | None = None
    lora_alpha: str | None = None
    dora: bool | None = None
    mesh: str | None = None
    place: str | None = None
    placement: str | None = None
    schedule: str | None = None
    microbatches: int | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in _LIMITS and value is not None:
                _check(option.name, value, *_LIMITS[option.name])
        check_trained(precision_of(self.dtype))

    @property
    def learns(self) -> dict[str, Any]:
        """Return the trainable parameters as arguments of `lc.cost`."""
        return {name: getattr(self, name) for name in LEARNS}

    def resolved(self, steps: int) -> Options:
        """Return the options with the number of steps and what follows from it: warm-up and intervals."""
        return replace(
            self,
            steps=steps,
            warm_up=min(100, steps // 10) if self.warm_up is None else self.warm_up,
            validate_every=self.validate_every or max(MINIMUM_INTERVAL, steps // 10),
            save_every=self.save_every or max(1, steps // 10),
            sample_every=self.sample_every or max(MINIMUM_INTERVAL, steps // 4),
        )

    def title(self, family: str) -> str:
        """Return the name of the run's model: a preset with its changes, or a family with its source."""
        if self.start is not None:
            return f"{family} from {Path(self.start).name}"
        if self.model not in presets() and (Path(self.model).suffix == ".json" or Path(self.model).exists()):
            return f"{family} of {Path(self.model).name}"
        changed = ", ".join(f"{name.replace('-', '_')} {value}" for name, value in self.sizes.items())
        return f"{self.model} with {changed}" if changed else self.model

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: a linear warm-up, then half a cosine down to
        `final_learning_rate` of the peak (Loshchilov & Hutter 2017, equation (5), without restarts)."""
        assert self.learning_rate is not None
        warm_up, steps = self.warm_up or 0, self.steps or 1
        if step < warm_up:
            return self.learning_rate * (step + 1) / warm_up
        part = min(1.0, (step - warm_up) / max(1, steps - warm_up))
        lowest = self.final_learning_rate
        return self.learning_rate * (lowest + (1 - lowest) * (1 + math.cos(math.pi * part)) / 2)


def from_dict(values: Mapping[str, Any], where: str) -> Options:
    """Return the options of a training.json; `where` names it in the InputError."""
    types = {option.name: option.type for option in fields(Options)}
    if unknown := values.keys() - types:
        raise InputError(f"{where} has the unknown option {min(unknown)!r}")
    damaged = InputError(f"{where} is damaged: an option has a value of the wrong type")
    for name, value in values.items():
        text = types[name] == "str" or (types[name] == "str | None" and value is not None)
        if (isinstance(value, list | dict) and name not in ("paths", "sizes")) or (text and not isinstance(value, str)):
            raise damaged
    try:
        return Options(**{**values, "paths": tuple(values.get("paths", ()))})
    except TypeError:
        raise damaged from None


# The lower bound, whether it is allowed, the upper bound, whether the value is an integer.
_LIMITS: Mapping[str, tuple[float, bool, float, bool]] = {
    "batch_size": (1, True, 2**31, True),
    "accumulate": (1, True, 2**31, True),
    "microbatches": (1, True, 2**31, True),
    "seq_len": (1, True, 2**31, True),
    "target_len": (1, True, 2**31, True),
    "learning_rate": (0, False, math.inf, False),
    "final_learning_rate": (0, True, 1, False),
    "warm_up": (0, True, 2**53, True),
    "beta_2": (0, False, 1, False),
    "weight_decay": (0, True, math.inf, False),
    "dropout": (0, True, 1, False),
    "clip": (0, True, math.inf, False),
    "seed": (0, True, 2**63, True),
    "steps": (1, True, 2**53, True),
    "minutes": (0, False, math.inf, False),
    "validate_every": (1, True, 2**53, True),
    "save_every": (1, True, 2**53, True),
    "sample_every": (1, True, 2**53, True),
    "validation_share": (0, False, 1, False),
    "peak_flops": (0, False, math.inf, False),
}


def refuse_schedule(options: Options) -> None:
    """Refuse options of pipeline stages without a pipeline. Raises `InputError`."""
    if options.schedule is not None or options.microbatches is not None:
        raise InputError("--schedule and --microbatches require pipeline stages, for example --mesh pp=2")


def _check(name: str, value: Any, lowest: float, included: bool, highest: float, whole: bool) -> None:
    kind = "a whole number" if whole else "a number"
    bounds = f"{'from' if included else 'above'} {lowest:g}" + (f" to {highest:g}" if highest <= 1 else "")
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    inside = number and (lowest <= value if included else lowest < value) and value <= highest and value < math.inf
    if not inside:
        raise InputError(f"{name} must be {kind} {bounds}, not {value!r}")


@dataclass(frozen=True)
class TrainingPreset:
    """A model to train: the keys of its config.json and its default options."""

    about: str
    config: Mapping[str, Any]
    options: Mapping[str, Any]


@cache
def presets() -> Mapping[str, TrainingPreset]:
    """Return the models to train, by name."""
    text = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
    return {name: TrainingPreset(**table) for name, table in tomllib.loads(text).items()}


DEFAULTS: Mapping[str, Any] = {"batch_size": 8, "seq_len": 256, "learning_rate": 3e-4}
"""Defaults for a model without preset; the learning rate is similar to those in Brown et al. 2020, table 2.1."""


def suited(options: Options, configuration: Configuration) -> Options:
    """Return the options with the preset's or default batch size, lengths (within positions) and learning rate."""
    preset_options = presets()[options.model].options if options.model in presets() else DEFAULTS
    missing = {name: value for name, value in preset_options.items() if getattr(options, name) is None}
    most = configuration.sizes.get("max_position_embeddings", 0)
    length = options.seq_len or (min(missing["seq_len"], most) if most else missing["seq_len"])
    fixed = family_of(configuration).fixed
    missing["seq_len"] = options.seq_len or (evaluate(fixed, configuration.values) if fixed else length)
    if configuration.two_sided and options.target_len is None:
        missing["target_len"] = min(length, most) if most else length
    if options.start and "learning_rate" in missing:
        missing["learning_rate"] = missing["learning_rate"] / 10  # a pretrained model gets a smaller learning rate
    return replace(options, **missing)
