"""The modules of transformers' classes that stand on the base model, by their names in --train.

What learns is held to the parameters of the module on the meta device, FLOPs to torch's FlopCounterMode.
"""

import json

import pytest

import learncost as lc
from hugging_face import flops_of, module_of
from learncost.cli.command import main

torch = pytest.importorskip("torch")

from low_rank import adapt, learn_only  # noqa: E402

BATCH, LENGTH = 2, 6
SIZES = {"vocab_size": 40, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 20}
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 1}

HEADS = [
    ("BertForSequenceClassification", "classifier"),
    ("BertForTokenClassification", "classifier"),
    ("BertForQuestionAnswering", "qa_outputs"),
    ("RobertaForSequenceClassification", "classifier"),
    ("RobertaForTokenClassification", "classifier"),
    ("XLMRobertaForSequenceClassification", "classifier"),
    ("ElectraForSequenceClassification", "classifier"),
    ("ElectraForTokenClassification", "classifier"),
    ("DistilBertForSequenceClassification", "classifier"),
    ("DistilBertForSequenceClassification", "pre_classifier"),
    ("DistilBertForQuestionAnswering", "qa_outputs"),
    ("DebertaForSequenceClassification", "classifier"),
    ("DebertaForSequenceClassification", "pooler"),
    ("DebertaV2ForSequenceClassification", "classifier"),
    ("ViTForImageClassification", "classifier"),
    ("BartForSequenceClassification", "classification_head"),
    ("GPT2ForTokenClassification", "classifier"),
    ("LlamaForSequenceClassification", "score"),
    ("LlamaForTokenClassification", "score"),
]
WIDTHS = {"distilbert": "hidden_dim", "gpt2": "n_inner"}
"""What transformers calls the width between the matrices of a block where it is not intermediate_size."""
TYPES = {"XLMRoberta": "xlm-roberta", "DebertaV2": "deberta-v2"}


def values_of(architecture):
    prefix = architecture.partition("For")[0]
    model_type = TYPES.get(prefix, prefix.lower())
    more = {"num_labels": 2 if architecture.endswith("QuestionAnswering") else 5, "pad_token_id": 1}
    more |= {"embedding_size": 12} if prefix == "Electra" else {}
    if model_type == "bart":
        more |= {"encoder_layers": 2, "decoder_layers": 2, "d_model": 12, "encoder_attention_heads": 3}
        more |= {"decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "vocab_size": 40}
        return {"model_type": model_type, "architectures": [architecture], **more}
    sizes = {name: size for name, size in SIZES.items() if model_type != "vit" or name != "vocab_size"}
    if model_type in WIDTHS:
        sizes[WIDTHS[model_type]] = sizes.pop("intermediate_size")
    images = IMAGES if model_type == "vit" else {}
    return {"model_type": model_type, "architectures": [architecture], **sizes, **images, **more}


def ours(values, tmp_path, **how):
    (tmp_path / "config.json").write_text(json.dumps(values))
    length = {} if values["model_type"] == "vit" else {"seq_len": LENGTH}
    return lc.cost(str(tmp_path), price_book="matmul", batch_size=BATCH, **length, **how)


def learning(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("architecture", "name"), HEADS)
def test_a_head_learns_by_the_name_of_its_module(architecture, name, tmp_path):
    values = values_of(architecture)
    module = module_of(values, architecture)
    head = module.get_submodule(name)
    cost = ours(values, tmp_path, train=name)
    assert cost.trained_parameters == sum(parameter.numel() for parameter in head.parameters())
    assert cost.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("architecture", ["RobertaForSequenceClassification", "ViTForImageClassification"])
@pytest.mark.parametrize("lora", [False, True])
def test_what_a_step_of_the_classifier_alone_and_beside_low_rank_paths_costs(architecture, lora, tmp_path):
    values = values_of(architecture)
    projections = ("q_proj", "v_proj") if values["model_type"] == "vit" else ("query", "value")
    module = module_of(values, architecture, device="cpu")
    if lora:
        adapt(module, projections, rank=3)
        module.classifier.requires_grad_(True)
    else:
        learn_only(module, lambda name: name.startswith("classifier."))
    if values["model_type"] == "vit":
        inputs = {"pixel_values": torch.zeros(BATCH, 1, 8, 8)}
    else:
        inputs = {"input_ids": torch.full((BATCH, LENGTH), 3)}
    inputs["labels"] = torch.zeros(BATCH, dtype=torch.long)
    how = {"lora": ",".join(projections), "lora_rank": 3} if lora else {}
    cost = ours(values, tmp_path, train="classifier", **how)
    forward, total, _ = flops_of(module, inputs, lambda found: found.loss)
    assert cost.trained_parameters == learning(module)
    assert (cost.macro_operations["forward"][1].flops, cost.total.flops) == (forward, total)


def test_a_low_rank_path_beside_a_classifier(tmp_path):
    """peft takes a linear layer by its name: r of (inputs + outputs) parameters."""
    values = values_of("BertForSequenceClassification")
    module = adapt(module_of(values, "BertForSequenceClassification"), ["classifier"], rank=3)
    assert ours(values, tmp_path, lora="classifier", lora_rank=3).trained_parameters == learning(module)


@pytest.mark.parametrize(
    ("preset", "architecture", "how"),
    [
        ("roberta-base", "RobertaForSequenceClassification", {"lora": "query,value", "train": "classifier"}),
        (
            "distilbert-base-uncased",
            "DistilBertForSequenceClassification",
            {"lora": "q_lin,v_lin", "lora_rank": 16, "train": "classifier,pre_classifier"},
        ),
    ],
)
def test_what_peft_prints_of_a_sequence_classifier(preset, architecture, how):
    """Of roberta-base with rank 8: trainable params: 887,042 || all params: 125,534,212, with the frozen head too.

    Of DistilBERT with rank 16: trainable params: 887,042; names that end in classifier are saved, pre_classifier too.
    """
    cost = lc.cost(preset, architecture=architecture, seq_len=8, **how)
    assert cost.trained_parameters == 887_042
    if preset == "roberta-base":
        assert cost.parameters + (768 * 768 + 768 + 768 * 2 + 2) == 125_534_212


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("roberta", "RobertaModel"), ("roberta", "RobertaForMaskedLM"), ("bert", "BertModel")],
)
def test_a_class_without_a_classifier_has_none_to_train(model_type, architecture, tmp_path, capsys):
    values = {**values_of("RobertaForMaskedLM"), "model_type": model_type, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert main(["cost", str(tmp_path), "--train", "classifier"]) == 2
    assert "has no weights called 'classifier'" in capsys.readouterr().err
