"""Branches that follow from sizes and settings, and attention whose scores and masks are functions."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import learncost as lc
from learncost.importer.calls import TracedCalls, switched
from learncost.importer.replaced import WRITTEN_OUT
from learncost.ir.errors import InputError
from learncost.verification.imported import products


class Branch(nn.Module):
    def __init__(self, condition):
        super().__init__()
        self.project, self.condition = nn.Linear(4, 4), condition

    def forward(self, x):
        return self.project(x * 2.0 if self.condition(x) else x)


def causal(x):
    return torch.ones(x.shape[0], x.shape[0]).tril()


def written_in_place(x):
    held = torch.zeros(x.shape[0])
    held[:1] = 1
    return held.any()


SETTLED = {
    "equal masks": (lambda x: torch.equal(causal(x), torch.ones_like(causal(x)).tril()), True),
    "masks of other values": (lambda x: torch.equal(causal(x), 2 * causal(x)), False),
    "masks of other sizes": (lambda x: torch.equal(causal(x), causal(x)[1:]), False),
    "written in place": (written_in_place, True),
    "a number": (lambda x: torch.tensor([3.0, 1.0]).max().item() > 2, True),
    "finite": (lambda x: torch.isfinite(x * 2).all(), True),
    "not finite": (lambda x: torch.isinf(x).any() or x.isnan().any().logical_or((x != x).any()), False),
    "a whole one": (lambda x: int(torch.arange(3).sum()) == 4, False),
}


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("name", SETTLED)
@pytest.mark.parametrize("inputs", ["float 3 4", "float M 4"])
def test_a_branch_on_values_that_follow_from_sizes_is_taken_as_in_a_run(name, inputs):
    condition, taken = SETTLED[name]
    assert bool(condition(torch.ones(3, 4))) == taken
    text = lc.from_module(Branch(condition), {"x": inputs}).text
    assert ("2[]" in text) == taken


SEEN = torch.tensor([True, False, True, True])
CHOSEN = {
    "a mask of numbers": (lambda x, w: (x @ w)[:, SEEN], "", 0),
    "its places": (lambda x, w: (x @ w)[:, SEEN.nonzero().squeeze(1)], "", 0),
    "repeats of numbers": (lambda x, w: (x @ w).repeat_interleave(SEEN + 1, 1), "", 0),
    "a part of rows": (lambda x, w: (x @ w).scatter(1, SEEN[None, :1].long(), 0.5), "", 1),
    "a branch of longer ones": (lambda x, w: torch.cond(x.shape[0] > 2, lambda x: x @ w, torch.sin, (x,)), "M>=3", 0),
    "a branch of shorter ones": (lambda x, w: torch.cond(x.shape[0] > 9, torch.sin, lambda x: x @ w, (x,)), "M<=9", 0),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("name", CHOSEN)
def test_what_values_of_the_code_or_sizes_choose_is_read_as_in_a_run(name):
    function, limits, underived = CHOSEN[name]

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return function(x, self.weight)

    module, given = Chosen(), (torch.randn(5, 4),)
    opened = read_module(module, given, {"x": "M 4"} if limits else {})
    assert not limits or f"limits: {limits}" in opened.text
    apart = parity(module, given, opened)
    assert max(apart.value, apart.gradient) < 1e-12
    assert len(opened.calls) == underived
    assert products(module, given, opened).equal


@pytest.mark.parametrize(
    "condition", [lambda x: x.isfinite().all() & (x > 0).any(), lambda x: (causal(x) * x[:, :1]).any()]
)
def test_a_branch_on_an_input_is_refused(condition):
    with pytest.raises(InputError, match="depends on values"):
        lc.from_module(Branch(condition), {"x": "float M 4"})


def test_a_branch_on_a_number_that_follows_a_size_is_not_taken_for_all_sizes():
    with pytest.raises(InputError):
        lc.from_module(Branch(lambda x: torch.ones(x.shape[0]).sum() > 5), {"x": "float M 4"})


class Attention(nn.Module):
    """Attention by a function of three operands and of the number of positions."""

    def __init__(self, function):
        super().__init__()
        self.project, self.function = nn.Linear(16, 48), function

    def forward(self, x):
        parts = self.project(x).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return self.function(*parts, x.shape[1])


def flexible(score=None, seen=None):
    def function(q, k, v, positions):
        mask = None if seen is None else create_block_mask(seen, None, None, positions, positions, device="cpu")
        return flex_attention(q, k, v, score_mod=score, block_mask=mask)

    return function


def behind(_, __, query, key):
    return query >= key


def near(_, __, query, key):
    return (query - key).abs() <= 2


def by_distance(score, _, head, query, key):
    return score + (key - query) * 0.5 ** (head + 1)


def written(q, k, v, positions):
    places = torch.arange(positions)
    slopes = 0.5 ** (torch.arange(2).view(2, 1, 1) + 1)
    scores = q @ k.mT * 8**-0.5 + (places - places.view(-1, 1)) * slopes
    return scores.softmax(-1) @ v


PLAIN = {
    "all positions": (flexible(), lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v)),
    "a causal mask": (
        flexible(seen=behind),
        lambda q, k, v, _: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "scores by distance": (flexible(by_distance), written),
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("name", PLAIN)
def test_flexible_attention_costs_what_plain_attention_costs(name):
    costs = [
        lc.cost(lc.from_module(Attention(function), {"x": "float B 6 16"}), price_book=book, B=3)
        for function in PLAIN[name]
        for book in ("matmul", "run")
    ]
    totals = [each.total.flops for each in costs]
    assert totals[:2] == totals[2:]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("score", [None, by_distance])
@pytest.mark.parametrize("seen", [None, behind, near])
def test_flexible_attention_is_that_of_pytorch(score, seen):
    torch.manual_seed(0)
    given = (*torch.randn(3, 2, 2, 6, 8).unbind(), 6)
    with torch.no_grad():
        theirs = flexible(score, seen)(*given)
        with switched(), TracedCalls(WRITTEN_OUT):
            ours = flexible(score, seen)(*given)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_logarithms_of_sums_of_flexible_attention_are_refused():
    def function(q, k, v, _):
        return flex_attention(q, k, v, return_lse=True)

    with pytest.raises(InputError, match="logarithms of sums"):
        lc.from_module(Attention(function), {"x": "float 2 6 16"})
