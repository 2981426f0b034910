"""Reference implementations of layers and operators in plain NumPy, written from the publications.

A table that reads the wrong axis still agrees with its own gradients and price. So every layer and every operator of
the package is implemented here a second time, independently of its table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification import modern_references, position_references
from learncost.verification.plain import (
    erf,
    gelu,
    gelu_tanh,
    hashed,
    log_softmax,
    normal,
    of,
    shifted,
    sigmoid,
    softmax,
)

Array = Any


# Layers. One head after the other, one sequence after the other: M rows, d columns.


def attention(XQ: Array, XK: Array, XV: Array, WQ: Array, WK: Array, WV: Array, WO: Array) -> Array:
    """Return multi-head attention without biases, equations (2) to (4)."""
    result = np.zeros((*XQ.shape[:-1], WO.shape[-1]))
    for b in range(len(XQ)):
        for h in range(WQ.shape[1]):
            q, k, v = XQ[b] @ WQ[:, h], XK[b] @ WK[:, h], XV[b] @ WV[:, h]
            result[b] += softmax(q @ k.T / math.sqrt(q.shape[1])) @ v @ WO[h]
    return result


def restricted_attention(X: Array, places: Array, keep: Array, WQ: Array, WK: Array, WV: Array, WO: Array) -> Array:
    """Return attention in which each position reads a list of keys, masked by `kept`."""
    result = np.zeros((*X.shape[:-1], WO.shape[-1]))
    for b in range(len(X)):
        for h in range(WQ.shape[1]):
            q, k, v = X[b] @ WQ[:, h], X[b] @ WK[:, h], X[b] @ WV[:, h]
            for m in range(len(q)):
                near = places[m][keep[m]]
                result[b, m] += softmax(k[near] @ q[m] / math.sqrt(len(q[m]))) @ v[near] @ WO[h]
    return result


def disentangled_attention(H: Array, P: Array, delta: Array, *weights: Array) -> Array:
    """Return the attention of He et al. 2021, algorithm 1, entry by entry."""
    WQc, WKc, WVc, WQr, WKr = weights
    batch, length, _ = H.shape
    heads, width = WQc.shape[1:]
    result = np.zeros((batch, length, heads, width))
    for b in range(batch):
        for h in range(heads):
            qc, kc, vc = H[b] @ WQc[:, h], H[b] @ WKc[:, h], H[b] @ WVc[:, h]
            qr, kr = P @ WQr[:, h], P @ WKr[:, h]
            scores = np.empty((length, length))
            for i in range(length):
                for j in range(length):
                    scores[i, j] = qc[i] @ kc[j] + qc[i] @ kr[delta[i, j]] + kc[j] @ qr[delta[j, i]]
            result[b, :, h] = softmax(scores / math.sqrt(3 * width)) @ vc
    return result


def jiang_attention(X: Array, A: Array, B: Array, C: Array, WO: Array) -> Array:
    """Return attention with tokens as columns and a softmax over each column."""
    return sum(
        WO[:, h] @ (C[h] @ X) @ softmax((A[h] @ X).T @ (B[h] @ X) / math.sqrt(A.shape[1]), axis=0)
        for h in range(len(A))
    )


def jiang_packed_attention(X: Array, W: Array, WO: Array) -> Array:
    """Return `jiang_attention` from a stack of its three weights."""
    return jiang_attention(X, W[0], W[1], W[2], WO)


def jiang_block(X: Array, *weights: Array) -> Array:
    """Return Y = U + W2 relu(W1 U), where U = X + LN(Z)."""
    A, B, C, WO, g, b, W1, W2 = weights
    u = X + normal(jiang_attention(X, A, B, C, WO), axis=0) * g[:, None] + b[:, None]
    return u + W2 @ np.maximum(W1 @ u, 0)


def near(X: Array, middle: int, width: int) -> Array:
    """Return a number of rows of X around one, with zeros outside."""
    padded = np.pad(X, ((0, 0), (width, width), (0, 0)))
    first = middle + width - width // 2
    return padded[:, first : first + width]


def convolution(X: Array, W: Array, b: Array) -> Array:
    """Return the convolution with a kernel of c positions."""
    rows = [np.tensordot(near(X, m, len(W)), W, 2) for m in range(X.shape[1])]
    return np.stack(rows, 1) + b


def separable_convolution(X: Array, D: Array, W: Array, b: Array) -> Array:
    """Return a depthwise convolution followed by a product over channels."""
    rows = [(near(X, m, len(D)) * D).sum(1) for m in range(X.shape[1])]
    return np.stack(rows, 1) @ W + b


def recurrent(X: Array, h: Array, W: Array, U: Array, b: Array) -> tuple[Array, Array]:
    """Return all h_t = tanh(h_{t-1} U + x_t W + b), and the last."""
    states = []
    for t in range(X.shape[1]):
        h = np.tanh(h @ U + X[:, t] @ W + b)
        states.append(h)
    return np.stack(states, 1), h


def head(X: Array, W: Array) -> Array:
    """Return the logarithms of the probabilities (45)."""
    return np.log(softmax(X @ W))


def loss(P: Array, targets: Array, share: Array) -> Array:
    """Return the weighted negative log-likelihood of the targets."""
    return np.sum(np.take_along_axis(P, targets[..., None], -1)[..., 0] * share)


def error_projection(tokens: Array, e: Array) -> Array:
    """Return the attention of one-hot tokens over the decoder's error, equation (48)."""
    one_hot = np.eye(e.shape[-1])[tokens]
    return np.stack(
        [
            softmax(t @ embedding.T / math.sqrt(embedding.shape[1])) @ embedding
            for t, embedding in zip(one_hot, e, strict=True)
        ]
    )


def masked_lm_transform(X: Array, W: Array, b: Array, g: Array, beta: Array) -> Array:
    """Return a dense layer, GELU and a norm."""
    return normal(gelu(X @ W + b)) * g + beta


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
    "add_norm": of("3311", lambda X, F, g, b: normal(X + F) * g + b),
    "attention": of("3333333", attention),
    "convolution": of("331", convolution),
    "cross_attention": of("3333333", attention),
    "disentangled_attention": of("32233333", disentangled_attention),
    "embedding": of("22", lambda tokens, W: np.eye(len(W))[tokens] @ W),
    "error_projection": of("23", error_projection),
    "feed_forward": of("32121", lambda X, W1, b1, W2, b2: gelu_tanh(X @ W1 + b1) @ W2 + b2),
    "feed_forward_without_biases": of("322", lambda X, W1, W2: gelu_tanh(X @ W1) @ W2),
    "head": of("32", head),
    "jiang_attention": of("23333", jiang_attention),
    "jiang_block": of("233331122", jiang_block),
    "jiang_packed_attention": of("243", jiang_packed_attention),
    "loss": of("322", loss),
    "masked_lm_transform": of("32111", masked_lm_transform),
    "norm": of("311", lambda X, g, b: normal(X) * g + b),
    "plain_norm": of("3", normal),
    "pooler": of("321", lambda X, W, b: np.tanh(X[:, 0] @ W + b)),
    "positions": of("312", lambda E, index, P: E + np.stack([P[i] for i in index])),
    "recurrent": of("32221", recurrent),
    "residual": of("33", lambda X, F: X + F),
    "restricted_attention": of("3223333", restricted_attention),
    "separable_convolution": of("3221", separable_convolution),
    "sinusoidal_positions": of("32", lambda E, S: E + S),
    "token_types": of("322", lambda E, types, W: E + np.stack([W[row] for row in types])),
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
    **modern_references.LAYERS,
    **position_references.LAYERS,
}
"""A foreign implementation of every layer that comes with the package."""


# Words, on operands of axes (a, n) that act along n, or on elements.


def sgd(W: Array, G: Array, lr: Array) -> Array:
    """Return the weight after a step of gradient descent."""
    return W - lr * G


def momentum(W: Array, G: Array, V: Array, lr: Array, mu: Array) -> tuple[Array, Array]:
    """Return the weight and the velocity after a step of Polyak's momentum."""
    velocity = mu * V + G
    return W - lr * velocity, velocity


def adamw(W: Array, G: Array, M: Array, V: Array, *numbers: Array) -> tuple[Array, Array, Array]:
    """Return the step of Loshchilov & Hutter 2019, algorithm 2: c is 1 - b, k the bias correction, decay what
    remains of a weight.
    """
    lr, b1, c1, b2, c2, k1, k2, eps, decay = numbers
    m, v = b1 * M + c1 * G, b2 * V + c2 * G**2
    return decay * W - lr * (k1 * m) / ((k2 * v) ** 0.5 + eps), m, v


def lion(W: Array, G: Array, M: Array, *numbers: Array) -> tuple[Array, Array]:
    """Return the step of Chen et al. 2023, Algorithm 2: the sign of an interpolated gradient, by parts."""
    lr, b1, c1, b2, c2, decay = numbers
    direction = c1 * G + b1 * M
    return decay * W + lr * np.where(direction > 0, -1.0, np.where(direction < 0, 1.0, 0.0)), c2 * G + b2 * M


def rmsprop(W: Array, G: Array, V: Array, lr: Array, b2: Array, c2: Array, eps: Array) -> tuple[Array, Array]:
    """Return the step of Tieleman & Hinton 2012, lecture 6.5: each gradient over the root of its mean square."""
    v = b2 * V + c2 * G**2
    return W - lr * G / (eps + v**0.5), v


def of_op(name: str) -> Callable[..., Any] | None:
    """Return the reference implementation of an operator: one of these, or Python's math function of each element."""
    plain = getattr(math, name, None)
    return OPERATORS.get(name) or (np.vectorize(plain, otypes=[float]) if plain else None)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "exp": lambda X: math.e**X,
    "log": lambda X: np.log2(X) * math.log(2),
    "tanh": lambda X: 1 - 2 / (np.exp(2 * X) + 1),
    "sqrt": lambda X: X**0.5,
    "erf": erf,
    "divide": lambda X, D: X * D**-1.0,
    "maximum": lambda X, Z: np.where(X > Z, X, Z),
    "select": lambda C, X, Z: np.choose(C.astype(int), [Z, X]),
    "less": lambda X, Z: Z - X > 0,
    "equal": lambda X, Z: X - Z == 0,
    "max": lambda X: np.sort(X, axis=-1)[..., -1],
    "min": lambda X: np.sort(X, axis=-1)[..., 0],
    "expm1": lambda X: np.exp(X) - 1,
    "minimum": lambda X, Z: np.where(X < Z, X, Z),
    "abs": lambda X: np.where(X < 0, -X, X),
    "sign": lambda X: (X > 0) * 1.0 - (X < 0),
    "power": lambda X, Z: np.array([x**z for x, z in zip(X.ravel(), Z.ravel(), strict=True)]).reshape(X.shape),
    "hashed": hashed,
    "coin": lambda X, Z: hashed(X, Z, 31) * -2.0 + 1,
    "stochastic_round": lambda X, S, P: X - X % 1 + (X % 1 + hashed(S, P) / 2**24 >= 1),
    "shift": shifted,
    "bits": lambda X: np.array([math.frexp(x)[1] for x in X.ravel()], float).reshape(X.shape),
    "stop_gradient": lambda X: X + 0,
    "cumsum": lambda X: X @ np.triu(np.ones((X.shape[-1],) * 2)),
    "reversed_cumsum": lambda X: X @ np.tril(np.ones((X.shape[-1],) * 2)),
    "argmax": lambda X: np.array([[*row].index(max(row)) for row in X]),
    "argmin": lambda X: np.array([[*row].index(min(row)) for row in X]),
    "argsort": lambda X: np.array([sorted(range(len(row)), key=[*row].__getitem__) for row in X]),
    "sum": lambda X: X @ np.ones(X.shape[-1]),
    "mean": lambda X: X @ np.full(X.shape[-1], 1 / X.shape[-1]),
    "softplus": lambda X: np.logaddexp(0, X),
    "elu": lambda X: np.where(X > 0, X, np.exp(np.minimum(X, 0)) - 1),
    "softmax": softmax,
    "log_softmax": log_softmax,
    "safe_softmax": softmax,
    "safe_log_softmax": log_softmax,
    "normalize": normal,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda X: X * (X > 0),
    "sigmoid": sigmoid,
    "silu": lambda X: X * sigmoid(X),
    "sgd": sgd,
    "momentum": momentum,
    "adamw": adamw,
    "lion": lion,
    "rmsprop": rmsprop,
    **modern_references.OPERATORS,
    "log_sigmoid": lambda X: -np.logaddexp(0, -X),
}
"""A foreign implementation of every operator."""
