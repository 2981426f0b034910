"""The plan of a step whose memory is asked for, where it is left to the planner."""

import pytest

import learncost as lc
from learncost.models.small import small
from sampling import sampled


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("dtype", ["fp32", "bf16-masters"])
def test_the_longest_sequence_of_a_planner_is_under_the_plan_that_it_takes_for_it(dtype):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes |= {"intermediate_size": 128, "vocab_size": 300}

    def asked(plan):
        return lc.memory("llama-2-7b", seq_len=64, plan=plan, dtype=dtype, budget="2MB", engine="graph", **sizes)

    planned_needs = asked("auto")
    length = planned_needs.fits["seq_len"]
    assert length > asked(planned_needs.plan).fits["seq_len"], "or the planner would take the same plan for it"
    assert length == asked("flash,fused,fused-update,recompute=all").fits["seq_len"]


@pytest.mark.slow
def test_the_planner_is_told_the_budget():
    settings = {
        "optimizer": "adamw",
        "batch_size": 8,
        "seq_len": 1024,
        "plan": "auto",
        "num_hidden_layers": 3,
        "engine": "graph",
    }
    free = lc.memory("gpt2", **settings)
    assert "recompute=all" not in free.plan
    tight = lc.memory("gpt2", **settings, budget=int(0.7 * free.peak))
    assert tight.plan != free.plan
    assert tight.peak <= 0.7 * free.peak  # weights' states, which the planner does not see, are in it
    wide = lc.memory("gpt2", **settings, budget=10 * free.peak)
    assert wide.peak >= free.peak
    assert tight.fits["batch_size"] >= 8


@pytest.mark.slow  # tests/test_planner.py has plans under budgets
@pytest.mark.parametrize("dtype", sampled(("bf16-masters", "int8"), 2))
def test_the_plan_of_a_narrow_type_fits_where_one_does(dtype):
    settings = {
        "batch_size": 4,
        "seq_len": 512,
        "plan": "auto",
        "dtype": dtype,
        "optimizer": "adamw",
        "engine": "graph",
    }
    least = lc.memory("gpt2", **settings, budget="600MB" if dtype == "int8" else "2300MB")
    assert least.peak <= (600 if dtype == "int8" else 2300) * 10**6


def test_microbatches_wait_for_the_optimizer():
    needs = lc.memory("gpt2", batch_size=8, seq_len=128, plan="auto", accumulate=4, engine="graph")
    assert "fused-update" not in needs.plan


@pytest.mark.parametrize("engine", ["graph", "torch"])
def test_another_name_of_what_stays_inside_of_a_kernel_is_an_array(engine):
    """Mamba's gradient of what a scan kept is one operand of a product that a kernel does not store, transposed."""
    assert lc.memory(small("mamba"), engine=engine, batch_size=2, seq_len=4).peak > 0
