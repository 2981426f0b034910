"""The printed equations of Pau & Aymone 2024, Eng 5(1), 34-50, one after the other: what each costs and what it means.

`cost_*` is what the paper prints, mistakes included; the factors stand in the paper's order. It takes all sizes by
keyword and names those that it uses. The function of the same number without `cost_` is the equation's meaning in
NumPy for one sequence, in the paper's row convention: tokens are rows, weights stand on the right. Arrays by head
(q, k, v, their weights and gradients) are lists of matrices. Written by hand from the paper's text.

M rows in X^Q (decoder length), N rows in X^K and X^V (encoder length). Everything is holomorphic, so that
complex-step derivatives pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Heads = list[np.ndarray]


@dataclass(frozen=True)
class Cost:
    maccs: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.maccs + other.maccs, self.flops + other.flops)

    def __rmul__(self, passes: int) -> Cost:
        return Cost(passes * self.maccs, passes * self.flops)


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost(0, 0))


# Section 4: the slice product


def slice_product(left: Array, right: Array) -> Array:
    """Row n of the left, [N x M], times slice n of the right, [N x M x K]."""
    return np.stack([row @ matrix for row, matrix in zip(left, right, strict=True)])


# Section 5.1: embedding


def cost_embedding(*, M: int, voc: int, d_model: int, **_: int) -> Cost:
    return Cost(M * voc * d_model, 2 * M * voc * d_model)


def embedding(tokens: Array, w_emb: Array) -> Array:
    return tokens @ w_emb


def cost_embedding_update(*, M: int, voc: int, d_model: int, **_: int) -> Cost:
    """PEPITA and MEMPEPITA alone."""
    return Cost(M * voc * d_model, 2 * M * voc * d_model)


# Section 5.2: position embeddings


def cost_positions(**_: int) -> Cost:
    """A simple addition, negligible."""
    return Cost(0, 0)


def positions(e: Array, p: Array) -> Array:
    return e + p[: len(e)]


# Section 5.3.1: multi-head attention, forward


def cost_2(*, M: int, N: int, d_model: int, **_: int) -> Cost:
    return Cost(
        M * d_model * d_model + 2 * N * d_model * d_model,
        2 * M * d_model * d_model + 4 * N * d_model * d_model,
    )


def equation_2(x_q: Array, x_k: Array, x_v: Array, w_q: Heads, w_k: Heads, w_v: Heads) -> tuple[Heads, Heads, Heads]:
    """Also (5), with x_q from the decoder and x_k = x_v from the encoder."""
    return [x_q @ w for w in w_q], [x_k @ w for w in w_k], [x_v @ w for w in w_v]


def cost_3(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    return Cost(2 * M * N * d_model, 4 * M * N * d_model + M * 5 * N * h + M * N * h)


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def probabilities(q: Array, k: Array) -> Array:
    return softmax(q @ k.T / np.sqrt(q.shape[-1]))


def equation_3(q: Array, k: Array, v: Array) -> Array:
    """Also (9)."""
    return probabilities(q, k) @ v


def cost_4(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model * d_model, 2 * M * d_model * d_model)


def equation_4(heads: Heads, w_o: Array) -> Array:
    """Also (6)."""
    return np.concatenate(heads, axis=1) @ w_o


def cost_mha_forward(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    return Cost(
        2 * M * d_model * d_model + 2 * M * N * d_model + 2 * N * d_model * d_model,
        4 * M * d_model * d_model + 4 * M * N * d_model + 4 * N * d_model * d_model + 6 * M * N * h,
    )


# Section 5.3.2: multi-head attention, backward and weight update


def cost_22(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model * d_model, 2 * M * d_model * d_model)


def equation_22(df: Array, w_o: Array) -> Array:
    """Also (8)."""
    return df @ w_o.T


def cost_23(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(d_model * M * d_model, 2 * d_model * M * d_model)


def equation_23(heads: Heads, df: Array) -> Array:
    """Also (7)."""
    return np.concatenate(heads, axis=1).T @ df


def cost_24(*, M: int, N: int, d_model: int, d_k: int, h: int, **_: int) -> Cost:
    assert N * M * d_k * h == N * M * d_model  # the paper prints both
    return Cost(N * M * d_k * h, 2 * N * M * d_model)


def equation_24(s: Array, d_attention: Array) -> Array:
    """Also (15)."""
    return s.T @ d_attention


def cost_25_26(*, N: int, d_model: int, d_k: int, h: int, **_: int) -> Cost:
    assert N * d_k * d_model * h == N * d_model * d_model  # the paper prints both
    return Cost(N * d_k * d_model * h, 2 * N * d_model * d_model)


def equation_25_26(dv: Heads, w_v: Heads) -> Array:
    """Also (18), which is (25), for all heads."""
    return sum(d @ w.T for d, w in zip(dv, w_v, strict=True))


def cost_27(*, N: int, d_model: int, d_k: int, h: int, **_: int) -> Cost:
    assert d_model * N * d_k * h == d_model * N * d_model  # the paper prints both
    return Cost(d_model * N * d_k * h, 2 * d_model * N * d_model)


def equation_27(x_v: Array, dv: Heads) -> Heads:
    """Also (21)."""
    return [x_v.T @ d for d in dv]


def cost_28(*, M: int, N: int, h: int, **_: int) -> Cost:
    return Cost(0, N * N * M * h)


def equation_28(s: Array) -> Array:
    """Also (11), one slice for each row of s: [M x N x N]."""
    return np.stack([np.diag(row) - np.outer(row, row) for row in s])


def cost_29(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    return Cost(
        M * d_model * N + M * N * M * h,
        2 * M * d_model * N + 2 * M * N * M * h + M * N * h,
    )


def right_cost_29(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    """Not printed: M rows times N x N slices."""
    return Cost(
        M * d_model * N + M * N * N * h,
        2 * M * d_model * N + 2 * M * N * N * h + M * N * h,
    )


def equation_29(d_attention: Array, v: Array, jacobian: Array) -> Array:
    """Also (10) and (12)."""
    return slice_product(d_attention @ v.T, jacobian.transpose(0, 2, 1)) / np.sqrt(v.shape[-1])


def cost_30(*, M: int, N: int, d_model: int, **_: int) -> Cost:
    return Cost(M * N * d_model, 2 * M * N * d_model)


def equation_30(d_scores: Array, k: Array) -> Array:
    """Also (13)."""
    return d_scores @ k


def cost_31_32(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model * d_model, 2 * M * d_model * d_model)


def equation_31_32(dq: Heads, w_q: Heads) -> Array:
    """Also (16), which is (31), for all heads."""
    return sum(d @ w.T for d, w in zip(dq, w_q, strict=True))


def cost_33(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(d_model * M * d_model, 2 * d_model * M * d_model)


def equation_33(x_q: Array, dq: Heads) -> Heads:
    """Also (19)."""
    return [x_q.T @ d for d in dq]


def cost_34(*, M: int, N: int, d_model: int, **_: int) -> Cost:
    return Cost(N * M * d_model, 2 * N * M * d_model)


def equation_34(d_scores: Array, q: Array) -> Array:
    """Also (14)."""
    return d_scores.T @ q


def cost_35_36(*, N: int, d_model: int, **_: int) -> Cost:
    return Cost(N * d_model * d_model, 2 * N * d_model * d_model)


def equation_35_36(dk: Heads, w_k: Heads) -> Array:
    """Also (17), which is (35), for all heads."""
    return sum(d @ w.T for d, w in zip(dk, w_k, strict=True))


def cost_37(*, N: int, d_model: int, **_: int) -> Cost:
    return Cost(d_model * N * d_model, 2 * d_model * N * d_model)


def equation_37(x_k: Array, dk: Heads) -> Heads:
    """Also (20)."""
    return [x_k.T @ d for d in dk]


def cost_merging(**_: int) -> Cost:
    """Marginal: adding the derivatives by X^Q, X^K and X^V where these are one matrix."""
    return Cost(0, 0)


def cost_mha_backward(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    return Cost(
        2 * M * d_model * d_model + 2 * N * d_model * d_model + 4 * M * N * d_model + M * N * M * h,
        4 * M * d_model * d_model + 4 * N * d_model * d_model + 8 * M * N * d_model + 2 * M * N * M * h + M * N * h,
    )


def cost_mha_update(*, M: int, N: int, d_model: int, **_: int) -> Cost:
    return Cost(
        2 * M * d_model * d_model + 2 * N * d_model * d_model,
        4 * M * d_model * d_model + 4 * N * d_model * d_model,
    )


def attention(
    x_q: Array, x_k: Array, x_v: Array, w_q: Heads, w_k: Heads, w_v: Heads, w_o: Array
) -> tuple[Array, Callable[[Array], dict[str, Array | Heads]]]:
    """The whole block: its output, and the function from dL/df to all gradients, equations (22) to (37) in order."""
    q, k, v = equation_2(x_q, x_k, x_v, w_q, w_k, w_v)
    heads = [equation_3(*parts) for parts in zip(q, k, v, strict=True)]

    def backward(df: Array) -> dict[str, Array | Heads]:
        d_heads = np.split(equation_22(df, w_o), len(heads), axis=1)
        s = [probabilities(*parts) for parts in zip(q, k, strict=True)]
        dv = [equation_24(*parts) for parts in zip(s, d_heads, strict=True)]
        jacobians = [equation_28(shares) for shares in s]
        d_scores = [equation_29(*parts) for parts in zip(d_heads, v, jacobians, strict=True)]
        dq = [equation_30(*parts) for parts in zip(d_scores, k, strict=True)]
        dk = [equation_34(*parts) for parts in zip(d_scores, q, strict=True)]
        return {
            "w_o": equation_23(heads, df),
            "x_v": equation_25_26(dv, w_v),
            "w_v": equation_27(x_v, dv),
            "x_q": equation_31_32(dq, w_q),
            "w_q": equation_33(x_q, dq),
            "x_k": equation_35_36(dk, w_k),
            "w_k": equation_37(x_k, dk),
        }

    return equation_4(heads, w_o), backward


# Section 5.4: feed-forward network


def cost_38(*, M: int, d_model: int, d_ff: int, **_: int) -> Cost:
    """Also the total of the forward pass."""
    return Cost(2 * M * d_model * d_ff, 4 * M * d_model * d_ff + 9 * M * d_ff + M * d_model)


GELU_SCALE = np.sqrt(2 / np.pi)


def gelu(u: Array) -> Array:
    """The form with tanh, whose 8 operations the paper assumes."""
    return 0.5 * u * (1 + np.tanh(GELU_SCALE * (u + 0.044715 * u**3)))


def gelu_derivative(u: Array) -> Array:
    t = np.tanh(GELU_SCALE * (u + 0.044715 * u**3))
    return 0.5 * (1 + t) + 0.5 * u * (1 - t**2) * GELU_SCALE * (1 + 3 * 0.044715 * u**2)


def equation_38(x: Array, w_1: Array, b_1: Array, w_2: Array, b_2: Array) -> Array:
    return gelu(x @ w_1 + b_1) @ w_2 + b_2


def cost_38_backward(*, M: int, d_model: int, d_ff: int, **_: int) -> Cost:
    """Also the total of the backward pass."""
    return Cost(2 * M * d_ff * d_model, 4 * M * d_model * d_ff + 13 * M * d_ff)


def cost_38_update(*, M: int, d_model: int, d_ff: int, **_: int) -> Cost:
    """Also the total of the weight update."""
    return Cost(2 * M * d_ff * d_model, 4 * M * d_ff * d_model)


def equation_38_backward(x: Array, w_1: Array, b_1: Array, w_2: Array, dy: Array) -> dict[str, Array]:
    """The backward pass and the weight update, whose equations the paper does not print."""
    u = x @ w_1 + b_1
    du = dy @ w_2.T * gelu_derivative(u)
    return {"x": du @ w_1.T, "w_1": x.T @ du, "b_1": du.sum(axis=0), "w_2": gelu(u).T @ dy, "b_2": dy.sum(axis=0)}


# Section 5.5: add and norm


def cost_39_40(*, M: int, d_model: int, **_: int) -> Cost:
    """Also the total of the forward pass."""
    return Cost(0, 9 * M * d_model)


def deviation(x: Array, epsilon: float) -> tuple[Array, Array]:
    """x - mu and sigma, by row. The paper has no epsilon."""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred, np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)


def normalised(x: Array, epsilon: float) -> Array:
    centred, sigma = deviation(x, epsilon)
    return centred / sigma


def equation_39_40(x: Array, sublayer: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    return normalised(x + sublayer, epsilon) * gamma + beta


def cost_41(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model, 2 * M * d_model)


def equation_41(d_layernorm: Array, z: Array) -> Array:
    return (d_layernorm * z).sum(axis=0)


def cost_42(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(0, M * d_model)


def equation_42(d_layernorm: Array) -> Array:
    return d_layernorm.sum(axis=0)


def cost_43(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(0, M * d_model)


def equation_43(d_layernorm: Array, gamma: Array) -> Array:
    return d_layernorm * gamma


def cost_jacobian(*, M: int, d_model: int, **_: int) -> Cost:
    """The unnumbered Jacobian between (43) and (44)."""
    return Cost(0, 9 * M * d_model * d_model)


def normalisation_jacobian(x: Array, epsilon: float) -> Array:
    """One slice for each row of x: [M x d_model x d_model]."""
    d_model = x.shape[1]
    centred, sigma = deviation(x, epsilon)
    return np.stack(
        [
            (np.eye(d_model) - 1 / d_model - np.outer(row, row) / (d_model * deviation_of_row**2)) / deviation_of_row
            for row, (deviation_of_row,) in zip(centred, sigma, strict=True)
        ]
    )


def cost_44(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model * d_model, 2 * M * d_model * d_model)


def equation_44(dz: Array, jacobian: Array) -> Array:
    return slice_product(dz, jacobian)


def cost_skip(*, M: int, d_model: int, **_: int) -> Cost:
    """Printed as "MACCs = M d_model" beside "MACCs = 0"; the total counts it as FLOPs."""
    return Cost(0, M * d_model)


def skip(dx: Array, dx_of_norm: Array) -> Array:
    """The derivative of the branch around the sublayer, added to what comes back through the sublayer."""
    return dx + dx_of_norm


def cost_add_norm_backward(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model * d_model, 11 * M * d_model * d_model + 2 * M * d_model)


def cost_add_norm_update(*, M: int, d_model: int, **_: int) -> Cost:
    return Cost(M * d_model, 3 * M * d_model)


# Section 5.6: softmax layer


def cost_45(*, M: int, d_model: int, voc: int, **_: int) -> Cost:
    """Also the total of the forward pass."""
    return Cost(M * d_model * voc, 2 * M * d_model * voc + M * 5 * voc)


def equation_45(x: Array, w_s: Array) -> Array:
    return softmax(x @ w_s)


def cross_entropy(s: Array, target: Array) -> Array:
    return -(target * np.log(s)).sum()


def cost_output_error(**_: int) -> Cost:
    """The target is one-hot, so that the difference is taken to be free."""
    return Cost(0, 0)


def output_error(s: Array, target: Array) -> Array:
    """dL/dZ with the right sign; the paper prints target - s."""
    return s - target


def cost_46(*, M: int, d_model: int, voc: int, **_: int) -> Cost:
    """Also the total of the backward pass."""
    return Cost(M * voc * d_model, 2 * M * voc * d_model)


def equation_46(dz: Array, w_s: Array) -> Array:
    return dz @ w_s.T


def cost_47(*, M: int, d_model: int, voc: int, **_: int) -> Cost:
    """Also the total of the weight update."""
    return Cost(d_model * M * voc, 2 * d_model * M * voc)


def equation_47(x: Array, dz: Array) -> Array:
    return x.T @ dz


# Section 5.7: error projection


def cost_48(*, M: int, N: int, voc: int, **_: int) -> Cost:
    """PEPITA and MEMPEPITA with an encoder and a decoder; also the total."""
    return Cost(2 * N * M * voc, 4 * N * M * voc + 6 * N * M)


def equation_48(tokens_encoder: Array, error_decoder: Array) -> Array:
    """[N x voc] from [N x voc] and [M x voc]: one head, without weights."""
    return equation_3(tokens_encoder, error_decoder, error_decoder)
