"""The optimizer in the backward pass: what is predicted beside what PyTorch's allocator hands out."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from against_torch_and_jax.torch_models import module

import learncost as lc
from allocator import most
from learncost.models.configuration import configure

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 64}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 344}
CASES = [
    ("gpt2", SMALL | {"vocab_size": 5000}, 1, 16, "adamw"),  # where the embedding's gradients are
    ("gpt2", SMALL | {"vocab_size": 50, "tie_word_embeddings": False}, 1, 16, "adamw"),
    ("tinyllama-1.1b", LLAMA | {"vocab_size": 500}, 4, 64, "sgd"),  # where the loss is
    ("tinyllama-1.1b", LLAMA | {"vocab_size": 50}, 1, 8, "sgd"),  # where blocks' gradients are
]  # model, sizes, batch, length, optimizer


def train(configuration, batch, length, optimizer):
    """Two steps with an optimizer a weight that steps in the hook of its gradient."""
    network = module(configuration)
    for weight in network.parameters():
        stepper = torch.optim.AdamW([weight], fused=True) if optimizer == "adamw" else torch.optim.SGD([weight], 0.1)

        def hook(weight, one=stepper):
            one.step()
            one.zero_grad()

        weight.register_post_accumulate_grad_hook(hook)
    tokens, targets = (torch.randint(0, configuration.sizes["vocab_size"], (batch, length)) for _ in range(2))
    for _ in range(2):
        network(tokens, targets).backward()


def measured():
    """The most that the allocator hands out in every case."""
    for model, sizes, *case in CASES:
        configuration = configure(model, sizes)
        yield most(lambda configuration=configuration, case=case: train(configuration, *case), "cpu")


@pytest.fixture(scope="module")
def peaks():
    """Measured in a process of its own: in one in which others have trained before, more is alive at times."""
    text = "import json, test_memory_in_backward as own; print(json.dumps([*own.measured()]))"
    folder = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", text], cwd=folder, env=env, capture_output=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_predicted_peak_is_that_of_the_allocator(number, peaks):
    model, sizes, batch, length, optimizer = CASES[number]
    configuration = configure(model, sizes)
    settings = {"module": "plain", "optimizer": optimizer}
    predicted, usual = (
        lc.memory(configuration, "bp", batch, length, engine="eager", plan=plan, **settings)
        for plan in ("fused-update", None)
    )
    assert abs(peaks[number] - predicted.peak) < 0.005 * peaks[number]
    assert predicted.peak <= usual.peak
    assert sum(predicted.split.values()) == predicted.peak


UNFUSED = [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM"), ("bert", "BertForMaskedLM")]
"""Families whose softmax of scores is in their type, in float, and of an encoder."""


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
@pytest.mark.parametrize(("family", "architecture"), UNFUSED)
def test_without_a_plan_attention_is_that_of_transformers_eager_implementation(family, architecture, precision):
    """The peak of two steps with attn_implementation="eager", in a process without other trainings."""
    text = f"import test_memory_in_backward as own; print(own.unfused({family!r}, {architecture!r}, {precision!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", text], cwd=Path(__file__).parent, env=env, capture_output=True, check=True
    )
    peak, values = int(run.stdout.splitlines()[-1]), tiny(family)
    read = configure("-", {}, io.StringIO(json.dumps({**values, "architectures": [architecture]})))
    stored, fused = (
        lc.memory(read, "bp", 4, 256, precision=precision, engine="eager", plan=plan).peak for plan in ("none", None)
    )
    assert abs(stored - peak) < 0.005 * peak
    assert fused < 0.95 * stored


def tiny(family):
    """The configuration of two small blocks."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 500}
    own = {"n_layer": 2, "n_embd": 128, "n_head": 4} if family == "gpt2" else {"intermediate_size": 344}
    probabilities = ("attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob")
    return {"model_type": family, **sizes, **own, **dict.fromkeys(probabilities, 0.0)}


def unfused(family, architecture, precision):
    """The most that the allocator hands out in two steps of transformers' module with eager attention."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    values = {key: value for key, value in tiny(family).items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(family, **values)
    config._attn_implementation = "eager"

    def steps():
        module = getattr(transformers, architecture)(config)
        module = module.to(torch.bfloat16 if precision == "bf16-true" else torch.float32)
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)
        tokens = torch.randint(0, 400, (4, 256))
        for _ in range(2):
            module(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return most(steps)
