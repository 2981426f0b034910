"""Products of a vector with a matrix, as PyTorch's operators for matrix products run them."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from sampling import sampled
from test_imported_unit_dims import With


def randn(*shape, gradient=False):
    return torch.randn(*shape, requires_grad=gradient)


VECTORS = {
    "linear": (nn.Linear(32, 64), [randn(32)]),
    "linear with norms": (
        nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32)),
        [randn(32)],
    ),
    "linear of an input with a gradient": (nn.Linear(32, 5), [randn(32, gradient=True)]),
    "linear to one": (nn.Linear(32, 1), [randn(32)]),
    "all places of an image": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(0), nn.Linear(36, 5)), [randn(1, 3, 5, 5)]),
    "a view before": (With(lambda x, w: functional.linear(x.view(-1), w), (5, 24)), [randn(4, 6)]),
    "vector and matrix": (With(lambda x, w: x @ w, (6, 5)), [randn(6)]),
    "one query": (
        With(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v)),
        [randn(2, 3, 1, 4, gradient=True), randn(2, 3, 5, 4, gradient=True), randn(2, 3, 5, 4, gradient=True)],
    ),
    "a column for each sequence": (
        With(lambda x, y: torch.bmm(x, y.tanh())),
        [randn(2, 3, 4, gradient=True), randn(2, 4, 1, gradient=True)],
    ),
    "a row for each sequence, outer": (
        With(lambda x, y: torch.bmm(x, y.tanh())),
        [randn(2, 3, 1, gradient=True), randn(2, 1, 4, gradient=True)],
    ),
    "einsum of a vector": (With(lambda x, w: torch.einsum("d,df->f", x, w), (5, 6)), [randn(5)]),
    "einsum to a number": (With(lambda x, w: torch.einsum("d,d->", x, w), (6,)), [randn(6)]),
    "einsum row by row": (With(lambda x, w: torch.einsum("bd,bd->b", x, w), (3, 6)), [randn(3, 6, gradient=True)]),
    "einsum of a batch": (With(lambda x, w: torch.einsum("bdn,bn->bd", x, w), (3, 6)), [randn(3, 4, 6)]),
    "einsum of three": (With(lambda x, y, w: torch.einsum("i,ijk,j->k", x, w, y), (4, 5, 6)), [randn(4), randn(5)]),
    "signal, one window": (nn.Conv1d(8, 1, 3), [randn(1, 8, 3)]),
    "image, one place, no batch": (nn.Conv2d(8, 5, 3), [randn(8, 3, 3, gradient=True)]),
    "transposed, one place": (nn.ConvTranspose2d(32, 1, 3), [randn(1, 32, 1, 1)]),
    "transposed, one place, no batch": (nn.ConvTranspose2d(32, 1, 3), [randn(32, 1, 1, gradient=True)]),
    "transposed signal": (nn.ConvTranspose1d(1, 1, 3, stride=2), [randn(2, 1, 5)]),
    "transposed volume": (nn.ConvTranspose3d(2, 1, 2), [randn(1, 2, 1, 1, 1)]),
}


def flops(ledger):
    """Forward and backward."""
    forward = int(ledger.macro_operations["forward"][1].flops)
    return forward, int(ledger.total.flops) - forward


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("name", sampled(VECTORS, 4))
def test_a_vector_is_one_row_or_one_column(name):
    module, given = VECTORS[name]
    module.zero_grad()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            result = module(*given)
        with FlopCounterMode(display=False) as backward:
            result.sum().backward()
    counted = forward.get_total_flops(), backward.get_total_flops()
    assert counted[0]
    for as_run in (False, True):
        read = lc.from_module(module, tuple(given), as_run=as_run)
        assert flops(lc.cost(read, price_book="matmul")) == counted


NO_MATRICES = {
    "elementwise": (With(lambda x, w: x * w, (6,)), [randn(3, 6)]),
    "elementwise, summed": (With(lambda x, w: (x * w).sum(-1), (6,)), [randn(3, 6)]),
    "outer": (With(lambda x, w: torch.outer(w, x), (5,)), [randn(6)]),
    "outer of einsum": (With(lambda x, w: torch.einsum("bi,bj->bij", x, w), (3, 6)), [randn(3, 4)]),
    "matrix and vector": (With(lambda x, w: w @ x, (5, 6)), [randn(6)]),
    "a weight of one row": (With(functional.linear, (6,)), [randn(3, 6)]),
    "two vectors": (With(lambda x, w: x @ w, (6,)), [randn(6)]),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("name", NO_MATRICES)
def test_what_runs_as_no_product_of_matrices_stays_uncounted(name):
    """PyTorch runs some of these as mv and dot, of which FlopCounterMode has no formula."""
    module, given = NO_MATRICES[name]
    with FlopCounterMode(display=False) as counter:
        module(*given).sum().backward()
    assert counter.get_total_flops() == 0
    read = lc.from_module(module, tuple(given))
    for book in ("matmul", "torch-flop-counter"):
        assert lc.cost(read, price_book=book).total.flops == 0


def profiled(work):
    """FLOPs of the batched products that run inside of an operator, where FlopCounterMode does not look."""
    with profile(activities=[ProfilerActivity.CPU], with_flops=True, record_shapes=True) as profiler:
        result = work()
    return sum(event.flops for event in profiler.key_averages() if event.key == "aten::bmm"), result


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_bilinear_runs_two_products_and_one_for_its_weight(batch):
    module, given = nn.Bilinear(5, 6, 7), (randn(*batch, 5), randn(*batch, 6))
    forward, result = profiled(lambda: module(*given))
    backward, _ = profiled(lambda: result.sum().backward())
    assert flops(lc.cost(lc.from_module(module, given), price_book="matmul")) == (forward, backward)


GROUPED = {
    "one window": (nn.Conv1d(4, 6, 3, groups=2), [randn(1, 4, 3)]),
    "one place": (nn.Conv2d(4, 6, 1, groups=2), [randn(4, 1, 1)]),
    "transposed, one place": (nn.ConvTranspose1d(4, 6, 3, groups=2), [randn(1, 4, 1)]),
    "one channel in": (nn.Conv1d(4, 8, 3, groups=4), [randn(1, 4, 3)]),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_one_row_are_matrices(name):
    """The gradient of the weight has the forward pass's FLOPs, as in PyTorch's formula put right."""
    module, given = GROUPED[name]
    with FlopCounterMode(display=False) as forward:
        module(*given)
    read = read_module(module, tuple(given))
    assert flops(lc.cost(lc.layer(read.text), price_book="matmul")) == (forward.get_total_flops(),) * 2
    apart = parity(module, tuple(given), read)
    assert max(apart.value, apart.gradient) < 1e-12


DEPTHWISE = {
    "one place": (nn.Conv2d(8, 8, 3, groups=8), [randn(1, 8, 3, 3)]),
    "one place, transposed": (nn.ConvTranspose2d(4, 4, 3, groups=4), [randn(1, 4, 1, 1, gradient=True)]),
    "places": (nn.Conv1d(6, 6, 5, groups=6), [randn(2, 6, 9, gradient=True)]),
}


@pytest.mark.parametrize("name", [*GROUPED, *DEPTHWISE])
def test_the_book_of_flop_counter_mode_has_its_formula_of_grouped_weights(name):
    """As it is, with the gradient of a grouped weight too large by the number of groups, also of one place."""
    module, given = {**GROUPED, **DEPTHWISE}[name]
    module.zero_grad()
    with FlopCounterMode(display=False) as forward:
        result = module(*given)
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    counted = forward.get_total_flops(), backward.get_total_flops()
    assert flops(lc.cost(lc.from_module(module, tuple(given)), price_book="torch-flop-counter")) == counted
