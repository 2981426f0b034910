"""What a step reads is made from people's data by the roles of inputs: answers of every kind, masks, images, sounds."""

import re

import numpy as np
import pytest
import torch
from torch.nn import functional

import learncost as lc
from learncost.engines.inputs import random_data
from learncost.models.configuration import configure
from learncost.torch import model as torch_model

WIDTHS = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIDES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2} | {
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 13,
}
IMAGE = {"image_size": 8, "patch_size": 4, "num_channels": 2, "num_labels": 3}
SOUND = {"max_source_positions": 6, "max_target_positions": 8, "num_mel_bins": 5}
KINDS = {
    "vit": ({**WIDTHS, **IMAGE}, "ViTForImageClassification", "labels"),
    "whisper": ({**SIDES, **SOUND}, "WhisperForConditionalGeneration", "targets"),
    "bart": ({**SIDES, "max_position_embeddings": 20}, "BartForConditionalGeneration", "targets"),
    "gpt2": ({**WIDTHS, "vocab_size": 13, "num_labels": 3}, "GPT2ForSequenceClassification", "labels"),
    "bert": ({**WIDTHS, "vocab_size": 13}, "BertForQuestionAnswering", "ends"),
    "roberta": ({**WIDTHS, "vocab_size": 13, "num_labels": 3}, "RobertaForTokenClassification", "targets"),
    "electra": ({**WIDTHS, "vocab_size": 13}, "ElectraForPreTraining", "targets"),
}


def expected(kind: str, logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """The mean over the answers that are there, by PyTorch's own losses."""
    if kind == "ElectraForPreTraining":
        is_answer = answers >= 0
        return functional.binary_cross_entropy_with_logits(logits.squeeze(-1)[is_answer], answers[is_answer].double())
    if kind == "BertForQuestionAnswering":  # [B M r], an answer's first and last position
        return functional.cross_entropy(logits.transpose(1, 2).flatten(0, 1), answers.flatten(), ignore_index=-1)
    return functional.cross_entropy(logits.flatten(0, -2), answers.flatten(), ignore_index=-1)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("family", KINDS)
def test_every_kind_of_answer_counts_as_in_pytorch(family: str) -> None:
    """On NumPy and as a module of PyTorch, with answers that are not there: values and gradients of one step."""
    sizes, architecture, answers = KINDS[family]
    configuration = configure({"model_type": family, "architectures": [architecture], **sizes})
    training = lc.Training(configuration, "bp", "sgd", learning_rate=0.1, seed=3)
    data = random_data(training.model, 4, 6, 5, seed=1)
    data[answers].flat[::3] = -1
    module = torch_model(configuration, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in module.weights().items():
            parameter.copy_(torch.from_numpy(training.weights[name]))
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    logits = module(**{name: tensor for name, tensor in tensors.items() if name != answers})
    expected_loss = expected(architecture, logits, tensors[answers])
    expected_loss.backward()
    learned = {name: parameter for name, parameter in module.weights().items() if parameter.requires_grad}
    gradients = {name: parameter.grad.numpy().copy() for name, parameter in learned.items()}
    module.zero_grad()
    loss = module(**tensors)
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-12)
    before = dict(training.weights)
    assert training.step(**data) == pytest.approx(expected_loss.item(), rel=1e-12)
    for name, parameter in learned.items():
        np.testing.assert_allclose(parameter.grad.numpy(), gradients[name], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(
            (before[name] - training.weights[name]) / 0.1, gradients[name], rtol=1e-8, atol=1e-12
        )


def test_an_image_is_taken_as_it_lies_and_microbatches_share_the_whole_batch() -> None:
    sizes, architecture, _ = KINDS["vit"]
    configuration = configure({"model_type": "vit", "architectures": [architecture], **sizes})
    fused_update, parts = (lc.Training(configuration, "bp", "sgd", seed=3, accumulate=n) for n in (1, 2))
    data = random_data(fused_update.model, 4, 6, 5, seed=1)
    flat = {"image": data["image"].reshape(4, 2, 8, 8), "labels": data["labels"] * np.array([1, 1, 1, -1])}
    losses = fused_update.step(**(data | {"labels": flat["labels"]})), parts.step(**flat)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for name, array in fused_update.weights.items():
        np.testing.assert_allclose(parts.weights[name], array, rtol=1e-10, atol=1e-14)


def test_the_last_token_is_that_of_the_mask() -> None:
    """A sequence that is padded says what it says alone."""
    sizes, architecture, _ = KINDS["gpt2"]
    configuration = configure({"model_type": "gpt2", "architectures": [architecture], **sizes})
    training = lc.Training(configuration, seed=3)
    alone = training.forward([[4, 2, 7]], labels=np.array([1]))["loss"]
    padded = training.forward([[4, 2, 7, 5, 5]], mask=[[1, 1, 1, 0, 0]], labels=np.array([1]))["loss"]
    assert float(padded) == pytest.approx(float(alone), rel=1e-12)


LINES = "f(X t; W) -> Y\n  Y[B d] = W[v=t[B] d] X[B]\n"


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ("t: index of d", "t is read as an index of v, not of d, in line: t: index of d"),
        ("X: index of v", "X is read as a value, not as an index of v"),
        ("X: share of q", "q is not an input of f"),
        ("X: part of t", "one of buffer, end, index, kind, share, sign, not part"),
        ("z: index of v", "z is not an input of f"),
    ],
)
def test_a_role_that_the_lines_deny_is_refused(role: str, says: str) -> None:
    assert lc.layer(LINES + "t: index of v").table.indices == {"t"}
    with pytest.raises(lc.NotationError, match=re.escape(says)):
        lc.layer(LINES + role)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs image [B c i y j x]"),
        ({"image": np.zeros((2, 2, 8, 8))}, "needs labels [B]"),
        (
            {"image": np.zeros((2, 2, 8, 9)), "labels": np.zeros(2, int)},
            "image must have shape [B c i y j x], (2, 2, 2, 4, 2, 4)",
        ),
        ({"image": np.zeros((2, 2, 8, 8)), "labels": np.zeros(3, int)}, "2 rows of image, but 3 of labels"),
        ({"image": np.zeros((2, 2, 8, 8)), "labels": np.full(2, 3)}, "labels must be below 3"),
        ({"image": np.zeros((2, 2, 8, 8)), "labels": np.zeros(2)}, "labels must be integers, not float64"),
        (
            {"image": np.zeros((2, 2, 8, 8)), "labels": np.full(2, -1)},
            "the batch has no target",
        ),
        ({"tokens": [[1, 2]]}, "vit has no input tokens; it has image, labels"),
    ],
)
def test_data_that_do_not_fit_are_refused(given: dict[str, object], says: str) -> None:
    sizes, architecture, _ = KINDS["vit"]
    training = lc.Training(configure({"model_type": "vit", "architectures": [architecture], **sizes}))
    with pytest.raises(lc.InputError, match=re.escape(says)):
        training.step(**given)


def test_what_does_not_fill_a_patch_is_left_out() -> None:
    """As transformers' convolution leaves it out: an image of 10 by 10 with patches of 4."""
    sizes, architecture, _ = KINDS["vit"]
    values = {"model_type": "vit", "architectures": [architecture], **sizes}
    images, labels = np.random.default_rng(0).normal(size=(2, 2, 10, 10)), np.array([0, 2])
    wide, narrow = (lc.Training(configure({**values, "image_size": side}), seed=3) for side in (10, 8))
    whole = float(wide.forward(image=images, labels=labels)["loss"])
    assert whole == float(narrow.forward(image=images[:, :, :8, :8], labels=labels)["loss"])
    with pytest.raises(lc.InputError, match="image must have shape"):
        wide.forward(image=images[:, :, :9, :9], labels=labels)
