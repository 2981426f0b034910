"""What a module's results are in its table: losses, joins, bags, and where a refusal points."""

import pytest
import torch
from torch import nn

import learncost as lc
from learncost.models.imported.walk import read_module
from learncost.proof.imported import parity, products


class Routed(nn.Module):
    """A result, and a number beside it: one to which the result leads, or not."""

    def __init__(self, leads):
        super().__init__()
        self.first, self.second, self.leads = nn.Linear(4, 4), nn.Linear(4, 4), leads

    def forward(self, x):
        y = self.first(x)
        return y, (y if self.leads else self.second(x)).square().mean()


@pytest.mark.parametrize("leads", [True, False])
def test_a_number_is_the_loss_where_all_results_lead_to_it(leads):
    module, given = Routed(leads), (torch.randn(3, 4),)
    read = read_module(module, given)
    assert list(lc.layer(read.text).table.outputs) == ["loss"] if leads else len(read.outputs) == 2
    assert parity(module, given, read).gradient < 1e-10
    assert products(module, given, read).equal


class Joined(nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y, x], 1).tanh()


def test_a_join_costs_as_much_at_fixed_sizes_as_at_open_ones():
    given = (torch.randn(2, 3, requires_grad=True), torch.randn(2, 4, requires_grad=True))
    fixed, opened = read_module(Joined(), given), read_module(Joined(), given, {"x": "B M", "y": "B N"})
    costs = [lc.cost(lc.layer(read.text), **sizes) for read, sizes in ((fixed, {}), (opened, {"B": 2, "M": 3, "N": 4}))]
    forward = [cost.macro_operations["forward"][1].flops for cost in costs]
    assert forward == [20, 20]  # a hyperbolic tangent for each of 2 by 10, and no sum


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_of_one_length(mode):
    module, given = nn.EmbeddingBag(7, 3, mode=mode), (torch.randint(0, 7, (4, 5)),)
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient) < 1e-12
    if mode == "mean":
        opened = lc.layer(read_module(module, given, {"input": "B M"}).text)
        assert opened.table.axes["targets" if "targets" in opened.table.inputs else opened.table.inputs[0]] == (
            "B",
            "M",
        )


def test_a_refusal_points_at_the_line_of_the_user():
    module = nn.Sequential(nn.EmbeddingBag(7, 3, padding_idx=0))

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = module

        def forward(self, places):
            return self.bags(places)

    with pytest.raises(
        lc.InputError, match=r"an EmbeddingBag with offsets, a padding .* in bags\.0 .*test_imported_results"
    ):
        read_module(Mine(), (torch.randint(0, 7, (4, 5)),))
