"""Encoders, encoder-decoders and ViT read from config.json: parameters and matrix products of transformers' modules."""

import random

import pytest

from hugging_face import flops_of, module_of, parameters_of, read
from learncost.ir.errors import InputError
from learncost.layers.active import parameters
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.procedures.step import step
from sampling import sampled

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import learncost as lc  # noqa: E402

BATCH, LENGTH, TARGET = 2, 6, 5
ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")


def flag(draw):
    return draw.random() < 0.5


def encoder(draw):
    """What BERT and its likes have."""
    heads = draw.choice((1, 2, 3, 4))
    return {
        "hidden_size": heads * draw.randrange(1, 7),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randrange(1, 4),
        "intermediate_size": draw.randrange(3, 20),
        "vocab_size": draw.randrange(11, 40),
        "max_position_embeddings": draw.randrange(LENGTH, 20),
        "type_vocab_size": draw.randrange(1, 4),
        "hidden_act": draw.choice(ACTIVATIONS),
        "tie_word_embeddings": draw.random() < 0.7,
    }


def roberta(draw):
    """Positions begin behind the padding token's row, so that there must be more of them."""
    pad = draw.randrange(0, 4)
    return encoder(draw) | {"pad_token_id": pad, "max_position_embeddings": LENGTH + pad + draw.randrange(1, 5)}


def distilbert(draw):
    keys = encoder(draw)
    names = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    names |= {"intermediate_size": "hidden_dim", "hidden_act": "activation", "type_vocab_size": ""}
    return {names.get(key, key): value for key, value in keys.items() if names.get(key, key)}


def electra(draw):
    keys = encoder(draw)
    return keys | {"embedding_size": draw.choice((keys["hidden_size"], draw.randrange(2, 9)))}


def albert(draw):
    groups = draw.randrange(1, 4)
    iterations = {"num_hidden_groups": groups, "num_hidden_layers": groups * draw.randrange(1, 4)}
    return (
        encoder(draw) | iterations | {"inner_group_num": draw.randrange(1, 4), "embedding_size": draw.randrange(2, 9)}
    )


def deberta(draw):
    keys = encoder(draw) | {"type_vocab_size": draw.randrange(3), "position_biased_input": flag(draw)}
    if flag(draw):
        return keys
    kinds = draw.choice(("c2p|p2c", "c2p", "p2c", ["c2p", "p2c"], ["p2c"]))
    return keys | {"relative_attention": True, "pos_att_type": kinds, "max_relative_positions": draw.choice((-1, 3, 9))}


def deberta_v2(draw):
    keys = deberta(draw) | {"conv_kernel_size": draw.choice((0, 3, 5)), "conv_act": draw.choice(("tanh", "gelu"))}
    if "pos_att_type" in keys:
        # With one term alone and shared projections transformers makes rows that nothing reads.
        both = len(keys["pos_att_type"]) in (2, 7) and "c2p" in keys["pos_att_type"]
        keys |= {"share_att_key": both and flag(draw), "position_buckets": draw.choice((-1, 2, 4))}
        keys |= {"norm_rel_ebd": draw.choice(("none", "layer_norm"))}
    return keys


def t5(draw):
    return {
        "d_model": draw.randrange(3, 20),
        "d_kv": draw.randrange(1, 9),
        "d_ff": draw.randrange(3, 20),
        "num_heads": draw.randrange(1, 5),
        "num_layers": draw.randrange(1, 4),
        "num_decoder_layers": draw.choice((None, 1, 2, 3)),
        "vocab_size": draw.randrange(11, 40),
        "relative_attention_num_buckets": draw.choice((8, 16, 32)),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu", "gated-silu", "gelu", "gelu_new", "silu")),
        "tie_word_embeddings": flag(draw),
    }


def bart(draw):
    heads = draw.choice((1, 2)), draw.choice((1, 2, 3))
    return {
        "d_model": heads[0] * heads[1] * draw.randrange(1, 5),
        "encoder_attention_heads": heads[0],
        "decoder_attention_heads": heads[1],
        "encoder_layers": draw.randrange(1, 4),
        "decoder_layers": draw.randrange(1, 4),
        "encoder_ffn_dim": draw.randrange(3, 20),
        "decoder_ffn_dim": draw.randrange(3, 20),
        "vocab_size": draw.randrange(11, 40),
        "max_position_embeddings": draw.randrange(LENGTH, 20),
        "activation_function": draw.choice(ACTIVATIONS),
        "scale_embedding": flag(draw),
    }


def whisper(draw):
    keys = bart(draw) | {"tie_word_embeddings": flag(draw), "num_mel_bins": draw.randrange(2, 9)}
    del keys["max_position_embeddings"]
    keys |= {"max_source_positions": LENGTH, "max_target_positions": draw.randrange(TARGET, 9)}
    return keys | {"pad_token_id": 0}


def vit(draw):
    keys = encoder(draw)
    for name in ("vocab_size", "max_position_embeddings", "type_vocab_size", "tie_word_embeddings"):
        del keys[name]
    patch = draw.randrange(1, 5)  # what does not fill a patch is left out
    keys |= {"patch_size": patch, "image_size": patch * draw.randrange(1, 4) + draw.randrange(patch)}
    keys |= {"pooler_output_size": draw.choice((None, 7)), "pooler_act": draw.choice(("tanh", "gelu"))}
    return keys | {"num_channels": draw.randrange(1, 4), "qkv_bias": flag(draw)}


DRAWN = {
    "bert": encoder,
    "roberta": roberta,
    "xlm-roberta": roberta,
    "distilbert": distilbert,
    "electra": electra,
    "albert": albert,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "t5": t5,
    "bart": bart,
    "whisper": whisper,
    "vit": vit,
}
CASES = [(kind, architecture.name) for kind in DRAWN for architecture in FAMILIES[kind].architectures]
# A masked-language-model head whose matrix is its own has a bias of its own too; that beside it is a parameter at
# transformers which nothing reads.
UNREAD_BIAS = ("bert", "roberta", "xlm-roberta", "albert", "deberta", "deberta-v2")


def unread(model, kind):
    """Parameters that transformers' module has and our model has not."""
    tied = model.configuration.tied
    masked = model.configuration.head in ("masked-language-model", "pre-training")
    if kind in UNREAD_BIAS and masked and not tied:
        return model.configuration.sizes["vocab_size"]
    if kind == "t5" and model.configuration.head == "language-model" and not tied:
        # transformers 5 ties the head whatever the file says; v1.1's and Flan's published weights have one of its own.
        return -model.configuration.sizes["vocab_size"] * model.configuration.sizes["hidden_size"]
    return 0


def ones(*shape, device):
    return torch.ones(*shape, dtype=torch.long, device=device)


def inputs_of(model, kind, architecture, device):
    """What the module is called with, and what of its result is learned from."""
    sizes = model.configuration.sizes
    if kind == "vit":
        side = sizes["image_size"]
        inputs = {"pixel_values": torch.ones(BATCH, sizes["num_channels"], side, side, device=device)}
    elif kind == "whisper":
        features = torch.ones(BATCH, sizes["num_mel_bins"], 2 * LENGTH, device=device)
        inputs = {"input_features": features, "decoder_input_ids": ones(BATCH, TARGET, device=device)}
    else:
        # The end of a sequence is token 2, and BART's classifier reads what stands there.
        inputs = {"input_ids": 2 * ones(BATCH, LENGTH, device=device)}
        if model.two_sided:
            target = LENGTH if architecture.endswith("SequenceClassification") else TARGET
            inputs["decoder_input_ids"] = ones(BATCH, target, device=device)
    if not model.learns:
        return inputs, lambda result: sum(value.sum() for value in result.values() if torch.is_tensor(value))
    tokens = ones(BATCH, TARGET if model.two_sided else LENGTH, device=device)
    classes = ones(BATCH, device=device)
    if architecture.endswith("QuestionAnswering"):
        inputs |= {"start_positions": classes, "end_positions": classes}
    elif architecture.endswith(("SequenceClassification", "ImageClassification")):
        inputs |= {"labels": classes}
    else:
        inputs |= {"labels": tokens}
    if architecture in ("BertForPreTraining", "AlbertForPreTraining"):
        inputs["next_sentence_label" if kind == "bert" else "sentence_order_label"] = classes
    return inputs, lambda result: result.loss


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("draws", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "architecture"), sampled(CASES, 3, lambda case: case[0]))
def test_parameters_and_products(kind, architecture, draws):
    """Parameters as transformers counts them, matrix products as FlopCounterMode does, forward and with backward.

    On the CPU, where models this small are quicker than on the meta device; but transformers initializes no Whisper of
    an odd width.
    """
    draw = random.Random(architecture)
    device = "meta" if kind == "whisper" else "cpu"
    for _ in range(draws):
        keys = DRAWN[kind](draw) | {"model_type": kind}
        if not architecture.endswith(("QuestionAnswering", "ForPreTraining")):
            keys["num_labels"] = draw.randrange(2, 6)
        model = build(read({**keys, "architectures": [architecture]}))
        module = module_of(keys, architecture, device)
        assert parameters(model.table).at(model.sizes) + unread(model, kind) == parameters_of(module), keys
        target = LENGTH if architecture.endswith("SequenceClassification") else TARGET
        length = None if kind == "vit" else LENGTH
        sizes = run_sizes(model, BATCH, length, target if model.two_sided else None)
        step = lc.derive(model.table, wanted=model.learning).step
        ours = [lc.price(table, sizes, "matmul").flops for table in (model.table, step)]
        inputs, loss = inputs_of(model, kind, architecture, device)
        assert (*ours, 0) == flops_of(module, inputs, loss), keys


def test_shared_projections_without_a_term_are_refused():
    """transformers projects rows of positions by both matrices, and nothing reads them."""
    keys = {"model_type": "deberta-v2", "relative_attention": True, "share_att_key": True, "pos_att_type": []}
    with pytest.raises(InputError, match="share_att_key = True is not supported, only False is"):
        read(keys)
    assert read({**keys, "share_att_key": False}).unread


# What transformers calls our sizes, where its names are others.
THEIRS = {
    "t5": {"n_enc": "num_layers", "n_dec": "num_decoder_layers", "intermediate_size": "d_ff"},
    "bart": {"n_enc": "encoder_layers", "n_dec": "decoder_layers", "intermediate_size": "encoder_ffn_dim"},
    "whisper": {
        "n_enc": "encoder_layers",
        "n_dec": "decoder_layers",
        "intermediate_size": "encoder_ffn_dim",
        "max_position_embeddings": "max_target_positions",
    },
    "distilbert": {"intermediate_size": "hidden_dim"},
}
# Follow from other sizes, and are no keys of a file.
OURS_ALONE = {"image_width", "patch_width", "head_dim", "turns_of_a_group", "score_width", "embedding_size"}


@pytest.mark.parametrize("kind", DRAWN)
def test_defaults_are_those_of_the_configuration_class(kind):
    config = transformers.AutoConfig.for_model(kind)
    entries = read({"model_type": kind})
    for size, value in entries.sizes.items():
        name = THEIRS.get(kind, {}).get(size, size)
        if hasattr(config, name) or size not in OURS_ALONE:
            assert getattr(config, name) == value, size
    assert entries.dropout == {name: getattr(config, name) for name in entries.dropout}
    epsilon = getattr(config, "layer_norm_eps", getattr(config, "layer_norm_epsilon", None))
    assert epsilon in (None, entries.layer_norm_epsilon)
    assert entries.settings["num_labels"] == config.num_labels
    # A whole file names two labels, which asks for the classifier of a ViT.
    assert entries == read(config.to_dict() | {"architectures": [entries.architecture]})


@pytest.mark.parametrize("kind", DRAWN)
def test_whole_files_mean_what_short_ones_do(kind):
    """transformers writes every key; ours are those that it was given."""
    draw = random.Random(f"whole {kind}")
    for _ in range(10):
        keys = DRAWN[kind](draw) | {"num_labels": draw.randrange(3, 6)}
        if kind == "t5":  # transformers 5 writes that the head is tied, whatever it was told
            keys["tie_word_embeddings"] = True
        answer = transformers.AutoConfig.for_model(kind, **keys).to_dict()
        assert read({"model_type": kind, **keys}) == read(answer)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "albert", "num_hidden_layers": 5, "num_hidden_groups": 2}, "num_hidden_layers 5 is not a mult"),
        ({"model_type": "bart", "is_decoder": True}, "is_decoder = True is not supported"),
        ({"model_type": "t5", "feed_forward_proj": "gated"}, "t5 has no feed forward of the kind 'gated'"),
        ({"model_type": "bert", "problem_type": "regression"}, "problem_type = 'regression' is not supported"),
        ({"model_type": "vit", "image_size": [224, 224, 3]}, "image_size must be a whole number"),
        ({"model_type": "deberta-v2", "conv_kernel_size": 3, "conv_groups": 2}, "conv_groups = 2 is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        build(read(keys))


def test_lengths():
    """Two sides, positions behind a row, and lengths that the model fixes."""
    bart = build(read({"model_type": "bart"}))
    assert run_sizes(bart, 1, None, None)["N"] == run_sizes(bart, 1, None, None)["M"] == 1024
    assert bart.sizes["p"] == 1026
    roberta = build(read({"model_type": "roberta", "max_position_embeddings": 514}))
    assert (roberta.sizes["p"], run_sizes(roberta, 1, None, None)["M"]) == (514, 512)
    with pytest.raises(InputError, match="seq_len 513 is longer than the 512 positions"):
        run_sizes(roberta, 1, 513, None)
    whisper = build(read({"model_type": "whisper"}))
    sizes = run_sizes(whisper, 1, None, None)
    assert (sizes["t"], sizes["N"], sizes["M"]) == (3000, 1500, 448)
    with pytest.raises(InputError, match="reads 1,500 positions, not 750"):
        run_sizes(whisper, 1, 750, None)
    vit = build(read({"model_type": "vit"}))
    assert run_sizes(vit, 1, None, None)["M"] == 197
    assert read({"model_type": "vit"}).architecture == "ViTModel"
    labels = {str(i): f"class {i}" for i in range(1000)}
    assert read({"model_type": "vit", "id2label": labels}).architecture == "ViTForImageClassification"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "vit"}, "has no output to learn from .*; --architecture ViTForImageClassification has one"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, "not over the vocabulary"),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"]}, "not over the vocabulary"),
        ({"model_type": "bert", "architectures": ["BertForPreTraining"]}, "not over the vocabulary"),
        ({"model_type": "whisper"}, "updates every weight"),
    ],
)
def test_forward_learning_says_what_it_cannot(keys, message):
    """Its error is added to the one-hot tokens, so that the output must be over the vocabulary."""
    with pytest.raises(InputError, match=message):
        step(build(read(keys)), "pepita")
    assert step(build(read(keys)), "bp").lines
