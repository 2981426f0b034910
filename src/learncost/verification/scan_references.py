"""Reference implementations of state spaces in plain NumPy: sums over the past without a recurrence.

Mamba's state after t tokens is the sum of the decayed contributions of all tokens so far: Gu & Dao 2023, and
Dao & Gu 2024, equation (3); RWKV's is equation (16) of Peng et al. 2023 as it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification.modern_references import best, gated, rms_normal, silu
from learncost.verification.plain import of, sigmoid

Array = Any


def causal_convolution(X: Array, K: Array) -> Array:
    """Return a causal depthwise convolution, whose kernel's last element is the current token: X[B M ...], K[... u]."""
    result, width = np.zeros(X.shape), K.shape[-1]
    for back in range(width):
        if back < X.shape[1]:
            result[:, back:] += X[:, : X.shape[1] - back] * K[..., width - 1 - back]
    return result


def selective_state_space(X: Array, *weights: Array) -> Array:
    """Return Mamba's block, channel by channel and state element by state element."""
    WX, WZ, K, WT, WU, bU, WB, WC, A, D, WO = weights
    U = silu(causal_convolution(X @ WX, K))
    delta, E, C = np.logaddexp(0, U @ WT @ WU + bU), U @ WB, U @ WC
    past = np.cumsum(delta, axis=1)
    Q = D * U
    for c, n in np.ndindex(A.shape):
        for m in range(X.shape[1]):
            since = np.exp(-np.exp(A[c, n]) * (past[:, m, None, c] - past[:, : m + 1, c]))
            state = (since * delta[:, : m + 1, c] * E[:, : m + 1, n] * U[:, : m + 1, c]).sum(1)
            Q[:, m, c] += state * C[:, m, n]
    return (Q * silu(X @ WZ)) @ WO


def state_space_duality(X: Array, *weights: Array) -> Array:
    """Return Mamba-2's block as masked attention, Dao & Gu 2024, equation (3): scores are C B times the decay."""
    WZ, WX, WB, WC, WT, KX, KB, KC, bT, A, D, g, WO = weights
    U = silu(causal_convolution(np.tensordot(X, WX, 1), KX))
    E = silu(causal_convolution(np.tensordot(X, WB, 1), KB))
    C = silu(causal_convolution(np.tensordot(X, WC, 1), KC))
    delta = np.logaddexp(0, np.tensordot(X, WT, 1) + bT)
    past = np.cumsum(delta, axis=1) * -np.exp(A)
    Q = D[..., None] * U
    for b, i, j in np.ndindex(len(X), *A.shape):
        scores = np.tril(C[b, :, i] @ E[b, :, i].T)
        decay = np.exp(np.minimum(past[b, :, None, i, j] - past[b, None, :, i, j], 0))
        Q[b, :, i, j] += scores * decay * delta[b, :, i, j] @ U[b, :, i, j]
    Q *= silu(np.tensordot(X, WZ, 1))
    groups = Q.reshape(*Q.shape[:3], -1)
    return np.tensordot(rms_normal(groups).reshape(Q.shape) * g, WO, 3)


def gated_delta_net(X: Array, *weights: Array) -> Array:
    """Return the gated delta net by the states of Yang et al. 2025, equation (10), S (I - b k k') a + b v k'."""
    WQ, WK, WV, WZ, WB, WA, KQ, KK, KV, bA, A, g, WO = weights
    Q, K, V = (silu(causal_convolution(np.tensordot(X, W, 1), C)) for W, C in ((WQ, KQ), (WK, KK), (WV, KV)))
    Q, K = (Z / np.sqrt((Z * Z).sum(-1, keepdims=True) + 7.8125e-9 * Z.shape[-1]) for Z in (Q, K))
    rate = 1 / (1 + np.exp(-np.tensordot(X, WB, 1)))
    decay = np.exp(-np.exp(A) * np.logaddexp(0, np.tensordot(X, WA, 1) + bA))
    mixed = np.empty_like(V)
    for b, i, j in np.ndindex(len(X), *A.shape):
        S = np.zeros((V.shape[-1], Q.shape[-1]))
        for M in range(X.shape[1]):
            k, beta = K[b, M, i], rate[b, M, i, j]
            S = decay[b, M, i, j] * S @ (np.eye(len(k)) - beta * np.outer(k, k)) + beta * np.outer(V[b, M, i, j], k)
            mixed[b, M, i, j] = S @ Q[b, M, i] / np.sqrt(len(k))
    return np.tensordot(rms_normal(mixed) * g * silu(np.tensordot(X, WZ, 1)), WO, 3)


def before(X: Array) -> Array:
    """Return each token's predecessor, zeros for the first."""
    return np.concatenate((np.zeros_like(X[:, :1]), X[:, :-1]), axis=1)


def time_mixing(X: Array, *weights: Array) -> Array:
    """Return equations (11) to (17), with the sum of (16) over all tokens before."""
    mK, mV, mR, WK, WV, WR, w, u, WO = weights
    K, V, R = ((m * X + (1 - m) * before(X)) @ W for m, W in ((mK, WK), (mV, WV), (mR, WR)))
    result = np.zeros_like(K)
    for m in range(X.shape[1]):
        exponents = [K[:, i] - (m - 1 - i) * np.exp(w) for i in range(m)] + [u + K[:, m]]
        shares = np.exp(np.array(exponents) - np.max(exponents, axis=0))
        result[:, m] = (shares * np.moveaxis(V[:, : m + 1], 1, 0)).sum(0) / shares.sum(0)
    return (sigmoid(R) * result) @ WO


def channel_mixing(X: Array, mK: Array, mR: Array, WK: Array, WR: Array, WV: Array) -> Array:
    """Return equation (18)."""
    K, R = ((m * X + (1 - m) * before(X)) @ W for m, W in ((mK, WK), (mR, WR)))
    return sigmoid(R) * (np.maximum(K, 0) ** 2 @ WV)


def scaled_mixture(X: Array, WR: Array, WG: Array, WU: Array, WD: Array) -> Array:
    """Return the mixture of Llama 4, whose experts read tokens multiplied by their gates."""
    result, chosen = np.zeros_like(X), best(X @ WR)
    for place in np.ndindex(X.shape[:-1]):
        for e in chosen[place]:
            result[place] += gated(sigmoid(X[place] @ WR[:, e]) * X[place], WG[e], WU[e], WD[e])
    return result


def same_chunk(chunk: Array, shape: tuple[int, ...]) -> Array:
    """Return the mask of transformers' chunked_overlay."""
    queries, keys = (np.arange(size) // chunk for size in shape)
    return queries[:, None] == keys


def short_convolution(X: Array, WB: Array, WC: Array, WX: Array, K: Array, WO: Array) -> Array:
    """Return the gated convolution of LFM2."""
    return (X @ WC * causal_convolution((X @ WB) * (X @ WX), K)) @ WO


def growing_temperature(floor_scale: Array, scale: Array, shape: tuple[int, ...]) -> Array:
    """Return the temperature of transformers' Llama4TextAttention."""
    return np.log1p(np.floor((np.arange(*shape) + 1.0) / floor_scale)) * scale + 1.0


LAYERS: Mapping[str, Callable[..., Any]] = {
    "channel_mixing": of("311222", channel_mixing),
    "gated_delta_net": of("33344333342214", gated_delta_net),
    "growing_temperature": of("00", growing_temperature, sized=True),
    "same_chunk": of("0", same_chunk, sized=True),
    "scaled_mixture_of_experts": of("32333", scaled_mixture),
    "selective_state_space": of("322222122212", selective_state_space),
    "short_convolution": of("322222", short_convolution),
    "state_space_duality": of("34433343322234", state_space_duality),
    "time_mixing": of("3111222112", time_mixing),
}
"""A foreign implementation of every such layer."""
