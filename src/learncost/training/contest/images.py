"""The bundled digits of scikit-learn, for a dense network and for a small vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import sqrt
from typing import Any

from learncost.engines.weights import DEVIATION, generator, initial_weights
from learncost.ir.errors import InputError, to_install
from learncost.layers.layer import Layer, layer
from learncost.models.configuration import configure
from learncost.models.model import Model, build, from_layer
from learncost.models.sizes import check_size
from learncost.training.contest.problem import Arrays, Problem
from learncost.training.data.examples import Examples

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
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(f"digits come with scikit-learn: {to_install('contest')}") from None
    digits = load_digits()
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
