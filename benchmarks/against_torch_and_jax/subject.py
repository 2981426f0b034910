"""What is measured: a model, the shape of its batches, a data type. All sides make the same of it, each by itself."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from learncost.engines.weights import generator, initial_weights
from learncost.ir.errors import InputError, named_one
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build, run_sizes

DTYPES = ("fp32", "bf16")
"""bf16: products in bf16, weights, gradients and the optimizer's state in fp32."""

FAMILIES = ("gpt2", "llama")
"""Those that the peers have models of."""

LEARNING_RATE = 1e-4
"""Of the order of those in Brown et al. 2020, table 2.1; the time of a step does not depend on it."""

BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.999), 1e-8, 0.01
"""The defaults of torch.optim.AdamW."""

SEED = 0


@dataclass(frozen=True)
class Shape:
    """A model as keys of a config.json, and the batches that it is measured at."""

    about: str
    batch_size: int
    seq_len: int
    config: Mapping[str, Any]


@cache
def shapes() -> Mapping[str, Shape]:
    """The models that have a batch of their own, by name."""
    text = Path(__file__).with_name("shapes.toml").read_text(encoding="utf-8")
    return {name: Shape(**table) for name, table in tomllib.loads(text).items()}


USUAL = ("char", "gpt2-124m", "tiny", "long")
"""What is measured where no model is named."""


@dataclass(frozen=True)
class Subject:
    """One case: `model` is a name to show, `config` the keys of a config.json.

    plan, procedure   for the engine alone: what its step is planned as, and how it learns
    """

    model: str
    config: Mapping[str, Any]
    batch_size: int
    seq_len: int
    dtype: str = "fp32"
    plan: str | None = None
    procedure: str = "bp"

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration that the keys describe."""
        return configure(self.config)

    @cached_property
    def built(self) -> Model:
        """The model of the configuration."""
        return build(self.configuration)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of all axes, those of the batch too."""
        return run_sizes(self.built, self.batch_size, self.seq_len, None)

    @property
    def parameters(self) -> int:
        """How many there are, tied ones once."""
        return int(self.built.parameters.at(self.sizes))

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch_size * self.seq_len

    def weights(self) -> dict[str, Any]:
        """The weights that all sides start from: fp32 arrays by the names of the model's table."""
        return initial_weights(self.built.table, self.built.sizes, SEED, np.float32)

    def batch(self, step: int) -> tuple[Any, Any]:
        """Tokens and targets of a step, both [B, M]: drawn, as the time of a step does not depend on what they say."""
        drawn = generator(SEED, "batch", step)
        shape = (self.batch_size, self.seq_len + 1)
        tokens = drawn.integers(0, self.configuration.sizes["vocab_size"], shape, dtype=np.int64)
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `Subject(**values)` reads it back."""
        return asdict(self) | {"config": dict(self.config)}


def subjects(
    models: Sequence[str], shape: tuple[int, int] | None, dtypes: Sequence[str], plan: str | None = None
) -> tuple[Subject, ...]:
    """The cases: every model in every type.

    models   names of `shapes`, presets or paths of a config.json
    shape    sequences in a batch, tokens in a sequence; None: the model's own, which only `shapes` have
    Raises InputError.
    """
    for dtype in dtypes:
        named_one("type", dtype, dict.fromkeys(DTYPES))
    return tuple(_subject(model, shape, dtype, plan) for model in models for dtype in dtypes)


def _subject(model: str, shape: tuple[int, int] | None, dtype: str, plan: str | None) -> Subject:
    usual_shape = shapes().get(model)
    if usual_shape is None and shape is None:
        raise InputError(f"{model} needs --shape B T; those with a shape of their own are {', '.join(shapes())}")
    batch_size, seq_len = shape or (usual_shape.batch_size, usual_shape.seq_len)  # type: ignore[union-attr]
    for name, size in (("B", batch_size), ("T", seq_len)):
        if size < 1:
            raise InputError(f"--shape: {name} must be a whole number from 1, not {size}")
    configuration = configure(usual_shape.config if usual_shape else model)
    if configuration.family not in FAMILIES or configuration.head != "language-model":
        raise InputError(f"{model} cannot be measured: the peers have language models of {', '.join(FAMILIES)} only")
    subject = Subject(model, _keys(configuration), batch_size, seq_len, dtype, plan)
    subject.sizes  # noqa: B018 - refuses a length that the model does not have
    return subject


def _keys(configuration: Configuration) -> dict[str, Any]:
    """The keys that make the same configuration again in another process, whatever file it came from."""
    return {
        "model_type": configuration.family,
        **configuration.sizes,
        **configuration.settings,
        "architecture": configuration.architecture,
    }
