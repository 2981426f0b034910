"""Files of Hugging Face's four families mean what transformers reads in them, and its modules have our parameters."""

import io
import json
import math
import random
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.models.configuration import Configuration, configure
from learncost.models.families import ACTIVATIONS, FAMILIES
from test_configuration import parameters

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

HUGGING_FACE = ("gpt2", "openai-gpt", "bert", "distilbert")


def read(values: object) -> Configuration:
    return configure("-", stdin=io.StringIO(json.dumps(values)))


def canonical_sizes_of(config: object, family: str) -> dict[str, int]:
    d = config.hidden_size
    inner = {
        "gpt2": lambda: config.n_inner or 4 * d,
        "openai-gpt": lambda: 4 * d,
        "distilbert": lambda: config.hidden_dim,
    }
    canonical = {
        size: getattr(config, size)
        for size in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    }
    canonical["intermediate_size"] = inner[family]() if family in inner else config.intermediate_size
    canonical["head_dim"] = d // config.num_attention_heads
    if family == "bert":
        canonical["type_vocab_size"] = config.type_vocab_size
    return canonical


def random_keys(family: str, chance: random.Random) -> dict[str, object]:
    """Some keys of a config.json, with random tiny values; what is absent has to come from the defaults."""
    heads = chance.choice((2, 3, 4))
    keys = {"gpt2": "n_embd n_head", "openai-gpt": "n_embd n_head", "distilbert": "dim n_heads"}
    width, number = keys.get(family, "hidden_size num_attention_heads").split()
    values: dict[str, object] = {width: heads * chance.randint(1, 9), number: heads}
    others = {
        "gpt2": {"n_layer": 3, "n_positions": 17, "vocab_size": 29, "n_inner": chance.choice((None, 13))},
        "openai-gpt": {"n_layer": 3, "n_positions": 17, "vocab_size": 29, "layer_norm_epsilon": 1e-4},
        "bert": {"num_hidden_layers": 3, "intermediate_size": 13, "type_vocab_size": 5, "hidden_dropout_prob": 0},
        "distilbert": {"n_layers": 3, "hidden_dim": 13, "max_position_embeddings": 19, "dropout": 0.3},
    }[family]
    others |= {"tie_word_embeddings": chance.choice((True, False))}
    values |= {key: value for key, value in others.items() if chance.random() < 0.5}
    return values if chance.random() < 0.9 else {}


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_files_mean_what_transformers_reads_in_them(family: str) -> None:
    chance = random.Random(family)
    for _ in range(30):
        values = random_keys(family, chance)
        theirs = transformers.AutoConfig.for_model(family, **values)
        short, entries = read({"model_type": family, **values}), read(theirs.to_dict())
        assert short == entries
        assert dict(short.sizes) == canonical_sizes_of(theirs, family)
        epsilon = getattr(theirs, "layer_norm_epsilon", getattr(theirs, "layer_norm_eps", 1e-12))
        assert short.layer_norm_epsilon == epsilon
        assert short.tied == (theirs.tie_word_embeddings and short.head != "none")
        assert short.dropout == {key: getattr(theirs, key) for key in FAMILIES[family].dropout}


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_parameters_of_transformers_own_modules(family: str) -> None:
    chance = random.Random(family + "modules")
    for _ in range(3):
        values = random_keys(family, chance)
        config = transformers.AutoConfig.for_model(family, **values)
        with torch.device("meta"):
            module = transformers.AutoModel.from_config(config)
        name = type(module).__name__
        ours = read({"model_type": family, **values, "architectures": [name]})
        assert (ours.architecture, ours.head) == (name, "none")
        assert parameters(ours) == sum(tensor.numel() for tensor in module.parameters())


def test_activations_are_transformers_functions() -> None:
    from transformers.models.openai.modeling_openai import ACT_FNS

    ops = {
        "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
        "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        "relu": lambda x: max(x, 0),
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "silu": lambda x: x / (1 + math.exp(-x)),
        "tanh": math.tanh,
    }
    points = [n / 4 for n in range(-20, 21)]
    theirs = {
        name: transformers.activations.ACT2FN[name] for name in ACTIVATIONS if name in transformers.activations.ACT2FN
    }
    assert set(ACTIVATIONS) - set(theirs) == {"gelu_tanh"}
    pairs = [(ACTIVATIONS[name], function) for name, function in theirs.items()]
    pairs += [(FAMILIES["openai-gpt"].activations[name], function) for name, function in ACT_FNS.items()]
    for op, function in pairs:
        values = function(torch.tensor(points, dtype=torch.float64)).tolist()
        assert values == pytest.approx([ops[op](x) for x in points], abs=1e-9)


def test_a_model_of_images_has_one_sample_without_a_batch_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a preset has: a config.json of a class without a family needs no flag that its refusal would ask for."""
    sizes = {"depths": [1, 1], "num_stages": 2, "hidden_sizes": [8, 16], "num_labels": 3, "image_size": 32}
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"model_type": "convnext", "architectures": ["ConvNextForImageClassification"], **sizes})
    )
    assert main(["cost", str(file)]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "ConvNextForImageClassification, one step of bp in fp32: B = 1"
    model = transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**sizes))
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32))
    assert main(["cost", str(file), "--price-book", "torch-flop-counter", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["macro_operations"]["forward"]["flops"] == counter.get_total_flops()
    for given in (str(file), file, str(tmp_path)):  # in Python the same table
        assert lc.cost(given, price_book="torch-flop-counter").to_dict() == printed
