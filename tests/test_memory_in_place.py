"""The bytes of a step in place: predicted, and what PyTorch's allocator hands out when it runs."""

import pytest

import learncost as lc
from learncost.engines import in_place
from learncost.engines.compiler import compiler
from learncost.ir.polynomial import base
from learncost.ir.precision import precision_of
from learncost.reports.memory.step import MemoryStep
from learncost.reports.request import Request
from learncost.reports.run import prepare
from sampling import sampled

torch = pytest.importorskip("torch")

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 400}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 172}
BERT = {**SMALL, "intermediate_size": 256, "architecture": "BertForMaskedLM"}
WIDE = {"hidden_size": 384, "num_attention_heads": 6}
ALL = "flash,fused,chunked-loss,fused-update,recompute=gelu+silu+norm"


class Idle:
    """In the place of compiled kernels, which allocate nothing: they compute nothing, either."""

    def __init__(self, functions):
        pass

    def __getitem__(self, name):
        return lambda *addresses: None


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    ("model", "sizes", "procedure", "optimizer", "batch", "length", "dtype", "plan", "kernels"),
    sampled(
        [
            ("gpt2", SMALL, "bp", "adamw", 8, 64, "fp32", "fused", "compiled"),
            ("gpt2", SMALL | WIDE, "bp", "adamw", 16, 64, "bf16-masters", ALL, "idle"),
            ("gpt2", SMALL, "recompute", "sgd", 4, 32, "fp32", "flash,fused", "idle"),
            ("gpt2", SMALL, "pepita", "sgd", 8, 64, "fp32", "fused", "idle"),
            ("gpt2", SMALL, "mempepita", "momentum", 4, 64, "fp32", "fused", "idle"),
            ("tinyllama-1.1b", LLAMA | WIDE, "recompute", "adamw", 48, 64, "bf16-masters", "flash,fused", "idle"),
            ("tinyllama-1.1b", LLAMA, "bp", "adamw", 4, 64, "fp32", ALL, "idle"),
            ("bert-tiny", BERT, "bp", "adamw", 8, 48, "fp32", "fused", "idle"),
        ],
        2,
        lambda case: case[0],
    ),
)
def test_the_predicted_peak_is_that_of_the_allocator(
    model, sizes, procedure, optimizer, batch, length, dtype, plan, kernels, monkeypatch
):
    from allocator import apart

    if kernels == "idle":
        monkeypatch.setattr(in_place, "CompiledKernels", Idle)
    elif compiler() is None:
        pytest.skip("no C compiler found")
    needs = lc.memory(model, procedure, batch, length, None, optimizer, 0, dtype, plan=plan, engine="torch", **sizes)
    run = prepare(Request(model, procedure, batch_size=batch, seq_len=length, plan=plan, sizes=sizes))
    table = MemoryStep(run, procedure, precision_of(dtype), optimizer).executed_table()
    states = [name for name in table.inputs if f"{name}.new" in table.outputs]

    def zeros(name):
        shape = [int(axis) if axis.isdigit() else run.axes[base(axis)] for axis in table.axes[name]]
        return torch.zeros(shape, dtype=torch.int64 if name in table.indices else torch.float32)

    batch_of = {name: zeros(name) for name in table.inputs if name not in states}

    def train():
        tensors = {name: zeros(name) for name in (*table.weights, *states)}
        arena = torch.zeros(needs.split["arena"], dtype=torch.uint8)
        program = in_place.InPlace(table, run.axes, dtype, tensors, arena)
        assert program.arena is arena  # it is large enough
        for _ in range(2):
            program(batch_of)

    with in_place.library_products():
        pass  # which library is exact here is tried once in a process, not in a step
    # What is more are sums over all sequences of the rows of a position. What oneDNN takes for a product is apart: it
    # does those of fp32, too, where the processor is not Intel's.
    peak = apart(train)[1]
    assert needs.peak <= peak <= 1.01 * needs.peak
    assert sum(needs.split.values()) == needs.peak
