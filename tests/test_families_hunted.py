"""Configurations in which a search against transformers' modules found wrong numbers or needless refusals."""

import itertools

import pytest

import learncost as lc
from hugging_face import check_flops, check_parameters, flops_of, module_of, parameters_of, read
from learncost.ir.errors import InputError
from learncost.models.model import build

torch = pytest.importorskip("torch")

BATCH, LENGTH = 2, 6
TINY = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "vocab_size": 17}


def ones(*shape, device="meta"):
    return torch.ones(*shape, dtype=torch.long, device=device)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("labels", [1, 2, 5])
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("albert", "AlbertForQuestionAnswering"),
        ("bert", "BertForQuestionAnswering"),
        ("deberta", "DebertaForQuestionAnswering"),
        ("deberta-v2", "DebertaV2ForQuestionAnswering"),
        ("electra", "ElectraForQuestionAnswering"),
        ("gptj", "GPTJForQuestionAnswering"),
        ("roberta", "RobertaForQuestionAnswering"),
        ("bart", "BartForQuestionAnswering"),
        ("gpt2", "GPT2ForQuestionAnswering"),
        ("llama", "LlamaForQuestionAnswering"),
    ],
)
def test_the_ends_of_an_answer_with_another_number_of_labels(family, name, labels):
    """Some classes have an output for each label and others always two."""
    sizes = {"max_position_embeddings": 16, "rotary_dim": 4} if family != "bart" else {"d_model": 32}
    base_keys = {} if family == "bart" else TINY
    check_parameters({"model_type": family, **base_keys, **sizes, "num_labels": labels}, name)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_of_gpt2(head):
    """On the CPU, since the last token is looked for."""
    values = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 2, "vocab_size": 17, "pad_token_id": 0}
    inputs = {"input_ids": ones(BATCH, LENGTH, device="cpu")}
    if head == "ForQuestionAnswering":
        inputs |= dict.fromkeys(("start_positions", "end_positions"), ones(BATCH, device="cpu"))
    else:
        inputs["labels"] = ones(*((BATCH,) if "Sequence" in head else (BATCH, LENGTH)), device="cpu")
    check_parameters(values, f"GPT2{head}")
    check_flops(values, f"GPT2{head}", inputs, lambda result: result.loss, BATCH, LENGTH, device="cpu")


def test_answers_of_an_encoder_decoder():
    """transformers shifts the encoder's tokens to the right for the decoder: both sides are as long."""
    values = {"model_type": "bart", "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 17}
    inputs = {"input_ids": ones(BATCH, LENGTH), "decoder_input_ids": ones(BATCH, LENGTH)}
    inputs |= {"start_positions": ones(BATCH), "end_positions": ones(BATCH)}
    check_flops(values, "BartForQuestionAnswering", inputs, lambda result: result.loss, BATCH, LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("family", "older", "name"),
    [("mpt", "MPTForCausalLM", "MptForCausalLM"), ("t5", "T5WithLMHeadModel", "T5ForConditionalGeneration")],
)
def test_older_names_of_classes(family, older, name):
    """As mosaicml/mpt-7b and the first files of T5 have them."""
    assert read({"model_type": family, "architectures": [older]}).architecture == name


def test_kinds_of_attention_that_are_null():
    """transformers' default stands in the configuration's code, behind a null."""
    values = {"model_type": "gpt_neo", "hidden_size": 16, "vocab_size": 17}
    assert check_parameters({**values, "attention_types": None}).table == check_parameters(values).table


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "llama", "per_layer_config": {"0": {"intermediate_size": 5}}}, "per_layer_config"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "'old with two norms'"),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "parallel_attn": False},
            "'new without parallel_attn'",
        ),
        ({"model_type": "deberta", "pooler_hidden_size": 5}, "only 768 is"),
        ({"model_type": "phi", "qk_layernorm": True, "head_dim": 80}, "only 64 is"),
        ({"model_type": "deberta-v2", "attention_head_size": 5}, "only 64 is"),
    ],
)
def test_keys_that_change_sizes(values, message):
    """transformers builds other weights by them, and those of DeBERTa, Falcon and Phi do not fit together."""
    with pytest.raises(InputError, match=message):
        build(read(values))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_a_window_that_is_null(family):
    """It is not read where all blocks see everything."""
    values = {"model_type": family, "num_hidden_layers": 2, "sliding_window": None}
    check_parameters({**values, "layer_types": ["full_attention"] * 2})
    with pytest.raises(InputError, match="sliding_window must be at least 1, not 0 or null: "):
        lc.cost(values, seq_len=5)


def test_keys_that_say_what_holds():
    """As the published files of DeBERTa have them."""
    read({"model_type": "deberta", "pooler_hidden_size": 768})
    read({"model_type": "deberta-v2", "attention_head_size": 64})
    read({"model_type": "phi", "head_dim": 80})
    read({"model_type": "phi", "head_dim": 64, "qk_layernorm": True})


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("image", "patch"), [([4, 6], 2), ([6, 6], [2, 3]), ([7, 9], [3, 2]), (8, [4, 2])])
def test_images_that_are_not_square(image, patch):
    """Height first; what does not fill a patch is left out."""
    keys = {"image_size": image, "patch_size": patch, "num_channels": 1}
    values = {"model_type": "vit", "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, **keys}
    height, width = image if isinstance(image, list) else (image, image)
    inputs = {"pixel_values": torch.ones(BATCH, 1, height, width, device="meta"), "labels": ones(BATCH)}
    check_parameters(values, "ViTModel")
    check_flops(values, "ViTForImageClassification", inputs, lambda result: result.loss, BATCH, None)


@pytest.mark.parametrize("image", [[4], [4, 4, 4], [4, 0], [4, "4"], []])
def test_images_that_are_no_pair(image):
    with pytest.raises(InputError, match="image_size must be a"):
        read({"model_type": "vit", "image_size": image})


RELATIVE = ({}, {"relative_attention": True}, {"relative_attention": True, "pos_att_type": "p2c|c2p"})
NORMS = ({"norm_rel_ebd": "none"}, {"norm_rel_ebd": "layer_norm", "position_buckets": 3})
UNTIED = [
    *itertools.product(("BertForMaskedLM", "BertForPreTraining", "BertModel"), ({},)),
    *itertools.product(("AlbertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM", "DistilBertModel"), ({},)),
    *itertools.product(("DebertaForMaskedLM", "DebertaModel"), RELATIVE),
    *itertools.product(("DebertaForMaskedLM", "DebertaV2ForMaskedLM"), ({"legacy": False},)),
    *itertools.product(("DebertaV2ForMaskedLM", "DebertaV2Model"), [a | b for a in RELATIVE for b in NORMS]),
    *itertools.product(("BartModel", "BartForConditionalGeneration", "BartForSequenceClassification"), ({},)),
]


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("name", "keys"), UNTIED)
def test_parameters_that_nothing_reads(name, keys, tied):
    """transformers stores them: the bias and the words that were tied, relative rows that no term reads."""
    family = name.split("For")[0].removesuffix("Model").lower().replace("v2", "-v2")
    sizes = {"d_model": 16} if family == "bart" else {} if family == "distilbert" else TINY
    values = {"model_type": family, **sizes, **keys, "tie_word_embeddings": tied}
    theirs = module_of(values, name)
    ledger = lc.cost({**values, "architectures": [name]}, seq_len=5, price_book="matmul")
    assert ledger.parameters == parameters_of(theirs), values
    assert lc.cost(lc.from_module(theirs), seq_len=5, price_book="matmul").parameters == ledger.parameters


def test_two_sides_with_words_of_their_own():
    values = {"model_type": "bart", "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 17}
    inputs = {"input_ids": ones(BATCH, LENGTH), "decoder_input_ids": ones(BATCH, 4), "labels": ones(BATCH, 4)}
    untied = {**values, "tie_word_embeddings": False}
    check_flops(untied, "BartForConditionalGeneration", inputs, lambda result: result.loss, BATCH, LENGTH, 4)


def test_a_sweep_counts_what_nothing_reads():
    """As `cost` does, whatever is swept."""
    values = {"model_type": "bert", **TINY, "tie_word_embeddings": False, "architectures": ["BertForMaskedLM"]}
    swept = lc.sweep(values, vocab_size=[17, 30], seq_len=5, price_book="matmul")
    assert list(swept.parameters) == [lc.cost(values, vocab_size=v, seq_len=5).parameters for v in (17, 30)]


@pytest.mark.parametrize("kind", ["c2p", "p2c"])
def test_a_shared_projection_that_no_term_reads(kind):
    """transformers projects the rows of positions for both terms where they share projections, and drops one of them.

    That is a product of 2 x 3 rows with a matrix in each block, forward only.
    """
    keys = {"relative_attention": True, "pos_att_type": kind, "share_att_key": True, "position_buckets": 3}
    values = {"model_type": "deberta-v2", **TINY, **keys, "architectures": ["DebertaV2ForTokenClassification"]}
    tokens = ones(BATCH, LENGTH, device="cpu")
    module = module_of(values, values["architectures"][0], device="cpu")
    theirs = flops_of(module, {"input_ids": tokens, "labels": tokens}, lambda result: result.loss)
    ledger = lc.cost(values, batch_size=BATCH, seq_len=LENGTH, price_book="matmul")
    assert theirs[:2] == (ledger.macro_operations["forward"][1].flops, ledger.total.flops)
    assert sum(parameter.numel() for parameter in module.parameters()) == ledger.parameters
