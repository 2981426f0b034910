"""Training on NumPy: what is executed is what is priced; optimizers, batches, masks; PEPITA learns on digits."""

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import learncost as lc
from counting import TALLY, counting
from learncost.engines.weights import initial_weights
from learncost.interpreter import execute
from trainings import BARE, LEARNING, B, M, N, batch, sizes, training

PROCEDURES = ("bp", "recompute", "pepita", "mempepita")
OPTIMIZERS = ("sgd", "momentum", "adamw")


def count_operations(prepared):
    """Execute a step with counting arrays: the units by the macro-operation of the line that ran."""
    TALLY.clear()
    tallies, before = Counter(), 0

    def watch(line, _):
        nonlocal before
        tallies[line.meta.phase] += sum(TALLY.values()) - before
        before = sum(TALLY.values())

    values = {name: counting(array) for name, array in prepared.values.items()}
    execute(lc.lower(prepared.table), values, prepared.sizes, watch)
    assert sum(TALLY.values()) == sum(tallies.values())
    return dict(+tallies)


@pytest.mark.one_in(every=34)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("model", [*LEARNING, "bare", "tied"])
def test_a_step_executes_what_it_costs(model, procedure, dropout):
    bare, more = model == "bare", {}
    if model in ("bare", "tied"):
        model, more = (BARE, {}) if bare else ("encoder-decoder", {"tie_word_embeddings": True})
    if bare and "pepita" in procedure:
        pytest.skip("a bare encoder has nothing to learn from")
    tokens, extra = batch(model, bare=bare)
    for optimizer in OPTIMIZERS:
        trained = training(model, procedure, optimizer, bare, more, dropout=dropout)
        executed = count_operations(trained.prepare(tokens, **extra))
        model_sizes = sizes(model, **more, **({"architecture": "BertModel"} if bare else {}))
        lengths = {"seq_len": N, "target_len": M} if model == "encoder-decoder" else {"seq_len": M}
        cost = lc.cost(model, procedure, "run", B, optimizer=optimizer, dropout=dropout, **lengths, **model_sizes)
        priced = {name: part.flops for name, (_, part) in cost.macro_operations.items() if part.flops}
        assert executed == priced
        assert sum(executed.values()) == cost.total.flops


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("model", LEARNING)
def test_padding_and_weight_decay_are_priced_by_the_table(model, procedure):
    tokens, extra = batch(model, padding=True)
    trained = training(model, procedure, "momentum", weight_decay=0.1)
    prepared = trained.prepare(tokens, **extra)
    assert prepared.table is trained.table(padding=True)
    flops_executed = sum(count_operations(prepared).values())
    assert flops_executed == lc.price(trained.table(padding=True), prepared.sizes).flops
    parameters = sum(array.size for array in trained.weights.values())
    plain = training(model, procedure, "momentum").table(padding=True)
    assert flops_executed == lc.price(plain, prepared.sizes).flops + 2 * parameters


# Optimizers.


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize(
    ("optimizer", "settings", "foreign"),
    [
        ("sgd", {}, lambda p: torch.optim.SGD(p, 0.1)),
        ("sgd", {"weight_decay": 0.2}, lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2)),
        ("momentum", {"momentum": 0.8}, lambda p: torch.optim.SGD(p, 0.1, 0.8)),
        ("momentum", {"weight_decay": 0.2}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.2)),
        ("adamw", {}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0)),
        (
            "adamw",
            {"weight_decay": 0.2, "betas": (0.8, 0.95), "epsilon": 1e-3},
            lambda p: torch.optim.AdamW(p, 0.1, (0.8, 0.95), 1e-3, 0.2),
        ),
    ],
)
@pytest.mark.parametrize("model", ["gpt2", "encoder-decoder"])
def test_optimizers_equal_torch(model, optimizer, settings, foreign):
    trained = training(model, "bp", optimizer, learning_rate=0.1, **settings)
    parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in trained.weights.items()}
    optimizer = foreign(list(parameters.values()))
    for i in range(4):
        if i == 2:  # a schedule
            trained.learning_rate = optimizer.param_groups[0]["lr"] = 0.03
        tokens, extra = batch(model, i)
        for name, update in trained.updates(tokens, **extra).items():
            parameters[name].grad = torch.tensor(update)
        optimizer.step()
        trained.step(tokens, **extra)
        for name, parameter in parameters.items():
            np.testing.assert_allclose(trained.weights[name], parameter.detach(), 1e-10, 1e-13, err_msg=name)
    assert trained.steps == 4


# Batches.


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize(("procedure", "mode"), [("bp", "paper"), ("pepita", "paper"), ("mempepita", "stable")])
@pytest.mark.parametrize("model", LEARNING)
def test_a_padded_batch_is_its_sequences(model, procedure, mode):
    """Updates and loss of a batch are those of its sequences alone, weighted by their numbers of targets."""
    trained = training(model, procedure, mode=mode)
    tokens, extra = batch(model, padding=True, rows=4)
    prepared_whole = trained.prepare(tokens, **extra)
    updates, count = trained.updates(tokens, **extra), prepared_whole.values["share"].astype(bool).sum()
    total = dict.fromkeys(updates, 0.0)
    for row in range(4):
        long = {"mask": extra["mask"][row].sum(), "encoder_mask": extra.get("encoder_mask", extra["mask"])[row].sum()}
        alone = {n: a[row : row + 1, : long["mask"]] for n, a in extra.items() if n in ("targets", "token_types")}
        if "encoder_tokens" in extra:
            alone["encoder_tokens"] = extra["encoder_tokens"][row : row + 1, : long["encoder_mask"]]
        short = tokens[row : row + 1, : long["mask"]]
        own_count = trained.prepare(short, **alone).values["share"].astype(bool).sum()
        for name, update in trained.updates(short, **alone).items():
            total[name] += update * own_count / count
    for name, update in updates.items():
        np.testing.assert_allclose(update, total[name], 1e-9, 1e-12, err_msg=name)


def test_sequences_of_unequal_length_are_padded():
    trained = training("decoder")
    tokens, extra = batch("decoder", padding=True)
    lists = [list(row[keep]) for row, keep in zip(tokens, extra["mask"], strict=True)]
    first, second = trained.updates(lists), trained.updates(tokens, mask=extra["mask"])
    for name, update in first.items():
        np.testing.assert_allclose(update, second[name], 1e-12, 1e-15)
    masked = training("encoder")
    targets = [row[::-1] for row in lists]
    assert np.isfinite(masked.step(lists, targets))


@pytest.mark.parametrize("model", ["decoder", "gpt2", "encoder-decoder"])
def test_a_language_model_has_targets_on_all_positions_but_the_last(model):
    trained = training(model)
    tokens, extra = batch(model)
    logarithms = trained.forward(tokens, **extra)["P"]
    rows, positions = np.arange(B)[:, None], np.arange(M - 1)
    expected = -logarithms[rows, positions, tokens[:, 1:]].mean()
    assert trained.step(tokens, **extra) == pytest.approx(expected, rel=1e-12)
    assert trained.step(tokens, **extra) < expected  # and the step was one downwards


def test_masks_of_dropout_depend_on_seed_step_and_name_alone():
    tokens, _ = batch("gpt2")

    def masks(found):
        return {n: a for n, a in found.prepare(tokens).values.items() if n.endswith(".mask")}

    trained, again, other = (training("gpt2", dropout=0.25, seed=seed) for seed in (0, 0, 1))
    first = masks(trained)
    assert set(first) == set(trained.model.masks)
    for name, mask in first.items():
        np.testing.assert_array_equal(mask, masks(again)[name])
        assert not np.array_equal(mask, masks(other)[name])
        assert set(np.unique(mask)) <= {0.0, 1 / 0.75}
    trained.step(tokens)
    assert not np.array_equal(first["X.X.mask"], masks(trained)["X.X.mask"])
    many = np.concatenate([mask.ravel() for mask in first.values()])
    assert many.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("model", LEARNING)
def test_float32_stays_float32(model, procedure):
    trained = training(model, procedure, "adamw", dtype=np.float32, dropout=0.1, weight_decay=0.1)
    tokens, extra = batch(model, padding=True)
    values = trained._run(trained.prepare(tokens, **extra))
    wide = {n for n, a in values.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.dtype.itemsize > 4}
    assert wide == set()
    trained.step(tokens, **extra)
    assert {array.dtype for array in (*trained.weights.values(), *trained.state.values())} == {np.dtype(np.float32)}


def test_initial_weights_follow_from_the_table():
    training = lc.Training("gpt2", **sizes("gpt2", hidden_size=40, vocab_size=90))
    for name, array in training.weights.items():
        last = name.rpartition(".")[2]
        if last == "g":
            assert (array == 1).all()
        elif last.startswith("b"):
            assert (array == 0).all()
        else:
            assert np.std(array) == pytest.approx(0.02, rel=0.2), name
    again = lc.Training("gpt2", **sizes("gpt2", hidden_size=40, vocab_size=90))
    other = lc.Training("gpt2", seed=1, **sizes("gpt2", hidden_size=40, vocab_size=90))
    assert all(np.array_equal(array, again.weights[name]) for name, array in training.weights.items())
    assert not np.array_equal(training.weights["wte"], other.weights["wte"])
    copied = lc.Training("gpt2", weights=other.weights, **sizes("gpt2", hidden_size=40, vocab_size=90))
    assert all(np.array_equal(array, other.weights[name]) for name, array in copied.weights.items())
    layer = lc.layer("dense(X; W b) -> Y\n U[B f] = X[B d] W[d f]\n Y[B f] = U[B f] + b[f]")
    assert not initial_weights(layer.table, {"d": 3, "f": 2})["b"].any()


def test_what_the_outputs_of_a_bare_encoder_are():
    trained = training(BARE, bare=True)
    tokens, extra = batch(BARE, bare=True)
    values = trained.forward(tokens, token_types=extra["token_types"])
    assert values["X"].shape == (B, M, 6)
    assert values["Z"].shape == (B, 6)
    before = (values["X"] * extra["gradients"]["X"]).sum() + (values["Z"] * extra["gradients"]["Z"]).sum()
    assert np.isnan(trained.step(tokens, **extra))
    values = trained.forward(tokens, token_types=extra["token_types"])
    after = (values["X"] * extra["gradients"]["X"]).sum() + (values["Z"] * extra["gradients"]["Z"]).sum()
    assert after < before


TOKENS = np.zeros((2, 5), int)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("decoder", {"tokens": TOKENS[0]}, "batch of sequences"),
        ("decoder", {"tokens": TOKENS + 0.5}, "must be integers"),
        ("decoder", {"tokens": TOKENS + 11}, "from 0 to 10"),
        ("decoder", {"tokens": TOKENS[:, :1]}, "no target"),
        ("decoder", {"tokens": TOKENS, "mask": TOKENS}, "there are no tokens"),
        ("decoder", {"tokens": TOKENS, "mask": np.add(TOKENS, [0, 1, 1, 1, 1])}, "padded on the right"),
        ("decoder", {"tokens": TOKENS, "mask": TOKENS[:, :3]}, r"mask of tokens has shape \(2, 3\)"),
        ("decoder", {"tokens": [[1], [1, 2]], "mask": TOKENS}, "unequal lengths"),
        ("decoder", {"tokens": TOKENS, "encoder_tokens": TOKENS}, "has no input encoder_tokens"),
        ("decoder", {"tokens": TOKENS, "gradients": {"X": TOKENS}}, "no output X"),
        ("encoder", {"tokens": TOKENS}, "give targets"),
        ("encoder", {"tokens": TOKENS, "targets": TOKENS - 1}, "no target"),
        ("encoder", {"tokens": TOKENS, "targets": TOKENS + 11}, "targets must be below 11"),
        (
            "encoder",
            {"tokens": TOKENS, "targets": TOKENS[:, :2]},
            "targets must have shape \\[B M\\], \\(2, 5\\), not \\(2, 2\\)",
        ),
        ("encoder-decoder", {"tokens": TOKENS}, "needs encoder_tokens"),
        (
            "encoder-decoder",
            {"tokens": TOKENS, "encoder_tokens": TOKENS[:1]},
            "1 rows of encoder_tokens, but 2 of tokens",
        ),
        ("gpt2", {"tokens": np.zeros((1, 12), int)}, "longer than the 9 positions"),
        (BARE, {"tokens": TOKENS, "targets": TOKENS, "token_types": TOKENS[:1]}, "2 rows of tokens, but 1 of types"),
        (BARE, {"tokens": TOKENS, "targets": TOKENS, "token_types": TOKENS + 2}, "types must be from 0 to 1"),
    ],
)
def test_batches_that_do_not_fit_are_refused(model, given, message):
    with pytest.raises(lc.InputError, match=message):
        training(model).step(**given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"procedure": "pepitta"}, "'pepita'"),
        ({"optimizer": "adam"}, "'adamw'"),
        ({"mode": "wild"}, "no mode"),
        ({"dropout": 1.0}, "dropout"),
        ({"weights": {}}, "wte is missing"),
        ({"weights": {"wte": np.zeros(3)}}, r"wte has shape \(3,\)"),
    ],
)
def test_trainings_that_do_not_exist_are_refused(settings, message):
    with pytest.raises(lc.InputError, match=message):
        lc.Training("decoder", **settings, **sizes("decoder"))


@pytest.mark.slow
def test_pepita_beats_training_the_head_alone_on_digits(monkeypatch):
    """Three seeds, the same learning rates to choose from; against the head's best rate, even chosen in hindsight."""
    path = Path(__file__).parent.parent / "examples" / "forward_learning.py"
    spec = importlib.util.spec_from_file_location("forward_learning_example", path)
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, example)
    spec.loader.exec_module(example)
    results = example.compare([32])
    for method, result in results.items():
        print(method, result)
    assert len(example.SEEDS) == 3
    assert results["pepita"].mean > results["head only"].hindsight + 0.02
    assert results["bp"].mean > results["pepita"].mean > 5 * results["chance"].mean
    rate = results["pepita"].rate
    first, second = (example.learn(name, rate, 0, [32], 2) for name in ("pepita", "mempepita"))
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_the_programs_on_the_page_of_training():
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text(encoding="utf-8")
    scope = {}
    for program in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(compile(program, "training.md", "exec"), scope)
