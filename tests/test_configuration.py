"""The reading of MODEL arguments: presets, files, architectures, spellings of sizes."""

import ast
import io
import json
import math
from pathlib import Path

import pytest

import learncost.models
from learncost.ir.errors import InputError
from learncost.models.argument import preset_names, presets
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.sizes import CANONICAL, MODEL_SIZES, check_size, resolve

GENERIC = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10}
ENCODER = {**GENERIC, "num_hidden_layers": 1}


def read(values: object, **overrides: object) -> Configuration:
    text = values if isinstance(values, str) else json.dumps(values)
    return configure("-", overrides, io.StringIO(text))


def parameters(c: Configuration) -> int:
    """The parameters of the bare model and a tied head, by the printed structure of each family."""
    s = c.sizes
    d, f, v, p = s["hidden_size"], s["intermediate_size"], s["vocab_size"], s.get("max_position_embeddings", 0)
    w = s["num_attention_heads"] * s["head_dim"]
    if c.family == "gpt3-jiang":
        return v * d + s["num_hidden_layers"] * (4 * d * w + 2 * d * f)
    if c.family == "encoder-decoder":
        attention, feed_forward, norm = 4 * d * w, 2 * d * f + f + d, 2 * d
        encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
        return v * d + s["n_enc"] * encoder + s["n_dec"] * decoder
    block = 4 * d * w + 3 * w + d + 2 * d * f + f + d + 4 * d
    total = (v + p + s.get("type_vocab_size", 0)) * d + s["num_hidden_layers"] * block
    if c.family != "openai-gpt":
        total += 2 * d  # the norm after the last block, or after the embeddings
    return total + (d * d + d if c.pooler else 0)


# What the publications print: exact where a file's tensors were counted, else the printed figure and a tolerance.
@pytest.mark.parametrize(
    ("name", "expected", "tolerance"),
    [
        ("gpt2", 124_439_808, 0),
        ("distilgpt2", 81_912_576, 0),
        ("gpt2-medium", 354_823_168, 0),
        ("gpt2-large", 774_030_080, 0),
        ("gpt2-xl", 1_557_611_200, 0),
        ("openai-gpt", 116_534_784, 0),
        ("bert-base-uncased", 109_482_240, 0),
        ("bert-large", 335_141_888, 0),
        ("distilbert-base", 66_362_880, 0),
        ("gpt3-jiang", 174_563_733_504, 0),
        ("transformer-base", 65e6, 0.04),
        ("transformer-big", 213e6, 0.02),
        ("gpt3-small", 125e6, 0.01),
        ("gpt3-medium", 350e6, 0.02),
        ("gpt3-large", 760e6, 0.01),
        ("gpt3-xl", 1.32e9, 0.01),
        ("gpt3-2.7b", 2.7e9, 0.02),
        ("gpt3-6.7b", 6.7e9, 0.01),
        ("gpt3-13b", 13.0e9, 0.02),
        ("gpt3-175b", 175e9, 0.003),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, expected: float, tolerance: float) -> None:
    assert abs(parameters(configure(name)) - expected) <= tolerance * expected


def test_every_preset_reads_and_says_its_source() -> None:
    assert len(presets()) >= 18
    for name, preset in preset_names().items():
        configuration = configure(name)
        assert configuration.name == name
        assert configuration.family == ("table" if preset.table else preset.family)
        assert configuration.source == f"preset {preset.name}"
        assert preset.source
        assert preset.title


def test_presets_go_by_the_names_of_the_hub_in_any_case() -> None:
    """A repository's name means one preset, and is the preset's."""
    every = [(name, preset) for preset in presets() for name in preset.hub]
    assert len(every) > 150
    assert len({name.lower() for name, _ in every} - preset_names().keys()) == len(every)
    for name, preset in every[::7]:
        assert configure(name.upper()) == configure(name) == configure(preset.name)
    assert configure("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b"
    with pytest.raises(InputError, match=r"did you mean 'qwen2\.5-"):
        configure("Qwen/Qwen2.5-8B")


def test_gpt3_heads_are_together_as_wide_as_the_model() -> None:
    """Brown et al. 2020, table 2.1, prints 24 heads of 128 beside 2048, and the width 5140 beside 40 of 128."""
    every = [configure(preset.name).sizes for preset in presets() if preset.name.startswith("gpt3-")]
    assert len(every) == 9
    assert all(sizes["hidden_size"] == sizes["num_attention_heads"] * sizes["head_dim"] for sizes in every)


def test_preset_names_ignore_case_and_go_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "n_embd": 24}')
    assert configure("GPT2").sizes["hidden_size"] == 768
    assert configure("./gpt2").sizes["hidden_size"] == 24


# --- architectures and heads ---


@pytest.mark.parametrize(
    ("family", "architecture", "head", "pooler", "tied"),
    [
        ("gpt2", None, "language-model", False, True),
        ("gpt2", "GPT2LMHeadModel", "language-model", False, True),
        ("gpt2", "GPT2Model", "none", False, False),
        ("openai-gpt", None, "language-model", False, True),
        ("openai-gpt", "OpenAIGPTModel", "none", False, False),
        ("bert", None, "none", True, False),
        ("bert", "BertModel", "none", True, False),
        ("bert", "BertForMaskedLM", "masked-language-model", False, True),
        ("distilbert", None, "none", False, False),
        ("distilbert", "DistilBertForMaskedLM", "masked-language-model", False, True),
    ],
)
def test_heads(family: str, architecture: str | None, head: str, pooler: bool, tied: bool) -> None:
    for names in ([architecture], architecture) if architecture else (None, []):
        entries = read({"model_type": family, "architectures": names})
        assert (entries.head, entries.pooler, entries.tied) == (head, pooler, tied)
        assert entries.architecture == (architecture or FAMILIES[family].architectures[0].name)
        assert ("LM head tied to the token embedding" in entries.counted) == tied
    if architecture:
        assert configure("-", {"architecture": architecture}, io.StringIO(f'{{"model_type": "{family}"}}')).head == head


def test_an_unsupported_head_can_be_overridden() -> None:
    values = {"model_type": "bert", "architectures": ["BertForMultipleChoice"]}
    with pytest.raises(InputError, match=r"'BertForMultipleChoice' is not supported for bert.*BertModel"):
        read(values)
    assert read(values, architecture="BertModel").pooler


# --- generic models, overrides, spellings ---


def test_generic_models() -> None:
    encoder = configure("encoder", ENCODER)
    assert (encoder.name, encoder.family, encoder.source) == ("encoder", "encoder", "generic")
    assert (encoder.activation, encoder.tied, encoder.positions, encoder.head) == (
        "gelu_tanh",
        False,
        "sinusoidal",
        "language-model",
    )
    assert dict(encoder.sizes) == {**ENCODER, "head_dim": 4}
    learned = configure("decoder", {**ENCODER, "max_position_embeddings": "64"})
    assert (learned.positions, learned.sizes["max_position_embeddings"]) == ("learned", 64)
    both = configure("encoder-decoder", {**GENERIC, "n_enc": 2, "n_dec": 3})
    assert (both.sizes["n_enc"], both.sizes["n_dec"]) == (2, 3)
    assert "num_hidden_layers" not in both.sizes
    assert configure("encoder", {**GENERIC, "n_enc": 5}).sizes["num_hidden_layers"] == 5
    assert configure("decoder", {**GENERIC, "decoder-layers": 5}).sizes["num_hidden_layers"] == 5


def test_a_missing_size_is_refused_by_name() -> None:
    for model, sizes in (("encoder", ENCODER), ("encoder-decoder", {**GENERIC, "n_enc": 2, "n_dec": 3})):
        for absent in sizes:
            with pytest.raises(InputError, match=f"{model} needs {absent}: give --{absent.replace('_', '-')} N"):
                configure(model, {size: value for size, value in sizes.items() if size != absent})


def test_what_follows_from_an_overridden_size_follows_the_override() -> None:
    sizes = configure("gpt2", {"n_embd": "96", "n-head": 4, "Block-Size": 32}).sizes
    assert (sizes["intermediate_size"], sizes["head_dim"], sizes["max_position_embeddings"]) == (384, 24, 32)
    assert configure("gpt2", {"n_embd": 96, "n_inner": 100}).sizes["intermediate_size"] == 100
    assert configure("gpt2", {"n_head": 7, "head_dim": 5}).sizes["head_dim"] == 5
    assert configure("bert-base", {"hidden_size": 96}).sizes["intermediate_size"] == 3072
    assert (
        read({"model_type": "gpt2", "n_inner": None, "head_dim": None, "n_embd": 24}).sizes["intermediate_size"] == 96
    )


def test_settings_can_be_overridden() -> None:
    flags = {"activation": "relu", "layer-norm-eps": "1e-3", "tie_word_embeddings": "false", "resid_pdrop": "0.5"}
    configuration = configure("gpt2", flags)
    assert (configuration.activation, configuration.layer_norm_epsilon, configuration.tied) == ("relu", 1e-3, False)
    assert configuration.dropout == {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.5}


def test_spellings() -> None:
    assert resolve("N") == "seq_len"
    assert resolve("M") == "target_len"
    assert resolve("Hidden-Size") == resolve("n_embd") == resolve("d_model") == resolve("dim") == "hidden_size"
    assert resolve("hidden_dim") == "intermediate_size"
    assert resolve("H") == "num_attention_heads"
    assert len(CANONICAL) == sum(1 + len(size.spellings) for size in MODEL_SIZES) + 3 + 5, "a spelling stands twice"
    for wrong in ("m", "n", "hiden_size", ""):
        with pytest.raises(InputError, match="unknown size"):
            resolve(wrong)
    with pytest.raises(InputError, match="did you mean 'hidden_size'"):
        resolve("hiden-size")


def test_sizes_are_whole_numbers_from_1_to_a_million_million() -> None:
    numpy = pytest.importorskip("numpy")
    for good in (1, 1.0, "1", "0012", "1_000", "1,000", 10**12, numpy.int64(7), numpy.float64(2)):
        assert check_size("hidden_size", good) == int(str(good).replace(",", "").removesuffix(".0"))
        assert type(check_size("hidden_size", good)) is int
    bad = (
        0,
        -1,
        10**12 + 1,
        10**5000,
        1.5,
        math.nan,
        True,
        None,
        "",
        " 1",
        "1.0",
        "0x1",
        "1__000",
        "+1",
        "-3",
    )
    for value in (*bad, "٣", "²", "9" * 5000, "twelve", [1], numpy.bool_(True), numpy.float64(2.5)):
        with pytest.raises(
            InputError, match=r"hidden_size must be a whole number from 1 to 1,000,000,000,000, not "
        ) as info:
            check_size("hidden_size", value)
        assert len(str(info.value)) < 200


# --- files ---


def test_files_folders_and_toml(tmp_path: Path) -> None:
    values = {"model_type": "distilbert", "dim": 24, "n_heads": 4, "unknown_key": [1]}
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(values), encoding="utf-8")
    configuration = configure(str(tmp_path / "config.json"))
    assert configuration.sizes["hidden_size"] == 24
    assert configuration.name == configuration.source == str(tmp_path / "config.json")
    assert configure(str(tmp_path)).sizes == configuration.sizes
    lines = (
        'model_type = "encoder-decoder"',
        "d_model = 8",
        "h = 2",
        "d_ff = 16",
        "voc = 10",
        "n_enc = 1",
        "n_dec = 2",
    )
    (tmp_path / "own.toml").write_text("\n".join((*lines, 'activation = "relu"')))
    assert configure(str(tmp_path / "own.toml")).activation == "relu"
    assert configure(str(tmp_path / "own.toml"), {"n_dec": 9}).sizes["n_dec"] == 9


def test_positions_that_are_said_twice() -> None:
    for order in (("n_positions", "n_ctx"), ("n_ctx", "n_positions")):
        values = {"n_positions": 64, "n_ctx": 32}
        assert (
            read({"model_type": "gpt2", **{key: values[key] for key in order}}).sizes["max_position_embeddings"] == 64
        )
    assert read({"model_type": "gpt2", "n_ctx": 32}).sizes["max_position_embeddings"] == 32
    assert read({"model_type": "gpt2", "n_embd": 24, "hidden_size": 24}).sizes["hidden_size"] == 24


def test_reading_needs_only_the_standard_library() -> None:
    """The command has to start in 0.4 s; pydantic or torch alone would take most of it."""
    folder = Path(learncost.__file__).parent
    allowed = {
        "__future__",
        "ast",
        "collections",
        "dataclasses",
        "difflib",
        "functools",
        "importlib",
        "json",
        "math",
        "operator",
        "os",
        "pathlib",
    }
    allowed |= {"statistics"}  # inside of a function, for the few models that need a quantile
    allowed |= {"inspect", "re", "sys", "tomllib", "typing", "learncost"}
    reading = ("argument", "configuration", "expression", "families", "files", "sizes")
    for name in (*(f"models/{name}" for name in reading), "ir/errors"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {module.split(".")[0] for module in modules} <= allowed


def test_the_text_of_a_model_of_several_modalities() -> None:
    inner = {"model_type": "gemma3_text", "hidden_size": 16, "head_dim": 4, "num_attention_heads": 4, "vocab_size": 9}
    whole_model = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}
    entries, alone = read(whole_model), read(inner)
    assert entries.counted == alone.counted.replace("; LM head", "; the text model of 'gemma3' alone; LM head")
    assert (entries.family, entries.sizes, entries.settings) == (alone.family, alone.sizes, alone.settings)
    with pytest.raises(InputError, match="text_config: model_type 'gemma9' is unknown; did you mean"):
        read({**whole_model, "text_config": {**inner, "model_type": "gemma9"}})
    older = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "hidden_size": 16}
    older |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 9, "tie_word_embeddings": True}
    newer = {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": True,
        "text_config": older | {"model_type": "qwen2_5_vl_text"},
    }
    newer["text_config"].pop("tie_word_embeddings")
    assert (read(older).sizes, read(older).tied) == (read(newer).sizes, read(newer).tied)
    assert read(older).family == "qwen2_5_vl_text"
    assert "the text model of 'qwen2_5_vl' alone" in read(older).counted
