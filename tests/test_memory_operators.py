"""The emitted program on PyTorch's operators: its bytes predicted without values, and what the allocator hands out."""

import random

import numpy as np
import pytest

import learncost as lc
from learncost.backends import fill, leaves, program
from learncost.ir.polynomial import shape_of
from learncost.ir.precision import precision_of
from learncost.program.fake_arrays.numpy import chosen, laid
from learncost.program.program import ProgramBuilder, peak
from learncost.reports.memory.step import MemoryStep
from learncost.reports.request import Request
from learncost.reports.run import prepare
from on_operators import on_operators
from sampling import sampled

torch = pytest.importorskip("torch")
from learncost.program.fake_arrays.torch import TorchRun  # noqa: E402 - it needs torch

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 500}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 344}
BERT = {**SMALL, "intermediate_size": 512}
KIB, MIB = 2**10, 2**20


def most_of_a_step(table, sizes, dtype):
    """The peak of one call of the program, its arguments included."""
    from allocator import most

    written = program(table, "torch", sizes=sizes, dtype=dtype)
    names = {"__name__": "emitted"}
    exec(compile(written.text, "emitted", "exec"), names)
    kind = torch.float64 if dtype == "fp64" else torch.float32

    def run():
        parameters = dict.fromkeys(name for tree in written.parameters for name in leaves(tree))
        values = {
            name: torch.zeros(shape_of(table.axes[name], sizes), dtype=torch.int64 if name in table.indices else kind)
            for name in parameters
        }
        arguments = [fill(tree, values, names) for tree in written.parameters]
        with torch.inference_mode():
            names[written.function](*arguments)

    return most(run)


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(
    ("model", "sizes", "procedure", "optimizer", "batch", "length", "dtype", "plan"),
    sampled(
        [
            ("gpt2", SMALL, "bp", "sgd", 6, 128, "fp32", ""),
            ("gpt2", SMALL, "recompute", "adamw", 4, 64, "fp64", ""),
            ("gpt2", SMALL, "pepita", "sgd", 6, 128, "bf16-masters", ""),
            ("gpt2", SMALL, "mempepita", "momentum", 6, 128, "fp32", ""),
            ("gpt2", {**SMALL, "vocab_size": 5000}, "bp", "adamw", 1, 32, "bf16-masters", ""),
            ("gpt2", SMALL, "bp", "sgd", 8, 64, "fp32", "flash,chunked-loss,fused-update,recompute=gelu+norm"),
            ("tinyllama-1.1b", LLAMA, "bp", "sgd", 6, 128, "fp32", ""),
            ("bert-tiny", {**BERT, "architecture": "BertForMaskedLM"}, "bp", "sgd", 8, 64, "bf16-masters", ""),
            # what cannot be in place: scores by distance, experts, blocks that share their weights
            ("deberta-base", BERT, "recompute", "adamw", 2, 128, "fp32", ""),
            (
                "mixtral-8x7b",
                {**LLAMA, "num_local_experts": 2, "intermediate_size": 128},
                "bp",
                "sgd",
                2,
                32,
                "fp32",
                "",
            ),
            ("albert-base-v2", {**BERT, "embedding_size": 64}, "bp", "sgd", 4, 64, "fp32", ""),
        ],
        2,
        lambda case: case[0],
    ),
)
def test_the_predicted_peak_is_that_of_the_allocator(model, sizes, procedure, optimizer, batch, length, dtype, plan):
    settings = {"optimizer": optimizer, "dtype": dtype, "plan": plan, "engine": "torch"}
    with on_operators():
        needs = lc.memory(model, procedure, batch, length, **settings, **sizes)
    run = prepare(Request(model, procedure, batch_size=batch, seq_len=length, plan=plan, sizes=sizes))
    table = MemoryStep(run, procedure, precision_of(dtype), optimizer).executed_table()
    # What differs are single numbers that Python's become, of 4 or 8 bytes.
    assert needs.peak > 4 * MIB
    assert abs(most_of_a_step(table, run.axes, dtype) - needs.peak) < 64
    assert sum(needs.split.values()) == needs.peak == sum(live_array.bytes for live_array in needs.live_at_peak)


def operations():
    """Functions of PyTorch that programs call, with the shapes that they are given."""
    x, rows, vector = (8, 96, 256), (96, 256), (256,)
    heads = (8, 96, 4, 64)
    return [
        ("X.permute(1, 0, 2) + Y", (x, (96, 8, 256))), ("(X.permute(0, 2, 1) * 2).reshape(8, -1)", (x,)),
        ("torch.softmax(X.permute(0, 2, 1), -1)", (x,)), ("functional.layer_norm(X, X.shape[-1:], eps=1e-5)", (x,)),
        ("functional.rms_norm(X, X.shape[-1:], eps=1e-5)", (x,)), ("X @ Y.T", (x, rows)),
        ("functional.rms_norm(X, X.shape[-2:], eps=1e-5)", (x,)),
        ("functional.layer_norm(X.movedim(-2, -1), (X.shape[-2],), eps=1e-5).movedim(-1, -2)", (x,)),
        ("functional.layer_norm(X, X.shape[-2:], eps=1e-5)", (x,)),
        ("X.permute(0, 2, 1) @ Y", (x, rows)), ('torch.einsum("BMhk,Bmhk->BhMm", X, Y)', (heads, heads)),
        ('torch.einsum("BMd,BMf->df", X, Y)', (x, x)), ('torch.einsum("BMd,dhk->BMhk", X, Y)', (x, (256, 4, 64))),
        ('torch.einsum("BMd,BMf->fd", X.permute(1, 0, 2), Y)', (x, (96, 8, 256))),
        ('torch.einsum("Bmhk,BhmM->BMhk", X, Y)', (heads, (8, 4, 96, 80))),
        ('torch.einsum("BhMm,Bmhk->BMhk", X, Y)', ((8, 4, 80, 96), heads)), ("torch.stack([X, Y])", (x, x)),
        ("torch.where(X > 0.0, X, -torch.inf)", (x,)), ("torch.cat((X, Y), -1)", (x, x)),
        ("torch.ones(999, 999, dtype=torch.bool, device=X.device).tril()", (x,)),
        ("X - X.mean(-1, keepdim=True)", (x,)), ("X.amax(-1, keepdim=True) * X", (x,)),
        ("torch.zeros_like(X.permute(2, 0, 1)).flatten(0, 1)", (x,)),
        ("X.bfloat16() @ Y.bfloat16()", (x, (256, 8))), ("(X.bfloat16().float() * Y).bfloat16()", (x, vector)),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes"), operations(), ids=[text for text, _ in operations()])
def test_every_operation_takes_what_pytorch_takes(text, shapes):
    from allocator import most, scratch

    program = (
        f"import torch\nfrom torch.nn import functional\ndef f({', '.join('XYZ'[: len(shapes)])}):\n    return {text}\n"
    )
    builder = ProgramBuilder()
    with TorchRun(builder) as run:
        tensors = [run.array(shape, "float32") for shape in shapes]
        before = builder.in_use
        result = run.load(program)["f"](*tensors)
    names = {}
    exec(program, names)
    values = [torch.ones(shape) for shape in shapes]
    other = []
    with torch.inference_mode():
        measured = most(lambda: other.append(names["f"](*values)))
    assert -8 <= measured - (peak(builder.program()).bytes - before) <= 8 + (scratch() if "bfloat16() @" in text else 0)
    assert (result.shape, result.stride()) == (other[0].shape, other[0].stride())


def test_the_shape_of_what_is_chosen_is_known_without_choosing():
    chance, tried = random.Random(0), 0
    for _ in range(1000):
        shape = tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 5)))
        joint = [chance.randint(1, 3) for _ in range(chance.randint(0, 3))]
        arrays = [np.zeros([chance.choice((size, 1)) for size in joint], int) for _ in shape]
        items = [chance.choice((array, 0, slice(1, None))) for array in arrays[: chance.randint(1, len(shape))]]
        for extra in chance.sample([None, Ellipsis], chance.randint(0, 2)):
            items.insert(chance.randint(0, len(items)), extra)
        if any(isinstance(item, np.ndarray) for item in items):
            tried += 1
            found, order = chosen(shape, items)
            real = np.zeros(shape)[tuple(items)]
            assert tuple(found) == real.shape, (shape, items)
            steps = zip(real.shape, real.strides, laid(found, float, order).strides, strict=True)
            assert not real.size or all(step == own for size, step, own in steps if size > 1), (shape, items)
    assert tried > 300


def test_experts_of_a_large_model_take_no_memory_here():
    with on_operators():
        needs = lc.memory("deepseek-v2-lite", engine="torch", plan="", seq_len=4096, num_hidden_layers=2)
    assert needs.peak > 2**36
