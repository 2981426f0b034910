"""The memory of a module that was read: its step, run on tensors without values, beside what the allocator gives."""

from pathlib import Path

import imported_peaks as peaks
import pytest
import torch
from torch import nn

import learncost as lc
from allocator import apart
from learncost.cli.command import main
from sampling import sampled


class Kept(nn.Module):
    """Names of Python that keep tensors, operators in place, integers whose values are asked for, types that mix."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x):
        wide = self.first(x)
        again = wide.clone().relu_()
        places = torch.arange(x.shape[1])
        if not torch.compiler.is_exporting() and places.max() > 3:
            again = again * torch.sigmoid(wide.float()).to(x.dtype)
        joined = torch.cat([again, again.flip(1)], 1)[:, ::2]
        return self.second(joined.contiguous()) * self.scale


class Images(nn.Module):
    """Convolutions, norms whose statistics are kept, strided windows, and a residual that is added."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, padding=1))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.body(x)
        return self.up(nn.functional.silu(x))


class Cells(nn.Module):
    """Weights that are read at every step, places that are chosen, types that mix, and a loss of squares."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        state = x.new_zeros(len(x), 64)
        for step in range(4):
            state = self.cell(x[:, step], state)
        y = self.out(state[:, None] + x)
        chosen = y * (y > 0) + y.amax(1, keepdim=True) + y.median(1, keepdim=True)[0] + y.sort(-1)[0]
        return nn.functional.mse_loss(chosen, x) + nn.functional.binary_cross_entropy(y.sigmoid(), x.sigmoid())


OWN = {
    "cells": (Cells, lambda dtype: {"x": torch.randn(16, 32, 64, dtype=dtype)}),
    "kept": (Kept, lambda dtype: {"x": torch.randn(4, 32, 64, dtype=dtype)}),
    "images": (Images, lambda dtype: {"x": torch.randn(4, 3, 32, 32, dtype=dtype)}),
}
CASES = [(name, dtype) for name in (*OWN, *list(peaks.CASES)[:18]) for dtype in ("fp32", "bf16")]


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("name", "dtype"), sampled(CASES, 16, lambda case: case[1]))
def test_the_predicted_peak_is_that_of_the_allocator(name, dtype):
    case = OWN.get(name) or peaks.CASES[name]
    torch.manual_seed(0)
    _, measured = apart(lambda: peaks.train(*case, peaks.DTYPES[dtype]))
    assert peaks.predicted(*case, dtype) == pytest.approx(measured, rel=2e-5)


def test_sizes_are_those_that_are_asked_for_and_the_parts_add_up():
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    example = {"input": torch.randn(8, 32)}
    layer = lc.from_module(module, example, {"input": "B 32"})
    small, large = (lc.memory(layer, B=batch) for batch in (8, 800))
    fixed = lc.memory(lc.from_module(module, {"input": torch.randn(800, 32)}))
    assert (small.engine, small.module, large.peak) == ("eager", "itself", fixed.peak)
    assert sum(large.split.values()) == large.peak == sum(live_array.bytes for live_array in large.live_at_peak)
    assert large.split["weights"] == 4 * sum(each.numel() for each in module.parameters())
    assert max(moment.bytes for moment in large.curve) == large.peak
    grows = large.peak - lc.memory(layer, B=799).peak
    assert lc.memory(layer, B=8, budget=large.peak + grows // 2).fits["batch_size"] == 800
    assert all(parameter.grad is None and parameter.device.type == "cpu" for parameter in module.parameters())


def test_where_a_module_cannot_run_without_values_its_lines_tell_and_the_page_says_so():
    class OnValues(nn.Module):
        def forward(self, x):
            return (x * self.scale(x)).sum()

        def scale(self, x):
            return 2.0 if torch.compiler.is_exporting() or x.mean().item() > 0 else 3.0

    layer = lc.from_module(OnValues(), {"x": torch.randn(8, 32, requires_grad=True)})
    found = lc.memory(layer)
    assert found.module == "plain"
    assert "The module itself was not run: it cannot run without values (" in found.convention
    assert "test_memory_itself.py" in found.convention
    with pytest.raises(lc.InputError, match="cannot run without values"):
        lc.memory(layer, module="itself", engine="eager")


def test_what_a_module_does_not_run_itself_is_told_by_its_lines():
    layer = lc.from_module(nn.Linear(8, 8), {"input": torch.randn(2, 8)})
    assert lc.memory(layer, "recompute").module == "plain"
    with pytest.raises(lc.InputError, match="use module='plain'"):
        lc.memory(layer, "recompute", module="itself", engine="eager")
    with pytest.raises(lc.InputError, match="without adapters and dropout"):
        lc.memory("gpt2", module="itself", seq_len=16, dropout=0.1, engine="eager")


@pytest.mark.slow
def test_a_preset_with_frozen_positions_records_itself():
    """Whisper's encoder does not learn its positions, in transformers' module and in the preset."""
    asked = {"engine": "eager", "target_len": 16, "max_source_positions": 50, "precision": "fp32"}
    itself, emulated = (lc.memory("whisper-tiny", module=each, **asked) for each in ("itself", "transformers-uncached"))
    assert itself.peak == pytest.approx(emulated.peak, rel=1e-4)


def test_a_file_is_run_for_the_memory_of_its_module(capsys):
    file = Path(__file__).parent.parent / "examples" / "modules" / "transformer.py"
    assert main(["memory", f"{file}:build", "--B", "2", "--M", "16", "--precision", "bf16-masters"]) in (0, None)
    printed = capsys.readouterr()
    assert "by eager (itself, recorded): B = 2, M = 16" in " ".join(printed.out.split())
    assert "runs " in printed.err


class Blocks(nn.Module):
    """Equal blocks between two layers, and a large input that the first layer reads."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 32), nn.Linear(32, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4))

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x).mean()


LEARN = {
    "none": ({"train": "none"}, lambda name: False),
    "leave": ({"train": "leave"}, lambda name: name.startswith("leave")),
    "biases": ({"train": "biases"}, lambda name: name.endswith("bias")),
    "last block": ({"train_layers": "last 1"}, lambda name: name.startswith("blocks.3.")),
    "two blocks": ({"train_layers": "0,2"}, lambda name: name.startswith(("blocks.0.", "blocks.2."))),
}


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("chosen", LEARN)
def test_the_module_runs_with_what_is_said_to_learn(chosen):
    flags, learns = LEARN[chosen]

    def train():
        module, x = Blocks(), torch.randn(96, 64)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(learns(name))
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        steps = torch.optim.AdamW(learning, fused=True) if learning else None
        for _ in range(2):
            module.zero_grad(set_to_none=True)
            result = module(x)
            if steps:
                result.backward()
                steps.step()

    found = lc.memory(lc.from_module(Blocks(), {"x": "float 96 64"}), **flags)
    assert found.module == "itself"
    assert found.peak == pytest.approx(apart(train)[1], rel=0.002)


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_where_nothing_learns_lines_hold_what_the_caller_has_and_no_gradient(engine):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(64, 256), nn.Linear(64, 256)

        def forward(self, x):
            left = self.left(x)
            return self.right(x) + left

    def answer():
        with torch.no_grad():
            module, x = Wide(), torch.randn(512, 64)
            module(x)

    layer = lc.from_module(Wide(), {"x": "float 512 64"})
    found = lc.memory(layer, train="none", engine=engine, **({"module": "plain"} if engine == "eager" else {}))
    assert found.peak == pytest.approx(apart(answer)[1], rel=0.002)


def test_a_module_read_at_numbers_fits_or_does_not():
    layer = lc.from_module(nn.Linear(64, 64), {"input": torch.randn(32, 64)})
    peak = lc.memory(layer).peak
    assert [lc.memory(layer, budget=room).fits["batch_size"] for room in (peak, 2 * peak)] == [1, 1]
    rows = lc.fit(layer, peak, procedures="bp").rows
    assert [row.largest for row in rows if not row.plan] == [1]
    assert [row.largest for row in lc.fit(layer, peak // 4, procedures="bp").rows] == [0] * len(rows)
    assert "the step fits." in str(lc.memory(layer, budget=peak))


PACKED = [
    (name, dtype)
    for name in ("linear", "convolutions", "U-Net", "LSTM", "attention, fused")
    for dtype in ("fp32", "bf16")
]


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(("name", "dtype"), sampled(PACKED, 2, lambda case: case[1]))
def test_kernel_buffers_are_within_the_range_that_stands_on_top(name, dtype):
    """The allocator's peak with what libraries of products take, which the other tests leave out."""
    torch.manual_seed(0)
    # Of two trainings the lesser: the first one may make what the library keeps.
    whole, without = min(apart(lambda: peaks.train(*peaks.CASES[name], peaks.DTYPES[dtype])) for _ in range(2))
    layer = lc.from_module(peaks.built(peaks.CASES[name][0], inputs := peaks.CASES[name][1](torch.float32)), inputs)
    found = lc.memory(layer, engine="eager", optimizer="adamw", precision=peaks.PRECISIONS[dtype])
    assert found.peak == pytest.approx(without, rel=0.002)
    assert whole <= 1.002 * (found.peak + found.buffers)
    assert found.buffers < found.peak * (3 if dtype == "bf16" and name == "U-Net" else 1)  # columns without AVX-512
    if found.buffers:
        text = " ".join(str(found).split())
        assert f"plus kernel buffers 0 to {found.buffers:,}" in text
        assert "Memory that libraries allocate outside PyTorch's allocator is not included" in text
    assert found.to_dict()["kernel_buffers"] == {"least": 0, "most": found.buffers}


def test_what_multiplies_nothing_has_no_kernel_buffers():
    class Pointwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x):
            return (x * self.scale).tanh().mean()

    found = lc.memory(lc.from_module(Pointwise(), {"x": torch.randn(8, 64)}))
    assert (found.module, found.buffers) == ("itself", 0)
    assert "on top" not in str(found)


def test_tokens_of_a_module_read_at_numbers_say_no_number_of_steps():
    module = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    fixed = lc.from_module(module, {"input": torch.randn(8, 1)})
    for ask in (lambda: lc.cost(fixed, tokens=10**6), lambda: lc.run_cost(fixed, 10**6, "H100-SXM")):
        with pytest.raises(lc.InputError, match="so tokens do not determine the steps"):
            ask()
    opened = lc.from_module(module, {"input": "float B 1"})
    assert lc.cost(opened, B=8, tokens=10**6).steps == 125_000
