"""Layers of encoders, encoder-decoders and classifiers once more, in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.proof.plain import of, softmax

Array = Any


def classifier(X: Array, W: Array, b: Array) -> Array:
    """The logarithm of the softmax."""
    return np.log(softmax(X @ W + b))


def score(X: Array, last: Array, W: Array) -> Array:
    """Only the vector at `last`."""
    return np.stack([np.log(softmax(own[at] @ W)) for own, at in zip(X, last, strict=True)])


def sequence_loss(P: Array, labels: Array, share: Array) -> Array:
    """One logarithm a sequence."""
    return sum(row[label] * weight for row, label, weight in zip(P, labels, share, strict=True))


def spans(X: Array, W: Array, b: Array) -> Array:
    """A distribution over the positions for each of the two ends."""
    return np.stack([np.log(softmax(X @ w + bias)) for w, bias in zip(W.T, b, strict=True)], axis=-1)


def span_loss(P: Array, ends: Array, share: Array) -> Array:
    """Two logarithms a sequence."""
    return sum(P[row, ends[row, end], end] * share[row, end] for row, end in np.ndindex(ends.shape))


LAYERS: Mapping[str, Callable[..., Array]] = {
    "classifier": of("221", classifier),
    "score": of("312", score),
    "sequence_loss": of("211", sequence_loss),
    "span_loss": of("322", span_loss),
    "spans": of("321", spans),
}
"""A foreign implementation of every such layer."""
