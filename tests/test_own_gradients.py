"""What an export alone would not say of gradients, and windows that go beyond the ends of a slice."""

import pytest

import learncost as lc

torch = pytest.importorskip("torch")

from module_parity import parity, read_module  # noqa: E402
from torch.nn import functional  # noqa: E402 - it needs torch

from learncost.verification.imported import products  # noqa: E402
from own_modules import Of  # noqa: E402


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return gradient * share * (1 + x * (1 - share))


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class MaskedSoftmax(torch.autograd.Function):
    """Hides in place what a softmax has made, as SEW-D of transformers does."""

    @staticmethod
    def forward(ctx, x, seen):
        y = x.masked_fill(~seen, -1e30).softmax(-1)
        y.masked_fill_(~seen, 0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return (gradient - (gradient * y).sum(-1, keepdim=True)) * y, None


class Doubled(torch.autograd.Function):
    """Another gradient than that of its lines, which nobody sees where all is hidden."""

    @staticmethod
    def forward(ctx, x, seen):
        ctx.save_for_backward(seen)
        return x * seen

    @staticmethod
    def backward(ctx, gradient):
        (seen,) = ctx.saved_tensors
        return 2 * gradient * seen, None


class Products(torch.autograd.Function):
    """Two products forward, of which one has another gradient than its lines, and three backward."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight)
        return torch.sign(x) @ weight * factor, x @ weight

    @staticmethod
    def backward(ctx, first, second):
        x, weight = ctx.saved_tensors
        return (first + second) @ weight.T, x.T @ second, None


def masked(kind):
    return lambda x: kind.apply(x, torch.arange(6) % 2 > 0)


def defined_inside(x):
    twice = 2.0

    class Steps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.sign(x)

        @staticmethod
        def backward(ctx, gradient):
            return twice * gradient

    return Steps.apply(x)


def without(x):
    with torch.no_grad():
        return x.sin() * 2


def taken(x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return gradient


def through_data(x):
    step = x.data.abs().max()
    return (x / step) * 2 + (x.round() - x).data


def steps_in_place(x):
    y = x.clone()
    for row in range(3):  # into memory that has a gradient since the first of them
        y[row] = x[row + 1] * 2
    apart = x.detach().clone()
    apart.mul_(2)
    return y * apart


@pytest.mark.parametrize("function", [lambda x: x + without(x), Swish.apply, lambda x: x * taken(x), through_data])
def test_gradients_are_those_of_the_module(function):
    """Beside autograd through the module itself: its exported graph has lost what `no_grad` says."""
    torch.manual_seed(1)
    module, x = Of(function).double(), torch.randn(4, 6, dtype=torch.float64)
    read = lc.from_module(module, (x,))
    module(x).sum().backward()
    weight, bias = (each.detach().numpy() for each in module.parameters())
    name = read.table.outputs[0]
    inputs = {
        "x": x.numpy(),
        "linear.weight": weight,
        "linear.bias": bias,
        f"d{read.table.header(name)}": torch.ones(4, 6).numpy(),
    }
    ours = lc.run(read, inputs)
    assert ours["dlinear.weight"] == pytest.approx(module.linear.weight.grad.numpy(), abs=1e-12)


@pytest.mark.parametrize("function", [steps_in_place, masked(MaskedSoftmax)])
def test_changes_in_place_that_autograd_sees_are_read(function):
    torch.manual_seed(1)
    module, inputs = Of(function), (torch.randn(4, 6),)
    apart = parity(module, inputs, read_module(module, inputs))
    assert max(apart.value, apart.gradient, apart.module) < 1e-6


def hooked(x):
    x.register_hook(lambda gradient: gradient / 2)
    return x


def doubled(x):
    with torch.no_grad():
        x[:, :2].mul_(2)
    return x


def through_detach(x):
    x.detach()[:, 1:].add_(1)
    return x


def set_data(x):
    x.data = x * 2
    return x


def kept_as_it_was(x):
    without = x.detach().requires_grad_(False)
    still = torch.nn.Parameter(torch.ones(6, dtype=x.dtype), requires_grad=False)
    return x.requires_grad_() * still + without


def made(x):
    return x @ torch.nn.Parameter(torch.ones(6, 6))


def started_again(x):
    y = x.detach()
    y.requires_grad = True
    return y * 2


@pytest.mark.parametrize("function", [kept_as_it_was, started_again])
def test_what_is_computed_may_be_said_to_require_a_gradient(function):
    torch.manual_seed(1)
    module, inputs = Of(function), (torch.randn(4, 6),)
    apart = parity(module, inputs, read_module(module, inputs))
    assert max(apart.value, apart.gradient, apart.module) < 1e-6
    assert torch.nn.Parameter(torch.ones(2)).requires_grad_(False).requires_grad is False


class AsksForItsInput(Of):
    """Asks for a gradient of what it is given, and of a view of it, as wav2vec 2.0 of transformers does in training."""

    def forward(self, x):
        rows = x[:, None]
        rows.requires_grad = True
        return super().forward(rows) * 2


def test_a_forward_pass_that_asks_for_a_gradient_of_its_input_has_one():
    module, inputs = AsksForItsInput(torch.sin), (torch.randn(4, 6),)
    read = read_module(module, inputs)
    apart = parity(module, inputs, read)
    assert max(apart.value, apart.gradient, apart.module) < 1e-6
    assert products(module, inputs, read).equal
    with pytest.raises(lc.InputError, match="asks for a gradient of an input, which one run does not keep"):
        lc.from_module(module, inputs, as_run=True)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (made, r"test_own_gradients.py:\d+: a tensor that requires a gradient is made in a forward pass"),
        (
            lambda x: x * torch.ones(6, requires_grad=True),
            r"test_own_gradients.py:\d+: a tensor that requires a gradient is made in a forward pass",
        ),
        (doubled, r"an in-place change.*\.py:\d+\) of a tensor with a gradient"),
        (through_detach, r"an in-place change.*\.py:\d+\) of a tensor with a gradient"),
        (set_data, r"an in-place change.*\.py:\d+\) of a tensor with a gradient"),
        (hooked, r"test_own_gradients.py:\d+: gradient hooks run only"),
        (lambda x: x * x.max().item(), "a number that depends on values"),
    ],
)
def test_what_has_another_gradient_or_course_is_refused(function, message):
    with pytest.raises(lc.InputError, match=message):
        lc.from_module(Of(function), {"x": "float 4 6"})


@pytest.mark.parametrize(
    "function",
    [Sign.apply, masked(Doubled), lambda x: sum(Products.apply(x, x.T @ x, 2.0)), defined_inside],
    ids=["sign", "mask", "two", "defined inside"],
)
def test_a_function_with_another_gradient_is_an_operator_with_its_own_backward_pass(function):
    """Its products are those that PyTorch counts, and its gradient is not that of its lines."""
    module, inputs = Of(function), (torch.randn(4, 6),)
    read = read_module(module, inputs, {"x": "B 6"})
    assert "functions::" in read.text
    apart = parity(module, inputs, read)
    assert max(apart.value, apart.gradient) < 1e-12
    assert products(module, inputs, read).equal


class FreezesItself(torch.nn.Linear):
    def forward(self, x):
        self.requires_grad_(False)
        return super().forward(x)


@pytest.mark.parametrize("as_run", [False, True])
def test_a_part_that_stops_learning_in_its_forward_pass_is_refused(as_run):
    module = torch.nn.Sequential(FreezesItself(6, 4), torch.nn.Linear(4, 2))
    with pytest.raises(lc.InputError, match=r"test_own_gradients.py:\d+: requires_grad is changed in a forward pass"):
        lc.from_module(module, {"input": "float 4 6"}, as_run=as_run)


def windows(x):
    kernel = torch.ones(4, 2, 3) / 3
    cut = x[:, :, 1:5]
    return (
        functional.conv1d(cut, kernel, padding=1, groups=2),
        functional.max_pool1d(cut.flip(2)[:, :, ::2], 2, padding=1),
        functional.pad(cut, (1, 2)),
    )


def test_windows_beyond_the_ends_of_a_slice_read_zeros():
    module = Of(lambda x: windows(x.reshape(2, 4, 6)))
    torch.manual_seed(1)
    inputs = (torch.randn(8, 6),)
    apart = parity(module, inputs, read_module(module, inputs))
    assert (apart.value, apart.gradient) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))


def test_a_hook_on_a_weight_is_refused():
    module = Of(torch.sin)
    module.linear.weight.register_hook(lambda gradient: gradient / 2)
    with pytest.raises(lc.InputError, match=r"^linear\.weight has a gradient hook"):
        lc.from_module(module, {"x": "float 4 6"})


def test_the_proof_asks_the_module_itself_for_its_gradients():
    """A table of the same values, of which another part learns, is no table of the module."""

    class Scaled(torch.nn.Linear):
        stops = False

        def forward(self, x):
            y = super().forward(x)
            return y * (y.detach() if self.stops else y)

    module, x = Scaled(4, 3), torch.randn(2, 4)
    imported = read_module(module, x)
    assert parity(module, x, imported).module < 1e-4
    module.stops = True
    assert parity(module, x, imported).module > 0.1


def test_the_proof_asks_for_no_gradients_of_what_has_a_precision_of_its_own():
    """One result is of single precision whatever the module is: its part of the gradients cannot be told apart."""
    module, inputs = Of(lambda x: (x.sin(), x.float().cos())), (torch.randn(4, 6),)
    assert parity(module, inputs, read_module(module, inputs)).module < 1e-6


class Turned(torch.nn.Module):
    """Its layer is brought into a type before it is used, as routers of experts are."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = torch.nn.Linear(6, 3), kind

    def forward(self, x):
        self.layer = self.layer.to(self.kind)
        return self.layer(x.to(self.kind))


def test_a_layer_may_be_brought_into_the_type_that_it_has():
    module, inputs = Turned(torch.float32), (torch.randn(4, 6),)
    apart = parity(module, inputs, read_module(module, inputs))
    assert max(apart.value, apart.gradient) < 1e-12
    with pytest.raises(lc.InputError, match=r"parameters become torch.float16 in a forward pass"):
        read_module(Turned(torch.float16), inputs)
    assert Turned(torch.float16).to(torch.float64).layer.weight.dtype == torch.float64
