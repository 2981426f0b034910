"""Whole numbers that are computed from values that learn: counts of what holds as operands, as places and as rows."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional

from learncost.verification.imported import products
from sampling import sampled


def ranks(z):
    return torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)


def sparsemax(z):
    """Martins & Astudillo 2016, algorithm 1: how many are in the support is the place of the threshold."""
    ordered = z.sort(-1, descending=True).values
    below = ordered.cumsum(-1) - 1
    many = (ranks(z) * ordered > below).sum(-1, keepdim=True)
    return (z - below.gather(-1, many - 1) / many).clamp(min=0)


def entmax(z):
    """Peters, Niculae & Martins 2019, algorithm 2, for alpha 1.5; a root of what is no support has a slope, too."""
    z = (z - z.amax(-1, keepdim=True)) / 2
    ordered = z.sort(-1, descending=True).values
    mean, squares = ordered.cumsum(-1) / ranks(z), (ordered**2).cumsum(-1) / ranks(z)
    threshold = mean - ((1 - ranks(z) * (squares - mean**2)) / ranks(z)).clamp(min=1e-9).sqrt()
    many = (threshold <= ordered).sum(-1)
    return (z - threshold.gather(-1, many.unsqueeze(-1) - 1)).clamp(min=0) ** 2


def last_of_support(z):
    """A place that is counted up to each, and read by rows."""
    places = (z > 0).long().cumsum(-1).clamp(max=z.shape[-1] - 1)
    return z.gather(-1, places) * places


def parted(z):
    """Counts side by side, and each of them a place."""
    fewer, more = torch.stack([(z > 0.5).sum(-1), (z > 0).sum(-1)], -1).sub(1).clamp(min=0).unbind(-1)
    return z - z.gather(-1, fewer[..., None]) * z.gather(-1, more[..., None])


def by_row(z):
    """A count as the row of a table of vectors, moved by the place of the largest."""
    rows = torch.arange(5.0, device=z.device)[:, None] * z.mean(0)[:1, :1].squeeze() + 1
    return z * rows[((z > 0).sum(-1) + z.argmax(-1)) % 5]


class Between(nn.Module):
    """A function of the scores between two linear layers."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(3, 6), nn.Linear(3, 2), function

    def forward(self, x):
        return self.second(self.function(self.first(x).mT).mT[..., :3])


FUNCTIONS = {each.__name__: each for each in (sparsemax, entmax, last_of_support, parted, by_row)}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("sizes", ["B M 3", "2 7 3"])
@pytest.mark.parametrize("name", sampled(sorted(FUNCTIONS), 2))
def test_a_count_of_what_holds_is_a_place(name, sizes):
    module = Between(FUNCTIONS[name])
    read = read_module(module, (torch.randn(2, 7, 3),), {"x": sizes})
    for shape in ((2, 7, 3),) if "B" not in sizes else ((2, 7, 3), (1, 4, 3), (3, 9, 3)):
        given = (3 * torch.randn(shape),)
        apart = parity(module, given, read)
        assert max(apart.value, apart.gradient) < 1e-12
        assert products(module, given, read).equal


def test_shares_of_sparsemax_and_entmax_are_1_in_all():
    z = 3 * torch.randn(4, 9, dtype=torch.float64)
    for shares in (sparsemax(z), entmax(z)):
        assert torch.allclose(shares.sum(-1), torch.ones(4, dtype=torch.float64))
        assert (shares == 0).any()


class Answers(nn.Module):
    """A loss at classes that are counted, as many as there are sequences."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.first(x)
        return functional.cross_entropy(scores, (scores > 0).sum(-1).clamp(max=3))


def test_counted_answers_of_a_loss_are_places_and_no_shares():
    module, given = Answers(), (torch.randn(4, 4),)
    apart = parity(module, given, read_module(module, given))
    assert max(apart.value, apart.gradient) < 1e-12
