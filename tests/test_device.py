"""The engine on PyTorch on another device: `cpu:0`, where its tensors have memory of their own, as on a GPU."""

import json

import pytest
import torch

from learncost.cli.command import main
from learncost.engines.inputs import random_data
from learncost.engines.options import Options
from learncost.models.small import small
from learncost.training.engine import engine
from learncost.training.torch_engine import TorchProgram

WAYS = [
    {"optimizer": "adamw", "dtype": "fp64"},
    {"optimizer": "momentum", "accumulate": 2, "clip": 0.5, "dtype": "fp64"},
    {"optimizer": "adamw", "accumulate": 2, "dtype": "bf16-masters"},
]
DEVICES = ["cpu:0", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", WAYS)
def test_losses_and_weights_are_those_of_numpy(precision, device):
    sides = []
    for options in (Options(engine="numpy", **precision), Options(engine="torch", device=device, **precision)):
        training = engine(small("gpt2"), options)
        model = training._training.model
        losses = [training.step(random_data(model, 4, 6, 5, seed=step), 0.1) for step in range(4)]
        sides.append((losses, training.weights))
    (losses, weights), (theirs, their_weights) = sides
    near = 1e-9 if precision["dtype"] == "fp64" else 1e-2
    assert theirs == pytest.approx(losses, rel=near)
    assert losses[0] != losses[-1]
    if precision["dtype"] == "fp64":  # in bf16 AdamW's first steps go either way where a gradient is next to nothing
        assert all(their_weights[name] == pytest.approx(array, rel=near, abs=near) for name, array in weights.items())
    assert f"on PyTorch's operators on {device}" in training.says


def test_the_program_that_is_compiled_is_of_no_module(monkeypatch):
    """torch.compile before 2.13 imports the module that a function's globals name."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    monkeypatch.setattr(TorchProgram, "__call__", lambda *_: pytest.fail("there is no GPU to run it on"))
    training = engine(small("gpt2"), Options(engine="torch"))._training
    prepared = training.prepare(**random_data(training.model, 2, 6, 5))
    TorchProgram(prepared.table, prepared.sizes, "fp32", "cuda")
    (function,) = compiled
    assert "__name__" not in function.__globals__


@pytest.mark.slow  # on one device: tests/test_train_precision.py
@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("devices", [("cpu:0", "cpu"), ("cpu", "cpu:0"), ("cpu:0", "cpu:0")])
def test_a_run_goes_on_on_another_device(devices, tmp_path):
    """A checkpoint is the same wherever the steps run."""
    (tmp_path / "text.txt").write_text("What one device has begun, another one goes on with. " * 40)
    tiny = ["--num-hidden-layers", "1", "--hidden-size", "16", "--seq-len", "16", "--batch-size", "2", "--steps", "2"]
    tiny += ["--dtype", "fp64"]  # in fp32 AdamW's first steps make rounding larger
    losses = []
    for name, (begun, on) in {"one": ("cpu", "cpu"), "other": devices}.items():
        run = tmp_path / name
        assert main(["train", str(tmp_path / "text.txt"), *tiny, "--device", begun, "--out", str(run)]) == 0
        assert main(["train", "--resume", str(run), "--steps", "4", "--device", on]) == 0
        losses.append([json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()])
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
