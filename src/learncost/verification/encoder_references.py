"""Reference implementations of layers of encoders, encoder-decoders and classifiers in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification.plain import gelu, normal, of, sigmoid, softmax

Array = Any


def classifier(X: Array, W: Array, b: Array) -> Array:
    """Return the logarithm of the softmax."""
    return np.log(softmax(X @ W + b))


def score(X: Array, last: Array, W: Array) -> Array:
    """Return the score of the vector at position `last`."""
    return np.stack([np.log(softmax(states[at] @ W)) for states, at in zip(X, last, strict=True)])


def sequence_loss(P: Array, labels: Array, share: Array) -> Array:
    """Return the negative log-likelihood with one target per sequence."""
    return sum(row[label] * weight for row, label, weight in zip(P, labels, share, strict=True))


def spans(X: Array, W: Array, b: Array) -> Array:
    """Return a distribution over the positions for each end of the span."""
    return np.stack([np.log(softmax(X @ w + bias)) for w, bias in zip(W.T, b, strict=True)], axis=-1)


def span_loss(P: Array, ends: Array, share: Array) -> Array:
    """Return the negative log-likelihood of the two ends of each span."""
    return sum(P[row, ends[row, end], end] * share[row, end] for row, end in np.ndindex(ends.shape))


def discriminator(X: Array, W: Array, b: Array, V: Array, c: Array) -> Array:
    """Return the scores of a dense layer, GELU and a dense layer."""
    return gelu(X @ W + b) @ V + c


def binary_loss(P: Array, sign: Array, share: Array) -> Array:
    """Return the binary cross-entropy."""
    return np.sum(np.log(sigmoid(P * sign)) * share)


LAYERS: Mapping[str, Callable[..., Array]] = {
    "binary_loss": of("333", binary_loss),
    "class_pooler": of("321", lambda X, W, b: np.tanh(X[:, 0] @ W + b)),
    "classifier": of("221", classifier),
    "dense_gelu": of("321", lambda X, W, b: gelu(X @ W + b)),
    "dense_tanh": of("221", lambda F, W, b: np.tanh(F @ W + b)),
    "discriminator": of("32121", discriminator),
    "embedding_projection": of("321", lambda X, W, b: X @ W + b),
    "last_pooler": of(
        "3121",
        lambda X, last, W, b: np.stack([np.tanh(states[at] @ W + b) for states, at in zip(X, last, strict=True)]),
    ),
    "relative_positions": of("22", lambda bucket, W: np.stack([head[bucket] for head in W.T])),
    "relative_rows": of("12", lambda rows, W: np.stack([W[row] for row in rows])),
    "row_norm": of("211", lambda X, g, b: normal(X) * g + b),
    "score": of("312", score),
    "sequence_loss": of("211", sequence_loss),
    "span_loss": of("322", span_loss),
    "spans": of("321", spans),
}
"""A foreign implementation of every such layer."""

WORDS: Mapping[str, Callable[..., Any]] = {"log_sigmoid": lambda X: -np.logaddexp(0, -X)}
"""And of every such word."""
