"""Every shipped layer against an implementation that knows nothing of it: torch's modules, the printed equations."""

import math

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.interpreter import infer_sizes
from learncost.layers.layer import shipped, shipped_layer
from learncost.procedures.accumulation import accumulated
from learncost.procedures.optimizer import OPTIMIZERS, with_optimizer, without_gradients
from learncost.verification.check import seeds_of, values_of
from learncost.verification.references import LAYERS
from printed import equations as printed

B, M, N, D, H, K, F, V = 2, 3, 5, 12, 3, 4, 7, 11
functional = torch.nn.functional


def tensors(seed=0, **shapes):
    generator = np.random.default_rng(seed)
    return {n: torch.tensor(generator.standard_normal(s), requires_grad=True) for n, s in shapes.items()}


def compare(layer, given, result, names=None, extra=None):
    """Values, then gradients of a random seed, of a layer with one output and of a torch result."""
    arrays = {name: tensor.detach().numpy() for name, tensor in given.items()} | (extra or {})
    seed = np.random.default_rng(7).standard_normal(tuple(result.shape))
    output = layer.table.outputs[0]
    values = lc.run(layer, {**arrays, f"d{output}": seed})
    np.testing.assert_allclose(values[output], result.detach().numpy(), rtol=1e-9, atol=1e-11)
    names = list(names or given)
    gradients = torch.autograd.grad((result * torch.tensor(seed)).sum(), [given[name] for name in names])
    for name, gradient in zip(names, gradients, strict=True):
        np.testing.assert_allclose(values[f"d{name}"], gradient.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


def flat(weight):
    """A weight by heads [d h k] as torch has it, [h k, d]."""
    return weight.reshape(weight.shape[0], -1).T


def torch_attention(q, k, v, given, **keywords):
    """torch's own multi-head attention, sequences on the second axis."""
    result, _ = functional.multi_head_attention_forward(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), D, H, None, None, None, None, False, 0.0,
        given["WO"].reshape(H * K, D).T, None, use_separate_proj_weight=True, q_proj_weight=flat(given["WQ"]),
        k_proj_weight=flat(given["WK"]), v_proj_weight=flat(given["WV"]), need_weights=False, **keywords,
    )  # fmt: skip
    return result.transpose(0, 1)


WEIGHTS = {"WQ": (D, H, K), "WK": (D, H, K), "WV": (D, H, K), "WO": (H, K, D)}


@pytest.mark.parametrize("name", ["attention", "cross_attention"])
def test_attention_equals_torch(name):
    drawn = tensors(XQ=(B, M, D), XK=(B, N, D), XV=(B, N, D), **WEIGHTS)
    compare(
        shipped_layer(name),
        drawn,
        torch_attention(drawn["XQ"], drawn["XK"], drawn["XV"], drawn),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_equals_torch(causal):
    where = " where M' <= M" if causal else ""
    text = f"alone(X) -> Y\n H[B M d] = 1[] X[B M d]\n Y[B M d] = attention(H, H, H; w, N = M'){where}"
    drawn = tensors(X=(B, M, D), **WEIGHTS)
    mask = torch.full((M, M), -math.inf, dtype=torch.float64).triu(1) if causal else None
    result = torch_attention(drawn["X"], drawn["X"], drawn["X"], drawn, attn_mask=mask)
    compare(lc.layer(text), {"X": drawn["X"], **{f"w.{n}": drawn[n] for n in WEIGHTS}}, result)


def test_self_attention_equals_the_module():
    module = torch.nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=torch.float64)
    drawn = tensors(X=(B, M, D))
    result, _ = module(drawn["X"], drawn["X"], drawn["X"], need_weights=False)
    parts = module.in_proj_weight.detach().split(D)
    arrays = {f"w.{n}": w.T.reshape(D, H, K).numpy() for n, w in zip(("WQ", "WK", "WV"), parts, strict=True)}
    arrays["w.WO"] = module.out_proj.weight.detach().T.reshape(H, K, D).numpy()
    text = "alone(X) -> Y\n H[B M d] = 1[] X[B M d]\n Y[B M d] = attention(H, H, H; w, N = M')"
    compare(lc.layer(text), drawn, result, extra=arrays)


@pytest.mark.parametrize("name", ["norm", "plain_norm", "add_norm"])
def test_norms_equal_torch(name):
    drawn = tensors(X=(B, M, D), F=(B, M, D), g=(D,), b=(D,))
    table = shipped_layer(name).table
    drawn = {n: drawn[n] for n in (*table.inputs, *table.weights)}
    normed = drawn["X"] + drawn["F"] if name == "add_norm" else drawn["X"]
    compare(
        shipped_layer(name),
        drawn,
        functional.layer_norm(normed, (D,), drawn.get("g"), drawn.get("b")),
    )


@pytest.mark.parametrize(("op", "form"), [("gelu_tanh", "tanh"), ("gelu", "none")])
def test_feed_forward_equals_torch(op, form):
    layer = lc.layer(shipped_layer("feed_forward").text.replace("gelu_tanh", op))
    drawn = tensors(X=(B, M, D), W1=(D, F), b1=(F,), W2=(F, D), b2=(D,))
    hidden = functional.gelu(functional.linear(drawn["X"], drawn["W1"].T, drawn["b1"]), approximate=form)
    compare(layer, drawn, functional.linear(hidden, drawn["W2"].T, drawn["b2"]))
    without = lc.layer(shipped_layer("feed_forward_without_biases").text.replace("gelu_tanh", op))
    hidden = functional.gelu(drawn["X"] @ drawn["W1"], approximate=form)
    compare(without, {n: drawn[n] for n in ("X", "W1", "W2")}, hidden @ drawn["W2"])


def test_embedding_positions_and_token_types_equal_torch():
    tokens = np.array([[4, 0, 4], [1, 9, 0]])
    drawn = tensors(W=(V, D), E=(B, M, D), P=(M + 2, D), S=(M, D))
    compare(shipped_layer("embedding"), {"W": drawn["W"]}, functional.embedding(torch.tensor(tokens), drawn["W"]),
            extra={"tokens": tokens})  # fmt: skip
    index = np.array([1, 2, 4])
    with_positions = drawn["E"] + functional.embedding(torch.tensor(index), drawn["P"])
    compare(shipped_layer("positions"), {n: drawn[n] for n in "EP"}, with_positions, extra={"index": index})
    compare(
        shipped_layer("sinusoidal_positions"),
        {n: drawn[n] for n in "ES"},
        drawn["E"] + drawn["S"],
        names="E",
    )
    types = np.array([[0, 1, 1], [1, 0, 0]])
    drawn = tensors(W=(2, D), E=(B, M, D))
    with_types = drawn["E"] + functional.embedding(torch.tensor(types), drawn["W"])
    compare(shipped_layer("token_types"), drawn, with_types, extra={"types": types})


def test_head_and_loss_equal_cross_entropy():
    layer = lc.layer(
        "both(X targets share; W) -> loss\n P[B M v] = head(X; W)\n loss[] = loss(P, targets, share)\nconstants: share"
    )
    targets = np.array([[4, 10, -100], [-100, 0, 0]])
    is_answer = targets >= 0
    drawn = tensors(X=(B, M, D), W=(D, V))
    result = functional.cross_entropy((drawn["X"] @ drawn["W"]).reshape(-1, V), torch.tensor(targets).reshape(-1))
    extra = {"targets": np.where(is_answer, targets, 0), "share": np.where(is_answer, -1.0 / is_answer.sum(), 0.0)}
    compare(layer, drawn, result, extra=extra)


def test_what_is_spread_and_subtracted_has_the_gradient_of_pytorch():
    """Operands with fewer axes than the result, before the sign and behind it."""
    layer = lc.layer("d(X; b c) -> Y\n  H[B d] = X[B d] - b[d]\n  Y[B d] = c[] - H[B d]")
    draw = np.random.default_rng(3)
    arrays = {"X": draw.standard_normal((4, 3)), "b": draw.standard_normal(3), "c": draw.standard_normal(())}
    seed = draw.standard_normal((4, 3))
    derived = derive(layer)
    found = lc.run(derived.step, {**arrays, "dY": seed}, {"B": 4, "d": 3})
    given = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    y = given["c"] - (given["X"] - given["b"])
    gradients = torch.autograd.grad((y * torch.tensor(seed)).sum(), list(given.values()))
    for name, gradient in zip(given, gradients, strict=True):
        np.testing.assert_allclose(found[derived.gradients[name]], gradient.numpy(), rtol=1e-12)


def test_lines_of_a_call_with_a_star_are_the_callers_own():
    """Names, numbers of equations and what decoding keeps are as if the lines stood there."""
    text = """mine(X T; WQ WK WV WO g b) -> Z
  A[B M d] = attention(X, T, T; *)
  Z[B M d] = norm(A; *)
gradients: dA (7)"""
    mine = lc.layer(text)
    assert mine.table.weights == ("WQ", "WK", "WV", "WO", "g", "b")
    assert {line.meta.layer for line in mine.table.lines} == {"mine"}
    assert [(line.name, line.meta.equation) for line in mine.table.lines[2:4]] == [("V", "2"), ("R", "3")]
    assert mine.equations["dWV"] == "27"  # attention's
    assert mine.equations["dA"] == "7"  # its own, not attention's, nor norm's, whose input A is
    assert mine.cache == ("K", "V")
    with pytest.raises(lc.NotationError, match="V is a value of attention and of this layer: give a prefix"):
        lc.layer(text.replace("  A[B", "  V[B M d] = norm(X; *)\n  A[B"))
    with pytest.raises(lc.NotationError, match=r"\* stands for all weights of attention"):
        lc.layer(text.replace("T; *", "T; *, W"))
    unlike = lc.layer(text.replace("X, T, T; *", "X, X, X; *, N = M'").replace("X T;", "X;"))
    assert unlike.cache == ()  # its keys have no axis of their own


def test_every_shipped_layer_has_a_foreign_implementation_in_the_proof():
    assert set(LAYERS) >= set(shipped())


# The printed equations, one sequence, heads as lists of matrices.


def heads(weight):
    return [weight[:, h] for h in range(weight.shape[1])]


@pytest.mark.parametrize("jacobian", [False, True])
@pytest.mark.parametrize("name", ["attention", "cross_attention"])
def test_derived_lines_of_attention_equal_the_printed_equations(name, jacobian):
    table = shipped_layer(name).table
    generator = np.random.default_rng(3)
    shapes = {"XQ": (1, M, D), "XK": (1, N, D), "XV": (1, N, D), **WEIGHTS}
    arrays = {n: generator.standard_normal(s) for n, s in shapes.items()}
    derived = lc.derive(table, jacobian=jacobian)
    sizes = infer_sizes(table, arrays)
    seeds = seeds_of(table, sizes)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    x = {n: arrays[n][0] for n in ("XQ", "XK", "XV")}
    wq, wk, wv = (heads(arrays[n]) for n in ("WQ", "WK", "WV"))
    wo, df = arrays["WO"].reshape(H * K, D), seeds["dY"][0]
    q, k, v = printed.equation_2(x["XQ"], x["XK"], x["XV"], wq, wk, wv)
    s = [printed.probabilities(*pair) for pair in zip(q, k, strict=True)]
    da = np.split(printed.equation_22(df, wo), H, axis=1)
    attended = [printed.equation_3(*three) for three in zip(q, k, v, strict=True)]
    jacobians = [printed.equation_28(shares) for shares in s]
    scores = [printed.equation_29(*three) for three in zip(da, v, jacobians, strict=True)]
    dv = [printed.equation_24(*pair) for pair in zip(s, da, strict=True)]
    dq = [printed.equation_30(*pair) for pair in zip(scores, k, strict=True)]
    dk = [printed.equation_34(*pair) for pair in zip(scores, q, strict=True)]
    by_head = {"dA": da, "dV": dv, "dQ": dq, "dK": dk}  # [M h k]
    scored = {"dR": scores}
    if jacobian:
        scored["JS"] = jacobians
    weights = {"dWQ": printed.equation_33(x["XQ"], dq), "dWK": printed.equation_37(x["XK"], dk)}
    weights["dWV"] = printed.equation_27(x["XV"], dv)
    inputs = {"dXQ": printed.equation_31_32(dq, wq), "dXK": printed.equation_35_36(dk, wk)}
    inputs["dXV"] = printed.equation_25_26(dv, wv)
    equal = lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)  # noqa: E731
    for key, weight in by_head.items():
        equal(values[key][0], np.stack(weight, axis=1))
    for key, weight in scored.items():
        equal(values[key][0], np.stack(weight))
    for key, weight in weights.items():
        equal(values[key], np.stack(weight, axis=1))
    for key, weight in inputs.items():
        equal(values[key][0], weight)
    equal(values["dWO"].reshape(H * K, D), printed.equation_23(attended, df))
    equal(values["Y"][0], printed.equation_4(attended, wo))
    numbers = {row.line: row.equation for row in lc.price(derived.reverse, sizes).rows}
    expected = {"dA": "22", "dWO": "23", "dV": "24", "dXV": "25-26", "dWV": "27", "dP": "29", "dS": "29", "dR": "29"}
    expected |= {"dQ": "30", "dXQ": "31-32", "dWQ": "33", "dK": "34", "dXK": "35-36", "dWK": "37"}
    if jacobian:
        expected["JS"] = "28"
    assert numbers == expected


@pytest.mark.parametrize("jacobian", [False, True])
@pytest.mark.parametrize("name", ["norm", "add_norm"])
def test_derived_lines_of_norms_equal_the_printed_equations(name, jacobian):
    table = shipped_layer(name).table
    generator = np.random.default_rng(4)
    arrays = {n: generator.standard_normal(s) for n, s in {"X": (1, M, D), "F": (1, M, D), "g": D, "b": D}.items()}
    arrays = {n: arrays[n] for n in (*table.inputs, *table.weights)}
    derived = lc.derive(table, jacobian=jacobian)
    sizes = infer_sizes(table, arrays)
    seeds = seeds_of(table, sizes)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    x = (arrays["X"] + arrays.get("F", 0))[0]
    dy, z, g = seeds["dY"][0], printed.normalised(x, 1e-5), arrays["g"]
    normalisation = printed.normalisation_jacobian(x, 1e-5)
    dx = printed.equation_44(printed.equation_43(dy, g), normalisation)
    through = "dR" if name == "add_norm" else "dX"
    expected = {"dg": printed.equation_41(dy, z), "db": printed.equation_42(dy)}
    expected |= {"dZ": printed.equation_43(dy, g)[None], through: dx[None]}
    if jacobian:
        expected[f"J{through[1:]}"] = normalisation[None]
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-8, atol=1e-11, err_msg=key)
    numbers = {row.line: row.equation for row in lc.price(derived.reverse, sizes).rows}
    assert {"dg": "41", "db": "42", "dZ": "43", through: "44"}.items() <= numbers.items()


def test_derived_lines_of_the_head_equal_the_printed_equations():
    table = shipped_layer("head").table
    generator = np.random.default_rng(5)
    arrays = {"X": generator.standard_normal((1, M, D)), "W": generator.standard_normal((D, V))}
    target = np.eye(V)[[3, 0, 10]]
    derived = lc.derive(table)
    sizes = infer_sizes(table, arrays)
    values = values_of(derived.step, {**arrays, "dP": -target[None]}, sizes)
    s = printed.equation_45(arrays["X"][0], arrays["W"])
    dz = printed.output_error(s, target)
    np.testing.assert_allclose(np.exp(values["P"][0]), s, rtol=1e-9)
    np.testing.assert_allclose(values["dL"][0], dz, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(values["dX"][0], printed.equation_46(dz, arrays["W"]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(values["dW"], printed.equation_47(arrays["X"][0], dz), rtol=1e-9, atol=1e-12)
    numbers = {row.line: row.equation for row in lc.price(derived.reverse, sizes).rows}
    assert {"dX": "46", "dW": "47"}.items() <= numbers.items()


def test_the_feed_forward_and_the_error_projection_equal_the_printed_equations():
    generator = np.random.default_rng(6)
    shapes = {"X": (1, M, D), "W1": (D, F), "b1": F, "W2": (F, D), "b2": D}
    arrays = {n: generator.standard_normal(s) for n, s in shapes.items()}
    dy = generator.standard_normal((M, D))
    values = lc.run(shipped_layer("feed_forward"), {**arrays, "dY": dy[None]})
    x, w1, b1, w2, b2 = arrays["X"][0], *(arrays[n] for n in ("W1", "b1", "W2", "b2"))
    np.testing.assert_allclose(values["Y"][0], printed.equation_38(x, w1, b1, w2, b2), rtol=1e-9)
    expected = printed.equation_38_backward(x, w1, b1, w2, dy)
    for ours, theirs in {"dW1": "w_1", "db1": "b_1", "dW2": "w_2", "db2": "b_2"}.items():
        np.testing.assert_allclose(values[ours], expected[theirs], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(values["dX"][0], expected["x"], rtol=1e-9)
    tokens, e = generator.integers(0, V, (1, N)), generator.standard_normal((1, M, V))
    projected = lc.run(shipped_layer("error_projection"), {"tokens": tokens, "e": e})["F"][0]
    np.testing.assert_allclose(projected, printed.equation_48(np.eye(V)[tokens[0]], e[0]), rtol=1e-9)


def test_products_that_are_added_at_an_index_are_maccs():
    """Of an expert's gradient every token has a multiplication and an addition for each of the expert's weights."""
    layer = lc.layer("experts(X own; W) -> Y\n  Y[B f] = X[B d] W[e=own[B] d f] 0.5[]")
    sizes = {"B": 5, "d": 3, "f": 4, "e": 2}
    rows = {row.line: row for row in lc.price(lc.derive(layer).step, sizes).rows}
    terms = 5 * 3 * 4
    assert [rows[line].maccs.at(sizes) for line in ("Y", "dX", "dW")] == [terms] * 3
    assert rows["dW"].flops.at(sizes) == 3 * terms  # and each is multiplied by the number
    # Where no two terms meet there is no sum, and what was summed before is not counted again.
    apart = lc.layer("apart(X Z own) -> Y\n  Y[B v=own[B]] = X[B] Z[B]")
    assert lc.price(apart, {"B": 5, "v": 3}).maccs == 0
    before = lc.layer("before(X Z own) -> Y\n  Y[v=own[B]] = X[B d] Z[B d]")
    assert lc.price(before, {"B": 5, "v": 3, "d": 7}).maccs == 35


# What a value is stands in its record, not in its name.

MARKED = ("{}.mask", "{}.new", "{}.gradient", "{}.cache", "{}.F", "{}.total", "{}.M", "d{}")


def stepped(mark):
    """A layer in a repeat, whose weights and inner values have marked names: its step, and what all readings say."""

    def marked(text):
        return text.format(**{name: mark.format(name) for name in "WUHG"})

    inner = lc.layer(
        marked("""inner(X; {W} {U}) -> Y
      {H}[B f] = X[B d] {W}[d f]
      {G}[B f] = tanh({H}[B f])
      Y[B d] = {G}[B f] {U}[f d]""")
    )
    layer = lc.layer("outer(X;) -> X\nrepeat n carry X:\n  X[B d] = inner(X; block)", {"inner": inner})
    weights = [f"block.{mark.format(name)}" for name in "WU"]
    derived = lc.derive(layer)
    gradients = {name: derived.gradients[name] for name in weights}
    step = with_optimizer(derived.step, gradients, OPTIMIZERS["adamw"])
    generator, sizes = np.random.default_rng(0), {"B": 2, "d": 3, "f": 5, "n": 4}
    shapes = [[4, 3, 5], [4, 5, 3]]
    arrays = {name: generator.standard_normal(shape) for name, shape in zip(weights, shapes, strict=True)}
    values = lc.run(layer, {"X": generator.standard_normal((2, 3)), "dX": np.ones((2, 3)), **arrays})
    halves = accumulated(without_gradients(step))
    rows = [(row.layer, row.macro_operation, str(row.maccs), str(row.flops)) for row in lc.price(step, sizes).rows]
    read = (values["X"].tolist(), [values[f"d{name}"].tolist() for name in weights], rows, lc.live(step, sizes).peak)
    counts = [len(names) for names in (step.renewed, step.constants, halves.sums, halves.update.inputs)]
    return layer.table.weights == tuple(weights), read, counts


@pytest.mark.parametrize("mark", MARKED)
def test_a_name_says_nothing_of_what_a_value_is(mark):
    """Weights and values that are called as masks, new weights, states or gradients are, and are none."""
    assert stepped(mark) == stepped("{}")


def test_who_makes_a_value_says_what_it_is():
    layer = lc.layer("""twice(X; W) -> X
      repeat n carry X:
        H[B d] = tanh(X[B d])
        X[B d] = H[B d'] W[d' d]
      Y[B d] = X[B d] X[B d]
      X[B d] = Y[B d] X[B d]""")
    step = with_optimizer(lc.derive(layer).step, {"W": "dW"}, OPTIMIZERS["momentum"])
    roles = {name: (value.role, value.of) for name, value in step.known.items()}
    assert roles["dW"] == ("gradient", "W")
    assert roles["W.V"] == ("state", "W")
    assert roles["W.new"] == ("new", "W")
    assert roles["W.V.new"] == ("new", "W.V")
    assert roles["lr"] == ("number", "lr")
    assert roles["H*"] == ("saved", "H")
    assert [role for role in roles.values() if role[0] == "part"] == [("part", "X.3")] * 3
    assert step.renewed == {"W": "W.new", "W.V": "W.V.new"}
    assert [step.header(name) for name in layer.table.outputs] == ["X"]
