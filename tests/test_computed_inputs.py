"""What follows from positions and settings alone, made by lines: against transformers' own functions."""

import numpy as np
import pytest
import torch

import learncost as lc
from foreign_models import in_float64
from hugging_face import read
from learncost.engines.computed_inputs import computed_inputs, input_table
from learncost.ir.polynomial import shape_of
from learncost.ir.value import IdentityKey
from learncost.models.argument import preset_names
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.training.generate import Decoder

transformers = pytest.importorskip("transformers")
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position  # noqa: E402
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402

__all__ = ["in_float64"]

SIZES = {
    "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 96,
    "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9, "pad_token_id": None,
}  # fmt: skip
LONG, SHORT = [1.0 + i / 3 for i in range(32)], [1.0 + i / 9 for i in range(32)]
KINDS = {
    "default": {"rope_theta": 500.0},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, whole factor": {"original_max_position_embeddings": 32, "beta_fast": 16, "beta_slow": 2, "factor": None},
    "yarn, scaled": {"factor": 4.0, "attention_factor": 0.8, "truncate": False},
    "longrope": {"long_factor": LONG, "short_factor": SHORT, "original_max_position_embeddings": 48},
    "longrope, scaled": {"long_factor": LONG, "short_factor": SHORT, "factor": 3.0, "attention_factor": 1.5},
}
SCALED = ("llama", "qwen3", "falcon", "gemma", "gpt_oss", "smollm3", "olmo2")


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("llama", kind) for kind in KINDS),
        *((family, kind) for family in SCALED[1:] for kind in ("default", "yarn")),
        *((family, kind) for family in ("gpt_neox", "phi", "phi3") for kind in ("default", "longrope")),
    ],
)
@pytest.mark.parametrize("length", [40, 130])
def test_rotary_angles_of_every_kind(family, kind, length):
    """Above the positions of training and below them."""
    part = {"partial_rotary_factor": 0.5} if family in ("gpt_neox", "phi", "phi3") else {}
    rope = {"rope_type": kind.partition(",")[0], "rope_theta": 10000.0, **KINDS[kind], **part}
    if part and "long_factor" in rope:
        rope |= {"long_factor": LONG[:16], "short_factor": SHORT[:16]}
    values = {"model_type": family, **SIZES, "rope_parameters": rope}
    if family == "gpt_oss":
        rope["truncate"] = False
    if family == "phi3":
        values["original_max_position_embeddings"] = 48
    config = transformers.AutoConfig.for_model(**{**values, "rope_parameters": dict(rope)})
    module = transformers.AutoModel.from_config(config).rotary_emb
    cosine, sine = (angles[0].numpy() for angles in module(torch.zeros(1), torch.arange(length)[None]))
    inputs = computed_inputs(read(values), {"M": length})
    if family == "gpt_oss":  # one for each pair
        cosine, sine = (np.concatenate([angles, angles], 1) for angles in (cosine, sine))
    width = cosine.shape[1]
    sign = np.where(np.arange(width) < width // 2, -1, 1)
    np.testing.assert_allclose(inputs["cosine"][:, :width], cosine, rtol=0, atol=1e-12)
    np.testing.assert_allclose(inputs["sine"][:, :width], sign * sine, rtol=0, atol=1e-12)
    assert (inputs["cosine"][:, width:] == 1).all()
    assert (inputs["sine"][:, width:] == 0).all()
    assert inputs["flip"].tolist() == [*np.roll(np.arange(width), width // 2), *range(width, 64)]


@pytest.mark.parametrize("new", [True, False])
def test_local_and_global_angles_of_gemma_3(new):
    values = {"model_type": "gemma3_text", **SIZES, "head_dim": 16, "num_hidden_layers": 2, "sliding_window_pattern": 2}
    config = transformers.AutoConfig.for_model(
        **values, rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling={"rope_type": "linear", "factor": 8.0}
    )
    module = transformers.AutoModel.from_config(config).rotary_emb
    if new:
        values |= {"rope_parameters": config.rope_parameters}
    else:
        values |= {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"type": "linear", "factor": 8.0}}
    inputs = computed_inputs(read(values), {"M": 40})
    for kind, prefix in (("full_attention", ""), ("sliding_attention", "local_")):
        cosine, _ = module(torch.zeros(1), torch.arange(40)[None], kind)
        np.testing.assert_allclose(inputs[f"{prefix}cosine"], cosine[0].numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [*range(1, 18), 71, 112])
def test_slopes_of_every_number_of_heads(heads):
    theirs = build_alibi_tensor(torch.ones(1, 3), heads, torch.float64)[:, 0, 1].numpy()
    values = {"model_type": "bloom", "hidden_size": 2 * heads, "n_head": heads, "n_layer": 1}
    inputs = computed_inputs(read(values), {"M": 3})
    np.testing.assert_allclose(inputs["slope"][:, 0], theirs, rtol=1e-12)
    assert inputs["distance"].tolist() == [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    keys = {"model_type": "mpt", "d_model": 2 * heads, "n_heads": heads, "n_layers": 1}
    for most in (8, 16):
        inputs = computed_inputs(read({**keys, "attn_config": {"alibi_bias_max": most}}), {"M": 3})
        theirs = build_mpt_alibi_tensor(heads, 3, most)[:, 0].numpy()  # of the last query
        np.testing.assert_allclose(inputs["slope"] * inputs["distance"][2], theirs, rtol=1e-12)


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 20), (8, 5), (7, 30), (64, 1000)])
def test_buckets_of_all_distances(buckets, furthest):
    values = {"model_type": "t5", "relative_attention_num_buckets": buckets}
    inputs = computed_inputs(read({**values, "relative_attention_max_distance": furthest}), {"M": 300, "N": 200})
    for side, size in (("encoder", 200), ("decoder", 300)):
        far = torch.arange(size)[None] - torch.arange(size)[:, None]
        theirs = T5Attention._relative_position_bucket(far, side == "encoder", buckets, furthest)
        assert (inputs[f"{side}.bucket"] == theirs.numpy()).all()


@pytest.mark.parametrize(("buckets", "most"), [(256, 512), (8, 20), (5, 300), (0, 40)])
def test_rows_of_all_distances(buckets, most):
    length = 150
    keys = {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": most, **SIZES}
    inputs = computed_inputs(
        read({"model_type": "deberta-v2", "position_buckets": buckets or -1, **keys}), {"M": length}
    )
    far = torch.arange(length)[:, None] - torch.arange(length)[None]
    span = buckets or most
    far = make_log_bucket_position(far, buckets, most) if buckets else far
    assert (inputs["delta"] == torch.clamp(far.long() + span, 0, 2 * span - 1).numpy()).all()
    assert inputs["rows"].tolist() == list(range(2 * span))
    inputs = computed_inputs(read({"model_type": "deberta", **keys}), {"M": 20})
    span = min(20, most)
    assert inputs["rows"].tolist() == list(range(most - span, most + span))


def test_a_preset_of_every_family_makes_what_their_tables_read():
    """Of the inputs of a table none that only positions say is left to others, and each has the shape that it has."""
    for name in {preset.family: name for name, preset in preset_names().items()}.values():
        configuration = configure(name)
        model = build(configuration)
        inputs_table, _ = input_table(IdentityKey(configuration))
        left = set(model.table.inputs) - {inputs_table.header(output) for output in inputs_table.outputs}
        assert not {input_name.rpartition(".")[2] for input_name in left} & {
            "cosine", "sine", "flip", "local_cosine", "local_sine", "index", "S", "slope", "distance", "bucket",
            "rows", "delta",
        }, name  # fmt: skip
        for output in inputs_table.outputs:
            assert inputs_table.axes[output] == model.table.axes[inputs_table.header(output)], (name, output)


def test_what_is_made_is_made_once_and_not_written_on():
    configuration = configure("gpt2")
    first, second = (computed_inputs(configuration, {"M": 4})["index"] for _ in range(2))
    assert first is second
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "mrope"}, "llama has no frequency of the kind 'mrope'; there are default, linear, dynamic"),
        ({"rope_type": "dynamic"}, "of the kind 'dynamic without a factor'"),
    ],
)
def test_angles_that_a_family_does_not_have_are_refused(rope, message):
    keys = {"rope_parameters": rope, **SIZES}
    configuration = read({"model_type": "llama", **keys})
    with pytest.raises(lc.InputError, match=message):
        lc.cost(configuration, seq_len=4)
    with pytest.raises(lc.InputError, match=message):
        computed_inputs(configuration, {"M": 4})


NARROW = {"intermediate_size": 8, "num_key_value_heads": 1, "head_dim": 8}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("bloom", {}),
        ("gptj", {"rotary_dim": 4}),
        ("gemma3_text", {**NARROW, "sliding_window": 3, "sliding_window_pattern": 2}),
        ("qwen3", {**NARROW, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 4}),
    ],
)
def test_positions_of_a_token_after_those_in_the_cache(family, keys):
    """Token after token, what a text says that is read at once."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 11}
    configuration = read({"model_type": family, **sizes, **keys})
    model, draw = build(configuration), np.random.default_rng(0)
    table = model.table
    weights = {name: draw.normal(0, 0.5, shape_of(table.axes[name], model.sizes)) for name in table.weights}
    stepwise, fused_update = (Decoder(configuration, weights, np.float64) for _ in range(2))
    stepwise.begin([1, 2, 3])
    last = [stepwise.next(token) for token in (4, 5, 6, 7)][-1]
    np.testing.assert_allclose(last, fused_update.begin([1, 2, 3, 4, 5, 6, 7]), rtol=0, atol=1e-12)
