"""Block coordinate descent: each block is trained in turn, with a new optimizer state."""

from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from learncost.procedures.procedure import LEARNING
from learncost.training.contest.entrant import Entrant, Setting, costs
from learncost.training.contest.problem import vit

SIZES = {"n_layer": 3, "n_embd": 8, "n_head": 2, "vocab_size": 10, "learning_rate": 0.01, "seed": 1}
FLAT = """flat(X targets share; W) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=3 v=4
  L[B v] = X[B d] W[d v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
TOKENS = np.arange(24).reshape(4, 6) % 10


@pytest.fixture(autouse=True)
def two_steps_each(monkeypatch):
    monkeypatch.setitem(LEARNING, "badam", replace(LEARNING["badam"], held=2))


def test_a_training_is_one_of_each_block_after_another():
    training = lc.Training("gpt2", "badam", "adamw", **SIZES)
    weights = {name: array.copy() for name, array in training.weights.items()}
    for iteration in (0, 1, 2, 0):
        alone = lc.Training("gpt2", "bp", "adamw", train_layers=iteration, weights=weights, **SIZES)
        assert [training.step(TOKENS) for _ in range(2)] == [alone.step(TOKENS) for _ in range(2)]
        weights = alone.plain_weights
        assert all(np.array_equal(weights[name], training.weights[name]) for name in weights)
    assert {name.partition("@")[2].partition(".")[0] for name in training.state} == {"1"}


def test_it_goes_on_in_the_middle_of_a_turn():
    first, second = (lc.Training("gpt2", "badam", "adamw", **SIZES) for _ in range(2))
    for _ in range(3):
        first.step(TOKENS)
    second.load(first.weights, first.state, first.steps)
    assert [first.step(TOKENS) for _ in range(4)] == [second.step(TOKENS) for _ in range(4)]


def test_a_contest_counts_the_mean_of_a_round():
    setting = Setting(vit({"num_hidden_layers": "2"}), "adamw")
    each = [
        lc.cost(
            setting.problem.model.configuration, train_layers=iteration, optimizer="adamw", batch_size=4
        ).total.flops
        for iteration in range(2)
    ]
    assert costs(setting, Entrant("badam"))(4).flops == -(-sum(each) // 2)


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("t5-small", {"seq_len": 8}, "badam needs one stack of blocks"),
        ("albert-base-v2", {}, "badam needs one stack of blocks"),
        ("gpt2", {"train_layers": 1}, "procedure badam fixes the trainable parameters"),
    ],
)
def test_where_no_blocks_can_take_turns_it_is_refused(model, more, message):
    with pytest.raises(lc.InputError, match=message):
        lc.cost(model, "badam", **more)
    if "seq_len" not in more:
        with pytest.raises(lc.InputError, match=message):
            lc.Training(model, "badam", **more)


def test_a_model_without_blocks_is_refused():
    flat = lc.layer(FLAT)
    for asked in (lambda: lc.cost(flat, "badam", batch_size=2), lambda: lc.Training(flat, "badam")):
        with pytest.raises(lc.InputError, match="badam needs one stack of blocks"):
            asked()


def test_blocks_without_weights_have_heads_of_their_own_local_losses():
    bare = FLAT.replace(
        "  L[B v] = X", "  U[B d] = tanh(X[B d])\n  repeat 3 carry U:\n    U[B d] = sin(U[B d])\n  L[B v] = U"
    )
    bare = bare.replace("repeat 3", "repeat n_layer").replace(
        "  share: share", "  sizes: d=3 v=4 n_layer=3\n  share: share"
    )
    training = lc.Training(lc.layer(bare), "local")
    assert len(training.state) > 0
