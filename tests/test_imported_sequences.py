"""Attention over sequences of several lengths in one row: products by the lengths, held to PyTorch's formula and to a
dense attention of every sequence."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from module_parity import parity
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import learncost as lc

varlen = pytest.importorskip("torch.nn.attention.varlen")

LENGTHS = ((5, 7, 8), (1, 12, 3, 4), (20,))


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed(q, k, v, of_queries, of_keys, causal):
    longest = (20, 20)
    return varlen.varlen_attn(q, k, v, of_queries, of_keys, *longest, window_size=(-1, 0) if causal else (-1, -1))


def flash(q, k, v, of_queries, of_keys, causal):
    kernel = torch.ops.aten._flash_attention_forward
    return kernel(q, k, v, of_queries, of_keys, 20, 20, 0.0, causal, False)[0]


def efficient(q, k, v, of_queries, of_keys, causal):
    kernel = torch.ops.aten._efficient_attention_forward
    mask = 2 if causal else 0
    return kernel(q[None], k[None], v[None], None, of_queries, of_keys, 20, 20, 0.0, mask, True)[0]


KERNELS = (packed, flash, efficient)


class Attends(nn.Module):
    """Queries, keys and values are made by matrices, whose products are counted apart."""

    def __init__(self, kernel, causal=False):
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(6, 16, bias=False) for _ in range(3))
        self.kernel, self.causal = kernel, causal

    def forward(self, x, y, of_queries, of_keys):
        q, k, v = self.queries(x), self.keys(y), self.values(y)
        q, k, v = (each.view(-1, 2, 8) for each in (q, k, v))
        return self.kernel(q, k, v, of_queries, of_keys, self.causal)


def counted(module, given, price_book="matmul"):
    """The FLOPs forward and backward of attention alone."""
    cost = lc.cost(lc.from_module(module, given), price_book=price_book)
    linear = sum(2 * len(given[place]) * 6 * 16 for place in (0, 1, 1))
    parts = {name: operations.flops for name, (_, operations) in cost.macro_operations.items()}
    assert parts["weight_update"] == linear
    return parts["forward"] - linear, parts["backward"], cost


def densely(of_queries, of_keys):
    """The FLOPs of a dense attention of each sequence, whose backward pass computes the scores once more."""
    forward, backward = 0, 0
    for queries, keys in zip(of_queries, of_keys, strict=True):
        q, k, v = (torch.randn(2, n, 8, requires_grad=True) for n in (queries, keys, keys))
        with FlopCounterMode(display=False) as scores:
            shares = (q @ k.mT).softmax(-1)
        with FlopCounterMode(display=False) as rest:
            result = shares @ v
        with FlopCounterMode(display=False) as back:
            result.sum().backward()
        forward += scores.get_total_flops() + rest.get_total_flops()
        backward += back.get_total_flops() + scores.get_total_flops()
    return forward, backward


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_products_are_counted_by_the_lengths_of_the_example(kernel, lengths):
    places = offsets(lengths)
    x = torch.randn(20, 6)
    forward, backward, cost = counted(Attends(kernel), (x, x, places, places))
    q = torch.empty(20, 2, 8)
    assert forward == flop_registry[torch.ops.torch_attn._varlen_attn](q, q, q, places, places, 20, 20)
    of_backward = flop_registry[torch.ops.aten._flash_attention_backward]
    assert backward == of_backward(q, q, q, q, q, None, places, places, 20, 20)
    assert (forward, backward) == densely(lengths, lengths)
    text = " ".join(str(cost).split())
    assert f"over sequences of {', '.join(map(str, lengths))} tokens" in text
    assert "upper bound" not in text


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("of_queries", "of_keys"), [((5, 7, 8), (5, 7, 8)), ((2, 3, 1), (9, 4, 11)), ((6, 2), (2, 6))])
def test_a_causal_mask_leaves_the_pairs_up_to_the_last_key(kernel, of_queries, of_keys):
    given = torch.randn(sum(of_queries), 6), torch.randn(sum(of_keys), 6), offsets(of_queries), offsets(of_keys)
    seen = sum(int(torch.ones(q, k).tril(k - q).sum()) for q, k in zip(of_queries, of_keys, strict=True))
    every = sum(q * k for q, k in zip(of_queries, of_keys, strict=True))
    dense = densely(of_queries, of_keys)
    shares = {
        "matmul": 1,
        "torch-flop-counter": 1,
        "causal-half": Fraction(1, 2),
        "causal-exact": Fraction(seen, every),
    }
    for book, share in shares.items():
        assert counted(Attends(kernel, causal=True), given, book)[:2] == tuple(share * each for each in dense)
        assert counted(Attends(kernel), given, book)[:2] == dense


def test_a_window_under_a_causal_mask_leaves_the_last_keys():
    def windowed(q, k, v, of_queries, of_keys, causal):
        return varlen.varlen_attn(q, k, v, of_queries, of_keys, 20, 20, window_size=(3, 0))

    lengths = (5, 7, 8)
    x = torch.randn(20, 6)
    seen = sum(int(torch.ones(n, n).tril().triu(-3).sum()) for n in lengths)
    share = Fraction(seen, sum(n * n for n in lengths))
    forward, backward, _ = counted(Attends(windowed), (x, x, offsets(lengths), offsets(lengths)), "causal-exact")
    assert (forward, backward) == tuple(share * each for each in densely(lengths, lengths))


class Lengths(nn.Module):
    """Lengths are an input, or a buffer; offsets are computed of them."""

    def __init__(self, held=None):
        super().__init__()
        self.linear = nn.Linear(6, 48, bias=False)
        self.register_buffer("held", held)

    def forward(self, x, lengths=None):
        lengths = self.held if lengths is None else lengths
        places = nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        q, k, v = self.linear(x).view(-1, 3, 2, 8).unbind(1)
        return varlen.varlen_attn(q, k, v, places, places, 20, 20)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths_of_which_offsets_are_computed_are_known_too(lengths):
    x, given = torch.randn(20, 6), torch.tensor(lengths)
    for module, inputs in ((Lengths(), (x, given)), (Lengths(given), (x,))):
        cost = lc.cost(lc.from_module(module, inputs), price_book="matmul")
        assert cost.macro_operations["forward"][1].flops == 2 * 20 * 6 * 48 + densely(lengths, lengths)[0]


def test_lengths_that_are_not_known_stay_an_upper_bound():
    places = offsets((5, 7, 8))
    bound = 3 * 2 * (2 * 2 * 20 * 20 * 8)
    x = torch.randn(20, 6)
    module = Attends(packed)
    names = {"of_queries": "int32 4", "of_keys": "int32 4"}
    short = offsets((5, 7, 6))  # they end before the tokens do
    of_texts = lc.from_module(module, {"x": "float 20 6", "y": "float 20 6", **names})
    of_open = lc.from_module(module, (x, x.clone(), places, places), {"x": "M 6", "y": "M 6"})
    of_short = lc.from_module(module, (x, x.clone(), short, short))
    for model, sizes in ((of_texts, {}), (of_open, {"M": 20}), (of_short, {})):
        cost = lc.cost(model, price_book="matmul", **sizes)
        assert cost.macro_operations["forward"][1].flops == 3 * 2 * 20 * 6 * 16 + bound
        assert "every sequence as long as the longest: an upper bound" in " ".join(str(cost).split())


class OfLengths(nn.Module):
    """A nested tensor: attention of each sequence, or its rows alone."""

    def __init__(self, attends):
        super().__init__()
        self.attends, self.points = attends, nn.ModuleList(nn.Linear(6, 16) for _ in range(3))

    def forward(self, batch):
        rows = [points(batch["rows"]) for points in self.points]
        if self.attends:
            parts = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in rows)
            rows = [nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)]
            return torch.nested.to_padded_tensor(rows[0], 0.0).sum(1)
        return (rows[0] * rows[1]).relu() + rows[2]


@pytest.mark.parametrize("attends", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_nested_tensor_is_read_at_its_lengths(attends):
    torch.manual_seed(0)
    nested = torch.nested.nested_tensor([torch.randn(length, 6) for length in LENGTHS[0]], layout=torch.jagged)
    module = OfLengths(attends)
    model = lc.from_module(module, {"batch": {"rows": nested}})
    live = model.live()
    _, imported, whole = live.read()
    found = parity(whole, live.inputs, imported)  # of the module itself, too
    assert max(found.value, found.gradient) < 1e-12
    assert found.module < 1e-5
    products = densely(LENGTHS[0], LENGTHS[0])[0] if attends else 0
    assert lc.cost(model, price_book="matmul").macro_operations["forward"][1].flops == 3 * 2 * 20 * 6 * 16 + products


def test_the_share_under_a_mask_is_a_fraction():
    text = "f(X; W) -> Y\n  H[B e] = X[B d] W[d e]\n  Y[B e] = opaque(H[B e]) forward 90 B visible {}\n"
    layer = lc.layer(text.format("5/9"))
    for book, flops in (("matmul", 90), ("causal-half", 45), ("causal-exact", 50)):
        cost = lc.cost(layer, price_book=book, B=1, d=2, e=2)
        assert cost.macro_operations["forward"][1].flops == 2 * 2 * 2 + flops
    assert "visible 5/9" in str(layer)
    for wrong in ("9/5", "1/0", "half", "-1/2", "1", "1e1/9"):
        with pytest.raises(lc.InputError, match="a fraction such as 5/9"):
            lc.layer(text.format(wrong))


def test_many_sequences_are_said_in_number():
    lengths = (2,) * 10
    assert [after - before for before, after in pairwise(offsets(lengths).tolist())] == [*lengths]
    x = torch.randn(20, 6)
    _, _, cost = counted(Attends(packed), (x, x, offsets(lengths), offsets(lengths)))
    assert "over 10 sequences of 20 tokens in all" in " ".join(str(cost).split())
