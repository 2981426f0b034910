"""Buffers and inputs that a module changes in place: what they are after the call is a result of its table."""

import copy
from itertools import product

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from sampling import sampled


class Keeps(nn.Module):
    """A linear layer and buffers, and what a function makes of all."""

    def __init__(self, function, width=(6, 6), **buffers):
        super().__init__()
        self.function, self.layer = function, nn.Linear(*width)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def ema(m, x):
    y = m.layer(x)
    m.ema.mul_(0.9).add_(y.t() @ y)
    return y


def cached(m, x):
    key = m.layer(x)
    m.cache[:, : x.shape[1]] = key
    return key.sum(-1)


def prefilled(m, x):
    query, key, value = m.layer(x).chunk(3, -1)
    length = x.shape[1]
    m.keys[:, :length], m.values[:, :length] = key, value
    return functional.scaled_dot_product_attention(query, m.keys[:, :length], m.values[:, :length], is_causal=True)


def given_back(m, x, state):
    y = m.layer(x)
    state.mul_(0.5).add_(y.t() @ y)
    return y


def statistics(m, x):
    y = m.layer(x)
    with torch.no_grad():
        m.mean.lerp_(y.mean(0), 0.1)
        centered = y - m.mean
        m.covariance.mul_(0.9).add_(centered.t() @ centered / len(x), alpha=0.1)
    return y - m.mean


def predicted(m, x):
    m.covariance.copy_(m.transition @ m.covariance @ m.transition.t())
    return m.layer(x) @ m.covariance


def codes_of(m, x):
    z = m.layer(x)
    distances = (z**2).sum(1, keepdim=True) - 2 * z @ m.codes.t() + (m.codes**2).sum(1)
    return z, distances.argmin(1)


def averaged(m, chosen, z):
    """The codebook by moving averages: van den Oord, Vinyals & Kavukcuoglu 2017, appendix A.1."""
    with torch.no_grad():
        m.counts.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
        m.sums.mul_(0.99).add_(chosen.t() @ z, alpha=0.01)
        m.codes.copy_(m.sums / (m.counts + 1e-5).unsqueeze(1))


def codebook(m, x):
    z, places = codes_of(m, x)
    rows = m.codes[places]
    averaged(m, functional.one_hot(places, len(m.codes)).type_as(z), z)
    return (z + (rows - z).detach()) @ m.layer.weight, functional.mse_loss(rows.detach(), z)


def codebook_of_products(m, x):
    z, places = codes_of(m, x)
    chosen = torch.zeros(len(x), len(m.codes)).scatter_(1, places.unsqueeze(1), 1)
    rows = chosen @ m.codes
    m.counts = m.counts * 0.99 + 0.01 * chosen.sum(0)
    m.sums = m.sums * 0.99 + 0.01 * chosen.t() @ z.detach()
    m.codes = m.sums / (m.counts + 1e-5).unsqueeze(1)
    return z + (rows - z).detach(), functional.mse_loss(rows.detach(), z)


def teacher(m, x):
    target = (x @ m.weight.t()).softmax(-1)
    loss = -(target * m.layer(x).log_softmax(-1)).sum(-1).mean()
    with torch.no_grad():
        m.weight.mul_(0.99).add_(m.layer.weight, alpha=0.01)
        m.center.mul_(0.9).add_(target.t() @ target, alpha=0.1)
    return loss


def queue(m, x):
    z = functional.normalize(m.layer(x), dim=1)
    scores = z @ m.queue.clone().detach()
    with torch.no_grad():
        m.queue[:, : len(x)] = z.t()
    return scores


def iterations(m, x):
    for _ in range(3):
        m.hidden = torch.tanh(m.layer(x) + m.hidden @ m.layer.weight)
    return m.hidden


def stores_alone(m, x):
    m.gram.add_(x.t() @ x)


def filtered(m, x):
    signs = (m.layer(x) > 0).float()
    m.gram.add_(signs.t() @ signs)
    return m.layer(x)


class Blocks(nn.Sequential):
    """Three blocks with a buffer each."""

    def __init__(self):
        super().__init__(*(Keeps(ema, ema=torch.zeros(6, 6)) for _ in range(3)))


randn = torch.randn
CASES = {
    "moving average": (lambda: Keeps(ema, ema=torch.zeros(6, 6)), lambda: [randn(50, 6)]),
    "cache of keys": (lambda: Keeps(cached, cache=torch.zeros(2, 8, 6)), lambda: [randn(2, 4, 6)]),
    "prefill": (
        lambda: Keeps(prefilled, (8, 24), keys=torch.zeros(2, 10, 8), values=torch.zeros(2, 10, 8)),
        lambda: [randn(2, 5, 8)],
    ),
    "input": (lambda: Keeps(given_back), lambda: [randn(7, 6), randn(6, 6)]),
    "running covariance": (
        lambda: Keeps(statistics, (6, 5), mean=torch.zeros(5), covariance=torch.eye(5)),
        lambda: [randn(7, 6)],
    ),
    "buffers alone": (
        lambda: Keeps(predicted, (4, 4), covariance=torch.eye(4), transition=randn(4, 4)),
        lambda: [randn(3, 4)],
    ),
    "codebook": (
        lambda: Keeps(codebook, (48, 16), codes=randn(7, 16), counts=torch.zeros(7), sums=randn(7, 16)),
        lambda: [randn(8, 48)],
    ),
    "codebook assigned": (
        lambda: Keeps(codebook_of_products, (10, 6), codes=randn(8, 6), counts=torch.zeros(8), sums=randn(8, 6)),
        lambda: [randn(12, 10)],
    ),
    "teacher": (lambda: Keeps(teacher, (6, 4), weight=randn(4, 6), center=torch.zeros(4, 4)), lambda: [randn(5, 6)]),
    "queue": (lambda: Keeps(queue, (6, 4), queue=randn(4, 12)), lambda: [randn(5, 6)]),
    "assigned in a loop": (lambda: Keeps(iterations, hidden=torch.zeros(3, 6)), lambda: [randn(3, 6)]),
    "nothing returned": (lambda: Keeps(stores_alone, gram=torch.zeros(6, 6)), lambda: [randn(3, 6)]),
    "of what holds": (lambda: Keeps(filtered, gram=torch.zeros(6, 6)), lambda: [randn(3, 6)]),
    "blocks": (Blocks, lambda: [randn(9, 6)]),
}


def counted(module, inputs):
    """FLOPs that FlopCounterMode sees, forward and backward."""
    module, inputs = copy.deepcopy(module), [each.clone() for each in inputs]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            result = module(*inputs)
        ends = [each for each in torch.utils._pytree.tree_leaves(result) if each is not None and each.requires_grad]
        with FlopCounterMode(display=False) as backward:
            if ends:
                sum(each.sum() for each in ends).backward()
    return forward.get_total_flops(), backward.get_total_flops()


def priced(table):
    ledger = lc.cost(table, price_book="matmul")
    forward = int(ledger.macro_operations["forward"][1].flops)
    return forward, int(ledger.total.flops) - forward


RUNS = [*product(CASES, [False]), *sampled(product(CASES, [True]), 3)]


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize(("name", "as_run"), RUNS)
def test_products_of_what_is_changed_in_place_are_counted(name, as_run):
    make, draw = CASES[name]
    module, inputs = make(), draw()
    before = copy.deepcopy(module.state_dict())
    table = lc.from_module(module, tuple(inputs), as_run=as_run)
    assert priced(table) == counted(module, inputs)
    assert all(torch.equal(value, before[path]) for path, value in module.state_dict().items())


@pytest.mark.parametrize("name", sampled(CASES, 3))
def test_a_table_has_the_values_after_the_call(name):
    make, draw = CASES[name]
    module, inputs = make(), tuple(draw())
    read = read_module(module, inputs)
    assert read.changed
    apart = parity(module, inputs, read)
    assert max(apart.value, apart.gradient) < 1e-12
    assert apart.module < 1e-5


def test_counts_of_a_moving_average_and_of_a_codebook():
    """2 n d f of the layer and 2 d n d of the average; of 8 rows of 48, with 7 codes of 16, three products and one."""
    make, draw = CASES["moving average"]
    assert priced(lc.from_module(make(), tuple(draw())))[0] == 2 * 50 * 6 * 6 + 2 * 6 * 50 * 6 == 7200
    make, draw = CASES["codebook"]
    layers, codes = 2 * (2 * 8 * 48 * 16), 2 * 8 * 16 * 7
    assert priced(lc.from_module(make(), tuple(draw())))[0] == layers + 2 * codes == 26_368 + codes == 28_160


def test_what_is_changed_is_kept_and_said():
    make, draw = CASES["cache of keys"]
    table = lc.from_module(make(), tuple(draw()))
    assert table.table.outputs[-1] == "cache.after"
    assert "cache.after is cache after the call, which changes it in place." in table.source
    bytes_of_cache = 4 * 2 * 8 * 6
    without = lc.from_module(Keeps(lambda m, x: m.layer(x).sum(-1)), tuple(draw()))
    more = lc.memory(table, engine="graph").peak - lc.memory(without, engine="graph").peak
    assert more >= bytes_of_cache


def test_statistics_that_an_operator_keeps_itself_are_no_lines():
    """They are no products, and batch_norm runs them within."""
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    read = read_module(module, (randn(5, 6),))
    assert not read.changed
    assert priced(lc.layer(read.text)) == counted(module, [randn(5, 6)])


class Inputs(nn.Module):
    """Inputs in a row and in a mapping."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, pair, named):
        return self.layer(pair[0]) @ pair[1] + named["x"]


def test_one_run_has_the_gradients_of_inputs_in_rows_and_mappings():
    given = {
        "pair": (randn(2, 6, requires_grad=True), randn(6, 6, requires_grad=True)),
        "named": {"x": randn(2, 6, requires_grad=True)},
    }
    module = Inputs()
    with FlopCounterMode(display=False) as counter:
        module(**given).sum().backward()
    for as_run in (False, True):
        table = lc.from_module(module, given, as_run=as_run)
        assert lc.cost(table, price_book="matmul").total.flops == counter.get_total_flops()


class Chooses(nn.Module):
    """Tokens that a score lets through."""

    def __init__(self):
        super().__init__()
        self.score, self.layer = nn.Linear(6, 1), nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x[self.score(x).squeeze(-1) > 0])


def test_one_run_counts_the_products_by_which_it_selects():
    module, x = Chooses(), randn(10, 6)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    assert lc.cost(lc.from_module(module, (x,), as_run=True), price_book="matmul").total.flops == (
        counter.get_total_flops()
    )
