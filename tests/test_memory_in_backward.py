"""The optimizer in the backward pass: what is predicted beside what PyTorch's allocator hands out."""

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


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_predicted_peak_is_that_of_the_allocator(number, peaks):
    model, sizes, batch, length, optimizer = CASES[number]
    configuration = configure(model, sizes)
    settings = {"module": "plain", "optimizer": optimizer}
    predicted, usual = (
        lc.memory(configuration, "bp", batch, length, engine="eager", plan=plan, **settings)
        for plan in ("fused-update", "")
    )
    assert abs(peaks[number] - predicted.peak) < 0.005 * peaks[number]
    assert predicted.peak <= usual.peak
    assert sum(predicted.split.values()) == predicted.peak
