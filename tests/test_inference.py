"""What inference costs: printed closed forms, the command line, and what is refused."""

import json
import re
from pathlib import Path

import pytest

import learncost as lc
from decoding import MODELS, llama, rewritten
from learncost.cli.command import main
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, total
from learncost.layers.layer import CachedAlong, shipped_layer
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.model import build
from learncost.procedures.inference import inference
from refinements import with_visible

GENERIC = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10}


def elements(layer, sizes):
    """Of one token, all layers."""
    return sum(array.elements.at(sizes) for array in inference(layer).cache if array.tokens)


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        # Touvron et al. 2023 (Llama 2, 7B): 32 layers of 32 heads of 128. At 16 bit 524,288 bytes a token.
        ("grouped-query, rotary", {"n_layer": 32, "h": 32, "g": 1, "k": 128}, 524_288 // 2),
        # Llama 3 8B: 8 heads of keys and values for 32 of queries, 131,072 bytes a token at 16 bit.
        ("grouped-query, rotary", {"n_layer": 32, "h": 8, "g": 4, "k": 128}, 131_072 // 2),
        # gpt-oss-120b: 36 layers, every other one with a window, 8 heads of 64: 73,728 bytes a token at 16 bit.
        ("local and global", {"n_pair": 18, "h": 8, "g": 8, "k": 64, "window": 128}, 73_728 // 2),
        # DeepSeek-V3: 512 + 64 elements a token and layer (DeepSeek-V2's table 1: d_c + d_h^R), 61 layers.
        ("latent", {"n_layer": 61, "h": 128, "c": 512, "r": 64}, 576 * 61),
    ],
)
def test_published_sizes_of_caches(name, sizes, count):
    assert elements(MODELS[name](), sizes) == count


def test_the_cache_of_llama_2_at_4097_tokens():
    tables = inference(llama())
    sizes = {"n_layer": 32, "h": 32, "g": 1, "k": 128, "B": 1}
    elements_cached = total(Polynomial.of(array.axes) for array in tables.cache).at(
        {**sizes, **tables.lengths(sizes, 4097, 1)}
    )
    assert elements_cached * 2 == 4097 * 524_288
    assert round(elements_cached * 2 / 2**30, 2) == 2.00


def test_a_window_holds_no_more_however_long_the_context():
    """Of gpt-oss' 36 layers 18 see 128 tokens: these read min(C + 1, 128) keys, of which one is new."""
    tables = inference(MODELS["local and global"]())
    sizes = {"n_pair": 18, "h": 8, "g": 8, "k": 64, "window": 128, "B": 1}
    for context in (1, 126, 127, 128, 100_000):
        lengths = tables.lengths(sizes, context, 1)
        assert lengths["T.window"] == min(context + 1, 128)
        assert lengths["T"] == context + 1
        elements_cached = total(Polynomial.of(array.axes) for array in tables.cache).at({**sizes, **lengths})
        assert elements_cached == 18 * 2 * 8 * 64 * (context + min(context, 127))


@pytest.mark.parametrize("context", [1, 100, 1023])
def test_decoding_gpt2_by_hand(context):
    """2 FLOPs a weight of the matrices and a token, and for every key 4 d: those of QK and of PV. Bytes as elements."""
    d, layers, vocabulary = 768, 12, 50257
    ledger = lc.cost("gpt2", "decode", "matmul", context=context, dtype="fp16", batch_size=3)
    assert ledger.total.flops == 3 * (layers * (24 * d**2 + 4 * (context + 1) * d) + 2 * d * vocabulary)
    # Kipply 2022, Transformer inference arithmetic: 2 x 2 x n_layers x n_heads x d_head bytes a token.
    assert ledger.cache.elements * 2 == 2 * 2 * layers * 12 * 64
    assert ledger.cache.bytes == 3 * context * 2 * 2 * layers * 12 * 64


def test_what_one_more_token_of_context_costs():
    """A key and its value: 2 h k elements read, 4 h k FLOPs; its score scaled and through softmax, 1 + 5 FLOPs a head.

    Scores are written and read three times: products, scaled, probabilities.
    """
    h, k, layers = 12, 64, 12
    shorter, two = (lc.cost("gpt2", "decode", context=context) for context in (500, 501))
    assert two.total.flops - shorter.total.flops == layers * (4 * h * k + 6 * h)
    moved = [sum(row.bytes for row in cost.rows) for cost in (shorter, two)]
    assert moved[1] - moved[0] == 4 * layers * (2 * h * k + 6 * h)


def test_the_cache_is_written_once_and_read_once():
    rows = {row.line: row for row in lc.cost("gpt2", "decode", context=100, by="equation", dtype="fp16").rows}
    d, layers = 768, 12
    assert (rows["K.cache"].flops, rows["K.cache"].bytes) == (0, 0)  # the new key was written where the cache ends
    assert rows["K"].bytes == 2 * layers * 3 * d  # the product and the bias read, the key written
    scores = 12 * 101
    assert rows["R"].bytes == 2 * layers * (d + 101 * d + scores)
    assert rows["A"].bytes == 2 * layers * (d + 101 * d + scores)


def test_latent_attention_makes_keys_and_values_anew():
    """Nothing absorbed: K = c W_UK and V = c W_UV for all T tokens of the cache, in every step."""
    tables = inference(MODELS["latent"]())
    h, k, w, c, r = 5, 7, 11, 13, 3
    sizes = {"B": 1, "n_layer": 1, "d": 17, "a": 19, "f": 23, "v": 29, "h": h, "k": k, "w": w, "c": c, "r": r}
    shorter, two = (
        lc.price(tables.decode, {**sizes, **tables.lengths(sizes, context, 1)}, "matmul").maccs for context in (30, 31)
    )
    assert two - shorter == c * h * (k + w) + h * (k + r + w)
    assert tables.remade
    assert not inference(llama()).remade


def test_prefill_is_the_forward_pass_with_one_position_of_the_head():
    """The head's product for one position instead of 1024; no softmax over the vocabulary, no loss."""
    forward = lc.cost("gpt2", price_book="matmul").macro_operations["forward"][1].maccs
    assert forward - lc.cost("gpt2", "prefill", "matmul").total.maccs == 1023 * 768 * 50257
    ours = {row.layer: row.flops for row in lc.cost("gpt2", "prefill").rows}
    forward_flops = {row.layer: row.flops for row in lc.cost("gpt2").rows if row.macro_operation == "forward"}
    assert {layer for layer in forward_flops if ours.get(layer) != forward_flops[layer]} == {"head", "loss"}


def test_prefill_and_decode_by_rows_are_the_total():
    for procedure in ("prefill", "decode"):
        for by in ("layer", "macro-operation", "equation", "kind"):
            ledger = lc.cost("transformer-base", procedure, seq_len=30, batch_size=2, by=by)
            assert sum(row.flops for row in ledger.rows) == ledger.total.flops
            assert {row.macro_operation for row in ledger.rows} == {"forward"}


def test_a_decoder_beside_an_encoder_does_not_run_the_encoder():
    ledger = lc.cost("transformer-base", "decode", seq_len=50, context=20)
    assert {row.block for row in ledger.rows} == {"decoder", None}
    assert (ledger.seq_len, ledger.target_len, ledger.context) == (50, 1, 20)
    # Vaswani et al. 2017, base: 6 layers, d = 512; keys and values of the tokens, and of the encoder's.
    assert ledger.cache.elements == ledger.cache.source == 6 * 2 * 512
    assert ledger.cache.bytes == 4 * 6 * 2 * 512 * (20 + 50)


def test_new_tokens_of_a_step():
    single, three = (lc.cost("gpt2", "decode", "matmul", context=99, seq_len=new) for new in (1, 3))
    keys = 12 * 4 * 768
    assert three.total.flops == 3 * single.total.flops + keys * (3 * (99 + 3) - 3 * (99 + 1))


def test_the_context_is_by_default_as_long_as_the_model_allows():
    assert lc.cost("gpt2", "decode").context == 1023
    assert lc.cost("gpt2", "decode", seq_len=24).context == 1000
    assert lc.cost("decoder", "decode", context=7, num_hidden_layers=1, **GENERIC).seq_len == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"model": "bert-base"},
            "bert-base has no decoder to sample from: the tokens of its attention attend to later ones",
        ),
        ({"model": "bert-base", "procedure": "prefill"}, "bert-base has no decoder to sample from"),
        ({"model": "mamba-130m", "page_size": 16}, "decode of mamba-130m has no KV cache"),
        ({"model": "rwkv-4-169m", "procedure": "inference"}, "two passes: give --procedure prefill or --procedure dec"),
        (
            {"model": "encoder", "num_hidden_layers": 1, **GENERIC, "context": 5},
            "encoder has no decoder to sample from",
        ),
        ({"procedure": "bp", "context": 4}, "--context requires --procedure decode: bp has no KV cache"),
        (
            {"procedure": "prefill", "context": 4},
            "--context requires --procedure decode: prefill starts with an",
        ),
        ({"context": 1024}, "context 1,024 and 1 new token: seq_len 1025 is longer than the 1024 positions that gpt2"),
        ({"context": 0}, "context must be a whole number from 1"),
        ({"context": "many"}, "context must be a whole number from 1"),
        ({"seq_len": 1024}, "1,024 new tokens leave no positions for a context in gpt2"),
        ({"model": "decoder", "num_hidden_layers": 1, **GENERIC}, "decoder has no default length: give --context"),
        ({"tokens": "3e11"}, "--tokens applies to training only, not to decode"),
        ({"optimizer": "adamw"}, "--optimizer applies to training only"),
        ({"dropout": 0.1}, "--dropout applies to training only"),
        ({"target_len": 3}, "gpt2 is not an encoder-decoder: remove --target-len"),
        ({"procedure": "decoding"}, "no procedure is called 'decoding'; the nearest is 'decode'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(lc.InputError) as caught:
        lc.cost(**{"model": "gpt2", "procedure": "decode", **arguments})
    assert message in caught.value.written
    assert "\n" not in str(caught.value)


def test_layers_that_cannot_decode():
    text = "one(X) -> Y\n  H[B M d] = 1[] X[B M d]\n{middle}"
    text += "  Y[B M d'] = convolution({read}; c, e = d')"
    with pytest.raises(
        lc.InputError, match="one has no decoder to sample from: none of its layers caches keys of earlier"
    ):
        inference(lc.layer(text.format(middle="", read="H")))
    middle = "  A[B M d] = attention(H, H, H; w, N = M') where M' <= M\n"
    with pytest.raises(lc.InputError, match="convolution reads other positions and caches nothing of them"):
        inference(lc.layer(text.format(middle=middle, read="A")))
    # Without a cache, keys of earlier tokens would be made again from what nobody keeps.
    written = str(shipped_layer("attention")).splitlines()
    forgetful = lc.layer("\n".join(line for line in written if not line.startswith("cache:")))
    text = "one(X) -> Y\n  H[B M d] = 1[] X[B M d]\n  Y[B M d] = attention(H, H, H; w, N = M') where M' <= M"
    with pytest.raises(lc.InputError, match="no layer caches them"):
        inference(lc.layer(text, layers={"attention": forgetful}))
    with pytest.raises(lc.NotationError, match="`cache:` names Q: no value of mine along N"):
        lc.layer("mine(X; W) -> Q\n  Q[B M d'] = X[B M d] W[d d']\ncache: Q")


def test_several_new_tokens_need_a_softmax():
    linear = """attention(XQ XK; WQ WK) -> Y
      Q[B M d] = XQ[B M e] WQ[e d]
      K[B N d] = XK[B N e] WK[e d]
      R[B M N] = Q[B M d] K[B N d]
      Y[B M d] = R[B M N] K[B N d]
      cache: K"""
    text = "one(X) -> Y\n  H[B M e] = 1[] X[B M e]\n  Y[B M d] = attention(H, H; w, N = M') where M' <= M"
    layer = lc.layer(text, layers={"attention": lc.layer(linear)})
    assert len(inference(layer).cache) == 1
    with pytest.raises(lc.InputError, match="several new tokens need a softmax"):
        inference(layer, several=True)


def test_the_json(capsys):
    assert main(["cost", "gpt2", "--procedure", "decode", "--context", "100", "--dtype", "bf16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["context"] == 100
    assert answer["cache"] == {"elements_per_token": 18432, "bytes_per_token": 36864, "bytes": 3686400}
    assert answer["last_position_only"] is False
    assert "optimizer" not in answer
    assert answer == lc.cost("gpt2", "decode", context=100, dtype="bf16").to_dict()
    assert "cache" not in lc.cost("gpt2").to_dict()
    assert lc.cost("gpt2", "prefill").to_dict()["last_position_only"] is True


def test_what_is_printed(capsys):
    assert main(["cost", "gpt2", "--procedure", "decode", "--context", "100", "--batch-size", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "gpt2, one step of decode in fp32: 8 sequences, 1 new token after 100 " in text
    assert "Cache: 18,432 elements a token, 73,728 bytes in fp32." in text
    assert "With 100 tokens in each of 8 sequences it holds 58,982,400 bytes." in text
    assert "Optimizer" not in text
    text = " ".join(str(lc.cost("gpt2", "prefill", seq_len=1)).split())
    assert text.startswith("gpt2, prefill in fp32: 1 sequence of 1 token ")
    assert "The head computes the logits of the last position of each sequence only." in text
    assert "With 1 token it holds 73,728 bytes." in text
    assert main(["cost", "bert-base", "--procedure", "decode"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_gemma_2_whose_window_is_no_longer_than_the_text(tmp_path):
    """Every other of 26 layers sees 4096 tokens; 4 heads of 256, keys and values: 2 x 4 x 256 elements a layer."""
    layer, width = 2 * 4 * 256, 4
    (tmp_path / "config.json").write_text('{"model_type": "gemma2", "sliding_window": 4096}')
    model = str(tmp_path)
    ledger = lc.cost(model, "decode", context=8000)
    assert ledger.cache.elements == 26 * layer
    assert ledger.cache.windows == ((4096, 13 * layer),)
    assert ledger.cache.bytes == width * 13 * layer * (8000 + 4095)
    for short in (lc.cost(model, "decode", context=100), lc.cost(model, "prefill", seq_len=100)):
        assert short.cache.windows == ()
        assert short.cache.bytes == width * 26 * layer * 100
    # The window takes keys away: 4001 of 8001 each, with 4 FLOPs for an element of each of the 8 heads of 256.
    flops = lc.cost(model, "decode", "matmul", context=8000, sliding_window=8001).total.flops
    windowed = lc.cost(model, "decode", "matmul", context=8000).total.flops
    assert flops - windowed == 13 * (8001 - 4096) * 4 * 8 * 256


def test_llama_3_8b(tmp_path):
    """131,072 bytes a token at 16 bit: 32 layers of 8 heads of 128, keys and values (Llama Team 2024, table 3)."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    answer = lc.cost(str(tmp_path), "decode", context=8191, dtype="bf16", batch_size=2).to_dict()
    assert answer["cache"]["bytes_per_token"] == 131_072
    assert answer["cache"]["bytes"] == 2 * 8191 * 131_072


def keeps_keys(model):
    return any(isinstance(line.meta.note, CachedAlong) for line, _ in walk(model.table.lines))


@pytest.mark.one_in(every=26)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_what_a_position_of_its_prompt_costs(family, tmp_path):
    """Of N tokens with N keys each, in a product of matrices all cost the same: N steps after N - 1 are the prompt.

    But for the head, which the prompt has once. A cache that is made of something smaller is decompressed in each step.
    """
    try:
        built = build(configure({"model_type": family}))
    except lc.InputError as error:
        pytest.skip(str(error))
    if not built.causal or built.two_sided or not keeps_keys(built):
        pytest.skip("not one stack that keeps keys of earlier tokens and sees these alone")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    model, tokens = str(tmp_path), 61
    prompt = lc.cost(model, "prefill", "matmul", seq_len=tokens)
    step = lc.cost(model, "decode", "matmul", context=tokens - 1)
    assert 4 * (step.cache.elements * (tokens - 1) + step.cache.state) == step.cache.bytes
    rest = [cost.total.flops - sum(row.flops for row in cost.rows if row.layer == "head") for cost in (prompt, step)]
    assert (tokens * rest[1] > rest[0]) if step.cache.remade else (tokens * rest[1] == rest[0])


def test_a_dense_mask_keeps_everything():
    """A window that is a mask from outside is priced as it runs: over all keys."""
    tables = inference(rewritten(with_visible, "visible"))
    assert {array.window for array in tables.cache} == {""}
    assert tables.decode.axes["visible"] == ("M", "T")


def test_the_program_of_the_page():
    text = (Path(__file__).parent.parent / "docs" / "inference.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(program, {})  # the page's own text


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("model", "mesh", "placement", "plan", "elements_of_a_token"),
    [
        # Keys and values of 8 heads of 128 in 32 layers (Llama Team 2024, table 3), shared over tp.
        ("llama-3-8b", "tp=4", "megatron", "", 2 * 32 * 8 * 128 // 4),
        ("llama-3-8b", "tp=8", "megatron-sp", "flash,fused", 2 * 32 * 8 * 128 // 8),
        ("llama-3-8b", "dp=2,tp=4", "ddp,megatron", "flash", 2 * 32 * 8 * 128 // 4),
        # One latent vector of all heads, which no device has a part of: 512 + 64 in 61 layers (DeepSeek-AI 2024).
        ("deepseek-v3", "tp=8", "megatron", "", 61 * (512 + 64)),
    ],
)
def test_the_cache_of_a_device(model, mesh, placement, plan, elements_of_a_token):
    """Two bytes of an element; of data parallelism each device has its own sequences."""
    asked = {"mesh": mesh, "placement": placement, "plan": plan or None, "precision": "bf16", "batch_size": 8}
    sequences = 4 if "dp=2" in mesh else 8
    for answer in (
        lc.cost(model, "decode", context=504, **asked),
        lc.cost(model, "prefill", seq_len=504, **asked),
    ):
        assert answer.cache.elements == elements_of_a_token
        assert answer.cache.bytes == 2 * elements_of_a_token * 504 * sequences


def test_what_a_token_sends_over_tensor_parallel_devices():
    """An all_reduce of a d-wide row for each of attention, feed-forward network and embedding (Shoeybi et al. 2019)."""
    d, layers, batch = 4096, 32, 8
    decode = lc.cost(
        "llama-3-8b", "decode", context=500, precision="bf16", batch_size=batch, mesh="tp=4", place="h f v over tp"
    )
    (row,) = decode.over.sent
    assert (row.op, row.runs, row.payload) == ("all_reduce", 2 * layers + 1, 2 * batch * d * (2 * layers + 1))


def test_the_operations_of_a_device():
    """Products of heads, widths and vocabulary divide by the devices, and all of a batch by data parallelism."""
    asked = {"context": 500, "price_book": "matmul", "batch_size": 8}
    alone = lc.cost("llama-3-8b", "decode", **asked).total.maccs
    assert lc.cost("llama-3-8b", "decode", **asked, mesh="tp=8", placement="megatron").total.maccs * 8 == alone
    assert lc.cost("llama-3-8b", "decode", **asked, mesh="dp=8", placement="ddp").total.maccs * 8 == alone
    assert lc.cost("llama-3-8b", "decode", **asked, mesh="dp=1", placement="ddp").total.maccs == alone


def test_a_plan_of_inference_changes_the_time_alone():
    """Fused attention writes no scores: less is moved, and as many products are computed."""
    asked = {"seq_len": 2048, "on": "H100-SXM", "price_book": "matmul", "engine": "graph"}
    alone, flash = (lc.cost("llama-3-8b", "prefill", plan=plan, **asked) for plan in (None, "flash,fused"))
    assert flash.plan == "flash,fused"
    assert flash.total.maccs == alone.total.maccs
    assert flash.time < alone.time
    with pytest.raises(lc.InputError, match="the plan fused-update does not apply to decode of gpt2"):
        lc.cost("gpt2", "decode", plan="fused-update")


def test_serving_rates_are_those_of_the_time():
    on = {"on": "DGX-H100", "mesh": "tp=4", "placement": "megatron", "batch_size": 8}
    first = lc.cost("llama-3-8b", "prefill", seq_len=500, **on)
    assert first.served == {
        "time_to_first_token": first.over_time.seconds,
        "tokens_per_second": pytest.approx(8 * 500 / first.over_time.seconds),
    }
    assert first.to_dict()["serving"] == first.served
    three = lc.cost("llama-3-8b", "decode", context=500, seq_len=3, **on)
    assert three.served["time_per_output_token"] == pytest.approx(three.over_time.seconds / 3)
    assert three.served["tokens_per_second"] == pytest.approx(24 / three.over_time.seconds)
    assert "Time per output token: " in str(three)
    assert lc.cost("gpt2", "decode").served is None
    assert lc.cost("gpt2", on="A100-SXM-80GB").served is None


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", ["vit-base-patch16-224", "bert-base", "resnet-18"])
def test_a_model_without_a_cache_has_a_forward_pass(model, capsys):
    """What a training step's forward pass has, without its loss; no cache, and samples for tokens."""
    answer = lc.cost(model, "inference", "matmul", batch_size=4, on="H100-SXM")
    assert answer.total.maccs == lc.cost(model, price_book="matmul", batch_size=4).macro_operations["forward"][1].maccs
    assert answer.cache is None
    assert "optimizer" not in answer.to_dict()
    assert answer.served == {"latency": answer.time, "samples_per_second": pytest.approx(4 / answer.time)}
    assert main(["cost", model, "--procedure", "inference", "--on", "H100-SXM"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Latency: " in text
    assert "samples per second" in text


def test_inference_of_a_model_with_a_cache_is_two_passes():
    with pytest.raises(lc.InputError, match="inference of gpt2 has two passes: give procedure='prefill' or"):
        lc.cost("gpt2", "inference")
    with pytest.raises(lc.InputError, match="makes pipeline stages, which inference does not support"):
        lc.cost("llama-3-8b", "decode", mesh="pp=2", placement="pp")
