"""The benchmark's peers compute what transformers' own models compute, and the floor counts the step's products."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from against_torch_and_jax.floor import products
from against_torch_and_jax.packing import packed, unpacked
from against_torch_and_jax.sides import PEERS, SIDES
from against_torch_and_jax.subject import Subject
from torch.nn import functional

from learncost.engines.hugging_face import from_checkpoint, to_checkpoint
from learncost.ir.errors import InputError
from learncost.timing.work import MatmulShape
from sampling import sampled

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 12,
    "n_head": 3,
    "n_inner": 20,
    "n_positions": 9,
    "vocab_size": 13,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,  # groups of two heads
    "head_dim": 4,  # not 12 / 6
    "intermediate_size": 20,
    "max_position_embeddings": 9,
    "vocab_size": 13,
    "tie_word_embeddings": False,
}
SUBJECTS = {"gpt2": Subject("gpt2", GPT2, 3, 7), "llama": Subject("llama", LLAMA, 3, 7)}


def theirs(subject: Subject, weights):
    """The loss and the gradients of transformers' model with our weights, the gradients by our names."""
    import transformers

    kind = {"gpt2": ("GPT2Config", "GPT2LMHeadModel"), "llama": ("LlamaConfig", "LlamaForCausalLM")}[subject.model]
    keys = {name: value for name, value in subject.config.items() if name != "model_type"}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if subject.model == "gpt2" else {}
    model = getattr(transformers, kind[1])(getattr(transformers, kind[0])(**keys, **off))
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in to_checkpoint(subject.built, weights).items()}
    left = model.load_state_dict(tensors, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= {"lm_head.weight"}
    tokens, targets = (torch.from_numpy(array) for array in subject.batch(0))
    loss = functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return loss.item(), from_checkpoint(subject.built, gradients, "transformers")


def large(subject: Subject, name: str):
    """Weights large enough that attention is not even, and no bias is 0."""
    generator = np.random.default_rng([len(name), len(subject.model)])
    weights = subject.weights()
    return {
        name: (array + 0.3 * generator.standard_normal(array.shape)).astype(np.float32)
        for name, array in weights.items()
    }


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("side", "name"), [*(("eager", name) for name in SUBJECTS), *sampled((("jax", name) for name in SUBJECTS), 2)]
)
def test_a_peer_is_the_model_of_transformers(side: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = SUBJECTS[name]
    weights = large(subject, name)
    monkeypatch.setattr(Subject, "weights", lambda self: weights)
    peer = PEERS[side].make()
    peer.begin(subject)
    (loss,) = peer.turn(1)["losses"]
    expected, gradients = theirs(subject, weights)
    assert loss == pytest.approx(expected, rel=1e-6)
    computed = peer.gradients()
    assert computed.keys() == gradients.keys() == set(subject.built.table.weights)
    for weight, gradient in gradients.items():
        np.testing.assert_allclose(computed[weight], gradient, rtol=1e-4, atol=1e-6, err_msg=weight)


def test_the_engine_and_the_peers_take_the_same_steps() -> None:
    sides = {side: SIDES[side].make() for side in ("eager", "jax", "engine")}
    losses = {}
    for side, side_process in sides.items():
        side_process.begin(SUBJECTS["gpt2"])
        losses[side] = side_process.turn(4)["losses"]
    assert losses["jax"] == pytest.approx(losses["eager"], rel=1e-6)
    assert losses["engine"] == pytest.approx(losses["eager"], rel=1e-6)
    assert len(set(losses["eager"])) == 4


@pytest.mark.parametrize("side", ["eager", pytest.param("jax", marks=pytest.mark.slow)])
def test_bf16_is_near_fp32_and_not_it(side: str) -> None:
    by_dtype = {}
    for dtype in ("fp32", "bf16"):
        own = PEERS[side].make()
        own.begin(Subject("gpt2", GPT2 | {"n_layer": 1}, 3, 7, dtype))
        own.turn(1)
        by_dtype[dtype] = own.gradients()["mlp.W1"]
    distance = np.linalg.norm(by_dtype["bf16"] - by_dtype["fp32"]) / np.linalg.norm(by_dtype["fp32"])
    # A number of bf16 has 8 bits: it is off by up to 2^-9, about 0.002.
    assert 1e-4 < distance < 3e-2


def test_adamw_written_out_is_that_of_torch() -> None:
    import jax.numpy as jnp
    from against_torch_and_jax.jax_models import adamw_step

    rates = (0.1, (0.8, 0.95), 1e-3, 0.3)  # large, so that every part matters
    start = np.array([1.0, -2.0, 0.5], np.float32)
    run = adamw_step(lambda p, tokens, targets: (p["w"] ** 2 * tokens).sum() + (p["w"] * targets).sum(), *rates)
    weight = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    state = ({"w": jnp.array(start)}, {"w": jnp.zeros(3)}, {"w": jnp.zeros(3)})
    for time in range(1, 6):
        factor, shift = np.float32(time), np.float32(1 - time)
        optimizer.zero_grad()
        ((weight**2 * factor).sum() + (weight * shift).sum()).backward()
        optimizer.step()
        *state, _ = run(*state, np.float32(time), factor, shift)
        np.testing.assert_allclose(state[0]["w"], weight.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_packing_there_and_back(name: str) -> None:
    weights = large(SUBJECTS[name], name)
    again = unpacked(SUBJECTS[name].built, packed(SUBJECTS[name].built, weights))
    assert again.keys() == weights.keys()
    for weight, array in weights.items():
        np.testing.assert_array_equal(again[weight], array)


# The floor.

B, M, D, H, F, V, L = 3, 7, 12, 3, 20, 13, 2  # those of GPT2 above; a head has D / H = 4


def test_the_products_of_a_step_by_hand() -> None:
    rows, head, both = B * M, D // H, B * H
    half = Fraction(1, 2)
    expected = {
        # Forward: Q, K, V and the output's; the feed-forward network's two; the head's, its matrix v x d is transposed.
        MatmulShape(1, rows, D, D, "NN"): 4 * L,
        MatmulShape(1, rows, F, D, "NN"): L,
        MatmulShape(1, rows, D, F, "NN"): L,
        MatmulShape(1, rows, V, D, "NT"): 1,
        # Backward to the inputs, by transposed weights, and to the weights, by transposed inputs.
        MatmulShape(1, rows, D, D, "NT"): 4 * L,
        MatmulShape(1, rows, D, F, "NT"): L,
        MatmulShape(1, rows, F, D, "NT"): L,
        MatmulShape(1, rows, D, V, "NN"): 1,
        MatmulShape(1, D, D, rows, "TN"): 4 * L,
        MatmulShape(1, D, F, rows, "TN"): L,
        MatmulShape(1, F, D, rows, "TN"): L,
        MatmulShape(1, V, D, rows, "TN"): 1,
        # Attention, in half: scores and dP = dA V^T; P V and dQ = dS K; dV = P^T dA and dK = dS^T Q, one of which the
        # table writes as its transpose.
        MatmulShape(both, M, M, head, "NT"): 2 * L * half,
        MatmulShape(both, M, head, M, "NN"): 2 * L * half,
    }
    counted = dict(products(SUBJECTS["gpt2"]))
    rest = {product: times for product, times in counted.items() if product not in expected}
    assert {product: times for product, times in counted.items() if product in expected} == expected
    assert sum(rest.values()) == 2 * L * half
    assert {product.flops for product in rest} == {2 * both * M * M * head}
    assert all((product.batch, product.transposed[0]) == (both, True) for product in rest)


def test_the_flops_of_a_step_by_hand() -> None:
    # 6 FLOPs a token and a weight of the products: 4 d^2 + 2 d f a block, v d of the head. Attention: 2 products
    # forward and 4 backward of 2 M^2 d each, in half.
    by_hand = 6 * B * M * (L * (4 * D * D + 2 * D * F) + V * D) + L * 6 * (2 * B * M * M * D) // 2
    assert sum(product.flops * times for product, times in products(SUBJECTS["gpt2"]).items()) == by_hand


def test_grouped_heads_are_rows_of_one_product() -> None:
    # Llama: 3 heads of keys, each for two of queries, so that a product has 2 x 7 rows.
    shapes = {(product.batch, product.m, product.n, product.k) for product in products(SUBJECTS["llama"])}
    assert (B * 3, 2 * M, M, 4) in shapes


def test_the_floor_does_the_products_that_it_counts() -> None:
    side = SIDES["floor"].make()
    facts = side.begin(SUBJECTS["gpt2"])
    assert facts["optimizer_bytes"] == 28 * SUBJECTS["gpt2"].parameters
    for product in side.products:
        first, second, place = side._factors(product)
        # Stored as a contiguous array, the other way round if `transposed` is true.
        assert (first.transpose(-1, -2) if product.transposed[0] else first).is_contiguous()
        assert (second.transpose(-1, -2) if product.transposed[1] else second).is_contiguous()
        assert tuple(place.shape[-2:]) == (product.m, product.n)
        assert first.shape[-1] == second.shape[-2] == product.k
        assert place.numel() * product.k * 2 == product.flops
        assert "highest" in side.routes[product]
    turn = side.turn(5)
    times = [product.flops / turn["rates"][str(product)] * float(times) for product, times in side.products.items()]
    assert turn["seconds"] == [pytest.approx(sum(times) + turn["optimizer"])]


def test_a_route_that_is_not_fp32_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from against_torch_and_jax import floor_side

    def multiply(route: str, first: torch.Tensor, second: torch.Tensor, place: torch.Tensor) -> None:
        if route == "medium":  # what it does on processors with AMX
            first, second = first.bfloat16().float(), second.bfloat16().float()
        torch.matmul(first, second, out=place)

    monkeypatch.setattr(floor_side, "_multiply", multiply)
    side = SIDES["floor"].make()
    side.begin(SUBJECTS["gpt2"])
    assert set(side.routes.values()) == {("highest",)}


@pytest.mark.parametrize("side", ["eager", "jax"])
@pytest.mark.parametrize(
    ("more", "says"),
    [({"attention_bias": True}, "no attention_bias = True"), ({"hidden_act": "tanh"}, "no activation 'tanh'")],
)
def test_what_a_peer_has_not_is_refused(more: dict[str, object], says: str, side: str) -> None:
    with pytest.raises(InputError, match=says):
        PEERS[side].make().begin(Subject("llama", LLAMA | more, 3, 7))
