"""Losses and all gradients of dense decoders, read from config.json, against transformers' own models in float64."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import learncost as lc
from decoder_places import places_of
from foreign_models import in_float64, numpy_of, shaken
from hugging_face import module_of, read
from learncost.engines.computed_inputs import computed_inputs
from learncost.ir.errors import InputError
from learncost.layers.layer import shipped_layer
from learncost.layers.refinement import with_scale
from learncost.models.model import build, run_sizes
from refinements import with_alibi

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

BATCH, LENGTH = 2, 6
BASE = 10000.0
TINY = {
    "vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": None,
    "max_position_embeddings": 16,
}  # fmt: skip
TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}}


def stretched(kind, **more):
    """Settings of angles for more positions than those of training, which are few enough here to matter."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, **more}}


TRAINED = {"original_max_position_embeddings": 4}
GROUPED = {**TINY, **TURNED, "num_key_value_heads": 2, "intermediate_size": 7}
WIDE = {**GROUPED, "head_dim": 8}
WINDOW = {"sliding_window": 3, "num_hidden_layers": 4}
SLIDING_FULL = {"sliding_attention.": [0, 2], "full_attention.": [1, 3]}
GEMMA_3_TURNED = {
    kind: {"rope_type": "default", "rope_theta": base}
    for kind, base in {"full_attention": 1e6, "sliding_attention": BASE}.items()
}
GPTJ = {"vocab_size": 13, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16, "rotary_dim": 4}
BLOOM = {"vocab_size": 13, "hidden_size": 24, "n_layer": 2, "n_head": 3}
FALCON = {**TINY, **TURNED}
NEWER = {"new_decoder_architecture": True, "num_kv_heads": 2}

# Keys, and the blocks of each stack of weights where these are of several kinds.
MODELS = {
    "llama": (WIDE, {}),
    "llama, biases, tied": (
        {
            **WIDE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
            **stretched("llama3", factor=8.0, low_freq_factor=0.1, high_freq_factor=0.5, **TRAINED),
        },
        {},
    ),
    "mistral": ({**GROUPED, "sliding_window": 3}, {}),
    "mistral, no window": (
        {**WIDE, "sliding_window": None, **stretched("yarn", factor=4.0, beta_fast=2.0, beta_slow=0.1, **TRAINED)}, {}
    ),
    "qwen2": ({**GROUPED, "tie_word_embeddings": True, **stretched("linear", factor=3.0)}, {}),
    "qwen2, windows": (
        {**GROUPED, **WINDOW, "use_sliding_window": True, "max_window_layers": 2},
        {"full_attention.": [0, 1], "sliding_attention.": [2, 3]},
    ),
    "qwen3": (
        {**WIDE, "attention_bias": True, "max_position_embeddings": 4, **stretched("dynamic", factor=3.0)}, {}
    ),
    "gemma": ({**WIDE, "attention_bias": True}, {}),
    "gemma2": ({**WIDE, **WINDOW, "query_pre_attn_scalar": 7}, SLIDING_FULL),
    "gemma2, untied, no caps": (
        {
            **WIDE, **WINDOW, "tie_word_embeddings": False, "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
        {"full_attention.": [0, 2], "sliding_attention.": [1, 3]},
    ),
    "gemma3_text": (
        {**WIDE, **WINDOW, "sliding_window_pattern": 2, "rope_parameters": GEMMA_3_TURNED, "query_pre_attn_scalar": 9},
        SLIDING_FULL,
    ),
    "gemma3_text, capped": (
        {
            **WIDE, "final_logit_softcapping": 3.0, "attention_bias": True, "rope_parameters": GEMMA_3_TURNED,
            "layer_types": ["full_attention"] * 2,
        },
        {},
    ),
    "gpt_neox": ({**TINY, "hidden_size": 32, "intermediate_size": 7}, {}),
    "gpt_neox, one after the other": (
        {
            **TINY, "hidden_size": 32, "intermediate_size": 7, "use_parallel_residual": False, "attention_bias": False,
            "tie_word_embeddings": True,
        },
        {},
    ),
    "gptj": (GPTJ, {}),
    "gptj, tied": ({**GPTJ, "tie_word_embeddings": True, "n_inner": 7, "rotary_dim": 8}, {}),
    "phi": ({**GROUPED, "hidden_size": 32}, {}),
    "phi, norms of queries and keys": ({**GROUPED, "hidden_size": 32, "qk_layernorm": True}, {}),
    "phi3": (
        {
            **GROUPED, "sliding_window": 3, **TRAINED,
            **stretched("longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[1.5, 3.0, 4.5], **TRAINED),
        },
        {},
    ),
    "phi3, partly rotated": (
        {**GROUPED, "hidden_size": 32, "rope_parameters": {**TURNED["rope_parameters"], "partial_rotary_factor": 0.75}},
        {},
    ),
    "opt": ({**TINY, "ffn_dim": 7}, {}),
    "opt, post-norm, narrow embedding": (
        {**TINY, "ffn_dim": 7, "do_layer_norm_before": False, "word_embed_proj_dim": 5, "enable_bias": False},
        {},
    ),
    "opt, plain norms": ({**TINY, "ffn_dim": 7, "layer_norm_elementwise_affine": False}, {}),
    "opt, no last norm": ({**TINY, "ffn_dim": 7, "_remove_final_layer_norm": True}, {}),
    "bloom": (BLOOM, {}),
    "bloom, residual of norms": ({**BLOOM, "apply_residual_connection_post_layernorm": True}, {}),
    "falcon": (FALCON, {}),
    "falcon, two norms": ({**FALCON, **NEWER}, {}),
    "falcon, one norm of the newer": ({**FALCON, **NEWER, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 7}, {}),
    "falcon, slopes": (
        {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False, "num_attention_heads": 3},
        {},
    ),
    "mpt": ({"vocab_size": 13, "d_model": 24, "n_heads": 3, "n_layers": 2, "max_seq_len": 8}, {}),
    "mpt, another scale": (
        {
            "vocab_size": 13, "d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": LENGTH,
            "attn_config": {"softmax_scale": 0.3}, "tie_word_embeddings": False,
        },
        {},
    ),
    "gpt_neo": (
        {**TINY, "num_hidden_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 2},
        {"global.": [0, 2], "local.": [1, 3]},
    ),
    "olmo2": ({**WIDE, **stretched("yarn", factor=4.0, truncate=False, mscale=0.7, mscale_all_dim=0.3, **TRAINED)}, {}),
    "olmo2, biases": ({**GROUPED, "attention_bias": True, "tie_word_embeddings": True}, {}),
    "smollm3": (
        {**GROUPED, "num_hidden_layers": 4, "no_rope_layer_interval": 2},
        {"rotary_full_attention.": [0, 2], "plain_full_attention.": [1, 3]},
    ),
    "smollm3, windows": (
        {**GROUPED, **WINDOW, "no_rope_layers": [0, 1, 0, 1], "use_sliding_window": True, "attention_bias": True},
        {"plain_sliding_attention.": [0, 2], "rotary_full_attention.": [1, 3]},
    ),
    "seed_oss": ({**WIDE, "attention_out_bias": True, "mlp_bias": True}, {}),
    "arcee": ({**WIDE, "attention_bias": True, "mlp_bias": True}, {}),
    "stablelm": ({**GROUPED, "hidden_size": 32, "use_qkv_bias": True}, {}),
    "stablelm, parallel": ({**GROUPED, "hidden_size": 32, "use_parallel_residual": True}, {}),
    "hunyuan_v1_dense": ({**WIDE, "attention_bias": True, **stretched("dynamic", factor=1.0, alpha=3.0)}, {}),
    "olmo3": (
        {
            **WIDE, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 60.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.1,
                    **TRAINED,
                },
            },
        },
        SLIDING_FULL,
    ),
    "ministral3": (
        {
            **WIDE,
            **stretched("yarn", factor=4.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, **TRAINED),
        },
        {},
    ),
    "cohere2": (
        {**GROUPED, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_bias": True},
        SLIDING_FULL,
    ),
}  # fmt: skip


def inputs_of(values, model, tokens):
    """What comes from outside: tokens and their successors; and what positions say.

    transformers' eager Falcon adds the slopes twice, once to the scores and once with the causal mask, which its fused
    one does not: here they stand doubled. It rounds them to bfloat16, which changes nothing with three heads.
    """
    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    inputs = dict(computed_inputs(model.configuration, {"M": LENGTH}))
    if values["model_type"] == "falcon" and "slope" in inputs:
        inputs["slope"] = 2 * inputs["slope"]
    return {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share, **inputs}


def ours(parameters, view, stacked):
    arrays = [view(numpy_of(value)) for value in parameters]
    return np.stack(arrays) if stacked else arrays[0]


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name):
    """BLOOM's GELU has sqrt(2/pi) rounded to eight digits, so that it agrees to as many."""
    keys, stacks = MODELS[name]
    values = deepcopy({"model_type": name.partition(",")[0], **keys})  # transformers writes into what it is given
    tolerance = 1e-7 if values["model_type"] == "bloom" else 1e-9
    model = build(read(values))
    module = shaken(module_of(values, model.configuration.architecture, "cpu"))
    tokens = np.random.default_rng(3).integers(1, values["vocab_size"], (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    loss.backward()
    theirs = dict(module.named_parameters())
    found = places_of(values, model.table.weights, theirs, stacks or {"": range(module.config.num_hidden_layers)})
    assert {place for places, _, _ in found.values() for place in places} == set(theirs)
    arrays = inputs_of(values, model, tokens)
    arrays |= {weight: ours([theirs[at] for at in places], *how) for weight, (places, *how) in found.items()}
    windows = {"w": run_sizes(model, BATCH, LENGTH, None)["w"]} if "M' + w" in str(model.table) else {}
    result = lc.run(model.table, {**arrays, **windows, "dloss": np.array(1.0)})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=tolerance)
    for weight, (places, *how) in found.items():
        gradient = ours([theirs[at].grad for at in places], *how)
        np.testing.assert_allclose(result[f"d{weight}"], gradient, rtol=tolerance, atol=tolerance, err_msg=weight)


PROVEN = [
    "gemma3_text, capped", "phi, norms of queries and keys", "opt, post-norm, narrow embedding", "falcon, slopes",
    "falcon, two norms", "mpt, another scale", "olmo2",
]  # fmt: skip


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("name", PROVEN)
def test_a_table_with_what_only_these_types_have_passes_the_proof(name):
    """Gradients by complex steps and the price line by line, which transformers cannot say."""
    report = lc.check_layer(build(read({"model_type": name.partition(",")[0], **deepcopy(MODELS[name][0])})).table)
    assert report.passed, report


def test_a_scale_that_finds_no_product_is_refused():
    """Behind ALiBi the scores are a sum: a scale that came then would be lost in silence."""
    with pytest.raises(InputError, match="grouped_attention has no product that defines S"):
        with_scale(with_alibi(shipped_layer("grouped_attention")), 0.3)
