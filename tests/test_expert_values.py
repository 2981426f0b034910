"""Mixtures of experts as they were published: parameters in all, and those that are active for a token.

Publications count the active ones in two ways. Mistral AI and Qwen take all but the experts that a token does not meet,
as `active_parameters` does. OpenAI (gpt-oss model card, under table 1) and, by their digits, DeepSeek-AI leave the
input's embedding out, of which a token reads one row.
"""

import json
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

import learncost as lc
from hugging_face import module_of, read
from learncost.layers.active import active_parameters, choices, parameters
from learncost.models.argument import presets
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.model import build
from sampling import sampled

ROWS = json.loads((Path(__file__).parent / "published" / "experts.json").read_text())
EXACT = [row for row in ROWS if "value" in row]
ROUNDED = [row for row in ROWS if "active" in row]
TYPES = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")


def counts(model):
    """Parameters in all, active ones, and those of the input's embedding."""
    built = build(configure(model))
    sizes = built.sizes
    active = active_parameters(built.table).at(sizes)
    return parameters(built.table).at(sizes), active, sizes["v"] * sizes["d"]


@pytest.mark.parametrize("row", EXACT, ids=lambda row: row["model"])
def test_published_to_the_unit(row):
    """DeepSeek-V3's file holds one bias for each expert of each sparse block, by which experts are chosen: a buffer."""
    buffers = 58 * 256 if "buffers" in row["what"] else 0
    assert counts(row["model"])[0] + buffers == row["value"]


@pytest.mark.parametrize("row", ROUNDED, ids=lambda row: row["model"])
def test_published_in_billions(row):
    total, active, embedding = counts(row["model"])
    if "input embedding out" in row["what"]:
        active -= embedding

    def billions(number, text, rounding):
        return str((Decimal(number) / 10**9).quantize(Decimal(text), rounding))

    assert billions(total, row["total"], ROUND_HALF_UP) == row["total"]
    rounding = ROUND_DOWN if "digits cut" in row["what"] else ROUND_HALF_UP
    assert billions(active, row["active"], rounding) == row["active"]


def test_every_preset_is_held_to_its_publication():
    assert {preset.name for preset in presets() if preset.family in TYPES} == {row["model"] for row in ROUNDED}


def test_active_parameters_by_hand():
    """Mixtral: of eight experts of three matrices in each block six are not met. gpt-oss: their biases neither."""
    total, active, _ = counts("mixtral-8x7b")
    assert total - active == 32 * 6 * 3 * 4096 * 14336
    total, active, _ = counts("gpt-oss-20b")
    assert total - active == 24 * 28 * (3 * 2880 * 2880 + 2 * 2880 + 2880)
    # DeepSeek-V3: 58 sparse blocks with 8 of 256 experts; the shared one always serves.
    total, active, _ = counts("deepseek-v3")
    assert total - active == 58 * 248 * 3 * 7168 * 2048


def test_all_parameters_are_active_where_there_is_no_choice():
    """Look-ups of embeddings, types and positions are none."""
    for model in ("gpt2", "bert-base-uncased"):
        table = build(configure(model)).table
        assert not choices(table)
        assert active_parameters(table) == parameters(table)


def test_what_cost_says():
    ledger = lc.cost("mixtral-8x7b", seq_len=128)
    total, active, _ = counts("mixtral-8x7b")
    assert (ledger.parameters, ledger.active_parameters) == (total, active)
    assert ledger.to_dict()["active_parameters"] == active
    assert "46,702,792,704 parameters (12,879,925,248 active per token)." in " ".join(str(ledger).split())
    assert "active" not in str(lc.cost("gpt2", seq_len=128))


@pytest.mark.parametrize("family", TYPES)
def test_a_file_with_nothing_but_its_type(family):
    """The defaults are those of transformers' configuration class, and all that it writes reads as the same."""
    transformers = pytest.importorskip("transformers")
    # This class has no default for the experts of a token, and its model cannot run without one.
    keys = {"num_experts_per_tok": 6} if family == "deepseek_v2" else {}
    config = transformers.AutoConfig.for_model(family, **keys)
    short, entries = read({"model_type": family, **keys}), read(config.to_dict())
    assert short.sizes == entries.sizes
    # transformers writes out which blocks have a window, and no window where none is used.
    implied = ("sliding_window", "layer_types")
    assert all(entries.settings[name] == value for name, value in short.settings.items() if name not in implied)
    assert build(short).table == build(entries).table
    assert build(short).sizes == build(entries).sizes
    for name, size in short.sizes.items():
        if name == "head_dim":  # Qwen's two classes have none: the modules divide
            assert size == (getattr(config, name, None) or config.hidden_size // config.num_attention_heads)
        else:
            assert getattr(config, name) == size, name
    spelling = {"activation": "hidden_act", "layer_norm_epsilon": "rms_norm_eps"}
    for name, value in short.settings.items():
        if name not in (*implied, "original_max_position_embeddings") and not name.startswith(
            "rope_"
        ):  # angles stand in an object of their own there
            assert (getattr(config, spelling.get(name, name)) or type(value)()) == value, name


def test_experts_per_token_have_no_default_in_deepseek_v2():
    with pytest.raises(lc.InputError, match="needs num_experts_per_tok: give --num-experts-per-tok N"):
        read({"model_type": "deepseek_v2"})


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt_oss", "swiglu_limit", 6.0),
        ("gpt_oss", "swiglu_alpha", 1.0),
        ("deepseek_v2", "moe_layer_freq", 2),
        ("deepseek_v2", "scoring_func", "sigmoid"),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("qwen2_moe", "decoder_sparse_step", 0),
        ("qwen3_moe", "num_experts", 0),
        ("mixtral", "num_local_experts", 2.5),
        ("deepseek_v3", "q_lora_rank", -2),
        ("deepseek_v3", "first_k_dense_replace", "three"),
    ],
)
def test_what_would_be_other_mathematics_is_refused(family, key, value):
    with pytest.raises(lc.InputError, match=key) as error:
        read({"model_type": family, "num_experts_per_tok": 2, key: value})
    assert "\n" not in str(error.value)


def test_modules_that_predict_further_tokens_are_not_counted():
    """transformers has none in its model either."""
    pytest.importorskip("transformers")
    values = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 3}
    theirs = sum(parameter.numel() for parameter in module_of(values, "DeepseekV3ForCausalLM").parameters())
    assert parameters(build(read(values)).table).at(build(read(values)).sizes) == theirs == 671_026_404_352


def test_names_of_projections():
    """Fused projections there are weights apart here."""
    modules = FAMILIES["deepseek_v3"].modules
    assert modules["kv_b_proj"] == ("attn.WUK", "attn.WUV")
    assert modules["kv_a_proj_with_mqa"] == ("attn.WDK", "attn.WKR")
    assert modules["q_b_proj"] == ("attn.WUQ", "attn.WQR")


SMALL = {
    "vocab_size": 31, "hidden_size": 24, "intermediate_size": 7, "moe_intermediate_size": 9, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    "mlp_only_layers": [0], "first_k_dense_replace": 1, "sliding_window": 3,
}  # fmt: skip


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("family", sampled(TYPES, 3))
def test_the_proof_chooses_among_experts(family):
    """The table chooses by itself, and runs as torch counts it."""
    pytest.importorskip("torch")
    from learncost.verification.sample import small_sizes
    from learncost.verification.torch_side import flops

    table = build(read({"model_type": family, **SMALL})).table
    sizes = small_sizes(table)
    assert table.indices.intersection(table.inputs) == {"tokens", "flip", "targets"}
    assert flops(table, table.weights, sizes, False) == lc.price(table, sizes, "matmul").flops


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("family", TYPES)
def test_forward_learning(family):
    """Sinks are weights that no product reads: there is no output whose difference would be theirs."""
    configuration = read({"model_type": family, **SMALL})
    if family != "gpt_oss":
        assert lc.cost(configuration, "pepita", seq_len=8).total.flops > 0
        return
    with pytest.raises(lc.InputError, match=r"sinks is read by softmax_with_sink, not by a product, .*; bp does$"):
        lc.cost(configuration, "pepita", seq_len=8)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("family", TYPES)
def test_rows_count_blocks(family):
    """A value that is read by several products has as many parts of a gradient, but its block is one."""
    rows = lc.cost(read({"model_type": family, **SMALL}), seq_len=8).rows
    times = {(row.layer, row.macro_operation): row.repeat for row in rows if row.block}
    for (layer, phase), repeat in times.items():
        assert repeat == times[layer, "forward"], (layer, phase)
