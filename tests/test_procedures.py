"""What the procedures compute: against one another, against differences, and against PEPITA written once more."""

import numpy as np
import pytest
import torch

import learncost as lc
import post_norm
from learncost.interpreter import execute
from learncost.models.model import build
from learncost.procedures.procedure import move, procedure
from trainings import LEARNING, SIZES, batch, training

STEPS = 3
TIED = {"encoder": True, "decoder": True, "encoder-decoder": True, "gpt2": False}


def steps(model, procedure, optimizer="sgd", padding=False, bare=False, more=None, **settings):
    """The weights, the losses and the optimizer's state after some steps."""
    trained = training(model, procedure, optimizer, bare, more, learning_rate=0.05, **settings)
    losses = []
    for i in range(STEPS):
        tokens, extra = batch(model, i, padding, bare)
        losses.append(trained.step(tokens, **extra))
    return {**trained.weights, **trained.state, "loss": np.array(losses)}


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype
        assert array.tobytes() == two[name].tobytes(), name
        assert np.isfinite(array).all() or name == "loss", name


CASES = [
    {},
    {"dropout": 0.25, "optimizer": "momentum"},
    {"padding": True, "dropout": 0.1, "optimizer": "adamw", "weight_decay": 0.1},
    {"dtype": np.float32, "seed": 5},
]


@pytest.mark.one_in(every=34)
@pytest.mark.parametrize("case", CASES, ids=["plain", "momentum", "padded", "float32"])
@pytest.mark.parametrize("mode", ["paper", "stable"])
@pytest.mark.parametrize("model", LEARNING)
def test_mempepita_equals_pepita_bit_for_bit(model, mode, case):
    assert_same(steps(model, "mempepita", mode=mode, **case), steps(model, "pepita", mode=mode, **case))
    if model in TIED:
        more = {"tie_word_embeddings": TIED[model]}
        first, second = (steps(model, name, mode=mode, more=more, **case) for name in ("mempepita", "pepita"))
        assert_same(first, second)


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("case", CASES, ids=["plain", "momentum", "padded", "float32"])
@pytest.mark.parametrize("model", [*LEARNING, "bare"])
def test_recomputation_equals_backpropagation_bit_for_bit(model, case):
    bare = model == "bare"
    model = "bert-base-uncased" if bare else model
    first, second = (steps(model, name, bare=bare, **case) for name in ("recompute", "bp"))
    assert_same(first, second)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", [*LEARNING, "bare"])
def test_every_gradient_is_the_complex_step(model, every):
    """Im loss(W + i h)/h for every entry of every weight, or one in so many, with dropout and padding in the table."""
    bare = model == "bare"
    name = "bert-base-uncased" if bare else model
    trained = training(
        name, "bp", bare=bare, dropout=0.2, more={"head_dim": 3, "intermediate_size": 4, "vocab_size": 7}
    )
    tokens, extra = batch(name, padding=True, bare=bare, rows=2)
    tokens %= 7
    for key in ("encoder_tokens", "targets"):
        if key in extra:
            extra[key] = np.where(extra[key] >= 0, extra[key] % 7, -1)
    prepared = trained.prepare(tokens, **extra)
    gradients = trained.updates(tokens, **extra)
    plain = build(trained.configuration, dropout=True, padding=True).table
    lowered = lc.lower(plain)
    step = 1e-20

    def derivative(weight, place):
        values = dict(prepared.values)
        values[weight] = values[weight].astype(complex)
        values[weight][place] += step * 1j
        execute(lowered, values, prepared.sizes)
        if not bare:
            return values["loss"].imag / step
        return sum((values[n].imag * prepared.values[f"d{n}"]).sum() for n in plain.outputs) / step

    assert gradients.keys() == set(plain.weights)
    for weight, gradient in gradients.items():
        expected = [derivative(weight, place) for place in list(np.ndindex(gradient.shape))[::every]]
        np.testing.assert_allclose(gradient.ravel()[::every], expected, 1e-9, 1e-12, err_msg=weight)


# PEPITA written once more.


def tensors(found):
    return {name: torch.tensor(np.asarray(array, np.float64)) for name, array in found.weights.items()}


def foreign(model, found, residual, tokens, given):
    """A function from one-hot inputs to a pass's scores, the pass that notes, and the inputs."""
    weights = tensors(found)
    keep = torch.as_tensor(given["mask"]) if "mask" in given else None
    voc = SIZES["vocab_size"]
    inputs = [post_norm.one_hot(tokens, voc)]
    if model == "encoder-decoder":
        inputs = [post_norm.one_hot(given["encoder_tokens"], voc), *inputs]
    source_keep = torch.as_tensor(given["encoder_mask"]) if "encoder_mask" in given else None

    def run(*one_hots):
        run_pass = post_norm.Pass(weights, residual)
        if model == "encoder-decoder":
            return run_pass.two_sided(*one_hots, source_keep, keep), run_pass
        return run_pass.one_sided(*one_hots, model == "decoder", keep), run_pass

    return run, inputs, keep


def targets_of(model, tokens, given):
    if "targets" in given:
        return np.where(given["mask"], given["targets"], -1) if "mask" in given else given["targets"]
    targets = np.concatenate([tokens[:, 1:], np.full((len(tokens), 1), -1)], axis=1)
    if "mask" in given:
        targets[:, :-1][~given["mask"][:, 1:]] = -1
    return targets


def modulation(model, inputs, e, given, keep):
    if model != "encoder-decoder":
        return [e]
    return [post_norm.projected(inputs[0], e, keep), e]


GENERIC = ["encoder", "decoder", "encoder-decoder"]


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("model", GENERIC)
def test_gradients_equal_torch(model, padding):
    trained = training(model)
    tokens, extra = batch(model, padding=padding)
    run, inputs, _ = foreign(model, trained, False, tokens, extra)
    weights = run(*inputs)[1].weights
    for tensor in weights.values():
        tensor.requires_grad_()
    targets = torch.as_tensor(targets_of(model, tokens, extra))
    loss = torch.nn.functional.cross_entropy(run(*inputs)[0].flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    for name, update in trained.updates(tokens, **extra).items():
        np.testing.assert_allclose(update, weights[name].grad, 1e-9, 1e-12, err_msg=name)
    assert trained.step(tokens, **extra) == pytest.approx(loss.item(), rel=1e-12)


@pytest.mark.parametrize("mode", ["paper", "stable"])
@pytest.mark.parametrize("model", GENERIC)
def test_pepita_equals_pepita_written_once_more(model, mode):
    stable = mode == "stable"
    trained = training(model, "pepita", mode=mode)
    tokens, extra = batch(model)
    run, inputs, keep = foreign(model, trained, stable, tokens, extra)
    scores, first = run(*inputs)
    e, count = post_norm.error(scores, targets_of(model, tokens, extra))
    strength = -0.05 if stable else 1.0
    added = modulation(model, inputs, e, extra, keep)
    _, second = run(*(t + strength * more for t, more in zip(inputs, added, strict=True)))
    expected = post_norm.updates(first.weights, first, second, e, count, stable)
    assert expected.keys() == trained.weights.keys()
    for name, update in trained.updates(tokens, **extra).items():
        np.testing.assert_allclose(update, expected[name], 1e-9, 1e-12, err_msg=name)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("model", GENERIC)
def test_small_modulations_tend_to_the_directional_derivative(model, sign):
    """(a - a_mod)/scale -> -sign J e, with torch's forward-mode derivative of each compared value."""
    scale = 1e-7
    trained = training(model, "pepita", sign=sign, scale=scale)
    tokens, extra = batch(model)
    run, inputs, keep = foreign(model, trained, False, tokens, extra)
    scores, first = run(*inputs)
    e, count = post_norm.error(scores, targets_of(model, tokens, extra))
    added = modulation(model, inputs, e, extra, keep)

    def compared(*one_hots):
        _, run_pass = run(*one_hots)
        return {
            (n, t): a for n, iterations in run_pass.note.items() for t, (a, _) in iterations.items() if a is not None
        }

    _, derivative = torch.func.jvp(compared, tuple(inputs), tuple(added))
    for name, update in trained.updates(tokens, **extra).items():
        if name == "head.W":
            continue
        iterations = [None] if None in first.note[name] else sorted(first.note[name])
        parts = []
        for iteration in iterations:
            before, delta = first.note[name][iteration][1], -sign * derivative[name, iteration]
            summed = (delta * before).flatten(0, 1).sum(0) if name.endswith(".g") else post_norm.outer(before, delta)
            parts.append(summed / count)
        expected = parts[0] if iterations == [None] else torch.stack(parts)
        np.testing.assert_allclose(update / scale, expected, 1e-5, 1e-6 * float(expected.abs().max()), err_msg=name)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("mode", ["paper", "stable"])
@pytest.mark.parametrize("model", LEARNING)
def test_without_a_modulation_only_the_head_learns_as_it_does_by_backpropagation(model, mode):
    tokens, extra = batch(model, padding=True)
    tied = training(model).configuration.tied
    more = {"tie_word_embeddings": False} if tied else {}
    still = training(model, "pepita", mode=mode, scale=0.0, more=more).updates(tokens, **extra)
    learned = training(model, "bp", more=more).updates(tokens, **extra)
    for name, update in still.items():
        if name.startswith("head."):
            np.testing.assert_array_equal(update, learned[name])
            assert update.any()
        else:
            assert not update.any(), name
    if tied:  # the head's part is all that is left of the shared table's update
        untied = training(model, "pepita", mode=mode, scale=0.0)
        values = untied.forward(tokens, **extra)
        head = untied.updates(tokens, **extra)
        assert {name for name, update in head.items() if update.any()} <= {"wte", "head.b"}
        e, count = post_norm.error(torch.as_tensor(values["P"]), targets_of(model, tokens, extra))
        np.testing.assert_allclose(head["wte"], post_norm.outer(e, torch.as_tensor(values["Y"])) / count, 1e-9, 1e-12)


def test_passes_are_counted_off_the_schedules():
    """Pau & Aymone 2024, table 2: forward, backward and weight-update passes, and projections of the error."""
    counted = {name: procedure(name).passes for name in ("bp", "recompute", "pepita", "mempepita")}
    columns = ("forward", "backward", "weight_update", "error_projection")
    table_2 = {"bp": (1, 1, 1, 0), "pepita": (2, 0, 1, 1), "mempepita": (3, 0, 1, 1)}
    for name, passes in table_2.items():
        assert tuple(counted[name].get(column, 0) for column in columns) == passes
    assert counted["recompute"] == {**counted["bp"], "recomputation": 1}


@pytest.mark.parametrize("text", ["backwards", "update of", "error by error_projection"])
def test_what_is_no_move_is_refused(text):
    with pytest.raises(lc.InputError, match=f"no move is called '{text}'"):
        move(text)


def test_a_model_without_targets_is_refused():
    with pytest.raises(lc.InputError, match="no output to learn from"):
        training("bert-base-uncased", "pepita", bare=True)


# Layers of one's own.

NETWORK = """network(X targets share; W1 W2 W3) -> loss
  H[B f] = X[B d] W1[d f]
  G[B f] = sigmoid(H[B f])
  K[B g] = G[B f] W2[f g]
  U[B g] = tanh(K[B g])
  L[B c] = U[B g] W3[g c]
  P[B c] = log_softmax[c](L[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
constants: share"""


def network(procedure, **settings):
    generator = np.random.default_rng(4)
    shapes = {"W1": (6, 5), "W2": (5, 7), "W3": (7, 3)}
    weights = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    training = lc.LayerTraining(lc.layer(NETWORK), weights, procedure, projected=("X",), **settings)
    return training, {"X": generator.standard_normal((4, 6)), "targets": np.array([0, 2, -1, 1])}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_network_of_the_reference():
    """x + F e, then (a - a_mod) times the modulated pass's input, the last layer by e."""
    trained, inputs = network("pepita")
    w1, w2, w3 = trained.weights.values()
    x, is_answer = inputs["X"], inputs["targets"] >= 0
    updates = trained.updates(**inputs)
    fixed = trained.fixed["X.F"]
    assert fixed.shape == (3, 6)
    assert np.abs(fixed).max() <= 0.05
    g = sigmoid(x @ w1)
    u = np.tanh(g @ w2)
    scores = u @ w3
    e = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[inputs["targets"]]
    e *= is_answer[:, None]
    x2 = x + e @ fixed
    g2 = sigmoid(x2 @ w1)
    u2 = np.tanh(g2 @ w2)
    np.testing.assert_allclose(updates["W1"], x2.T @ (g - g2) / 3, 1e-10, 1e-14)
    np.testing.assert_allclose(updates["W2"], g2.T @ (u - u2) / 3, 1e-10, 1e-14)
    np.testing.assert_allclose(updates["W3"], u2.T @ e / 3, 1e-10, 1e-14)


def test_equation_1_holds_with_the_sign_turned():
    """For x + F e the first layer's update tends to -[(W_1 F e) * a_1'] x^T."""
    scale = 1e-7
    trained, inputs = network("pepita", scale=scale)
    updates = trained.updates(**inputs)
    values = trained.forward(**inputs)
    e, count = post_norm.error(torch.as_tensor(values["L"]), inputs["targets"])
    pushed = e.numpy() @ trained.fixed["X.F"] @ trained.weights["W1"]
    slope = values["G"] * (1 - values["G"])
    printed = inputs["X"].T @ (pushed * slope) / count
    np.testing.assert_allclose(updates["W1"] / scale, -printed, 1e-5, 1e-9)


def test_a_fixed_matrix_may_lead_to_an_embedding():
    """A head whose width is not the vocabulary: F e is added to the embedding of every position."""
    text = """classifier(tokens pool targets share; wte W) -> loss
  E[B M d] = embedding(tokens; wte)
  Q[B M d] = tanh(E[B M d])
  S[B d] = Q[B M d] pool[M]
  L[B c] = S[B d] W[d c]
  P[B c] = log_softmax[c](L[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
constants: pool share"""
    generator = np.random.default_rng(7)
    weights = {"wte": generator.standard_normal((9, 5)), "W": generator.standard_normal((5, 3))}
    inputs = {"tokens": generator.integers(0, 9, (4, 6)), "targets": np.array([0, 2, 1, 1]), "pool": np.full(6, 1 / 6)}
    trained, memory = (
        lc.LayerTraining(lc.layer(text), weights, name, projected=("E",), dtype=np.float64)
        for name in ("pepita", "mempepita")
    )
    updates = trained.updates(**inputs)
    values = trained.forward(**inputs)
    e = np.exp(values["P"]) - np.eye(3)[inputs["targets"]]
    pushed = (e @ trained.fixed["E.F"])[:, None, :]
    rows = weights["wte"][inputs["tokens"]]
    difference = np.tanh(rows) - np.tanh(rows + pushed)
    expected = np.zeros((9, 5))
    np.add.at(expected, inputs["tokens"], difference / 4)
    np.testing.assert_allclose(updates["wte"], expected, 1e-10, 1e-14)
    for name, update in memory.updates(**inputs).items():
        np.testing.assert_array_equal(update, updates[name])


def test_a_layer_without_its_answers_is_refused():
    weights = {"W1": np.ones((6, 5)), "W2": np.ones((5, 7)), "W3": np.ones((7, 3))}
    training = lc.LayerTraining(lc.layer(NETWORK.replace("constants: share", "share: share of targets")), weights)
    with pytest.raises(lc.InputError, match=r"^the array targets\[B\] is missing: give it$"):
        training.step(X=np.ones((2, 6)))
    with pytest.raises(lc.InputError, match=r"^the batch has no target: give at least one that is not negative$"):
        training.step(X=np.ones((2, 6)), targets=np.full(2, -1))


def test_a_setting_says_what_the_error_is_added_to():
    layer, sizes = lc.layer(NETWORK), {"B": 4, "d": 6, "f": 5, "g": 7, "c": 3}
    with pytest.raises(lc.InputError, match=r"projected adds it to other inputs or embeddings: .*X"):
        lc.cost(layer, "pepita", **sizes)
    step = lc.cost(layer, "pepita", projected="X", **sizes)
    assert step.macro_operations["forward"][1].flops > 2 * lc.cost(layer, **sizes).macro_operations["forward"][1].flops
    assert lc.cost(layer, "pepita", projected=("X",), **sizes) == step
    with pytest.raises(lc.InputError, match="projected must be a comma-separated list of names"):
        lc.cost(layer, "pepita", projected=3, **sizes)


def test_what_is_not_there_is_not_projected_to():
    with pytest.raises(lc.InputError, match="no 'Z' to add the error to"):
        lc.LayerTraining(lc.layer(NETWORK), {}, "pepita", projected=("Z",))
