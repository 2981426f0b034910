"""Steps of a module under FSDP2, recorded without values, devices and messages: the allocator's bytes on one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.gpus import gpu
from learncost.program.program import Buffer, Operand, Program, ProgramOp
from learncost.timing.clocks import program_time

FOLDER = Path(__file__).parent
H100 = gpu(lc.device("H100-SXM"))

MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 160), nn.Linear(160, 64)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(64, 64), nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def inputs():
    return {"x": "float B 64"}
"""

REAL = """
import json, os, sys
sys.path[:0] = [FOLDER]
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from allocator import apart

torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
devices = init_device_mesh("cpu", (4,))
for placement, precision in (("fsdp", "fp32"), ("zero-2", "fp32"), ("fsdp", "bf16-masters")):
    policy = MixedPrecisionPolicy(*((torch.bfloat16, torch.float32) if precision != "fp32" else ()))
    module = Net()
    for block in module.blocks:
        fully_shard(block, mesh=devices, mp_policy=policy, reshard_after_forward=placement != "zero-2")
    fully_shard(module, mesh=devices, mp_policy=policy)
    x, steps = torch.randn(256, 64), torch.optim.AdamW(module.parameters(), fused=True)

    def step():
        module(x.bfloat16() if precision != "fp32" else x).backward()
        steps.step()
        steps.zero_grad(set_to_none=True)

    step()
    print(json.dumps(apart(step)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_the_peak_of_one_device_is_that_of_the_allocator(tmp_path, capsys):
    """Weights that are gathered for a block and freed, or kept until the backward pass; messages of gradients."""
    file = tmp_path / "net.py"
    file.write_text(MODULE)
    found = []
    for placement, precision in (("fsdp", "fp32"), ("zero-2", "fp32"), ("fsdp", "bf16-masters")):
        flags = f"--engine eager --mesh dp=4 --batch-size 1024 --precision {precision} --json".split()
        assert main(["memory", f"{file}:Net", *flags, "--placement", placement]) == 0
        answer = json.loads(capsys.readouterr().out)
        found.append(answer["peak"])
    text = MODULE + REAL.replace("FOLDER", repr(str(FOLDER)))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env={**os.environ})
    assert not done.returncode, done.stderr
    held = 4 * 3 * ((64 * 64 + 64) + 3 * (64 * 160 + 160 + 160 * 64 + 64)) // 4  # shards of weights and states
    for peak, allocated in zip(found, map(int, done.stdout.split()), strict=True):
        assert peak == pytest.approx(held + allocated + 256 * 64 * 4, rel=0.003)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--no-sync --accumulate 2", "with --no-sync never"),
        ("--module plain", "shards an imported module that is named as FILE.py:NAME"),
    ],
)
def test_what_is_not_recorded_over_devices_is_refused_in_one_line(tmp_path, capsys, flags, why):
    file = tmp_path / "net.py"
    file.write_text(MODULE)
    words = ["--engine", "eager", "--mesh", "dp=4", "--placement", "fsdp", "--batch-size", "16"]
    assert main(["memory", f"{file}:Net", *words, *flags.split()]) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert why in printed
    assert "give --engine graph" in printed or "use --engine graph" in printed


def test_every_stream_has_a_clock_and_waits_for_the_events_of_others():
    """A message of 10 ms on stream 1 begins after the first kernel, and the third waits for it: of the second, which
    moves 3 x 2^29 bytes at 0.866 of 3,350 GB/s, all is hidden: it is the time that the message is not exposed."""
    large = [Operand(place, (2**28,), "bfloat16", (1,), 0) for place in range(3)]
    x = Operand(3, (8,), "float32", (1,), 0)

    def op(name, stream, operands=(), **arguments):
        inputs, outputs = tuple(operands[:-1]), tuple(operands[-1:])
        return ProgramOp(name, "", inputs, outputs, arguments, "forward", 0, name, stream=stream)

    add = op("aten::add", 0, large)
    ops = [
        add,
        op("stream::record", 0, event=1),
        op("stream::wait", 1, event=1),
        op("c10d::_allgather_base_", 1, (x, x)),
        op("stream::record", 1, event=2),
        add,
        op("stream::wait", 0, event=2),
        add,
    ]
    program = Program(tuple(ops), tuple(Buffer(1, "cuda", "", "", 0, len(ops)) for _ in range(4)), "cuda")
    alone, took = (program_time(program, H100, lambda *_, each=each: each) for each in (0.0, 10e-3))
    kernel = alone.issued[0].kernels[0].seconds
    assert kernel == pytest.approx(2e-6 + 3 * 2**29 / (0.866 * 3350e9))
    assert took.busy == pytest.approx(3 * kernel)
    assert took.exposed == pytest.approx(10e-3 - kernel, rel=1e-2)
    assert took.seconds - alone.seconds == pytest.approx(took.exposed)


@pytest.mark.slow
def test_the_time_over_devices_has_collectives_and_what_of_them_is_exposed(tmp_path, capsys):
    file = tmp_path / "net.py"
    file.write_text(MODULE)
    words = ["cost", f"{file}:Net", "--engine", "eager", "--mesh", "dp=4", "--on", "DGX H100", "--batch-size", "64"]
    assert main([*words, "--placement", "fsdp", "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["recorded_time"]
    assert time["by_kind"]["collective"]["kernels"] == 4 + 3 + 4  # blocks again backward, and all gradients
    assert 0 <= time.get("exposed", 0) <= time["by_kind"]["collective"]["seconds"]
    assert main([*words, "--placement", "ddp"]) == 0
    assert "it is recorded under FSDP2" in " ".join(capsys.readouterr().out.split())
