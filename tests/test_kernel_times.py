"""The kernels of a recorded program on a GPU, and the two clocks: tiles, waves and bytes counted by hand."""

import json
import subprocess
import sys
from dataclasses import replace

import h100_steps
import pytest
import steps_ahead

import learncost as lc
from learncost.devices.gpus import gpu
from learncost.importer.recorder import device
from learncost.ir.errors import InputError
from learncost.program.program import Buffer, Operand, Program, ProgramOp, with_microbatches
from learncost.reports.request import Request
from learncost.reports.sheet import seconds_of
from learncost.timing.clocks import entered, program_time
from learncost.timing.kernels import RAMP, SHORTEST, WAVE, KernelModel, matmul_seconds
from learncost.viz.document import document

H100, A100 = gpu(lc.device("H100-SXM")), gpu(lc.device("A100-SXM-80GB"))


def operand(buffer, *shape, dtype="bfloat16", strides=None):
    dense, step = [], 1
    for size in reversed(shape):
        dense.insert(0, step)
        step *= size
    return Operand(buffer, shape, dtype, tuple(strides or dense), 0)


def op(name, inputs, outputs, phase="forward", path="", synchronizes=False, **arguments):
    return ProgramOp(
        f"aten::{name}", "", tuple(inputs), tuple(outputs), arguments, phase, 0, name, path, synchronizes=synchronizes
    )


def program(*ops):
    count = 1 + max(each.buffer for one in ops for each in (*one.inputs, *one.outputs))
    return Program(ops, tuple(Buffer(1, "cuda", "", "", 0, len(ops)) for _ in range(count)), "cuda")


def kernels(one, on=H100):
    return KernelModel(on, program(one)).kernels(one)


def test_a_product_is_counted_in_whole_waves_of_tiles():
    """8192 x 8192 in tiles of 128 x 256 is 64 x 32 = 2,048 tiles: on 132 multiprocessors 16 waves of which the last is
    not full; each multiplies 2 x 128 x 256 x 8192 FLOPs at a 132nd of the measured 794.5 TFLOP/s."""
    wave = 2 * 128 * 256 * 8192 / (794.5e12 / 132) + WAVE
    assert matmul_seconds(H100, 8192, 8192, 8192, 1, "bfloat16") == pytest.approx(RAMP + 16 * wave)


def test_one_tile_more_than_a_wave_takes_two():
    """12 x 11 tiles of 128 x 256 are a wave on 132 multiprocessors; a row more makes 13 x 11 = 143 of them."""
    columns, summed = 11 * 256, 8192
    full, more = (matmul_seconds(H100, rows, columns, summed, 1, "bfloat16") for rows in (12 * 128, 12 * 128 + 1))
    assert full == pytest.approx(RAMP + 2 * 128 * 256 * summed / (794.5e12 / 132) + WAVE)
    assert more > 1.2 * full


def test_a_product_of_one_row_takes_as_long_as_its_weights_are_read():
    """A decoder's product of one token: 4,096 x 16,384 weights of 2 bytes, at 0.866 of 3,350 GB/s."""
    read = 2 * (4096 * 16384 + 4096 + 16384) / (0.866 * 3350e9)
    assert matmul_seconds(H100, 1, 16384, 4096, 1, "bfloat16") >= SHORTEST + read
    assert matmul_seconds(H100, 1, 16384, 4096, 1, "bfloat16") < 1.7 * read


def test_a_type_without_a_rate_is_refused():
    with pytest.raises(InputError, match="no rate of products in fp64"):
        matmul_seconds(H100, 8, 8, 8, 1, "float64")


def test_fp32_does_not_use_tf32_and_convolutions_do():
    fp32, bf16 = (matmul_seconds(H100, 4096, 4096, 4096, 1, dtype) for dtype in ("float32", "bfloat16"))
    assert fp32 == pytest.approx(2 * 4096**3 / 50e12, rel=0.1)
    assert fp32 > 10 * bf16
    x, weight = operand(0, 8, 64, 56, 56, dtype="float32"), operand(1, 256, 64, 3, 3, dtype="float32")
    result = operand(2, 8, 256, 56, 56, dtype="float32")
    (kernel,) = kernels(op("convolution", [x, weight], [result], transposed=False, groups=1))
    assert kernel.flops == 2 * 8 * 256 * 56 * 56 * 64 * 9
    assert kernel.seconds < kernel.flops / 50e12


def test_a_large_pointwise_kernel_is_bound_by_its_bytes():
    """Two operands and a result of 2^28 elements of 2 bytes, which no cache has."""
    each = [operand(place, 2**28) for place in range(3)]
    (kernel,) = kernels(op("add", each[:2], each[2:]))
    assert kernel.kind == "pointwise"
    assert kernel.seconds == pytest.approx(SHORTEST + 3 * 2**29 / (0.866 * 3350e9))


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (operand(1, 2**12, 2**16, dtype="float32"), "cast"),
        (operand(1, 1, 2**16), "broadcast or strided"),
        (operand(1, 2**12, 2**16, strides=(1, 2**12)), "broadcast or strided"),
        (operand(1, 2**12, 2**16), "pointwise"),
    ],
)
def test_kinds_of_elementwise_kernels(second, kind):
    (kernel,) = kernels(op("mul", [operand(0, 2**12, 2**16), second], [operand(2, 2**12, 2**16)]))
    assert kernel.kind == kind


def test_what_the_kernel_before_wrote_is_read_from_the_cache():
    """8 MB fit the cache and are read at 5.5 TB/s, 800 MB do not: the reader of a fresh operand is faster by that."""
    for elements, cached in ((2**22, True), (2**28, False)):
        made = op("exp", [operand(0, elements)], [operand(1, elements)])
        read = op("exp", [operand(1, elements)], [operand(2, elements)])
        model = KernelModel(H100, program(made, read))
        first, second = (model.kernels(each)[0].seconds for each in (made, read))
        assert (second < first) is cached


def test_views_allocations_and_tensors_of_the_cpu_have_no_kernel():
    x = operand(0, 4, 4)
    for name in ("view", "transpose", "detach"):
        assert not kernels(op(name, [x], [x._replace(shape=(16,), strides=(1,))]))
    assert not kernels(op("empty_like", [x], [operand(1, 4, 4)]))
    assert kernels(op("add_", [x, operand(1, 4, 4)], [x]))
    add = op("add", [x], [operand(1, 4, 4)])
    on_cpu = replace(program(add), buffers=tuple(replace(each, device="cpu") for each in program(add).buffers))
    assert not KernelModel(H100, on_cpu).kernels(add)


def attention(name, length, head, causal, dtype="bfloat16", gradient=False):
    x = operand(0, 4, 16, length, head, dtype=dtype)
    rows = [x, *(x._replace(buffer=place) for place in (1, 2, 3))]
    return op(name, rows if gradient else rows[:3], [x._replace(buffer=5)], is_causal=causal)


@pytest.mark.parametrize(
    ("on", "kernel", "backward", "published"),
    [(H100, "cudnn", False, 617e12), (H100, "cudnn", True, 465e12), (A100, "flash", False, 203e12)],
)
def test_attention_attains_the_published_rate(on, kernel, backward, published):
    """Heads of 128 at 2,048 positions: FlashAttention-3, figures 5 and 6, and FlashAttention-2. Backward has 2.5 times
    the FLOPs."""
    name = f"_scaled_dot_product_{kernel}_attention{'_backward' if backward else ''}"
    found = kernels(attention(name, 2048, 128, False, gradient=backward), on)[0]
    assert found.flops == 4 * 4 * 16 * 2048**2 * 128 * (2.5 if backward else 1)
    assert found.seconds == pytest.approx(RAMP + found.flops / published)


def test_causal_attention_computes_half_of_the_scores_at_a_lower_rate():
    whole, half = (kernels(attention("_scaled_dot_product_cudnn_attention", 4096, 128, causal))[0]
                   for causal in (False, True))  # fmt: skip
    assert half.flops == whole.flops / 2
    assert 0.5 < half.seconds / whole.seconds < 0.65


def test_a_fused_optimizer_moves_seven_numbers_per_weight():
    """It reads weights, gradients and two states, and writes all but gradients: 100 tensors of 2^20 in 4 kernels of at
    most 36 tensors and 21 million elements, which are 5."""
    lists = [operand(place, 2**20, dtype="float32") for place in range(400)]
    (kernel,) = kernels(op("_fused_adamw_", lists, [], "optimizer"))
    assert kernel.seconds == pytest.approx(5 * SHORTEST + 7 * 4 * 100 * 2**20 / (0.866 * 3350e9))


def test_an_operator_of_lists_reads_as_many_as_it_has():
    large = [operand(place, 2**24, dtype="float32") for place in range(3)]
    scaled = op("_foreach_mul_", large[:1], [], "optimizer")._replace(overload="Scalar")
    added = op("_foreach_addcmul_", large, [], "optimizer")._replace(overload="Scalar")
    seconds = [kernels(each)[0].seconds - SHORTEST for each in (scaled, added)]
    assert seconds[1] == pytest.approx(2 * seconds[0])  # 3 reads and a write, and 1 read and a write


def test_a_step_of_small_kernels_is_bound_by_the_cpu():
    x = operand(0, 8)
    ops = [op("exp", [x], [operand(place + 1, 8)]) for place in range(1000)]
    took = program_time(program(*ops), H100)
    assert took.seconds == pytest.approx(1000 * H100.host.operator, rel=0.01)
    assert took.busy == pytest.approx(1000 * (SHORTEST + 32 / H100.cache_bandwidth), rel=0.01)
    assert took.waiting == pytest.approx(took.seconds - took.busy)
    assert took.low == pytest.approx(took.seconds / 1.35, rel=0.01)
    assert took.high == pytest.approx(1.35 * took.seconds, rel=0.01)


def test_a_step_of_large_kernels_is_bound_by_the_gpu():
    each = [operand(place, 2**28) for place in range(3)]
    ops = [op("add", each[:2], each[2:]) for _ in range(100)]
    took = program_time(program(*ops), H100)
    assert took.seconds == pytest.approx(took.busy, rel=0.01)
    assert took.issue < 0.1 * took.busy


def test_the_cpu_waits_where_it_needs_a_value():
    """After 100 large kernels the CPU waits for them, and then issues 100 small ones, for which the GPU waits."""
    large, small = [operand(place, 2**28) for place in range(3)], operand(3, 1)
    ops = [op("add", large[:2], large[2:]) for _ in range(100)]
    rest = [op("exp", [small], [operand(4, 1)]) for _ in range(100)]
    waits = op("_local_scalar_dense", [small], [], synchronizes=True)
    free, bound = program_time(program(*ops, *rest), H100), program_time(program(*ops, waits, *rest), H100)
    assert free.seconds == pytest.approx(free.busy, rel=0.01)
    assert bound.seconds == pytest.approx(bound.busy + 100 * H100.host.operator, rel=0.05)


@pytest.mark.parametrize(
    ("before", "path", "calls"),
    [
        ("", "model.layers.0.attention.query", 4),  # model, layers.0, attention, query; a list is not called
        ("model.layers.0.attention.query", "model.layers.0.attention.key", 1),
        ("model.layers.0.attention", "model.layers.1.attention.query", 3),
        ("model.layers.0.attention.query", "model.layers.0.attention", 0),
        ("model.norm", "", 0),
    ],
)
def test_modules_that_are_called_between_operators(before, path, calls):
    assert entered(before, path) == calls


def test_devices_without_the_constants_of_kernels_are_refused():
    with pytest.raises(InputError, match="not on NVIDIA H800"):
        gpu(lc.device("NVIDIA H800"))


STEP = """
import json
from learncost.importer.recorder.device import load_guard
load_guard()
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from learncost.importer.recorder import ModuleStep
from learncost.devices.device import device
from learncost.devices.gpus import gpu
from learncost.program.program import StepRequest
from learncost.timing.clocks import program_time

module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 64), nn.GELU(), nn.Linear(64, 4))
step = ModuleStep(lambda: module, lambda sizes: {"input": torch.zeros(2, 3, 8, 8)})
program = step({}, StepRequest("fp32", "cuda"))
took = program_time(program, gpu(device("H100-SXM")))
with FlopCounterMode(display=False) as counter:
    module(torch.zeros(2, 3, 8, 8)).sum().backward()
print(json.dumps([took.flops, counter.get_total_flops(), sorted({op.path for op in program.ops})]))
"""


@pytest.fixture(scope="module")
def recorded():
    try:
        device.compiled()
    except InputError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_flops_of_kernels_are_those_of_pytorchs_counter(recorded):
    kernels, counted, paths = recorded
    assert kernels == counted
    assert paths == ["", "0", "1", "2", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("row", [3, 6, 7])
def test_the_time_of_a_recorded_step_is_that_of_an_h100(row):
    """Llama with checkpoints, BERT in fp32 and Pythia under autocast, as measured; no constant is fitted to them."""
    found, measured = h100_steps.recorded(row, ""), h100_steps.MEASURED[row]
    assert found["ms"] == pytest.approx(measured["ms"], rel=0.12)
    assert found["low"] < measured["ms"] < found["high"]


LOWERED = {
    0: ("qwen3-0.6b", {"batch_size": 4, "seq_len": 2048, "precision": "bf16-true"}),
    1: ("qwen3-0.6b", {"batch_size": 4, "seq_len": 1024, "precision": "amp"}),
    3: ("llama-3.2-1b", {"batch_size": 2, "seq_len": 4096, "precision": "bf16-true", "procedure": "recompute"}),
    7: ("pythia-410m", {"batch_size": 8, "seq_len": 1024, "precision": "amp"}),
}


@pytest.mark.parametrize("row", LOWERED)
def test_the_time_of_a_lowered_step_is_that_of_an_h100(row):
    """Without a recording; the steps of rows 0 and 1 wait for the CPU, whose constants are assumed."""
    model, asked = LOWERED[row]
    found = lc.cost(model, on="H100-SXM", engine="eager", module="transformers-uncached", **asked).recorded
    assert found.program == "lowered as transformers-uncached"
    assert found.seconds == pytest.approx(h100_steps.MEASURED[row]["ms"] / 1e3, rel=0.06)


@pytest.mark.parametrize("procedure", ["bp", "recompute"])
def test_the_time_of_a_lowered_step_is_one_whoever_asks(procedure):
    """And its trace has the peak of the memory that the same engine answers."""
    asked = {"on": "H100-SXM", "engine": "eager", "batch_size": 2, "seq_len": 128, "n_layer": 2}
    found = lc.cost("gpt2", procedure, **asked)
    assert found.recorded.program == "lowered as transformers"
    data = found.to_dict()  # without the time by the rates of lines, which is another
    assert data["recorded_time"]["seconds"] == found.time
    assert not {"time", "seconds"} & {*data, *data["rows"][0]}
    assert lc.compare("gpt2", procedure, **asked).costs["run"][procedure].time == found.time
    assert lc.run_cost("gpt2", tokens=1e6, procedure=procedure, **asked).figures["step"].value == found.time
    trace = lc.trace("gpt2", procedure, **asked)
    assert trace.title.endswith(f"; lowered as transformers, {seconds_of(found.time)} a step")
    (counter,) = (each for process in trace.timeline.processes for each in process.counters)
    assert max(value for _, value in counter.values) == lc.memory("gpt2", procedure, **asked).peak
    read = document(Request("gpt2", procedure, sizes={"n_layer": asked.pop("n_layer")}, **asked))
    assert read["totals"]["seconds"] == found.time


def test_microbatches_that_did_not_run_take_the_time_of_the_last_one():
    """Of 8 microbatches two run; each of the others adds what the second does."""
    busy = [
        lc.cost("gpt2", on="H100-SXM", engine="eager", batch_size=each, accumulate=each, seq_len=64, n_layer=1)
        .recorded.busy for each in (2, 3, 8)
    ]  # fmt: skip
    assert busy[2] - busy[0] == pytest.approx(6 * (busy[1] - busy[0]))
    ops = [op("exp", [operand(0, 8)], [operand(1, 8)])._replace(microbatch=each) for each in (0, 1, 1)]
    several = with_microbatches(program(*ops, op("add", [], [], "optimizer")._replace(microbatch=1)), 4)
    assert [each.microbatch for each in several.ops] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert [each.last for each in several.buffers] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("gpt2", {}),
        ("smollm2-135m", {"clip": 1.0}),
        ("bloom-560m", {"precision": "bf16-true", "clip": 1.0, "optimizer_implementation": "for-loop"}),
        ("gpt2", {"batch_size": 8, "accumulate": 4, "precision": "amp", "optimizer_implementation": "foreach"}),
    ],
)
def test_a_lowered_step_has_the_kernels_of_the_recorded_one(model, more):
    asked = {"on": "H100-SXM", "engine": "eager", "batch_size": 2, "seq_len": 512, "n_layer": 4, **more}
    try:
        recorded = lc.cost(model, module="itself", **asked).recorded
    except InputError as error:
        pytest.skip(str(error))
    lowered = lc.cost(model, module="transformers-uncached", **asked).recorded
    assert lowered.took.flops == recorded.took.flops
    assert lowered.busy == pytest.approx(recorded.busy, rel=0.02)
    assert lowered.seconds == pytest.approx(recorded.seconds, rel=0.02)
    assert lowered.kernels == pytest.approx(recorded.kernels, rel=0.03)


@pytest.mark.parametrize("case", [case.name for case in steps_ahead.CASES])
def test_every_step_is_predicted_for_both_cards_before_it_is_measured(case):
    """The slower card takes longer, and the groups of the profile have all kernels."""
    rows = json.loads(steps_ahead.PREDICTED.read_text(encoding="utf-8"))["rows"][case]
    assert rows["H100"]["busy"] < rows["A100"]["busy"]
    for each in rows.values():
        assert each["low"] < each["ms"] < each["high"]
        assert sum(steps_ahead.grouped(each["kinds"]).values()) == pytest.approx(each["busy"], abs=0.01)
