"""Refusals that name the true cause, and a way that works: the way is gone, and works."""

import pytest
import torch
from module_parity import parity, read_module
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.cli.command import main
from learncost.verification.imported import run_both


class Masked(nn.Module):
    """An encoder or a decoder of PyTorch under a mask."""

    def __init__(self, decodes, mask):
        super().__init__()
        kinds = nn.TransformerDecoderLayer, nn.TransformerDecoder
        layer, stack = kinds if decodes else (nn.TransformerEncoderLayer, nn.TransformerEncoder)
        self.stack = stack(layer(16, 2, 32, 0.0, batch_first=True), 1)
        self.decodes, self.mask = decodes, mask

    def forward(self, x, mask):
        mask = self.mask(mask)
        return self.stack(x, x, tgt_mask=mask) if self.decodes else self.stack(x, mask=mask)


MASKS = {
    "generated": lambda mask: nn.Transformer.generate_square_subsequent_mask(mask.shape[0]),
    "of what holds": lambda mask: torch.ones_like(mask, dtype=torch.bool).triu(1),
    "given": lambda mask: mask,
    "none that is causal": lambda mask: torch.zeros_like(mask).index_fill(1, torch.tensor([0]), float("-inf")),
}


@pytest.mark.parametrize("decodes", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "mask", [*list(MASKS)[:1], *(pytest.param(m, marks=pytest.mark.slow) for m in list(MASKS)[1:])]
)
def test_a_mask_of_a_transformer_is_no_branch_on_values(decodes, mask):
    module = Masked(decodes, MASKS[mask])
    x, given = torch.randn(2, 6, 16), nn.Transformer.generate_square_subsequent_mask(6)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x, given).sum().backward()
    for as_run, sizes in ((False, "B M"), (True, "2 6")):
        square = sizes.rpartition(" ")[2]
        inputs = {"x": f"float {sizes} 16", "mask": f"float {square} {square}"}
        model = lc.from_module(module, inputs, as_run=as_run)
        cost = lc.cost(model, price_book="matmul", **({} if as_run else {"B": 2, "M": 6}))
        assert cost.total.flops == counter.get_total_flops()
    apart = parity(module, (x, given), read_module(module, (x, given)))
    assert max(apart.value, apart.gradient) < 1e-10


class Computes(nn.Module):
    """A function of a linear layer's result."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.linear(x))


class Sign(torch.autograd.Function):
    """A sign with a gradient of its own."""

    @staticmethod
    def forward(context, x):
        return x.sign()

    @staticmethod
    def backward(context, gradient):
        return gradient


@pytest.mark.parametrize("as_run", [False, True])
def test_a_function_with_a_gradient_of_its_own_costs_what_its_lines_cost(as_run):
    ours = lc.from_module(Computes(Sign.apply), {"x": "float 3 6"}, as_run=as_run)
    straight = lc.from_module(Computes(lambda x: x + (torch.sign(x) - x).detach()), {"x": "float 3 6"})
    assert {lc.cost(each, price_book="matmul").total.flops for each in (ours, straight)} == {432}
    assert "functions::Sign" in str(lc.cost(ours))


DISTRIBUTIONS = {
    "Categorical": (lambda y: torch.distributions.Categorical(logits=y), 1),
    "Bernoulli": (lambda y: torch.distributions.Bernoulli(logits=y), 1),
    "Normal": (lambda y: (torch.distributions.Normal(y, y.exp()), y), 3),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("as_run", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_that_is_returned_is_its_parameters(name, as_run):
    function, outputs = DISTRIBUTIONS[name]
    model = lc.from_module(Computes(function), {"x": "float 3 6"}, as_run=as_run)
    assert len(model.table.outputs) in (outputs, outputs - 1)  # the mean of a normal one is returned twice
    assert lc.cost(model, price_book="matmul").macro_operations["forward"][1].flops == 2 * 3 * 6 * 6


@pytest.mark.parametrize("as_run", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda y: torch.nested.nested_tensor([y[0], y[1, :2]]).to_padded_tensor(0.0),
        lambda y: torch.nested.as_nested_tensor([y[0], y[1, :2]], layout=torch.jagged).to_padded_tensor(0.0),
    ],
)
def test_nested_tensors_are_refused_in_our_words(make, as_run):
    with pytest.raises(lc.InputError, match=r"works on nested tensors.* write it with padded sequences") as refused:
        lc.from_module(Computes(make), {"x": "float 2 4 6"}, as_run=as_run)
    assert "as_run" not in str(refused.value)


def _scanned(y, weight):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (x + (c @ weight).tanh(), c + x), torch.zeros_like(y[0]), y)[1]


def _mapped(y, weight):
    from torch._higher_order_ops.map import map as mapped

    return mapped(lambda x, w: (x @ w).sin(), y, weight)


def _branches(y, weight):
    return torch.cond(y.sum() > 0, lambda a, w: a @ w, lambda a, w: a.cos(), (y, weight))


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("function", [_scanned, _mapped, _branches])
def test_an_operator_that_runs_a_function_costs_the_function_at_every_position(function):
    """Of branches the larger one; FlopCounterMode counts the function once, by hand."""

    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))

        def forward(self, x):
            return function(self.layer(x), self.weight)

    imported = read_module(Running(), (torch.randn(4, 6),), {"x": "B 6"})
    ran = run_both(Running(), (torch.randn(5, 6),), imported, lc.layer(imported.text))
    assert max(ran.value, ran.gradient) < 1e-12
    if function is not _mapped:
        assert lc.verify(lc.from_module(Running(), {"x": "float B 6"})).passed
    costs = lc.cost(lc.layer(imported.text), B=5, price_book="matmul")
    product = 2 * 5 * 6 * 6
    assert costs.macro_operations["forward"][1].flops == 2 * product
    assert costs.total.flops == 2 * product + 3 * product  # the input of the layer has no gradient


@pytest.mark.slow  # PyTorch compiles the loop, also where it only runs
def test_a_loop_until_a_condition_has_the_iterations_of_one_run():
    from torch._higher_order_ops.while_loop import while_loop

    def step(count, y):
        return count + 1, (y @ y).tanh()

    looped = Computes(lambda y: while_loop(lambda count, y: y.sum() < 100, step, (torch.tensor(0), 2 * y.abs() + 1))[1])
    with pytest.raises(lc.InputError, match=r"how often it runs depends on values: --as-run .* takes those of one"):
        lc.from_module(looped, {"x": "float 6 6"})

    class Along(nn.Module):
        def forward(self, x):
            return while_loop(lambda count, x: count < x.shape[0], lambda count, x: (count + 1, x.tanh()), (0, x))[1]

    with pytest.raises(lc.InputError, match=r"depends on values or on open sizes: give these numbers, or --as-run"):
        lc.from_module(Along(), {"x": "float N 6"})
    counted = Computes(lambda y: while_loop(lambda count, y: count < 3, step, (torch.tensor(0), y))[1])
    written = Computes(lambda y: step(0, step(0, step(0, y)[1])[1])[1])
    with FlopCounterMode(display=False) as counter:
        written(torch.randn(6, 6)).sum().backward()
    for as_run in (True, False):
        model = lc.from_module(counted, {"x": "float 6 6"}, as_run=as_run)
        assert lc.cost(model, price_book="matmul").total.flops == counter.get_total_flops()


def test_a_branch_within_a_scan_is_not_sent_to_a_traced_run():
    """A traced run refuses it, too."""
    from torch._higher_order_ops.scan import scan

    def step(carried, x):
        carried = x + carried if float(carried.sum()) > 0 else x - carried
        return carried, carried * 2

    scanned = Computes(lambda y: scan(step, torch.zeros_like(y[0]), y)[1])
    for as_run in (False, True):
        with pytest.raises(
            lc.InputError, match=r"depends on values within an operator.* as a loop in Python"
        ) as refused:
            lc.from_module(scanned, {"x": "float 4 6"}, as_run=as_run)
        assert "if float(carried.sum()) > 0" in str(refused.value)
        assert "as_run" not in str(refused.value)


def test_a_size_that_the_code_needs_is_to_be_written():
    """The size that was tried is said to be that."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x.view(5, 2, 6))

    with pytest.raises(
        lc.InputError, match=r"\(tried with B = 3; if the code needs one size, write it in place of B\)"
    ):
        lc.from_module(Pairs(), {"x": "float B 6"})
    assert lc.cost(lc.from_module(Pairs(), {"x": "float 10 6"})).total.flops > 0


@pytest.mark.slow  # tests/test_open_sizes.py has a length that code makes a number of
def test_a_size_of_which_code_makes_a_number_is_not_said_to_be_fixed():
    module = Computes(lambda y: sum(each * number for number, each in enumerate(y.unbind(1))))
    with pytest.raises(
        lc.InputError, match=r"its code converts it to a number.*tried with M = 5.*write a number"
    ) as refused:
        lc.from_module(module, {"x": "float B M 6"})
    assert "fixes" not in str(refused.value)
    assert lc.from_module(module, {"x": "float B 9 6"})


def test_a_length_that_is_cut_into_long_chunks_is_no_letter():
    """Each length that was tried was one chunk, and attention inside of chunks was counted over the whole length."""

    def chunks(y):
        parts = (y[:, start : start + 128] for start in range(0, int(y.shape[1]), 128))
        return torch.cat([part @ part.mT @ part for part in parts], 1)

    with pytest.raises(lc.InputError, match="its code converts it to a number"):
        lc.from_module(Computes(chunks), {"x": "float B M 6"})
    table = lc.from_module(Computes(chunks), {"x": "float B 256 6"})
    assert lc.cost(table, batch_size=1).rows[0].maccs == 256 * 6 * 6 + 2 * 2 * 128**2 * 6


def test_a_weight_of_the_size_that_was_tried_fixes_a_length():
    """Targets kept the letter, and the two did not meet: an exception of our own was the message."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.positions = nn.Linear(6, 4), nn.Parameter(torch.zeros(5, 6))

        def forward(self, x, targets):
            y = self.layer(x + self.positions)
            return nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten())

    with pytest.raises(lc.InputError, match=r"weight of fixed size does \(tried with M = 5\); .* B 5 6'") as refused:
        lc.from_module(Positions(), {"x": "float B M 6", "targets": "int B M"})
    assert "AxisSplitError" not in str(refused.value)
    assert lc.from_module(Positions(), {"x": "float B 5 6", "targets": "int B 5"})


INSIDE = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x[KEYS[0]]) + x[KEYS[1]]

KEYS = {keys}

def build():
    return Pair()

def inputs():
    return {{"x": {value}}}
"""


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("a", "b"), "dict(a=torch.randn(3, 6), b=torch.randn(3, 6))"),
        ((0, 1), "(torch.randn(3, 6), torch.randn(3, 6))"),
    ],
)
def test_tensors_in_a_mapping_or_a_row_of_inputs_are_read(tmp_path, capsys, keys, value):
    file = tmp_path / "pair.py"
    file.write_text(INSIDE.format(keys=keys, value=value))
    assert main(["import", f"{file}:build", "--no-cache"]) == 0
    layer = lc.layer(capsys.readouterr().out)
    assert lc.cost(layer, price_book="matmul").total.flops == 2 * 2 * 3 * 6 * 6  # forward, and the weight's gradient


class Halves(nn.Module):
    """Two inputs of one length, joined and halved again."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, a, b):
        first, second = torch.cat([self.linear(a), self.linear(b)]).chunk(2)
        return first * second


def test_two_inputs_of_one_letter_are_joined_and_halved():
    module = Halves()
    model = lc.from_module(module, {"a": "float B 6", "b": "float B 6"})
    for B in (4, 7):
        given = torch.randn(B, 6), torch.randn(B, 6)
        with FlopCounterMode(display=False) as counter:
            module(*given).sum().backward()
        assert lc.cost(model, price_book="matmul", B=B).total.flops == counter.get_total_flops()
    given = torch.randn(4, 6), torch.randn(4, 6)
    opened = read_module(module, given, {"a": "B 6", "b": "B 6"})
    assert max((apart := parity(module, given, opened)).value, apart.gradient) < 1e-12


def test_attention_over_sequences_of_several_lengths_says_that_all_count_as_the_longest():
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 48)

        def forward(self, x, offsets):
            q, k, v = self.linear(x).view(-1, 3, 2, 8).unbind(1)
            return varlen.varlen_attn(q, k, v, offsets, offsets, 12, 12)

    cost = lc.cost(lc.from_module(Packed(), {"x": "float 20 16", "offsets": "int32 4"}), price_book="matmul")
    forward = 2 * 20 * 16 * 48 + 3 * 2 * (2 * 2 * 12 * 12 * 8)  # three sequences of 12, two heads of 8, two products
    assert cost.macro_operations["forward"][1].flops == forward
    assert "every sequence as long as the longest: an upper bound" in " ".join(str(cost).split())


@pytest.mark.parametrize("name", ["code", "graph"])
def test_a_part_named_as_an_attribute_of_a_graph_is_to_be_renamed(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 4))
    with pytest.raises(lc.InputError, match=f"Sequential has a part named {name}, .*: give it another name$"):
        lc.from_module(model, {"input": "float B 3"})
