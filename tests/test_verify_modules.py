"""`learncost verify FILE.py:build` runs the module and holds the table to it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

import learncost as lc
from learncost.cli.command import main
from learncost.importer import rule
from learncost.importer.rules import products
from learncost.verification.live import verify_live

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
        for message in (
            "outputs with the module's run",
            "gradients with the module's",
            "FLOPs of products with FlopCounterMode's",
            "buffers and inputs after the call",
        ):
            assert f"passed Average at B = {size}, {message}" in text


def test_a_rule_that_leaves_the_bias_out_is_found(file, capsys, monkeypatch):
    wrong = {**rule.RULES, "linear": lambda reader, x, weight, bias=None: products.linear(reader, x, weight)}
    monkeypatch.setattr(rule, "RULES", wrong)
    monkeypatch.setattr("learncost.importer.reading.RULES", wrong)
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


@pytest.mark.one_in(every=5)
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
    assert any("one run: it is run only at these sizes" in check.found for check in checks.values())


class Stores(nn.Module):
    """Rows of a bank that are written at given places, or numbers of a row."""

    def __init__(self, scatters):
        super().__init__()
        self.layer, self.scatters = nn.Linear(6, 6), scatters
        self.register_buffer("bank", torch.zeros(20, 6))

    def forward(self, x, places):
        y = self.layer(x)
        if self.scatters:
            return y.scatter(1, places, y[:, :2])
        self.bank[places] = y.detach()
        return y @ self.bank.t()


class Hides(nn.Module):
    """Attention with a mask of chance, which may hide all keys of a query."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x, padding):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.encoder(x, mask=mask, src_key_padding_mask=padding)


class Routes(nn.Module):
    """Two of eight matrices for each token, by a router."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 8)
        self.experts = nn.Parameter(torch.randn(8, 6, 5))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        return torch.einsum("bd,bkdf,bk->bf", x, self.experts[chosen], weights)


class Normed(nn.Sequential):
    """A module that holds what it computed from its weights, which autograd lets nobody copy."""

    def __init__(self):
        super().__init__(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.utils.weight_norm(nn.Linear(5, 4)))


class Queue(nn.Module):
    """A queue of keys: a view of what is computed from a buffer is read where a product needs it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("queue", torch.randn(16, 6))

    def forward(self, x):
        y = nn.functional.normalize(self.layer(x), dim=-1)
        near = y @ self.queue.clone().detach().t()
        with torch.no_grad():
            self.queue.copy_(torch.cat([y, self.queue])[:16])
        return near


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 4), nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x):
        y = self.layer(x)
        return torch.addbmm(x[:, :5], y.expand(3, *y.shape), self.weight)


class Mixes(nn.Linear):
    """Tokens mixed by a Fourier transform, and solved for: PyTorch's registry has formulas of neither."""

    def forward(self, x):
        return torch.linalg.solve(self.weight, torch.fft.fft2(x).real.mT).mT + self.bias


class Gated(nn.Linear):
    """A half of a projection, through a causal convolution of each channel, as of state spaces."""

    def __init__(self):
        super().__init__(3, 8)
        self.convolution = nn.Conv1d(4, 4, 3, padding=2, groups=4)

    def forward(self, x):
        one, other = super().forward(x).chunk(2, -1)
        return self.convolution(one.mT)[..., : x.shape[1]].mT * other


class Boxes(nn.Linear):
    """Shares of exponentials of what small weights keep small, whose infinities no output shows."""

    def __init__(self):
        super().__init__(6, 4)
        nn.init.normal_(self.weight, std=1e-4)

    def forward(self, x):
        return 1.0 / (1.0 + (2e4 * (super().forward(x) - self.bias)).exp())


class Sends(nn.Module):
    """An expert for each token, which reads the tokens that the values send to it."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            rows = torch.where(chosen == place)[0]
            y = y.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        return y


class Penalized(nn.Sequential):
    """A critic's gradient penalty, whose own result nothing reads, and whose slope autograd multiplies by zeros."""

    def __init__(self):
        super().__init__(nn.Linear(6, 9), nn.LeakyReLU(0.2), nn.Linear(9, 1))

    def forward(self, x):
        mixed = (0.7 * x).requires_grad_(True)
        y = super().forward(mixed)
        (slope,) = torch.autograd.grad(y, mixed, torch.ones_like(y), create_graph=True)
        return super().forward(x).mean() + ((slope.norm(2, 1) - 1) ** 2).mean()


class Rounds(nn.Linear):
    def forward(self, x):
        return torch.fake_quantize_per_tensor_affine(super().forward(x), 0.1, 3, 0, 255)


class Maps(nn.Linear):
    def forward(self, x):
        return torch._higher_order_ops.map(lambda row: super(Maps, self).forward(row).tanh(), x)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Gated(), {"x": "float B 5 3"}),
        (Boxes(), {"x": "float B 6"}),
        (Mixes(6, 6), {"x": "float B 4 6"}),
        (Stores(False), {"x": "float B 6", "places": "int B"}),
        (Stores(True), {"x": "float B 6", "places": "int B 2"}),
        (Hides(), {"x": "float B M 12", "padding": "bool B M"}),
        (Routes(), {"x": "float B 6"}),
        (Normed(), {"input": "float B 6"}),
        (nn.Sequential(nn.InstanceNorm1d(3), nn.AdaptiveAvgPool1d(1)), {"input": "float B 3 6"}),  # zeros
        (Queue(), {"x": "float B 6"}),
        (Adds(), {"x": "float B 6"}),
        (Sends(), {"x": "float 20 6"}),
        (Penalized(), {"x": "float 3 6"}),
        (Rounds(6, 4), {"x": "float B 6"}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_right_tables_pass(module, inputs):
    report = lc.verify(lc.from_module(module, inputs))
    assert report.passed, report
    compared_at = {check.compared for check in report.checks if check.passed}
    assert {"outputs with the module's run", "FLOPs of products with FlopCounterMode's"} <= compared_at


class Turned(torch.autograd.Function):
    """Another gradient than its lines have: an operator that is not derived."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Turns(nn.Linear):
    def forward(self, input):
        return Turned.apply(super().forward(input))


def test_a_line_without_a_derivation_leaves_out_what_needs_one_alone():
    report = lc.verify(lc.from_module(Turns(6, 4), {"input": "float B 6"}))
    assert report.passed
    assert sum("with FlopCounterMode's" in each.compared for each in report.checks) == 2  # at two sizes
    assert [each.found for each in report.checks if each.passed is None] == ["not derived: functions::Turned"]


class OnGpus(nn.Linear):
    def forward(self, input):
        if not torch.compiler.is_exporting():
            raise RuntimeError("it needs a GPU")
        return super().forward(input)


def test_an_error_of_the_module_is_the_reason_why_it_is_not_run():
    found = [each.found for each in compared(lc.from_module(OnGpus(6, 4), {"input": "float B 6"})).values()]
    assert found[0] == "equal"
    assert "RuntimeError: it needs a GPU" in found[1]
    assert len(found) == 2


class Cached(nn.Module):
    """A row of the input is made anew after a product has kept it, of which autograd then has no gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        x[:, 0] = self.layer(x[:, 0])
        x[:, -1] += 1
        return self.layer(x)


def test_a_module_without_gradients_of_its_own_is_said_in_a_line():
    checks = compared(lc.from_module(Cached(), {"x": "float B 4 6"}))
    left = [str(check) for check in checks.values() if check.passed is None]
    assert any("autograd has no gradients of the module itself" in line for line in left)
    assert not [check for check in checks.values() if check.passed is False]


def test_places_that_come_twice_are_not_compared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.register_buffer("bank", torch.zeros(2, 6))

        def forward(self, x, places):
            self.bank[places] = self.layer(x).detach()
            return self.layer(x) @ self.bank.t()

    checks = compared(lc.from_module(Twice(), {"x": "float B 6", "places": "int B"}))
    assert any("several values at one place" in str(check) for check in checks.values() if check.passed is None)
    assert not [check for check in checks.values() if check.passed is False]


def test_products_at_places_apart_are_added_to_nothing():
    class Scans(nn.Linear):
        def forward(self, x):
            pairs = self.weight.new_ones(6, 4) * x.sigmoid(), super().forward(x)
            return associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), pairs, 0, combine_mode="generic")[1]

    assert lc.check_layer(lc.from_module(Scans(4, 4), (torch.randn(6, 4, requires_grad=True),))).passed


def test_a_function_over_rows_is_run_and_its_products_are_not_compared():
    report = lc.verify(lc.from_module(Maps(6, 6), {"x": "float 4 6"}))
    assert report.passed, report
    assert {"outputs with the module's run", "gradients with the module's"} <= {
        check.compared for check in report.checks if check.passed
    }
    assert "does not run map" in str(report)
