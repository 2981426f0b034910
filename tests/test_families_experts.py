"""Mixtures of experts and latent attention read from config.json: parameters, matrix products, values and gradients."""

import random
from copy import deepcopy

import numpy as np
import pytest

import learncost as lc
from decoder_places import in_a_row, output
from foreign_models import by, in_float64, into, numpy_of, out_of, plain, shaken, transposed
from hugging_face import check_flops, check_parameters, module_of, read
from learncost.engines.computed_inputs import computed_inputs
from learncost.models.model import build, run_sizes
from sampling import sampled

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

PREFIX = {
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "gpt_oss": "GptOss",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "glm4_moe": "Glm4Moe",
    "glm4_moe_lite": "Glm4MoeLite",
    "dbrx": "Dbrx",
}
HEADS = {
    family: ["ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
    for family in PREFIX
}
HEADS["gpt_oss"] = HEADS["deepseek_v3"] = HEADS["mixtral"][:4]
HEADS["deepseek_v2"] = HEADS["mixtral"][:3]
HEADS["glm4_moe"] = HEADS["glm4_moe_lite"] = HEADS["dbrx"] = HEADS["mixtral"][:2]

BATCH, LENGTH = 2, 5


def common(draw):
    """What every type has: few tokens and experts, so that the choice of experts can run."""
    groups = draw.choice((1, 2, 3))
    heads = draw.choice((1, 2))
    return {
        "vocab_size": draw.randrange(11, 40),
        "hidden_size": heads * groups * 4 * draw.randrange(1, 4),
        "intermediate_size": draw.randrange(5, 30),
        "num_hidden_layers": draw.randrange(1, 6),
        "num_attention_heads": heads * groups,
        "num_key_value_heads": heads,
        "num_experts_per_tok": draw.randrange(1, 4),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": None,
    }


def with_window(draw):
    return draw.choice((2, 3, LENGTH, 40))


def sparse(draw, keys):
    """Which blocks of Qwen's are sparse, and what else its two types share."""
    number = keys["num_hidden_layers"]
    return {
        "num_experts": draw.randrange(3, 7),
        "moe_intermediate_size": draw.randrange(3, 20),
        "decoder_sparse_step": draw.choice((1, 2, 3)),
        "mlp_only_layers": draw.choice(([], [0], [draw.randrange(number)], list(range(0, number, 2)))),
        "norm_topk_prob": draw.random() < 0.5,
        "use_sliding_window": draw.random() < 0.5,
        "sliding_window": with_window(draw),
    }


def latent(draw):
    """What latent attention adds; the routed experts are in groups."""
    group, size = draw.choice((1, 2)), draw.randrange(3, 6)
    # Even widths: transformers' second version turns pairs of neighbours where they lie, as complex numbers.
    return {
        "q_lora_rank": draw.choice((None, 6, 9)),
        "kv_lora_rank": draw.choice((2, 4, 6, 8)),
        "qk_nope_head_dim": draw.choice((2, 4, 6)),
        "qk_rope_head_dim": 2 * draw.randrange(1, 4),
        "v_head_dim": draw.randrange(2, 9),
        "attention_bias": draw.random() < 0.5,
        "n_group": group,
        "topk_group": draw.randrange(1, group + 1),
        "n_routed_experts": group * size,
        "n_shared_experts": draw.choice((1, 2)),
        "first_k_dense_replace": draw.randrange(0, 4),
        "moe_intermediate_size": draw.randrange(3, 20),
        "routed_scaling_factor": draw.choice((1.0, 2.5, 16.0)),
        "max_position_embeddings": 64,
    }


def draw_configuration(family, seed):
    """A random valid configuration of a type, as a config.json has it."""
    draw = random.Random(f"{family} {seed}")
    keys = common(draw)
    if family == "mixtral":
        keys |= {"num_local_experts": draw.randrange(3, 7), "sliding_window": draw.choice((None, with_window(draw)))}
        keys |= {"head_dim": draw.choice((None, 6))}
    elif family == "qwen2_moe":
        keys |= sparse(draw, keys) | {"qkv_bias": draw.random() < 0.5, "max_window_layers": draw.randrange(4)}
        keys |= {"shared_expert_intermediate_size": draw.randrange(3, 20)}
        if keys["use_sliding_window"] and draw.random() < 0.5:
            kinds = ("full_attention", "sliding_attention")
            keys["layer_types"] = [draw.choice(kinds) for _ in range(keys["num_hidden_layers"])]
    elif family == "qwen3_moe":
        keys |= sparse(draw, keys) | {"attention_bias": draw.random() < 0.5, "head_dim": draw.choice((2, 6))}
    elif family == "gpt_oss":
        keys |= {"num_local_experts": draw.randrange(3, 7), "attention_bias": draw.random() < 0.5}
        keys |= {"head_dim": draw.choice((2, 6)), "sliding_window": with_window(draw)}
        if draw.random() < 0.5:
            kinds = ("full_attention", "sliding_attention")
            keys["layer_types"] = [draw.choice(kinds) for _ in range(keys["num_hidden_layers"])]
    elif family == "glm4_moe":
        keys |= {key: value for key, value in latent(draw).items() if not key.startswith(("q_", "kv_", "qk_", "v_"))}
        keys |= {
            "n_group": 1,
            "topk_group": 1,
            "use_qk_norm": draw.random() < 0.5,
            "norm_topk_prob": draw.random() < 0.5,
        }
    elif family == "dbrx":
        names = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
        keys = {names.get(key, key): value for key, value in keys.items()} | {"tie_word_embeddings": False}
        keys["attn_config"] = {"kv_n_heads": keys["num_key_value_heads"], "clip_qkv": draw.choice((1, 8))}
        keys["attn_config"]["rope_theta"] = 1e4
        experts = {"moe_num_experts": draw.randrange(3, 7), "moe_top_k": keys["num_experts_per_tok"]}
        keys["ffn_config"] = {"ffn_hidden_size": keys.pop("intermediate_size"), **experts}
    else:
        keys |= latent(draw) | {"num_key_value_heads": keys["num_attention_heads"]}
        if family == "deepseek_v2":
            greedy = keys["n_group"] == 1 or draw.random() < 0.5
            keys |= {"mlp_bias": draw.random() < 0.5, "topk_method": "greedy" if greedy else "group_limited_greedy"}
        else:
            keys |= {"norm_topk_prob": draw.random() < 0.5, "rope_interleave": draw.random() < 0.5}
        if family == "glm4_moe_lite":
            keys |= {"n_group": 1, "topk_group": 1}
            kinds = [draw.choice(("dense", "sparse")) for _ in range(keys["num_hidden_layers"])]
            keys |= draw.choice(({}, {"mlp_layer_types": kinds}))
    return {"model_type": family, **keys}


CASES = [(family, seed) for family in PREFIX for seed in range(8)]


@pytest.mark.one_in(every=26)
@pytest.mark.parametrize(("family", "seed"), CASES)
def test_parameters(family, seed):
    values = draw_configuration(family, seed)
    for head in HEADS[family]:
        check_parameters(values, PREFIX[family] + head)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("family", "seed"), sampled(CASES, 8, lambda case: case[0]))
def test_matrix_products(family, seed):
    """Each expert is a product with the tokens that it serves: over all experts B M t rows, whoever they are.

    On the CPU, since the choice needs values.
    """
    values = draw_configuration(family, seed)
    torch.manual_seed(seed)
    tokens = torch.randint(1, values["vocab_size"], (BATCH, LENGTH))
    inputs = {"input_ids": tokens, "labels": tokens}
    name = PREFIX[family] + "ForCausalLM"
    check_flops(values, name, inputs, lambda result: result.loss, BATCH, LENGTH, device="cpu")


# Values and gradients: every weight of ours by its place in transformers' model.


def sides(values, name):
    """The two parts of a fused projection along its output: compressed or by heads."""
    heads, first, second = {
        "kv_a_proj_with_mqa": ((), values["kv_lora_rank"], values["qk_rope_head_dim"]),
        "kv_b_proj": ((values["num_attention_heads"],), values["qk_nope_head_dim"], values["v_head_dim"]),
        "q": ((values["num_attention_heads"],), values["qk_nope_head_dim"], values["qk_rope_head_dim"]),
    }[name]
    shape = (*heads, first + second)

    def parted(chosen):
        return lambda w: (into(*shape)(w) if w.ndim == 2 else w.reshape(shape))[..., chosen]

    return parted(slice(None, first)), parted(slice(first, None))


def attention_places(values):
    """Attention's weights: the name there and the view that makes ours of it."""
    heads = values["num_attention_heads"]
    if "kv_lora_rank" not in values:
        h = values["num_key_value_heads"]
        g, k = heads // h, values.get("head_dim") or values["hidden_size"] // heads
        return {
            "WQ": ("q_proj.weight", into(h, g, k)), "WK": ("k_proj.weight", into(h, k)),
            "WV": ("v_proj.weight", into(h, k)), "WO": ("o_proj.weight", out_of(h, g, k)),
            "bQ": ("q_proj.bias", by(h, g, k)), "bK": ("k_proj.bias", by(h, k)), "bV": ("v_proj.bias", by(h, k)),
            "bO": ("o_proj.bias", plain), "gQ": ("q_norm.weight", plain), "gK": ("k_norm.weight", plain),
            "sinks": ("sinks", by(h, g)),
        }  # fmt: skip
    keys, transposed_keys = sides(values, "kv_a_proj_with_mqa")
    key, value = sides(values, "kv_b_proj")
    still, rotary = sides(values, "q")
    queries = "q_b_proj.weight" if values["q_lora_rank"] else "q_proj.weight"
    return {
        "WDQ": ("q_a_proj.weight", transposed), "bDQ": ("q_a_proj.bias", plain), "gQ": ("q_a_layernorm.weight", plain),
        "WUQ": (queries, still), "WQ": (queries, still), "WQR": (queries, rotary),
        "WDK": ("kv_a_proj_with_mqa.weight", keys), "WKR": ("kv_a_proj_with_mqa.weight", transposed_keys),
        "bDK": ("kv_a_proj_with_mqa.bias", keys), "bKR": ("kv_a_proj_with_mqa.bias", transposed_keys),
        "gK": ("kv_a_layernorm.weight", plain), "WUK": ("kv_b_proj.weight", key), "WUV": ("kv_b_proj.weight", value),
        "WO": ("o_proj.weight", out_of(heads, values["v_head_dim"])), "bO": ("o_proj.bias", plain),
    }  # fmt: skip


def halves(weight):
    """Gate and up one after the other, output by input."""
    return weight.swapaxes(1, 2)[..., : weight.shape[1] // 2], weight.swapaxes(1, 2)[..., weight.shape[1] // 2 :]


def network_places(at):
    """A gated feed-forward network."""
    networks = {"G": "gate_proj", "U": "up_proj", "D": "down_proj"}
    weights = {f"W{letter}": (f"{at}.{name}.weight", transposed) for letter, name in networks.items()}
    return weights | {f"b{letter}": (f"{at}.{name}.bias", plain) for letter, name in networks.items()}


def block_places(values):
    """The weights of one block."""
    if values["model_type"] == "dbrx":

        def experts(array):
            return array.reshape(-1, values["ffn_config"]["ffn_hidden_size"], values["d_model"])

        return {
            "ln_1": ("norm_attn_norm.norm_1.weight", plain), "ln_2": ("norm_attn_norm.norm_2.weight", plain),
            **in_a_row(values, "norm_attn_norm.attn.Wqkv"), **output(values, "norm_attn_norm.attn.out_proj"),
            "moe.WR": ("ffn.router.layer.weight", transposed),
            "moe.WG": ("ffn.experts.mlp.w1", lambda w: experts(w).swapaxes(1, 2)),
            "moe.WU": ("ffn.experts.mlp.v1", lambda w: experts(w).swapaxes(1, 2)),
            "moe.WD": ("ffn.experts.mlp.w2", experts),
        }  # fmt: skip
    places = {"ln_1": ("input_layernorm.weight", plain), "ln_2": ("post_attention_layernorm.weight", plain)}
    places |= {f"attn.{name}": (f"self_attn.{at}", view) for name, (at, view) in attention_places(values).items()}
    shared = "mlp.shared_expert" if values["model_type"] == "qwen2_moe" else "mlp.shared_experts"
    places |= {f"mlp.{name}": place for name, place in network_places("mlp").items()}
    places |= {f"shared.{name}": place for name, place in network_places(shared).items()}
    places["shared.WS"] = (f"{shared}_gate.weight", transposed)
    if values["model_type"] == "gpt_oss":  # gate and up by turns, input by output, with biases
        return places | {
            "moe.WR": ("mlp.router.weight", transposed), "moe.bR": ("mlp.router.bias", plain),
            "moe.WG": ("mlp.experts.gate_up_proj", lambda w: w[..., ::2]),
            "moe.WU": ("mlp.experts.gate_up_proj", lambda w: w[..., 1::2]),
            "moe.bG": ("mlp.experts.gate_up_proj_bias", lambda w: w[..., ::2]),
            "moe.bU": ("mlp.experts.gate_up_proj_bias", lambda w: w[..., 1::2]),
            "moe.WD": ("mlp.experts.down_proj", plain), "moe.bD": ("mlp.experts.down_proj_bias", plain),
        }  # fmt: skip
    return places | {
        "moe.WR": ("mlp.gate.weight", transposed),
        "moe.WG": ("mlp.experts.gate_up_proj", lambda w: halves(w)[0]),
        "moe.WU": ("mlp.experts.gate_up_proj", lambda w: halves(w)[1]),
        "moe.WD": ("mlp.experts.down_proj", lambda w: w.swapaxes(1, 2)),
    }


def places_of(values, table, module, stacks):
    """For every weight of ours: their parameters in the order of our turns (or the one), and the view."""
    theirs = dict(module.named_parameters())
    ends = {"wte": ("model.embed_tokens.weight", plain), "ln_f": ("model.norm.weight", plain)}
    at = "model.layers"
    if values["model_type"] == "dbrx":
        at, ends = "transformer.blocks", {"wte": ("transformer.wte.weight", plain)}
        ends["ln_f"] = ("transformer.norm_f.weight", plain)
    ends["head.W"] = ("lm_head.weight", transposed)
    places = {}
    for name in table.weights:
        if name in ends:
            place, view = ends[name]
            places[name] = [theirs[place]], view, False
            continue
        kind = next(kind for kind in stacks if name.startswith(kind))
        place, view = block_places(values)[name.removeprefix(kind)]
        places[name] = [theirs[f"{at}.{i}.{place}"] for i in stacks[kind]], view, True
    assert {id(p) for parameters, _, _ in places.values() for p in parameters} == {id(p) for p in theirs.values()}
    return places


def ours(parameters, view, stacked):
    arrays = [view(numpy_of(value)) for value in parameters]
    return np.stack(arrays) if stacked else arrays[0]


TINY = {
    "vocab_size": 13, "hidden_size": 24, "intermediate_size": 7, "num_attention_heads": 6, "num_key_value_heads": 2,
    "num_experts_per_tok": 2, "tie_word_embeddings": False, "pad_token_id": None, "sliding_window": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
QWEN = {"num_experts": 5, "moe_intermediate_size": 9, "use_sliding_window": True}
LATENT = {
    "num_key_value_heads": 6, "q_lora_rank": 5, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 3, "n_routed_experts": 6, "n_shared_experts": 2, "moe_intermediate_size": 9, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "attention_bias": True, "num_hidden_layers": 3,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.1,
    "original_max_position_embeddings": 4,
}  # fmt: skip
ONE_DENSE = {"dense.": [0], "sparse.": [1, 2]}
# Keys, and the blocks that stand in each stack of weights.
MODELS = {
    "mixtral": ({"num_local_experts": 4, "num_hidden_layers": 2}, {"": [0, 1]}),
    "qwen2_moe": (
        {**QWEN, "shared_expert_intermediate_size": 8, "decoder_sparse_step": 2, "num_hidden_layers": 4},
        {"sliding_attention_dense.": [0, 2], "full_attention_sparse.": [1, 3]},
    ),
    "qwen2_moe, normalised": (
        {
            **QWEN, "shared_expert_intermediate_size": 8, "use_sliding_window": False, "norm_topk_prob": True,
            "num_hidden_layers": 2, "qkv_bias": False, "tie_word_embeddings": True,
        },
        {"": [0, 1]},
    ),
    "qwen3_moe": (
        {
            **QWEN, "head_dim": 6, "mlp_only_layers": [0], "num_hidden_layers": 3, "norm_topk_prob": True,
            "attention_bias": True,
        },
        ONE_DENSE,
    ),
    "gpt_oss": (
        {"num_local_experts": 4, "head_dim": 6, "num_hidden_layers": 4, "rope_parameters": {**YARN, "truncate": False}},
        {"sliding_attention.": [0, 2], "full_attention.": [1, 3]},
    ),
    "deepseek_v2": (
        {**LATENT, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, "mlp_bias": True},
        ONE_DENSE,
    ),
    "deepseek_v2, lite": (
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 0, "num_hidden_layers": 2, "norm_topk_prob": True,
         "rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 0.5}},
        {"": [0, 1]},
    ),
    "deepseek_v3": (
        {**LATENT, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}}, ONE_DENSE
    ),
    "glm4_moe": (
        {
            "n_routed_experts": 6, "moe_intermediate_size": 9, "num_hidden_layers": 3,
            "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5, "head_dim": 8,
        },
        ONE_DENSE,
    ),
    "glm4_moe_lite": (
        {
            **LATENT, "mlp_layer_types": ["dense", "sparse", "sparse"], "head_dim": LATENT["qk_rope_head_dim"],
            "n_group": 1, "topk_group": 1,
        },
        ONE_DENSE,
    ),
    "dbrx": (
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 10000.0},
            "n_layers": 2, "d_model": 24, "n_heads": 6,
            "ffn_config": {"ffn_hidden_size": 7, "moe_num_experts": 4, "moe_top_k": 2},
        },
        {"": [0, 1]},
    ),
    "deepseek_v3, halves": ({**LATENT, "norm_topk_prob": False, "rope_interleave": False}, ONE_DENSE),
}  # fmt: skip


def tiny(name):
    keys, stacks = MODELS[name]
    return deepcopy({"model_type": name.partition(",")[0], **TINY, **keys}), stacks  # transformers writes into it


def loud(module):
    """Random weights and corrections of the choice; what the experts read is loud enough for clamps to matter."""
    shaken(module)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_()
        for name, parameter in module.named_parameters():
            if name.endswith("post_attention_layernorm.weight"):
                parameter *= 4
    return module


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name):
    values, stacks = tiny(name)
    model = build(read(values))
    module = loud(module_of(values, PREFIX[values["model_type"]] + "ForCausalLM", "cpu"))
    tokens = np.random.default_rng(3).integers(1, values["vocab_size"], (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    places = places_of(values, model.table, module, stacks)
    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share}
    arrays |= computed_inputs(model.configuration, {"M": LENGTH})
    for kind, blocks in stacks.items():
        if (stack := f"corrections_{kind[:-1]}" if kind else "corrections") in model.table.inputs:
            gates = [module.model.layers[i].mlp.gate for i in blocks]
            arrays[stack] = np.stack([numpy_of(gate.e_score_correction_bias) for gate in gates])
    arrays |= {weight: ours(*place) for weight, place in places.items()}
    sizes = {axis: size for axis, size in run_sizes(model, BATCH, LENGTH, None).items() if axis in "wtijqb"}
    result = lc.run(model.table, {**arrays, **sizes, "dloss": np.array(1.0)})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=1e-9)
    loss.backward()
    for weight, (theirs, view, stacked) in places.items():
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in theirs]
        np.testing.assert_allclose(
            result[f"d{weight}"], ours(gradients, view, stacked), rtol=1e-9, atol=1e-9, err_msg=weight
        )


def test_clamps_matter_where_gpt_oss_is_compared(monkeypatch):
    kind = transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts
    inputs_seen = []
    before = kind._apply_gate
    monkeypatch.setattr(
        kind, "_apply_gate", lambda self, both: (inputs_seen.append(numpy_of(both)), before(self, both))[1]
    )
    values, _ = tiny("gpt_oss")
    tokens = np.random.default_rng(3).integers(1, values["vocab_size"], (BATCH, LENGTH))
    loud(module_of(values, "GptOssForCausalLM", "cpu"))(input_ids=torch.tensor(tokens))
    gate, up = (np.concatenate([seen_array[..., side::2].ravel() for seen_array in inputs_seen]) for side in (0, 1))
    assert gate.max() > 7
    assert up.max() > 7
    assert up.min() < -7
