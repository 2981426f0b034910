"""Mamba, Mamba-2, RWKV and Llama 4: loss and all gradients against transformers' own models in float64."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import learncost as lc
from decoder_places import apart, output
from foreign_models import in_float64, numpy_of, out_of, plain, shaken, transposed
from hugging_face import check_parameters, module_of, read
from learncost.engines.computed_inputs import computed_inputs
from learncost.ir.loop import walk
from learncost.layers.active import parameters
from learncost.models.argument import preset
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.sample import small_sizes

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

BATCH, LENGTH = 2, 6
MODELS = {
    "mamba": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "state_size": 3, "conv_kernel": 3,
        "time_step_rank": 2, "intermediate_size": 10, "expand": 2, "use_bias": True,
    },
    "mamba, untied": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 3, "time_step_rank": 2,
        "use_conv_bias": False, "tie_word_embeddings": False, "intermediate_size": 16,
    },
    "mamba2": {
        "vocab_size": 13, "hidden_size": 6, "num_hidden_layers": 2, "state_size": 3, "head_dim": 3, "num_heads": 4,
        "n_groups": 2, "conv_kernel": 3, "chunk_size": 4, "pad_token_id": 0,
    },
    "mamba2, biases": {
        "vocab_size": 13, "hidden_size": 6, "num_hidden_layers": 1, "state_size": 3, "head_dim": 3, "num_heads": 4,
        "n_groups": 1, "chunk_size": 4, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "rwkv": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "attention_hidden_size": 6, "intermediate_size": 10,
        "context_length": 16,
    },
    "llama4_text": {
        "vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 4,
        "num_key_value_heads": 2, "intermediate_size": 6, "intermediate_size_mlp": 10, "num_local_experts": 3,
        "no_rope_layer_interval": 2, "attention_chunk_size": 4, "floor_scale": 3, "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "llama4_text, Maverick's kind": {
        "vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 4,
        "num_key_value_heads": 2, "intermediate_size": 6, "intermediate_size_mlp": 10, "num_local_experts": 3,
        "no_rope_layer_interval": 4, "attention_chunk_size": 3, "interleave_moe_layer_step": 2, "use_qk_norm": False,
        "attn_temperature_tuning": False, "num_experts_per_tok": 2, "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "jamba": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 6, "attn_layer_period": 4, "attn_layer_offset": 1, "num_experts": 3, "mamba_d_state": 3,
        "mamba_dt_rank": 2, "mamba_d_conv": 3, "mamba_proj_bias": True, "pad_token_id": None,
    },
    "lfm2": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 10, "block_multiple_of": 4, "full_attn_idxs": [1], "conv_bias": True, "conv_L_cache": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "qwen3_next": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "linear_key_head_dim": 3, "linear_value_head_dim": 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_conv_kernel_dim": 3, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 5, "shared_expert_intermediate_size": 3, "intermediate_size": 6,
        "mlp_only_layers": [1], "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    },
    "falcon_h1": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 6, "mamba_d_ssm": 12, "mamba_n_heads": 4, "mamba_d_head": 3, "mamba_n_groups": 2,
        "mamba_d_state": 3, "mamba_d_conv": 3, "mamba_chunk_size": 4,
        "embedding_multiplier": 1.5, "key_multiplier": 0.4,
        "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.7, "ssm_in_multiplier": 0.9,
        "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.3, 0.4, 0.5, 0.6, 0.7], "mlp_multipliers": [0.8, 1.2],
        "lm_head_multiplier": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "falcon_h1, normed": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 6, "mamba_d_ssm": 12, "mamba_n_heads": 4, "mamba_d_head": 3, "mamba_n_groups": 2,
        "mamba_d_state": 3, "mamba_chunk_size": 4, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "mamba_proj_bias": True, "projectors_bias": True, "attention_bias": True, "mlp_bias": True,
        "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
    },
    "nemotron_h": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 3, "intermediate_size": 6, "hybrid_override_pattern": "ME*-", "mamba_num_heads": 4,
        "mamba_head_dim": 3, "n_groups": 2, "ssm_state_size": 3, "conv_kernel": 3, "chunk_size": 4,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
        "moe_shared_expert_intermediate_size": 7, "routed_scaling_factor": 1.5, "layer_norm_epsilon": 1e-3,
    },
    "nemotron_h, biases": {
        "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 3, "intermediate_size": 6, "layers_block_type": ["linear_attention", "full_attention", "mlp"],
        "mamba_num_heads": 4, "mamba_head_dim": 3, "n_groups": 2, "ssm_state_size": 3, "chunk_size": 4,
        "use_bias": True, "use_conv_bias": False, "attention_bias": True, "mlp_bias": True,
    },
    "gemma4_text": {
        "vocab_size": 13, "vocab_size_per_layer_input": 13, "hidden_size": 12, "intermediate_size": 10,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "global_head_dim": 8, "hidden_size_per_layer_input": 5, "sliding_window": 3, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "layer_types": ["sliding_attention", "full_attention"] * 3, "pad_token_id": None,
        "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-3,
    },
    "gemma4_text, experts": {
        "vocab_size": 13, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 0,
        "sliding_window": 3, "attention_k_eq_v": True, "num_global_key_value_heads": 2, "enable_moe_block": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 3, "pad_token_id": None,
        "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        },
    },
}  # fmt: skip
DELTA = {name: value for name, value in MODELS["qwen3_next"].items() if name != "mlp_only_layers"}
MODELS["qwen3_5_moe_text"] = {name: value for name, value in DELTA.items() if name != "intermediate_size"}
MODELS["qwen3_5_text"] = {name: value for name, value in DELTA.items() if "exp" not in name and "moe" not in name}
MODELS["qwen3_5_text"] |= {"rms_norm_eps": 1e-3, "attention_bias": True, "linear_num_key_heads": 4}


def rows(start, stop, *shape):
    """Some rows of a matrix, output by input, the other way round, their axis in parts."""
    return lambda array: np.moveaxis(array[start:stop].reshape(*(shape or (stop - start,)), -1), -1, 0)


def values(start, stop, *shape):
    return lambda array: array[start:stop].reshape(shape or (stop - start,))


def window(start, stop, *shape):
    """Some channels of a depthwise convolution's kernel."""
    return lambda array: array[start:stop, 0].reshape(*(shape or (stop - start,)), -1)


def first_mamba(config):
    inner, rank, state = config.intermediate_size, config.time_step_rank, config.state_size
    at = "backbone.layers.{}.mixer."
    return {
        "norm.g": ("backbone.layers.{}.norm.weight", plain), "norm": ("backbone.layers.{}.norm.weight", plain),
        "norm_f": ("backbone.norm_f.weight", plain),
        "mixer.WX": (f"{at}in_proj.weight", rows(0, inner)),
        "mixer.WZ": (f"{at}in_proj.weight", rows(inner, 2 * inner)),
        "mixer.bX": (f"{at}in_proj.bias", values(0, inner)),
        "mixer.bZ": (f"{at}in_proj.bias", values(inner, 2 * inner)),
        "mixer.K": (f"{at}conv1d.weight", window(0, inner)), "mixer.bK": (f"{at}conv1d.bias", plain),
        "mixer.WT": (f"{at}x_proj.weight", rows(0, rank)),
        "mixer.WB": (f"{at}x_proj.weight", rows(rank, rank + state)),
        "mixer.WC": (f"{at}x_proj.weight", rows(rank + state, rank + 2 * state)),
        "mixer.WU": (f"{at}dt_proj.weight", transposed), "mixer.bU": (f"{at}dt_proj.bias", plain),
        "mixer.A": (f"{at}A_log", plain), "mixer.D": (f"{at}D", plain),
        "mixer.WO": (f"{at}out_proj.weight", transposed), "mixer.bO": (f"{at}out_proj.bias", plain),
        "wte": ("backbone.embeddings.weight", plain),
    }  # fmt: skip


def second_mamba(config):
    groups, width, state = config.n_groups, config.head_dim, config.state_size
    heads = (groups, config.num_heads // groups, width)
    inner, shared, at = config.num_heads * width, groups * state, "backbone.layers.{}.mixer."
    places = dict(first_mamba(transformers.MambaConfig()))
    starts = {"X": (0, inner, *heads), "B": (inner, inner + shared, groups, state)}
    starts["C"] = (inner + shared, inner + 2 * shared, groups, state)
    places |= {"mixer.WZ": (f"{at}in_proj.weight", rows(0, inner, *heads))}
    places |= {"mixer.bZ": (f"{at}in_proj.bias", values(0, inner, *heads))}
    for letter, (start, stop, *shape) in starts.items():
        places[f"mixer.W{letter}"] = f"{at}in_proj.weight", rows(inner + start, inner + stop, *shape)
        places[f"mixer.b{letter}"] = f"{at}in_proj.bias", values(inner + start, inner + stop, *shape)
        places[f"mixer.K{letter}"] = f"{at}conv1d.weight", window(start, stop, *shape)
        places[f"mixer.c{letter}"] = f"{at}conv1d.bias", values(start, stop, *shape)
    end, count = 2 * inner + 2 * shared, config.num_heads
    places["mixer.WT"] = f"{at}in_proj.weight", rows(end, end + count, *heads[:2])
    places["mixer.cT"] = f"{at}in_proj.bias", values(end, end + count, *heads[:2])
    for ours, theirs in {"bT": "dt_bias", "A": "A_log", "D": "D"}.items():
        places[f"mixer.{ours}"] = f"{at}{theirs}", values(0, count, *heads[:2])
    places["mixer.g"] = f"{at}norm.weight", values(0, inner, *heads)
    places["mixer.WO"] = f"{at}out_proj.weight", out_of(*heads)
    return places


def rwkv(config):
    at = "rwkv.blocks.{}."
    places = {
        "wte": ("rwkv.embeddings.weight", plain), "pre_ln.g": ("rwkv.blocks.0.pre_ln.weight", plain),
        "pre_ln.b": ("rwkv.blocks.0.pre_ln.bias", plain), "ln_f.g": ("rwkv.ln_out.weight", plain),
        "ln_f.b": ("rwkv.ln_out.bias", plain), "attn.w": (f"{at}attention.time_decay", plain),
        "attn.u": (f"{at}attention.time_first", plain), "attn.WO": (f"{at}attention.output.weight", transposed),
    }  # fmt: skip
    for number in (1, 2):
        for ours, theirs in {"g": "weight", "b": "bias"}.items():
            places[f"ln_{number}.{ours}"] = f"{at}ln{number}.{theirs}", plain
    for ours, theirs in {"attn": "attention", "mlp": "feed_forward"}.items():
        for letter, name in {"K": "key", "V": "value", "R": "receptance"}.items():
            places[f"{ours}.W{letter}"] = f"{at}{theirs}.{name}.weight", transposed
            places[f"{ours}.m{letter}"] = f"{at}{theirs}.time_mix_{name}", np.ravel
    return places


def llama4(config):
    heads, groups, width = config.num_key_value_heads, config.num_attention_heads, config.head_dim
    groups, at = groups // heads, "model.layers.{}."
    moe, mlp = f"{at}feed_forward.experts.", f"{at}feed_forward."
    places = {
        "wte": ("model.embed_tokens.weight", plain), "ln_f": ("model.norm.weight", plain),
        "ln_1": (f"{at}input_layernorm.weight", plain), "ln_2": (f"{at}post_attention_layernorm.weight", plain),
        "attn.WQ": (f"{at}self_attn.q_proj.weight", rows(0, None, heads, groups, width)),
        "attn.WK": (f"{at}self_attn.k_proj.weight", rows(0, None, heads, width)),
        "attn.WV": (f"{at}self_attn.v_proj.weight", rows(0, None, heads, width)),
        "attn.WO": (f"{at}self_attn.o_proj.weight", out_of(heads, groups, width)),
        "moe.WR": (f"{mlp}router.weight", transposed), "moe.WD": (f"{moe}down_proj", plain),
        "moe.WG": (f"{moe}gate_up_proj", lambda w: np.split(w, 2, -1)[0]),
        "moe.WU": (f"{moe}gate_up_proj", lambda w: np.split(w, 2, -1)[1]),
    }  # fmt: skip
    for letter, name in NETWORK.items():
        places[f"shared.W{letter}"] = f"{mlp}shared_expert.{name}_proj.weight", transposed
        places[f"mlp.W{letter}"] = f"{mlp}{name}_proj.weight", transposed
    return places


def jamba(config):
    at, inner = "model.layers.{}.", config.mamba_expand * config.hidden_size
    sizes = {"intermediate_size": inner, "state_size": config.mamba_d_state, "time_step_rank": config.mamba_dt_rank}
    mixer = first_mamba(transformers.MambaConfig(**sizes)).items()
    places = {ours.replace("mixer.", "mamba."): (theirs.replace("backbone.layers.{}.mixer.", f"{at}mamba."), view)
              for ours, (theirs, view) in mixer if ours.startswith("mixer.")}  # fmt: skip
    places |= {
        name: (theirs.replace("mlp.", "feed_forward."), view)
        for name, (theirs, view) in _llama_block(config, at).items()
    }
    for ours, theirs in {"gT": "dt", "gB": "b", "gC": "c"}.items():
        places[f"mamba.{ours}"] = f"{at}mamba.{theirs}_layernorm.weight", plain
    return places | {
        "ln_2": (f"{at}pre_ff_layernorm.weight", plain), "ln_f": ("model.final_layernorm.weight", plain),
        "moe.WR": (f"{at}feed_forward.router.weight", transposed),
        "moe.WG": (f"{at}feed_forward.experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[0]),
        "moe.WU": (f"{at}feed_forward.experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[1]),
        "moe.WD": (f"{at}feed_forward.experts.down_proj", lambda w: w.swapaxes(1, 2)),
    }  # fmt: skip


def lfm2(config):
    at, width = "model.layers.{}.", config.hidden_size
    places = _llama_block(config, at) | {
        "attn.WO": (f"{at}self_attn.out_proj.weight", _llama_block(config, at)["attn.WO"][1]),
        "attn.gQ": (f"{at}self_attn.q_layernorm.weight", plain),
        "attn.gK": (f"{at}self_attn.k_layernorm.weight", plain),
        "ln_1": (f"{at}operator_norm.weight", plain), "ln_2": (f"{at}ffn_norm.weight", plain),
        "ln_f": ("model.embedding_norm.weight", plain), "conv.WO": (f"{at}conv.out_proj.weight", transposed),
        "conv.bO": (f"{at}conv.out_proj.bias", plain), "conv.bK": (f"{at}conv.conv.bias", plain),
        "conv.K": (f"{at}conv.conv.weight", window(0, width)),
    }  # fmt: skip
    for place, letter in enumerate("BCX"):
        places[f"conv.W{letter}"] = f"{at}conv.in_proj.weight", rows(place * width, (place + 1) * width)
        places[f"conv.b{letter}"] = f"{at}conv.in_proj.bias", values(place * width, (place + 1) * width)
    for letter, name in {"G": "w1", "U": "w3", "D": "w2"}.items():
        places[f"mlp.W{letter}"] = f"{at}feed_forward.{name}.weight", transposed
    return places


def qwen3_next(config):
    """The delta net's matrices are a group of every key head's queries, keys, values and gates."""
    at, n, p = "model.layers.{}.", config.linear_key_head_dim, config.linear_value_head_dim
    i, j = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    net, mlp, width = f"{at}linear_attn.", f"{at}mlp.", config.head_dim
    heads, groups = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads

    def part(start, stop, *shape):
        return lambda w: np.moveaxis(w.reshape(i, -1, w.shape[-1])[:, start:stop].reshape(i, *shape, -1), -1, 0)

    def half(start):
        return lambda w: np.moveaxis(
            w.reshape(heads, groups, 2, width, -1)[:, :, start].reshape(heads, groups, width, -1), -1, 0
        )

    places = _llama_block(config, at) | {
        "ln_2": (f"{at}post_attention_layernorm.weight", plain), "ln_f": ("model.norm.weight", plain),
        "attn.WQ": (f"{at}self_attn.q_proj.weight", half(0)), "attn.WS": (f"{at}self_attn.q_proj.weight", half(1)),
        "attn.WK": (f"{at}self_attn.k_proj.weight", rows(0, None, heads, width)),
        "attn.WV": (f"{at}self_attn.v_proj.weight", rows(0, None, heads, width)),
        "attn.WO": (f"{at}self_attn.o_proj.weight", out_of(heads, groups, width)),
        "attn.gQ": (f"{at}self_attn.q_norm.weight", plain), "attn.gK": (f"{at}self_attn.k_norm.weight", plain),
        "delta.WQ": (f"{net}in_proj_qkvz.weight", part(0, n, n)),
        "delta.WK": (f"{net}in_proj_qkvz.weight", part(n, 2 * n, n)),
        "delta.WV": (f"{net}in_proj_qkvz.weight", part(2 * n, 2 * n + j * p, j, p)),
        "delta.WZ": (f"{net}in_proj_qkvz.weight", part(2 * n + j * p, None, j, p)),
        "delta.WB": (f"{net}in_proj_ba.weight", part(0, j, j)),
        "delta.WA": (f"{net}in_proj_ba.weight", part(j, None, j)),
        "delta.KQ": (f"{net}conv1d.weight", window(0, i * n, i, n)),
        "delta.KK": (f"{net}conv1d.weight", window(i * n, 2 * i * n, i, n)),
        "delta.KV": (f"{net}conv1d.weight", window(2 * i * n, None, i, j, p)),
        "delta.bA": (f"{net}dt_bias", values(0, None, i, j)), "delta.A": (f"{net}A_log", values(0, None, i, j)),
        "delta.g": (f"{net}norm.weight", plain), "delta.WO": (f"{net}out_proj.weight", out_of(i, j, p)),
        "attn.bQ": (f"{at}self_attn.q_proj.bias", lambda b: half(0)(b[:, None])[0]),
        "attn.bS": (f"{at}self_attn.q_proj.bias", lambda b: half(1)(b[:, None])[0]),
        "attn.bK": (f"{at}self_attn.k_proj.bias", values(0, None, heads, width)),
        "attn.bV": (f"{at}self_attn.v_proj.bias", values(0, None, heads, width)),
        "attn.bO": (f"{at}self_attn.o_proj.bias", plain),
        "moe.WR": (f"{mlp}gate.weight", transposed), "shared.WS": (f"{mlp}shared_expert_gate.weight", transposed),
        "moe.WG": (f"{mlp}experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[0]),
        "moe.WU": (f"{mlp}experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[1]),
        "moe.WD": (f"{mlp}experts.down_proj", lambda w: w.swapaxes(1, 2)),
    }  # fmt: skip
    for letter, name in NETWORK.items():
        places[f"shared.W{letter}"] = f"{mlp}shared_expert.{name}_proj.weight", transposed
    return places


def qwen3_5(config):
    """The delta net's matrices are apart."""
    at, n, p = "model.layers.{}.linear_attn.", config.linear_key_head_dim, config.linear_value_head_dim
    i, j = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    return qwen3_next(config) | {
        "delta.WQ": (f"{at}in_proj_qkv.weight", rows(0, i * n, i, n)),
        "delta.WK": (f"{at}in_proj_qkv.weight", rows(i * n, 2 * i * n, i, n)),
        "delta.WV": (f"{at}in_proj_qkv.weight", rows(2 * i * n, None, i, j, p)),
        "delta.WZ": (f"{at}in_proj_z.weight", rows(0, None, i, j, p)),
        "delta.WB": (f"{at}in_proj_b.weight", rows(0, None, i, j)),
        "delta.WA": (f"{at}in_proj_a.weight", rows(0, None, i, j)),
    }


def falcon_h1(config):
    at, sizes = "model.layers.{}.", {"num_heads": config.mamba_n_heads, "head_dim": config.mamba_d_head}
    sizes |= {"n_groups": config.mamba_n_groups, "state_size": config.mamba_d_state}
    mixer = second_mamba(SimpleNamespace(**sizes)).items()
    places = {ours.replace("mixer.", "mamba."): (theirs.replace("backbone.layers.{}.mixer.", f"{at}mamba."), view)
              for ours, (theirs, view) in mixer if ours.startswith("mixer.")}  # fmt: skip
    block = _llama_block(config, at).items()
    places |= {name: (theirs.replace("mlp.", "feed_forward."), view) for name, (theirs, view) in block}
    for letter, name in NETWORK.items():
        places[f"mlp.b{letter}"] = f"{at}feed_forward.{name}_proj.bias", plain
    return places | {
        "ln_2": (f"{at}pre_ff_layernorm.weight", plain), "ln_f": ("model.final_layernorm.weight", plain),
    }  # fmt: skip


def nemotron_h(config):
    at, heads, groups = "model.layers.{}.", config.num_key_value_heads, config.num_attention_heads
    groups, width, mixer = groups // heads, config.head_dim, f"{at}mixer."
    sizes = {"num_heads": config.mamba_num_heads, "head_dim": config.mamba_head_dim, "n_groups": config.n_groups}
    mamba2 = second_mamba(SimpleNamespace(**sizes, state_size=config.ssm_state_size)).items()
    places = {ours.replace("mixer.", "mamba."): (theirs.replace("backbone.layers.{}.mixer.", mixer), view)
              for ours, (theirs, view) in mamba2 if ours.startswith("mixer.")}  # fmt: skip
    for ours, theirs in {"mlp": mixer, "shared": f"{mixer}shared_experts."}.items():
        for number, name in {1: "up", 2: "down"}.items():
            places[f"{ours}.W{number}"] = f"{theirs}{name}_proj.weight", transposed
            places[f"{ours}.b{number}"] = f"{theirs}{name}_proj.bias", plain
    for letter, name in {"Q": "q", "K": "k", "V": "v"}.items():
        shape = (heads, groups, width) if letter == "Q" else (heads, width)
        places[f"attn.W{letter}"] = f"{mixer}{name}_proj.weight", rows(0, None, *shape)
        places[f"attn.b{letter}"] = f"{mixer}{name}_proj.bias", values(0, None, *shape)
    return places | {
        "wte": ("model.embeddings.weight", plain), "norm_f": ("model.norm_f.weight", plain),
        "norm": (f"{at}norm.weight", plain), "moe.WR": (f"{mixer}gate.weight", transposed),
        "attn.WO": (f"{mixer}o_proj.weight", out_of(heads, groups, width)), "attn.bO": (f"{mixer}o_proj.bias", plain),
        "moe.W1": (f"{mixer}experts.up_proj", lambda w: w.swapaxes(1, 2)),
        "moe.W2": (f"{mixer}experts.down_proj", lambda w: w.swapaxes(1, 2)),
    }  # fmt: skip


class OfLayer(NamedTuple):
    """A view that differs from layer to layer."""

    at: Any


def gemma4(config):
    at, heads, inner = "model.layers.{}.", config.num_attention_heads, config.hidden_size_per_layer_input
    kinds = [config.per_layer_config[i] for i in range(config.num_hidden_layers)]

    def by_head(place, groups=False, last=False, bias=False):
        """Of the layer's heads and width."""

        def view(layer):
            shared, width = kinds[layer].num_key_value_heads, kinds[layer].head_dim
            shape = (shared, heads // shared, width) if groups else (shared, width)
            return out_of(*shape) if last else values(0, None, *shape) if bias else rows(0, None, *shape)

        return f"{at}self_attn.{place}_proj.{'bias' if bias else 'weight'}", OfLayer(view)

    def part(layer):
        return lambda w: w[:, layer * inner : (layer + 1) * inner]

    norms = {
        1: "input_layernorm", 2: "post_attention_layernorm", 3: "pre_feedforward_layernorm",
        4: "post_feedforward_layernorm", 5: "post_feedforward_layernorm_1", 6: "pre_feedforward_layernorm_2",
        7: "post_feedforward_layernorm_2",
    }  # fmt: skip
    places = {f"ln_{number}": (f"{at}{name}.weight", plain) for number, name in norms.items()}
    for letter, name in NETWORK.items():
        places[f"mlp.W{letter}"] = f"{at}mlp.{name}_proj.weight", transposed
    return places | {
        "wte": ("model.embed_tokens.weight", plain), "ln_f": ("model.norm.weight", plain),
        "ple.g": ("model.per_layer_projection_norm.weight", plain),
        "ple.W": ("model.embed_tokens_per_layer.weight{}", OfLayer(part)),
        "ple.WP": ("model.per_layer_model_projection.weight{}", OfLayer(lambda layer: lambda w: part(layer)(w.T))),
        "gate.WG": (f"{at}per_layer_input_gate.weight", transposed),
        "gate.g": (f"{at}post_per_layer_input_norm.weight", plain),
        "gate.WP": (f"{at}per_layer_projection.weight", transposed),
        "attn.WQ": by_head("q", groups=True), "attn.WK": by_head("k"), "attn.WV": by_head("v"),
        "attn.bQ": by_head("q", groups=True, bias=True), "attn.bK": by_head("k", bias=True),
        "attn.bV": by_head("v", bias=True), "attn.bO": (f"{at}self_attn.o_proj.bias", plain),
        "attn.WO": by_head("o", groups=True, last=True),
        "attn.gQ": (f"{at}self_attn.q_norm.weight", plain), "attn.gK": (f"{at}self_attn.k_norm.weight", plain),
        "moe.s": (f"{at}router.scale", plain), "moe.c": (f"{at}router.per_expert_scale", plain),
        "moe.WR": (f"{at}router.proj.weight", transposed),
        "moe.WG": (f"{at}experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[0]),
        "moe.WU": (f"{at}experts.gate_up_proj", lambda w: np.split(w.swapaxes(1, 2), 2, -1)[1]),
        "moe.WD": (f"{at}experts.down_proj", lambda w: w.swapaxes(1, 2)),
    }  # fmt: skip


def _llama_block(config, at):
    """Attention and a gated network under Llama's names."""
    keys = {"num_key_value_heads", "num_attention_heads", "hidden_size"}
    named = apart({"model_type": "llama", **{key: getattr(config, key) for key in keys}}, "self_attn.")
    named |= output({"model_type": "llama", **{key: getattr(config, key) for key in keys}}, "self_attn.o_proj")
    named |= {f"mlp.W{letter}": (f"mlp.{name}_proj.weight", transposed) for letter, name in NETWORK.items()}
    named["ln_1"] = "input_layernorm.weight", plain
    ends = {"wte": ("model.embed_tokens.weight", plain)}
    return {name: (f"{at}{theirs}", view) for name, (theirs, view) in named.items()} | ends


NETWORK = {"G": "gate", "U": "up", "D": "down"}
PLACES = {"mamba": first_mamba, "mamba2": second_mamba, "rwkv": rwkv, "llama4_text": llama4, "jamba": jamba}
PLACES |= {"lfm2": lfm2, "qwen3_next": qwen3_next, "qwen3_5_text": qwen3_5, "qwen3_5_moe_text": qwen3_5}
PLACES |= {"falcon_h1": falcon_h1, "nemotron_h": nemotron_h, "gemma4_text": gemma4}


STACKS = {
    "llama4_text": {"rotary_in_chunks_sparse.": [0, 2], "placeless_sparse.": [1, 3]},
    "llama4_text, Maverick's kind": {
        "rotary_in_chunks_dense.": [0], "rotary_in_chunks_sparse.": [1],
        "rotary_in_chunks_dense_2.": [2], "placeless_sparse.": [3],
    },
    "jamba": {"dense_mamba.": [0], "sparse_attention.": [1], "dense_mamba_2.": [2], "sparse_mamba.": [3]},
    "lfm2": {"convolution.": [0], "attention.": [1], "convolution_2.": [2]},
    "qwen3_next": {"linear_attention_sparse.": [0], "full_attention_dense.": [1], "linear_attention_sparse_2.": [2]},
    "gemma4_text": {
        "sliding_attention_dense.": [0], "full_attention_dense.": [1], "sliding_attention_kept_dense.": [2],
        "full_attention_kept_dense.": [3], "sliding_attention_shared_wide.": [4], "full_attention_shared_wide.": [5],
    },
    "gemma4_text, experts": {"sliding_attention_experts.": [0], "full_attention_tied_experts.": [1]},
    "nemotron_h": {"linear_attention.": [0], "moe.": [1], "full_attention.": [2], "mlp.": [3]},
    "nemotron_h, biases": {"linear_attention.": [0], "full_attention.": [1], "mlp.": [2]},
    "qwen3_5_text": {"linear_attention.": [0], "full_attention.": [1], "linear_attention_2.": [2]},
    "qwen3_5_moe_text": {"linear_attention.": [0], "full_attention.": [1], "linear_attention_2.": [2]},
}  # fmt: skip


def places_of(name, model, module):
    """For every weight of ours: the names of their parameters, the view, and whether there is one for each turn."""
    theirs = dict(module.named_parameters())
    places = PLACES[name.partition(",")[0]](module.config) | {"head.W": ("lm_head.weight", transposed)}
    if "lm_head.weight" not in theirs:
        places["head.W"] = "head.weight", transposed
    stacks = STACKS.get(name, {"": range(module.config.num_hidden_layers)})
    found = {}
    for weight in model.table.weights:
        kind = next(kind for kind in stacks if weight.startswith(kind) or weight in places)
        at, view = places[weight if weight in places else weight.removeprefix(kind)]
        stack = stacks[kind] if "{}" in at else [0]
        views = [view.at(iteration) if isinstance(view, OfLayer) else view for iteration in stack]
        of_whole = at.endswith("{}")  # of which every layer has a part
        found[weight] = [at[:-2] if of_whole else at.format(iteration) for iteration in stack], views, "{}" in at
    assert {at for names, *_ in found.values() for at in names} == set(theirs)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name):
    model = build(read({"model_type": name.partition(",")[0], **MODELS[name]}))
    keys = {"model_type": name.partition(",")[0], **deepcopy(MODELS[name])}  # transformers writes into what it is given
    module = shaken(module_of(keys, model.configuration.architecture, "cpu"))
    corrections = [value.normal_() for at, value in module.named_buffers() if at.endswith("e_score_correction_bias")]
    tokens = np.random.default_rng(3).integers(1, 13, (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens), use_cache=False).loss
    loss.backward()
    theirs = dict(module.named_parameters())
    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share}
    arrays |= computed_inputs(model.configuration, {"M": LENGTH})
    arrays |= {name: np.stack([numpy_of(each) for each in corrections])
               for name in model.table.inputs if name.startswith("corrections")}  # fmt: skip
    found = places_of(name, model, module)

    def ours(parameters, views, stacked):
        several = [view(numpy_of(value)) for view, value in zip(views, parameters, strict=True)]
        return np.stack(several) if stacked else several[0]

    arrays |= {weight: ours([theirs[at] for at in names], *how) for weight, (names, *how) in found.items()}
    sizes = run_sizes(model, BATCH, LENGTH, None)
    chosen = {name: sizes[name] for name, text in {"t": "topk", "w": "+ w"}.items() if text in str(model.table)}
    result = lc.run(model.table, {**arrays, **chosen, "dloss": np.array(1.0)})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=1e-9)
    for weight, (names, *how) in found.items():
        gradient = ours([theirs[at].grad for at in names], *how)
        np.testing.assert_allclose(result[f"d{weight}"], gradient, rtol=1e-8, atol=1e-9, err_msg=weight)


PUBLISHED = {
    # Peng et al. 2023, RWKV, table 2.
    "rwkv-4-169m": 1.693e8, "rwkv-4-430m": 4.304e8, "rwkv-4-1.5b": 1.515e9, "rwkv-4-3b": 2.985e9,
    "rwkv-4-7b": 7.393e9, "rwkv-4-14b": 1.415e10,
    # Dao & Gu 2024 and Gu & Dao 2023 name their models so; Mistral AI 2024: 7,285,403,648.
    "mamba-130m": 1.29e8, "mamba-370m": 3.72e8, "mamba-790m": 7.93e8, "mamba-1.4b": 1.37e9, "mamba-2.8b": 2.77e9,
    "mamba2-130m": 1.29e8, "mamba2-370m": 3.68e8, "mamba2-780m": 7.80e8, "mamba2-1.3b": 1.344e9, "mamba2-2.7b": 2.70e9,
    "mamba-codestral-7b": 7_285_403_648,
    # Meta AI 2025, model card: 109B with the tower for images (0.9B), 400B.
    "llama-4-scout": 1.078e11, "llama-4-maverick": 4.007e11,
    # Elements of the safetensors that Qwen, tiiuae and NVIDIA publish, without images and multi-token prediction.
    "qwen3-next-80b-a3b": 79_674_391_296, "qwen3.5-0.8b": 752_393_024, "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-4b": 4_205_751_296, "qwen3.5-9b": 8_953_803_264, "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688, "qwen3.5-122b-a10b": 122_111_526_912, "qwen3.5-397b-a17b": 396_346_350_336,
    "falcon-h1-0.5b": 521_411_104, "nemotron-h-8b": 8_100_852_736, "nemotron-3-nano-30b-a3b": 31_577_937_344,
    # Google's likewise (E4B: its GGUF, with 256 rotary factors), less a scalar per layer that does not learn, and less
    # keys and values that no layer reads, of layers that attend to another layer's; transformers leaves them out too.
    "gemma-4-31b": 30_697_345_340 - 60, "gemma-4-26b-a4b": 25_233_141_790 - 30,
    "gemma-4-e2b": 4_647_449_891 - 35 - 18_880_512, "gemma-4-e4b": 7_518_069_290 - 256 - 42 - 55_055_616,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name):
    model = build(configure(name))
    rounded = 2e-3 if isinstance(PUBLISHED[name], float) else 0
    assert parameters(model.table).at(model.sizes) == pytest.approx(PUBLISHED[name], rel=rounded, abs=0)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_as_large_as_transformers_makes_them(name):
    check_parameters(preset(name).values)


def test_a_scan_is_open_in_batch_and_length():
    """Twice the tokens cost twice as much: nothing of a scan grows with the square of the length."""
    for name in ("mamba-130m", "mamba2-130m", "rwkv-4-169m"):
        one, two, four = (
            lc.cost(name, batch_size=2, seq_len=length).macro_operations["forward"][1].flops for length in (32, 64, 96)
        )
        assert two - one == four - two, name


class Unrolled(torch.nn.Module):
    """A loop of Python over positions, forwards or backwards, whose states are stacked or written one by one."""

    def __init__(self, backwards):
        super().__init__()
        self.cell, self.backwards = torch.nn.RNNCell(3, 4), backwards

    def forward(self, x):
        state, states = torch.zeros(x.shape[0], 4), []
        written, loss = torch.zeros(*x.shape[:2], 4), 0.0
        for place in range(x.shape[1])[:: -1 if self.backwards else 1]:
            state = self.cell(x[:, place], state)
            states.append(state)
            written[:, place] = state
            loss = loss + state.sin().mean() / x.shape[1]
        return written if self.backwards else torch.stack(states, 1) * loss


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_loop_over_an_open_length_is_a_scan_with_the_gradients_of_its_module(backwards):
    """Its lines are written once; beside autograd through the module at lengths that it was not read at."""
    torch.manual_seed(1)
    module = Unrolled(backwards)
    read = lc.from_module(module, {"x": "float B M 3"})
    assert len(read.table.repeats) == 1
    for rows, length in ((2, 4), (3, 9)):
        x = torch.randn(rows, length, 3)
        result = module(x)
        wanted = torch.autograd.grad((result * result).sum() / 2, [*module.parameters()])
        name = read.table.outputs[0]
        values = {path: each.detach().numpy() for path, each in module.named_parameters()}
        found = lc.run(read, {"x": x.numpy(), **values, f"d{name}": result.detach().numpy(), "n": length - 1})
        assert found[name] == pytest.approx(result.detach().numpy(), abs=1e-5)
        for path, each in zip(values, wanted, strict=True):
            assert found[f"d{path}"] == pytest.approx(each.numpy(), abs=1e-4), path


@pytest.mark.parametrize(
    ("family", "weight", "made"),
    [
        ("rwkv", "attn.w", "attn.e"),
        ("rwkv", "mlp.mK", "mlp.nK"),
        ("mamba", "mixer.A", "mixer.b"),
        ("qwen3_next", "delta.A", "delta.a"),  # whose layer has the name of the differences
    ],
)
def test_a_weight_is_learned_forward_through_values_that_weights_alone_make(family, weight, made):
    """Both passes make the same of weights, so that a difference of it would be 0: the chain to the weight is bp's."""
    table = step(build(small(family)), "pepita")
    sizes = small_sizes(table)
    assert count_operations(family, table, finite_arrays(table, sizes), sizes).passed
    inside = {name for line, _ in walk(table.lines) for name in line.makes}
    assert f"d{made}" in inside
    assert not {f"difference.{made}", f"delta.{made}"} & inside
    assert np.abs(values_of(table, finite_arrays(table, sizes), sizes)[f"d{weight}"]).min() > 0
