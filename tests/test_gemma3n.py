"""Gemma 3n against transformers' own modules: loss, gradients, parameters, keys that layers share, widths."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import learncost as lc
from foreign_models import by, in_float64, into, numpy_of, out_of, plain, shaken, transposed
from hugging_face import check_parameters, module_of, read
from learncost.engines.computed_inputs import computed_inputs
from learncost.ir.errors import InputError
from learncost.models.argument import preset
from learncost.models.model import build, run_sizes
from learncost.verification.sample import random_arrays

pytest.importorskip("transformers")
__all__ = ["in_float64"]

BATCH, LENGTH = 2, 6
LOCAL, GLOBAL = "sliding_attention", "full_attention"
SMALL = {
    "model_type": "gemma3n_text", "vocab_size": 13, "vocab_size_per_layer_input": 13, "hidden_size": 12,
    "intermediate_size": 10, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "hidden_size_per_layer_input": 5, "altup_num_inputs": 3, "laurel_rank": 4, "sliding_window": 3,
    "num_kv_shared_layers": 2, "pad_token_id": None, "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL],
    "activation_sparsity_pattern": [0.7, 0.7, 0.0, 0.0, 0.0],
}  # fmt: skip
KINDS = {
    "sliding_attention_sparse": 0, "full_attention_kept_sparse": 1, "sliding_attention_kept_dense": 2,
    "sliding_attention_shared_dense": 3, "full_attention_shared_dense": 4,
}  # fmt: skip
"""What the blocks of SMALL are called, and which they are."""


def every(*places):
    """Several parameters as one stack: those of the projections of all streams but the first."""
    return list(places), transposed, True


def places_of(values, weight):
    """The parameters that a weight of ours stands for, and the view; whether they are a stack."""
    streams = range(values["altup_num_inputs"] - 1)
    ends = {
        "wte": (["embed_tokens.weight"], plain, False),
        "ln_f": (["norm.weight"], plain, False),
        "ple.g": (["per_layer_projection_norm.weight"], plain, False),
        "altup.project": every(*(f"altup_projections.{i}.weight" for i in streams)),
        "altup.unembed": every(*(f"altup_unembed_projections.{i}.weight" for i in streams)),
    }
    if weight in ends:
        return ends[weight]
    kind = next(kind for kind in KINDS if weight.startswith(kind))
    layer, width, streams = KINDS[kind], values["hidden_size_per_layer_input"], values["altup_num_inputs"]
    h, k = values["num_key_value_heads"], values["head_dim"]
    g = values["num_attention_heads"] // h
    inner = weight.partition(".")[2]
    mine = slice(layer * width, (layer + 1) * width)
    if inner == "ple.W":
        return ["embed_tokens_per_layer.weight"], lambda array: array[:, mine], True
    if inner == "ple.WP":
        return ["per_layer_model_projection.weight"], lambda array: array[mine].T, True
    block = {
        "ln_1": ("input_layernorm", plain),
        "ln_2": ("post_attention_layernorm", plain),
        "ln_3": ("pre_feedforward_layernorm", plain),
        "ln_4": ("post_feedforward_layernorm", plain),
        "altup.g": ("altup.router_norm", plain),
        "altup.WR": ("altup.modality_router", transposed),
        "altup.WP": ("altup.prediction_coefs", lambda w: w.T.reshape(streams, streams, streams)),
        "altup.WC": ("altup.correction_coefs", transposed),
        "laurel.WL": ("laurel.linear_left", transposed),
        "laurel.WR": ("laurel.linear_right", transposed),
        "laurel.g": ("laurel.post_laurel_norm", plain),
        "attn.WQ": ("self_attn.q_proj", into(h, g, k)),
        "attn.WK": ("self_attn.k_proj", into(h, k)),
        "attn.WV": ("self_attn.v_proj", into(h, k)),
        "attn.WO": ("self_attn.o_proj", out_of(h, g, k)),
        "attn.bQ": ("self_attn.q_proj", by(h, g, k)),
        "attn.bK": ("self_attn.k_proj", by(h, k)),
        "attn.bV": ("self_attn.v_proj", by(h, k)),
        "attn.bO": ("self_attn.o_proj", plain),
        "attn.gQ": ("self_attn.q_norm", plain),
        "attn.gK": ("self_attn.k_norm", plain),
        "mlp.WG": ("mlp.gate_proj", transposed),
        "mlp.WU": ("mlp.up_proj", transposed),
        "mlp.WD": ("mlp.down_proj", transposed),
        "gate.s": ("altup.correct_output_scale", plain),
        "gate.WG": ("per_layer_input_gate", transposed),
        "gate.WP": ("per_layer_projection", transposed),
        "gate.g": ("post_per_layer_input_norm", plain),
    }
    place, view = block[inner]
    last = "" if inner == "gate.s" else ".bias" if ".b" in inner else ".weight"
    return [f"layers.{layer}.{place}{last}"], view, True


@pytest.mark.parametrize("more", [{}, {"attention_bias": True, "intermediate_size": [10, 10, 8, 10, 7]}])
def test_loss_and_every_gradient(more):
    values = {**deepcopy(SMALL), **more}
    model = build(read(values))
    module = shaken(module_of(values, model.configuration.architecture, "cpu"))
    tokens = np.random.default_rng(3).integers(0, values["vocab_size"], (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    loss.backward()
    theirs = {name.removeprefix("model."): parameter for name, parameter in module.named_parameters()}

    def ours(weight, of):
        names, view, stacked = places_of(values, weight)
        arrays = [view(numpy_of(of(theirs[name]))) for name in names]
        return np.stack(arrays) if stacked else arrays[0]

    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share, "dloss": np.array(1.0)}
    arrays |= computed_inputs(model.configuration, {"M": LENGTH})
    arrays |= {weight: ours(weight, lambda parameter: parameter) for weight in model.table.weights}
    sizes = run_sizes(model, BATCH, LENGTH, None)
    result = lc.run(model.table, {**arrays, **{name: sizes[name] for name in ("w", "a")}})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=1e-12)
    for weight in model.table.weights:
        gradient = ours(weight, lambda parameter: parameter.grad)
        close = 1e-10 * np.abs(gradient).max()
        np.testing.assert_allclose(result[f"d{weight}"], gradient, rtol=0, atol=close, err_msg=weight)


@pytest.mark.parametrize(("name", "parameters"), [("gemma-3n-e2b", 4_435_182_688), ("gemma-3n-e4b", 6_835_235_568)])
def test_the_published_models_are_as_large_as_transformers_makes_them(name, parameters):
    """The text models; with images (0.3 billion) and sounds (0.68) Google's model cards say 5.4 and 7.8 billion."""
    check_parameters(preset(name).values)
    assert lc.cost(name, seq_len=16).parameters == parameters


def test_layers_that_share_keys_have_none_and_add_to_the_gradient_of_those_that_do():
    model = build(read(SMALL))
    assert "sliding_attention_shared_dense.attn.WK" not in model.table.weights
    assert "sliding_attention_kept_dense.attn.WK" in model.table.weights
    without = build(read({**SMALL, "num_kv_shared_layers": 0}))
    h, k = SMALL["num_key_value_heads"], SMALL["head_dim"]
    apart = 2 * (2 * SMALL["hidden_size"] * h * k + k)
    assert without.parameters.at(without.sizes) - model.parameters.at(model.sizes) == apart


def test_widths_of_every_layer():
    """A list of one width is that width; a list too short is refused."""
    same = lc.cost({**SMALL, "intermediate_size": [10] * 5}, seq_len=4)
    assert same.parameters == lc.cost(SMALL, seq_len=4).parameters
    with pytest.raises(InputError, match="intermediate_sizes has 2 entries: entry 3 is missing"):
        lc.cost({**SMALL, "intermediate_size": [10, 8]}, seq_len=4)


def test_sparse_layers_of_several_shares_are_refused():
    with pytest.raises(InputError, match=r"only one nonzero value is supported, not 0\.7, 0\.9"):
        lc.cost({**SMALL, "activation_sparsity_pattern": [0.7, 0.9, 0.0, 0.0, 0.0]}, seq_len=4)


def test_shared_keys_that_nobody_makes_are_refused():
    with pytest.raises(InputError, match="no attention of the kind 'full_attention_shared without keys'"):
        lc.cost({**SMALL, "num_kv_shared_layers": 4}, seq_len=4)


def test_an_index_of_two_axes_is_drawn_within_both():
    """Tokens of the vocabulary are rows of the smaller one of the layers, too."""
    table = lc.layer("two(tokens; A B) -> Y\n  E[M d] = A[v=tokens[M] d]\n  Y[M d] = E[M d] B[u=tokens[M]]").table
    for seed in range(4):
        assert random_arrays(table, {"v": 50, "u": 3, "M": 8, "d": 2}, seed)["tokens"].max() < 3
