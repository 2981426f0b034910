"""Whatever is wrong with a MODEL argument, a file or a flag is said in one line that names it."""

import io
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learncost as lc
from fuzz_configuration import ODD, keys_of, made, target
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.models.argument import presets
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.sizes import CANONICAL

ENCODER = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "num_hidden_layers": 1,
}


def read(values: object, **overrides: object) -> Configuration:
    text = values if isinstance(values, str) else json.dumps(values)
    return configure("-", overrides, io.StringIO(text))


def test_sizes_that_contradict_each_other_in_a_file_are_named_as_its_keys(tmp_path, capsys):
    path, keys = tmp_path / "config.json", {"model_type": "bert", **ENCODER, "hidden_size": 9}
    path.write_text(json.dumps(keys), encoding="utf-8")
    contradiction = "hidden_size 9 is not a multiple of num_attention_heads 2: change one of them"
    assert main(["cost", str(path)]) == 2
    assert f"{path}: {contradiction}" in capsys.readouterr().err
    assert main(["cost", "bert-base", "--hidden-size", "9", "--num-attention-heads", "2"]) == 2
    assert "--hidden-size 9 is not a multiple of --num-attention-heads 2" in capsys.readouterr().err


GPT2 = '{"model_type": "gpt2", %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input is empty"),
        ("{", r"standard input is not JSON: line 1, column 2: "),
        ("a(X) -> Y", r"standard input is not JSON: .*; a file in the notation ends in \.table$"),
        ('{"model_type": "gpt2",\n "n_embd": }', r"not JSON: line 2, column 12: Expecting value"),
        ("[1, 2]", r"holds \[1, 2\]; a JSON object"),
        ("null", "holds None; a JSON object"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ("{}", r"standard input: model_type is missing; it must be one of .*gpt2"),
        ('{"model_type": "gtp2"}', r"model_type 'gtp2' is unknown; did you mean 'gpt2'"),
        ('{"model_type": "reformer"}', r"model_type 'reformer' is unknown; known ones are .*distilbert"),
        ('{"model_type": ["gpt2"]}', r"model_type \['gpt2'\] is unknown"),
        (GPT2 % '"n_embd": 24, "n_embd": 48', "gives 'n_embd' twice"),
        (GPT2 % '"n_embd": 24, "hidden_size": 48', "hidden_size = 48 contradicts n_embd = 24"),
        (GPT2 % '"n_embd": NaN', "holds NaN, which is not a number in JSON"),
        (GPT2 % '"n_embd": -Infinity', "holds -Infinity"),
        (GPT2 % f'"n_embd": {"9" * 5000}', "too many digits"),
        (GPT2 % '"n_embd": 1e999', "standard input: n_embd must be a whole number .*not inf"),
        (GPT2 % '"n_embd": 768.0', r"n_embd must be a whole number .*not 768\.0"),
        (GPT2 % '"n_embd": "768"', "n_embd must be a number, not the text '768'"),
        (GPT2 % '"n_embd": true', "n_embd must be a whole number .*not True"),
        (GPT2 % '"n_embd": null', "n_embd must be a whole number .*not None"),
        (GPT2 % '"n_embd": 0', "n_embd must be a whole number .*not 0"),
        (GPT2 % '"n_embd": -768', "n_embd must be a whole number .*not -768"),
        (GPT2 % '"n_embd": 1000000000001', "n_embd must be a whole number"),
        (GPT2 % '"n_head": 7', "hidden_size 768 is not a multiple of num_attention_heads 7"),
        ('{"model_type": "bert", "intermediate_size": null}', "intermediate_size must be a whole number"),
        (GPT2 % '"activation_function": "gelu_nwe"', "activation_function 'gelu_nwe' is not .*did you mean 'gelu_new'"),
        (GPT2 % '"activation_function": "quick_gelu"', "'quick_gelu' is not supported"),
        (GPT2 % '"activation_function": 3', "activation_function 3 is not supported"),
        (GPT2 % '"layer_norm_epsilon": "1e-5"', "layer_norm_epsilon must be a number from 0 to below 1"),
        (GPT2 % '"layer_norm_epsilon": -1', "layer_norm_epsilon must be a number"),
        (GPT2 % '"attn_pdrop": 1.5', "attn_pdrop must be a number from 0 to below 1"),
        (GPT2 % '"tie_word_embeddings": "no"', "tie_word_embeddings must be true or false"),
        (GPT2 % '"tie_word_embeddings": 1', "tie_word_embeddings must be true or false"),
        (GPT2 % '"scale_attn_by_inverse_layer_idx": true', "scale_attn_by_inverse_layer_idx = True is not supported"),
        (
            GPT2 % '"architectures": ["GPT2DoubleHeadsModel"]',
            "'GPT2DoubleHeadsModel' is not supported for gpt2",
        ),
        (GPT2 % '"architectures": 3', "architectures 3 is not supported"),
        (GPT2 % '"pruned_heads": {"1": [0]}', "pruned_heads is not supported"),
        ('{"model_type": "bert", "is_decoder": true}', "is_decoder = True is not supported, only False is"),
        ('{"model_type": "bert", "position_embedding_type": "relative_key"}', "'relative_key' is not supported"),
        ('{"model_type": "distilbert", "sinusoidal_pos_embds": true}', "sinusoidal_pos_embds = True is not supported"),
        ('{"model_type": "encoder", "architectures": ["X"]}', "architectures 'X' is not supported for encoder"),
        ('{"model_type": "encoder-decoder", "encoder": {}, "decoder": {}}', "- needs n_enc, n_dec, hidden_size"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as info:
        read(text)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("gtp2", {}, "unknown model 'gtp2'; did you mean 'gpt2'"),
        ("zzzz", {}, "unknown model 'zzzz'; learncost list models shows all"),
        ("", {}, "unknown model ''"),
        ("line\nbreak", {}, r"unknown model 'line\\nbreak'"),
        ("\0", {}, r"unknown model '\\x00'"),
        ("\0.json", {}, r"not a path: '\\x00.json'"),
        ("x" * 5000, {}, "unknown model"),
        ("x" * 5000 + ".json", {}, "cannot read"),
        ("\udc80.json", {}, "no such file"),
        ("openai-community/gpt9", {}, "no such file: 'openai-community/gpt9'; did you mean"),
        ("Qwen/Qwen9", {}, "; nothing is fetched: save the Hub model's config.json and give its path"),
        ("absent.json", {}, "no such file: 'absent.json'"),
        ("gpt2", {"n_embed": 8}, "unknown size or setting 'n_embed'; did you mean 'n_embd'"),
        ("gpt2", {"seqlen": 8}, "unknown size or setting 'seqlen'; did you mean 'seq_len'"),
        ("vit-base", {}, "did you mean 'vit-base-patch16-224'"),
        ("bert-base", {"architecture": "bertformaskedlm"}, "give --architecture BertForMaskedLM"),
        ("gpt2", {"n_enc": 8}, "gpt2 has no n_enc; its sizes are num_hidden_layers, hidden_size"),
        ("gpt2", {"seq_len": 8}, "gpt2 has no seq_len"),
        ("gpt2", {"n_embd": 8, "d_model": 12}, "d_model = 12 contradicts n_embd = 8"),
        ("gpt2", {"n_embd": "many"}, "n_embd must be a whole number .*not 'many'"),
        ("gpt2", {"n_embd": None}, "n_embd must be a whole number .*not None"),
        ("gpt2", {"model_type": 10**5000}, "model_type a number of more than 60 digits is unknown"),
        ("gpt2", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon must be a number"),
        ("gpt2", {"layer_norm_epsilon": math.nan}, "layer_norm_epsilon must be a number"),
        ("gpt2", {"tie_word_embeddings": "perhaps"}, "tie_word_embeddings must be true or false"),
        (
            "encoder",
            {},
            "encoder needs num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, vocab_size",
        ),
        ("encoder", {**ENCODER, "num_attention_heads": 3}, "hidden_size 8 is not a multiple of num_attention_heads 3"),
        ("encoder-decoder", {**ENCODER}, "encoder-decoder has no num_hidden_layers; its sizes are n_enc, n_dec"),
    ],
)
def test_bad_arguments(model: str, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as info:
        configure(model, overrides)
    assert str(info.value).isprintable()


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder .* holds no config\.json"):
        configure(str(tmp_path))
    (tmp_path / "weights.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        configure(str(tmp_path / "weights.json"))
    (tmp_path / "broken.toml").write_text('model_type = "gpt2"\nn_embd = \n')
    with pytest.raises(InputError, match=r"broken\.toml is not TOML: Invalid value \(at line 2, column 10\)"):
        configure(str(tmp_path / "broken.toml"))
    (tmp_path / "train.ipynb").write_text("{}")
    with pytest.raises(InputError, match=r"is a notebook, which is not read"):
        configure(str(tmp_path / "train.ipynb"))
    (tmp_path / "line\nbreak.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON") as info:
        configure(str(tmp_path / "line\nbreak.json"))
    assert str(info.value).isprintable()
    (tmp_path / "large.json").write_text(" " * (16 * 2**20 + 1))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        configure(str(tmp_path / "large.json"))


VALUES = st.recursive(
    st.sampled_from(ODD) | st.integers(-5, 10**13) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
FAMILY_AND_VALUES = st.sampled_from(sorted(FAMILIES)).flatmap(
    lambda family: st.tuples(st.just(family), st.dictionaries(st.sampled_from(keys_of(family)), VALUES, max_size=4))
)


@settings(deadline=None, max_examples=150)
@given(FAMILY_AND_VALUES, st.dictionaries(st.sampled_from(sorted(CANONICAL)), VALUES, max_size=2))
def test_any_values_give_a_configuration_or_one_line(given: tuple[str, dict], overrides: dict) -> None:
    family, values = given
    try:
        entries = read({"model_type": family, **values}, **overrides)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right
    else:
        assert all(type(size) is int and size >= 1 for size in entries.sizes.values())
        assert set(entries.sizes) <= set(FAMILIES[entries.family].sizes)


@settings(deadline=None, max_examples=80)
@given(FAMILY_AND_VALUES)
def test_any_values_give_a_cost_or_one_line(given: tuple[str, dict]) -> None:
    family, values = given
    target(json.dumps({"model_type": family, **values}).encode("utf-8", errors="surrogatepass"))


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("seed", range(4))
def test_mutated_presets_give_a_cost_or_one_line(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        target(made(chance))


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_gives_one_line(text: str) -> None:
    with pytest.raises(InputError) as info:
        configure("-", stdin=io.StringIO(text))
    assert str(info.value).isprintable()


LLAMA = {**ENCODER, "model_type": "llama", "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 9},
            "num_experts_per_tok 9 is more than num_e",
        ),
        (
            {"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 1},
            "per_tok 2 is more than num_local_e",
        ),
        ({"model_type": "deepseek_v3", "n_group": 8, "topk_group": 9}, "topk_group 9 is more than n_group 8"),
        (
            {"rope_scaling": {"rope_type": "mystery", "factor": 2.0}},
            "no frequency of the kind 'mystery'; there are default",
        ),
        ({"rope_parameters": {"rope_type": "mystery"}}, "no frequency of the kind 'mystery'"),
    ],
)
def test_values_that_contradict_each_other_or_are_unknown_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lc.cost({**LLAMA, **keys})


def test_keys_that_nothing_reads_are_named_and_metadata_is_not() -> None:
    """Of transformers' configurations of all families, one key is no metadata and changes a training: the layers of
    DeepSeek and GLM that predict more tokens."""
    keys = {"mystery_gate": 3, "rope_scaling": {"rope_type": "default", "mystery": 1}, "initializer_range": 0.02}
    ignored = "ignored keys: mystery_gate, rope_scaling.mystery"
    assert lc.cost({**LLAMA, **keys}).counted.endswith(f"; {ignored}")
    for procedure in ("bp", "prefill"):
        assert f"The configuration has {ignored}." in lc.memory({**LLAMA, **keys}, procedure).convention
    transformers = pytest.importorskip("transformers")
    ignored = dict[str, str]()
    for family in FAMILIES:
        try:
            config = transformers.AutoConfig.for_model(family).to_dict()
            ignored[family] = configure(
                {**config, "num_experts_per_tok": 2} if "moe" in str(config) else config
            ).not_read
        except (ValueError, InputError):  # families that transformers does not have
            continue
    assert {family: keys for family, keys in ignored.items() if keys} == {
        "deepseek_v3": "ignored keys: num_nextn_predict_layers",
        "glm4_moe": "ignored keys: num_nextn_predict_layers",
    }
    assert len(ignored) > 40
    assert not any(configure(each.name).not_read for each in presets())
