"""Prefill and decode, proved by running: against the whole forward pass, a counting array, and transformers' cache."""

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from counting import counting, tally_of
from decoding import CAUSAL, GPT2, GROUPED, MODELS, SIZES, SLIDING, Generation, latent, llama, sizes_of, stack, tied
from foreign_models import by, in_float64, into, numpy_of, out_of, plain, shaken, transposed
from learncost.layers.layer import shipped_layer
from learncost.layers.rewrite import with_biases, with_transposed
from learncost.procedures.inference import inference

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

LENGTH, PROMPT = 9, 4


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("new", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_and_what_follows_are_the_whole_forward_pass(name, new):
    generation = Generation(MODELS[name](), sizes_of(name), LENGTH, several=new > 1)
    planned = generation.fused_update()
    logits, cache = generation.prompt(PROMPT)
    np.testing.assert_allclose(logits, planned[:, PROMPT - 1], rtol=1e-12, atol=1e-12)
    for at in range(PROMPT, LENGTH, new):
        now = min(new, LENGTH - at)
        logits, cache = generation.step(cache, at, now)
        np.testing.assert_allclose(logits, planned[:, at : at + now], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["multi-head", "sliding window", "latent", "encoder-decoder"])
def test_every_value_of_the_cache_is_read(name):
    generation = Generation(MODELS[name](), sizes_of(name), LENGTH)
    _, cache = generation.prompt(PROMPT)
    scores, _ = generation.step(cache, PROMPT, 1)
    rng = np.random.default_rng(2)
    for cached, value in cache.items():
        other, _ = generation.step({**cache, cached: value + rng.standard_normal(value.shape)}, PROMPT, 1)
        assert np.abs(other - scores).max() > 1e-6, cached


def test_a_window_forgets_what_it_no_longer_sees():
    """Of a window of 3 the last 2 keys are kept: the third of the cache would be the fourth that the new token sees."""
    generation = Generation(MODELS["sliding window"](), SIZES, LENGTH)
    _, cache = generation.prompt(PROMPT)
    assert {value.shape[2] for value in cache.values()} == {2}
    full, _ = Generation(MODELS["grouped-query, rotary"](), SIZES, LENGTH).prompt(PROMPT)
    windowed, _ = generation.prompt(PROMPT)
    assert np.abs(full - windowed).max() > 1e-3


def test_prompts_of_unequal_length():
    """`last` says where each sequence ends: the logits are those of that position."""
    generation = Generation(MODELS["multi-head"](), SIZES, LENGTH)
    table, at, last = generation.tables.prefill, np.arange(LENGTH), np.array([2, 6])
    logits = lc.run(table, generation.given(table, at, at) | {"last": last}, generation.counts)["P.L"]
    np.testing.assert_allclose(logits, generation.fused_update()[np.arange(2), last], rtol=1e-12)


def test_blocks_of_blocks():
    """Repeats in repeats: the cache has a stack for each."""
    text = stack(GROUPED, where=CAUSAL, count="n_pair").replace(
        "  repeat n_pair carry X:", "  repeat n_layer carry X:\n  repeat n_pair carry X:"
    )
    head, body = text.split("  repeat n_pair carry X:\n")
    lines = body.splitlines()
    inner = ["  " + line for line in lines if line.startswith("    ")]
    after = [line for line in lines if not line.startswith("    ")]
    model = lc.layer(head + "\n".join(["    repeat n_pair carry X:", *inner, *after]))
    generation = Generation(model, SIZES, LENGTH)
    assert [array.axes[:3] for array in generation.tables.cache] == [("n_layer", "n_pair", "B")] * 2
    planned = generation.fused_update()
    logits, cache = generation.prompt(PROMPT)
    np.testing.assert_allclose(logits, planned[:, PROMPT - 1], rtol=1e-12, atol=1e-12)
    logits, cache = generation.step(cache, PROMPT, 1)
    np.testing.assert_allclose(logits[:, 0], planned[:, PROMPT], rtol=1e-12, atol=1e-12)


def run_price(one, table, new, length):
    sizes = {**one.sizes, "N": 7, **one.tables.lengths(one.sizes, length, new)}
    return lc.price(table, sizes, "run").flops


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "time mixing"])  # which multiplies no given array
def test_operations_executed_are_the_run_price(name, several, monkeypatch):
    generation = Generation(MODELS[name](), sizes_of(name), LENGTH, several)
    generation.weights = {weight: counting(array) for weight, array in generation.weights.items()}
    inputs_of = generation.given
    monkeypatch.setattr(generation, "given", lambda *at: {n: counting(a) for n, a in inputs_of(*at).items()})
    (_, cache), executed = tally_of(generation.prompt, PROMPT)
    assert executed == run_price(generation, generation.tables.prefill, PROMPT, PROMPT)
    new = 2 if several else 1
    _, executed = tally_of(generation.step, cache, PROMPT, new)
    assert executed == run_price(generation, generation.tables.decode, new, PROMPT)


# transformers' own models and caches.

STATES = {
    "mamba": {"state_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16, "chunk_size": 16},
    "rwkv": {"attention_hidden_size": 64, "intermediate_size": 256},
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_has_the_elements_of_transformers_cache_and_a_step_its_products(kind):
    """Of mamba c x (u + n) a block: modeling_mamba.py, conv_states and ssm_states; of rwkv five rows of hidden_size."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512, **STATES[kind]}
    config = transformers.AutoConfig.for_model(kind, **small)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.zeros((1, 8), dtype=torch.long)
    with torch.no_grad():
        kept = module(tokens, use_cache=True)
        name = "state" if kind == "rwkv" else "cache_params"
        with FlopCounterMode(display=False) as counted:
            module(tokens[:, :1], use_cache=True, **{name: kept[name]})
    if kind == "rwkv":
        arrays = kept[name]
    else:
        arrays = [a for one in kept[name].layers for a in (*one.conv_states.values(), *one.recurrent_states.values())]
    cost = lc.cost({**config.to_dict(), "model_type": kind}, "decode", "matmul", context=8)
    assert cost.cache.state == sum(array.numel() for array in arrays)
    assert cost.flops == counted.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert json.dumps(lc.cost("mamba-130m", "prefill", seq_len=8).to_dict(), allow_nan=False)
    assert lc.memory("mamba-130m", "decode").split["recurrent state"] == 4 * 24 * 1536 * (4 + 16)


def llama_places(sizes):
    h, g, k = sizes["h"], sizes["g"], sizes["k"]
    block_places = {
        "ln_1": ("input_layernorm.weight", plain),
        "ln_2": ("post_attention_layernorm.weight", plain),
        "attn.WQ": ("self_attn.q_proj.weight", into(h, g, k)),
        "attn.WK": ("self_attn.k_proj.weight", into(h, k)),
        "attn.WV": ("self_attn.v_proj.weight", into(h, k)),
        "attn.WO": ("self_attn.o_proj.weight", out_of(h, g, k)),
        "mlp.WG": ("mlp.gate_proj.weight", transposed),
        "mlp.WU": ("mlp.up_proj.weight", transposed),
        "mlp.WD": ("mlp.down_proj.weight", transposed),
    }
    outer = {"wte": ("model.embed_tokens.weight", plain), "ln_f": ("model.norm.weight", plain)}
    outer["head.W"] = ("lm_head.weight", transposed)
    return outer | {name: (f"model.layers.{{}}.{place}", view) for name, (place, view) in block_places.items()}


def gpt2_places(sizes):
    h, k = sizes["h"], sizes["k"]
    block_places = {"attn.WO": ("attn.c_proj.weight", by(h, k, sizes["d"])), "attn.bO": ("attn.c_proj.bias", plain)}
    for i, letter in enumerate("QKV"):
        block_places[f"attn.W{letter}"] = ("attn.c_attn.weight", lambda w, i=i: np.split(w, 3, 1)[i].reshape(-1, h, k))
        block_places[f"attn.b{letter}"] = ("attn.c_attn.bias", lambda b, i=i: np.split(b, 3)[i].reshape(h, k))
    for i, place in (("1", "c_fc"), ("2", "c_proj")):
        block_places |= {f"mlp.W{i}": (f"mlp.{place}.weight", plain), f"mlp.b{i}": (f"mlp.{place}.bias", plain)}
    outer = {"wte": ("transformer.wte.weight", plain), "wpe": ("transformer.wpe.weight", plain)}
    for norm, at in (("ln_1", block_places), ("ln_2", block_places), ("ln_f", outer)):
        start = "transformer." if at is outer else ""
        at |= {f"{norm}.g": (f"{start}{norm}.weight", plain), f"{norm}.b": (f"{start}{norm}.bias", plain)}
    return outer | {name: (f"transformer.h.{{}}.{place}", view) for name, (place, view) in block_places.items()}


FOREIGN_SIZES = {**SIZES, "d": 24, "window": 3}
GPT2_SIZES = {**SIZES, "d": 8, "h": 2, "k": 4, "f": 32}


def gpt2_with_biases():
    biased = with_biases(shipped_layer("attention"), {f"W{letter}": f"b{letter}" for letter in "QKVO"})
    return lc.layer(GPT2, layers={"attention": biased, "head": with_transposed(shipped_layer("head"), "W")})


def llama_like(kind, **keys):
    s = FOREIGN_SIZES
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=s["d"], num_attention_heads=s["h"] * s["g"], num_key_value_heads=s["h"], head_dim=s["k"],
        intermediate_size=s["f"], vocab_size=s["v"], rms_norm_eps=1e-6, num_hidden_layers=s["n_layer"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **keys,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def deepseek_places(sizes):
    h, k, c, r, w = (sizes[axis] for axis in "hkcrw")

    def part(place, width, rows):
        return f"self_attn.{place}.weight", lambda weight: into(h, width)(weight)[..., rows]

    down = "self_attn.kv_a_proj_with_mqa.weight"
    block_places = {
        "attn.WDQ": ("self_attn.q_a_proj.weight", transposed),
        "attn.gQ": ("self_attn.q_a_layernorm.weight", plain),
        "attn.WUQ": part("q_b_proj", k + r, slice(0, k)),
        "attn.WQR": part("q_b_proj", k + r, slice(k, k + r)),
        "attn.WDK": (down, lambda weight: weight[:c].T),
        "attn.gK": ("self_attn.kv_a_layernorm.weight", plain),
        "attn.WUK": part("kv_b_proj", k + w, slice(0, k)),
        "attn.WUV": part("kv_b_proj", k + w, slice(k, k + w)),
        "attn.WKR": (down, lambda weight: weight[c:].T),
        "attn.WO": ("self_attn.o_proj.weight", out_of(h, w)),
    }
    common = {name: place for name, place in llama_places(sizes).items() if not name.startswith("attn.")}
    return common | {name: (f"model.layers.{{}}.{place}", view) for name, (place, view) in block_places.items()}


def deepseek():
    """Every layer dense: what is compared is the attention."""
    s = SIZES
    config = transformers.DeepseekV3Config(
        hidden_size=s["d"], num_attention_heads=s["h"], num_key_value_heads=s["h"], q_lora_rank=s["a"],
        kv_lora_rank=s["c"], qk_nope_head_dim=s["k"], qk_rope_head_dim=s["r"], v_head_dim=s["w"],
        rope_interleave=False, num_hidden_layers=s["n_layer"], first_k_dense_replace=s["n_layer"],
        intermediate_size=s["f"], vocab_size=s["v"], rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    config._attn_implementation = "eager"
    return transformers.DeepseekV3ForCausalLM(config)


def gpt2():
    s = GPT2_SIZES
    config = transformers.GPT2Config(
        vocab_size=s["v"], n_positions=s["p"], n_embd=s["d"], n_layer=s["n_layer"], n_head=s["h"]
    )
    config._attn_implementation = "eager"
    return transformers.GPT2LMHeadModel(config)


FOREIGN = {
    "gpt2": (gpt2_with_biases, gpt2, gpt2_places, GPT2_SIZES),
    "llama": (llama, lambda: llama_like("Llama"), llama_places, FOREIGN_SIZES),
    "mistral": (
        lambda: llama(SLIDING),
        lambda: llama_like("Mistral", sliding_window=FOREIGN_SIZES["window"]),
        llama_places,
        FOREIGN_SIZES,
    ),
    "deepseek_v3": (lambda: latent((SIZES["k"] + SIZES["r"]) ** -0.5), deepseek, deepseek_places, SIZES),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("name", FOREIGN)
def test_logits_of_every_step_are_those_of_transformers_with_its_cache(name):
    make, foreign, places, sizes = FOREIGN[name]
    model, module = make(), shaken(foreign())
    theirs = dict(module.named_parameters())
    weights = {}
    for weight, (place, view) in places(sizes).items():
        if "{}" in place:
            stack = [view(numpy_of(theirs[place.format(i)])) for i in range(sizes["n_layer"])]
            weights[weight] = np.stack(stack)
        else:
            weights[weight] = view(numpy_of(theirs[place]))
    assert set(weights) == set(model.table.weights)
    generation = Generation(model, sizes, LENGTH, weights=weights)
    tokens = torch.tensor(generation.tokens)
    with torch.no_grad():
        output = module(input_ids=tokens[:, :PROMPT], use_cache=True)
        logits, cache = generation.prompt(PROMPT)
        np.testing.assert_allclose(logits, numpy_of(output.logits[:, -1]), rtol=1e-9, atol=1e-9)
        for at in range(PROMPT, LENGTH):
            output = module(input_ids=tokens[:, at : at + 1], past_key_values=output.past_key_values, use_cache=True)
            logits, cache = generation.step(cache, at, 1)
            np.testing.assert_allclose(logits, numpy_of(output.logits), rtol=1e-9, atol=1e-9)
    cached = sum(layer.keys.numel() + layer.values.numel() for layer in output.past_key_values.layers)
    assert sum(value.size for value in cache.values()) == cached


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("name", FOREIGN)
def test_products_of_matrices_are_those_that_torch_counts(name):
    make, foreign, _, sizes = FOREIGN[name]
    tables = inference(make())
    context = 7
    with torch.device("meta"):
        module = foreign()
    tokens = torch.zeros(sizes["B"], context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        output = module(input_ids=tokens, use_cache=True, logits_to_keep=1)
    cache_sizes = {**sizes, "M": context}
    assert counter.get_total_flops() == lc.price(tables.prefill, cache_sizes, "matmul").flops
    with FlopCounterMode(display=False) as counter:
        module(input_ids=tokens[:, :1], past_key_values=output.past_key_values, use_cache=True)
    cache_sizes = {**sizes, **tables.lengths(sizes, context, 1)}
    assert counter.get_total_flops() == lc.price(tables.decode, cache_sizes, "matmul").flops


def test_several_new_tokens_are_counted_as_torch_counts_them():
    tables, sizes = inference(tied(GPT2), several=True), GPT2_SIZES
    with torch.device("meta"):
        module = gpt2()
    tokens = torch.zeros(sizes["B"], 6, dtype=torch.long, device="meta")
    output = module(input_ids=tokens, use_cache=True)
    with FlopCounterMode(display=False) as counter:
        module(input_ids=tokens[:, :3], past_key_values=output.past_key_values, use_cache=True)
    cache_sizes = {**sizes, **tables.lengths(sizes, 6, 3)}
    assert counter.get_total_flops() == lc.price(tables.decode, cache_sizes, "matmul").flops
