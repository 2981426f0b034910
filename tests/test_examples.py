"""The examples run, and show what they say that they show."""

import importlib.util
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc

EXAMPLES = Path(__file__).parent.parent / "examples"


@cache
def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("name", ["scaling", "equation_one", "feedback_alignment", "blog_block"])
def test_it_prints(name, capsys):
    example(name).main()
    out = capsys.readouterr().out
    assert len(out.splitlines()) > 5
    assert "nan" not in out
    assert max(map(len, out.splitlines())) <= 80


# Scaling.


@pytest.mark.parametrize("width", [1, 16, 256])
def test_the_variance_of_a_score_is_the_width(width):
    scaling = example("scaling")
    assert scaling.score(width) == scaling.Moments(0, width)
    assert scaling.sampled(width).variance == pytest.approx(width, rel=0.05)


def test_the_rules_hold_with_means():
    scaling = example("scaling")
    q, k = scaling.Moments(1, 0.5), scaling.Moments(-2, 3)
    assert scaling.score(64, q, k) == scaling.Moments(-128, 64 * (0.5 * 3 + 0.5 * 4 + 3 * 1))
    sampled_scores = scaling.sampled(64, q, k)
    assert sampled_scores.mean == pytest.approx(-128, rel=0.02)
    assert sampled_scores.variance == pytest.approx(416, rel=0.05)


def test_scaling_keeps_the_softmax_soft_and_its_jacobian_alive():
    scaling = example("scaling")
    narrow, wide = (scaling.softness(scaling.UNSCALED, width) for width in (64, 512))
    scaled = [scaling.softness(scaling.SCALED, width) for width in (64, 512)]
    assert narrow.entropy == pytest.approx(0.49, abs=0.05)
    assert wide.entropy == pytest.approx(0.165, abs=0.03)
    assert [row.entropy for row in scaled] == pytest.approx([3.02, 3.01], abs=0.03)
    assert wide.jacobian < 0.11
    assert scaled[1].jacobian == pytest.approx(0.242, abs=0.005)


def test_the_jacobian_of_the_example_is_that_of_the_softmax():
    generator = np.random.default_rng(0)
    scores = torch.tensor(generator.standard_normal(6))
    weights = torch.softmax(scores, 0).numpy()
    computed = lc.run(example("scaling").JACOBIAN, {"P": weights[None], "eye": np.eye(6)})["J"][0]
    expected = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, 0), scores)
    np.testing.assert_allclose(computed, expected.numpy(), atol=1e-14)


# Equation (1).


def test_equation_one_holds_for_x_minus_fe():
    distances = example("equation_one").errors(-1)
    ratios = [distance / other for distance, other in pairwise(distances)]
    assert ratios == pytest.approx([10] * len(ratios), rel=0.02)
    assert distances[-1] < 1e-4


def test_equation_one_has_the_wrong_sign_for_algorithm_1():
    equation = example("equation_one")
    assert equation.errors(+1)[-1] == pytest.approx(2, abs=1e-4)
    assert equation.errors(+1, -1)[-1] < 1e-4


# Feedback alignment.


def test_pepita_is_feedback_alignment_in_two_layers():
    distances = list(example("feedback_alignment").update_distances((0.1, 0.01, 0.001)).values())
    for name in ("W1", "W2"):
        assert distances[0][name] / distances[1][name] == pytest.approx(10, rel=0.01)
        assert distances[1][name] / distances[2][name] == pytest.approx(10, rel=0.01)
        assert distances[2][name] < 1e-4


@pytest.mark.slow
def test_the_two_trainings_stay_together_and_the_feedback_turns():
    first, *_, last = example("feedback_alignment").trainings()
    assert first.apart == 0
    assert last.apart < 0.02
    assert max(last.losses) < 0.2 * min(first.losses)
    assert last.angle < 90 < first.angle


# Forward-Forward.


def test_forward_forward_learns_digits_and_has_no_products_backwards():
    forward = example("forward_forward")
    assert forward.by_forward_forward(0, 150) > 0.6
    assert forward.products(forward.FORWARD_FORWARD, 2, 5) == 2 * 2 * (5 * 128 + 128 * 128)
    assert forward.products(forward.NETWORK, 2, 5) == 2 * (2 * 5 * 128 + 3 * (128 * 128 + 128 * 10))


# The block of the blog.


def test_the_blog_counts_are_identities_of_polynomials():
    block = example("blog_block")
    counts = block.counts()
    assert counts["forward"] == {("b", "h", "h", "s"): 24, ("b", "h", "s", "s"): 4}
    assert counts["step"] == block.times(3, counts["forward"])
    assert counts["recomputed"] == block.times(4, counts["forward"])
    assert block.parameters() == {("h", "h"): 12}


@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_the_block_equals_torch(keep):
    block = example("blog_block")
    sizes = {"b": 2, "s": 5, "h": 12, "a": 3, "k": 4, "f": 48}
    arrays = block.arrays(sizes, keep)
    tensors = {name: torch.tensor(array, requires_grad=name not in block.MASKS) for name, array in arrays.items()}

    def foreign(x, D1, D2, D3, WQ, WK, WV, wo, g1, b1, w1, w2, g2, b2):
        q, k, v = (torch.einsum("bsh,hak->bask", x, w) for w in (WQ, WK, WV))
        inner = (torch.softmax(q @ k.mT / 2, -1) * D1) @ v
        attention = functional.layer_norm(torch.einsum("bask,akh->bsh", inner, wo) * D2 + x, (12,), g1, b1)
        return functional.layer_norm(functional.gelu(attention @ w1) @ w2 * D3 + attention, (12,), g2, b2)

    seed = np.random.default_rng(1).standard_normal(arrays["x"].shape)
    values = lc.run(block.BLOCK, {**arrays, "dxo": seed})
    result = foreign(**tensors)
    np.testing.assert_allclose(values["xo"], result.detach().numpy(), 1e-12, 1e-12)
    names = [name for name in arrays if name not in block.MASKS]
    gradients = torch.autograd.grad((result * torch.tensor(seed)).sum(), [tensors[n] for n in names])
    for name, gradient in zip(names, gradients, strict=True):
        np.testing.assert_allclose(values[f"d{name}"], gradient.numpy(), 1e-10, 1e-12, err_msg=name)
    with FlopCounterMode(display=False) as counter:
        foreign(**tensors)
    assert counter.get_total_flops() == lc.price(block.BLOCK, sizes, "matmul").flops
