"""A step in microbatches is the step of the whole batch, and its memory is that of one of them."""

import numpy as np
import pytest

import learncost as lc
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.engines.emitted import Programs
from learncost.engines.options import Options
from learncost.models.configuration import configure
from learncost.models.model import run_sizes
from learncost.procedures.accumulation import accumulated
from learncost.procedures.step import step
from learncost.training.engine import NumPyEngine
from trainings import batch, training

EXACT = 1e-12


def worst(one, two):
    return max(float(np.max(np.abs(one[name] - two[name]))) for name in one)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
@pytest.mark.parametrize(("model", "padding"), [("gpt2", False), ("gpt2", True), ("encoder-decoder", True)])
def test_microbatches_are_one_batch(procedure, model, padding):
    # Sums over sequences do not care which of them are taken first: only the order of additions differs. With padding
    # the microbatches have different numbers of targets, and the share of the loss is that of all of them.
    fused_update, parts = (training(model, procedure, "adamw", weight_decay=0.1, accumulate=k) for k in (1, 3))
    for seed in range(2):
        tokens, extra = batch(model, seed, padding=padding, rows=6)
        losses = [trained.step(tokens, **extra) for trained in (fused_update, parts)]
        assert losses[0] == pytest.approx(losses[1], abs=EXACT)
    # AdamW divides by the root of squares: its steps blow up differences of gradients that are nearly zero.
    assert worst(fused_update.state, parts.state) < EXACT
    assert worst(fused_update.weights, parts.weights) < 1e-9


def test_targets_that_only_one_microbatch_has():
    fused_update, parts = (training("gpt2", "bp", "sgd", accumulate=k) for k in (1, 2))
    tokens, _ = batch("gpt2", rows=4)
    targets = np.where(np.arange(4)[:, None] < 2, tokens, -1)
    assert fused_update.step(tokens, targets) == pytest.approx(parts.step(tokens, targets), abs=EXACT)
    assert worst(fused_update.weights, parts.weights) < EXACT


def test_every_microbatch_has_masks_of_its_own():
    trained = training("gpt2", "bp", "sgd", accumulate=2, dropout=0.5)
    table = trained.table()
    name = next(name for name in table.inputs if name.endswith(".mask"))
    sizes = run_sizes(trained.model, 2, 5, None)
    first, second = (trained._mask(table, name, sizes, 0.5, part) for part in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, trained._mask(table, name, sizes, 0.5))


def test_rows_that_cannot_be_parted():
    trained = training("gpt2", "bp", "sgd", accumulate=2)
    tokens, _ = batch("gpt2", rows=3)
    with pytest.raises(lc.InputError, match="3 sequences are not divisible into 2 microbatches"):
        trained.step(tokens)


def test_what_it_costs_beside_the_whole_batch():
    model = training("gpt2").model
    table = step(model, "bp", "adamw")
    halves = accumulated(table)
    whole_sizes, part = (run_sizes(model, rows, 7, None) for rows in (12, 3))
    gather, update = price(halves.gather, part, book("run")).flops, price(halves.update, part, book("run")).flops
    # Each of 4 microbatches adds every gradient to the sum. What does not depend on the number of sequences is done
    # four times in place of once: adding the two gradients of the tied embedding [v d], and the positions' [M d] rows.
    parameters = sum(array.size for array in training("gpt2").weights.values())
    again = whole_sizes["v"] * whole_sizes["d"] + whole_sizes["M"] * whole_sizes["d"]
    assert 4 * gather + update - price(table, whole_sizes, book("run")).flops == 4 * parameters + 3 * again


@pytest.mark.parametrize("procedure", ["bp", "pepita"])
def test_an_engine_says_the_flops_of_what_it_runs(procedure, monkeypatch):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 11, "n_positions": 9}
    options = Options(paths=("x",), engine="numpy", procedure=procedure, accumulate=3, batch_size=2, seq_len=5)
    numpy_engine = NumPyEngine(configure("gpt2", sizes), options)
    ran = []

    def noted(own, prepared):
        ran.append(price(prepared.table, prepared.sizes, book("matmul")).flops)
        return plain(own, prepared)

    plain = Programs.__call__
    monkeypatch.setattr(Programs, "__call__", noted)
    tokens = np.arange(30).reshape(6, 5) % 11
    batch = {"tokens": tokens, "targets": (tokens + 1) % 11}
    numpy_engine.step(batch, 0.1)
    assert len(ran) == 4
    assert numpy_engine.flops(batch) == sum(ran)


def test_memory_is_that_of_a_microbatch():
    # At 4,000 short sequences of a tiny model nearly all that is alive are activations: a quarter of them is a quarter.
    model = training("gpt2").model
    table = step(model, "bp", "adamw")
    whole_sizes, part = (run_sizes(model, rows, 7, None) for rows in (4000, 1000))
    assert lc.live(accumulated(table).gather, part).peak < 0.26 * lc.live(table, whole_sizes).peak
