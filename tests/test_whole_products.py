"""Convolutions of codes under int8-products: values, gradients and counts, held to PyTorch on the same codes."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.cli.emit_c99 import FirmwareOptions, program_of
from learncost.cli.verified_c99 import NEAR, parity
from learncost.engines.compiler import compiler
from learncost.engines.freestanding import compiled
from learncost.models.configuration import configure
from learncost.passes.rewrite_codes import with_whole

CONVOLUTIONS = """convolutions(X; K L) -> Y
  C[B e i j] = X[B c y=2 i + u - 1 x=2 j + w - 1] K[e c u w]
  R[B e i j] = relu(C[B e i j])
  Y[B f p q] = R[B e i=p + s j=q + t] L[f e s t]"""
SIZES = {"B": 3, "c": 2, "y": 8, "x": 8, "e": 5, "u": 3, "w": 3, "i": 4, "j": 4, "f": 4, "p": 3, "q": 3, "s": 2, "t": 2}
NET = """net(X targets share; K b L W) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: c=2 y=8 x=8 e=5 u=3 w=3 i=4 j=4 f=4 p=3 q=3 s=2 t=2 v=6
  C[B e i j] = X[B c y=2 i + u - 1 x=2 j + w - 1] K[e c u w] @ 0 conv2d
  U[B e i j] = C[B e i j] + b[e] @ 0 conv2d
  R[B e i j] = relu(U[B e i j])
  Y[B f p q] = R[B e i=p + s j=q + t] L[f e s t] @ 2 conv2d
  A[B v] = Y[B f p q] W[f p q v] @ 3 linear
  P[B v] = log_softmax[v](A[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""


def codes(x: torch.Tensor, *kept: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 bits, and a scale for each place on the dimensions that are kept."""
    others = [dim for dim in range(x.ndim) if dim not in kept]
    scale = x.abs().amax(others, keepdim=True) / 127
    return torch.floor(x / scale + 0.5), scale


class Convolution(torch.autograd.Function):
    """A convolution whose three products are of codes: sums of whole numbers, with the scales behind them."""

    @staticmethod
    def forward(context, x, k, stride, padding):
        context.save_for_backward(x, k)
        context.options = {"stride": stride, "padding": padding}
        (a, by_sample), (b, by_result) = codes(x, 0), codes(k, 0)
        return functional.conv2d(a, b, **context.options) * by_sample * by_result.reshape(1, -1, 1, 1)

    @staticmethod
    def backward(context, gradient):
        x, k = context.saved_tensors
        (a, by_sample), (b, by_channel) = codes(gradient, 0), codes(k, 1)
        dx = torch.nn.grad.conv2d_input(x.shape, b, a, **context.options) * by_sample * by_channel
        (a, by_channel), (b, by_result) = codes(x, 1), codes(gradient, 1)
        dk = torch.nn.grad.conv2d_weight(a, k.shape, b, **context.options)
        return dx, dk * by_channel * by_result.reshape(-1, 1, 1, 1), None, None


def test_a_convolution_of_codes_is_pytorchs_on_the_same_codes():
    draw = np.random.default_rng(4)
    arrays = {name: draw.standard_normal(shape) for name, shape in (("X", (3, 2, 8, 8)), ("K", (5, 2, 3, 3)))}
    arrays |= {"L": draw.standard_normal((4, 5, 2, 2)), "dY": draw.standard_normal((3, 4, 3, 3))}
    derived = derive(lc.layer(CONVOLUTIONS))
    found = lc.run(with_whole(derived.step), arrays, SIZES)
    given = {name: torch.tensor(array, requires_grad=name != "dY") for name, array in arrays.items()}
    hidden = torch.relu(Convolution.apply(given["X"], given["K"], 2, 1))
    y = Convolution.apply(hidden, given["L"], 1, 0)
    gradients = torch.autograd.grad((y * given["dY"]).sum(), [given[name] for name in "XKL"])
    np.testing.assert_allclose(found["Y"], y.detach().numpy(), rtol=1e-9)
    plain = functional.conv2d(
        torch.relu(functional.conv2d(given["X"], given["K"], stride=2, padding=1)), given["L"]
    ).detach()
    assert 1e-3 < float((plain - y.detach()).abs().max()) < 0.5  # codes are not the numbers, and near to them
    for name, gradient in zip("XKL", gradients, strict=True):
        np.testing.assert_allclose(found[derived.gradients[name]], gradient.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["int8-learned", "int8-products", "int8-learned-products"])
@pytest.mark.parametrize("book", ["run", "torch-flop-counter"])
def test_products_of_codes_are_counted_where_those_of_numbers_are(precision, book):
    """What PyTorch's counter sees of fp32 it sees of codes: forward, backward and update, and no scale is a product."""

    def counted(name):
        found = Counter()
        for row in lc.cost(lc.layer(NET), precision=name, price_book=book, optimizer="sgd", B=4).rows:
            found[row.macro_operation] += row.maccs
        return found

    assert counted(precision) == counted("fp32")
    assert counted("fp32")["weight_update"] >= 4 * 5 * 2 * 9 * 16


@pytest.mark.parametrize("precision", ["int8-products", "int8-learned-products"])
def test_convolutions_of_codes_in_c99_are_numpys(precision):
    learning = {"optimizer": "sgd", "precision": precision}
    settings = FirmwareOptions("both", "net", "epilogue-update", 4, dtype="fp64")
    program = program_of(configure(lc.layer(NET)), settings, learning)
    products = [line for line in program.tables["step"].lines if str(line).count(".codes[") == 2]
    assert len([line for line in products if "sum" in line.name]) == 8
    found = parity(program, 3, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found


DEPTHWISE = (
    NET.replace("L[f e s t]", "L[e s t]").replace("Y[B f p q]", "Y[B e p q]").replace("W[f p q v]", "W[e p q v]")
)
DEPTHWISE = DEPTHWISE.replace(" f=4", "")
GROUPED = (
    NET.replace("C[B e i", "C[B g e i")
    .replace("X[B c", "X[B g c")
    .replace("K[e c", "K[g e c")
    .replace("b[e]", "b[g e]")
)
GROUPED = GROUPED.replace("U[B e", "U[B g e").replace("R[B e", "R[B g e").replace("L[f e", "L[f g e")
GROUPED = GROUPED.replace("sizes:", "sizes: g=2")


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("text", [NET, DEPTHWISE, GROUPED], ids=["plain", "depthwise", "grouped"])
def test_convolutions_in_whole_numbers_take_less_than_in_fp32(text):
    """RAM as the compiler's object has it, of the program and of that in fp32; C99 steps as NumPy does, bit for bit."""
    if compiler() is None:
        pytest.skip("no C compiler")
    programs = {}
    for precision in ("fp32", "integer-only"):
        learning = {"optimizer": "sgd"} | ({"precision": precision} if precision != "fp32" else {})
        settings = FirmwareOptions(
            "step", "net", "epilogue-update", 4, dtype="int32" if precision == "integer-only" else "fp32"
        )
        programs[precision] = program_of(configure(lc.layer(text)), settings, learning)
    ram = {precision: compiled(program.firmware).ram for precision, program in programs.items()}
    assert ram == {precision: program.firmware.program_memory.ram for precision, program in programs.items()}
    assert ram["integer-only"] < ram["fp32"]
    found = parity(programs["integer-only"], 3, ("-O0",))
    assert (found.losses, found.weights) == (0, 0), found


def test_convolutions_in_whole_numbers_step_as_numbers_do():
    draw = np.random.default_rng(1)
    configuration = configure(lc.layer(NET))
    shapes = {"K": (5, 2, 3, 3), "b": (5,), "L": (4, 5, 2, 2), "W": (4, 3, 3, 6)}
    weights = {name: draw.normal(size=shape) / 3 for name, shape in shapes.items()}
    batch = {"X": draw.uniform(-1, 1, (6, 2, 8, 8)), "targets": draw.integers(0, 6, 6)}
    whole = lc.Training(configuration, "bp", "sgd", precision="integer-only", weights=weights, learning_rate=1.0)
    before = whole.plain_weights
    plain = lc.Training(configuration, "bp", "sgd", weights=before, learning_rate=1.0)
    assert whole.step(**batch) == pytest.approx(plain.step(**batch), rel=0.02, abs=0.02)
    for name, array in whole.plain_weights.items():
        step, wanted = array - before[name], plain.weights[name] - before[name]
        scale = 2.0 ** whole.weights[f"{name}.power"] if f"{name}.power" in whole.weights else 0.0
        assert np.max(np.abs(step - wanted)) < 0.1 * np.max(np.abs(wanted)) + 1.01 * scale, name
