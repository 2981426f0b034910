"""The memory of inference: weights, KV cache and activations of a prompt and of a step of decode, also over a mesh."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

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
    assert found.peak == sum(array.bytes for array in found.live_at_peak)
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
    (row,) = lc.fit("gpt2", "1GB", procedures="inference", plan="flash", seq_len=100, dtype="bf16", **SMALL).rows
    assert row.ram == max(memory("prefill", seq_len=100).peak, memory(context=99).peak)
    batch = row.largest
    peaks = [
        max(memory("prefill", seq_len=100, batch_size=each).peak, memory(context=99, batch_size=each).peak)
        for each in (batch, batch + 1)
    ]
    assert peaks[0] <= 10**9 < peaks[1]


def test_fit_of_inference_over_a_mesh_is_the_memory_of_each_device():
    mesh = {"mesh": "dp=2,tp=2", "placement": "dp,megatron"}
    asked = {"procedures": "inference", "plan": "flash", "seq_len": 100, "dtype": "bf16", **mesh, **SMALL}
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
    assert first.startswith("gpt2, memory of one step of decode in fp16 under flash: 99 sequences, 1 new token")
    assert "; does not fit: " in first
    assert "2.00 MB hold up to 20 sequences after 100 tokens" in first
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
    assert (
        f"too few for one sequence of one token: the weights at the peak alone need {BF16 * weights_of_gpt2():,};"
        in text
    )


GEMMA = {"sliding": 29, "full": 5, "window": 1024, "elements": 2 * 4 * 256}
"""Gemma 3, 4B: 34 layers, of which every sixth attends to all tokens; 4 heads of keys and values of 256 (its
config.json, and section 2 of Gemma Team 2025)."""


@pytest.mark.parametrize("tokens", [512, 1024, 4096])
def test_a_prompt_leaves_the_last_tokens_of_a_window_in_the_cache(tokens):
    """transformers, DynamicSlidingWindowLayer.update: the last sliding_window - 1 tokens are kept."""
    kept = GEMMA["sliding"] * min(tokens, GEMMA["window"] - 1) + GEMMA["full"] * tokens
    found = lc.memory("gemma-3-4b", "prefill", seq_len=tokens, dtype="bf16")
    at_end = [array for array in found.arrays if array.last == len(found.curve) - 1 and array.part == "KV cache"]
    assert sum(array.bytes for array in at_end) == BF16 * GEMMA["elements"] * kept
    counted = lc.cost("gemma-3-4b", "prefill", seq_len=tokens, dtype="bf16")
    assert sum(array.bytes for array in at_end) == counted.cache.bytes


def test_a_window_of_a_prompt_is_that_of_transformers():
    """The cache of transformers' own module after a prompt, token by token of every layer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 96}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}
    module = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)).eval()
    for tokens in (4, 5, 6, 20):
        with torch.no_grad():
            past = module(torch.zeros(3, tokens, dtype=torch.long), use_cache=True).past_key_values
        theirs = sum(layer.keys.numel() + layer.values.numel() for layer in past.layers)
        found = lc.memory("mistral-7b", "prefill", batch_size=3, seq_len=tokens, dtype="fp32", **sizes)
        at_end = [array for array in found.arrays if array.last == len(found.curve) - 1 and array.part == "KV cache"]
        assert sum(array.bytes for array in at_end) == 4 * theirs, tokens


def test_the_window_of_each_device_of_a_mesh():
    asked = {"seq_len": 4096, "dtype": "bf16", "mesh": "tp=4", "placement": "megatron"}
    kept = GEMMA["sliding"] * (GEMMA["window"] - 1) + GEMMA["full"] * 4096
    found = lc.memory("gemma-3-4b", "prefill", **asked)
    at_end = [array for array in found.arrays if array.last == len(found.curve) - 1 and array.part == "KV cache"]
    assert sum(array.bytes for array in at_end) == BF16 * GEMMA["elements"] * kept // 4


@pytest.mark.parametrize(("page", "tokens"), [(1, 1001), (16, 1008), (256, 1024), (1001, 1001), (1002, 1002)])
def test_sequences_have_full_pages(page, tokens):
    """vLLM gives each sequence blocks of so many tokens (Kwon et al. 2023, section 4.1): 1,001 are 63 blocks of 16."""
    asked = {"batch_size": 3, "dtype": "fp16", "page_size": page}
    each = 2 * 12 * 768 * 2
    decode = lc.memory("gpt2", "decode", context=1000, **asked)
    assert decode.split["KV cache"] == 3 * each * tokens
    assert lc.memory("gpt2", "prefill", seq_len=1001, **asked).split["KV cache"] == 3 * each * tokens
    assert decode.peak == sum(decode.split.values()) == max(moment.bytes for moment in decode.curve)
    assert decode.peak == sum(array.bytes for array in decode.live_at_peak)
    assert lc.cost("gpt2", "prefill", seq_len=1001, **asked).cache.bytes == 3 * each * tokens


def test_fit_finds_the_largest_batch_whose_pages_fit():
    asked = {"dtype": "fp16", "page_size": 1024, "plan": "flash"}
    (row,) = lc.fit("gpt2", "1GB", procedures="inference", seq_len=513, **asked).rows

    def peak(batch):
        prompt = lc.memory("gpt2", "prefill", seq_len=513, batch_size=batch, **asked)
        return max(prompt.peak, lc.memory("gpt2", "decode", context=512, batch_size=batch, **asked).peak)

    assert peak(row.largest) <= 10**9 < peak(row.largest + 1)
    assert row.largest < lc.fit("gpt2", "1GB", procedures="inference", seq_len=513, dtype="fp16").rows[0].largest


def test_pages_are_refused_without_a_cache(capsys):
    asked = (["memory", "gpt2"], ["cost", "gpt2"], ["cost", "bert-base", "--procedure", "inference"])
    for words in (*asked, ["fit", "gpt2", "--budget", "1GB", "--procedures", "bp"]):
        assert main([*words, "--page-size", "16"]) == 2
        assert "--page-size requires --procedure prefill or decode" in capsys.readouterr().err
    assert main(["memory", "gpt2", "--procedure", "decode", "--page-size", "0"]) == 2
    assert "--page-size must be a whole number" in capsys.readouterr().err


def test_cost_says_the_largest_batch_of_decode():
    asked = {"context": 2048, "on": "H100-SXM"}
    found = lc.cost("llama-3-8b", "decode", **asked)
    batch = lc.memory("llama-3-8b", "decode", **asked).fits["batch_size"]
    assert found.memory.batch_size == batch
    (sheet,) = found.sheets()
    assert f"In 80.0 GB fit {batch} sequences after 2,048 tokens." in sheet.notes
    # 16.06 GB of weights, and 131,072 bytes of keys and values a token (32 layers x 8 heads x 128 x 2 x bf16)
    each = 131_072 * 2049
    assert batch == pytest.approx((80e9 - 8_030_261_248 * 2) / each, rel=0.01)


def test_a_length_beyond_the_context_is_said(capsys):
    assert main(["memory", "llama-3-8b", "--procedure", "decode", "--on", "H100-SXM"]) == 0
    assert "tokens, beyond the model's context of 8,192." in " ".join(capsys.readouterr().out.split())
    assert main(["memory", "llama-3-8b", "--procedure", "decode", "--budget", "17GB"]) == 0
    assert "beyond" not in capsys.readouterr().out


def test_a_vision_transformer_reads_images(capsys):
    for command in ("memory", "cost"):
        assert main([command, "vit-b-16", "--procedure", "inference", "--batch-size", "2", "--on", "H100-SXM"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "2 images of 197 tokens" in text.partition(" fit ")[0]
        assert "sequence" not in text
    assert main(["fit", "vit-b-16", "--procedures", "inference", "--budget", "8GB"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "vit-b-16 in 8.00 GB of memory: " in text
    assert "images of 197 tokens" in text
    assert "RAM" not in text


def test_tensor_parallelism_beyond_the_heads_of_keys(capsys):
    """One head of keys and values is on every device, as in Megatron and vLLM; 8 heads over 16 are refused."""
    asked = ["memory", "gemma-3-1b", "--procedure", "decode", "--context", "99", "--dtype", "bf16", "--json"]
    assert main([*asked, "--mesh", "tp=4", "--placement", "megatron"]) == 0
    of_four = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    assert of_four["split"]["KV cache"] == json.loads(capsys.readouterr().out)["split"]["KV cache"]
    assert main(["memory", "llama-3-8b", "--procedure", "decode", "--mesh", "tp=16", "--placement", "megatron"]) == 2
    assert "h (heads) is 8, which is not divisible by the 16 devices of tp" in capsys.readouterr().err


def test_the_commands_of_the_page(capsys):
    text = (Path(__file__).parent.parent / "docs" / "inference.md").read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) >= 4
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "learncost"
        assert main(words) == 0, line
        assert capsys.readouterr().out


def test_a_table_without_sequences_has_the_memory_of_its_forward_pass(tmp_path, capsys):
    """A network of 64, 64, 32 and 10 units has 6,570 parameters; a layer reads 4 x 64 inputs and writes 4 x 64 sums."""
    path = str(Path(__file__).parent.parent / "examples" / "microcontroller" / "net.table")
    parameters = 64 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    found = lc.memory(path, procedure="inference", B=4, budget="64KB")
    assert found.split["weights"] == 4 * parameters == 4 * 6570
    assert found.split["activations"] >= 4 * (4 * 64 + 4 * 64)
    batch = found.fits["batch_size"]
    peaks = [lc.memory(path, procedure="inference", B=each).peak for each in (batch, batch + 1)]
    assert peaks[0] <= 64_000 < peaks[1]
    (row,) = lc.fit(path, "64KB", procedures="inference", plan="").rows
    assert (row.ram, row.largest) == (lc.memory(path, procedure="inference", B=1).peak, batch)
    cost = lc.cost(path, "inference", B=4, on="stm32f407")
    assert cost.memory.unavailable.endswith("learncost fit has it, with weights in flash")  # as c99 runs it
    cost = lc.cost(path, "inference", B=4, on="stm32f407", engine="graph")
    assert f"Up to B = {cost.memory.batch_size} fits in 193 kB." in cost.sheets()[0].notes
    table = tmp_path / "one.table"
    table.write_text("one(X; W) -> Y\n  Y[n f] = X[n d] W[d f]\n")
    asked = ["memory", str(table), "--procedure", "inference", "--n", "4", "--d", "8", "--f", "3"]
    assert main([*asked, "--budget", "1MB"]) == 0
    assert "the step fits" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak"] == 4 * (8 * 3 + 4 * 8 + 4 * 3)


@pytest.mark.parametrize(
    ("model", "kept"),
    [("gpt2", "the KV cache with the new tokens"), ("mamba-130m", "the recurrent state"), ("bert-base", "")],
)
def test_a_cache_or_a_state_is_named_where_there_is_one(model: str, kept: str) -> None:
    small = {"num_hidden_layers": 1, "seq_len": 8}
    (sheet,) = lc.fit(model, "8GB", procedures="inference", **small).sheets()
    assert ("decoding of its last token" in str(sheet.notes)) == bool(kept)
    convention = lc.memory(model, "prefill" if kept else "inference", **small).convention
    assert kept in convention
    assert ("There is no KV cache" in convention) == (not kept)
