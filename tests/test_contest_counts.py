"""What a contest counts: equal budgets, what a step executes, and the page of the documentation."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from contests import ALL, SMALL, problem, rows, setting
from counting import counting, tally_of
from learncost.interpreter import execute
from learncost.models.small import contents
from learncost.reports.sheet import size_of
from learncost.training.contest.entrant import (
    Budget,
    EntrantTraining,
    Setting,
    StepCost,
    budget,
    costs,
    entrants,
    share,
)
from learncost.training.contest.problem import CLASSES, DECODER, VIT, mlp, text, vit
from sampling import sampled

KINDS = ("mlp", "vit", "text")

PAGE = (
    ("Digits, a dense network", mlp, "momentum"),
    ("Digits, a dense network, equal FLOPs", mlp, "momentum"),
    ("Digits, a vision transformer", lambda: vit({}), "adamw"),
    ("Digits, a vision transformer, equal memory", lambda: vit({}), "adamw"),
    ("Text", lambda: text([__file__], DECODER, {}, 64), "adamw"),
    ("Text, equal FLOPs", lambda: text([__file__], DECODER, {}, 64), "momentum"),
)
"""The sections of docs/contest-results.md, each with its problem; counts of a text do not depend on its words."""


@cache
def cost_of(kind, entrant):
    """What a step of an entrant costs by its batch; its tables are made once for all tests."""
    return costs(setting(kind), entrant)


# Budgets.


def timed(size):
    """How long a step on so many examples takes."""
    return 0.25 * size


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_flops_are_equal(kind):
    """No entrant uses more than the budget, and none could take one step more."""
    for entrant in ALL:
        cost = cost_of(kind, entrant)
        budget = 17 * cost_of(kind, ALL[2])(5).flops
        part = share(Budget("flops", budget), entrant.name, cost, timed, 5, 1, 100)
        flops = cost(5).flops
        assert part.steps * flops <= budget < (part.steps + 1) * flops
        assert (part.batch_size, part.cost) == (5, cost(5))


def test_equal_seconds_are_as_many_steps_as_fit():
    free = StepCost(1, 1, 1)
    assert [share(Budget("seconds", 3), "bp", lambda size: free, timed, size, 1, 9).steps for size in (1, 3, 4)] == [
        12,
        4,
        3,
    ]


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("kind", ["mlp", "text"])
def test_equal_memory_is_the_largest_batch_that_fits(kind):
    budget = max(cost_of(kind, entrant)(2).peak for entrant in ALL)
    for entrant in ALL:
        cost = cost_of(kind, entrant)
        part = share(Budget("memory", budget), entrant.name, cost, timed, 1, 7, 10**6)
        assert cost(part.batch_size).peak <= budget < cost(part.batch_size + 1).peak
        assert part.steps == 7
    assert share(Budget("memory", 10**12), "bp", cost_of(kind, ALL[0]), timed, 1, 7, 33).batch_size == 33


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("steps:300", "steps", 300),
        ("flops:2e10", "flops", 2 * 10**10),
        ("flops:1.5e3", "flops", 1500),
        ("memory:5MB", "memory", 5 * 10**6),
        ("memory:1.5 KiB".replace(" ", ""), "memory", 1536),
        ("memory:77", "memory", 77),
        ("seconds:60", "seconds", 60),
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
    with pytest.raises(lc.InputError, match="one step of bp needs 4,000 FLOPs, more than 3,999"):
        share(Budget("flops", 3999), "bp", lambda size: StepCost(1, 1000 * size, 1), timed, 4, 1, 9)
    with pytest.raises(lc.InputError, match="bp on one example needs 50 bytes, over 49"):
        share(Budget("memory", 49), "bp", lambda size: StepCost(1, 1, 50 * size), timed, 4, 1, 9)
    with pytest.raises(lc.InputError, match=r"one step of bp needs 2\.25 seconds, more than 2"):
        share(Budget("seconds", 2), "bp", lambda size: StepCost(1, 1, 1), timed, 9, 1, 9)
    with pytest.raises(lc.InputError, match="too many"):
        share(Budget("steps", 10**9), "bp", lambda size: StepCost(1, 1, 1), timed, 4, 1, 9)


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


@pytest.mark.parametrize("name", ["bp", "recompute", "head-only"])
def test_a_step_costs_what_the_command_cost_says(name):
    """The vision transformer is a model of a family, as any other; so is the text's decoder."""
    for kind, keys, length in (("vit", VIT, None), ("text", DECODER | {"vocab_size": 257}, 12)):
        model_keys = {**keys, **SMALL, "num_hidden_layers": 2}
        total = lc.cost(model_keys, name, batch_size=6, seq_len=length, optimizer="adamw").total
        counted = costs(setting(kind, "adamw"), entrants(name, "stable")[0])(6)
        assert (counted.maccs, counted.flops) == (total.maccs, total.flops)


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("entrant", ALL, ids=lambda entrant: entrant.name)
@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_that_a_counting_array_sees(kind, entrant):
    training = EntrantTraining(setting(kind), entrant, 0.1)
    prepared = training.prepare(**problem(kind).training.rows(rows(4)), **problem(kind).fixed)
    values = {name: counting(array) for name, array in prepared.values.items()}
    _, executed = tally_of(execute, lc.lower(prepared.table), values, prepared.sizes)
    assert executed == costs(setting(kind), entrant)(4).flops


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("entrant", ALL, ids=lambda entrant: entrant.name)
@pytest.mark.parametrize("kind", KINDS)
def test_the_predicted_peak_is_the_measured_one(kind, entrant):
    """tracemalloc knows nothing of tables: what it sees more are Python's own objects."""
    contest_setting = setting(kind)
    measured = EntrantTraining(contest_setting, entrant).peak(problem(kind).training, rows(64))
    assert 0 <= measured - costs(contest_setting, entrant)(64).peak < 16 * 2**10


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_program_gives_what_the_interpreter_gives(kind):
    for entrant in ALL:
        training = EntrantTraining(setting(kind, dtype="fp64"), entrant, 0.1)
        prepared = training.prepare(**problem(kind).training.rows(rows(4)), **problem(kind).fixed)
        values = dict(prepared.values)
        execute(lc.lower(prepared.table), values, prepared.sizes)
        for name, array in training._run(prepared).items():
            np.testing.assert_allclose(array, values[name], 1e-9, 1e-12, err_msg=f"{entrant.name} {name}")


# The page.


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(("heading", "given", "optimizer"), sampled(PAGE, 3))
def test_the_counts_of_the_page(heading, given, optimizer):
    """What does not depend on a machine: MACCs, FLOPs and predicted bytes of every row."""
    page = (Path(__file__).parent.parent / "docs" / "contest-results.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    rows = [row for row in rows if len(row) > 5 and row[4].isdigit()]
    assert len(rows) >= 6
    contest_setting = Setting(given(), optimizer)
    for name, _, _, _, steps, batch, maccs, flops, _, predicted, _ in rows:
        counted = costs(contest_setting, entrants(name, "stable")[0])(int(batch))
        assert maccs == f"{int(steps) * counted.maccs / 1e9:.3f}", name
        assert flops == f"{int(steps) * counted.flops / 1e9:.3f}", name
        assert predicted == size_of(counted.peak), name


def test_a_window_is_limited_by_the_length_of_the_text(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 20, encoding="utf-8")
    problem = text([tmp_path / "text.txt"], contents("mixtral", sliding_window=4), {}, 6)
    assert problem.sizes(2) | {"w": 4, "B": 2, "M": 6} == problem.sizes(2)


@pytest.mark.parametrize(("name", "passes"), [("pepita", 2), ("mempepita", 3)])
def test_cost_and_compare_price_the_step_of_images_that_a_contest_runs(name, passes):
    """Products are those of transformers' ViT: its forward passes, its weights' gradients, and the error to all pixels.

    A linear layer's weight has a gradient of as many products as its forward pass; scores and their sums over values,
    4 B M^2 d of a block, have no weights.
    """
    hugging_face = pytest.importorskip("hugging_face")
    batch, config = 3, {**VIT, **SMALL}
    module = hugging_face.module_of(dict(config), "ViTForImageClassification")
    with hugging_face.FlopCounterMode(display=False) as counter:
        module(pixel_values=hugging_face.torch.zeros(batch, 1, 8, 8, device="meta"))
    forward, positions = counter.get_total_flops(), 5
    scores = 4 * batch * positions**2 * config["hidden_size"] * config["num_hidden_layers"]
    projection = 2 * batch * CLASSES * 8 * 8
    ours = lc.cost(config, name, price_book="matmul", batch_size=batch)
    assert ours.total.flops == passes * forward + forward - scores + projection
    entrant = entrants(f"{name}:paper", "stable")[0]
    run = lc.cost(config, name, batch_size=batch, optimizer="momentum").total
    assert costs(setting("vit"), entrant)(batch).flops == run.flops
    assert lc.compare(config, f"bp,{name}", batch_size=batch, optimizer="momentum").ratio(name, "run") > 0
