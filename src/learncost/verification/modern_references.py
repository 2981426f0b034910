"""Reference implementations of layers and operators of models after 2019 in plain NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.verification.plain import gelu_tanh, normal, of, sigmoid, softmax

Array = Any


def silu(x: Array) -> Array:
    """Return x sigmoid(x)."""
    return x * sigmoid(x)


def rms_normal(x: Array, epsilon: float = 1e-6) -> Array:
    """Return x / sqrt(mean x^2 + epsilon) along the last axis."""
    return x * (np.square(x).mean(-1, keepdims=True) + epsilon) ** -0.5


def gated(x: Array, WG: Array, WU: Array, WD: Array) -> Array:
    """Return the gated linear unit of Shazeer 2020, equation (6)."""
    return (silu(x @ WG) * (x @ WU)) @ WD


def grouped_attention(XQ: Array, XK: Array, XV: Array, WQ: Array, WK: Array, WV: Array, WO: Array) -> Array:
    """Return grouped-query attention, head by head."""
    result = np.zeros((*XQ.shape[:-1], WO.shape[-1]))
    for b in range(len(XQ)):
        for h in range(WQ.shape[1]):
            k, v = XK[b] @ WK[:, h], XV[b] @ WV[:, h]
            for g in range(WQ.shape[2]):
                scores = XQ[b] @ WQ[:, h, g] @ k.T
                result[b] += softmax(scores / math.sqrt(k.shape[1])) @ v @ WO[h, g]
    return result


def latent_heads(Q: Array, QR: Array, XK: Array, *weights: Array) -> Array:
    """Return decompressed keys and values; each key is concatenated with the part that all heads share."""
    WDK, gK, WUK, WUV, WKR, WO = weights
    result = np.zeros((*Q.shape[:2], WO.shape[-1]))
    for b in range(len(XK)):
        key = rms_normal(XK[b] @ WDK) * gK
        for h in range(Q.shape[2]):
            q = np.concatenate([Q[b, :, h], QR[b, :, h]], axis=1)
            k = np.concatenate([key @ WUK[:, h], XK[b] @ WKR], axis=1)
            result[b] += softmax(q @ k.T / math.sqrt(128 + 64)) @ (key @ WUV[:, h]) @ WO[h]
    return result


def latent_key_attention(XQ: Array, XK: Array, WQ: Array, WQR: Array, *heads: Array) -> Array:
    """Return latent attention with uncompressed queries."""
    return latent_heads(np.tensordot(XQ, WQ, 1), np.tensordot(XQ, WQR, 1), XK, *heads)


def latent_attention(XQ: Array, XK: Array, WDQ: Array, gQ: Array, WQ: Array, WQR: Array, *heads: Array) -> Array:
    """Return latent attention with compressed queries."""
    return latent_key_attention(rms_normal(XQ @ WDQ) * gQ, XK, WQ, WQR, *heads)


CHOSEN = 2
"""The experts of a token: of the sizes that the proof takes, that of what is chosen is the smallest."""


def best(scores: Array) -> Array:
    """Return the indices of the largest values along the last axis."""
    return np.argsort(-scores.real, axis=-1, kind="stable")[..., :CHOSEN]


def clamped_mixture(X: Array, WR: Array, bR: Array, *experts: Array) -> Array:
    """Return the mixture of gpt-oss, token by token and expert by expert."""
    WG, bG, WU, bU, WD, bD = experts
    result, chosen = np.zeros((*X.shape[:-1], WD.shape[-1])), best(X @ WR + bR)
    for place in np.ndindex(X.shape[:-1]):
        gates = softmax((X[place] @ WR + bR)[chosen[place]])
        for share, e in zip(gates, chosen[place], strict=True):
            gate = np.minimum(X[place] @ WG[e] + bG[e], 7)
            linear = np.clip(X[place] @ WU[e] + bU[e], -7, 7)
            result[place] += share * (gate * sigmoid(1.702 * gate) * (linear + 1) @ WD[e] + bD[e])
    return result


def chosen_experts(X: Array, chosen: Array, WG: Array, WU: Array, WD: Array) -> Array:
    """Return a mixture of experts, token by token and expert by expert."""
    result = np.zeros((*chosen.shape, WD.shape[-1]))
    for *place, t in np.ndindex(chosen.shape):
        expert = chosen[(*place, t)]
        result[(*place, t)] = gated(X[tuple(place)], WG[expert], WU[expert], WD[expert])
    return result


def _experts(gates: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a mixture with gates computed from a token's logits and its chosen experts."""

    def mixture(X: Array, WR: Array, *experts: Array) -> Array:
        chosen = best(X @ WR)
        expert_outputs, result = chosen_experts(X, chosen, *experts), np.zeros_like(X)
        for place in np.ndindex(X.shape[:-1]):
            result[place] = gates(X[place] @ WR, chosen[place]) @ expert_outputs[place]
        return result

    return mixture


def squared_experts(X: Array, chosen: Array, W1: Array, W2: Array) -> Array:
    """Return what a token's experts make of it with the squared ReLU."""
    inner = np.maximum(np.einsum("BMd,BMtdf->BMtf", X, W1[chosen]), 0) ** 2
    return np.einsum("BMtf,BMtfd->BMtd", inner, W2[chosen])


def sigmoid_mixture(X: Array, correction: Array, WR: Array, *experts: Array) -> Array:
    """Return DeepSeek-V3's mixture, or Nemotron's of two matrices; the code adds 1e-20 to the sum of the gates."""
    gates, result = sigmoid(X @ WR), np.zeros_like(X)
    chosen = best(gates + correction)
    expert_outputs = (squared_experts if len(experts) == 2 else chosen_experts)(X, chosen, *experts)
    for place in np.ndindex(X.shape[:-1]):
        share = gates[place][chosen[place]]
        result[place] = 2.5 * share / (share.sum() + 1e-20) @ expert_outputs[place]
    return result


def patch_embedding(X: Array, W: Array, b: Array, T: Array, P: Array) -> Array:
    """Return the class token and a product for each patch, row by row, up to the number of positions."""
    batch, _, rows, _, columns, _ = X.shape
    patches = np.einsum("bciyjx,dcyx->bijd", X, W).reshape(batch, rows * columns, -1) + b
    tokens = np.concatenate((np.repeat(T[None, None], batch, 0), patches), 1)
    missing = max(0, len(P) - tokens.shape[1])
    return np.pad(tokens, ((0, 0), (0, missing), (0, 0)))[:, : len(P)] + P


def strided_convolution(X: Array, W: Array, b: Array, shape: tuple[int, ...]) -> Array:
    """Return a convolution with stride 2."""
    width = len(W)
    padded = np.pad(X, ((0, 0), (width // 2, 2 * shape[1] + width), (0, 0)))
    return np.stack([np.tensordot(padded[:, 2 * m : 2 * m + width], W, 2) for m in range(shape[1])], axis=1) + b


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


def tied_attention(XQ: Array, XK: Array, WQ: Array, WK: Array, gK: Array, WO: Array) -> Array:
    """Return attention without a scale whose values are normed keys."""
    V = rms_normal(np.tensordot(XK, WK, 1))
    return query_attention(XQ * math.sqrt(len(gK)), V * gK, V, WQ, WO)


def normed_mixture(X: Array, D: Array, s: Array, WR: Array, c: Array, *experts: Array) -> Array:
    """Return Gemma 4's mixture, token by token."""
    gates, result = softmax(rms_normal(X) * s / math.sqrt(len(s)) @ WR), np.zeros_like(X)
    chosen = best(gates)
    expert_outputs = chosen_experts(D, chosen, *experts)
    for place in np.ndindex(X.shape[:-1]):
        share = gates[place][chosen[place]]
        result[place] = share / share.sum() * c[chosen[place]] @ expert_outputs[place]
    return result


# State spaces: sums over the past without a recurrence. Mamba's state after t tokens is the sum of the decayed
# contributions of all tokens so far: Gu & Dao 2023, and Dao & Gu 2024, equation (3); RWKV's is equation (16) of
# Peng et al. 2023 as it is printed.


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
    "chosen_experts": of("33333", chosen_experts),
    "clamped_mixture_of_experts": of("321323232", clamped_mixture),
    "gated_feed_forward": of("3222", gated),
    "gated_shared_expert": of("332222", lambda X, E, WG, WU, WD, WS: E + sigmoid(X @ WS[:, :1]) * gated(X, WG, WU, WD)),
    "gemma_rms_norm": of("31", lambda X, g: rms_normal(X) * (1 + g)),
    "grouped_attention": of("3334334", grouped_attention),
    "latent_attention": of("332133213323", latent_attention),
    "latent_key_attention": of("3333213323", latent_key_attention),
    "latent_heads": of("443213323", latent_heads),
    "mixture_of_experts": of("32333", _experts(lambda logits, chosen: softmax(logits[chosen]))),
    "norm_without_shift": of("31", lambda X, g: normal(X) * g),
    "patch_embedding": of("64112", patch_embedding),
    "projection": of("32", lambda X, W: X @ W),
    "rms_norm": of("31", lambda X, g: rms_normal(X) * g),
    "shared_experts": of("33222", lambda X, E, WG, WU, WD: E + gated(X, WG, WU, WD)),
    "sigmoid_mixture_of_experts": of("312333", sigmoid_mixture),
    "softmax_mixture_of_experts": of("32333", _experts(lambda logits, chosen: softmax(logits)[chosen])),
    "scaled": of("3", lambda X: X + X),
    "squared_mixture_of_experts": of("31233", sigmoid_mixture),
    "squared_feed_forward": of("322", lambda X, W1, W2: np.maximum(X @ W1, 0) ** 2 @ W2),
    "strided_convolution": of("331", strided_convolution, sized=True),
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
    "per_layer_input": of("33221", lambda X, inner, WG, WP, g: X + rms_normal(gelu_tanh(X @ WG) * inner @ WP) * g),
    "normed_mixture_of_experts": of("33121333", normed_mixture),
    "tied_attention": of("334314", tied_attention),
    "query_attention": of("34444", query_attention),
    "root_mean_square": of("3", magnitude),
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

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "rms_normalize": rms_normal,
    "at_most": lambda X, Z: np.where(X < Z, X, Z),
    "softmax_with_sink": lambda X, z: softmax(np.concatenate([X, z[..., None]], axis=-1))[..., :-1],
    "vector_norm": lambda X: np.linalg.norm(X, axis=-1),
    "proportion": lambda X: X / X.sum(-1, keepdims=True),
}
"""And of every such word."""
