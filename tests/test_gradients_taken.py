"""Modules that take gradients in their forward pass: equations of physics, energies with forces, Jacobians."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import learncost as lc
from learncost.verification.imported import products
from sampling import sampled


class Heat(nn.Module):
    """How far a network is from an equation of heat: Raissi et al. 2019."""

    def __init__(self, activation=nn.Tanh):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 1))

    def forward(self, t, x):
        t.requires_grad_(True)
        x.requires_grad_(True)
        u = self.net(torch.cat([t, x], -1))
        u_t, u_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t - 0.1 * u_xx).square().mean()


class Forces(nn.Module):
    """An energy of distances, and the forces that it makes."""

    def __init__(self, norm):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), norm, nn.Linear(8, 1))

    def forward(self, places):
        apart = (places.unsqueeze(-2) - places.unsqueeze(-3)).square().sum(-1, keepdim=True)
        energy = self.net(apart).sum((-3, -2, -1))
        return energy, -torch.autograd.grad(energy.sum(), places, create_graph=True)[0]


class Jacobians(nn.Module):
    """What functions of torch.func take of a layer, point by point."""

    def __init__(self, take):
        super().__init__()
        self.layer, self.take = nn.Linear(3, 4), take

    def forward(self, x):
        return self.take(lambda point: self.layer(point).tanh(), x)


FUNC = {
    "slopes of points": lambda f, x: torch.vmap(torch.func.grad(lambda point: f(point).sum()))(x),
    "backward": lambda f, x: torch.vmap(torch.func.jacrev(f))(x),
    "forward": lambda f, x: torch.vmap(torch.func.jacfwd(f))(x),
    "a direction": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "curvature": lambda f, x: torch.func.hessian(lambda point: f(point).sum())(x[0]),
}


def held(module, given, symbols):
    found = parity(module, given, imported := read_module(module, given, symbols))
    assert max(found.value, found.gradient) < 1e-12
    assert found.module < 1e-5
    return imported


@pytest.mark.parametrize("activation", sampled([nn.Tanh, nn.SiLU, nn.Softplus, nn.GELU], 4))
def test_an_equation_of_physics(activation):
    module, given = Heat(activation), (torch.rand(5, 1), torch.rand(5, 1))
    imported = held(module, given, {"t": "N 1", "x": "N 1"})
    fixed = read_module(module, (torch.rand(8, 1), torch.rand(8, 1)))
    several = [lc.cost(lc.layer(text), **sizes) for text, sizes in ((imported.text, {"N": 8}), (fixed.text, {}))]
    assert several[0].total.flops == several[1].total.flops
    assert several[0].parameters == sum(each.numel() for each in module.parameters())


def test_products_of_both_orders_are_those_that_pytorch_counts():
    module, given = Heat(), (torch.rand(5, 1), torch.rand(5, 1))
    found = products(module, given, read_module(module, given))
    assert found.table[1] == found.torch[1]
    assert found.table[0] == found.torch[0] - 2 * 5 * 8  # the last layer's values, which nothing reads
    assert found.table[0] > 2 * 2 * 5 * (2 * 8 + 8 * 8 + 8)


@pytest.mark.parametrize("norm", sampled([nn.LayerNorm(8), nn.Identity(), nn.RMSNorm(8)], 3))
def test_an_energy_and_its_forces(norm):
    held(Forces(norm), (torch.randn(2, 4, 3, requires_grad=True),), {"places": "B N 3"})


@pytest.mark.slow
def test_a_gradient_through_attention_and_groups():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.groups = nn.Linear(8, 8), nn.GroupNorm(2, 4)

        def forward(self, x):
            y = self.linear(self.groups(x))
            energy = nn.functional.scaled_dot_product_attention(y, y, x).softmax(-1).square().sum()
            return energy + torch.autograd.grad(energy, x, create_graph=True)[0].square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        held(Attending(), (torch.randn(3, 4, 8, requires_grad=True),), {"x": "B 4 8"})


class Batched(nn.Module):
    """A product of a matrix with each of several vectors, by vmap."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        return torch.vmap(lambda point: self.weight @ point)(x).tanh()


def test_products_by_vmap_are_read_and_counted():
    module, given = Batched(), (torch.randn(5, 4),)
    held(module, given, {"x": "B 4"})
    found = products(module, given, read_module(module, given))
    assert found.table == found.torch


def test_what_vmap_does_and_nobody_exports_is_named_so():
    class Loose(Batched):
        def forward(self, *several):
            return super().forward(several[0])

    with pytest.raises(lc.InputError, match=r"under torch\.vmap that PyTorch does not export"):
        lc.from_module(Loose(), (torch.randn(5, 4),))


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("name", sampled(FUNC, 4))
def test_derivatives_by_functions(name):
    held(Jacobians(FUNC[name]), (torch.randn(5, 3),), {"x": "B 3"})


def test_a_gradient_without_a_graph_is_a_number():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            y = self.layer(x).tanh()
            return y + torch.autograd.grad(y.sum(), y, retain_graph=True)[0] + (2 * y).detach()

    held(Kept(), (torch.randn(5, 3),), {"x": "B 3"})


class Stopped(nn.Module):
    """A part under no_grad beside a gradient that it takes: a trace below autograd knows nothing of the first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        y = self.layer(x).tanh()
        with torch.no_grad():
            scale = y.exp()
        return scale * torch.autograd.grad(y.sigmoid().sum(), y, create_graph=True)[0] * y


@pytest.mark.parametrize("as_run", [False, True])
def test_other_gradients_than_those_of_the_module_are_refused(as_run):
    with pytest.raises(lc.InputError, match=r"computes a derivative with torch.autograd.grad in its forward pass"):
        lc.from_module(Stopped(), (torch.randn(5, 3),), as_run=as_run)


class Fast(nn.Module):
    """Weights that take a step in the forward pass: what is learned is where they begin (Finn et al. 2017, MAML)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        step = torch.func.grad(lambda weights: nn.functional.silu(x @ weights["w"]).square().sum())({"w": self.weight})
        return x @ (self.weight - 0.1 * step["w"])


def test_a_gradient_of_weights_by_a_function_is_lines():
    module, given = Fast(), (torch.randn(5, 4),)
    read = read_module(module, given)
    apart = parity(module, given, read)
    assert max(apart.value, apart.gradient) < 1e-12
    assert products(module, given, read).equal


@pytest.mark.slow
def test_one_run_has_the_gradients_that_it_takes():
    module, given = Heat(), (torch.rand(5, 1, requires_grad=True), torch.rand(5, 1, requires_grad=True))
    several = [lc.from_module(module, given, as_run=as_run) for as_run in (False, True)]
    assert several[0].table == several[1].table


def test_without_values(tmp_path, capsys):
    from learncost.cli.command import main

    file = tmp_path / "heat.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Slope(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(3, 4)\n\n    def forward(self, x):\n"
        "        x = x.requires_grad_()\n"
        "        return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]\n"
    )
    ops = [f"{file}:Slope", "--input", "x: float B 3", "--B", "5"]
    assert main(["cost", *ops, "--json"]) == 0
    assert '"parameters": 16' in capsys.readouterr().out
    assert main(["memory", *ops]) == 0


@pytest.mark.slow
def test_what_memory_held_decides_nothing():
    """Parameters that nobody has filled may hold anything, of which no gradient can be told."""
    module = Heat()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan"))
    read = read_module(module, {"t": torch.rand(4, 1), "x": torch.rand(4, 1)})
    assert read.text == read_module(Heat(), {"t": torch.rand(4, 1), "x": torch.rand(4, 1)}).text
