"""Both foreign libraries differentiate tables by themselves, each sees a wrong gradient, and neither is needed."""

import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.layers.layer import shipped_layer
from learncost.ops import entries, entry
from learncost.verification import jax_side, torch_side
from learncost.verification.check import finite_arrays, seeds_of
from learncost.verification.sample import small_sizes
from learncost.verification.verify import op_layer, verify, with_jax, with_torch

VOCABULARY = import_module("learncost.ops.op_def")
SIDES = pytest.mark.parametrize("side", [with_torch, with_jax])


def compared(side, table):
    return next(side(table, "it"))


@SIDES
@pytest.mark.parametrize(
    ("op", "gradient"),
    [
        ("tanh", "dX[_] = dY[_] Y[_]"),
        ("softmax", "dX[_ n] = dY[_ n] Y[_ n]"),
        ("maximum", "dX[_] = 1[] dY[_]\ndZ[_] = 1[] dY[_]"),
    ],
)
def test_a_wrong_gradient_is_seen(side, op, gradient, monkeypatch):
    assert compared(side, op_layer(entry(op)).table).passed
    other = replace(entry(op), gradient_text=gradient)
    monkeypatch.setitem(VOCABULARY._entries, op, other)
    check = compared(side, op_layer(other).table)
    assert check.passed is False
    assert "values and gradients" in check.compared
    assert check.found.partition(", in ")[2] in ("dX", "dZ")


@SIDES
def test_a_wrong_value_is_seen(side, monkeypatch):
    right = entry("silu")
    other = replace(right, body_text=right.body_text.replace("X[_] S[_]", "S[_] S[_]"))
    monkeypatch.setitem(VOCABULARY._entries, "silu", other)
    check = compared(side, op_layer(other).table)
    assert check.passed is False
    assert check.found.endswith("in Y.out")


MASKED = [entry for entry in entries() if entry.outside is not None and not entry.inline and not entry.chooses]


@SIDES
@pytest.mark.parametrize("masked", MASKED, ids=lambda masked: masked.name)
def test_every_word_that_a_where_may_mask_is_translated(side, masked):
    check = compared(side, op_layer(masked, masked=True).table)
    assert check.passed, str(check)


@SIDES
def test_every_move_is_translated(side):
    """Reads at indices, sums into places, masks, repeats that keep stacks, an input without influence."""
    layer = lc.layer(
        """moves(X T Z; W C) -> Y S R
  A[b d] = X[b d] + C[v=T[b] d]
  S[v=T[b] d] = A[b d]
  repeat n carry A keep K=G:
    H[b e] = A[b d] W[d e]
    G[b e] = silu(H[b e])
    A[b d] = G[b e] W[d e]
  R[n b e] = K[n b e]
  P[b c] = softmax[c](A[b c]) where c <= b
  Y[b c] = P[b c] + Z[b c]"""
    )
    check = compared(side, layer.table)
    assert check.passed, str(check)


def test_both_give_the_same():
    table = shipped_layer("latent_attention").table
    sizes = small_sizes(table)
    arrays, seeds, gradients = finite_arrays(table, sizes), seeds_of(table, sizes), derive(table).gradients
    (y, dx), (other, dother) = (
        side.autograd(table, arrays, seeds, gradients, sizes) for side in (torch_side, jax_side)
    )
    assert y.keys() == other.keys()
    assert dx.keys() == dother.keys() == gradients.keys()
    for left, right in ((y, other), (dx, dother)):
        for name in left:
            assert right[name].dtype == np.float64
            np.testing.assert_allclose(left[name], right[name], rtol=1e-9, atol=1e-12)


def test_the_process_keeps_its_own_precision():
    import jax

    before = jax.config.jax_enable_x64
    assert compared(with_jax, shipped_layer("norm").table).passed
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(1).dtype == (np.float64 if before else np.float32)


def test_a_release_without_one_of_the_options_compiles_all_the_same(monkeypatch):
    monkeypatch.setitem(jax_side._OPTIONS, "xla_no_such_option", True)
    assert compared(with_jax, shipped_layer("norm").table).passed


@pytest.mark.parametrize("absent", ["torch", "jax"])
def test_an_absent_library_is_not_compared(absent, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    report = verify("norm")
    assert report.passed
    assert [check.found for check in report.checks if check.passed is None] == [f"{absent} is not installed"]
    assert any("values and gradients with" in check.compared and check.passed for check in report.checks)


def test_nothing_is_imported_before_it_is_needed():
    program = """
import sys
import learncost.verification.jax_side, learncost.verification.torch_side, learncost.verification.verify
assert not {"torch", "jax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
