"""The memory of inference: weights, KV cache and activations of a prompt and of a step of decode, also over a mesh."""

from __future__ import annotations

import json

import pytest

import learncost as lc
from learncost.cli.command import main

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 3, 4, 64, 512, 256
SMALL = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "vocab_size": VOCABULARY, "n_positions": POSITIONS}
FLAGS = [text for name, size in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(size))]
BF16 = 2


def weights_of_gpt2() -> int:
    """The parameters of GPT-2: two embeddings, the final norm, and in a block two norms, attention and an MLP."""
    norm = 2 * WIDTH
    attention = 4 * WIDTH * WIDTH + 4 * WIDTH
    feed_forward = 8 * WIDTH * WIDTH + 5 * WIDTH
    return (VOCABULARY + POSITIONS) * WIDTH + LAYERS * (2 * norm + attention + feed_forward) + norm


def memory(procedure="decode", **given):
    return lc.memory("gpt2", procedure=procedure, **{"dtype": "bf16", **SMALL, **given})


@pytest.mark.parametrize(("context", "batch", "new"), [(1, 1, 1), (100, 1, 1), (100, 6, 1), (100, 2, 5)])
def test_decode_holds_the_weights_and_the_keys_and_values_of_all_tokens(context, batch, new):
    found = memory(context=context, batch_size=batch, seq_len=new)
    assert found.split["weights"] == BF16 * weights_of_gpt2()
    assert found.split["KV cache"] == BF16 * 2 * LAYERS * WIDTH * (context + new) * batch
    assert found.peak == sum(found.split.values()) == max(moment.bytes for moment in found.curve)
    for place, moment in enumerate(found.curve):
        assert moment.bytes == sum(array.bytes for array in found.arrays if array.first <= place <= array.last)
    assert found.context == context


def test_a_prompt_ends_with_the_keys_and_values_of_all_its_tokens():
    found = memory("prefill", seq_len=100, batch_size=3)
    assert found.split["weights"] == BF16 * weights_of_gpt2()
    at_end = [array for array in found.arrays if array.last == len(found.curve) - 1 and array.part == "KV cache"]
    assert sum(array.bytes for array in at_end) == BF16 * 2 * LAYERS * WIDTH * 100 * 3
    assert found.peak == sum(found.split.values())


def test_fit_of_inference_is_the_larger_of_a_prompt_and_of_its_last_token():
    (row,) = lc.fit("gpt2", "1GB", procedures="inference", plan="", seq_len=100, dtype="bf16", **SMALL).rows
    assert row.ram == max(memory("prefill", seq_len=100).peak, memory(context=99).peak)
    batch = row.largest
    peaks = [
        max(memory("prefill", seq_len=100, batch_size=each).peak, memory(context=99, batch_size=each).peak)
        for each in (batch, batch + 1)
    ]
    assert peaks[0] <= 10**9 < peaks[1]


def test_fit_of_inference_over_a_mesh_is_the_memory_of_each_device():
    mesh = {"mesh": "dp=2,tp=2", "placement": "dp,megatron"}
    asked = {"procedures": "inference", "plan": "", "seq_len": 100, "dtype": "bf16", **mesh, **SMALL}
    (row,) = lc.fit("gpt2", "10MB", **asked).rows

    def peak(batch):
        passes = memory("prefill", seq_len=100, batch_size=batch, **mesh), memory(context=99, batch_size=batch, **mesh)
        return max(each.peak for each in passes)

    assert row.ram == peak(2)
    assert row.largest % 2 == 0
    assert peak(row.largest) <= 10**7 < peak(row.largest + 2)


@pytest.mark.parametrize(("mesh", "placement", "shards"), [("tp=2", "megatron", 1), ("dp=2,tp=4", "dp,megatron", 2)])
def test_over_a_mesh_heads_and_sequences_of_the_cache_are_shared(mesh, placement, shards):
    heads = int(mesh[-1])
    found = memory(context=100, batch_size=8, mesh=mesh, placement=placement)
    assert found.split["KV cache"] == BF16 * 2 * LAYERS * WIDTH * 101 * 8 // shards // heads
    assert found.split["weights"] < memory(context=100).split["weights"]
    assert found.over.devices == shards * heads


@pytest.mark.parametrize("procedure", ["prefill", "decode"])
@pytest.mark.parametrize("mesh", [{}, {"mesh": "dp=2,tp=2", "placement": "dp,megatron"}])
def test_the_batch_and_the_length_that_fit_a_budget_fit_and_no_more_do(procedure, mesh):
    length = "context" if procedure == "decode" else "seq_len"
    budget, unit = 4_000_000, 2 if mesh else 1
    found = memory(procedure, budget=budget, **{length: 100}, **mesh)
    batch, longest = found.fits["batch_size"], found.fits[length]
    for more, fits in ((0, True), (unit, False)):
        assert (memory(procedure, batch_size=batch + more, **{length: 100}, **mesh).peak <= budget) is fits
    assert memory(procedure, **{length: longest}, **mesh).peak <= budget
    assert longest == POSITIONS - (procedure == "decode") or (
        memory(procedure, **{length: longest + 1}, **mesh).peak > budget
    )


def test_more_tokens_and_more_sequences_need_more_and_narrower_weights_less():
    peaks = [memory(context=context, batch_size=2).peak for context in (1, 10, 11, 200)]
    assert peaks == sorted(peaks)
    assert memory(context=10, batch_size=3).peak > peaks[1] > memory(context=10, batch_size=2, dtype="int8").peak


def test_a_model_without_a_cache_has_one_pass():
    found = lc.memory("vit-base-patch16-224", procedure="inference", batch_size=2, num_hidden_layers=2)
    assert found.split["KV cache"] == 0
    counted = lc.cost("vit-base-patch16-224", "inference", num_hidden_layers=2).parameters
    assert found.split["weights"] == 4 * counted


def test_the_first_line_says_what_is_asked_and_whether_it_fits(capsys):
    asked = ["memory", "gpt2", "--procedure", "decode", "--context", "100", "--dtype", "fp16", *FLAGS]
    assert main([*asked, "--batch-size", "99", "--budget", "2MB"]) == 0
    first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert first.startswith("gpt2, memory of one step of decode in fp16: 99 sequences, 1 new token after 100 in the")
    assert "; does not fit: " in first
    assert "fit 1" in first or "fits 1" in first or "fit 2" in first
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == 100


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--procedure", "inference"], "inference of gpt2 has two passes"),
        (["--procedure", "prefill", "--accumulate", "2"], "--accumulate applies to training only, not to prefill"),
        (["--procedure", "decode", "--engine", "numpy"], "--procedure decode requires --engine graph"),
        (["--procedure", "decode", "--optimizer", "sgd"], "--optimizer applies to training only, not to decode"),
        (["--context", "2"], "--context requires --procedure decode: bp has no KV cache"),
        (["--procedure", "prefill", "--mesh", "pp=3", "--placement", "pp"], "inference does not support"),
    ],
)
def test_what_inference_does_not_have_is_refused(flags, text, capsys):
    assert main(["memory", "gpt2", *flags, *FLAGS]) == 2
    message = capsys.readouterr().err
    assert text in message
    assert "Traceback" not in message


def test_a_budget_below_the_weights_is_said(capsys):
    assert main(["memory", "gpt2", "--procedure", "decode", "--dtype", "bf16", "--budget", "1kB", *FLAGS]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"too few for one sequence of one token: weights alone need {BF16 * weights_of_gpt2():,};" in text
