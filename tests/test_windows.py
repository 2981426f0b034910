"""Sliding windows, `where N <= M < N + w`: against torch's autograd, a counting array, and what they amount to."""

import itertools
import re
from random import Random

import numpy as np
import pytest
import torch

import learncost as lc
from counting import counting, tally_of
from foreign_models import self_attention
from learncost.ir.line import Condition
from learncost.ir.parse import parse_line
from learncost.layers.layer import shipped_layer
from learncost.reports.notation import latex, mathml
from refinements import with_softcap, with_visible
from sampling import sampled
from writing import WINDOWS, Writer

M = 5
SHAPES = {
    "attention": {"WQ": (4, 2, 3), "WK": (4, 2, 3), "WV": (4, 2, 3), "WO": (2, 3, 4)},
    "grouped_attention": {"WQ": (4, 2, 2, 3), "WK": (4, 2, 3), "WV": (4, 2, 3), "WO": (2, 2, 3, 4)},
}


def drawn(kind, seed=0):
    generator = np.random.default_rng(seed)
    arrays = {f"w.{name}": generator.standard_normal(shape) for name, shape in SHAPES[kind].items()}
    return {"X": generator.standard_normal((2, M, 4)), **arrays, "dY": generator.standard_normal((2, M, 4))}


def banded(length, window, strict=False):
    """From the definition, pair by pair: a key is seen by itself and by the window - 1 queries after it."""
    inside = np.zeros((length, length), bool)
    for query, key in itertools.product(range(length), repeat=2):
        inside[query, key] = 0 <= query - key < window and not (strict and query == key)
    return inside


def same(found, wanted):
    for name in wanted:
        np.testing.assert_allclose(np.asarray(found[name]), wanted[name], 1e-12, 1e-12, err_msg=name)


# The notation.


@pytest.mark.parametrize(
    "text", ["M' <= M < M' + w", "N < M < N + n_window", "M' <= M < M' + 128", "key <= query < key + w"]
)
def test_a_condition_is_printed_as_it_is_written(text):
    lower, upper = text.replace("<=", "<").split(" < ")[:2]
    line = parse_line(f"Y[{upper} {lower}] = 1[] X[{upper} {lower}] where {text}")
    assert str(line).endswith(f" where {text}")
    assert line.where == (Condition(lower, upper, "<=" if "<=" in text else "<", text.rpartition(" ")[2]),)
    assert parse_line(str(line)) == line


def test_conditions_are_equal_when_all_of_them_is():
    condition = Condition("N", "M", window="w")
    assert condition == Condition("N", "M", "<=", "w")
    assert len({condition, Condition("N", "M"), Condition("N", "M", "<", "w"), Condition("N", "M", "<=", "u")}) == 4
    assert condition.axes == {"N", "M"}  # the window is a size, not an axis of the line


def test_renaming_reaches_the_window():
    condition = Condition("N", "M", window="w")
    assert str(condition.renamed({"N": "M'", "w": "w_local"})) == "M' <= M < M' + w_local"
    assert str(condition.renamed({"w": "M'"})) == "N <= M < N + M"  # the size of a second axis is that of the first


def test_formulas():
    line = parse_line("A[M k] = P[M M'] V[M' k] where M' <= M < M' + w")
    assert latex(line) == r"A_{mk} = \sum_{m' \le m < m' + w}\,P_{mm'}\,V_{m'k}"
    line = parse_line("Y[M N] = tanh(X[M N]) where N < M < N + n_window")
    assert latex(line).endswith(r"\quad (n < m < n + n_{\mathrm{window}})")
    line = parse_line("Y[M N] = tanh(X[M N]) where N <= M < N + 128")
    assert latex(line).endswith(r"\quad (n \le m < n + 128)")
    assert "<mo>&lt;</mo><mi>n</mi><mo>+</mo><mn>128</mn>" in mathml(line)


def test_a_call_hands_the_window_to_every_line_with_both_axes():
    layer = self_attention(shipped_layer("attention"), window="w")
    bound = {line.name: line.where for line in layer.table.lines if line.where}
    assert bound == dict.fromkeys(("w.R", "w.S", "w.P", "w.A"), (Condition("M'", "M", "<=", "w"),))


BAND = """band(X) -> Y
  Y[M N] = 1[] X[M N] where N <= M < N + w"""


def test_a_called_layer_has_the_window_that_the_call_names():
    text = """two(X U) -> Y Z
  Y[M N] = band(X; w = near)
  Z[N M] = band(U; M = N, N = M, w = far)"""
    layer = lc.layer(text, {"band": lc.layer(BAND)})
    assert [str(line) for line in layer.table.lines] == [
        "Y[M N] = 1[] X[M N] where N <= M < N + near",
        "Z[N M] = 1[] U[N M] where M <= N < M + far",
    ]
    result = lc.run(layer, {"X": np.ones((4, 4)), "U": np.ones((4, 4))}, {"near": 2, "far": 3})
    np.testing.assert_array_equal(result["Y"], banded(4, 2))
    np.testing.assert_array_equal(result["Z"], banded(4, 3))


# Sizes.


def test_the_size_of_a_window_is_given_or_is_that_of_an_axis_or_a_number():
    layer, X = lc.layer(BAND), np.ones((4, 4))
    for size in (1, 2, 4, 9):
        np.testing.assert_array_equal(lc.run(layer, {"X": X, "w": size})["Y"], banded(4, size))
        np.testing.assert_array_equal(lc.run(layer, {"X": X}, {"w": size})["Y"], banded(4, size))
        number = lc.layer(BAND.replace("+ w", f"+ {size}"))
        np.testing.assert_array_equal(lc.run(number, {"X": X})["Y"], banded(4, size))
    axis = lc.layer("axis(X V) -> Y\n  S[] = V[w] V[w]\n  Y[M N] = X[M N] S[] where N <= M < N + w")
    np.testing.assert_array_equal(lc.run(axis, {"X": X, "V": np.ones(3)})["Y"], 3 * banded(4, 3))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "the size of the window w is unknown: give w among the arrays or sizes"),
        ({"w": 0}, "the window w must be a whole number from 1, not 0"),
        ({"w": 1.5}, "the window w must be a whole number from 1, not 1.5"),
        ({"w": True}, "the window w must be a whole number from 1, not True"),
        ({"w": [2]}, "the window w must be a whole number from 1, not [2]"),
    ],
)
def test_a_window_without_a_sound_size_is_refused(sizes, message):
    with pytest.raises(lc.InputError) as refused:
        lc.run(lc.layer(BAND), {"X": np.ones((4, 4))}, sizes)
    assert str(refused.value) == message


# Attention.


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("window", [1, 2, 3, M, M + 3])
def test_attention_under_a_window_is_attention_to_what_a_mask_shows(kind, window):
    arrays = drawn(kind)
    values = lc.run(self_attention(shipped_layer(kind), window="w"), {**arrays, "w": window})
    expected = lc.run(
        self_attention(with_visible(shipped_layer(kind)), causal=False), {**arrays, "visible": banded(M, window)}
    )
    same(values, {name: expected[name] for name in ("Y", *(f"d{name}" for name in arrays if name != "dY"))})


@pytest.mark.parametrize("kind", SHAPES)
def test_the_widest_window_is_causal_and_the_narrowest_looks_at_itself_alone(kind):
    arrays = drawn(kind)
    windowed = self_attention(shipped_layer(kind), window="w")
    same(lc.run(windowed, {**arrays, "w": M}), lc.run(self_attention(shipped_layer(kind)), arrays))
    V = np.einsum("bmd,dhk->bmhk", arrays["X"], arrays["w.WV"])
    alone = np.einsum("bmhk,hkd->bmd" if kind == "attention" else "bmhk,hgkd->bmd", V, arrays["w.WO"])
    values = lc.run(windowed, {**arrays, "w": 1})
    np.testing.assert_allclose(values["Y"], alone, 1e-12)
    assert not values["dw.WQ"].any()  # a softmax of one number is 1, whatever the number


def capped():
    return with_softcap(shipped_layer("grouped_attention"), 2.0)


@pytest.mark.parametrize(
    "make", sampled([lambda: shipped_layer("attention"), capped, lambda: shipped_layer("latent_attention")], 3)
)
def test_the_layer_passes_the_proof(make):
    layer = self_attention(make(), window="w")
    for report in (lc.check_layer(layer), lc.verify(layer.table)):
        assert report.passed, report


@pytest.mark.parametrize(
    "make", [lambda: shipped_layer("attention"), capped, lambda: shipped_layer("latent_attention")]
)
def test_a_window_executes_what_the_causal_condition_executes(make):
    """The mask is one select of the scores, dense, whatever it shows; the window is in no price of these two books."""
    causal, windowed = self_attention(make()), self_attention(make(), window="w")
    for book in ("run", "matmul"):
        for table_of in (lambda layer: layer.table, lambda layer: lc.derive(layer).step):
            prices = lc.price(table_of(causal), {}, book), lc.price(table_of(windowed), {}, book)
            assert prices[0].flops == prices[1].flops
            assert prices[0].maccs == prices[1].maccs
    assert str(lc.lower(windowed.table)).count("select(") == 1


@pytest.mark.parametrize("window", [1, 2, M + 3])
def test_the_price_is_what_a_stranger_counts(window):
    arrays = {name: counting(array) for name, array in drawn("attention").items()}
    layer = self_attention(shipped_layer("attention"), window="w")
    _, counted = tally_of(lc.run, layer, {**arrays, "w": window})
    assert counted == lc.price(lc.derive(layer).step, {"B": 2, "M": M, "d": 4, "h": 2, "k": 3}).flops


def test_what_is_alive_does_not_depend_on_the_window():
    sizes = {"B": 2, "M": M, "d": 4, "h": 2, "k": 3}
    causal, windowed = (lc.live(self_attention(shipped_layer("attention"), window=w), sizes) for w in (None, "w"))
    assert (causal.peak, causal.saved_bytes) == (windowed.peak, windowed.saved_bytes)


TURNS = """turns(X S) -> loss
  repeat 2 carry X:
    A[B M d] = grouped_attention(X, X, X; attn, N = M') where M' <= M < M' + w
    X[B M d] = X[B M d] + A[B M d]
  loss[] = X[B M d] S[B M d]"""


@pytest.mark.parametrize("procedure", ["bp", "recompute"])
@pytest.mark.parametrize("window", [1, 3])
def test_training_takes_the_window_with_the_inputs(procedure, window):
    layer = lc.layer(TURNS)
    generator = np.random.default_rng(2)
    inputs = {name: generator.standard_normal((2, M, 4)) for name in "XS"}
    weights = {f"attn.{n}": generator.standard_normal((2, *s)) / 2 for n, s in SHAPES["grouped_attention"].items()}
    training = lc.LayerTraining(layer, weights, procedure, dtype=np.float64)
    updates = training.updates(**inputs, w=window)
    x, *w = tensors = [torch.tensor(array, requires_grad=True) for array in (inputs["X"], *weights.values())]
    for wq, wk, wv, wo in zip(*w, strict=True):
        q, k, v = (
            torch.einsum("bmd,dhgk->bmhgk", x, wq),
            *(torch.einsum("bnd,dhk->bnhk", x, weight) for weight in (wk, wv)),
        )
        scores = torch.einsum("bmhgk,bnhk->bhgmn", q, k) / 3**0.5
        p = scores.masked_fill(~torch.tensor(banded(M, window)), -torch.inf).softmax(-1)
        x = x + torch.einsum("bhgmn,bnhk,hgkd->bmd", p, v, wo)
    gradients = torch.autograd.grad((x * torch.tensor(inputs["S"])).sum(), tensors[1:])
    same(updates, {name: gradient.numpy() for name, gradient in zip(weights, gradients, strict=True)})
    with pytest.raises(lc.InputError, match="the size of the window w is unknown"):
        training.updates(**inputs)


def test_windows_are_among_the_layers_that_are_drawn_at_random():
    """test_core.py holds them to torch and to a stranger's count."""
    text = "\n".join(Writer(Random(seed)).write() for seed in range(120))
    assert all(f" + {window}" in text for window in WINDOWS)
    assert re.search(r"softmax.* < \w+'* \+ w\b", text)


# A value made under one condition and read under another.

CONDITIONS = {
    "": (None, False),
    "M' <= M": (M, False),
    "M' < M": (M, True),
    "M' <= M < M' + w": (2, False),
    "M' < M < M' + w": (2, True),
    "M' <= M < M' + u": (3, False),
    "M' <= M where M' <= M < M' + w": (2, False),  # the second says it all
}


@pytest.mark.parametrize(("one", "two"), list(itertools.product(CONDITIONS, repeat=2)))
def test_values_made_under_one_condition_and_read_under_another(one, two):
    layer = lc.layer(
        """crossed(X Z U V) -> Y T G
  R[M M'] = X[M] Z[M'] ONE
  E[M M'] = exp(R[M M']) TWO
  C[M M'] = R[M M'] + E[M M'] ONE
  Y[M] = E[M M'] V[M'] ONE
  T[M'] = C[M M'] U[M]
  G[M M'] = C[M M'] - E[M M'] TWO""".replace("ONE", f"where {one}" if one else "").replace(
            "TWO", f"where {two}" if two else ""
        )
    )
    generator = np.random.default_rng(1)
    arrays = {name: generator.standard_normal(M) for name in "XZUV"}
    seeds = {"dY": generator.standard_normal(M), "dT": generator.standard_normal(M)}
    seeds["dG"] = generator.standard_normal((M, M))
    x, z, u, v = (torch.tensor(array, requires_grad=True) for array in arrays.values())
    first, second = (
        torch.tensor(np.ones((M, M)) if window is None else banded(M, window, strict))
        for window, strict in (CONDITIONS[one], CONDITIONS[two])
    )
    r = x[:, None] * z * first
    e = torch.exp(r) * second
    c = (r + e) * first
    outputs = {"Y": (e * first) @ v, "T": u @ c, "G": (c - e) * second}
    loss = sum((outputs[name[1:]] * torch.tensor(seed)).sum() for name, seed in seeds.items())
    gradients = torch.autograd.grad(loss, (x, z, u, v))
    arrays_counting = {name: counting(array) for name, array in {**arrays, **seeds}.items()}
    values, counted = tally_of(lc.run, layer, arrays_counting, {"w": 2, "u": 3})
    same(values, {name: value.detach().numpy() for name, value in outputs.items()})
    same(values, {f"d{name}": gradient.numpy() for name, gradient in zip(arrays, gradients, strict=True)})
    assert counted == lc.price(lc.derive(layer).step, {"M": M}).flops


def selects(first, second):
    """How often a value made under one condition is masked when it is summed under another."""
    text = f"read(X Z V) -> Y\n  R[M M'] = X[M] Z[M'] where {first}\n  Y[M] = R[M M'] V[M'] where {second}"
    return str(lc.lower(lc.layer(text).table)).count("select(")


def test_a_narrower_condition_keeps_within_a_wider_one():
    causal, window, other = "M' <= M", "M' <= M < M' + w", "M' <= M < M' + u"
    assert selects(causal, causal) == selects(window, window) == 1
    assert selects(causal, window) == 1  # what lies outside of the causal condition lies outside of the window, too
    assert selects(window, causal) == 1  # zero outside of the window is zero outside of the causal condition
    assert selects(f"{causal} where {window}", window) == 1
    assert selects(window, f"{causal} where {window}") == 1
    assert selects(window, other) == 2  # of two windows either may be the wider
