"""Matrix products with one row, one column or one summed position, compared with the counts of PyTorch."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from sampling import sampled


class With(nn.Module):
    """A function of its inputs and of weights of these shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.several = nn.ParameterList([nn.Parameter(torch.randn(*shape)) for shape in shapes])

    def forward(self, *inputs):
        return self.function(*inputs, *self.several)


CASES = {
    "one column": (With(lambda x, w: x @ w, (8, 1)), (4, 8)),
    "one place to sum": (With(lambda x, w: x @ w, (1, 8)), (4, 1)),
    "one row of values": (With(lambda x, w: x @ w, (8, 5)), (1, 8)),
    "one row of weights": (With(lambda x, w: w @ x, (1, 8)), (8, 4)),
    "a vector as a column": (With(lambda x, w: x @ w.unsqueeze(1), (8,)), (4, 8)),
    "a bias": (With(lambda x, w, b: torch.addmm(b, x, w), (8, 1), (1,)), (4, 8)),
    "all of one": (nn.Linear(1, 1), (4, 1)),
    "a rank of one": (With(lambda x, a, b: x @ a.T @ b.T, (1, 8), (6, 1)), (4, 8)),
    "a row spread": (With(lambda x, w: x @ w.expand(8, 5), (1, 5)), (4, 8)),
    "a number spread": (With(lambda x, w: x @ w.expand(8, 5), (1,)), (4, 8)),
    "a number spread, of a linear layer": (With(lambda x, w: nn.functional.linear(x, w.expand(5, 8)), (1,)), (4, 8)),
    "einsum": (With(lambda x, w: torch.einsum("bd,df->bf", x, w), (8, 1)), (4, 8)),
    "einsum over one": (With(lambda x, w: torch.einsum("bd,df->bf", x, w), (1, 8)), (4, 1)),
    "several with one column": (With(torch.bmm, (3, 8, 1)), (3, 4, 8)),
    "an outer product": (With(lambda x, w, v: x * (w @ v), (4, 1), (1, 5)), (4, 5)),
    "one channel out": (nn.Conv2d(8, 1, 1), (2, 8, 3, 3)),
    "one channel in, one place": (nn.Conv1d(1, 8, 1), (2, 1, 5)),
    "a signal's one channel out": (nn.Conv1d(8, 1, 3), (2, 8, 5)),
}


@pytest.mark.parametrize(("module", "shape"), sampled(CASES.values(), 2), ids=CASES.keys())
def test_one_row_or_column_makes_a_matrix(module, shape):
    given = (torch.randn(*shape, requires_grad=True),)
    with FlopCounterMode(display=False) as forward:
        result = module(*given)
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    counted = forward.get_total_flops(), backward.get_total_flops()
    read = read_module(module, given)
    for book in ("torch-flop-counter", "matmul"):
        ledger = lc.cost(lc.layer(read.text), price_book=book)
        priced = ledger.macro_operations["forward"][1].flops
        assert (priced, ledger.total.flops - priced) == counted, book
    apart = parity(module, given, read)
    assert max(apart.value, apart.gradient) < 1e-12


def test_a_channel_by_itself_is_no_matrix():
    """PyTorch has kernels of its own for depthwise convolutions, also where there is one window alone."""
    for length in (7, 3):
        read = read_module(nn.Conv1d(4, 4, 3, groups=4), (torch.randn(2, 4, length),))
        assert lc.cost(lc.layer(read.text), price_book="matmul").total.flops == 0
        assert lc.cost(lc.layer(read.text), price_book="torch-flop-counter").total.flops > 0


class Rows(nn.Linear):
    """Rows written one by one."""

    def forward(self, x):
        out = torch.zeros(x.shape[0], 4)
        for row in range(x.shape[0]):
            out[row] = super().forward(x[row])
        return out


def test_a_run_takes_the_sizes_that_the_table_fixes():
    module = Rows(4, 4).double()
    table = lc.from_module(module, (torch.randn(3, 4),))
    weights = {name: value.detach().numpy() for name, value in module.named_parameters()}
    x = torch.randn(3, 4, dtype=torch.float64)
    values = lc.run(table, {"x": x.numpy(), **weights})
    (output,) = table.table.outputs
    assert abs(values[output] - (x @ module.weight.T + module.bias).detach().numpy()).max() < 1e-12
    with pytest.raises(lc.InputError, match=r"axis n is 5, but the table fixes n=3"):
        lc.run(table, {"x": torch.randn(5, 4).numpy(), **weights})


def test_what_an_export_has_no_words_for_is_refused_in_one_line():
    gradient = With(lambda x, w: torch.func.grad(lambda y: (y @ w).sum())(x), (4, 4))
    with pytest.raises(lc.InputError, match=r"With computes a derivative with torch.func .*write out"):
        lc.from_module(gradient, (torch.randn(3, 4),))
    sparse = With(lambda x, w: x @ (w + torch.sparse_coo_tensor(torch.eye(2).long(), x[0, :2], (4, 4))), (4, 4))
    compressed = With(lambda x, w: (x @ w).to_sparse_csr() @ w, (4, 4))
    for each in (sparse, compressed):
        with pytest.raises(lc.InputError, match=r"a sparse tensor cannot be read \(.*\.py:\d+\); use dense tensors"):
            lc.from_module(each, (torch.randn(3, 4),))
    with pytest.raises(lc.InputError, match=r"xs is .*: remove it from symbols"):
        lc.from_module(Listed(), ([torch.randn(3, 4)],), {"xs": ["B 4"]})


class Listed(nn.Linear):
    """A module that takes a list."""

    def __init__(self):
        super().__init__(4, 4)

    def forward(self, xs):
        return super().forward(xs[0])


class Sampled(nn.Module):
    """Maps of one place, and of one row, at places that a flow gives, as DETR's smallest ones are."""

    def forward(self, one, row, flow, places):
        apart = [nn.functional.grid_sample(each, flow, align_corners=False) for each in (one, row)]
        return *apart, one[:, :, places, places], row[:, :, places], row[:, :, places[:, None], places]


@pytest.mark.slow
def test_the_only_place_of_an_axis_is_read_by_many():
    def given(rows):
        maps = (torch.randn(rows, 3, 1, width, requires_grad=True) for width in (1, 5))
        return *maps, torch.randn(rows, 4, 6, 2, requires_grad=True), torch.zeros(3, dtype=torch.long)

    read = read_module(Sampled(), given(2), {"one": "B 3 1 1", "row": "B 3 1 5", "flow": "B 4 6 2"})
    found = parity(Sampled(), given(4), read)
    assert max(found.value, found.gradient) < 1e-12


ROWS = {
    "an embedding": lambda y, places, weight: y * functional.embedding(places, weight),
    "an embedding of padding": lambda y, places, weight: y * functional.embedding(places, weight, padding_idx=0),
    "an embedding at positions": lambda y, _, weight: y * functional.embedding(torch.arange(1), weight),
    "rows by index": lambda y, places, weight: y * weight.index_select(0, places),
    "rows as indexed": lambda y, places, weight: y * weight[places],
}


@pytest.mark.parametrize("function", sampled(ROWS.values(), 2), ids=ROWS.keys())
def test_a_table_of_one_row_is_read_at_every_place(function):
    module = With(lambda x, places, w, weight: function(x @ w, places, weight), (6, 6), (1, 6))
    given = (torch.randn(3, 6), torch.zeros(3, dtype=torch.long))
    apart = parity(module, given, read_module(module, given))
    assert max(apart.value, apart.gradient) < 1e-12
