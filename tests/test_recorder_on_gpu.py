"""Steps recorded for a GPU on a machine without one: which operators a GPU runs, and what autocast keeps."""

import json
import subprocess
import sys

import h100_steps
import pytest

from learncost.importer.recorder import device
from learncost.ir.errors import InputError

STEP = """
import json
from learncost.importer.recorder.device import load_guard
load_guard()
import torch
from torch import nn
from torch.nn import functional as F
from learncost.importer.recorder.cuda import on_gpu
from learncost.importer.recorder.module_step import in_a_run, record_step
from learncost.importer.recorder.recorder import Recorder
from learncost.program.autograd import Stepping
from learncost.program.program import StepRequest, peak

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.norm = nn.Linear(64, 64, bias=False), nn.RMSNorm(64)

    def forward(self, x):
        x = F.silu(self.weight(self.norm(x)))
        heads = x.view(8, 16, 2, 32).transpose(1, 2)
        x = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)
        return self.weight(x).sum()

answers = {}
for autocast in (False, True):
    recorder = Recorder("cuda")
    with in_a_run(), on_gpu(), recorder:
        with recorder.given("weights", "weights"), torch.device("cuda"):
            module = Twice()
        with recorder.given("activations", "inputs"), torch.device("cuda"):
            x = torch.empty(8, 16, 64)
        def forward():
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                return module(x)
        stepping = Stepping("adamw", "fused", cuda=True)
        record_step(recorder, module, StepRequest("fp32", "cuda", optimizer=stepping), forward)
    program = recorder.program()
    answers[autocast] = {
        "ops": [[op.name.split("::")[1], op.phase] for op in program.ops],
        "casts": [[list(op.inputs[0].shape), program.buffers[op.outputs[0].buffer].last] for op in program.ops
                  if op.name == "aten::_to_copy" and op.phase == "forward" and op.outputs[0].dtype == "bfloat16"],
        "forward": max(place for place, op in enumerate(program.ops) if op.phase == "forward"),
        "devices": sorted({buffer.device for buffer in program.buffers}),
        "held": sum(buffer.bytes for buffer in program.buffers if buffer.first < 0 <= buffer.last),
        "peak": peak(program).bytes,
    }
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    try:
        device.compiled()
    except InputError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("autocast", ["false", "true"])
def test_operators_are_those_of_a_gpu(answers, autocast):
    ops = [tuple(each) for each in answers[autocast]["ops"]]
    kernel = "cudnn" if autocast == "true" else "efficient"
    for name in (f"_scaled_dot_product_{kernel}_attention", "silu", "_fused_rms_norm"):
        assert ops.count((name, "forward")) == 1
        assert ops.count((f"{name}_backward", "backward")) == 1
    assert [name for name, phase in ops if phase == "optimizer"] == ["_foreach_add_", "_fused_adamw_"]
    assert answers[autocast]["devices"] == ["cuda"]


def test_autocast_casts_a_weight_once_and_keeps_the_copy_for_the_backward_pass(answers):
    casts = answers["true"]["casts"]
    assert [shape for shape, _ in casts].count([64, 64]) == 1
    assert next(last for shape, last in casts if shape == [64, 64]) > answers["true"]["forward"]
    assert not answers["false"]["casts"]


def test_what_is_there_before_the_step_is_counted_by_hand(answers):
    """Weights and two states in fp32, a count of steps of 4 bytes for each of two weights, and the input."""
    weights = 64 * 64 + 64
    for each in answers.values():
        assert each["held"] == 4 * (3 * weights + 2 + 8 * 16 * 64)
        assert each["peak"] > each["held"] + 4 * weights


@pytest.mark.slow
@pytest.mark.parametrize("row", [3, 6, 7])
def test_the_peak_of_a_recorded_step_is_that_of_an_h100(row):
    """Llama with checkpoints, BERT with dropout and Pythia under autocast, whose code is that of transformers 5.17."""
    found, measured = h100_steps.recorded(row, ""), h100_steps.MEASURED[row]
    assert found["bytes"] + found["workspaces"] == pytest.approx(measured["requested_bytes"], abs=2000)
    assert found["bytes"] == measured["recorded_bytes"]


def test_the_guard_is_loaded_before_torch():
    import torch  # noqa: F401

    with pytest.raises(InputError, match="before torch"):
        device.load_guard()


def test_without_a_compiler_one_line_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match=r"requires a C\+\+ compiler: install g\+\+, or set CXX"):
        device.compiled()


def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(InputError, match="false does not compile the guard of device cuda"):
        device.compiled()
