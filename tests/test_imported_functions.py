"""Functions of mathematics that no kernel of a word says, and what PyTorch itself has no gradient of."""

import inspect

import numpy as np
import pytest
import torch
from module_parity import parity, read_module
from torch import nn

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.importer.replaced import least_squares
from learncost.importer.rule import RULES, rule_of
from learncost.interpreter import run
from learncost.verification.imported import products
from sampling import sampled


class Of(nn.Module):
    """A function of an input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def read(function, numbers):
    given = (torch.tensor(numbers, requires_grad=True),)
    return given, read_module(Of(function), given, {"x": "B"})


NOT_TENSORS = {"copy.t", "copy.Dict_*", "select.t"}
"""Overloads of lists, dictionaries and numbers, which no exported graph has."""

OF_A_TYPE = {"bmm.dtype", "mm.dtype", "add.Scalar", "sub.Scalar"}
"""Overloads with an argument by place that PyTorch's functions pass by name, or whose result has another type."""


def test_a_rule_takes_the_arguments_of_every_overload_that_it_answers():
    wrong = set()
    for base in {name.partition(".")[0] for name in RULES}:
        packet = getattr(torch.ops.aten, base, None)
        for overload in packet.overloads() if packet else ():
            schema = getattr(packet, overload)._schema
            name = f"{base}.{overload}"
            if any(each.is_out for each in schema.arguments) or overload.endswith("out") or "Dimname" in str(schema):
                continue
            try:
                places = [each for each in schema.arguments if not each.kwarg_only]
                if (known := rule_of(name, RULES)) is not None:
                    inspect.signature(known).bind(None, *places)
            except TypeError:
                wrong.add("copy.Dict_*" if overload.startswith("Dict_") else name)
    assert wrong == NOT_TENSORS | OF_A_TYPE


def test_the_larger_of_two_tensors_is_read_as_max_says_it():
    class Larger(nn.Module):
        def forward(self, x):
            return torch.max(x, torch.min(2 * x, x + 1))

    given = torch.tensor([-2.0, -0.3, 0.4, 1.7, 3.0], dtype=torch.float64, requires_grad=True)
    layer = lc.layer(read_module(Larger(), (given,), {"x": "B"}).text)
    (output,) = layer.table.outputs
    expected = Larger()(given)
    expected.sum().backward()
    values = run(derive(layer).step, {"x": given.detach().numpy(), f"d{output}": np.ones(5)}, {"B": 5})
    np.testing.assert_allclose(values[output], expected.detach())
    np.testing.assert_allclose(values["dx"], given.grad)


FUNCTIONS = {
    "asin": (torch.asin, np.linspace(-0.9999999, 0.9999999, 41), lambda x: 1 / np.sqrt((1 - x) * (1 + x)), np.arcsin),
    "acos": (torch.acos, np.linspace(-0.9999999, 0.9999999, 41), lambda x: -1 / np.sqrt((1 - x) * (1 + x)), np.arccos),
    "atan": (torch.atan, np.linspace(-50, 50, 41), lambda x: 1 / (1 + x * x), np.arctan),
}


@pytest.mark.parametrize("name", sampled(FUNCTIONS, 2))
def test_values_and_slopes_are_those_of_scipy(name):
    function, x, slope, value = FUNCTIONS[name]
    _, imported = read(function, x)
    layer = lc.layer(imported.text)
    step = derive(layer).step
    (output,) = layer.table.outputs
    values = run(layer, {"x": x, f"d{output}": np.ones_like(x)}, {"B": len(x)})
    np.testing.assert_allclose(values[output], value(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(values["dx"], slope(x), rtol=1e-11, atol=1e-12)
    assert step.outputs


def test_an_angle_of_two_coordinates_in_all_quarters():
    class Angle(nn.Module):
        def forward(self, up, across):
            return torch.atan2(up, across) * up

    x = torch.linspace(-2, 2, 6, dtype=torch.float64)
    given = (x.requires_grad_(), torch.linspace(-1, 3, 5, dtype=torch.float64).unsqueeze(-1).requires_grad_())
    found = parity(Angle(), given, read_module(Angle(), given))
    assert max(found.value, found.gradient, found.module) < 1e-12


@pytest.mark.parametrize("log_target", [False, True])
def test_a_divergence_of_kullback_and_leibler(log_target):
    shares = torch.tensor([[0.2, 0.5, 0.0, 0.3], [0.1, 0.1, 0.7, 0.1]], dtype=torch.float64)

    def loss(x):
        target = (shares + 0.1).log() if log_target else shares
        return nn.functional.kl_div(x.log_softmax(-1), target, reduction="batchmean", log_target=log_target)

    given = (torch.linspace(-2, 2, 8, dtype=torch.float64).reshape(2, 4).requires_grad_(),)
    found = parity(Of(loss), given, read_module(Of(loss), given))
    assert max(found.value, found.gradient, found.module) < 1e-12


def test_distributions_whose_parameters_learn():
    def logarithms(x):
        p = nn.functional.softplus(x) + 0.5
        several = torch.distributions
        return (
            several.Beta(p, p + 1).log_prob(torch.tensor(0.3, dtype=x.dtype))
            + several.NegativeBinomial(p, logits=x).log_prob(torch.tensor(3.0, dtype=x.dtype))
            + several.StudentT(p).log_prob(torch.tensor(0.7, dtype=x.dtype))
            + several.Normal(x, p).icdf(torch.sigmoid(x))
            + torch.mvlgamma(p + 1, 3)
        )

    given = (torch.linspace(-2, 3, 7, dtype=torch.float64, requires_grad=True),)
    found = parity(Of(logarithms), given, read_module(Of(logarithms), given))
    assert max(found.value, found.gradient, found.module) < 1e-12


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_with_shares_of_classes(reduction):
    """Targets that are probabilities, with weights of classes and smoothing."""
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64)
    draw = torch.Generator().manual_seed(2)
    shares = torch.rand(5, 4, generator=draw, dtype=torch.float64).softmax(-1)

    class Loss(nn.Module):
        def forward(self, x, targets):
            plain = nn.functional.cross_entropy(x, targets, reduction=reduction)
            return plain - 3 * nn.functional.cross_entropy(x, targets, weight, reduction=reduction, label_smoothing=0.1)

    given = (torch.randn(5, 4, generator=draw, dtype=torch.float64, requires_grad=True), shares)
    found = parity(Loss(), given, read_module(Loss(), given))
    assert max(found.value, found.gradient, found.module) < 1e-12


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_numbers_are_rounded_to_decimals(decimals):
    given = (torch.linspace(-30, 30, 37, dtype=torch.float64, requires_grad=True),)
    module = Of(lambda x: x * torch.round(x, decimals=decimals))
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient, found.module) < 1e-12


def test_sparse_gradients_are_held_to_those_of_the_table():
    module = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3))
    given = (torch.tensor([[1, 3], [3, 0]]),)
    found = parity(module, given, read_module(module, given, {"input": "B M"}))
    assert max(found.value, found.gradient) < 1e-12


def test_what_pytorch_has_no_gradient_of_is_one_line():
    given, imported = read(lambda x: x * torch.heaviside(x, x), [0.5, -1.0, 2.0])
    with pytest.raises(lc.InputError, match=r"derivative for aten::heaviside is not implemented\): detach"):
        products(Of(lambda x: x * torch.heaviside(x, x)), given, imported)


def variances(x):
    return torch.nn.functional.gaussian_nll_loss(x, x.roll(1), x.square() * 1e-3, full=True, eps=1e-4, reduction="sum")


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cov(x) + x.cov(correction=0),
        lambda x: torch.corrcoef(x) + x.corrcoef(),
        lambda x: torch.combinations(x[0], 3),
        lambda x: torch.combinations(x[0], with_replacement=True) * 2,
        lambda x: torch.nn.functional.hinge_embedding_loss(x, x.sign().detach(), margin=0.3, reduction="none"),
        lambda x: torch.nn.functional.cross_entropy(
            x[0], torch.tensor(1), weight=torch.arange(1.0, 5).to(x), label_smoothing=0.1
        ),
        variances,
    ],
)
def test_what_asks_for_values_is_read(function):
    given = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True),)
    module = Of(function)
    found = parity(module, given, read_module(module, given))
    assert max(found.value, found.gradient, found.module) < 1e-12


def test_a_hinge_at_open_sizes():
    module = nn.HingeEmbeddingLoss(margin=0.4, reduction="sum")
    given = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.ones(3, 4).tril() * 2 - 1)
    found = parity(module, given, read_module(module, given, {"input": "B M", "target": "B M"}))
    assert max(found.value, found.gradient, found.module) < 1e-12


@pytest.mark.parametrize("columns", [(), (2,)])
def test_least_squares_are_orthogonal_factors_and_a_triangle(columns):
    a = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, 6, *columns, dtype=torch.float64)
    ends = [torch.linalg.lstsq(a, b if columns else b.unsqueeze(-1)).solution.square().sum()]
    ends.append(least_squares(a, b).solution.square().sum())
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(*(torch.autograd.grad(end, a)[0] for end in ends))
    read = lc.from_module(Of(lambda x: torch.linalg.lstsq(x, b)[0] * 2), (a,))
    assert read.text.count("opaque(") == 2
    with pytest.raises(lc.InputError, match="fewer equations than unknowns"):
        lc.from_module(Of(lambda x: torch.linalg.lstsq(x.mT, x[:, :4]).solution), (a,))


class Kernel(nn.Module):
    """Attention by a kernel's own operator, whose arguments have another order."""

    def __init__(self, causal):
        super().__init__()
        self.linear, self.causal = nn.Linear(8, 8), causal

    def forward(self, x, mask):
        q = self.linear(x).view(2, 6, 2, 4).transpose(1, 2)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(q, q, q, 0.0, True)[0] if self.causal else kernel(q, q, q, attn_mask=mask)[0]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_called_by_the_operator_of_its_kernel_is_counted_by_its_own_formula(causal):
    given = torch.randn(2, 6, 8), torch.randn(6, 6)
    apart = parity(Kernel(causal), given, read_module(Kernel(causal), given))
    assert max(apart.value, apart.gradient) < 1e-5
    cost = lc.cost(lc.from_module(Kernel(causal), {"x": given[0], "mask": given[1]}), price_book="matmul")
    forward = 2 * 2 * 6 * 8 * 8 + 2 * 2 * (2 * 2 * 6 * 6 * 4)  # the projection, then scores and values of two heads
    assert cost.macro_operations["forward"][1].flops == forward
