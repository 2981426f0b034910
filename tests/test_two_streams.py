"""Reversible blocks: their cost, what they keep, and that a block's inputs come out of its outputs."""

import numpy as np
import pytest

import learncost as lc
from learncost.ir.loop import Loop
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.step import run_by, step
from learncost.verification.check import count_operations, values_of
from learncost.verification.stepped import arrays_of, sizes_of

PLANS = [
    "",
    "flash",
    "chunked-loss",
    "epilogue-update",
    "recompute=gelu+norm",
    "recompute=block/2",
    "flash,chunked-loss,fused-update,fused",
]


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("plan", PLANS)
def test_under_every_plan_the_weights_are_those_of_backpropagation(plan):
    model = build(small("gpt2", num_hidden_layers=4))
    table, plain = step(model, "reversible", "sgd"), step(run_by(model, "reversible"), "bp", "sgd")
    sizes = sizes_of(model, table) | {"n_layer": 4}
    arrays = arrays_of(model, plain, sizes)
    rewritten = planned(table, plan, sizes) if plan else table
    given = {name: arrays[name] for name in (*rewritten.inputs, *rewritten.weights)}
    found, expected = values_of(rewritten, given, sizes), values_of(plain, arrays, sizes)
    assert count_operations("reversible", rewritten, given, sizes).passed
    for weight, new in plain.renewed.items():
        np.testing.assert_allclose(found[rewritten.renewed[weight]], expected[new], 1e-9, 1e-9)


def test_of_one_block_the_streams_are_those_of_the_published_equations():
    """y1 = x1 + f(x2), y2 = x2 + g(y1) of x1 = x2 = x: the plain model has x + f(x) + g(x + f(x)) = y1 + y2 - x."""
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10, "seed": 1}
    both, plain = (lc.Training("gpt2", name, **sizes) for name in ("reversible", "bp"))
    tokens = np.arange(6).reshape(1, 6)
    (carry,) = next(line for line in plain.model.table.lines if isinstance(line, Loop)).carry
    found, expected = both.forward(tokens), plain.forward(tokens)
    x, y = expected[carry.initial], expected[carry.final]
    np.testing.assert_allclose(2 * found[carry.final] - x, y, 1e-12, 1e-14)
    assert np.abs(found[carry.final] - y).max() > 1e-3


def test_it_costs_what_recompute_costs_and_two_streams_for_one():
    costs = {name: lc.cost("gpt2", name, price_book="matmul", seq_len=64) for name in ("recompute", "reversible")}
    assert costs["reversible"].total.maccs == costs["recompute"].total.maccs


def test_no_block_keeps_its_input():
    def beside(procedure, blocks):
        answer = lc.memory(
            "gpt2", procedure=procedure, seq_len=1024, plan="chunked-loss", n_layer=blocks, engine="graph"
        )
        return answer.peak - sum(answer.split[part] for part in ("weights", "gradients", "optimizer state"))

    assert beside("reversible", 24) <= 1.01 * beside("reversible", 2)


@pytest.mark.parametrize("model", ["gptj", "bert", "bart", "mamba"])
def test_other_blocks_are_refused_in_one_line(model):
    with pytest.raises(lc.InputError, match="an even number of branches, each added to the stream"):
        step(build(small(model)), "reversible")


def test_train_refuses_it(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("to be or not to be " * 50)
    with pytest.raises(lc.InputError, match="reversible changes the model, which no config"):
        lc.train(text, out=tmp_path / "run", model="gpt2", procedure="reversible", steps=1)


def test_it_learns():
    training = lc.Training("gpt2", "reversible", n_layer=2, n_embd=8, n_head=2, vocab_size=10, learning_rate=0.01)
    tokens = np.arange(24).reshape(4, 6) % 10
    losses = [training.step(tokens) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert training.forward(tokens)["loss"] < losses[-1]


def test_what_a_scan_inside_of_a_block_keeps_is_said():
    with pytest.raises(lc.InputError, match="save the results of an inner loop, such as the states of a scan"):
        step(build(small("rwkv")), "reversible")
