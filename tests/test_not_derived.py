"""Lines that are not derived: their cost is stated, or nobody knows it; nothing runs them."""

import re

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.cost_models import Price
from learncost.ir.polynomial import Polynomial
from learncost.models.model import from_layer
from learncost.procedures.procedure import procedure
from learncost.reports.rows import ledger
from learncost.reports.run import rows_of

LINES = """net(X targets share; W V) -> loss
  targets: index of v
  constants: share X
  H[B M f] = {first}
  Y[B M v] = {second}
  P[B M v] = log_softmax[v](Y[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]
"""
FIRST, SECOND = "X[B M d] W[d f]", "H[B M f] V[f v]"
STATED = 'opaque(H[B M f], V[f v]) forward 2 B M f v backward 4 B M f v source "a formula"'
UNKNOWN = "opaque(H[B M f], V[f v])"
SIZES = {"B": 2, "M": 3, "d": 5, "f": 7, "v": 11}


def net(second: str) -> lc.Layer:
    return lc.layer(LINES.format(first=FIRST, second=second))


def cost(second: str, by: str = "layer") -> lc.Cost:
    model = from_layer(net(second))
    return ledger(model, procedure("bp"), Price("matmul", rows_of(model, "bp", "matmul", "sgd"), SIZES, "fp32"), by)


@pytest.mark.parametrize("book", ["run", "matmul", "flash", "paper"])
def test_a_stated_cost_is_what_the_same_lines_cost(book):
    derived, opaque = (lc.derive(net(second)).step for second in (SECOND, STATED))
    assert lc.price(derived, SIZES, lc.book(book)).flops == lc.price(opaque, SIZES, lc.book(book)).flops


def test_its_results_and_operands_are_kept_as_those_of_the_same_lines():
    derived, opaque = (lc.live(net(second), SIZES) for second in (SECOND, STATED))
    assert {held.name for held in opaque.saved} == {held.name for held in derived.saved}
    assert opaque.saved_bytes == derived.saved_bytes


def test_its_gradient_is_one_line_that_reads_its_operands():
    text = str(lc.derive(net(UNKNOWN)).step)
    assert "dH[B M f] dV[f v] = opaque'(dY[B M v], H[B M f], V[f v])" in text


def test_a_constant_of_it_has_no_gradient():
    layer = lc.layer("t(X c; W) -> Y\n constants: c\n Y[a] = opaque(X[a], c[b], W[d])\n")
    assert "dX[a] dW[d] = opaque'(dY[a], X[a], c[b], W[d])" in str(lc.derive(layer).step)


def test_a_call_renames_the_sizes_of_what_is_stated():
    inner = lc.layer("inner(X; A) -> Y\n  Y[B d] = opaque(X[B d], A[d n]) forward 3 B d n^2 + 1\n")
    outer = lc.layer("outer(X; A) -> Y\n  Y[B e] = inner(X; A, n = k)\n", {"inner": inner})
    assert lc.price(outer, {}, lc.book("run")).flops == Polynomial.parse("3 B e k^2 + 1")


def test_it_costs_its_turns_in_a_repeat():
    layer = lc.layer("deep(X; A) -> X\n  repeat n carry X:\n    X[a] = opaque(X[a], A[b]) forward 5 a b\n")
    assert lc.price(layer, {"a": 3, "b": 7, "n": 4}, lc.book("run")).flops == 5 * 3 * 7 * 4


def test_the_ledger_says_what_is_not_derived_and_who_states_its_cost():
    answer = cost(STATED)
    assert answer.total.flops == cost(SECOND).total.flops
    (operation,) = answer.to_dict()["not_derived"]
    assert operation["flops"] == {"forward": 2 * 2 * 3 * 7 * 11, "backward": 4 * 2 * 3 * 7 * 11}
    assert operation["source"] == "a formula"
    assert answer.to_dict()["at_least"] is False
    assert "Not derived (†): opaque: 924 FLOPs in forward, 1,848 FLOPs in backward (a formula)" in " ".join(
        str(answer).split()
    )
    assert ">=" not in str(answer)


@pytest.mark.parametrize("by", ["layer", "equation", "kind", "macro-operation"])
def test_totals_are_lower_bounds_where_nobody_knows_a_cost(by):
    answer = cost(UNKNOWN, by)
    total = next(line for line in str(answer).splitlines() if line.startswith("total"))
    assert total.count(">= ") == 2  # MACCs and FLOPs; bytes are known
    assert "%" not in total
    assert answer.at_least
    assert answer.to_dict()["at_least"] is True
    assert answer.to_dict()["not_derived"][0]["flops"] == {"forward": None, "backward": None}
    assert ">= " in answer.show("md")
    assert "at_least" in answer.show("csv").splitlines()[0]
    assert max(map(len, str(answer).splitlines())) <= 80


def test_a_ledger_of_derived_lines_says_nothing_of_it():
    assert "not_derived" not in cost(SECOND).to_dict()
    assert "†" not in str(cost(SECOND))
    assert "at_least" not in cost(SECOND).show("csv")


def arrays() -> dict[str, np.ndarray]:
    return {
        "X": np.ones((2, 3, 5)),
        "W": np.ones((5, 7)),
        "V": np.ones((7, 11)),
        "targets": np.zeros((2, 3), int),
        "share": np.ones((2, 3)),
    }


@pytest.mark.parametrize(
    "ask",
    [
        lambda layer: lc.run(layer, arrays()),
        lc.emit,
        lc.verify,
        lc.check_layer,
        lambda layer: lc.LayerTraining(layer, {name: arrays()[name] for name in "WV"}),
    ],
)
def test_nothing_runs_it(ask):
    with pytest.raises(lc.InputError, match=r"opaque is not derived, so .* in line: Y\[B M v\] = opaque"):
        ask(net(STATED))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Y[a] = opaque[a](X[a])", "opaque takes neither axes nor a `where`"),
        ("Y[a] = opaque(X[a], 1[])", "of opaque must be values"),
        ("Y[a] = opaque(X[a]) forward 2 b", "#b is not the size of an axis of t"),
        ("Y[a] = opaque(X[a]) forward two a a!", "is not a polynomial of sizes"),
        ("Y[a] = opaque(X[a]) costs 2 a", "'costs' is not expected"),
    ],
)
def test_what_is_written_wrong_is_refused(line, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"t(X) -> Y\n  {line}\n")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["0", "1", "3 B^2 M + 2 M - 7", "-2 B", "1/2 M^2 + 1/2 M"])
def test_a_polynomial_is_read_as_it_is_written(text):
    assert str(Polynomial.parse(text)) == text


def test_a_module_that_branches_on_values_is_refused_and_one_run_has_its_products():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
            self.head, self.gain = torch.nn.Linear(8, 3), torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            x = self.blocks[0](x)  # a block twice
            return self.head(x * self.gain if x.sum() > 0 else x)

    module, x = Net(), torch.randn(5, 8)
    for unknown in ("refuse", "zero"):
        with pytest.raises(lc.InputError, match=r"depends on values.* --as-run \(in Python as_run=True\)"):
            lc.from_module(module, {"x": x}, unknown=unknown)
    step = lc.cost(lc.from_module(module, {"x": x}, as_run=True), price_book="matmul")
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert step.macro_operations["forward"][1].flops == counter.get_total_flops()
    assert step.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert ">=" not in str(step)


class Transformed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return torch.fft.fft2(y).real + torch.fft.irfft(torch.fft.rfft(y), 8) + torch.linalg.solve(y.mT @ y, y.mT).mT


def test_transforms_and_factorizations_have_the_flops_of_textbooks():
    read = lc.from_module(Transformed(), (torch.ones(2, 8, 8),), symbols={"x": "B 8 8"})
    stated = re.findall(r"opaque\(.* forward (\S+) B backward (\S+) B", read.text)
    square, rows = 5 * 64 * 6, 2.5 * 8 * 3 * 8  # N log2 N of 64 points, and of 8 points in each of 8 rows
    solved = (2 * 8**3 // 3 + 2 * 8**3, 2 * 8**3 + 2 * 8**3)  # backward by the same factors, and a product
    known = [(square, square), (rows, 2 * rows), (rows, rows), solved]
    assert [(float(forward), float(backward)) for forward, backward in stated] == known


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.det,
        torch.linalg.slogdet,
        lambda x: torch.linalg.solve_triangular(x.tril(), x, upper=False),
    ],
)
def test_matrices_of_an_open_number_cost_what_they_do_at_fixed_ones(function):
    class Of(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return function(self.linear(x))

    opened = lc.from_module(Of(), (torch.ones(2, 4, 4),), symbols={"x": "B 4 4"})
    fixed = lc.from_module(Of(), (torch.ones(3, 4, 4),))
    assert lc.cost(opened, B=3).total.flops == lc.cost(fixed).total.flops


def test_a_factorization_whose_gradient_takes_no_open_size_says_what_to_do():
    class Of(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.cholesky(x @ x.mT)

    with pytest.raises(
        lc.InputError, match="of the gradient of aten::linalg_cholesky_ex are not known: at fixed sizes"
    ):
        lc.from_module(Of(), (torch.ones(2, 4, 4, requires_grad=True),), symbols={"x": "B 4 4"})


def test_a_transform_of_open_length_is_refused():
    with pytest.raises(lc.InputError, match="a Fourier transform need a fixed length"):
        lc.from_module(Transformed(), (torch.ones(2, 8, 8),), symbols={"x": "B M 8"})


def test_what_raises_while_it_is_exported_alone_is_taken_down_by_a_run():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, x):
            mask = torch.ones(3 if torch.compiler.is_exporting() else 8)
            return self.inner(x) * mask

    with pytest.raises(lc.InputError, match=r"--as-run \(in Python as_run=True\) traces one run"):
        lc.from_module(Module(), {"x": torch.randn(5, 8)})
    read = lc.from_module(Module(), {"x": torch.randn(5, 8)}, as_run=True)
    assert lc.cost(read, price_book="matmul").macro_operations["forward"][1].flops == 2 * 5 * 8 * 8
