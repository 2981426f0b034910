"""A measured step, read from a profiler's trace or a memory snapshot, beside the predicted one: PyTorch's own profiler
on the CPU, and traces of a GPU made by hand in the form that Kineto writes.
"""

import gzip
import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import learncost as lc
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.program.program import peak
from learncost.timing.profiled import JSON_OF_SNAPSHOT, read_profile

MODULE = """
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x)))).square().mean()

def inputs():
    return {"x": "float B 64"}
"""
STEP = {"batch_size": 32, "precision": "fp32", "optimizer": "adamw"}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A folder with a module's file, a trace of two of its steps and one without a schedule; the module, and the first
    trace in memory."""
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "block.py").write_text(MODULE)
    names = {}
    exec(MODULE, names)
    module, x = names["Block"](), torch.randn(32, 64)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def step():
        module(x).backward()
        optimizer.step()
        optimizer.zero_grad()

    settings = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "profile_memory": True}
    with profile(**settings):
        kept = torch.randn(1000)  # the total of the profiler on the CPU begins with what another profile left
    with profile(schedule=schedule(wait=1, warmup=1, active=2), **settings) as several:
        for _ in range(4):
            step()
            several.step()
    several.export_chrome_trace(str(folder / "steps.json.gz"))
    with profile(**settings) as once:
        step()
    once.export_chrome_trace(str(folder / "once.json"))
    del kept
    return folder, module, several


@pytest.mark.parametrize("file", ["steps.json.gz", "once.json"])
def test_a_recorded_step_has_the_ops_and_the_bytes_of_the_profilers_step(profiled, file):
    """Every op as often, with inputs of the same shapes; the seed of the backward pass is filled in a run alone."""
    folder, module, several = profiled
    read = lc.from_module(module, {"x": "float B 64"})
    found = lc.trace(read, **STEP, compare=str(folder / file)).profile
    assert {name for name, each in found.by_op.items() if each.predicted != each.measured} == {"aten::fill_"}
    assert not sum(each.differ for each in found.by_op.values())
    (made, (predicted, measured)), *rest = found.memory.items()
    assert (made, predicted, rest) == ("peak of what the step makes", measured, [])
    if file == "steps.json.gz":  # of which the last step is read
        counted = next(each.count for each in several.key_averages() if each.key == "aten::addmm")
        assert found.by_op["aten::addmm"].measured == counted / 2
    other = lc.trace(read, **{**STEP, "batch_size": 16}, compare=str(folder / file)).profile
    assert other.by_op["aten::addmm"].differ == 2


def test_the_command_has_both_sides_on_the_screen_and_in_json(profiled, capsys):
    folder = profiled[0]
    flags = ["--batch-size", "32", "--precision", "fp32", "--optimizer", "adamw", "--compare"]
    words = ["trace", str(folder / "block.py:Block"), *flags, str(folder / "once.json")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Compared with ")
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("  addmm")).split()[1:3] == ["2", "2"]
    assert main([*words, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["comparison"]["by_op"]["aten::mm"]["measured"] == 3
    assert main([*words, "--on", "H100-SXM"]) == 2
    assert "has no kernels: profile with ProfilerActivity.CUDA" in capsys.readouterr().err


def event(name, cat, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(op, ts, number, kernel, dur, tid=1):
    """Return an op of the CPU whose call launches a kernel 50 microseconds later."""
    return [event(op, "cpu_op", ts, 8, tid, **{"Input Dims": [[8, 64]], "Input type": ["c10::BFloat16"]}),
            event("cudaLaunchKernel", "cuda_runtime", ts + 4, 2, tid, correlation=number),
            event(kernel, "kernel", ts + 54, dur, "stream 7", correlation=number)]  # fmt: skip


def allocation(ts, size, address, total):
    facts = {"Total Allocated": total, "Bytes": size, "Addr": address, "Device Type": 1, "Device Id": 0}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": 1, "ts": ts, "args": facts}


NODE = "autograd::engine::evaluate_function: AddmmBackward0"
ON_GPU = [
    event("ProfilerStep#1", "user_annotation", 0, 10), *launch("aten::mm", 2, 90, "of another step", 1),
    event("ProfilerStep#2", "user_annotation", 100, 200),
    event("aten::linear", "cpu_op", 101, 20), *launch("aten::addmm", 105, 1, "nvjet_tst_128x256", 30),
    event("Optimizer.step#AdamW.step", "user_annotation", 240, 30),
    *launch("aten::_fused_adamw_", 245, 2, "multi_tensor_apply_kernel", 5),
    event(NODE, "cpu_op", 130, 60, 2),  # of autograd's thread
    *launch("aten::mm", 135, 3, "nvjet_tst_64x64", 20, 2), *launch("aten::mm", 150, 4, "splitK", 25, 2),
    allocation(106, 1000, 16, 11_000), allocation(131, 500, 32, 11_500), allocation(160, -1000, 16, 10_500),
    allocation(250, -2000, 48, 8_500),
]  # fmt: skip


def test_kernels_of_a_gpu_are_those_of_the_ops_that_launched_them(tmp_path):
    """By correlation, in the last step; 10,000 bytes were there before, of which 2,000 are freed."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": ON_GPU}))
    found = read_profile(path, {"aten::addmm"})
    ran = [each for each in found.ran if each.issued.kernels]
    assert [(each.issued.op.name, each.issued.op.phase, *(kernel.name for kernel in each.issued.kernels))
            for each in ran] == [
        ("aten::addmm", "forward", "nvjet_tst_128x256"),
        ("aten::mm", "backward", "nvjet_tst_64x64"),
        ("aten::mm", "backward", "splitK"),
        ("aten::_fused_adamw_", "optimizer", "multi_tensor_apply_kernel"),
    ]  # fmt: skip
    assert [round(1e6 * kernel.seconds) for each in ran for kernel in each.issued.kernels] == [30, 20, 25, 5]
    assert ran[1].issued.op.node == "AddmmBackward0"
    assert (ran[0].issued.op.inputs[0].shape, ran[0].issued.op.inputs[0].dtype) == ((8, 64), "bfloat16")
    assert (found.program.device, found.whole, peak(found.program).bytes) == ("cuda", True, 11_500)
    assert "ProfilerStep#2, the last of 2" in found.what


def test_a_snapshot_and_a_memory_timeline_have_the_peak_that_can_be_summed_by_hand(tmp_path):
    """100 and 40 bytes are there before, the latter freed first; then 30 and 50, and 20 after the 50."""

    def entry(action, address, size):
        return {"action": action, "addr": address, "size": size, "stream": 0, "frames": [{"name": f"f{address}"}]}

    trace = [entry("free_requested", 2, 40), entry("free_completed", 2, 40), entry("alloc", 3, 30),
             entry("alloc", 2, 50), entry("free_completed", 2, 50), entry("alloc", 4, 20)]  # fmt: skip
    blocks = [{"address": 1, "size": 512, "requested_size": 100, "state": "active_allocated"},
              {"address": 3, "size": 512, "requested_size": 30, "state": "active_allocated"},
              {"address": 9, "size": 512, "requested_size": 0, "state": "inactive"}]  # fmt: skip
    snapshot = {"segments": [{"device": 1, "blocks": blocks}], "device_traces": [[], trace]}
    path = tmp_path / "snapshot.json.gz"
    path.write_bytes(gzip.compress(json.dumps(snapshot).encode()))
    most = peak(read_profile(path).program)
    assert (most.bytes, most.op.label) == (100 + 30 + 50, "f2")
    path.write_text(json.dumps([[1, 2, 3], [[0, 5, 7], [0, 9, 70], [0, 1, 2]]]))
    assert peak(read_profile(path).program).bytes == 79


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x80\x04}q\x00.", f"is a pickle, which is not read, as that runs its code: write {JSON_OF_SNAPSHOT}"),
        (b"{", "is not JSON"),
        (b"[]", "is neither a trace"),
        (b'{"traceEvents": []}', "has no ops"),
        (b'{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm"}]}', "is no trace of PyTorch's profiler"),
        (b'{"segments": [], "device_traces": [[]]}', "has no history"),
        (b"\x1f\x8bdamaged", "cannot read"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 20, "cannot read"),  # an error of zlib
        (b"[" * 200_000, "is not JSON"),
        (b"[[], []]", "is empty"),
        (None, "no such file"),
    ],
)
def test_what_is_no_profile_is_one_line(content, why, tmp_path):
    path = tmp_path / "profile"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"^[^\n]+$") as raised:
        read_profile(path)
    assert why in str(raised.value)
