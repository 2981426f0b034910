"""`learncost verify FILE.py:build` runs the module and holds the table to it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import learncost as lc
from learncost.faces.command import main
from learncost.models.imported import rule
from learncost.models.imported.rules import products
from learncost.proof.live import verify_live

FILE = """
import torch
from torch import nn


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6, 6))

    def forward(self, x):
        y = self.layer(x)
        self.average.mul_(0.9).add_(y.t() @ y)
        return y


def build():
    return Average()


def inputs():
    return {"x": "float B 6"}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "average.py"
    path.write_text(FILE)
    return f"{path}:build"


def compared(table):
    """What a module's run says of its table, by what was compared."""
    return {(check.subject, check.compared): check for check in verify_live(table, table.live())}


def failing(table):
    return {compared_with for (_, compared_with), check in compared(table).items() if check.passed is False}


def test_a_module_is_run_at_two_sizes(file, capsys):
    assert main(["verify", file, "--no-cache"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for size in (3, 4):
        for said in (
            "outputs with the module's run",
            "gradients with the module's",
            "FLOPs of products with FlopCounterMode's",
            "buffers and inputs after the call",
        ):
            assert f"passed Average at B = {size}, {said}" in text


def test_a_rule_that_leaves_the_bias_out_is_found(file, capsys, monkeypatch):
    wrong = {**rule.RULES, "linear": lambda reader, x, weight, bias=None: products.linear(reader, x, weight)}
    monkeypatch.setattr(rule, "RULES", wrong)
    monkeypatch.setattr("learncost.models.imported.reading.RULES", wrong)
    assert main(["verify", file, "--no-cache"]) == 1
    assert "FAILED Average at B = 3, outputs with the module's run" in " ".join(capsys.readouterr().out.split())


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6, 6))

    def forward(self, x):
        y = self.layer(x)
        self.average.mul_(0.9).add_(y.t() @ y)
        return torch.tanh(y)


def corrupted(old, new):
    """A table of which one line is another, beside its module."""
    table = lc.from_module(Average(), {"x": "float B 6"})
    assert old in table.text
    return replace(table, table=lc.layer(table.text.replace(old, new)).table)


def test_a_right_table_passes():
    assert not failing(lc.from_module(Average(), {"x": "float B 6"}))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("0.9[]", "0.8[]", "outputs with the module's run"),
        ("tanh(", "sigmoid(", "outputs with the module's run"),
        ("tanh(layer.linear_2[B f])", "stop_gradient(tanh(layer.linear_2[B f]))", "gradients with the module's"),
        ("@ . matmul", "@ . mv", "FLOPs of products with FlopCounterMode's"),
    ],
)
def test_a_wrong_table_is_found(old, new, found):
    if "stop_gradient" in new:
        wrong = "z[B f] = tanh(layer.linear_2[B f]) @ . tanh\n  tanh[B f] = stop_gradient(z[B f])"
        table = corrupted("tanh[B f] = tanh(layer.linear_2[B f])", wrong)
    else:
        table = corrupted(old, new)
    assert {found, "the table with the module's, read again"} <= failing(table)


class Draws(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_what_cannot_be_compared_is_said_in_a_line():
    checks = compared(lc.from_module(Draws(), {"input": "float B 6"}))
    assert not [check for check in checks.values() if check.passed is False]
    left = [str(check) for check in checks.values() if check.passed is None]
    assert any("it draws random numbers" in line for line in left)
    assert any("1.running_mean, 1.running_var" in line for line in left)
    assert all("\n" not in line for line in left)


def test_one_run_is_held_to_the_module_at_its_size():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.one(x) if x.mean() > 0 else self.other(x)

    checks = compared(lc.from_module(Branch(), {"x": "float 4 6"}, as_run=True))
    assert not [check for check in checks.values() if check.passed is False]
    assert any("one run: it is run at these sizes alone" in check.found for check in checks.values())
