"""Sequences that are packed by their lengths: of one run, and refused where lengths are values."""

from copy import deepcopy

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn.utils import rnn
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.importer.tracing import straight
from learncost.verification.imported import products, run_both

LENGTHS = torch.tensor([2, 4, 1])


class Packed(nn.Module):
    """A recurrence over sequences of these lengths, padded again, and the last state of each."""

    def __init__(self, kind, sorts, **settings):
        super().__init__()
        self.recurrence, self.sorts = getattr(nn, kind)(3, 5, batch_first=True, **settings), sorts

    def forward(self, x, lengths):
        if not self.sorts:
            lengths = lengths.sort(descending=True)[0]
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=not self.sorts)
        states, last = self.recurrence(packed)
        padded, _ = rnn.pad_packed_sequence(states, batch_first=True, padding_value=0.5, total_length=6)
        return padded, last[0] if isinstance(last, tuple) else last


@pytest.mark.one_in(every=17)
@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("GRU", {"bidirectional": True}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"proj_size": 2}),
        ("RNN", {"nonlinearity": "relu"}),
        ("RNN", {"bias": False}),
    ],
)
def test_one_run_has_the_places_of_its_lengths(kind, settings, sorts):
    module, given = Packed(kind, sorts, **settings), (torch.randn(3, 4, 3, requires_grad=True), LENGTHS)
    run = straight(module, {"x": given[0], "lengths": LENGTHS})
    imported = read_module(run, given)
    found = parity(run, given, imported)
    assert max(found.value, found.gradient) < 1e-12
    assert products(run, given, imported).equal
    ends = [sum(each.square().sum() for each in whole(*given)) for whole in (run, module)]
    gradients = [torch.autograd.grad(end, [given[0], *module.parameters()]) for end in ends]
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_it_costs_what_its_places_do():
    """A recurrence over all places of sequences as long as each other costs what it does without packing."""
    x, lengths = torch.randn(3, 4, 3), torch.tensor([4, 4, 4])
    packed = lc.from_module(Packed("GRU", False), (x, lengths), as_run=True)
    padded = lc.from_module(nn.GRU(3, 5, batch_first=True), (x,))
    assert lc.cost(packed, price_book="matmul").total.flops == lc.cost(padded, price_book="matmul").total.flops
    shorter = lc.from_module(Packed("GRU", True), (x, LENGTHS), as_run=True)
    places = lc.cost(shorter, price_book="matmul").total.flops / lc.cost(packed, price_book="matmul").total.flops
    assert places < 8 / 12  # 7 of 12, and less: no state before the first
    both = lc.from_module(Packed("GRU", True, bidirectional=True), (x, LENGTHS), as_run=True)
    assert lc.verify(both).passed  # rows that are joined again, in the other order, have the sizes of the run


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(3, 4, bias=False, batch_first=True),
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True),
        lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True),
    ],
)
def test_a_recurrence_over_an_open_length_is_a_loop(make):
    """FlopCounterMode counts the step at two lengths; in fp32 PyTorch would call a kernel that it does not count."""
    module = make()
    imported = read_module(module, (torch.randn(2, 5, 3),), {"input": "B M 3"})
    directions = 2 if module.bidirectional else 1
    assert imported.text.count("  repeat ") == module.num_layers * directions
    for length in (4, 7):
        x = torch.randn(2, length, 3)
        ran = run_both(module, (x,), imported, lc.layer(imported.text))
        assert max(ran.value, ran.gradient) < 1e-12
        with FlopCounterMode(display=False) as counter:
            deepcopy(module).double()(x.double())[0].sum().backward()
        costs = lc.cost(lc.layer(imported.text), price_book="matmul", B=2, M=length)
        assert costs.total.flops == counter.get_total_flops()


def test_lengths_that_are_values_are_refused_in_one_line():
    with pytest.raises(
        lc.InputError,
        match=r"test_imported_packed.py:\d+: pack_padded_sequence depends on the values of lengths.* --as-run",
    ):
        lc.from_module(Packed("LSTM", True), (torch.randn(3, 4, 3), LENGTHS))


@pytest.mark.slow
def test_a_recurrence_over_an_open_length_is_adapted_as_one_over_a_number():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrence, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x):
            return self.head(self.recurrence(x)[0]).square().mean()

    module = Tagger()
    opened = lc.from_module(module, {"x": "float B T 4"})
    fixed = lc.from_module(module, {"x": torch.randn(2, 7, 4)})
    for chosen in ({"lora": "all-linear"}, {"train": "head"}, {"train": "biases"}):
        step = lc.cost(opened, price_book="matmul", B=2, T=7, **chosen)
        assert step.total.flops == lc.cost(fixed, price_book="matmul", **chosen).total.flops
        assert 0 < step.trained_parameters < step.parameters
