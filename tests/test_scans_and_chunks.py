"""Mamba, Mamba-2, RWKV and Llama 4: loss and all gradients against transformers' own models in float64."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import learncost as lc
from decoder_places import apart, output
from foreign_models import in_float64, numpy_of, out_of, plain, shaken, turned
from hugging_face import check_parameters, module_of, read
from learncost.engines.made import made_inputs
from learncost.ir.loop import walk
from learncost.layers.active import parameters
from learncost.models.argument import preset
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.models.small import small
from learncost.procedures.step import step
from learncost.verification.check import sound_arrays, tally, values_of
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
}  # fmt: skip


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
        "mixer.WU": (f"{at}dt_proj.weight", turned), "mixer.bU": (f"{at}dt_proj.bias", plain),
        "mixer.A": (f"{at}A_log", plain), "mixer.D": (f"{at}D", plain),
        "mixer.WO": (f"{at}out_proj.weight", turned), "mixer.bO": (f"{at}out_proj.bias", plain),
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
        "attn.u": (f"{at}attention.time_first", plain), "attn.WO": (f"{at}attention.output.weight", turned),
    }  # fmt: skip
    for number in (1, 2):
        for ours, theirs in {"g": "weight", "b": "bias"}.items():
            places[f"ln_{number}.{ours}"] = f"{at}ln{number}.{theirs}", plain
    for ours, theirs in {"attn": "attention", "mlp": "feed_forward"}.items():
        for letter, name in {"K": "key", "V": "value", "R": "receptance"}.items():
            places[f"{ours}.W{letter}"] = f"{at}{theirs}.{name}.weight", turned
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
        "moe.WR": (f"{mlp}router.weight", turned), "moe.WD": (f"{moe}down_proj", plain),
        "moe.WG": (f"{moe}gate_up_proj", lambda w: np.split(w, 2, -1)[0]),
        "moe.WU": (f"{moe}gate_up_proj", lambda w: np.split(w, 2, -1)[1]),
    }  # fmt: skip
    for letter, name in NETWORK.items():
        places[f"shared.W{letter}"] = f"{mlp}shared_expert.{name}_proj.weight", turned
        places[f"mlp.W{letter}"] = f"{mlp}{name}_proj.weight", turned
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
        "moe.WR": (f"{at}feed_forward.router.weight", turned),
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
        "ln_f": ("model.embedding_norm.weight", plain), "conv.WO": (f"{at}conv.out_proj.weight", turned),
        "conv.bO": (f"{at}conv.out_proj.bias", plain), "conv.bK": (f"{at}conv.conv.bias", plain),
        "conv.K": (f"{at}conv.conv.weight", window(0, width)),
    }  # fmt: skip
    for place, letter in enumerate("BCX"):
        places[f"conv.W{letter}"] = f"{at}conv.in_proj.weight", rows(place * width, (place + 1) * width)
        places[f"conv.b{letter}"] = f"{at}conv.in_proj.bias", values(place * width, (place + 1) * width)
    for letter, name in {"G": "w1", "U": "w3", "D": "w2"}.items():
        places[f"mlp.W{letter}"] = f"{at}feed_forward.{name}.weight", turned
    return places


def _llama_block(config, at):
    """Attention and a gated network under Llama's names."""
    keys = {"num_key_value_heads", "num_attention_heads", "hidden_size"}
    named = apart({"model_type": "llama", **{key: getattr(config, key) for key in keys}}, "self_attn.")
    named |= output({"model_type": "llama", **{key: getattr(config, key) for key in keys}}, "self_attn.o_proj")
    named |= {f"mlp.W{letter}": (f"mlp.{name}_proj.weight", turned) for letter, name in NETWORK.items()}
    named["ln_1"] = "input_layernorm.weight", plain
    ends = {"wte": ("model.embed_tokens.weight", plain)}
    return {name: (f"{at}{theirs}", view) for name, (theirs, view) in named.items()} | ends


NETWORK = {"G": "gate", "U": "up", "D": "down"}
PLACES = {"mamba": first_mamba, "mamba2": second_mamba, "rwkv": rwkv, "llama4_text": llama4, "jamba": jamba}
PLACES["lfm2"] = lfm2


STACKS = {
    "llama4_text": {"turned_in_chunks_sparse.": [0, 2], "placeless_sparse.": [1, 3]},
    "llama4_text, Maverick's kind": {
        "turned_in_chunks_dense.": [0], "turned_in_chunks_sparse.": [1],
        "turned_in_chunks_dense_2.": [2], "placeless_sparse.": [3],
    },
    "jamba": {"dense_mamba.": [0], "sparse_attention.": [1], "dense_mamba_2.": [2], "sparse_mamba.": [3]},
    "lfm2": {"convolution.": [0], "attention.": [1], "convolution_2.": [2]},
}  # fmt: skip


def places_of(name, model, module):
    """For every weight of ours: the names of their parameters, the view, and whether there is one for each turn."""
    theirs = dict(module.named_parameters())
    places = PLACES[name.partition(",")[0]](module.config) | {"head.W": ("lm_head.weight", turned)}
    if "lm_head.weight" not in theirs:
        places["head.W"] = "head.weight", turned
    stacks = STACKS.get(name, {"": range(module.config.num_hidden_layers)})
    found = {}
    for weight in model.table.weights:
        kind = next(kind for kind in stacks if weight.startswith(kind) or weight in places)
        at, view = places[weight if weight in places else weight.removeprefix(kind)]
        found[weight] = [at.format(iteration) for iteration in stacks[kind]] if "{}" in at else [at], view, "{}" in at
    assert {at for names, *_ in found.values() for at in names} == set(theirs)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name):
    model = build(read({"model_type": name.partition(",")[0], **MODELS[name]}))
    keys = {"model_type": name.partition(",")[0], **deepcopy(MODELS[name])}  # transformers writes into what it is given
    module = shaken(module_of(keys, model.configuration.architecture, "cpu"))
    tokens = np.random.default_rng(3).integers(1, 13, (BATCH, LENGTH))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens), use_cache=False).loss
    loss.backward()
    theirs = dict(module.named_parameters())
    share = np.full(tokens.shape, -1.0 / (BATCH * (LENGTH - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share}
    arrays |= made_inputs(model.configuration, {"M": LENGTH})
    found = places_of(name, model, module)

    def ours(parameters, view, stacked):
        several = [view(numpy_of(value)) for value in parameters]
        return np.stack(several) if stacked else several[0]

    arrays |= {weight: ours([theirs[at] for at in names], *how) for weight, (names, *how) in found.items()}
    chosen = {"t": model.sizes["t"]} if "topk" in str(model.table) else {}
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
    "mamba-codestral-7b": 7.285403648e9,
    # Meta AI 2025, model card: 109B with the tower for images (0.9B), 400B.
    "llama-4-scout": 1.078e11, "llama-4-maverick": 4.007e11,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name):
    model = build(configure(name))
    assert parameters(model.table).at(model.sizes) == pytest.approx(PUBLISHED[name], rel=2e-3)


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
    [("rwkv", "attn.w", "attn.e"), ("rwkv", "mlp.mK", "mlp.nK"), ("mamba", "mixer.A", "mixer.b")],
)
def test_a_weight_is_learned_forward_through_values_that_weights_alone_make(family, weight, made):
    """Both passes make the same of weights, so that a difference of it would be 0: the chain to the weight is bp's."""
    table = step(build(small(family)), "pepita")
    sizes = small_sizes(table)
    assert tally(family, table, sound_arrays(table, sizes), sizes).passed
    inside = {name for line, _ in walk(table.lines) for name in line.makes}
    assert f"d{made}" in inside
    assert not {f"difference.{made}", f"delta.{made}"} & inside
    assert np.abs(values_of(table, sound_arrays(table, sizes), sizes)[f"d{weight}"]).min() > 0
