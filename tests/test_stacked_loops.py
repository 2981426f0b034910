"""Loops that read a slice of a stack per iteration (`each`) and stack a value of every iteration (`keep`)."""

import numpy as np
import pytest
import torch

import learncost as lc
from counting import counting, tally_of
from learncost.interpreter import execute, infer_sizes

N, B, D, V = 4, 2, 3, 5
generator = np.random.default_rng(7)


def draw(*shape):
    return generator.standard_normal(shape)


def check(text, arrays, foreign, **called):
    """Values and gradients against torch, the price against a count, every table through `live`."""
    layer = lc.layer(text, called)
    table = layer.table
    outputs = [name.partition(".")[0] for name in table.outputs]
    values = lc.run(layer, arrays)
    seeds = {f"d{name}": draw(*values[name].shape) for name in outputs}
    found = lc.run(layer, {**arrays, **seeds})
    names = [n for n in (*table.inputs, *table.weights) if n not in table.indices]
    tensors = {n: torch.tensor(a, requires_grad=n in names) for n, a in arrays.items()}
    results = foreign(**tensors)
    for name in outputs:
        np.testing.assert_allclose(found[name], results[name].detach().numpy(), 1e-12, err_msg=name)
    total = sum((results[n] * torch.tensor(seeds[f"d{n}"])).sum() for n in outputs)
    for name, gradient in zip(names, torch.autograd.grad(total, [tensors[n] for n in names]), strict=True):
        np.testing.assert_allclose(found[f"d{name}"], gradient.numpy(), 1e-11, 1e-12, err_msg=f"d{name}")
    derived = lc.derive(layer)
    sizes = infer_sizes(table, arrays)
    arrays_counting = {n: counting(a) for n, a in arrays.items()}
    arrays_counting |= {f"d{name}": counting(seeds[f"d{name.partition('.')[0]}"]) for name in table.outputs}
    _, units = tally_of(execute, lc.lower(derived.step), arrays_counting, sizes)
    assert units == lc.price(derived.step, sizes, "run").flops
    assert lc.live(derived, sizes).peak > 0
    return derived


def test_a_stack_that_is_kept_and_read_again_beside_the_last_value():
    text = """scan(X h; U) -> Y h H
  repeat n carry h each x=X keep H=h shared U:
    R[B d'] = h[B d] U[d d']
    S[B d] = R[B d] + x[B d]
    h[B d] = tanh(S[B d])
  Y[n B d] = H[n B d] H[n B d]"""

    def foreign(X, h, U):
        states = []
        for x in X:
            h = torch.tanh(h @ U + x)
            states.append(h)
        H = torch.stack(states)
        return {"Y": H * H, "h": h, "H": H}

    check(text, {"X": draw(N, B, D), "h": draw(B, D), "U": draw(D, D)}, foreign)


def test_only_the_stack_is_read_and_what_is_kept_is_not_carried():
    text = """scan(X h; U) -> Z
  repeat n carry h each x=X keep Z=z shared U:
    z[B d'] = x[B d] U[d d']
    G[B d] = h[B d] z[B d]
    h[B d] = tanh(G[B d])"""

    def foreign(X, h, U):
        return {"Z": X @ U + 0 * h.sum()}

    derived = check(text, {"X": draw(N, B, D), "h": draw(B, D), "U": draw(D, D)}, foreign)
    assert "dG" not in str(derived.reverse)


def test_a_kept_value_that_later_lines_of_the_turn_read():
    text = """scan(X h; U) -> Z h
  repeat n carry h each x=X keep Z=z shared U:
    z[B d'] = x[B d] U[d d']
    G[B d] = h[B d] z[B d]
    h[B d] = tanh(G[B d])"""

    def foreign(X, h, U):
        states = []
        for x in X:
            states.append(x @ U)
            h = torch.tanh(h * states[-1])
        return {"Z": torch.stack(states), "h": h}

    check(text, {"X": draw(N, B, D), "h": draw(B, D), "U": draw(D, D)}, foreign)


def test_slices_of_an_index_and_of_a_value_made_before():
    text = """scan(tokens E h; W) -> H
  T[n B d] = tanh(E[n B d])
  repeat n carry h each t=tokens, x=T keep H=h shared W:
    e[B d] = W[v=t[B] d]
    S[B d] = e[B d] + x[B d] + h[B d]
    h[B d] = tanh(S[B d])"""

    def foreign(tokens, E, h, W):
        states = []
        for t, x in zip(tokens, torch.tanh(E), strict=True):
            h = torch.tanh(W[t] + x + h)
            states.append(h)
        return {"H": torch.stack(states)}

    arrays = {"tokens": generator.integers(0, V, (N, B)), "E": draw(N, B, D), "h": draw(B, D), "W": draw(V, D)}
    assert lc.layer(text).table.indices == {"tokens"}
    check(text, arrays, foreign)


def test_own_weights_stand_beside_slices_and_the_stack_of_a_stack():
    text = """scan(X h; W) -> K
  repeat n carry h each x=X keep K=H:
    g[m B d] = x[m B d] W[d]
    repeat m carry h each y=g keep H=h:
      S[B d] = h[B d] + y[B d]
      h[B d] = tanh(S[B d])"""

    def foreign(X, h, W):
        outer = []
        for x, w in zip(X, W, strict=True):
            inner = []
            for y in x * w:
                h = torch.tanh(h + y)
                inner.append(h)
            outer.append(torch.stack(inner))
        return {"K": torch.stack(outer)}

    check(text, {"X": draw(N, 2, B, D), "h": draw(B, D), "W": draw(N, D)}, foreign)


LSTM = """lstm(X h c; W U b) -> Y h c
  G[M B a e] = X[B M d] W[d a e]
  I[M B a e] = G[M B a e] + b[a e]
  repeat M carry h c each x=I keep H=h shared U:
    R[B a e'] = h[B e] U[e a e']
    S[B a e] = R[B a e] + x[B a e]
    i[B e] = sigmoid(S[B a=0[] e])
    f[B e] = sigmoid(S[B a=1[] e])
    g[B e] = tanh(S[B a=2[] e])
    o[B e] = sigmoid(S[B a=3[] e])
    C[B e] = f[B e] c[B e]
    D[B e] = i[B e] g[B e]
    c[B e] = C[B e] + D[B e]
    t[B e] = tanh(c[B e])
    h[B e] = o[B e] t[B e]
  Y[B M e] = H[M B e]"""


def test_layers_with_repeats_are_called_and_run_backwards_in_a_repeat():
    """Two bidirectional layers of PyTorch's LSTM, the two directions added."""
    text = """stack(X h c) -> X Z
  repeat n carry X keep Z=z:
    F[B M e] z[B e] cf[B e] = forth(X, h, c; forth, d = e')
    G[B M e] hb[B e] cb[B e] = back(X, h, c; back, d = e')
    X[B M e] = F[B M e] + G[B M e]"""
    layers = {"forth": lc.layer(LSTM), "back": lc.layer(LSTM.replace("repeat M", "repeat M backwards"))}
    assert "repeat M backwards carry" in str(layers["back"].table)

    def foreign(X, h, c, **weights):
        last = []
        for iteration in range(2):
            lstm = torch.nn.LSTM(D, D, batch_first=True, bidirectional=True, dtype=torch.float64)
            weights_torch = {}
            for name, end in (("forth", "l0"), ("back", "l0_reverse")):
                weights_torch[f"weight_ih_{end}"] = weights[f"{name}.W"][iteration].flatten(1).T
                weights_torch[f"weight_hh_{end}"] = weights[f"{name}.U"][iteration].flatten(1).T
                weights_torch[f"bias_ih_{end}"] = weights[f"{name}.b"][iteration].flatten()
                weights_torch[f"bias_hh_{end}"] = torch.zeros(4 * D, dtype=torch.float64)
            start = torch.stack([h, h]), torch.stack([c, c])
            both, (states, _) = torch.func.functional_call(lstm, weights_torch, (X, start))
            X = both[..., :D] + both[..., D:]
            last.append(states[0])
        return {"X": X, "Z": torch.stack(last)}

    shapes = {"W": (2, D, 4, D), "U": (2, D, 4, D), "b": (2, 4, D)}
    arrays = {f"{name}.{weight}": draw(*shape) for name in layers for weight, shape in shapes.items()}
    check(text, {"X": draw(B, N, D), "h": draw(B, D), "c": draw(B, D)} | arrays, foreign, **layers)


def test_a_call_names_the_count_and_two_calls_may_share_stacks():
    deep = lc.layer("""deep(X; W) -> X
  repeat n carry X:
    H[B d'] = X[B d] W[d d']
    X[B d] = tanh(H[B d])""")

    def foreign(X, w):
        for weight in (*w, *w):
            X = torch.tanh(X @ weight)
        return {"X": X}

    text = """twice(X; w) -> X
  X[B d] = deep(X; w, n = m)
  X[B d] = deep(X; w, n = m)"""
    check(text, {"X": draw(B, D), "w": draw(N, D, D)}, foreign, deep=deep)
    assert lc.layer(text, {"deep": deep}).table.axes["w"] == ("m", "d", "d'")
    assert lc.layer(text.replace("n = m", "n = 3"), {"deep": deep}).table.axes["w"] == ("3", "d", "d'")
    with pytest.raises(lc.NotationError, match="deep has no axis k; it has B, d, n"):
        lc.layer(text.replace("n = m", "k = m"), {"deep": deep})
    with pytest.raises(lc.NotationError, match="expected the name of an axis or a whole number of iterations, not 0"):
        lc.layer(text.replace("n = m", "n = 0"), {"deep": deep})
    with pytest.raises(lc.NotationError, match="B is an axis of deep: give it a name"):
        lc.layer(text.replace("n = m", "B = 3"), {"deep": deep})


def test_a_weight_of_a_call_in_a_repeat_that_is_read_after_it_too_is_shared():
    table = lc.layer("""twice(X) -> X
  repeat n carry X:
    X[B M d] = norm(X; ln)
  X[B M d] = norm(X; ln)""").table
    assert table.axes["ln.g"] == ("d",)
    assert not table.lines[0].each


NETWORK = """network(X h targets share; W U V) -> loss
  I[M B e] = X[B M d] W[d e]
  repeat M carry h each x=I keep H=h shared U:
    R[B e'] = h[B e] U[e e']
    S[B e] = R[B e] + x[B e]
    h[B e] = tanh(S[B e])
  L[B M v] = H[M B e] V[e v]
  P[B M v] = log_softmax[v](L[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]
constants: share"""


def test_a_stack_is_kept_once_and_outlives_recomputation():
    # What goes into a turn is what left the turn before, so it is kept in H; into the first one goes the input h.
    derived = lc.derive(lc.layer(NETWORK))
    assert sorted(array.name for array in lc.live(derived, {"B": 2, "M": 4, "d": 3, "e": 5, "v": 6}).saved) == [
        "H", "P", "X", "h", "share", "targets"
    ]  # fmt: skip
    weights = {"W": draw(D, 5), "U": draw(5, 5), "V": draw(5, V)}
    batch = {"X": draw(B, N, D), "h": np.zeros((B, 5)), "targets": generator.integers(0, V, (B, N))}
    gradients = [
        lc.LayerTraining(lc.layer(NETWORK), weights, procedure, "sgd", dtype=np.float64).updates(**batch)
        for procedure in ("bp", "recompute")
    ]
    for name in weights:
        np.testing.assert_array_equal(gradients[0][name], gradients[1][name])


def test_it_prints_as_it_is_written():
    head = "repeat M carry h->h.2 each x=I keep H=h.2:"
    assert head in str(lc.layer(RECURRENT).table)


RECURRENT = """scan(I h; U) -> H
  repeat M carry h each x=I keep H=h shared U:
    R[B e'] = h[B e] U[e e']
    h[B e] = R[B e] + x[B e]"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("each x=I", "each x", "take pairs"),
        ("each x=I", "each x=Q", "Q is not defined"),
        ("each x=I", "each U=I", "U is defined already"),
        ("+ x[B e]", "+ R[B e]", "x is a slice of I that no line reads"),
        ("keep H=h", "keep H=U", "U is collected by keep but not defined inside"),
        ("keep H=h", "keep H=q", "q is collected by keep but not defined inside"),
        ("  repeat", "  I[B M e] = I[B M e] + I[B M e]\n  repeat", "must have M as its first axis"),
        ("carry h", "carries h", "a loop is written"),
    ],
)
def test_refusals(old, new, message):
    assert old in RECURRENT
    with pytest.raises(lc.NotationError, match=message):
        lc.layer(RECURRENT.replace(old, new))


def test_a_repeat_within_shares_what_the_lines_around_it_read():
    """V is each outer turn's own and shared by the inner turns; a turn that reads nothing of what it carries."""
    text = """t(X; W V) -> X
  repeat 2 carry X:
    H[d] = X[d] V[d]
    repeat n carry H:
      H[d] = H[d] V[d]
    repeat 3 carry X:
      X[d] = H[d] W[d]"""
    generator = np.random.default_rng(0)
    x, v, w, seed = (generator.standard_normal(shape) for shape in (4, (2, 4), (2, 3, 4), 4))
    values = lc.run(lc.layer(text), {"X": x, "V": v, "W": w, "dX": seed}, {"n": 2})
    # Of each inner loop the last turn's W alone is seen.
    expected = x * v[0] ** 3 * w[0, 2] * v[1] ** 3 * w[1, 2]
    np.testing.assert_allclose(values["X"], expected)
    np.testing.assert_allclose(values["dV"], seed * 3 * expected / v)
    np.testing.assert_allclose(values["dW"][:, 2], seed * expected / w[:, 2])
    assert not values["dW"][:, :2].any()


def test_what_is_zero_in_a_stack_is_zero_in_its_slices():
    """A condition on a stack's axes is one on its slices' axes, a place further to the left, and back."""
    text = """t(X h; U) -> Y h
  I[M B e] = X[M B e] 2[] where B <= e
  repeat M carry h each x=I keep H=h shared U:
    R[B e'] = h[B e] U[e e']
    S[B e] = R[B e] + x[B e] where B <= e
    h[B e] = S[B e] 0.5[]
  Y[B M e] = H[M B e] where B < e"""
    layer = lc.layer(text)
    generator = np.random.default_rng(0)
    x, h, u = (generator.standard_normal(shape) for shape in ((2, 3, 4), (3, 4), (4, 4)))
    inside, strict = np.triu(np.ones((3, 4))), np.triu(np.ones((3, 4)), 1)
    rows, last = [], h
    for iteration in range(2):
        last = (last @ u + 2 * x[iteration] * inside) * inside * 0.5
        rows.append(last * strict)
    np.testing.assert_allclose(lc.run(layer, {"X": x, "h": h, "U": u})["Y"], np.stack(rows, axis=1))


def test_a_total_begins_with_its_first_part():
    """What all turns share, also in turns within turns and where only a part of it is read, is proved line by line."""
    text = """t(Y T; W V U) -> Y
  repeat n carry Y shared W V:
    Z[v=T[a] b] = Y[] W[a b] where a < b
    D[] = Z[v b] V[v b]
    repeat 2 carry Y shared W:
      E[a b] = Y[] W[a b]
      S[] = E[a b] W[a b] 0.1[]
      Y[] = S[] + D[]
    P[] = Y[] U[]
    Y[] = Y[] + P[]"""
    layer = lc.layer(text)
    report = lc.check_layer(layer)
    assert report.passed, str(report)
    sizes = {"a": 2, "b": 3, "v": 5, "n": 4}
    merges = [row.flops.at(sizes) for row in lc.price(lc.derive(layer).step, sizes).rows if row.line == "merge"]
    assert merges.count((4 - 1) * 5 * 3) == 1  # dV: three turns add to the first one's part
    assert merges.count(4 * (2 - 1) * 2 * 3 * 1) == 1  # dW of the turns within, which begin anew in each of the others
