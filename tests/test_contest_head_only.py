"""The control head-only, a procedure that is priced; PEPITA on a vision transformer, whose error goes to the pixels."""

import numpy as np
import pytest
import torch

import learncost as lc
from contests import problem, rows, setting
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.procedures.procedure import LEARNING, PROCEDURES
from learncost.procedures.step import step
from learncost.training.contest.entrant import Entrant, EntrantTraining

SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 50}
LLAMA = {"model_type": "llama", "intermediate_size": 24, "max_position_embeddings": 32, **SIZES}


@pytest.mark.parametrize("book", ["run", "matmul"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_it_costs_what_bp_costs_with_all_but_the_head_frozen(book, blocks):
    """FlopCounterMode says the same of `--train head`: tests/test_adaptation.py."""
    model_keys = {**LLAMA, "num_hidden_layers": blocks}
    alone = lc.cost(model_keys, "head-only", book, optimizer="adamw", seq_len=9, batch_size=2)
    frozen = lc.cost(model_keys, "bp", book, optimizer="adamw", seq_len=9, batch_size=2, train="head")
    assert alone.rows == frozen.rows
    assert alone.total == frozen.total
    assert (alone.trained_parameters, alone.trained) == (16 * 50, "head") == (frozen.trained_parameters, frozen.trained)
    assert "head-only" in str(alone)


def test_a_head_that_is_the_embedding_learns_in_both_places():
    assert "so both learn" in lc.cost("gpt2", "head-only").trained


def test_its_matrix_products_by_hand():
    """Forward, and one product for the head's update: nothing goes backward below the head."""
    forward = lc.cost(LLAMA, "bp", "matmul", seq_len=9).macro_operations["forward"][1].maccs
    assert lc.cost(LLAMA, "head-only", "matmul", seq_len=9).total.maccs == forward + 9 * 16 * 50


def test_it_is_a_control_and_no_procedure_that_is_compared_unasked():
    assert LEARNING["head-only"].part == "head"
    assert "head-only" not in PROCEDURES
    assert lc.compare("encoder", procedures="bp,head-only", seq_len=8, intermediate_size=8, **SIZES).procedures == (
        "bp",
        "head-only",
    )
    assert "head-only" not in lc.compare("encoder", seq_len=8, intermediate_size=8, **SIZES).procedures


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": "head"}, "fixes the trainable parameters"),
        ({"lora": "q_proj"}, "fixes the trainable parameters"),
        ({"price_book": "palm"}, "does not apply to head-only"),
    ],
)
def test_what_it_does_not_go_with(given, message):
    with pytest.raises(lc.InputError, match=message):
        lc.cost(LLAMA, procedure="head-only", seq_len=9, **given)


def test_without_a_head_there_is_nothing_to_learn():
    with pytest.raises(lc.InputError, match="head-only needs head weights to train"):
        step(
            build(configure("distilbert-base-uncased", {"architecture": "DistilBertModel", "num_hidden_layers": 1})),
            "head-only",
        )


def test_a_network_without_blocks_ends_with_its_last_product():
    """Its bias belongs to it; the layer before does not, nor that one's bias."""
    network = lc.layer("""network(X targets share; W1 b1 W2 b2) -> loss
  H[B f] = X[B d] W1[d f]
  U[B f] = H[B f] + b1[f]
  G[B f] = tanh(U[B f])
  L[B c] = G[B f] W2[f c]
  O[B c] = L[B c] + b2[c]
  P[B c] = log_softmax[c](O[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
constants: share""")
    generator = np.random.default_rng(0)
    shapes = {"W1": (4, 5), "b1": (5,), "W2": (5, 3), "b2": (3,)}
    weights = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    inputs = {"X": generator.standard_normal((6, 4)), "targets": generator.integers(0, 3, 6)}
    full, alone = (lc.LayerTraining(network, weights, name) for name in ("bp", "head-only"))
    updates, head_updates = full.updates(**inputs), alone.updates(**inputs)
    assert set(head_updates) == {"W2", "b2"}
    for name, update in head_updates.items():
        np.testing.assert_array_equal(update, updates[name])


# PEPITA on images.


def modulated(mode, scale=None):
    """A training of PEPITA on a few digits, and everything that its first step reads and makes."""
    training = EntrantTraining(setting("vit", "sgd", dtype="fp64"), Entrant("pepita", mode))
    inputs = {**problem("vit").training.rows(rows(3)), **problem("vit").fixed}
    values = dict(training.prepare(**inputs).values)
    from learncost.interpreter import execute
    from learncost.procedures.step import step as step_of

    table = step_of(training.model, "pepita", "sgd", mode=mode)
    execute(lc.lower(table), values, problem("vit").sizes(3))
    return training, inputs, values


@pytest.mark.parametrize(("mode", "strength"), [("paper", 1.0), ("stable", -0.05)])
def test_the_error_goes_to_the_pixels(mode, strength):
    """x + strength e F with a matrix of all pixels; the patches' matrix learns from the difference of its outputs."""
    training, inputs, values = modulated(mode)
    fixed = training.fixed["image.F"]
    pixels = inputs["image"].shape[1:]
    assert fixed.shape == (10, *pixels)
    # The bound of every fixed matrix: 0.05 sqrt(6 / width), the width being that of an image.
    assert 0.9 < np.abs(fixed).max() / (0.05 * np.sqrt(6 / 64)) <= 1
    e = np.exp(values["P"]) - np.eye(10)[inputs["labels"]]
    image = inputs["image"]
    pushed = image + strength * np.tensordot(e, fixed, 1)
    np.testing.assert_allclose(values["image^"], pushed, 1e-12, 1e-15)
    patches = [
        torch.tensor(pixels_array).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        for pixels_array in (image, pushed)
    ]
    w = torch.tensor(training.weights["embeddings.W"]).permute(1, 2, 3, 0).flatten(0, 2)
    difference = (patches[0] - patches[1]) @ w / 3
    source = patches[1] if mode == "paper" else patches[0]
    expected = torch.einsum("bpi,bpd->id", source, difference)
    gradient = torch.tensor(values["dembeddings.W"]).permute(1, 2, 3, 0).flatten(0, 2)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(values["dembeddings.b"], difference.sum((0, 1)), 1e-9, 1e-15)


def test_a_class_token_does_not_depend_on_the_error_and_stays():
    """Its difference is zero: PEPITA compares what comes out of a parameter's own line, which has no input here."""
    for mode in ("paper", "stable"):
        _, _, values = modulated(mode)
        assert not values["dembeddings.T"].any()
        assert values["dembeddings.P"].any()
