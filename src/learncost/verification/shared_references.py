"""Reference implementations of the layers of Gemma 3n in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification.modern_references import rms_normal
from learncost.verification.plain import gelu_tanh, of, softmax

Array = Any


def router(x: Array, g: Array, W: Array) -> Array:
    """Return tanh of a projection of the normed token divided by its width."""
    return np.tanh(rms_normal(x) * g / len(g) @ W)


def predicted(X: Array, g: Array, W: Array, WP: Array) -> Array:
    """Return every stream plus its prediction from all streams, token by token."""
    result = np.zeros_like(X)
    for place in np.ndindex(X.shape[:2]):
        matrix = np.tensordot(router(X[place][0], g, W), WP, 1)
        result[place] = X[place] + matrix @ X[place]
    return result


def corrected(P: Array, A: Array, g: Array, W: Array, WC: Array) -> Array:
    """Return every stream plus its share of the block's change."""
    result = np.zeros_like(P)
    for place in np.ndindex(A.shape[:2]):
        parts = router(A[place], g, W) @ WC + 1
        result[place] = P[place] + np.outer(parts, A[place] - P[place][0])
    return result


def magnitude(x: Array, least: float = 0.0) -> Array:
    """Return the root of the mean square, at least `least`."""
    squares = np.square(x).mean(-1)
    return np.sqrt(np.where(squares.real < least, least, squares))


def projected(X: Array, W: Array, like: Array) -> Array:
    """Return the projected streams [c d], scaled to the magnitude of another."""
    rows = np.stack([X[..., c, :] @ W[c] for c in range(len(W))], axis=-2)
    return rows * (magnitude(like)[..., None] / magnitude(rows, 1e-5))[..., None]


def streams(E: Array, W: Array, shape: tuple[int, ...]) -> Array:
    """Return the embedding and its projections as streams."""
    rows = projected(np.repeat(E[..., None, :], len(W), -2), W, E)
    return fitted(np.concatenate([E[..., None, :], rows], axis=-2), shape[-2])


def fitted(X: Array, count: int) -> Array:
    """Return the first streams, padded with zero streams."""
    rows = X[..., :count, :]
    return np.pad(rows, [(0, 0)] * (X.ndim - 2) + [(0, count - rows.shape[-2]), (0, 0)])


def mean_of_streams(X: Array, W: Array) -> Array:
    """Return the mean of the first stream and the projections of the others."""
    others = fitted(X[..., 1:, :], len(W))
    return (X[..., 0, :] + projected(others, W, X[..., 0, :]).sum(-2)) / X.shape[-2]


def low_rank_residual(X: Array, WL: Array, WR: Array, g: Array) -> Array:
    """Return x plus its normed low-rank projection."""
    return X + rms_normal(X @ WL @ WR) * g


def query_attention(X: Array, K: Array, V: Array, WQ: Array, WO: Array) -> Array:
    """Return grouped-query attention with given keys and values, head by head."""
    result = np.zeros((*X.shape[:-1], WO.shape[-1]))
    for b, h, g in np.ndindex(len(X), *WQ.shape[1:3]):
        scores = X[b] @ WQ[:, h, g] @ K[b, :, h].T
        result[b] += softmax(scores / math.sqrt(K.shape[-1])) @ V[b, :, h] @ WO[h, g]
    return result


def keys_and_values(X: Array, WK: Array, WV: Array) -> tuple[Array, Array]:
    """Return keys and values, head by head."""
    return np.tensordot(X, WK, 1), np.tensordot(X, WV, 1)


def per_layer_embedding(tokens: Array, E: Array, W: Array, WP: Array, g: Array) -> Array:
    """Return the token's row plus the normed projection of its embedding, divided by the root of two."""
    rows = W[tokens] * math.sqrt(len(g))
    return (rms_normal(E @ WP / math.sqrt(len(WP))) * g + rows) / math.sqrt(2)


def per_layer_gate(X: Array, inner: Array, s: Array, WG: Array, WP: Array, g: Array) -> Array:
    """Return the gated contribution of a layer to the first stream."""
    return rms_normal(gelu_tanh(X[..., 0, :] * s @ WG) * inner @ WP) * g


LAYERS: Mapping[str, Callable[..., Any]] = {
    "alternating_correction": of("43122", corrected),
    "alternating_mean": of("43", mean_of_streams),
    "alternating_prediction": of("4123", predicted),
    "alternating_streams": of("33", streams, sized=True),
    "bounded_root_mean_square": of("4", lambda X: magnitude(X, 1e-5)),
    "keys_and_values": of("333", keys_and_values),
    "low_rank_residual": of("3221", low_rank_residual),
    "modality_router": of("312", router),
    "per_layer_embedding": of("23221", per_layer_embedding),
    "per_layer_gate": of("431221", per_layer_gate),
    "query_attention": of("34444", query_attention),
    "root_mean_square": of("3", magnitude),
}
"""A foreign implementation of every such layer."""
