"""Attention after 2019 against transformers' own modules: values and gradients in float64."""

import random

import numpy as np
import pytest
import torch

import learncost as lc
from foreign_models import (
    angles,
    by,
    causal_mask,
    compare,
    in_float64,
    into,
    numpy_of,
    out_of,
    plain,
    self_attention,
    shaken,
    transposed,
)
from learncost.layers.layer import shipped_layer
from learncost.layers.refinement import with_norms, with_rotary, with_scale, without_line
from learncost.layers.rewrite import with_biases, with_epsilon, with_op
from refinements import with_alibi, with_relative_bias, with_softcap, with_visible
from sampling import sampled

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

B, M, D, FF = 2, 5, 12, 7
MODELS = transformers.models


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def grouped():
    return shipped_layer("grouped_attention")


REWRITTEN = {
    "rotary": lambda: with_rotary(grouped()),
    "norms and rotary": lambda: with_rotary(with_norms(grouped(), {"Q": "gQ", "K": "gK"})),
    "biases, norms of all heads": lambda: with_norms(
        with_biases(grouped(), {"WQ": "bQ", "WK": "bK"}), {"Q": "gQ", "K": "gK"}, ("h", "g", "k")
    ),
    "cap": lambda: with_softcap(with_scale(grouped(), 0.3), 5.0),
    "slopes": lambda: with_alibi(grouped()),
    "buckets": lambda: with_relative_bias(without_line(shipped_layer("attention"))),
    "window": lambda: with_visible(grouped()),
    "rotary latent attention": lambda: with_rotary(shipped_layer("latent_attention"), "QR", "KR"),
    "capped head": lambda: with_softcap(shipped_layer("head"), 30.0, "L"),
    "gelu": lambda: with_op(shipped_layer("gated_feed_forward"), "silu", "gelu_tanh"),
}


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("name", sampled(REWRITTEN, 6, start=1))
def test_every_rewriting_passes_the_proof(name):
    report = lc.verify(REWRITTEN[name]().table)
    assert report.passed, report


@pytest.mark.parametrize("name", sampled(["grouped_attention", "latent_attention"], 2))
def test_a_causal_call_of_a_rewritten_layer_passes_the_proof(name):
    layer = grouped() if name == "grouped_attention" else shipped_layer(name)
    if name == "grouped_attention":
        layer = with_visible(with_softcap(with_alibi(with_rotary(layer)), 5.0))
    else:
        layer = with_rotary(layer, "QR", "KR")
    report = lc.check_layer(self_attention(layer))
    assert report.passed, report


# Attention.


def projections(module, h, g, k, output="o_proj"):
    weights = {
        "w.WQ": (module.q_proj.weight, into(h, g, k)),
        "w.WK": (module.k_proj.weight, into(h, k)),
        "w.WV": (module.v_proj.weight, into(h, k)),
        "w.WO": (getattr(module, output).weight, out_of(h, g, k)),
    }
    views = {"q_proj": ("w.bQ", by(h, g, k)), "k_proj": ("w.bK", by(h, k)), "v_proj": ("w.bV", by(h, k))}
    for name, (weight_name, view) in {**views, output: ("w.bO", plain)}.items():
        if getattr(module, name).bias is not None:
            weights[weight_name] = (getattr(module, name).bias, view)
    return weights


def sizes_of(seed):
    """Random numbers of key heads, of queries that share one, and widths; first multi-query, then multi-head."""
    generator = random.Random(seed)
    h = 1 if seed == 0 else generator.randint(1, 3)
    g = 1 if seed == 1 else generator.randint(1, 3)
    return h, g, 2 * generator.randint(1, 4), h * g * generator.randint(1, 5)


def configuration(kind, h, g, k, d, **keys):
    config = kind(
        hidden_size=d, num_attention_heads=h * g, num_key_value_heads=h, head_dim=k, num_hidden_layers=1,
        vocab_size=11, intermediate_size=FF, **keys,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return config


def their_angles(rotary):
    """Their cosines and sines: the sign of ours is on the half whose partner stands behind."""
    at = np.arange(len(rotary["flip"]))
    sine = rotary["sine"] * np.where(rotary["flip"] > at, -1.0, 1.0)
    return torch.tensor(rotary["cosine"])[None], torch.tensor(sine)[None]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2"])
def test_grouped_attention(family, seed):
    h, g, k, d = sizes_of(seed)
    if family in ("qwen2", "olmo2"):
        d = h * g * k
    kind, biases, norms = {
        "llama": (transformers.LlamaConfig, {}, None),
        "qwen2": (transformers.Qwen2Config, {"WQ": "bQ", "WK": "bK", "WV": "bV"}, None),
        "qwen3": (transformers.Qwen3Config, {}, ("k",)),
        "olmo2": (transformers.Olmo2Config, {}, ("h", "g", "k")),
    }[family]
    modeling = getattr(getattr(MODELS, family), f"modeling_{family}")
    config = configuration(kind, h, g, k, d, rms_norm_eps=1e-5)
    module = shaken(getattr(modeling, f"{family.capitalize()}Attention")(config, layer_idx=0))
    layer = with_biases(grouped(), biases)
    weights = projections(module, h, g, k)
    if norms:
        layer = with_norms(layer, {"Q": "gQ", "K": "gK"}, norms, 1e-5)
        views = (plain, plain) if norms == ("k",) else (by(h, g, k), by(h, k))
        weights["w.gQ"] = (module.q_norm.weight, views[0])
        weights["w.gK"] = (module.k_norm.weight, views[1])
    rotary = angles(M, k)
    X = draw(B, M, d)
    result, _ = module(X, position_embeddings=their_angles(rotary), attention_mask=causal_mask(M))
    compare(self_attention(with_rotary(layer)), rotary, weights, result, {"X": X})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window", [None, 2])
def test_attention_of_gemma_2(seed, window):
    h, g, k, d = sizes_of(seed)
    keys = {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 0.8}
    config = configuration(transformers.Gemma2Config, h, g, k, d, **keys)
    module = shaken(MODELS.gemma2.modeling_gemma2.Gemma2Attention(config, layer_idx=0))
    layer = with_softcap(with_scale(with_rotary(grouped()), 7**-0.5), 0.8)
    rotary, X = angles(M, k), draw(B, M, d)
    arrays, visible = dict(rotary), None
    if window:
        visible = np.arange(M)[:, None] - np.arange(M) < window
        layer, arrays["visible"] = with_visible(layer), visible
    result, _ = module(X, position_embeddings=their_angles(rotary), attention_mask=causal_mask(M, visible))
    compare(self_attention(layer), arrays, projections(module, h, g, k), result, {"X": X})


@pytest.mark.parametrize("part", [4, 8])
def test_interleaved_rotary_positions_of_gptj(part):
    h, k, d = 3, 8, 24
    config = transformers.GPTJConfig(n_embd=d, n_head=h, rotary_dim=part, n_positions=M, attn_pdrop=0, resid_pdrop=0)
    module = shaken(MODELS.gptj.modeling_gptj.GPTJAttention(config, layer_idx=0))
    weights = projections(module, h, 1, k, "out_proj")
    X = draw(B, M, d)
    result, _ = module(X, attention_mask=causal_mask(M), position_ids=torch.arange(M)[None].expand(B, -1))
    layer = self_attention(with_rotary(grouped()))
    compare(layer, angles(M, k, part, interleaved=True), weights, result, {"X": X})


@pytest.mark.parametrize("h", [1, 2, 3, 6])
def test_linear_biases_of_bloom(h):
    modeling = MODELS.bloom.modeling_bloom
    config = transformers.BloomConfig(hidden_size=D, n_head=h, hidden_dropout=0.0, attention_dropout=0.0)
    module = shaken(modeling.BloomAttention(config, layer_idx=0))
    k = D // h
    X = draw(B, M, D)
    alibi = modeling.build_alibi_tensor(torch.ones(B, M), h, torch.float64)
    residual = torch.zeros(B, M, D)
    result, _ = module(X, residual, alibi, causal_mask(M))
    parts = {letter: (lambda array, at=at: array[:, at]) for at, letter in enumerate("QKV")}
    fused = module.query_key_value
    weights = {"w.WO": (module.dense.weight, out_of(h, k)), "w.bO": (module.dense.bias, plain)}
    for letter, part in parts.items():
        weights[f"w.W{letter}"] = fused.weight, lambda w, part=part: part(w.reshape(h, 3, k, D)).transpose(2, 0, 1)
        weights[f"w.b{letter}"] = fused.bias, lambda w, part=part: part(w.reshape(h, 3, k))
    layer = with_biases(shipped_layer("attention"), {"WQ": "bQ", "WK": "bK", "WV": "bV", "WO": "bO"})
    slopes = numpy_of(alibi.reshape(B, h, M)[0, :, 1])
    # BLOOM adds the slope times the key's position: the same softmax as with minus the distance.
    distance = np.arange(M)[None] - np.arange(M)[:, None]
    arrays = {"slope": slopes, "distance": distance.astype(float)}
    compare(self_attention(with_alibi(layer)), arrays, weights, result, {"X": X})


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("h", [1, 3])
def test_relative_biases_of_t5(h, decoder):
    keys = {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 8}
    config = transformers.T5Config(d_model=D, d_kv=5, num_heads=h, dropout_rate=0.0, is_decoder=decoder, **keys)
    config._attn_implementation = "eager"
    kind = MODELS.t5.modeling_t5.T5Attention
    module = shaken(kind(config, has_relative_attention_bias=True, layer_idx=0))
    X = draw(B, M, D)
    bias = module.compute_bias(M, M)
    result = module(
        X, mask=causal_mask(M) if decoder else None, position_bias=bias + (causal_mask(M) if decoder else 0)
    )
    at = torch.arange(M)
    bucket = kind._relative_position_bucket(at[None] - at[:, None], not decoder, 6, 8).numpy()
    weights = {f"w.W{letter}": (getattr(module, letter.lower()).weight, into(h, 5)) for letter in "QKV"}
    weights["w.WO"] = (module.o.weight, out_of(h, 5))
    weights["w.relative"] = (module.relative_attention_bias.weight, plain)
    layer = self_attention(with_relative_bias(without_line(shipped_layer("attention"))), causal=decoder)
    compare(layer, {"bucket": bucket}, weights, result[0], {"X": X})


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_latent_attention_of_deepseek(seed, interleaved):
    generator = random.Random(seed)
    h, a, c, k, w = (generator.randint(1, 6) for _ in range(5))
    r = 2 * generator.randint(1, 3)
    config = transformers.DeepseekV3Config(
        hidden_size=D, num_attention_heads=h, num_key_value_heads=h, q_lora_rank=a, kv_lora_rank=c,
        qk_nope_head_dim=k, qk_rope_head_dim=r, v_head_dim=w, rope_interleave=interleaved, num_hidden_layers=1,
    )  # fmt: skip
    config._attn_implementation = "eager"
    module = shaken(MODELS.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention(config, layer_idx=0))
    half_split = angles(M, r)
    X = draw(B, M, D)
    result, _ = module(X, position_embeddings=their_angles(half_split), attention_mask=causal_mask(M))
    rows = {"UQ": slice(0, k), "QR": slice(k, k + r), "UK": slice(0, k), "UV": slice(k, k + w)}

    def heads(own, width):
        return lambda weight: into(h, width)(weight)[..., rows[own]]

    down = module.kv_a_proj_with_mqa.weight
    weights = {
        "w.WDQ": (module.q_a_proj.weight, transposed),
        "w.gQ": (module.q_a_layernorm.weight, plain),
        "w.WUQ": (module.q_b_proj.weight, heads("UQ", k + r)),
        "w.WQR": (module.q_b_proj.weight, heads("QR", k + r)),
        "w.WDK": (down, lambda weight: weight[:c].T),
        "w.gK": (module.kv_a_layernorm.weight, plain),
        "w.WUK": (module.kv_b_proj.weight, heads("UK", k + w)),
        "w.WUV": (module.kv_b_proj.weight, heads("UV", k + w)),
        "w.WKR": (down, lambda weight: weight[c:].T),
        "w.WO": (module.o_proj.weight, out_of(h, w)),
    }
    layer = with_scale(with_rotary(shipped_layer("latent_attention"), "QR", "KR"), (k + r) ** -0.5)
    layer = self_attention(with_epsilon(layer, 1e-6))
    compare(layer, angles(M, r, interleaved=interleaved), weights, result, {"X": X})
