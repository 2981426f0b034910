"""The peak of a step as NumPy executes it: predicted without values, and seen by tracemalloc."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.special  # noqa: F401 - what a program imports while it runs would be counted

import learncost as lc
from learncost.backends.executed import executed
from learncost.engines.emitted import EmittedProgram
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.program.fake_arrays.numpy import FakeArray, NumPyRun
from learncost.program.program import ProgramBuilder, peak
from learncost.sharding.collective import bucketed

KIB, MIB = 2**10, 2**20
SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 500}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 344}


def step_of(model, procedure, optimizer, batch, length, plan="", **sizes):
    """A step that gives back what a training goes on with, and the sizes of its axes."""
    built = build(configure(model, sizes))
    table = without_gradients(planned(step(built, procedure, optimizer), plan))
    return table, run_sizes(built, batch, length, length if built.two_sided else None)


def seen(table, sizes, dtype, device=None):
    """The bytes that tracemalloc sees at the worst moment, of the arguments too. What values there are is the same.

    device  makes the device that the program of one of several runs on, of the program's class
    """

    def given():
        kind = {"fp32": np.float32, "fp64": np.float64}[dtype]
        shape = {name: shape_of(table.axes[name], sizes) for name in (*table.inputs, *table.weights)}
        return {
            name: np.zeros(shape_of_input, int if name in table.indices else kind)
            for name, shape_of_input in shape.items()
        }

    program = EmittedProgram(table, sizes)
    devices = (device(program.namespace["Device"]),) if device else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracemalloc.start()
        try:
            arrays = given()
            program(arrays, *devices)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    ("model", "sizes", "procedure", "optimizer", "batch", "length", "dtype", "plan"),
    [
        # every procedure, at a size and at twice its batch, where scores, the head or a helper's temporaries are most
        *(
            ("gpt2", {**SMALL, "num_hidden_layers": 1}, procedure, "sgd", batch, 128, "fp32", "")
            for procedure in ("bp", "recompute", "pepita", "mempepita")
            for batch in (6, 12)
        ),
        # where the optimizer is: its temporaries stand in each other's place as NumPy has them
        ("gpt2", {**SMALL, "vocab_size": 5000}, "bp", "adamw", 1, 32, "fp32", ""),
        ("gpt2", {**SMALL, "vocab_size": 5000}, "pepita", "momentum", 1, 32, "fp64", ""),
        # other layouts, halves of heads that are rotated, groups of queries, experts, a GELU without SciPy's help
        ("tinyllama-1.1b", LLAMA, "bp", "sgd", 6, 128, "fp32", ""),
        ("gemma-3-1b", {**LLAMA, "num_key_value_heads": 1, "head_dim": 32}, "bp", "sgd", 5, 128, "fp32", ""),
        ("bert-tiny", {**SMALL, "intermediate_size": 512}, "bp", "sgd", 8, 128, "fp32", ""),
        # many blocks: an object for every array that is kept
        ("gpt2", {**SMALL, "num_hidden_layers": 24}, "bp", "sgd", 4, 16, "fp32", ""),
        # plans are other programs
        ("gpt2", SMALL, "bp", "sgd", 8, 128, "fp32", "flash,chunked-loss,fused-update,recompute=gelu+norm"),
    ],
)
def test_the_predicted_peak_is_that_of_tracemalloc(model, sizes, procedure, optimizer, batch, length, dtype, plan):
    # What tracemalloc sees more are Python's own objects: at most 64 KiB, however large the arrays are.
    table, every = step_of(model, procedure, optimizer, batch, length, plan, **sizes)
    predicted = executed(table, every, dtype).peak
    assert predicted > 16 * MIB
    assert abs(seen(table, every, dtype) - predicted) < 64 * KIB


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    ("mesh", "placement", "model", "plan"),
    [
        *(("dp=2", placement, "gpt2", "") for placement in ("ddp", "zero-1", "zero-2", "fsdp")),
        ("dp=3", "fsdp", "gpt2", ""),  # parts are filled up
        ("tp=2", "megatron-sp", "tinyllama-1.1b", ""),
        ("cp=2", "cp", "tinyllama-1.1b", "flash,ring,zigzag"),
        ("cp=2", "ulysses", "gpt2", "chunked-loss"),
        ("dp=2,tp=2", "fsdp,megatron", "tinyllama-1.1b", ""),
        ("ep=2", "ep", "mixtral-8x7b", ""),
    ],
)
def test_the_predicted_peak_of_a_thread_is_that_of_tracemalloc(mesh, placement, model, plan):
    """One device of several, by itself: those that it meets have what it has."""
    sizes = {"mixtral-8x7b": {**LLAMA, "num_local_experts": 4, "intermediate_size": 128}}.get(model, LLAMA)
    sizes = {**sizes, "num_key_value_heads": 4, "vocab_size": 504}
    if model == "gpt2":
        sizes = {**SMALL, "vocab_size": 504}
    flags = {"mesh": mesh, "placement": placement, "plan": plan, "optimizer": "adamw"}
    answer = lc.memory(model, engine="numpy", batch_size=12, seq_len=128, **flags, **sizes)
    table, every = bucketed(answer.over.placed.table), {**answer.over.sizes, **answer.over.placed.sizes}
    axes = answer.over.placed.mesh.sizes

    def alone(Device):
        class Alone(Device):
            def meet(self, over, X, make):
                return make([X] * self.sizes[over])

            def rows(self, owner, over, place):
                return np.arange((len(owner) + place) // self.sizes[over])

        return Alone(axes, dict.fromkeys(axes, 0), {})

    assert answer.peak > 8 * MIB
    assert abs(seen(table, every, "fp32", alone) - answer.peak) < 64 * KIB


@pytest.mark.parametrize("size", [160, 248, 264, 400])
def test_temporaries_are_written_over_from_the_size_on_that_numpy_says(size):
    """A sum of four: above 256 KiB NumPy adds into the temporary that it has."""
    table = lc.layer("t(A B C D) -> Y\n  Y[n] = A[n] + B[n] + C[n] + D[n]").table
    sizes = {"n": size * KIB // 4}
    predicted = executed(table, sizes, "fp32").peak
    assert abs(seen(table, sizes, "fp32") - predicted) < 64 * KIB
    assert round(predicted / (size * KIB)) == (5 if size >= 256 else 6)


def test_the_rooms_of_the_peak_add_up_to_it():
    table, sizes = step_of("gpt2", "bp", "sgd", 4, 128, **SMALL)
    execution = executed(table, sizes)
    assert sum(allocation.bytes for allocation in execution.allocations) == execution.peak
    assert execution.allocations == tuple(sorted(execution.allocations, key=lambda allocation: -allocation.bytes))
    # It lies in the gradient of GELU, whose values on the way are there then, 4 B of [4 128 512] each.
    assert execution.line.startswith("Z = T + 1.0 + X")
    room_bytes = {allocation.line: allocation.bytes for allocation in execution.allocations}
    assert room_bytes["L = 0.044715 * (X * X)"] == 4 * 4 * 128 * 512
    assert sum(line.startswith(("L =", "T =", "Z =")) for line in room_bytes) == 3


def test_nothing_is_held_when_a_program_is_done():
    builder = ProgramBuilder()
    names = NumPyRun(builder).load("import numpy as np\ndef f(X):\n    Y = X + X\n    return Y * Y - X")
    X = FakeArray.new(builder, (512, 512), np.float32)
    # Y, and Y * Y, in whose place the difference is written: NumPy takes temporaries of 256 KiB and more.
    result = names["f"](X)
    objects = 3 * (np.ndarray.__basicsize__ + 32)  # with two sizes and two strides
    assert 0 <= builder.in_use - 2 * MIB <= objects
    assert 0 <= peak(builder.program()).bytes - 3 * MIB <= objects
    assert result.shape == (512, 512)
    del result, X
    assert builder.in_use == 0


def test_a_view_keeps_the_object_of_the_array_that_owns_its_memory():
    program = "import numpy as np\ndef f(X):\n    return (X @ X).reshape(2, 8).T"
    builder, real = ProgramBuilder(), {}
    X = FakeArray.new(builder, (4, 4), np.float64)
    before, view = builder.in_use, NumPyRun(builder).load(program)["f"](X)
    exec(program, real)
    values, views = np.zeros((4, 4)), [None] * 1000
    tracemalloc.start()
    try:
        views[:] = [real["f"](values) for _ in views]
        seen = tracemalloc.get_traced_memory()[0] / len(views)
    finally:
        tracemalloc.stop()
    assert view.shape == views[0].shape
    with pytest.raises(InputError, match=r"the memory of np\.cumsum is unknown"):
        view.cumsum()
    assert abs(seen - (builder.in_use - before)) < 32  # 128 bytes of numbers, and two objects of 144


def operations():
    """Functions of NumPy that programs call, with what they are given: as (text, arrays)."""
    x, rows, vector = ((8, 96, 256), np.float32), ((96, 256), np.float32), ((256,), np.float32)
    index = ((8, 96), np.int64)
    return [
        ("X + Y * 0.5", (x, x)), ("X - Y * Z", (x, x, x)), ("(X - Y) * Z", (x, x, x)), ("-(X * Y)", (x, x)),
        ("X * Y", (x, vector)), ("(X * Y) + Z", (x, x, vector)), ("X * Y", (x, rows)), ("np.exp(X - Y)", (x, x)),
        ("X / np.sqrt(Y)", (x, x)), ("1.0 / (X * X)", (x,)), ("X ** 2", (x,)), ("np.maximum(X, 0.0)", (x,)),
        ("X.mean(-1, keepdims=True)", (x,)), ("(X * Y).sum((0, 1))", (x, x)), ("X.max(-1, keepdims=True)", (x,)),
        ("np.where(X > 0.0, X, -np.inf)", (x,)), ("(X > 0.0).astype(X.dtype)", (x,)), ("X @ Y.T", (x, rows)),
        ("np.ascontiguousarray(X.transpose(0, 2, 1))", (x,)), ("X.transpose(0, 2, 1).reshape(8, -1)", (x,)),
        ("X.transpose(1, 0, 2) + Y", (x, ((96, 8, 256), np.float32))), ("np.stack([X, Y])", (x, x)),
        ("X.reshape(768, 256)", (x,)), ("Y[X]", (index, rows)), ("X[..., :128] * Y[:128]", (x, vector)),
        ("X[:, Y]", (x, ((300,), np.int64))), ("(X[:, Y] + X[:, Y]).reshape(8, -1)", (x, ((300,), np.int64))),
        ("np.concatenate((X[..., :128], X[..., 128:]), -1)", (x,)), ("np.zeros_like(X)", (x,)),
        ("np.tri(1024, 1024, 0, dtype=bool)", ()), ("np.broadcast_to(X, (3, 256)) * 2.0", (vector,)),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "given"), operations(), ids=[text for text, _ in operations()])
def test_every_operation_takes_what_numpy_takes(text, given):
    # One buffer of 8,192 elements more or less, and Python's own objects, are within 64 KiB.
    program = f"def f({', '.join('XYZ'[: len(given)])}):\n    return {text}\n"
    builder = ProgramBuilder()
    namespace = NumPyRun(builder).load(program)
    arrays = [FakeArray.new(builder, *arguments) for arguments in given]
    before = builder.in_use
    result = namespace["f"](*arrays)
    predicted, stays = peak(builder.program()).bytes - before, builder.in_use - before
    real: dict = {"np": np}
    exec(program, real)
    values = [np.zeros(*arguments) for arguments in given]
    tracemalloc.start()
    try:
        other = real["f"](*values)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.shape == other.shape
    assert result.dtype == other.dtype
    assert (result.flags.c_contiguous, result.strides) == (other.flags.c_contiguous, other.strides)
    assert abs(most - predicted) < 64 * KIB + KIB
    assert abs(now - stays) < 8 * KIB
