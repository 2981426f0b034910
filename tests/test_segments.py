"""Recomputation of several blocks at a time: the input of every k-th block alone is kept."""

import json

import numpy as np
import pytest

import learncost as lc
from counting import counting, tally_of
from learncost.backends.executed import executed
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop
from learncost.passes.plan import planned
from learncost.reports.memory.planner import chosen, memory
from planned import given, results, sizes_of, table_of
from programs import execute, worst

DEEP = {
    "gpt2": {"num_hidden_layers": 12},
    "gemma-2-2b": {"num_hidden_layers": 8},  # two blocks a turn
    "bart-base": {"encoder_layers": 2, "decoder_layers": 4},
    "albert-base-v2": {"num_hidden_layers": 8, "num_hidden_groups": 4},
}

SEGMENTS = [
    "fused-update,recompute=block/2",
    "flash,fused,chunked-loss,fused-update,recompute=block/2+gelu+norm",
    "recompute=block/2+all",
]


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("model", "segments"),
    [("gpt2", (1, 2, 3, 4, 6, 12)), ("gemma-2-2b", (4,)), ("bart-base", (2,)), ("albert-base-v2", (2,))],
)
def test_segments_run_again_bit_for_bit_at_the_price_of_every_block(model, segments):
    table, sizes = table_of(model, **DEEP[model]), sizes_of(model, **DEEP[model])
    values = given(table, sizes)
    plain = results(table, values, sizes)
    blocks = lc.price(planned(table, "fused-update,recompute=block"), sizes, lc.book("run"))
    for iterations in segments:
        again = planned(table, f"fused-update,recompute=block/{iterations}")
        counted = {name: counting(array) for name, array in values.items()}
        computed, units = tally_of(results, again, counted, sizes)
        assert all(np.asarray(computed[name]).tobytes() == array.tobytes() for name, array in plain.items()), iterations
        price = lc.price(again, sizes, lc.book("run"))
        assert (price.flops, price.maccs, price.bytes) == (blocks.flops, blocks.maccs, blocks.bytes)
        assert units == price.flops


def test_what_runs_once_more_in_a_block_is_priced_as_it_is_executed():
    table, sizes = table_of("gpt2", **DEEP["gpt2"]), sizes_of("gpt2", **DEEP["gpt2"])
    counted = {name: counting(array) for name, array in given(table, sizes).items()}
    once, more = (planned(table, f"recompute={part}") for part in ("all", "block/3+all"))
    _, units = tally_of(results, more, counted, sizes)
    assert units == lc.price(more, sizes, lc.book("run")).flops
    forward, again, twice = (
        lc.price(table_priced, sizes, lc.book("run")).by("macro_operation")[key,].flops
        for table_priced, key in ((table, "forward"), (once, "recomputation"), (more, "recomputation"))
    )
    blocks = [
        row for row in lc.price(table, sizes, lc.book("run")).rows if row.block and row.macro_operation == "forward"
    ]
    assert twice == again + sum(row.flops.at(sizes) for row in blocks) < 2 * forward


def test_segments_keep_their_input_alone():
    table, sizes = table_of("gpt2", **DEEP["gpt2"]), sizes_of("gpt2", **DEEP["gpt2"])
    for iterations in (2, 3, 4, 6):
        again = planned(table, f"recompute=block/{iterations}")
        forward = next(line for line in again.lines if isinstance(line, Loop))
        assert {inside for inside, _ in forward.keep} == {"X"}
        (array,) = [
            candidate for candidate in lc.live(again, sizes).saved if candidate.axes[0] == f"n_layer/{iterations}"
        ]
        assert array.bytes == 12 // iterations * sizes["B"] * sizes["M"] * sizes["d"] * 4
    assert planned(table, "recompute=block/1").lines == planned(table, "recompute=block").lines


@pytest.mark.slow
def test_segments_take_less_where_there_are_many_blocks():
    # Of 96 blocks every input is kept, or that of every fourth block; four blocks at a time then keep some ten arrays
    # of that size each, where scores are not kept and the feed-forward network is narrow.
    size = {"num_hidden_layers": 96, "n_inner": 2}
    table, sizes = table_of("gpt2", optimizer="sgd", **size), {**sizes_of("gpt2", **size), "B": 500, "M": 2}
    plans = {iterations: f"flash,chunked-loss,fused-update,recompute=block/{iterations}" for iterations in (1, 4, 48)}
    predicted = {iterations: memory(planned(table, text), sizes).peak for iterations, text in plans.items()}
    measured = {iterations: executed(planned(table, text), sizes).peak for iterations, text in plans.items()}
    array = 500 * 2 * sizes["d"] * 4
    for peaks in (predicted, measured):
        assert (96 - 24) * array > peaks[1] - peaks[4] > (96 - 24 - 4 * 13) * array
        assert peaks[48] > peaks[4]
    # As many inputs as L/k + k, and what one block keeps: least at k = 8 or 12 of 96.
    assert chosen(table, sizes, budget=1).endswith("recompute=block/8+all")


def test_segments_that_do_not_come_out_even_are_refused(capsys):
    table, sizes = table_of("gpt2"), sizes_of("gpt2")
    again = planned(table, "recompute=block/3")
    for use in (lambda: results(again, given(table, sizes), sizes), lambda: lc.live(again, sizes)):
        with pytest.raises(InputError, match="n_layer is 2, which is not divisible into segments of 3"):
            use()
    for command in (
        "cost gpt2",
        *(f"memory gpt2 --engine {engine}" for engine in ("graph", "numpy", "torch")),
        "compare gpt2",
        "emit gpt2",
        "verify gpt2 --engine torch --n_embd 24 --n_head 4 --vocab_size 61",
    ):
        assert main([*command.split(), "--plan", "recompute=block/5"]) == 2
        error = capsys.readouterr().err
        assert "--n-layer is 12, which is not divisible into segments of 5" in error
        assert error.count("\n") == 1


def test_segments_take_the_time_of_every_block(capsys):
    seconds = []
    for part in ("block", "block/3"):
        assert (
            main(["cost", "gpt2", "--plan", f"recompute={part}", "--on", "H100-SXM", "--engine", "graph", "--json"])
            == 0
        )
        seconds.append(json.loads(capsys.readouterr().out)["time"]["seconds"])
    assert seconds[0] == pytest.approx(seconds[1], rel=0.05)  # what lies in a cache when it is read may differ


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", DEEP)
def test_every_plan_goes_with_segments(model):
    table, sizes = table_of(model, **DEEP[model]), sizes_of(model, **DEEP[model])
    values = given(table, sizes)
    plain = results(table, values, sizes)
    for text in SEGMENTS:
        computed = results(planned(table, text), values, sizes)
        assert computed.keys() == plain.keys()
        for name, array in plain.items():
            np.testing.assert_allclose(computed[name], array, 1e-12, 1e-12, err_msg=f"{name} under {text}")


@pytest.mark.parametrize(
    ("model", "backend", "plan"),
    [
        ("gpt2", "numpy", "recompute=block/2"),
        ("gpt2", "torch", "flash,fused,chunked-loss,fused-update,recompute=block/2+gelu"),
        pytest.param("gpt2", "jax", "recompute=block/2", marks=pytest.mark.slow),
        ("bart-base", "torch", "chunked-loss,recompute=block/2"),
        ("albert-base-v2", "numpy", "recompute=block/2"),
    ],
)
def test_segments_are_emitted_as_they_are_defined(model, backend, plan):
    more = {"num_hidden_layers": 2 if backend == "jax" else 4} if model == "gpt2" else DEEP[model]
    table, sizes = table_of(model, **more), sizes_of(model, **more)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    executed = execute(planned(table, plan), backend, values, sizes)
    assert worst({name: executed[name] for name in plain}, plain)[1] < 1e-12
