"""The layers of examples/layers, written from docs/notation.md alone, against PyTorch's modules and its autograd."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import learncost as lc
from kernels_in_c import needs_compiler
from learncost.engines.in_place import InPlace
from learncost.passes.lower import lower
from learncost.verification.sample import random_arrays, small_sizes
from programs import execute, worst
from sampling import sampled

LAYERS = Path(__file__).parents[1] / "examples" / "layers"
einsum = torch.einsum


def linear_attention(X, WQ, WK, WV):
    q, k = (functional.elu(einsum("bmd,dhk->bhmk", X, w)) + 1 for w in (WQ, WK))
    weights = q @ k.transpose(-1, -2)
    return (weights / weights.sum(-1, keepdim=True) @ einsum("bmd,dhv->bhmv", X, WV)).transpose(1, 2)


def with_weights(module, weights):
    """A module of PyTorch's, computed with tensors that autograd follows."""
    return lambda *given: torch.func.functional_call(module.double(), weights, given)


def lstm(X, H, C, W, U, b, c):
    weights = {"weight_ih_l0": W.flatten(0, 1), "weight_hh_l0": U.flatten(0, 1)}
    weights |= {"bias_ih_l0": b.flatten(), "bias_hh_l0": c.flatten()}
    Y, (H, C) = with_weights(nn.LSTM(X.shape[2], H.shape[1]), weights)(X, (H[None], C[None]))
    return Y, H[0], C[0]


def gru(X, H, W, U, b, c):
    weights = {"weight_ih_l0": W.flatten(0, 1), "weight_hh_l0": U.flatten(0, 1)}
    weights |= {"bias_ih_l0": b.flatten(), "bias_hh_l0": c.flatten()}
    Y, H = with_weights(nn.GRU(X.shape[2], H.shape[1]), weights)(X, H[None])
    return Y, H[0]


def bidirectional(X, H, G, W, U, b, V, R, c):
    both = ((W, U, b, ""), (V, R, c, "_reverse"))
    weights = {
        f"weight_{kind}_l0{direction}": of_direction[place]
        for *of_direction, direction in both
        for place, kind in enumerate(("ih", "hh"))
    }
    weights |= {f"bias_ih_l0{direction}": bias for _, _, bias, direction in both}
    weights |= {f"bias_hh_l0{direction}": torch.zeros_like(bias) for _, _, bias, direction in both}
    module = nn.RNN(X.shape[2], H.shape[1], bidirectional=True)
    Y, _ = with_weights(module, weights)(X, torch.stack((H, G)))
    return (Y,)


def rwkv(X, a, b, p, mr, mk, mv, WR, WK, WV, WO, w, u):
    """The sums of equation (16) as they stand, the state before them as one more term of each."""
    before = functional.pad(X, (0, 0, 0, 0, 1, 0))[:-1]
    r, k, v = ((m * X + (1 - m) * before) @ W for m, W in ((mr, WR), (mk, WK), (mv, WV)))
    T, rows = len(X), []
    above, below = a * p.exp(), b * p.exp()
    for t in range(T):
        earlier = [torch.exp(-(t - 1 - i) * w + k[i]) for i in range(t)]
        now = torch.exp(u + k[t])
        top = now * v[t] + above * torch.exp(-t * w) + sum(e * v[i] for i, e in enumerate(earlier))
        rows.append(top / (now + below * torch.exp(-t * w) + sum(earlier)))
        p = torch.maximum(p - w, k[t])
    last = [torch.exp(-(T - 1 - i) * w + k[i] - p) for i in range(T)]
    above = above * torch.exp(-T * w - p) + sum(e * v[i] for i, e in enumerate(last))
    below = below * torch.exp(-T * w - p) + sum(last)
    return (torch.sigmoid(r) * torch.stack(rows)) @ WO, above, below, p


def selective_scan(X, h, A, WB, WC, WD, WU, b, D):
    delta, rows = functional.softplus(X @ WD @ WU + b), []
    for x, d, k, c in zip(X, delta, X @ WB, X @ WC, strict=True):
        h = torch.exp(d[..., None] * A) * h + d[..., None] * k[:, None] * x[..., None]
        rows.append((h * c[:, None]).sum(-1))
    return torch.stack(rows) + D * X, h


def batch_norm(X, g, b):
    return functional.batch_norm(X, None, None, g, b, training=True)


def group_norm(X, w, b):
    return functional.group_norm(X, SIZES["group_norm"]["g"], w, b)


def sparsemax(X):
    """Algorithm 1, with its sort."""
    z = X.sort(-1, descending=True).values
    k = torch.arange(1, X.shape[-1] + 1)
    size = (1 + k * z > z.cumsum(-1)).sum(-1, keepdim=True)
    return (X - (z.cumsum(-1).gather(-1, size - 1) - 1) / size).clamp(min=0)


def performer(X, F, WQ, WK, WV):
    q, k = (einsum("bmd,dhk->bhmk", X, w) / w.shape[-1] ** 0.25 for w in (WQ, WK))
    q, k = (torch.exp(x @ F.T - x.square().sum(-1, keepdim=True) / 2) for x in (q, k))
    weights = q @ k.transpose(-1, -2)
    return (weights / weights.sum(-1, keepdim=True) @ einsum("bmd,dhv->bhmv", X, WV)).transpose(1, 2)


def grouped_convolution(X, W, b):
    return functional.conv2d(X, W.flatten(0, 1), b.flatten(), stride=2, padding=1, groups=len(W))


def mixer(X, W1, b1, W2, b2, ln_1_g, ln_1_b, ln_2_g, ln_2_b, **mlp):
    mix = functional.layer_norm(X, X.shape[-1:], ln_1_g, ln_1_b, EPSILON).transpose(1, 2)
    X = X + (functional.gelu(mix @ W1 + b1) @ W2 + b2).transpose(1, 2)
    mix = functional.layer_norm(X, X.shape[-1:], ln_2_g, ln_2_b, EPSILON)
    return X + feed_forward(mix, *(mlp[f"mlp_{name}"] for name in ("W1", "b1", "W2", "b2")))


def feed_forward(X, W1, b1, W2, b2):
    return functional.gelu(X @ W1 + b1, approximate="tanh") @ W2 + b2


def hyper_connections(H, Am, Ar, Bs, Wm, Wr, Wb, sa, sb, W1, b1, W2, b2):
    """As the matrices of section 3.2: the streams' rows are mixed, the layer's output is spread over them."""
    mixed = functional.layer_norm(H, H.shape[-1:])
    B, A_m, A_r = sb * torch.tanh(mixed @ Wb) + Bs, sa * torch.tanh(mixed @ Wm) + Am, sa * torch.tanh(mixed @ Wr) + Ar
    out = feed_forward((A_m[..., None, :] @ H)[..., 0, :], W1, b1, W2, b2)
    return B[..., None] * out[..., None, :] + A_r.transpose(-1, -2) @ H


def retention(X, g, WQ, WK, WV, WG, WO):
    """In the recurrent form, equation (6)."""
    q, k, v = (einsum("bmd,dhk->mbhk", X, w) for w in (WQ, WK / WK.shape[-1] ** 0.5, WV))
    state, rows = 0, []
    for t in range(len(q)):
        state = g[:, None, None] * state + k[t, ..., None] * v[t, ..., None, :]
        rows.append((q[t, ..., None, :] @ state)[..., 0, :])
    heads = torch.stack(rows, 1)
    heads = functional.layer_norm(heads, heads.shape[-1:])
    return einsum("bmhv,hvd->bmd", functional.silu(einsum("bmd,dhv->bmhv", X, WG)) * heads, WO)


def differential_attention(X, WQ, WK, WV, WO, q1, k1, q2, k2, g):
    v = einsum("bmd,dhv->bhmv", X, WV)
    first, second = (
        functional.scaled_dot_product_attention(
            einsum("bmd,dhk->bhmk", X, WQ[:, s]), einsum("bmd,dhk->bhmk", X, WK[:, s]), v, is_causal=True
        )
        for s in (0, 1)
    )
    share = torch.exp((q1 * k1).sum(-1)) - torch.exp((q2 * k2).sum(-1)) + 0.8
    heads = functional.rms_norm(first - share[:, None, None] * second, g.shape, g, 1e-5) * (1 - 0.8)
    return einsum("bhmv,hvd->bmd", heads, WO)


def several_tokens(Z, tokens, share, W, U):
    losses = 0
    for head in range(len(W)):
        logits = (Z + Z @ W[head]) @ U.T
        targets = tokens[:, head + 1 : head + 1 + Z.shape[1]]
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses + (each.view(share.shape) * share).sum()
    return losses


def clip(F, G, WI, WT, t):
    images, texts = functional.normalize(F @ WI, dim=-1), functional.normalize(G @ WT, dim=-1)
    logits = images @ texts.T * t.exp()
    labels = torch.arange(len(F))
    return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


def dpo(LW, LL, w, l, RW, RL, uw, ul):  # noqa: E741 - the loser's letter in the paper
    def ratio(logits, tokens, reference, mask):
        logarithms = torch.distributions.Categorical(logits=logits).log_prob(tokens)
        return ((logarithms - reference) * mask).sum(-1)

    return -functional.logsigmoid(0.1 * (ratio(LW, w, RW, uw) - ratio(LL, l, RL, ul))).mean()


def ppo(L, actions, R, A):
    ratio = torch.exp(torch.distributions.Categorical(logits=L).log_prob(actions) - R)
    return -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A).mean()


def graph_attention(X, edge, W, s, r):
    """Head by head, with the one vector a over both nodes' features side by side."""
    heads = []
    for head in range(W.shape[1]):
        H = X @ W[:, head]
        n = len(H)
        pairs = torch.cat((H[:, None].expand(n, n, -1), H[None].expand(n, n, -1)), -1)
        logits = functional.leaky_relu(pairs @ torch.cat((s[head], r[head])), 0.2)
        heads.append(functional.elu(torch.softmax(logits.masked_fill(~edge, -math.inf), -1) @ H))
    return torch.stack(heads, 1)


def quantizer(X, E):
    near = torch.cdist(X, E).argmin(-1)
    Q = E[near]
    loss = functional.mse_loss(Q, X.detach(), reduction="sum") + 0.25 * functional.mse_loss(
        X, Q.detach(), reduction="sum"
    )
    return X + (Q - X).detach(), loss / len(X)


def forward_forward(X, y, W1, b1, W2, b2):
    H1 = functional.relu(X @ W1 + b1)
    H2 = functional.relu(functional.rms_norm(H1.detach(), H1.shape[1:], eps=1e-6) @ W2 + b2)
    return -sum(functional.logsigmoid((h.square().mean(1) - 2) * y).mean() for h in (H1, H2))


def rotary_attention(X, WQ, WK, WV):
    """As complex numbers, one for each pair of channels."""
    half, length = WQ.shape[-1], X.shape[1]
    angles = torch.arange(length)[:, None] * 10000 ** -(torch.arange(half, dtype=torch.float64) / half)
    iterations = torch.polar(torch.ones_like(angles), angles)[:, None]
    q, k = (einsum("bmd,dhsk->bmhsk", X, w) for w in (WQ, WK))
    q, k = (torch.complex(x[..., 0, :], x[..., 1, :]) * iterations for x in (q, k))
    q, k = (torch.cat((x.real, x.imag), -1).transpose(1, 2) for x in (q, k))
    v = einsum("bmd,dhv->bhmv", X, WV)
    scale = half**-0.5
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def squeeze_excitation(X, W1, b1, W2, b2):
    squeezed = functional.adaptive_avg_pool2d(X, 1).flatten(1)
    return torch.sigmoid(functional.relu(squeezed @ W1 + b1) @ W2 + b2)[..., None, None] * X


def talking_heads(X, WQ, WK, WV, WL, WW, WO):
    q, k, v = (einsum("bmd,dhk->bhmk", X, w) for w in (WQ, WK, WV))
    logits = (q @ k.transpose(-1, -2)).movedim(1, -1) / WQ.shape[-1] ** 0.5
    weights = (torch.softmax(logits @ WL, 2) @ WW).movedim(-1, 1)
    return einsum("bhmv,hvd->bmd", weights @ v, WO)


def cosine_attention(X, WQ, WK, WV, WO, t, b):
    q, k = (functional.normalize(einsum("bmd,dhk->bhmk", X, w), dim=-1) for w in (WQ, WK))
    logits = q @ k.transpose(-1, -2) * t.clamp(max=math.log(100)).exp()[:, None, None] + b
    return einsum("bhmv,hvd->bmd", torch.softmax(logits, -1) @ einsum("bmd,dhv->bhmv", X, WV), WO)


EPSILON = 1e-5
PEERS = {name: value for name, value in globals().items() if (LAYERS / f"{name}.table").exists()}
SIZES = {  # where the small sizes that `check_layer` takes are none of the layer's
    "lstm": {"g": 4},
    "gru": {"g": 3},
    "bidirectional": {"k": 3, "e": 6},
    "group_norm": {"g": 2, "k": 3, "c": 6},
    "grouped_convolution": {"g": 2, "k": 3, "c": 6, "o": 4, "e": 8, "y": 7, "x": 5, "u": 3, "v": 3, "i": 4, "j": 3},
    "several_tokens": {"M": 3, "i": 4, "t": 7},
    "differential_attention": {"s": 2},
    "rotary_attention": {"s": 2},
}


NAMES = sorted(path.stem for path in LAYERS.glob("*.table"))


@cache
def case(name):
    """A layer's step, arrays for it, its sizes and what the interpreter makes of it."""
    layer = lc.layer((LAYERS / f"{name}.table").read_text())
    derived = lc.derive(layer)
    step = derived.step
    sizes = {**small_sizes(step), **SIZES.get(name, {})}
    arrays = random_arrays(step, sizes)
    if name == "retention":
        arrays["g"] = 1 / (1 + np.exp(-arrays["g"]))  # a decay
    values = lc.run(lower(step), {**arrays, **sizes})
    return layer, derived, arrays, sizes, {**arrays, **values}


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_autograd(name):
    layer, derived, arrays, _, values = case(name)
    table = layer.table
    tensors = {n: torch.tensor(arrays[n]) for n in (*table.inputs, *table.weights)}
    for gradient_of in derived.gradients:
        tensors[gradient_of].requires_grad_()
    results = PEERS[name](**{n.replace(".", "_"): tensor for n, tensor in tensors.items()})
    results = results if isinstance(results, tuple) else (results,)
    total = 0
    for output, result in zip(table.outputs, results, strict=True):
        np.testing.assert_allclose(values[output], result.detach().numpy(), rtol=1e-10, atol=1e-10)
        total = total + (result * torch.tensor(arrays.get(f"d{output}", 1.0))).sum()
    total.backward()
    for gradient_of, gradient in derived.gradients.items():
        want = tensors[gradient_of].grad
        np.testing.assert_allclose(values[gradient], want.numpy(), rtol=1e-10, atol=1e-10, err_msg=gradient_of)


IN_C = ("graph_attention", "grouped_convolution")  # what C lays out otherwise: no neighbours, windows written to
EMITTED = [("numpy", name) for name in NAMES]
EMITTED += sampled([("torch", name) for name in NAMES], every=6, start=1)
EMITTED += sampled([("jax", name) for name in NAMES], every=12, start=2)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("backend", "name"), EMITTED)
def test_an_emitted_step_means_it(backend, name):
    _, derived, arrays, sizes, values = case(name)
    assert worst(execute(derived.step, backend, arrays, sizes), values)[1] < 1e-12


@needs_compiler
@pytest.mark.parametrize("name", [*IN_C, *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in IN_C)])
def test_a_step_in_place_means_it(name):
    """Kernels in C and PyTorch's products on one arena."""
    _, derived, arrays, sizes, values = case(name)
    results = InPlace(derived.step, sizes, "fp64", {})(arrays)
    assert set(results) == set(derived.step.outputs)
    assert worst({n: result.numpy() for n, result in results.items()}, values)[1] < 1e-12


@pytest.mark.parametrize("name", sampled(NAMES, every=8, start=2))
def test_it_is_proved_and_explained(name):
    layer, *_ = case(name)
    report = lc.check_layer(layer)
    assert report.passed, str(report)
    source = layer.source.partition(":")[0]
    assert source
    assert source in str(lc.explain(layer)).replace("\n", " ")
    assert lc.formulas(layer)


def test_every_example_has_its_peer_and_its_sentence():
    assert PEERS.keys() == set(NAMES)
    assert len(NAMES) >= 25
    page = (LAYERS.parents[1] / "docs" / "examples.md").read_text()
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
