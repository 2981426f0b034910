"""Encoders, encoder-decoders and ViT: loss or outputs, and every gradient, against transformers' own modules."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import learncost as lc
from encoder_places import PLACES, H
from foreign_models import in_float64, numpy_of, shaken
from hugging_face import read
from learncost.engines.computed_inputs import computed_inputs
from learncost.models.model import build, run_sizes
from sampling import sampled

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

B, M, N, V = 2, 5, 6, 17

# What a model reads, ours and transformers'.


def labelled(architecture, draw, length):
    """Labels of one class among three, of tokens (some have none), or of positions."""
    count = {"labels": B, "targets": B * length}
    tokens = draw.integers(0, V if "MaskedLM" in architecture or "Conditional" in architecture else 3, (B, length))
    if architecture.endswith("ForPreTraining") and not architecture.startswith("Electra"):
        tokens = draw.integers(0, V, (B, length))
    classes = draw.integers(0, 2, B)
    share = np.full((B, length), -1 / count["targets"])
    classified = {"labels": classes, "share": np.full(B, -1 / B)}
    if architecture.endswith("QuestionAnswering"):
        ends = draw.integers(0, length, (B, 2))
        theirs = {"start_positions": ends[:, 0], "end_positions": ends[:, 1]}
        return {"ends": ends, "share": np.full((B, 2), -1 / (2 * B))}, theirs
    if architecture.endswith(("SequenceClassification", "ImageClassification")):
        return classified, {"labels": classes}
    if architecture == "ElectraForPreTraining":
        replaced = draw.integers(0, 2, (B, length))
        return {"sign": 2.0 * replaced[..., None] - 1, "share": share[..., None]}, {"labels": replaced}
    if architecture.endswith("ForPreTraining"):
        ours = {"targets": tokens, "share": share, "labels": classes, "label_share": np.full(B, -1 / B)}
        name = "sentence_order_label" if architecture.startswith("Albert") else "next_sentence_label"
        return ours, {"labels": tokens, name: classes}
    # One token has no label.
    share[0, 1], tokens[0, 1] = 0, -100
    return {"targets": np.maximum(tokens, 0), "share": share * share.size / (share.size - 1)}, {"labels": tokens}


def inputs_of(kind, architecture, model, module, draw, sizes):
    """Ours and theirs; token numbers stay clear of the padding's, whose row has no gradient at transformers."""
    config = module.config
    length = sizes["M"]
    ours, theirs = labelled(architecture, draw, length) if model.learns else ({}, {})
    if kind == "vit":
        pixels = draw.normal(size=(B, sizes["c"], sizes["i"] * sizes["y"], sizes["j"] * sizes["x"]))
        image = pixels.reshape(B, sizes["c"], sizes["i"], sizes["y"], sizes["j"], sizes["x"])
        return {**ours, "image": image}, {**theirs, "pixel_values": pixels}
    tokens = draw.integers(3, V, (B, length))
    ours |= {
        "tokens": tokens,
        "decoder.tokens": tokens,
        "types": draw.integers(0, 2, (B, M)),
    }
    if not model.two_sided:
        theirs |= {"input_ids": tokens}
        if "types" in model.table.inputs:
            theirs["token_type_ids"] = ours["types"]
    elif kind == "whisper":
        features = draw.normal(size=(B, config.num_mel_bins, 2 * N))
        ours |= {"features": features.transpose(0, 2, 1)}
        theirs |= {"input_features": features, "decoder_input_ids": tokens}
    else:
        source = draw.integers(3, V, (B, sizes["N"]))
        theirs |= {"input_ids": source, "decoder_input_ids": tokens}
        ours |= {"encoder.tokens": source}
        if architecture == "BartForSequenceClassification":  # the last token of each side ends the sequence
            source[:, -1] = config.eos_token_id
            ours["last"] = np.full(B, length - 1)
    ours |= computed_inputs(model.configuration, sizes)
    return {name: array for name, array in ours.items() if name in model.table.inputs}, theirs


def gathered(name, place, arrays, axes, sizes):
    """The parameters of all turns as one stack."""
    pattern, view = place
    iterations = pattern.count("{}")
    counts = [sizes[axis] for axis in axes[:iterations]]
    first = 1 if name.startswith("rest.") else 0
    names_found = [pattern.format(*(i + first for i in at)) for at in itertools.product(*map(range, counts))]
    missing = [name_found for name_found in names_found if name_found not in arrays]
    if missing:  # a bare model's names have no prefix
        names_found = [name_found.partition(".")[2] for name_found in names_found]
    values = [view(arrays[name_found]) for name_found in names_found]
    return names_found, np.stack(values).reshape(*counts, *values[0].shape) if iterations else values[0]


def compare(kind, architecture, keys, outputs=()):
    model = build(read({"model_type": kind, "architectures": [architecture], **keys}))
    config = transformers.AutoConfig.for_model(kind, **keys)
    config._attn_implementation = "eager"
    module = getattr(transformers, architecture)(config)
    if kind == "t5" and not model.configuration.tied:  # transformers 5 ties what v1.1 and Flan publish apart
        module.lm_head.weight = torch.nn.Parameter(torch.empty_like(module.lm_head.weight))
    shaken(module)
    draw = np.random.default_rng(5)
    sides = (N, M) if model.two_sided else (None if kind == "vit" else M, None)
    if architecture == "BartForSequenceClassification":
        sides = (M, M)
    sizes = run_sizes(model, B, *sides)
    ours, theirs = inputs_of(kind, architecture, model, module, draw, sizes)
    result = module(**{name: torch.tensor(array) for name, array in theirs.items()})
    table, places = model.table, PLACES[kind](architecture)
    if model.learns:
        loss, seeds = result.loss, {"dloss": np.ones(())}
    else:
        seeds = {f"d{n}": draw.normal(size=result[o].shape) for n, o in zip(table.outputs, outputs, strict=True)}
        loss = sum((torch.tensor(s) * result[o]).sum() for s, o in zip(seeds.values(), outputs, strict=True))
    loss.backward()
    parameters = dict(module.named_parameters(remove_duplicate=False))  # a tied one goes by both names
    arrays = {name: numpy_of(parameter) for name, parameter in parameters.items()}
    gradients = {name: numpy_of(p.grad) for name, p in parameters.items() if p.grad is not None}
    stacks = {w: gathered(w, places[w], arrays, table.axes[w], sizes) for w in table.weights}
    assert {id(parameters[n]) for names, _ in stacks.values() for n in names} == set(map(id, module.parameters()))
    values = lc.run(table, {**ours, **{w: array for w, (_, array) in stacks.items()}, **seeds}, sizes)
    if model.learns:
        np.testing.assert_allclose(values["loss"], loss.item(), rtol=1e-9)
    for name, output in zip(table.outputs, outputs, strict=False):
        np.testing.assert_allclose(values[name], numpy_of(result[output]), rtol=1e-9, atol=1e-9)
    for weight in model.learning:
        _, gradient = gathered(weight, places[weight], gradients, table.axes[weight], sizes)
        np.testing.assert_allclose(values[f"d{weight}"], gradient, rtol=1e-9, atol=1e-9, err_msg=weight)
    return SimpleNamespace(model=model, module=module, gradients=gradients)


SMALL = {
    "hidden_size": 12, "num_attention_heads": H, "num_hidden_layers": 2, "intermediate_size": 7, "vocab_size": V,
    "max_position_embeddings": 11, "layer_norm_eps": 1e-4,
}  # fmt: skip
RELATIVE = {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False}
T5 = {
    "d_model": 12, "d_kv": 5, "num_heads": H, "d_ff": 7, "num_layers": 2, "num_decoder_layers": 3, "vocab_size": V,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 5,
}  # fmt: skip
BART = {
    "d_model": 12, "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_ffn_dim": 7, "decoder_ffn_dim": 9, "vocab_size": V, "max_position_embeddings": 11,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
WHISPER = {key: value for key, value in BART.items() if not key.startswith(("max", "forced"))} | {
    "max_source_positions": N, "max_target_positions": 8, "num_mel_bins": 4, "decoder_start_token_id": 2,
}  # fmt: skip
VIT = {
    "hidden_size": 12, "num_attention_heads": H, "num_hidden_layers": 2, "intermediate_size": 7, "image_size": 6,
    "patch_size": 3, "num_channels": 2, "layer_norm_eps": 1e-4,
}  # fmt: skip

HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
ENCODERS = {
    "bert": ("Bert", (*HEADS, "ForPreTraining"), SMALL),
    "roberta": ("Roberta", HEADS, SMALL),
    "xlm-roberta": ("XLMRoberta", HEADS, SMALL | {"pad_token_id": 2}),
    "distilbert": (
        "DistilBert",
        HEADS,
        {"dim": 12, "n_heads": H, "n_layers": 2, "hidden_dim": 7, "vocab_size": V, "max_position_embeddings": 11},
    ),
    "electra": ("Electra", (*HEADS, "ForPreTraining"), SMALL | {"embedding_size": 5}),
    "albert": (
        "Albert",
        (*HEADS, "ForPreTraining"),
        SMALL | {"embedding_size": 5, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "deberta": ("Deberta", HEADS, SMALL | RELATIVE | {"max_relative_positions": 4, "pooler_hidden_size": 12}),
    "deberta-v2": (
        "DebertaV2",
        HEADS,
        SMALL | RELATIVE | {"position_buckets": 2, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("kind", "head"),
    sampled([(kind, head) for kind, (_, heads, _) in ENCODERS.items() for head in heads], 4, lambda case: case[0]),
)
def test_encoders(kind, head):
    prefix, _, keys = ENCODERS[kind]
    labels = {} if head in ("ForMaskedLM", "ForQuestionAnswering", "ForPreTraining") else {"num_labels": 3}
    compare(kind, prefix + head, keys | labels)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("deberta", {}),
        ("deberta", {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 2}),
        ("deberta", {"relative_attention": True, "pos_att_type": ["p2c"], "max_relative_positions": 3}),
        ("deberta", {"embedding_size": 5, "legacy": True}),
        ("deberta-v2", {}),
        ("deberta-v2", {**RELATIVE, "conv_kernel_size": 3}),
        ("deberta-v2", {**RELATIVE, "pos_att_type": ["p2c"], "conv_kernel_size": 3, "conv_act": "gelu"}),
        ("deberta-v2", {**RELATIVE, "pos_att_type": ["c2p"], "max_relative_positions": 3, "position_buckets": 2}),
        ("electra", {"embedding_size": 12}),
        ("albert", {"embedding_size": 5}),
    ],
)
def test_switches_of_encoders(kind, keys):
    compare(kind, ENCODERS[kind][0] + "ForMaskedLM", SMALL | keys)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("kind", "architecture", "keys"),
    [
        ("t5", "T5ForConditionalGeneration", T5),
        ("t5", "T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
        ("t5", "T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu"}),
        ("bart", "BartForConditionalGeneration", BART),
        ("bart", "BartForConditionalGeneration", BART | {"scale_embedding": True, "activation_function": "relu"}),
        ("bart", "BartForSequenceClassification", BART),
        ("whisper", "WhisperForConditionalGeneration", WHISPER),
        ("whisper", "WhisperForConditionalGeneration", WHISPER | {"scale_embedding": True}),
    ],
)
def test_encoder_decoders(kind, architecture, keys):
    comparison = compare(kind, architecture, keys)
    # What does not learn at transformers does not learn here: the sines of Whisper's encoder.
    frozen = [name for name, parameter in comparison.module.named_parameters() if not parameter.requires_grad]
    assert frozen == (["model.encoder.embed_positions.weight"] if kind == "whisper" else [])
    assert set(comparison.model.table.weights) - set(comparison.model.learning) == (
        {"encoder.wpe"} if frozen else set()
    )


def test_vit():
    compare("vit", "ViTForImageClassification", VIT | {"num_labels": 3})
    compare("vit", "ViTForImageClassification", VIT | {"num_labels": 4, "qkv_bias": False, "hidden_act": "gelu_new"})
    compare("vit", "ViTModel", VIT | {"pooler_output_size": 5}, ("last_hidden_state", "pooler_output"))
