"""Distances of many rows, which PyTorch takes by products; and parameters that are active for a token."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc


class Near(nn.Module):
    """The distances of what a linear layer makes from 30 centers, or from so many."""

    def __init__(self, centers=30, **named):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.centers = nn.Parameter(torch.randn(centers, 8))
        self.named = named

    def forward(self, x):
        return torch.cdist(self.linear(x), self.centers, **self.named)


CASES = [
    ((20, 6), "float B 6", 30, {}),
    ((26, 6), "float 26 6", 5, {}),
    ((3, 7, 6), "float B 7 6", 30, {}),
    ((20, 6), "float B 6", 5, {}),
    ((20, 6), "float B 6", 5, {"compute_mode": "use_mm_for_euclid_dist"}),
    ((40, 6), "float B 6", 30, {"compute_mode": "donot_use_mm_for_euclid_dist"}),
    ((40, 6), "float B 6", 30, {"p": 1.0}),
]


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(("shape", "description", "centers", "named"), CASES)
def test_distances_cost_what_pytorch_runs(shape, description, centers, named):
    module, x = Near(centers, **named), torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    sizes = {"B": shape[0]} if "B" in description else {}
    read = lc.from_module(module, {"x": description})
    for book in ("matmul", "torch-flop-counter"):
        assert lc.cost(read, price_book=book, **sizes).total.flops == counter.get_total_flops()
    apart = parity(module, (x,), read_module(module, (x,)))
    assert max(apart.value, apart.gradient) < 1e-7  # a product of numbers that nearly cancel


@pytest.mark.parametrize("centers_learn", [True, False])
@pytest.mark.parametrize("rows_learn", [True, False])
def test_distances_with_a_frozen_side_cost_both_gradients_in_the_counter_of_pytorch(rows_learn, centers_learn):
    module, x = Near(30), torch.randn(20, 6)
    module.linear.requires_grad_(rows_learn)
    module.centers.requires_grad_(centers_learn)
    if not (rows_learn or centers_learn):
        x.requires_grad_()
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    layer = lc.from_module(module, (x,))
    assert lc.cost(layer, price_book="torch-flop-counter").total.flops == counter.get_total_flops()
    needed = lc.cost(layer, price_book="matmul").total.flops
    one_gradient = 2 * 20 * 30 * 8
    assert counter.get_total_flops() - needed == (0 if rows_learn and centers_learn else one_gradient)


class Turned(nn.Module):
    """A matrix for each image, or what a layer makes of it, says where its places are read."""

    def __init__(self, sides, align_corners):
        super().__init__()
        dims = len(sides)
        self.sides, self.align_corners = sides, align_corners
        self.by = nn.Linear(6, dims * (dims + 1))

    def forward(self, x):
        theta = self.by(x).unflatten(-1, (len(self.sides), -1))
        return nn.functional.affine_grid(theta, [len(x), 1, *self.sides], align_corners=self.align_corners)


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("sides", [(4, 5), (1, 7), (3, 4, 2)])
@pytest.mark.parametrize("align_corners", [True, False])
def test_an_affine_grid_is_a_product(sides, align_corners):
    module, x = Turned(sides, align_corners), torch.randn(3, 6)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    assert torch.ops.aten.bmm in counter.get_flop_counts()["Global"]
    for description, sizes in (("float 3 6", {}), ("float B 6", {"B": 3})):
        layer = lc.from_module(module, {"x": description})
        for book in ("matmul", "torch-flop-counter"):
            assert lc.cost(layer, price_book=book, **sizes).total.flops == counter.get_total_flops()
    apart = parity(module, (x,), read_module(module, (x,)))
    assert max(apart.value, apart.gradient) < 1e-6  # PyTorch's places are in single precision


class Routed(nn.Module):
    """Two of eight matrices for each token, or for each of those that an input says."""

    def __init__(self, given=False, most=2):
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 8), nn.Parameter(torch.randn(8, 16, 4))
        self.given, self.most = given, most

    def forward(self, x, chosen):
        places = chosen if self.given else self.gate(x).topk(self.most, -1).indices
        return torch.einsum("nd,nkde->nke", x, self.experts[places])


@pytest.mark.parametrize("x", ["float B 16", "float 5 16"])
def test_active_parameters_are_those_of_two_experts(x):
    model = lc.from_module(Routed(), {"x": x, "chosen": "int 5 2"})
    cost = lc.cost(model, **({"B": 5} if "B" in x else {}))
    assert cost.parameters == 8 * 16 * 4 + 16 * 8 + 8
    assert cost.active_parameters == 2 * 16 * 4 + 16 * 8 + 8


class Looks(nn.Module):
    """A bag of tokens, candidates of each, and a table of relative positions: nothing that is routed."""

    def __init__(self):
        super().__init__()
        self.bag, self.of_candidates = nn.EmbeddingBag(50, 8, mode="mean"), nn.Embedding(20, 8)
        self.relative = nn.Parameter(torch.randn(15, 8))

    def forward(self, tokens, candidates):
        far = torch.arange(8)[:, None] - torch.arange(8) + 7
        scores = torch.einsum("bd,bkd->bk", self.bag(tokens), self.of_candidates(candidates))
        return scores.sum(1)[:, None, None, None] + self.relative[far]


def test_nothing_is_active_apart_where_nothing_is_routed():
    model = lc.from_module(Looks(), {"tokens": "int B 8", "candidates": "int B 40"})
    cost = lc.cost(model, B=3)
    assert cost.active_parameters == cost.parameters == 50 * 8 + 20 * 8 + 15 * 8
    assert "active" not in str(cost)
    given = lc.cost(lc.from_module(Routed(given=True), {"x": "float 5 16", "chosen": "int 5 30"}))
    assert given.active_parameters == given.parameters
