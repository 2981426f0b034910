"""Values, gradients and numbers of parameters of the models against transformers' own modules in float64."""

import io
import json
import random
from collections.abc import Callable

import numpy as np
import pytest

import learncost as lc
from learncost.models.configuration import configure
from learncost.models.model import Model, build

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

Array = np.ndarray
View = Callable[[Array], Array]

TOLERANCE = 1e-9

# Where each of our weights stands in transformers' state, and how it looks from here. A repeat's weights have `{}` for
# the number of the block. GPT's matrices are stored input by output, torch.nn.Linear's output by input.


def plain(array: Array) -> Array:
    return array


def transposed(array: Array) -> Array:
    return array.T


def heads(number: int, part: int | None = None, linear: bool = False) -> View:
    """Columns of queries, keys or values, one after the other for each head: d by heads by width."""

    def view(array: Array) -> Array:
        array = array.T if linear else array
        if part is not None:  # one of three matrices side by side
            array = np.split(array, 3, axis=-1)[part]
        return array.reshape(*array.shape[:-1], number, -1)

    return view


def from_heads(number: int, linear: bool = False) -> View:
    """The output's matrix: heads by width by d."""
    return lambda array: (array.T if linear else array).reshape(number, -1, array.shape[0 if linear else 1])


def gpt(h: int, names: dict[str, str]) -> dict[str, tuple[str, View]]:
    """GPT and GPT-2: one matrix for queries, keys and values."""
    block = "transformer.h.{}."
    weights = {
        "wte": (f"transformer.{names['wte']}.weight", plain),
        "wpe": (f"transformer.{names['wpe']}.weight", plain),
        "attn.WO": (block + "attn.c_proj.weight", from_heads(h)),
        "attn.bO": (block + "attn.c_proj.bias", plain),
        "mlp.W1": (block + "mlp.c_fc.weight", plain),
        "mlp.b1": (block + "mlp.c_fc.bias", plain),
        "mlp.W2": (block + "mlp.c_proj.weight", plain),
        "mlp.b2": (block + "mlp.c_proj.bias", plain),
        "head.W": ("lm_head.weight", transposed),
    }
    for part, letter in enumerate("QKV"):
        weights[f"attn.W{letter}"] = (block + "attn.c_attn.weight", heads(h, part))
        weights[f"attn.b{letter}"] = (block + "attn.c_attn.bias", heads(h, part))
    for norm, place in {"ln_1": block, "ln_2": block, "ln_f": "transformer."}.items():
        weights[f"{norm}.g"] = (f"{place}{norm}.weight", plain)
        weights[f"{norm}.b"] = (f"{place}{norm}.bias", plain)
    return weights


def bert(h: int, names: dict[str, str]) -> dict[str, tuple[str, View]]:
    """BERT and DistilBERT: three matrices, all of torch.nn.Linear."""
    weights = {
        "wte": (names["embeddings"] + "word_embeddings.weight", plain),
        "wpe": (names["embeddings"] + "position_embeddings.weight", plain),
        "wtt": (names["embeddings"] + "token_type_embeddings.weight", plain),
        "attn.WO": (names["WO"] + ".weight", from_heads(h, linear=True)),
        "attn.bO": (names["WO"] + ".bias", plain),
        "head.W": (names["head"] + "decoder.weight", transposed),
        "head.b": (names["head"] + "bias", plain),
    }
    for letter in "QKV":
        weights[f"attn.W{letter}"] = (names[letter] + ".weight", heads(h, linear=True))
        weights[f"attn.b{letter}"] = (names[letter] + ".bias", lambda array: array.reshape(h, -1))
    for ours, number in (("mlp", "1"), ("mlp", "2"), ("transform", ""), ("pooler", "")):
        weights[f"{ours}.W{number}"] = (names[ours + number] + ".weight", transposed)
        weights[f"{ours}.b{number}"] = (names[ours + number] + ".bias", plain)
    for ours in ("ln_e", "ln_1", "ln_2", "transform"):
        place = names["transform_norm" if ours == "transform" else ours]
        weights[f"{ours}.g"] = (place + ".weight", plain)
        weights[f"{ours}.{'beta' if ours == 'transform' else 'b'}"] = (place + ".bias", plain)
    return weights


# An untied BERT's output matrix has a bias of its own; the one beside it, which a tied model uses, is then never read.
UNTIED_BIAS, UNREAD_BIAS = "cls.predictions.decoder.bias", "cls.predictions.bias"

BERT_NAMES = {
    "embeddings": "bert.embeddings.",
    "ln_e": "bert.embeddings.LayerNorm",
    **{c: f"bert.encoder.layer.{{}}.attention.self.{n}" for c, n in zip("QKV", ("query", "key", "value"), strict=True)},
    "WO": "bert.encoder.layer.{}.attention.output.dense",
    "ln_1": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "mlp1": "bert.encoder.layer.{}.intermediate.dense",
    "mlp2": "bert.encoder.layer.{}.output.dense",
    "ln_2": "bert.encoder.layer.{}.output.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions.",
    "pooler": "bert.pooler.dense",
}
DISTILBERT_NAMES = {
    "embeddings": "distilbert.embeddings.",
    "ln_e": "distilbert.embeddings.LayerNorm",
    **{c: f"distilbert.transformer.layer.{{}}.attention.{c.lower()}_lin" for c in "QKV"},
    "WO": "distilbert.transformer.layer.{}.attention.out_lin",
    "ln_1": "distilbert.transformer.layer.{}.sa_layer_norm",
    "mlp1": "distilbert.transformer.layer.{}.ffn.lin1",
    "mlp2": "distilbert.transformer.layer.{}.ffn.lin2",
    "ln_2": "distilbert.transformer.layer.{}.output_layer_norm",
    "transform": "vocab_transform",
    "transform_norm": "vocab_layer_norm",
    "head": "vocab_projector.",
    "pooler": "",
}


def places(family: str, h: int) -> dict[str, tuple[str, View]]:
    if family == "gpt2":
        return gpt(h, {"wte": "wte", "wpe": "wpe"})
    if family == "openai-gpt":
        return gpt(h, {"wte": "tokens_embed", "wpe": "positions_embed"})
    configuration = bert(h, BERT_NAMES if family == "bert" else DISTILBERT_NAMES)
    if family == "distilbert":
        configuration["head.W"] = ("vocab_projector.weight", transposed)
    return configuration


def ours(model: Model, theirs: dict[str, Array]) -> dict[str, Array]:
    """Arrays by our names from transformers' by theirs; a bare model's names have no prefix."""
    places_found = places(model.configuration.family, model.sizes["h"])
    result = {}
    for name in model.table.weights:
        place, view = places_found[name]
        bare = place.partition(".")[2]
        place = place if place.format(0) in theirs else bare
        if name == "head.b" and UNTIED_BIAS in theirs:
            place = UNTIED_BIAS
        if model.table.axes[name][0] == "n_layer":
            result[name] = np.stack(
                [view(theirs[place.format(iteration)]) for iteration in range(model.sizes["n_layer"])]
            )
        else:
            result[name] = view(theirs[place])
    return result


# A random tiny model of either kind, and a batch

SIZES = {
    "gpt2": ("n_embd", "n_head", "n_layer", "n_inner", "n_positions", "activation_function", "layer_norm_epsilon"),
    "openai-gpt": ("n_embd", "n_head", "n_layer", None, "n_positions", "afn", "layer_norm_epsilon"),
    "bert": (
        *("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"),
        *("max_position_embeddings", "hidden_act", "layer_norm_eps"),
    ),
    "distilbert": ("dim", "n_heads", "n_layers", "hidden_dim", "max_position_embeddings", "activation", None),
}
ARCHITECTURES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTModel"),
    "bert": ("BertForMaskedLM", "BertModel"),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertModel"),
}
CASES = [(family, name) for family, names in ARCHITECTURES.items() for name in names]


def pair(family: str, architecture: str, chance: random.Random, padding: bool = False) -> tuple[Model, object]:
    """Our model and transformers' module of one random configuration, the module's parameters random in float64."""
    h, width = chance.choice((1, 2, 3)), chance.randint(1, 4)
    activations = ["gelu", "relu", "gelu_new"]
    if family == "openai-gpt":  # its own three; its "gelu" is the form with tanh
        activations = ["gelu", "relu", "silu"]
    values = [h * width, h, chance.randint(1, 3), chance.randint(3, 9), 7, chance.choice(activations), 1e-4]
    keys = {key: value for key, value in zip(SIZES[family], values, strict=True) if key}
    keys |= {"vocab_size": chance.randint(6, 12), "tie_word_embeddings": chance.random() < 0.7}
    keys |= {key: 3 for key in ("type_vocab_size",) if family == "bert"}
    config = transformers.AutoConfig.for_model(family, bos_token_id=None, eos_token_id=None, pad_token_id=None, **keys)
    config._attn_implementation = "eager"
    module = getattr(transformers, architecture)(config).double().eval()  # dropout 0
    torch.manual_seed(chance.randint(0, 10**6))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    text = json.dumps(config.to_dict() | {"architectures": [architecture]})
    return build(configure("-", stdin=io.StringIO(text)), padding=padding), module


def batch_of(model: Model, draw: np.random.Generator, padding: bool) -> tuple[dict, dict, Array | None]:
    """Our inputs, transformers', and what is real where sequences are padded on the right."""
    B, M, v = 3, 5, model.sizes["v"]
    tokens = draw.integers(0, v, (B, M))
    inputs, theirs = {"tokens": tokens, "index": np.arange(M)}, {"input_ids": torch.tensor(tokens)}
    real = np.arange(M) < np.array([[5], [3], [1]]) if padding else np.ones((B, M), bool)
    if padding:
        theirs["attention_mask"] = torch.tensor(real.astype(int))
    if "types" in model.table.inputs:
        inputs["types"] = draw.integers(0, model.sizes["s"], (B, M))
        theirs["token_type_ids"] = torch.tensor(inputs["types"])
    if model.learns:
        causal = model.configuration.head == "language-model"
        labels = np.where(real, tokens if causal else draw.integers(0, v, (B, M)), -100)
        targets = np.roll(labels, -1, axis=1) if causal else labels.copy()
        if causal:
            targets[:, -1] = -100  # the last position has nothing to predict
        else:
            targets[0, 1] = labels[0, 1] = -100  # only some tokens are masked
        count = (targets >= 0).sum()
        inputs |= {"targets": np.maximum(targets, 0), "share": np.where(targets >= 0, -1 / count, 0.0)}
        theirs["labels"] = torch.tensor(labels)
    return inputs, theirs, real


def compare(model: Model, module: object, draw: np.random.Generator, padding: bool = False) -> None:
    inputs, theirs, real = batch_of(model, draw, padding)
    state = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    weights = ours(model, state)
    # Every block's attention is given the mask of the keys.
    shapes = {name: [model.sizes["n_layer"], *real.shape] for name in model.masks}
    masks = {name: np.broadcast_to(real, shape) for name, shape in shapes.items()}
    found = module(**theirs)
    if model.learns:
        seeds = {"dloss": np.ones(())}
        # transformers' own loss goes through float32, so that it agrees to that alone.
        targets = torch.tensor(np.where(inputs["share"] != 0, inputs["targets"], -100))
        loss = torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), targets.flatten())
        assert abs(loss.item() - found.loss.item()) < 1e-5
    else:
        outputs = [found.last_hidden_state] + ([found.pooler_output] if len(model.table.outputs) == 2 else [])
        names = [name.rpartition(".")[0] or name for name in model.table.outputs]
        # What stands at padded positions is nobody's.
        cut = [real[..., None], np.ones((1, 1))]
        seeds = {f"d{name}": draw.normal(size=o.shape) * c for name, o, c in zip(names, outputs, cut, strict=False)}
        loss = sum((torch.tensor(seed) * output).sum() for seed, output in zip(seeds.values(), outputs, strict=True))
    loss.backward()
    values = lc.run(model.table, inputs | weights | masks | seeds, model.sizes)
    if model.learns:
        assert abs(values["loss"] - loss.item()) < TOLERANCE
        scores = torch.log_softmax(found.logits, -1).detach().numpy()
        assert np.abs((values["P"] - scores)[real]).max() < TOLERANCE
    else:
        for name, output in zip(names, outputs, strict=True):
            difference = values[name] - output.detach().numpy()
            assert np.abs(difference[real] if difference.ndim == 3 else difference).max() < TOLERANCE
    # Every gradient that autograd has, and no other.
    used = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    gradients = ours(model, used)
    for name, gradient in gradients.items():
        assert np.abs(values[f"d{name}"] - gradient).max() < TOLERANCE, name
    assert sum(gradient.size for gradient in gradients.values()) == sum(gradient.size for gradient in used.values())


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "architecture"), CASES)
def test_values_and_gradients(family: str, architecture: str, seed: int) -> None:
    model, module = pair(family, architecture, random.Random(f"{architecture} {seed}"))
    compare(model, module, np.random.default_rng(seed))


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("family", "architecture"), CASES)
def test_padded_batches(family: str, architecture: str, seed: int) -> None:
    model, module = pair(family, architecture, random.Random(f"{architecture} padded {seed}"), padding=True)
    compare(model, module, np.random.default_rng(seed), padding=True)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("family", "architecture"), CASES)
def test_parameters_of_random_models(family: str, architecture: str) -> None:
    for seed in range(5):
        model, module = pair(family, architecture, random.Random(f"{architecture} {seed}"))
        names = {name: parameter.numel() for name, parameter in module.named_parameters()}
        unread = names[UNREAD_BIAS] if UNTIED_BIAS in names else 0
        ledger = lc.cost(model.configuration, seq_len=3)
        assert (ledger.parameters, ledger.trained_parameters) == (sum(names.values()), sum(names.values()) - unread)


# Published numbers of parameters, as keras-hub states them for its presets of these checkpoints (tied weights counted
# once). BERT's are of the encoder with its pooler, DistilBERT's of the encoder, neither with a head.
def bert_of(width: int, depth: int, heads: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    return sizes | {"intermediate_size": 4 * width}


BERT = {"model_type": "bert", "architectures": ["BertModel"]}
BERT_LARGE = BERT | bert_of(1024, 24, 16)
DISTILBERT = {"model_type": "distilbert", "architectures": ["DistilBertModel"]}
PUBLISHED = [
    ("gpt2_base_en", "gpt2", 124_439_808),
    ("gpt2_medium_en", "gpt2-medium", 354_823_168),
    ("gpt2_large_en", "gpt2-large", 774_030_080),
    ("gpt2_extra_large_en", "gpt2-xl", 1_557_611_200),
    ("bert_base_en_uncased", "bert-base", 109_482_240),
    ("bert_large_en_uncased", "bert-large", 335_141_888),
    ("distil_bert_base_en_uncased", "distilbert-base", 66_362_880),
    ("bert_base_en", BERT | {"vocab_size": 28996}, 108_310_272),
    ("bert_base_zh", BERT | {"vocab_size": 21128}, 102_267_648),
    ("bert_base_multi", BERT | {"vocab_size": 119547}, 177_853_440),
    ("bert_large_en", BERT_LARGE | {"vocab_size": 28996}, 333_579_264),
    ("bert_tiny_en_uncased", BERT | bert_of(128, 2, 2), 4_385_920),
    ("bert_small_en_uncased", BERT | bert_of(512, 4, 8), 28_763_648),
    ("bert_medium_en_uncased", BERT | bert_of(512, 8, 8), 41_373_184),
    ("all_minilm_l6_v2_en", BERT | bert_of(384, 6, 12), 22_713_216),
    ("all_minilm_l12_v2_en", BERT | bert_of(384, 12, 12), 33_360_000),
    ("distil_bert_base_en", DISTILBERT | {"vocab_size": 28996}, 65_190_912),
    ("distil_bert_base_multi", DISTILBERT | {"vocab_size": 119547}, 134_734_080),
]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("preset", "model", "parameters"), PUBLISHED, ids=[case[0] for case in PUBLISHED])
def test_published_parameters(preset: str, model: str | dict, parameters: int) -> None:
    if isinstance(model, dict):  # sizes that are not given are the defaults of the model type
        model = configure("-", stdin=io.StringIO(json.dumps(model)))
    assert lc.cost(model, seq_len=8).parameters == parameters
