"""Layers that nobody wrote down, held to torch's autograd and to a counting array."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import learncost as lc
from counting import counting, tally_of
from learncost.interpreter import execute, infer_sizes
from writing import SIZES, Writer, evaluate

drawn = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
randoms = st.randoms(use_true_random=False)


class Case:
    """A random layer, random arrays for it, and what torch makes of them."""

    def __init__(self, random):
        self.writer = Writer(random)
        self.text = self.writer.write()
        self.layer = lc.layer(self.text)
        self.random = random
        generator = np.random.default_rng(random.randint(0, 2**32 - 1))
        self.arrays = self.writer.arrays(generator)
        tensors = {n: torch.tensor(a, requires_grad=a.dtype.kind == "f") for n, a in self.arrays.items()}
        values = evaluate(self.writer.program, dict(tensors), self.writer.own)
        self.outputs = {name: values[name] for name in self.writer.outputs}
        self.seeds = {f"d{name}": generator.standard_normal(v.shape) for name, v in self.outputs.items()}
        self.names = [*self.writer.inputs, *self.writer.weights]
        loss = sum((value * torch.tensor(self.seeds[f"d{n}"])).sum() for n, value in self.outputs.items())
        gradients = [None] * len(self.names)
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, [tensors[n] for n in self.names], allow_unused=True)
        self.gradients = {
            n: np.zeros_like(self.arrays[n]) if g is None else g.numpy()
            for n, g in zip(self.names, gradients, strict=True)
        }

    def step(self, derived, wrap=np.asarray):
        """Run a derived step; every name, under the names of the table."""
        values = {name: wrap(array) for name, array in self.arrays.items()}
        for name in self.layer.table.outputs:
            values[f"d{name}"] = wrap(self.seeds[f"d{name.partition('.')[0]}"])
        execute(lc.lower(derived.step), values, infer_sizes(self.layer.table, self.arrays, SIZES))
        return values


@drawn
@given(randoms)
def test_values_and_gradients_equal_torch(random):
    case = Case(random)
    result = lc.run(case.layer, {**case.arrays, **case.seeds}, SIZES)
    for name, value in case.outputs.items():
        np.testing.assert_allclose(result[name], value.detach().numpy(), 1e-8, 1e-9, err_msg=f"{name} of\n{case.text}")
    for name, gradient in case.gradients.items():
        np.testing.assert_allclose(result[f"d{name}"], gradient, 1e-7, 1e-8, err_msg=f"d{name} of\n{case.text}")


@drawn
@given(randoms)
def test_the_price_is_what_a_stranger_counts(random):
    case = Case(random)
    wrapped = {name: counting(array) for name, array in case.arrays.items()}
    _, counted = tally_of(lc.run, case.layer, wrapped, SIZES)
    assert counted == lc.price(case.layer, SIZES).flops, case.text
    seeds = {name: counting(array) for name, array in case.seeds.items()}
    _, counted = tally_of(lc.run, case.layer, {**wrapped, **seeds}, SIZES)
    derived = lc.derive(case.layer)
    assert counted == lc.price(derived.step, SIZES).flops, case.text
    passes = (derived.forward, derived.backward, derived.update)
    assert counted == sum(lc.price(pass_, SIZES).flops for pass_ in passes), case.text
    # Line by line as well as in all: rows sum to the total, and a symbolic price becomes the same number.
    price = lc.price(derived.step, {})
    assert sum(row.flops.at(SIZES) for row in price.rows) == counted
    many = lc.price(derived.step, {axis: np.array([size, size]) for axis, size in SIZES.items()})
    np.testing.assert_array_equal(many.flops, [counted, counted])


@drawn
@given(randoms)
def test_only_what_the_wanted_gradients_need_is_made(random):
    case = Case(random)
    names = [name for name in case.names if random.random() < 0.5]
    derived = lc.derive(case.layer, wanted=names)
    values, counted = tally_of(case.step, derived, counting)
    assert counted == lc.price(derived.step, SIZES).flops, case.text
    assert counted <= lc.price(lc.derive(case.layer).step, SIZES).flops
    for name in names:
        if name in derived.gradients:
            gradient = np.asarray(values[derived.gradients[name]])
            np.testing.assert_allclose(gradient, case.gradients[name], 1e-7, 1e-8, err_msg=f"d{name} of\n{case.text}")
        else:
            assert not case.gradients[name].any(), f"{name} of\n{case.text}"
    gradients_made = {name for name in values if name.startswith("d")}
    assert not any(f"d{name}" in gradients_made for name in case.names if name not in names)


@drawn
@given(randoms)
def test_the_explicit_jacobian_gives_the_same_gradients(random):
    case = Case(random)
    values = case.step(derived := lc.derive(case.layer, jacobian=True))
    for name, gradient in derived.gradients.items():
        np.testing.assert_allclose(
            values[gradient], case.gradients[name], 1e-7, 1e-8, err_msg=f"{name} of\n{case.text}"
        )


@drawn
@given(randoms)
def test_live_takes_every_table(random):
    case = Case(random)
    alive = lc.live(case.layer, SIZES)
    assert alive.peak == max((moment.bytes for moment in alive.curve), default=0)
    assert sum(live_array.bytes for live_array in alive.live_at_peak) == alive.peak
    assert alive.saved_bytes <= alive.peak
    # With no gradient wanted there is no second pass, so that nothing is kept for it.
    assert lc.live(lc.derive(case.layer, wanted=[]), SIZES).saved == ()


def test_a_wide_range_of_layers_was_drawn():
    text = "\n".join(Writer(Random(seed)).write() for seed in range(120))
    for sign in (" where ", " <= ", " < ", "s'", "repeat n", "repeat 3", " shared ", "[s=T", "[v=T", "#s^0.5[]"):
        assert sign in text
    ops = ("gelu_tanh(", "gelu(", "gelu_erf(", "gelu_new(", "relu(", "sigmoid(", "silu(", "swish(", "tanh(", "exp(")
    for op in (*ops, "log(", "sqrt(", "erf(", "divide(", "maximum(", "less(", "select(", "max[", "softmax["):
        assert op in text
    assert "log_softmax[" in text
    assert "normalize[" in text


# Shapes of programs that the writer does not draw.

NESTED = """nested(X Z; W V U) -> X
  repeat 2 carry X:
    X[b d] = X[b d'] W[d' d] 0.3[]
    repeat n carry X shared U:
      H[b d] = X[b d] V[d]
      G[b d] = sigmoid(H[b d])
      X[b d] = G[b d] + Z[b d]
      X[b d] = X[b d] U[d]"""


def test_a_repeat_within_a_repeat():
    generator = np.random.default_rng(0)
    shapes = {"X": (2, 5), "Z": (2, 5), "W": (2, 5, 5), "V": (2, 3, 5), "U": (2, 5)}
    arrays = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    t = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    x = t["X"]
    for outer in range(2):
        x = x @ t["W"][outer] * 0.3
        for inner in range(3):
            x = (torch.sigmoid(x * t["V"][outer, inner]) + t["Z"]) * t["U"][outer]
    seed = generator.standard_normal((2, 5))
    gradients = torch.autograd.grad((x * torch.tensor(seed)).sum(), list(t.values()))
    layer = lc.layer(NESTED)
    wrapped = {name: counting(array) for name, array in arrays.items()}
    result, counted = tally_of(lc.run, layer, {**wrapped, "dX": counting(seed)}, {"n": 3})
    np.testing.assert_allclose(np.asarray(result["X"]), x.detach(), 1e-12)
    for name, gradient in zip(t, gradients, strict=True):
        np.testing.assert_allclose(np.asarray(result[f"d{name}"]), gradient, 1e-12)
    sizes = {"b": 2, "d": 5, "n": 3}
    assert counted == lc.price(lc.derive(layer).step, sizes).flops
    kept = {array.name: array.shape for array in lc.live(layer, sizes).saved}
    assert kept["G**"] == (2, 3, 2, 5)


@pytest.mark.parametrize("op", ["sgd", "momentum", "adamw"])
def test_a_step_of_an_optimizer_has_no_gradient(op):
    texts = {
        "sgd": "step(W G lr; ) -> U\n U[a] = sgd(W[a], G[a], lr[])",
        "momentum": "step(W G V lr mu; ) -> U Z\n U[a] Z[a] = momentum(W[a], G[a], V[a], lr[], mu[])",
        "adamw": "step(W G M V lr b1 c1 b2 c2 k1 k2 eps decay; ) -> U P Q\n U[a] P[a] Q[a] = adamw(W[a], G[a], M[a], "
        "V[a], lr[], b1[], c1[], b2[], c2[], k1[], k2[], eps[], decay[])",
    }
    layer = lc.layer(texts[op])
    with pytest.raises(lc.InputError, match=f"{op} has no gradient"):
        lc.derive(layer)


def test_optimizer_steps_equal_torch():
    generator = np.random.default_rng(1)
    w, g, m, v = generator.standard_normal((4, 7))
    v = v * v
    adamw = lc.layer(
        "step(W G M V lr b1 c1 b2 c2 k1 k2 eps decay; ) -> U P Q\n U[a] P[a] Q[a] = adamw(W[a], G[a], M[a], V[a], lr[],"
        " b1[], c1[], b2[], c2[], k1[], k2[], eps[], decay[])"
    )
    parameter = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    state = {"step": torch.tensor(4.0), "exp_avg": torch.tensor(m), "exp_avg_sq": torch.tensor(v)}
    optimizer.state[parameter] = state
    parameter.grad = torch.tensor(g)
    optimizer.step()
    numbers = {"lr": 0.01, "b1": 0.9, "c1": 0.1, "b2": 0.999, "c2": 0.001, "k1": 1 / (1 - 0.9**5), "eps": 1e-8}
    numbers |= {"k2": 1 / (1 - 0.999**5), "decay": 1 - 0.01 * 0.1}
    arrays = {"W": w, "G": g, "M": m, "V": v} | {name: np.array(number) for name, number in numbers.items()}
    result, counted = tally_of(lc.run, adamw, {name: counting(array) for name, array in arrays.items()})
    np.testing.assert_allclose(np.asarray(result["U"]), parameter.detach().numpy(), 1e-12)
    np.testing.assert_allclose(np.asarray(result["P"]), state["exp_avg"].numpy(), 1e-12)
    np.testing.assert_allclose(np.asarray(result["Q"]), state["exp_avg_sq"].numpy(), 1e-12)
    assert counted == 15 * 7 == lc.price(adamw, {"a": 7}).flops
