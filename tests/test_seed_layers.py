"""The published layers beside the paper's own: values, gradients and counts, held to torch and to complex steps."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from counting import counting, tally_of
from learncost.interpreter import execute, infer_sizes
from learncost.layers.layer import shipped_layer

B, M, D, H, K, FF = 2, 8, 6, 3, 4, 7
generator = np.random.default_rng(20240614)


def draw(*shape):
    return generator.standard_normal(shape)


def seeds_of(layer, values):
    return {f"d{name.partition('.')[0]}": draw(*np.shape(values[name])) for name in layer.table.outputs}


def differentiable(layer):
    table = layer.table
    return [n for n in (*table.inputs, *table.weights) if n not in table.indices | table.constants]


def check(layer, arrays, foreign):
    """Values and gradients against torch in float64, gradients against complex steps, the price against a count."""
    names = differentiable(layer)
    seeds = seeds_of(layer, lc.run(layer, arrays))
    values = lc.run(layer, {**arrays, **seeds})

    tensors = {n: torch.tensor(a, requires_grad=n in names) for n, a in arrays.items()}
    results = foreign(**tensors)
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(layer.table.outputs, results, strict=True):
        np.testing.assert_allclose(values[name], result.detach().numpy(), 1e-11, 1e-12, err_msg=name)
    total = sum((r * torch.tensor(s)).sum() for r, s in zip(results, seeds.values(), strict=True))
    gradients = torch.autograd.grad(total, [tensors[n] for n in names])
    for name, gradient in zip(names, gradients, strict=True):
        np.testing.assert_allclose(values[f"d{name}"], gradient.numpy(), 1e-10, 1e-11, err_msg=f"d{name}")

    for name in names:
        expected = complex_step(layer, arrays, seeds, name)
        np.testing.assert_allclose(values[f"d{name}"], expected, 1e-10, 1e-11, err_msg=f"complex step, d{name}")

    check_count(layer, arrays, seeds)
    return values


def complex_step(layer, arrays, seeds, name):
    """The derivative of the weighted outputs by every element of one array."""
    table, sizes = lc.lower(layer.table), infer_sizes(layer.table, arrays)
    gradient = np.empty(arrays[name].shape)
    for at in np.ndindex(gradient.shape):
        values = dict(arrays)
        values[name] = arrays[name].astype(complex)
        values[name][at] += 1e-30j
        execute(table, values, sizes)
        gradient[at] = sum(
            (np.imag(values[output]) * seed).sum()
            for output, seed in zip(layer.table.outputs, seeds.values(), strict=True)
        )
    return gradient / 1e-30


def check_count(layer, arrays, seeds):
    """One step executes what the price book `run` says, to the unit; so does every other choice of sizes."""
    derived = lc.derive(layer)
    sizes = infer_sizes(layer.table, arrays)
    values = {n: counting(a) for n, a in arrays.items()}
    for output, seed in zip(layer.table.outputs, seeds.values(), strict=True):
        values[f"d{output}"] = counting(seed)
    _, units = tally_of(execute, lc.lower(derived.step), values, sizes)
    assert units == lc.price(derived.step, sizes, "run").flops


def maccs(layer, book="run"):
    return str(lc.price(layer, {"B": 1}, book).maccs)


# What BERT has besides.


def test_pooler():
    arrays = {"X": draw(B, M, D), "W": draw(D, D), "b": draw(D)}
    layer = shipped_layer("pooler")
    values_checked = check(layer, arrays, lambda X, W, b: torch.tanh(functional.linear(X[:, 0], W.T, b)))
    assert not values_checked["dX"][:, 1:].any()
    assert maccs(layer) == maccs(layer, "matmul") == "d^2"


def test_token_types():
    arrays = {"E": draw(B, M, D), "types": generator.integers(0, 2, (B, M)), "W": draw(2, D)}
    check(shipped_layer("token_types"), arrays, lambda E, types, W: E + functional.embedding(types, W))


def test_masked_lm_transform():
    arrays = {"X": draw(B, M, D), "W": draw(D, D), "b": draw(D), "g": draw(D), "beta": draw(D)}

    def foreign(X, W, b, g, beta):
        return functional.layer_norm(functional.gelu(functional.linear(X, W.T, b)), (X.shape[-1],), g, beta, 1e-5)

    check(shipped_layer("masked_lm_transform"), arrays, foreign)


# Jiang's blog: tokens are columns.


def jiang_arrays():
    return {"X": draw(D, M), "A": draw(H, K, D), "B": draw(H, K, D), "C": draw(H, K, D), "WO": draw(D, H, K)}


def jiang_z(X, A, B, C, WO, causal=False):
    """The blog's forward formulas, head by head, in torch."""
    heads = []
    for a, b, c in zip(A, B, C, strict=True):
        scores = (a @ X).T @ (b @ X) / math.sqrt(a.shape[0])
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).triu(), -torch.inf)
        heads.append(c @ X @ torch.softmax(scores, 0))
    return WO.reshape(WO.shape[0], -1) @ torch.cat(heads)


CAUSAL = """causal(X; A B C WO) -> Z
  Z[d T] = jiang_attention(X; A B C WO) where T' <= T"""

CAUSAL_BLOCK = """causal_block(X; A B C WO g b W1 W2) -> Y
  Y[d T] = jiang_block(X; A B C WO g b W1 W2) where T' <= T"""


def jiang(name, causal=False):
    return lc.layer({"attention": CAUSAL, "block": CAUSAL_BLOCK}[name]) if causal else shipped_layer(f"jiang_{name}")


@pytest.mark.parametrize("causal", [False, True])
def test_jiang_attention(causal):
    check(jiang("attention", causal), jiang_arrays(), lambda **a: jiang_z(**a, causal=causal))


def test_in_jiang_attention_a_plays_the_keys_and_b_the_queries():
    # In rows, W_Q = B^T and W_K = A^T: the table of Pau & Aymone gives the same numbers.
    arrays = jiang_arrays()
    rows = {f"X{name}": arrays["X"].T[None] for name in "QKV"}
    weights = {new: arrays[old].transpose(2, 0, 1) for new, old in zip(("WQ", "WK", "WV"), "BAC", strict=True)}
    weights["WO"] = arrays["WO"].transpose(1, 2, 0)
    values = lc.run(shipped_layer("attention"), {**rows, **weights})
    np.testing.assert_allclose(values["Y"][0].T, lc.run(shipped_layer("jiang_attention"), arrays)["Z"], 1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_jiang_block(causal):
    arrays = {**jiang_arrays(), "g": draw(D), "b": draw(D), "W1": draw(FF, D), "W2": draw(D, FF)}

    def foreign(X, A, B, C, WO, g, b, W1, W2):
        U = X + functional.layer_norm(jiang_z(X, A, B, C, WO, causal).T, (D,), g, b, 1e-5).T
        return U + W2 @ torch.relu(W1 @ U)

    check(jiang("block", causal), arrays, foreign)


def printed_p_form(X, A, B, C, E, causal):
    """The blog's backward as it prints it, for one head: E is dF/dZ before W^o."""
    Q, K_, V = A @ X, B @ X, C @ X
    h = Q.shape[0]
    scores = Q.T @ K_ / np.sqrt(h)
    if causal:
        scores = np.where(np.triu(np.ones_like(scores, dtype=bool)), scores, -np.inf)
    attention = np.exp(scores - scores.max(0))
    attention /= attention.sum(0)

    def times(a, g):  # the blog's circled product, column by column: J_sm(t) dF/da_t
        return a * g - (a * g).sum(0) * a

    inner = times(attention, V.T @ E)
    P = np.vstack([K_ @ inner.T / np.sqrt(h), Q @ inner / np.sqrt(h), E @ attention.T])
    return P, P @ X.T, np.vstack([A, B, C]).T @ P


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_derived_backward_equals_the_printed_p_matrix_form(causal, packed):
    arrays = jiang_arrays()
    dZ = draw(D, M)
    if packed:
        text = str(shipped_layer("jiang_packed_attention"))
        layer = lc.layer("\n".join(f"{line} where T' <= T" if causal and "T' T" in line else line for line in
                                   text.splitlines()))  # fmt: skip
        arrays_packed = {"X": arrays["X"], "W": np.stack([arrays[n] for n in "ABC"]), "WO": arrays["WO"]}
        values = lc.run(layer, {**arrays_packed, "dZ": dZ})
        gradients = {name: values["dW"][i] for i, name in enumerate("ABC")}
    else:
        values = lc.run(jiang("attention", causal), {**arrays, "dZ": dZ})
        gradients = {name: values[f"d{name}"] for name in "ABC"}
    dX = np.zeros((D, M))
    for head in range(H):
        A, B_, C = (arrays[name][head] for name in "ABC")
        E = arrays["WO"][:, head].T @ dZ
        P, dABC, dX_head = printed_p_form(arrays["X"], A, B_, C, E, causal)
        dX += dX_head
        for i, name in enumerate("ABC"):
            np.testing.assert_allclose(gradients[name][head], dABC[i * K : (i + 1) * K], 1e-11, 1e-12)
            if packed:
                np.testing.assert_allclose(values["dG"][i, head], P[i * K : (i + 1) * K], 1e-11, 1e-12)
    np.testing.assert_allclose(values["dX"], dX, 1e-11, 1e-12)


def test_the_packed_form_has_the_p_matrix_in_its_lines():
    derived = lc.derive(shipped_layer("jiang_packed_attention"))
    assert "dW[c h k d] = dG[c h k T] X[d T]" in str(derived.update)
    assert "dX[d T] = dG[c h k T] W[c h k d]" in str(derived.backward)
    arrays = jiang_arrays()
    packed = {"X": arrays["X"], "W": np.stack([arrays[n] for n in "ABC"]), "WO": arrays["WO"]}
    check(shipped_layer("jiang_packed_attention"), packed, lambda X, W, WO: jiang_z(X, *W, WO))


def test_a_mask_after_the_softmax_is_not_causal_attention():
    # The blog's text reads as if the full softmax were masked; its formulas hold for the renormalised one.
    arrays = {**jiang_arrays(), "mask": np.triu(np.ones((M, M)))}
    text = str(shipped_layer("jiang_attention")).replace("(X;", "(X mask;").replace(
        "  O[h k T] = V[h k T'] P[h T' T]", "  L[h T' T] = P[h T' T] mask[T' T]\n  O[h k T] = V[h k T'] L[h T' T]"
    )  # fmt: skip
    literal = lc.run(lc.layer(text + "\nconstants: mask"), {**arrays, "dZ": np.ones((D, M))})
    del arrays["mask"]
    renormalised = lc.run(jiang("attention", True), {**arrays, "dZ": np.ones((D, M))})
    assert abs(literal["Z"] - renormalised["Z"]).max() > 0.01
    assert abs(literal["dA"] - renormalised["dA"]).max() > 0.01


# Disentangled attention.


def deberta_delta(length, k):
    """delta(i, j) of He et al. 2021, equation (3)."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return np.clip(distance + k, 0, 2 * k - 1)


def disentangled(H, P, delta, WQc, WKc, WVc, WQr, WKr):
    """The three-term score of He et al. 2021, equation (2), pair by pair."""
    outputs = []
    for b in range(H.shape[0]):
        heads = []
        for head in range(WQc.shape[1]):
            Qc, Kc, Vc = (H[b] @ W[:, head] for W in (WQc, WKc, WVc))
            Qr, Kr = P @ WQr[:, head], P @ WKr[:, head]
            rows = [
                torch.stack([
                    Qc[i] @ Kc[j] + Qc[i] @ Kr[delta[i, j]] + Kc[j] @ Qr[delta[j, i]] for j in range(len(Qc))
                ]) for i in range(len(Qc))
            ]  # fmt: skip
            heads.append(torch.softmax(torch.stack(rows) / math.sqrt(3 * Qc.shape[1]), 1) @ Vc)
        outputs.append(torch.stack(heads, 1))
    return torch.stack(outputs)


@pytest.mark.parametrize("heads", [1, 3])
def test_disentangled_attention(heads):
    half = 5  # so that distances of 5 and more share a row: the gathers' gradients truly add up
    arrays = {"H": draw(B, M, D), "P": draw(2 * half, D), "delta": deberta_delta(M, half)}
    arrays |= {name: draw(D, heads, K) for name in ("WQc", "WKc", "WVc", "WQr", "WKr")}
    check(shipped_layer("disentangled_attention"), arrays, disentangled)


def test_disentangled_attention_costs_what_its_steps_cost():
    prices = lc.price(shipped_layer("disentangled_attention"), {"B": 1, "h": 1}, "matmul")
    assert str(prices.maccs) == "2 M^2 k + 3 M d k + 2 M k p + 2 d k p"


# The layers that attention is compared with.


def convolution_places(kernel):
    at = np.arange(M)[:, None] + np.arange(kernel)[None] - kernel // 2
    return np.clip(at, 0, M - 1), ((at >= 0) & (at < M))


def flops_of(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution(kernel):
    arrays = {"X": draw(B, M, D)}
    arrays |= {"W": draw(kernel, D, FF), "b": draw(FF)}

    def foreign(X, W, b, **_):
        return functional.conv1d(X.mT, W.permute(2, 1, 0), b, padding=kernel // 2).mT

    layer = shipped_layer("convolution")
    check(layer, arrays, foreign)
    assert maccs(layer) == maccs(layer, "matmul") == "M c d e"
    tensors = {n: torch.tensor(a) for n, a in arrays.items()}
    priced = lc.price(layer, infer_sizes(layer.table, arrays), "matmul")
    assert flops_of(lambda: foreign(**tensors)) == priced.flops


@pytest.mark.parametrize("kernel", [3, 5])
def test_separable_convolution(kernel):
    arrays = {"X": draw(B, M, D)}
    arrays |= {"D": draw(kernel, D), "W": draw(D, FF), "b": draw(FF)}

    def foreign(X, W, b, **named_d):
        kernels = named_d["D"].T[:, None]
        each = functional.conv1d(X.mT, kernels, padding=kernel // 2, groups=kernels.shape[0])
        return functional.linear(each.mT, W.T, b)

    layer = shipped_layer("separable_convolution")
    check(layer, arrays, foreign)
    # Vaswani et al. 2017, section 4: k n d + n d^2. Torch's counter takes groups for a full convolution.
    assert maccs(layer) == "M c d + M d e"
    assert maccs(layer, "matmul") == "M d e"


def test_restricted_attention():
    window = 5
    places, inside = convolution_places(window)
    arrays = {"X": draw(B, M, D), "places": places, "keep": inside}
    arrays |= {"WQ": draw(D, H, K), "WK": draw(D, H, K), "WV": draw(D, H, K), "WO": draw(H, K, D)}
    distance = torch.arange(M)[:, None] - torch.arange(M)[None]

    def foreign(X, WQ, WK, WV, WO, **_):
        q, k, v = (torch.einsum("bmd,dhk->bhmk", X, W) for W in (WQ, WK, WV))
        heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=distance.abs() <= window // 2)
        return torch.einsum("bhmk,hkd->bmd", heads, WO)

    layer = shipped_layer("restricted_attention")
    check(layer, arrays, foreign)
    assert maccs(layer) == "4 M d h k + 2 M h k r"
    # A product of one query with its own keys has no rows of its own, so the book `matmul` does not see it.
    assert maccs(layer, "matmul") == "4 M d h k"
    # torch runs it as a product of single rows, and its counter counts that.
    q, k = torch.empty(B, H, M, 1, K), torch.empty(B, H, M, window, K)
    counted = 2 * flops_of(lambda: torch.matmul(q, k.mT))
    sizes = infer_sizes(layer.table, arrays)
    assert counted == lc.price(layer, sizes, "run").maccs * 2 - lc.price(layer, sizes, "matmul").flops


def test_a_window_as_wide_as_the_sequence_is_full_attention():
    places = np.broadcast_to(np.arange(M), (M, M)).copy()
    weights = {"WQ": draw(D, H, K), "WK": draw(D, H, K), "WV": draw(D, H, K), "WO": draw(H, K, D)}
    X, dY = draw(B, M, D), draw(B, M, D)
    window = {"X": X, "places": places, "keep": np.ones((M, M), bool)}
    restricted = lc.run(shipped_layer("restricted_attention"), {**window, **weights, "dY": dY})
    full = lc.run(shipped_layer("attention"), {"XQ": X, "XK": X, "XV": X, **weights, "dY": dY})
    np.testing.assert_allclose(restricted["Y"], full["Y"], 1e-11, 1e-12)
    np.testing.assert_allclose(restricted["dX"], full["dXQ"] + full["dXK"] + full["dXV"], 1e-10, 1e-11)


def recurrence(X, h, W, U, b):
    states = []
    for x in (X @ W + b).unbind(1):
        h = torch.tanh(h @ U + x)
        states.append(h)
    return torch.stack(states, 1), h


def test_recurrent():
    arrays = {"X": draw(B, M, D), "h": draw(B, FF), "W": draw(D, FF), "U": draw(FF, FF), "b": draw(FF)}

    def foreign(X, h, W, U, b):
        zero = torch.zeros_like(b)
        flat = [W.T, U.T, b, zero]
        states, last = torch.rnn_tanh(X, h[None], flat, True, 1, 0.0, False, False, True)
        return states, last[0]

    layer = shipped_layer("recurrent")
    values_checked = check(layer, arrays, foreign)
    np.testing.assert_array_equal(values_checked["Y"][:, -1], values_checked["h"])
    assert maccs(layer) == maccs(layer, "matmul") == "M d e + M e^2"
    tensors = {n: torch.tensor(a) for n, a in arrays.items()}
    assert flops_of(lambda: recurrence(**tensors)) == lc.price(layer, infer_sizes(layer.table, arrays), "matmul").flops
