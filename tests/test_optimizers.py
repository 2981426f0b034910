"""Optimizers against those of PyTorch of the same name, on every engine, and what they cost and remember."""

import numpy as np
import pytest
import torch

import learncost as lc

TORCH = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.01),
    "momentum": lambda weights: torch.optim.SGD(weights, 0.01, 0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.01, (0.9, 0.99), 1e-8, 0.0),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, 0.01, 0.99, 1e-8),
}
STATES = {"sgd": 0, "momentum": 1, "adamw": 2, "rmsprop": 1}
FLOPS = {"sgd": 2, "momentum": 4, "adamw": 15, "rmsprop": 9}
REGRESSION = """regression(X T; w) -> loss
  P[B] = X[B d] w[d]
  E[B] = P[B] - T[B]
  loss[] = E[B] E[B]"""


@pytest.mark.parametrize("name", TORCH)
def test_three_steps_are_those_of_pytorch(name):
    random = np.random.default_rng(5)
    start, inputs, targets = (random.normal(size=shape) for shape in (4, (6, 4), 6))
    settings = {"learning_rate": 0.01, "betas": (0.9, 0.99)}
    training = lc.LayerTraining(lc.layer(REGRESSION), {"w": start}, optimizer=name, **settings)
    weight = torch.tensor(start, requires_grad=True)
    steps = TORCH[name]([weight])
    for _ in range(3):
        steps.zero_grad()
        (torch.tensor(inputs) @ weight - torch.tensor(targets)).square().sum().backward()
        steps.step()
        training.step(X=inputs, T=targets)
    np.testing.assert_allclose(training.weights["w"], weight.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", TORCH)
def test_what_it_costs_and_remembers(name):
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 20, "seq_len": 4}
    ledger = lc.cost("gpt2", optimizer=name, by="macro-operation", **sizes)
    (step,) = (row for row in ledger.rows if row.macro_operation == "optimizer_step")
    assert step.flops == FLOPS[name] * ledger.parameters
    assert lc.memory("gpt2", optimizer=name, **sizes).split["optimizer state"] == 4 * STATES[name] * ledger.parameters


def test_a_value_is_no_state_of_an_optimizer():
    layer = lc.layer(REGRESSION.replace("E[", "w.M["))
    with pytest.raises(lc.InputError, match=r"w\.M is a value of the table and one of adamw"):
        lc.LayerTraining(layer, {"w": np.ones(4)}, optimizer="adamw")


SCALED = """scaled(X T {input}; {weight}) -> loss
  constants: {input}
  P[B] = X[B d] {weight}[d]
  E[B] = P[B] - T[B]
  F[B] = E[B] {input}[]
  loss[] = F[B] E[B]"""


@pytest.mark.parametrize("name", ["b1", "lr", "eps", "clip", "weight_decay", "count", "strength", "inverse_count"])
@pytest.mark.parametrize("procedure", ["bp", "pepita"])
def test_numbers_of_the_step_are_not_those_of_a_layer(name, procedure):
    """A layer's weight b1 and its input clip stay what they are, whatever an optimizer and a procedure call theirs."""
    random = np.random.default_rng(5)
    start, inputs, targets = (random.normal(size=shape) for shape in (4, (6, 4), 6))
    settings = {"learning_rate": 0.01, "clip": 0.3, "weight_decay": 0.1, "dtype": "float64"}
    if procedure == "pepita":
        settings |= {"procedure": "pepita", "projected": ("X",)}
    for optimizer in ("adamw", "momentum"):
        learned = []
        for weight, scale in (("w", "s"), (name, "s"), ("w", name)):
            layer = lc.layer(SCALED.format(weight=weight, input=scale))
            training = lc.LayerTraining(layer, {weight: start}, optimizer=optimizer, **settings)
            for _ in range(2):
                training.step(X=inputs, T=targets, **{scale: np.asarray(2.0)})
            learned.append(training.weights[weight])
        np.testing.assert_array_equal(learned[0], learned[1])
        np.testing.assert_array_equal(learned[0], learned[2])
