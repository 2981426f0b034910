"""The program of a step as recorded from a module: its operators are the profiler's, its FLOPs those of PyTorch's
counter, and its peak a sum that can be done by hand.
"""

import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from learncost.devices.device import device
from learncost.devices.gpus import gpu
from learncost.importer.recorder import ModuleStep
from learncost.program.interpolated import Interpolated
from learncost.program.optimizer_step import OptimizerStep
from learncost.program.program import (
    Buffer,
    Operand,
    Program,
    ProgramBuilder,
    ProgramOp,
    StepRequest,
    levels,
    library_workspace,
    peak,
)
from learncost.timing.clocks import program_time


def op(phase, scratch=0, library=0):
    return ProgramOp("aten::mm", "", (), (), {}, phase, 0, phase, scratch=scratch, library=library)


def test_the_peak_of_a_program_is_what_is_live_and_scratch():
    """Ten bytes throughout, 30 from the first to the second op, 50 from the second to the third, whose scratch is 4."""
    ops = (op("forward", library=100), op("backward"), op("backward", scratch=4), op("optimizer"))
    buffers = (
        Buffer(10, "cpu", "weights", "w", -1, 4),
        Buffer(30, "cpu", "activations", "x", 0, 1),
        Buffer(50, "cpu", "workspace", "dx", 1, 2),
        Buffer(1000, "cpu", "gradients", "freed before the step", -1, -1),
    )
    program = Program(ops, buffers)
    most = peak(program)
    assert (most.bytes, most.op, [each.label for each in most.live]) == (90, ops[1], ["w", "x", "dx"])
    assert most.by_role == {"weights": 10, "activations": 30, "workspace": 50}
    assert library_workspace(program) == 40 + 100 - 90
    late = Program((*ops[:2], op("backward", scratch=31), ops[3]), buffers)
    assert (peak(late).bytes, peak(late).by_role["workspace"]) == (91, 50 + 31)


def test_a_buffer_is_in_use_until_the_last_op_that_reads_or_writes_it_or_a_variable_holds_it():
    """Ops that make 1, 10 and 100 bytes, then one that reads the first; a variable holds the second for one more."""
    builder = ProgramBuilder()
    made = []
    for size in (1, 10, 100):
        made.append(builder.make(size))
        builder.run("make", (), (Operand(made[-1], (size,), "uint8", (1,), 0),))
        builder.hold(*made[1:2])
    builder.run("read", (Operand(made[0], (1,), "uint8", (1,), 0),))
    assert levels(builder.program()) == [1, 11, 111, 1]


def test_what_iterations_leave_counts_for_those_that_do_not_run():
    """Every iteration makes 3 bytes that nothing reads after it, and 7 that are read when all have run."""
    builder, count, left = ProgramBuilder(), 24, []
    for _ in builder.iterations(count):
        several = [builder.make(3), builder.make(7)]
        builder.run("make", (), [Operand(buffer, (1,), "uint8", (1,), 0) for buffer in several])
        left.append(several[1])
    assert len(left) < count
    builder.run("read", [Operand(buffer, (1,), "uint8", (1,), 0) for buffer in left])
    assert levels(builder.program())[-2:] == [7 * count + 3, 7 * count]


class Products(nn.Module):
    """A linear layer, convolutions both ways, attention, a batched product, and a linear layer that is recomputed."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(32, 32), nn.Linear(32, 32)
        self.down, self.up = nn.Conv1d(8, 12, 3), nn.ConvTranspose1d(12, 8, 3)

    def forward(self, x):
        x = self.first(x).relu()
        x = self.up(self.down(x))
        heads = x.view(4, 8, 4, 8).transpose(1, 2)
        x = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(4, 8, 32)
        x = checkpoint(self.again, x @ x.transpose(1, 2) @ x, use_reentrant=False)
        return (x * x).mean()


def recorded(module, x, **settings):
    return ModuleStep(lambda: module, lambda _: {"x": x})({}, StepRequest("fp32", **settings))


def flops(program):
    return program_time(program, gpu(device("H100-SXM"))).flops


def test_flops_are_those_of_pytorch_s_counter():
    module, x = Products(), torch.randn(4, 8, 32)
    with FlopCounterMode(display=False) as counter:
        module(x).backward()
    theirs = sum(each for name, each in counter.get_flop_counts()["Global"].items() if "attention" not in str(name))
    assert theirs == counter.get_total_flops()  # neither knows attention on a CPU
    assert flops(recorded(module, x)) == theirs


def test_flops_of_a_convolution_in_groups_are_those_of_each_group():
    """By hand, forward and twice backward: PyTorch's counter takes all channels for the gradient of a weight."""
    module = nn.Sequential(nn.Linear(32, 32), nn.Conv1d(8, 12, 3, groups=2))
    linear, convolution = 2 * 4 * 8 * 32 * 32, 2 * 4 * 12 * 30 * (8 // 2) * 3
    program = ModuleStep(lambda: module, lambda _: {"input": torch.randn(4, 8, 32)})({}, StepRequest("fp32"))
    assert flops(program) == 2 * linear + 3 * convolution


VIEWS = (
    "view|t|transpose|detach|as_strided|expand|unsqueeze|_unsafe_view|_reshape_alias|reshape|alias|empty\\w*|resize_"
)


def test_operators_are_those_of_the_profiler():
    """By name and number, without views: the profiler shows in addition the sum within a mean, the product at which a
    checkpoint stops before it is computed again, the sums within that of eight counts of steps, copies and fills.
    """
    module, x = Products(), torch.randn(4, 8, 32)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        module(x).backward()
        optimizer.step()

    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    program = recorded(module, x, optimizer=OptimizerStep("adamw", "fused"))
    ours = Counter(each.name for each in program.ops if not re.fullmatch(f"aten::({VIEWS})", each.name))
    theirs = Counter(event.name for event in profiled.events())
    more = {"aten::sum": 1, "aten::addmm": 1, "aten::add_": 8}
    inside = {"aten::fill_", "aten::copy_", "aten::clone", "aten::ones_like"}
    assert {name: number + more.get(name, 0) for name, number in ours.items() if name not in inside} == {
        name: theirs[name] for name in ours if name not in inside
    }


def test_every_operand_is_live_when_its_op_runs_and_phases_follow_one_another():
    module, x = Products(), torch.randn(4, 8, 32)
    program = recorded(module, x, optimizer=OptimizerStep("adamw", "for-loop", clip=True), microbatches=2)
    for place, each in enumerate(program.ops):
        for operand in (*each.inputs, *each.outputs):
            buffer = program.buffers[operand.buffer]
            assert buffer.first - 1 <= place <= buffer.last, each  # an accumulated sum is in its operand's memory
    phases = [each.phase for each in program.ops]
    assert [phase for place, phase in enumerate(phases) if not place or phases[place - 1] != phase] == [
        *("forward", "backward", "recompute", "backward") * 2, "clip", "optimizer",
    ]  # fmt: skip
    assert [
        max(each.microbatch for each in program.ops if each.phase == phase) for phase in ("forward", "optimizer")
    ] == [1, 1]
    recomputed = [each for each in program.ops if each.phase == "recompute"]
    assert {each.path for each in recomputed if each.name != "aten::empty"} == {"again"}  # which is the random state
    down = [each.name for each in program.ops if each.path == "down" and each.phase == "backward"]
    assert "aten::convolution_backward" in down
    weights = sum(each.bytes for each in program.buffers if each.role == "weights")
    assert weights == 4 * sum(each.numel() for each in module.parameters())
    state = sum(each.bytes for each in program.buffers if each.role == "optimizer state" and each.last >= 0)
    assert state == 2 * weights + 4 * len([*module.parameters()])


class Attention(nn.Module):
    """Scores of every pair of tokens, which have the length twice, and dropout."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return F.dropout((q @ k.transpose(1, 2)).softmax(-1), 0.1) @ v


def test_sizes_between_recorded_ones_are_interpolated_to_the_byte():
    """Three batches determine and check a line; lengths, whose square is among the bytes, need more."""
    module, request = Attention(), StepRequest("bf16")
    record = ModuleStep(lambda: module, lambda sizes: {"x": torch.empty(sizes["B"], sizes["M"], 16)})
    asked = list[tuple[int, int]]()
    steps = Interpolated(lambda sizes, request: (asked.append((sizes["B"], sizes["M"])), record(sizes, request))[1])
    one = [(1, 64), (2, 64), (900, 64), (901, 64)]
    both = [(3, 32), (5, 32), (6, 80), (4, 24), (7, 1100), (11, 52), (12, 44)]
    for batch, length in (*one, (777, 64), *both, (100, 200), (33, 1024)):
        program = steps({"B": batch, "M": length}, request)
        if (batch, length) not in asked:
            assert program == record({"B": batch, "M": length}, request)
    assert asked == one + both
    assert peak(program).bytes > 2 * 33 * 1024**2


def test_a_module_that_does_something_else_at_other_sizes_is_recorded_there():
    class Halved(nn.Linear):
        def forward(self, x):
            return torch.cat([each @ self.weight for each in x.split(max(50, len(x) // 2))])

    class Padded(nn.Linear):
        def forward(self, x):
            return F.pad(x, (0, 0, 0, -len(x) % 64)) @ self.weight

    batches = {Halved: (2, 8, 48, 1024, 200, 40, 520, 521, 45), Padded: (64, 128, 256, 200, 192)}
    for module, request in ((each(16, 16), StepRequest("fp32")) for each in batches):
        record = ModuleStep(lambda module=module: module, lambda sizes: {"x": torch.empty(sizes["B"], 16)})
        steps = Interpolated(record)
        for batch in batches[type(module)]:
            assert peak(steps({"B": batch}, request)).bytes == peak(record({"B": batch}, request)).bytes


@pytest.mark.parametrize("how", ["fused", "foreach", "for-loop"])
def test_gradients_are_clipped_before_the_step(how):
    module, x = nn.Linear(64, 32), torch.randn(8, 64)
    program = ModuleStep(lambda: module, lambda _: {"input": x})(
        {}, StepRequest("fp32", optimizer=OptimizerStep("adamw", how, clip=True))
    )
    clipping = [each.name for each in program.ops if each.phase == "clip"]
    assert clipping.count("aten::linalg_vector_norm") == 3  # of each gradient, and of these norms
    assert clipping.count("aten::mul_") == 2
