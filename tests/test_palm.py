"""PaLM against its paper: parameters, FLOPs, and loss and gradients of its equations written for PyTorch."""

import numpy as np
import pytest

import learncost as lc
from learncost.engines.computed_inputs import computed_inputs
from learncost.ir.polynomial import size_of
from learncost.models.configuration import configure
from learncost.models.model import build

BATCH, LENGTH = 2, 5
TINY = {
    "model_type": "palm", "vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "head_dim": 4, "max_position_embeddings": 8,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), [("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.35)])
def test_the_parameters_of_table_1(name, billions):
    assert lc.cost(name).parameters / 1e9 == pytest.approx(billions, abs=0.0075)


def test_the_flops_of_appendix_b():
    """6 N + 12 L H Q T for each token, of N parameters in products: all but those of norms."""
    cost = lc.cost("palm-62b", price_book="matmul", batch_size=1)
    layers, heads, size, width = 64, 32, 256, 8192
    parameters = cost.parameters - (layers + 1) * width
    printed = 6 * parameters + 12 * layers * heads * size * 2048
    assert cost.total.flops / 2048 == pytest.approx(printed, rel=1e-3)


def test_loss_and_gradients_of_the_block_as_it_is_printed():
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)), SwiGLU, one head of keys and values, a shared embedding."""
    torch = pytest.importorskip("torch")
    model = build(configure(TINY))
    generator = np.random.default_rng(5)
    sizes = {**model.sizes, "M": LENGTH, "B": BATCH}
    shapes = {name: [int(size_of(axis, sizes)) for axis in model.table.axes[name]] for name in model.table.weights}
    weights = {name: generator.standard_normal(shape) / 3 for name, shape in shapes.items()}
    tokens = generator.integers(0, TINY["vocab_size"], (BATCH, LENGTH))
    targets, share = np.roll(tokens, -1, 1), np.full(tokens.shape, -1.0 / tokens.size)
    made = computed_inputs(model.configuration, {"M": LENGTH})
    given = {"tokens": tokens, "targets": targets, "share": share, "dloss": np.array(1.0), **made}
    result = lc.run(model.table, {**given, **weights})

    w = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    cosine, sine = (torch.tensor(np.asarray(made[name])) for name in ("cosine", "sine"))

    def normed(x, gain):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, None, 1e-5)

    def rotated(x):
        half = x.shape[-1] // 2
        other = torch.cat((x[..., half:], x[..., :half]), -1)  # the sine has the sign
        return x * cosine[:, None] + other * sine[:, None]

    x = w["wte"][torch.tensor(tokens)]
    hidden = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    for layer in range(TINY["num_hidden_layers"]):
        at = {name.partition(".")[2]: w[name][layer] for name in w if name.startswith(("attn.", "mlp."))}
        h = normed(x, w["ln_1"][layer])
        q = rotated((h @ at["WQ"].reshape(h.shape[-1], -1)).reshape(BATCH, LENGTH, -1, TINY["head_dim"]))
        k = rotated((h @ at["WK"].reshape(h.shape[-1], -1)).reshape(BATCH, LENGTH, 1, -1))
        v = (h @ at["WV"].reshape(h.shape[-1], -1)).reshape(BATCH, LENGTH, 1, -1)
        scores = torch.einsum("bmhk,bnok->bhmn", q, k) * TINY["head_dim"] ** -0.5
        shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        a = torch.einsum("bhmn,bnok->bmhk", shares, v).reshape(BATCH, LENGTH, -1) @ at["WO"].reshape(-1, h.shape[-1])
        f = (torch.nn.functional.silu(h @ at["WG"]) * (h @ at["WU"])) @ at["WD"]
        x = x + f + a
    scores = normed(x, w["ln_f"]) @ w["wte"].T
    loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), torch.tensor(targets).reshape(-1))
    loss.backward()
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=1e-12)
    for name, array in w.items():
        np.testing.assert_allclose(result[f"d{name}"], array.grad.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)
