"""The conformance suite for counters: its truths, its judgement, and the counters that need no third party."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conformance import runner  # noqa: E402
from conformance.adapters import COUNTERS  # noqa: E402
from conformance.cases import CASES  # noqa: E402
from conformance.counter import Counter, Unit  # noqa: E402
from conformance.verdict import QUANTITIES, Answer, judge  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

ROOT = Path(__file__).parents[1]

BLOCKS = (
    "matmul", "@", "einsum", "bmm", "baddbmm", "scaled_dot_product_attention", "MultiheadAttention",
    "MultiheadAttention in eval",
)  # fmt: skip
ATTENTION = 2 * 2 * 64 * 64 * 128  # scores and values: B S S D each


class Shapes(TorchFunctionMode):
    """MACCs by the shapes of what torch's functions are given, above the dispatcher: no counter has a part in it."""

    maccs = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        name, tensors = function.__name__, [x for x in arguments if isinstance(x, torch.Tensor)]
        if name == "linear":
            self.maccs += result.numel() * tensors[1].shape[1]
        elif name in ("matmul", "__matmul__", "bmm"):
            self.maccs += result.numel() * tensors[0].shape[-1]
        elif name == "baddbmm":
            self.maccs += result.numel() * tensors[1].shape[-1]
        elif name == "conv2d":
            self.maccs += result.numel() * tensors[1][0].numel()
        elif name == "einsum":
            sides = arguments[0].partition("->")[0].split(",")
            sizes = {k: n for side, x in zip(sides, tensors, strict=True) for k, n in zip(side, x.shape, strict=True)}
            self.maccs += torch.Size(sizes.values()).numel()
        elif name == "scaled_dot_product_attention":
            self.maccs += 2 * tensors[0].numel() * tensors[1].shape[-2]
        elif name == "multi_head_attention_forward":
            query, key, value = tensors[:3]  # [length, sequence, width]
            width = query.shape[-1]
            self.maccs += width * (2 * query.numel() + key.numel() + value.numel())
            self.maccs += 2 * query.numel() * key.shape[0]
        return result


def verdict(counter, case, quantity):
    answer, left = runner.question(counter, case, quantity)
    assert left == ()
    return judge(case, quantity, counter.unit, answer)


# The truths.


@pytest.mark.parametrize("name", CASES)
def test_forward_pass_by_shapes(name):
    model, inputs = CASES[name].built()
    with Shapes() as shapes:
        model(**inputs)
    assert shapes.maccs == CASES[name].truth.forward


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("name", CASES)
def test_both_passes_by_autograd(name):
    """What autograd runs, counted on meta, where that is all of it; experts on the CPU, without a fused kernel."""
    device = "torch on the CPU" if name == "mixture of experts" else "torch on meta"
    kinds = [verdict(COUNTERS[device], CASES[name], quantity).kind for quantity in ("forward", "training")]
    exceptions = {"MultiheadAttention in eval": "no case", "grouped convolution": "wrong"}
    assert kinds == ["right", exceptions.get(name, "right")]


@pytest.mark.parametrize("counter", ["torch on meta", "torch on the CPU"])
def test_the_gradient_of_a_grouped_weight_is_counted_without_its_groups(counter):
    """Right of 2.13: its formula multiplies all channels with all. What autograd runs is told by the shapes."""
    case = CASES["grouped convolution"]
    judged = verdict(COUNTERS[counter], case, "training")
    assert (judged.difference, judged.because) == (3 * case.truth.forward // 2, "with products of other groups")
    model, inputs = case.built()
    model(**inputs).sum().backward()
    gradient, channels = model[1].weight.grad, 32 // model[1].groups
    assert gradient.shape == (32, channels, 3, 3)  # each of B x 16 x 16 places adds one term to every element
    assert gradient.numel() * 2 * 16 * 16 == case.truth.forward // 2


@pytest.mark.parametrize("name", CASES)
def test_parameters_of_the_module(name):
    model, _ = CASES[name].built("meta")
    parameters = list(model.parameters())  # torch gives a shared one once
    assert CASES[name].truth.parameters == sum(p.numel() for p in parameters)
    assert CASES[name].truth.trained == sum(p.numel() for p in parameters if p.requires_grad)


def test_numbers_known_from_elsewhere():
    """The block as peers were measured on it; two layers of 32 x 32: 163,840 FLOPs, not three times 65,536."""
    for name in BLOCKS:
        truth = CASES[name].truth
        assert (truth.forward, truth.parameters) == (41_549_824 + 2_097_152, 334_720)
    assert 2 * CASES["plain input"].truth.training == 163_840


# What the counters say.


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_learncost_is_right(name, quantity):
    kind = verdict(COUNTERS["learncost"], CASES[name], quantity).kind
    assert kind == ("no case" if (name, quantity) == ("MultiheadAttention in eval", "training") else "right")


def test_meta_refuses_what_depends_on_values():
    judged = verdict(COUNTERS["torch on meta"], CASES["mixture of experts"], "forward")
    assert judged.kind == judged.cell == "refused"
    assert "NotImplementedError" in judged.because


def test_the_fused_kernel_is_nothing_on_the_cpu():
    case, counter = CASES["scaled_dot_product_attention"], COUNTERS["torch on the CPU"]
    for quantity, times in (("forward", 1), ("training", 3)):
        judged = verdict(counter, case, quantity)
        assert (judged.kind, judged.difference, judged.because) == ("wrong", -times * ATTENTION, "without attention")


def test_the_fast_path_is_nothing_on_the_cpu():
    judged = verdict(COUNTERS["torch on the CPU"], CASES["MultiheadAttention in eval"], "forward")
    assert (judged.kind, judged.difference) == ("wrong", -(ATTENTION + 128 * 4 * 128 * 128))


# The judgement itself.


class Liar(Counter):
    """Off by a number of its units, and by more at every further call."""

    name, package = "liar", "learncost"

    def __init__(self, unit, off, growing=0):
        self.unit, self.off, self.growing = unit, off, growing

    def forward(self, case):
        self.off += self.growing
        return case.truth.forward * self.unit.in_a_macc + self.off - self.growing

    def parameters(self, case):
        return case.truth.parameters + 1

    def trained(self, case):
        raise RuntimeError("cannot say\nand says so at length")


def test_a_liar_is_wrong_by_exactly_its_lie():
    case = CASES["tied head"]
    judged = verdict(Liar(Unit.FLOP, 0), case, "forward")
    assert (judged.kind, judged.cell) == ("right", "right")
    for unit, off, difference, cell in [
        (Unit.FLOP, 2, 1, "+1"),
        (Unit.FLOP, -1, Fraction(-1, 2), "-0.5"),
        (Unit.MAC, 1000, 1000, "+1,000"),
        (Unit.MAC_CALLED_FLOP, -2, -2, "-2"),
    ]:
        judged = verdict(Liar(unit, off), case, "forward")
        assert (judged.kind, judged.difference, judged.cell, judged.because) == ("wrong", difference, cell, "")
    # Parameters have no unit; what raises is refused by its first line; what is left out is not offered.
    assert verdict(Liar(Unit.FLOP, 0), case, "parameters").cell == "+1"
    judged = verdict(Liar(Unit.FLOP, 0), case, "trained")
    assert (judged.kind, judged.because) == ("refused", "RuntimeError: cannot say")
    assert verdict(Liar(Unit.FLOP, 0), case, "training").kind == "not offered"


def test_a_unit_that_is_not_what_it_says_is_wrong():
    """MACs that call themselves FLOPs would be half of the truth."""
    judged = judge(CASES["tied head"], "forward", Unit.FLOP, Answer(16_384_000, 16_384_000))
    assert (judged.kind, judged.difference) == ("wrong", -8_192_000)


def test_a_count_that_grows_is_wrong_though_it_began_right():
    judged = verdict(Liar(Unit.MAC, 0, growing=5), CASES["tied head"], "forward")
    assert (judged.kind, judged.cell) == ("wrong", "0, then +5")
    assert judge(CASES["tied head"], "parameters", Unit.MAC, Answer(128_000, None)).kind == "wrong"


def test_what_stays_replaced_is_told(monkeypatch):
    monkeypatch.setattr(torch, "bmm", torch.bmm)  # is put back after the test

    class Patching(Liar):
        def forward(self, case):
            torch.bmm = torch.matmul
            return case.truth.forward

    answer, left = runner.question(Patching(Unit.MAC, 0), CASES["tied head"], "forward")
    assert left == ("torch.bmm",)
    assert answer.first == CASES["tied head"].truth.forward


def test_differences_are_named_by_known_amounts():
    case = CASES["baddbmm"]
    for off, name in [
        (ATTENTION // -2, "without one product of attention"),
        (147_456, "with biases"),  # 128 tokens of 4 x 128 + 512 + 128
        (147_456 - ATTENTION, "without attention, with biases"),
        (1, ""),
    ]:
        answer = case.truth.forward + off
        assert judge(case, "forward", Unit.MAC, Answer(answer, answer)).because == name


# The command and the page.


@pytest.mark.slow  # the others are asked here
def test_a_counter_is_asked_in_a_process_of_its_own():
    command = [sys.executable, ROOT / "benchmarks" / "conformance", "--counter", "learncost", "--case", "LoRA"]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert [(row["quantity"], row["verdict"]) for row in rows] == [(quantity, "right") for quantity in QUANTITIES]
    truth = CASES["LoRA"].truth
    assert [row["answers"] for row in rows] == [
        [value] * 2 for value in (truth.forward, truth.training, truth.parameters, truth.trained)
    ]


def test_a_counter_that_is_not_installed_is_skipped(monkeypatch, capsys):
    absent = Liar(Unit.MAC, 0)
    absent.package = "no-counter-of-this-name"
    monkeypatch.setitem(COUNTERS, "absent", absent)
    assert runner.main(["--counter", "absent"]) == 2
    assert capsys.readouterr().err == "liar is not installed, skipped: pip install no-counter-of-this-name\n"
    assert runner.installation(COUNTERS["ptflops aten"]) == "pip install ptflops==0.7.5"


def test_the_page_has_every_case_and_counter():
    page = (ROOT / "docs" / "counters.md").read_text(encoding="utf-8")
    for case in CASES.values():
        for quantity in QUANTITIES:
            truth = getattr(case.truth, quantity)
            assert truth is None or f"| `{case.name}` | {truth:,} |" in page
    for name, counter in COUNTERS.items():
        assert f"- **{name}**: {counter.reading}" in page
