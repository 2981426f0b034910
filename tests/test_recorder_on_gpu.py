"""Steps recorded for a GPU on a machine without one: which operators a GPU runs, and what autocast keeps."""

import json
import subprocess
import sys
from itertools import pairwise

import h100_steps
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from learncost.cli.command import main
from learncost.importer.files.user_file import Target
from learncost.importer.recorder import device
from learncost.importer.recorder.device import RecordingProcess
from learncost.importer.recorder.workspace import results
from learncost.ir.errors import InputError
from learncost.program.program import StepRequest
from test_profile import ON_GPU

STEP = """
import json, os
from learncost.importer.recorder.device import load_guard
load_guard()
import torch
from torch import nn
from torch.nn import functional as F
from learncost.importer.recorder.cuda import on_gpu
from learncost.importer.recorder.module_step import in_a_run, record_step
from learncost.importer.recorder.recorder import Recorder
from learncost.program.optimizer_step import OptimizerStep
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
        stepping = OptimizerStep("adamw", "fused", cuda=True)
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
print(json.dumps(answers), flush=True)
os._exit(0)  # autograd has a thread for the device, which a regular end may meet half-way
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


LINEAR = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        print("runs forward")
        return self.weight(x).sum()


def inputs():
    return {"x": "float B 64"}
"""


@pytest.fixture(scope="module")
def folder(answers, tmp_path_factory):
    """The module's file and a cache that has nothing but the guard, which takes seconds to compile."""
    folder = tmp_path_factory.mktemp("linear")
    (folder / "learncost").mkdir()
    (folder / "learncost" / "recorder").symlink_to(device.compiled().parent)
    (folder / "linear.py").write_text(LINEAR)
    return folder


@pytest.fixture
def linear(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return f"{folder / 'linear.py'}:Net"


ASKED = ["--engine", "eager", "--on", "cuda", "--precision", "fp32", "--batch-size", "8", "--optimizer", "adamw"]


def test_memory_of_a_file_is_recorded_on_a_gpu_in_a_process_of_its_own(linear, capsys, monkeypatch):
    """A weight, its gradient and two states in fp32, the count of steps, the input, the loss and its gradient. What the
    module prints does not reach the answer, and the second question is answered from the cache."""
    assert main(["memory", linear, *ASKED]) == 0
    printed, once = capsys.readouterr().out, device.is_guarded()
    assert "by eager (itself, recorded)" in printed
    assert "in eager PyTorch on a GPU" in " ".join(printed.split())
    assert "runs forward" not in printed
    assert f"{4 * (4 * 64 * 64 + 1 + 8 * 64 + 1 + 1):,}" in printed
    assert not once

    def started(_):
        raise AssertionError("it is recorded again")

    monkeypatch.setattr(RecordingProcess, "_start", started)
    assert main(["memory", linear, *ASKED]) == 0
    assert capsys.readouterr().out == printed


def test_without_a_compiler_the_answer_of_a_cpu_stands_and_says_why(linear, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("CXX", "false")
    assert main(["memory", linear, *ASKED]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Not run on a GPU: false does not compile the guard of device cuda" in printed
    assert "in eager PyTorch on a CPU" in printed


ON_H100 = ["--on", "H100-SXM", "--precision", "fp32", "--batch-size", "8", "--optimizer", "adamw"]


def test_cost_of_a_file_has_the_time_of_its_recorded_step(linear, capsys):
    """Two products, forward and of the weight's gradient, as the input has none: 2 x 2 x 8 x 64 x 64 FLOPs. The CPU
    decides the time of so small a step, and the GPU waits for the rest of it."""
    assert main(["cost", linear, *ON_H100, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recorded_time"]
    assert found["device"] == "NVIDIA H100 SXM"
    assert found["by_kind"]["product"]["kernels"] == 2
    assert sum(each["kernels"] for each in found["by_kind"].values()) == found["kernels"]
    for parts in ("by_kind", "by_phase", "by_module"):
        assert sum(each["seconds"] for each in found[parts].values()) == pytest.approx(found["busy"])
    assert found["busy"] + found["waiting"] == pytest.approx(found["seconds"])
    assert found["low"] < found["issue"] <= found["seconds"] < found["high"]
    assert set(found["by_module"]) == {"weight", "outside modules"}
    computed = found["by_kind"]["product"]["seconds"]
    host = 881.9  # the mean of 40 servers of MLPerf Training v4.1 by device, of 700 W
    watts = 700 * (computed + 0.65 * (found["busy"] - computed) + 0.15 * found["waiting"])
    low, usual, high = found["joules"]
    assert usual == pytest.approx(watts + (host - 700) * found["seconds"], rel=1e-3)
    assert low < usual < high < 3 * low
    assert main(["cost", linear, *ON_H100]) == 0
    printed = capsys.readouterr().out
    assert "; recorded, " in printed.splitlines()[0]
    assert "waiting for the CPU" in printed


SMALL = {
    "gpt2": (["--n-layer", "1", "--n-embd", "64", "--n-head", "2"], 4 * 3 + 3),
    "llama-3.2-1b": (["--num-hidden-layers", "1", "--hidden-size", "64", "--intermediate-size", "96"], 7 * 3 + 3),
}


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("preset", SMALL)
def test_a_preset_is_recorded_as_transformers_writes_it(preset, capsys, tmp_path, monkeypatch):
    """Three products of every matrix, and the head's; the peak is that of the module by its table, with its labels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes, products = SMALL[preset]
    words = [preset, *sizes, "--vocab-size", "500", "--batch-size", "2", "--seq-len", "64", "--precision", "bf16-true"]
    words += ["--optimizer", "adamw", "--json"]
    assert main(["cost", *words, "--module", "itself", "--on", "H100-SXM"]) == 0
    found = json.loads(capsys.readouterr().out)["recorded_time"]
    assert found["by_kind"]["product"]["kernels"] == products
    peaks = []
    for module in ("itself", "transformers-uncached"):
        assert main(["memory", *words, "--engine", "eager", "--module", module]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak"])
    labels = 2 * 64 * 8
    assert peaks[0] - labels == pytest.approx(peaks[1], abs=600)
    assert main(["memory", *words, "--module", "itself", "--lora", "all-linear"]) == 2
    assert "trains all weights of a preset, without adapters" in capsys.readouterr().err


def test_a_run_and_a_trace_take_the_recorded_step_too(linear, capsys, tmp_path):
    """Time and its interval are those of `cost`; the memory in the trace rises to the peak of `memory`."""
    assert main(["cost", linear, *ON_H100, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recorded_time"]
    assert main(["run-cost", linear, *ON_H100, "--tokens", "8e6", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert [figures["step"][name] for name in ("value", "low", "high")] == [
        found[n] for n in ("seconds", "low", "high")
    ]
    assert figures["step_energy"]["value"] == pytest.approx(found["joules"][1])
    assert figures["time"]["value"] * 86_400 == pytest.approx(1e6 * found["seconds"])
    assert main(["trace", linear, *ON_H100, "-o", str(tmp_path / "trace.json")]) == 0
    assert "NVIDIA H100 SXM" in capsys.readouterr().out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(1e6 * found["seconds"], abs=2e-3)
    kernels = [event for event in slices if event["pid"] == 2 and event["args"]["kind"] == "product"]
    assert len(kernels) == 2
    assert all(after["ts"] >= before["ts"] + before["dur"] - 2e-3 for before, after in pairwise(kernels))
    profile = tmp_path / "profile.json"  # three products of 30, 20 and 25 microseconds, and an optimizer of 5
    profile.write_text(json.dumps({"traceEvents": ON_GPU}))
    assert main(["trace", linear, *ON_H100, "--compare", str(profile), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    kinds = {kind: (each["predicted"], each["measured"], each["measured_seconds"])
             for kind, each in written["comparison"]["by_kind"].items()}  # fmt: skip
    assert kinds["product"] == (2, 2, pytest.approx(45e-6))
    assert kinds["not predicted"] == (0, 1, pytest.approx(30e-6))
    predicted = written["comparison"]["by_op"]["aten::mm"]["predicted_seconds"]
    assert predicted == pytest.approx(found["by_kind"]["product"]["seconds"])
    assert {event["name"] for event in written["traceEvents"] if event["pid"] == 4} >= {"aten::mm", "aten::addmm"}
    assert main(["report", linear, *ON_H100, "--procedure", "bp", "-o", str(tmp_path / "report.html")]) == 0
    assert f'"recorded":{{"seconds":{found["seconds"]!r},' in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert main(["memory", linear, *ON_H100, "--json"]) == 0
    peak = json.loads(capsys.readouterr().out)["peak"]
    assert max(event["args"]["bytes"] for event in events if event["ph"] == "C") == peak


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--on", "NVIDIA H800", "--precision", "bf16-true"], "the kernels of a step are timed on"),
        (ON_H100, "false does not compile the guard of device cuda"),
    ],
)
def test_without_a_record_the_time_of_the_table_stands_and_says_why(linear, capsys, monkeypatch, tmp_path, more, why):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("CXX", "false")
    assert main(["cost", linear, *more]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"The time is that of the table's lines, since {why}" in printed
    assert "a step, from" in printed
    assert "; recorded" not in printed


def test_a_name_that_is_missing_is_one_line(answers, tmp_path):
    file = tmp_path / "ended.py"
    file.write_text(LINEAR)
    process = RecordingProcess(Target(file, "Missing"), ())
    with pytest.raises(InputError, match=r"has no .Missing."):
        process.record({"B": 8}, StepRequest("fp32", "cuda"))


def test_the_padded_gradient_of_a_mask_is_as_large_the_second_time():
    """Rows of 17 are aligned to 16 elements (`attention_backward.cu`); the cache of fake tensors kept 17."""
    aten, sizes = torch.ops.aten, list[int]()
    with FakeTensorMode():
        q, bias = (torch.empty(1, 4, 17, width, dtype=torch.bfloat16, device="cuda") for width in (16, 17))
        result, *saved = aten._scaled_dot_product_efficient_attention(q, q, q, bias, True)
        for _ in range(2):
            given = result, q, q, q, bias, result, *saved, 0.0, [True] * 4
            gradients = results(aten._scaled_dot_product_efficient_attention_backward.default, given, {})
            sizes.append(gradients[3].untyped_storage().nbytes())
    assert sizes == [4 * 17 * 32 * 2] * 2


def test_the_guard_is_loaded_before_torch():
    import torch  # noqa: F401

    with pytest.raises(InputError, match="only before that"):
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


def test_the_cache_holds_programs_alone():
    import base64
    import pickle
    import zlib

    from learncost.importer.recorder.device import packed, unpacked
    from learncost.program.program import Buffer, Operand, Program, ProgramOp

    operand = Operand(0, (2,), "float32", (1,), 0)
    op = ProgramOp("aten::relu", "", (operand,), (operand,), {"size": [2, 1.5, None, True, "x"]}, "forward", 0, "relu")
    program = Program((op,), (Buffer(8, "cuda", "weights", "w", -1, 0),), "cuda", {"torch": "2.13"})
    assert unpacked(packed(program)) == program
    for other in (print, [1], Buffer(8, "cuda", "weights", "w", -1, 0)):
        assert unpacked(base64.b85encode(zlib.compress(pickle.dumps(other))).decode()) is None
    assert unpacked("damaged") is None
