"""A contest: equal budgets, the same beginning, what is executed, what is learned, what is said of a divergence."""

import json
from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from contests import ALL, held, problem, rows, setting
from counting import counting, tally_of
from learncost.contest.budget import Budget, budget, share
from learncost.contest.entrant import Cost, Training, costs, entrants
from learncost.contest.images import CLASSES, mlp, vit
from learncost.contest.problem import Examples
from learncost.contest.show import as_text
from learncost.contest.trial import Outcome, search
from learncost.engines.core import Prepared
from learncost.readings.run import execute

KINDS = ("mlp", "vit", "text")


# Budgets.


@pytest.mark.parametrize("kind", KINDS)
def test_equal_flops_are_equal(kind):
    """No entrant uses more than the budget, and none could take one step more."""
    for entrant in ALL:
        cost_of = costs(setting(kind), entrant)
        given = 17 * costs(setting(kind), ALL[2])(5).flops
        found = share(Budget("flops", given), entrant.name, cost_of, 5, 1, 100)
        flops = cost_of(5).flops
        assert found.steps * flops <= given < (found.steps + 1) * flops
        assert (found.batch_size, found.cost) == (5, cost_of(5))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_memory_is_the_largest_batch_that_fits(kind):
    given = max(costs(setting(kind), entrant)(2).peak for entrant in ALL)
    for entrant in ALL:
        cost_of = costs(setting(kind), entrant)
        found = share(Budget("memory", given), entrant.name, cost_of, 1, 7, 10**6)
        assert cost_of(found.batch_size).peak <= given < cost_of(found.batch_size + 1).peak
        assert found.steps == 7
    assert share(Budget("memory", 10**12), "bp", costs(setting(kind), ALL[0]), 1, 7, 33).batch_size == 33


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("steps:300", "steps", 300),
        ("flops:2e10", "flops", 2 * 10**10),
        ("flops:1.5e3", "flops", 1500),
        ("memory:5MB", "memory", 5 * 10**6),
        ("memory:1.5 KiB".replace(" ", ""), "memory", 1536),
        ("memory:77", "memory", 77),
    ],
)
def test_budgets_as_they_are_written(text, kind, amount):
    assert budget(text) == Budget(kind, amount)


@pytest.mark.parametrize(
    "text", ["", "300", "steps", "steps:", "steps:-3", "steps:0", "steps:1.5", "steps:5MB", "time:3", "memory:5XB"]
)
def test_budgets_that_are_none(text):
    with pytest.raises(lc.InputError, match="budget"):
        budget(text)


def test_budgets_that_are_not_enough_or_too_much():
    with pytest.raises(lc.InputError, match="one step of bp takes 4,000 FLOPs, more than 3,999"):
        share(Budget("flops", 3999), "bp", lambda size: Cost(1, 1000 * size, 1), 4, 1, 9)
    with pytest.raises(lc.InputError, match="bp on one example needs 50 bytes, over 49"):
        share(Budget("memory", 49), "bp", lambda size: Cost(1, 1, 50 * size), 4, 1, 9)
    with pytest.raises(lc.InputError, match="too many"):
        share(Budget("steps", 10**9), "bp", lambda size: Cost(1, 1, 1), 4, 1, 9)


# What a step executes.


def test_maccs_of_the_dense_network_by_hand():
    """Forward and weight update multiply every weight once for each example, backward all but the first layer's; the
    loss is a product that sums, one MACC for each example. PEPITA runs forward twice, brings the error to the pixels
    and has no backward pass; MEMPEPITA runs forward three times. The head's update is a matrix product of its own."""
    B, d, w1, w2 = 5, 64, 16, 8
    layers = (d * w1, w1 * w2, w2 * CLASSES)
    forward, update, backward = sum(layers) + 1, sum(layers), sum(layers[1:])
    expected = {
        "bp": forward + backward + update,
        "recompute": forward + backward + update,  # there is no block to recompute
        "pepita": 2 * forward + CLASSES * d + update,
        "mempepita": 3 * forward + CLASSES * d + update,
        "head-only": forward + layers[-1],
    }
    for entrant in ALL:
        assert costs(setting("mlp"), entrant)(B).maccs == B * expected[entrant.procedure], entrant


@pytest.mark.parametrize("entrant", ALL, ids=lambda entrant: entrant.name)
@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_that_a_counting_array_sees(kind, entrant):
    training = Training(setting(kind), entrant, 0.1)
    prepared = training.prepare(**problem(kind).training.rows(rows(4)), **problem(kind).fixed)
    values = {name: counting(array) for name, array in prepared.values.items()}
    _, executed = tally_of(execute, lc.lower(prepared.table), values, prepared.sizes)
    assert executed == costs(setting(kind), entrant)(4).flops


@pytest.mark.parametrize("entrant", ALL, ids=lambda entrant: entrant.name)
def test_the_predicted_peak_is_near_the_measured_one(entrant):
    """tracemalloc knows nothing of tables. What NumPy copies inside of a product, and Python's objects, come on top of
    the prediction: half of it where a step keeps next to nothing, as that of the head alone."""
    found = setting("vit")
    measured = Training(found, entrant).peak(problem("vit").training, rows(64))
    assert 0.9 < measured / costs(found, entrant)(64).peak < 1.6


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_gives_what_the_interpreter_gives(kind):
    for entrant in ALL:
        training = Training(setting(kind, dtype="fp64"), entrant, 0.1)
        prepared = training.prepare(**problem(kind).training.rows(rows(4)), **problem(kind).fixed)
        values = dict(prepared.values)
        execute(lc.lower(prepared.table), values, prepared.sizes)
        for name, array in training._run(prepared).items():
            np.testing.assert_allclose(array, values[name], 1e-9, 1e-12, err_msg=f"{entrant.name} {name}")


# The same beginning, and who equals whom.


@pytest.mark.parametrize("kind", KINDS)
def test_all_begin_alike_and_twins_stay_alike(kind):
    """Recomputation changes no number of backpropagation, MEMPEPITA none of PEPITA: losses are equal bit for bit."""
    found = held(kind, "steps:4", rates=(0.01,), seeds=(0, 1), batch_size=6)
    losses = {result.entrant.name: [one.losses for one in result.outcomes] for result in found.results}
    for seed in (0, 1):
        assert len({own[seed][0] for own in losses.values()}) == 1
    assert len({own[0][0] for own in losses.values()} | {own[1][0] for own in losses.values()}) == 2
    assert losses["bp"] == losses["recompute"]
    assert losses["pepita:paper"] == losses["mempepita:paper"]
    assert losses["pepita:stable"] == losses["mempepita:stable"]
    kinds = [losses[name] for name in ("bp", "pepita:paper", "pepita:stable", "head-only")]
    assert all(one != two for place, one in enumerate(kinds) for two in kinds[:place])
    ends = {result.entrant.name: [one.after for one in result.outcomes] for result in found.results}
    assert ends["bp"] == ends["recompute"]
    assert ends["pepita:stable"] == ends["mempepita:stable"]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize(
    ("kind", "head"), [("mlp", {"W3"}), ("vit", {"classifier.W", "classifier.b"}), ("text", {"head.W"})]
)
def test_the_head_alone_learns(kind, head, optimizer):
    """All else stays bit for bit; the head does what it does under backpropagation in the first step."""
    (alone, whole) = (Training(setting(kind, optimizer), one, 0.1) for one in entrants("head-only,bp", "stable"))
    before = dict(alone.weights)
    for training in (alone, whole):
        training.learn(problem(kind).training, rows(4))
    for name in before:
        assert np.array_equal(before[name], alone.weights[name]) == (name not in head), name
    for name in head:
        np.testing.assert_array_equal(alone.weights[name], whole.weights[name])
    alone.learn(problem(kind).training, rows(4))
    assert all(np.array_equal(before[name], alone.weights[name]) for name in before if name not in head)


def test_the_row_of_examples_does_not_depend_on_the_batch():
    examples = Examples({"targets": np.arange(10)}, "targets")
    whole = examples.stream(3, 0, 35)
    for start in (0, 10, 20):
        assert sorted(whole[start : start + 10]) == list(range(10))
    assert not np.array_equal(whole[:10], whole[10:20])
    np.testing.assert_array_equal(np.concatenate([examples.stream(3, at, 7) for at in range(0, 35, 7)]), whole)
    assert not np.array_equal(examples.stream(4, 0, 35), whole)


# Learning.


def test_backpropagation_learns_the_digits():
    """60 steps on 64 images each are three epochs; scikit-learn's own logistic regression reaches 96 % when fitted."""
    found = contest_of(mlp(), "bp,head-only,pepita:paper", 60, 0.1)
    assert found["bp"] > 0.9 > 0.85 > found["head-only"] > 0.6 > 0.15 > problem("mlp").chance[1]


def test_backpropagation_learns_the_digits_by_patches():
    found = contest_of(vit({"num_hidden_layers": 1}), "bp,head-only", 150, 0.01, "adamw")
    assert found["bp"] > 0.8 > found["head-only"]


def contest_of(given, names, steps, rate, optimizer="momentum"):
    from learncost.contest.contest import contest
    from learncost.contest.entrant import Setting

    made = contest(Setting(given, optimizer), entrants(names, "stable"), Budget("steps", steps), (0,), (rate,))
    return {result.entrant.name: result.outcomes[0].after[1] for result in made.results}


def test_chance_is_a_guess_by_frequency():
    given = Examples({"targets": np.array([0, 0, 1])}, "targets")
    checked = Examples({"targets": np.array([0, 1, 2, 2])}, "targets")
    loss, accuracy = replace(problem("mlp"), training=given, validation=checked, classes=3).chance
    assert accuracy == 0.25
    assert loss == pytest.approx(-(np.log(3 / 6) + np.log(2 / 6) + 2 * np.log(1 / 6)) / 4)


def test_looking_is_the_mean_over_all_examples():
    """In one pass or in several, and by hand."""
    training = Training(setting("mlp", dtype="fp64"), ALL[0])
    examples = problem("mlp").validation
    w1, w2, w3 = (training.weights[name] for name in ("W1", "W2", "W3"))
    scores = np.maximum(np.maximum(examples.arrays["X"] @ w1, 0) @ w2, 0) @ w3
    logarithms = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    loss, accuracy = training.look(examples)
    assert loss == pytest.approx(-logarithms[np.arange(len(examples)), examples.right].mean(), rel=1e-12)
    assert accuracy == (scores.argmax(1) == examples.right).mean()


# The learning rate, and divergence.


def outcome(rate, loss, diverged=None):
    return Outcome(0, rate, (1.0,), 0.0, (1.0, 0.0), None if diverged is not None else (loss, 0.5), diverged)


def test_the_rate_of_the_lowest_loss_is_found():
    tried = []

    def trial(rate):
        tried.append(rate)
        return outcome(rate, abs(np.log(rate / 0.04)), 3 if rate >= 1 else None)

    found = search((0.001, 0.01, 0.1, 1.0, 10.0), trial, True)
    assert tried == [0.001, 0.01, 0.1, 1.0, 10.0, 0.1 / 3, 0.1 * 3]
    assert found.best == 0.1 / 3
    assert not found.edge
    assert [one.learning_rate for one in found.tried] == sorted(tried)
    assert search((0.1, 1.0), trial, False).edge


def test_where_all_diverge_the_last_to_do_so_is_taken():
    found = search((1.0, 2.0, 3.0), lambda rate: outcome(rate, 0.0, {1.0: 5, 2.0: 9, 3.0: 9}[rate]), False)
    assert found.best == 2.0


def test_a_divergence_is_said():
    found = held("mlp", "steps:30", entrants("bp,head-only", "stable"), rates=(0.1, 1e30), seeds=(0, 1))
    for result in found.results:
        assert result.search.best == 0.1
        assert [one.diverged is None for one in result.search.tried] == [True, False]
        assert all(np.isfinite(one.after[0]) for one in result.outcomes)
    lost = held("mlp", "steps:30", entrants("bp", "stable"), rates=(1e30,), seeds=(0, 1))
    steps = {one.diverged for one in lost.results[0].outcomes}
    assert all(1 <= step <= 30 for step in steps)
    assert [one.after for one in lost.results[0].outcomes] == [None, None]
    assert "2 of 2, step 1" in as_text(lost)
    data = lost.to_dict()
    json.dumps(data, allow_nan=False)
    assert [one["diverged_at_step"] for one in data["results"][0]["trainings"]] == [1, 1]
    assert all(one["after"] is None for one in data["results"][0]["trainings"])


def test_the_search_does_not_see_what_validates():
    """The rates are chosen on the last fifth of the training examples, and the trials learn from the rest."""
    plain = problem("mlp")
    spoiled = replace(plain, validation=Examples({n: a[:1] * 0 for n, a in plain.validation.arrays.items()}, "targets"))
    names = entrants("bp", "stable")
    from learncost.contest.contest import contest
    from learncost.contest.entrant import Setting

    one, two = (
        contest(Setting(given, "momentum"), names, Budget("steps", 5), (0,), (0.01, 0.1)) for given in (plain, spoiled)
    )
    for left, right in zip(one.results[0].search.tried, two.results[0].search.tried, strict=True):
        assert left.losses == right.losses


def test_a_contest_that_is_stopped_has_what_was_done():
    count = 0

    def stop():
        nonlocal count
        count += 1
        return count == 8

    found = held("mlp", "steps:3", seeds=(0, 1), stop=stop)
    assert found.stopped
    assert found.exit_code == 130
    assert [len(result.outcomes) for result in found.results] == [1, 1, 0, 0, 0, 0, 0]
    assert "Stopped before the end" in as_text(found)
    json.dumps(found.to_dict())


# Entrants.


def test_entrants_by_name():
    assert [one.name for one in entrants("bp, pepita,mempepita:paper,head-only", "stable")] == [
        *("bp", "pepita:stable", "mempepita:paper", "head-only")
    ]
    for text in ("bp,bp", "pepita,pepita:stable", "", "bp,,pepita", "bp:paper", "pepita:other", "adam"):
        with pytest.raises(lc.InputError):
            entrants(text, "stable")
    with pytest.raises(lc.InputError):
        entrants("bp", "other")


def test_prepared_tables_are_the_ones_that_are_priced():
    training = Training(setting("vit"), ALL[2])
    prepared = training.prepare(**problem("vit").training.rows(rows(3)), **problem("vit").fixed)
    assert isinstance(prepared, Prepared)
    assert prepared.table is training.table()
    assert lc.price(prepared.table, prepared.sizes).flops == costs(setting("vit"), ALL[2])(3).flops
