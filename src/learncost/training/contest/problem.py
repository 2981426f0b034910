"""The problems of a contest: a model, how it learns, and the data; images for dense networks and a ViT, text as bytes
for a small decoder that predicts the next byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from math import log, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from learncost.engines.inputs import Batch, derived_inputs
from learncost.engines.tokenizer import tokenizer
from learncost.engines.weights import DEVIATION, generator, initial_weights
from learncost.interpreter import infer_sizes
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError, imported
from learncost.layers.layer import Layer, layer
from learncost.models.argument import find
from learncost.models.configuration import configure
from learncost.models.model import Model, build, from_layer
from learncost.models.sizes import check_size
from learncost.procedures.optimizer import DEFAULT
from learncost.training.data import corpus
from learncost.training.data.examples import Examples

Arrays = dict[str, Any]

RATES: Mapping[str, tuple[float, ...]] = {
    "sgd": (1e-2, 1e-1, 1.0, 10.0, 100.0),
    "momentum": (1e-3, 1e-2, 1e-1, 1.0, 10.0),
    "adamw": (1e-4, 1e-3, 1e-2, 1e-1),
    "adamw8bit": (1e-4, 1e-3, 1e-2, 1e-1),
    "rmsprop": (1e-4, 1e-3, 1e-2, 1e-1),
    "lion": (1e-5, 1e-4, 1e-3, 1e-2),
    "muon": (1e-4, 1e-3, 1e-2, 1e-1),
    "adafactor": (1e-4, 1e-3, 1e-2, 1e-1),
}
"""The learning rates that are tried where none are given, the same for all procedures. They are as wide as they are
because PEPITA's modulation is small: without AdamW, whose steps do not depend on how large a gradient is, it asks for
rates that backpropagation does not bear."""


@dataclass(frozen=True)
class Problem:
    """A learning problem.

    answers    the name of the right answers among the examples' arrays
    fixed      the model's other inputs, the same at every step
    begin      from a seed to the weights that every procedure starts from
    optimizer, batch_size  what suits it, where nothing is said
    facts      what its table says about the data
    """

    name: str
    model: Model
    training: Examples
    validation: Examples
    answers: str
    classes: int
    begin: Callable[[int], Arrays]
    optimizer: str
    batch_size: int
    facts: str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def sizes(self, batch_size: int) -> dict[str, int]:
        """Return the sizes of all axes in a step on a number of examples."""
        return self._sizes | {"B": batch_size}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        arrays = {**self.begin(0), **self.training.rows(slice(1)), **self.fixed}
        arrays |= derived_inputs(self.model.table, arrays, {}, np.float64(1))
        return infer_sizes(self.model.table, arrays, self.model.sizes)

    @cached_property
    def chance(self) -> tuple[float, float]:
        """Return the validation loss and accuracy of a guess from the class frequencies of the training data.

        Every class counts once more than it is there, so that none has no probability.
        """
        counts = np.bincount(np.ravel(self.training.arrays[self.answers]), minlength=self.classes) + 1
        right = np.ravel(self.validation.arrays[self.answers])
        return float(-np.log(counts / counts.sum())[right].mean()), float((right == counts.argmax()).mean())

    @property
    def diverged(self) -> float:
        """Return the loss from which a training counts as diverged: ten times that of equal probabilities."""
        return 10 * log(self.classes)


CLASSES, SIDE, BRIGHTEST = 10, 8, 16
"""Of scikit-learn's digits: 1,797 images of 8 by 8 pixels from 0 to 16 (load_digits)."""

TRAINING = 1300  # of the 1,797; the others validate

WIDTHS = (64, 32)

VIT: Mapping[str, Any] = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "image_size": SIDE,
    "patch_size": 4,
    "num_channels": 1,
    "num_labels": CLASSES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_act": "gelu_new",  # by tanh, which NumPy has; erf it has not
}
"""A family that `cost` prices: four patches, a class token, two blocks. The sizes are chosen, not published."""


def _digits() -> tuple[Any, Any]:
    """Return images [1797, 64] from 0 to 1 and their classes, in a fixed shuffled order."""
    digits = imported("sklearn.datasets", "digits come with scikit-learn", "contest").load_digits()
    order = generator(0, "digits").permutation(len(digits.target))
    return digits.data[order] / BRIGHTEST, digits.target[order]


def _problem(name: str, shape: tuple[int, ...], inputs: tuple[str, str], optimizer: str, **more: Any) -> Problem:
    images, classes = _digits()
    image, answers = inputs
    examples = Examples({image: images.reshape(len(images), *shape), answers: classes})
    training, validation = examples.part(0, TRAINING), examples.part(TRAINING, len(examples))
    return Problem(
        name=name,
        training=training,
        validation=validation,
        answers=answers,
        classes=CLASSES,
        optimizer=optimizer,
        batch_size=64,
        facts=f"scikit-learn's digits: {len(training):,} images learned from, {len(validation):,} validate",
        **more,
    )


def network(hidden: int) -> Layer:
    """Return a dense network without biases and with relu, as in PEPITA's paper (Dellaferrera & Kreiman 2022)."""
    lines = []
    for i in range(hidden):
        lines += [
            f"  H{i + 1}[B x{i + 1}] = {'G' if i else 'X'}{i or ''}[B x{i}] W{i + 1}[x{i} x{i + 1}]",
            f"  G{i + 1}[B x{i + 1}] = relu(H{i + 1}[B x{i + 1}])",
        ]
    weights = " ".join(f"W{i + 1}" for i in range(hidden + 1))
    return layer(
        f"mlp(X targets share; {weights}) -> loss\n"
        + "\n".join(lines)
        + f"""
  L[B c] = {f"G{hidden}" if hidden else "X"}[B x{hidden}] W{hidden + 1}[x{hidden} c]
  P[B c] = log_softmax[c](L[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
targets: index of c
share: share of targets"""
    )


def mlp(widths: tuple[int, ...] = WIDTHS) -> Problem:
    """Return a dense network with hidden widths and initial weights uniform in +-sqrt(6 / inputs)."""
    sizes = tuple(pairwise((SIDE * SIDE, *(check_size("widths", width) for width in widths), CLASSES)))

    def begin(seed: int) -> Arrays:
        drawn = {}
        for i, (before, after) in enumerate(sizes, 1):
            drawn[f"W{i}"] = generator(seed, f"W{i}").uniform(-1, 1, (before, after)) * sqrt(6 / before)
        return drawn

    widths_text = "-".join(map(str, (SIDE * SIDE, *widths, CLASSES)))
    return _problem(
        f"mlp {widths_text}",
        (SIDE * SIDE,),
        ("X", "targets"),
        "momentum",
        model=from_layer(network(len(widths)), ("X",)),
        begin=begin,
    )


def vit(sizes: Mapping[str, Any]) -> Problem:
    """Return a vision transformer on patches; `sizes` are any of the family's."""
    configuration = configure(dict(VIT), dict(sizes))
    image_sizes = {name: configuration.sizes[name] for name in ("image_size", "image_width", "num_channels")}
    if image_sizes != {"image_size": SIDE, "image_width": SIDE, "num_channels": 1}:
        raise InputError(f"remove {', '.join(image_sizes)}: the digits are {SIDE} by {SIDE} pixels of one channel")
    if configuration.settings["num_labels"] != CLASSES or not configuration.head.startswith("image"):
        raise InputError(
            "remove --architecture and --num-labels: the digits require ViTForImageClassification with 10 labels"
        )
    model = build(configuration)
    return _problem(
        f"vit of {configuration.sizes['num_hidden_layers']} blocks of {configuration.sizes['hidden_size']}",
        tuple(model.sizes[axis] for axis in ("c", "i", "y", "j", "x")),
        ("image", "labels"),
        "adamw",
        model=model,
        begin=lambda seed: _drawn(model, seed),
    )


def _drawn(model: Model, seed: int) -> Arrays:
    """Draw the class token and the positions like matrices, as transformers does.

    What is only added would start at 0; then the class token's row is 0, and its normalization without bounds.
    """
    weights = initial_weights(model.table, model.sizes, seed)
    for name in ("embeddings.T", "embeddings.P"):
        weights[name] = DEVIATION * generator(seed, name).standard_normal(weights[name].shape)
    return weights


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
    # by the length, as windows are
    limited = {size: batch.sizes[size] for size in built.rules if size not in built.sizes}
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
