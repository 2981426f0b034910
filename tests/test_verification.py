"""Verification finds what is wrong, and reports what it compared."""

import json

import numpy as np
import pytest
from rich.console import Console

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.cost_models import tables
from learncost.layers.layer import shipped, shipped_layer
from learncost.ops import entries
from learncost.verification import verify as proof
from learncost.verification.check import values_of

LAYER = """mine(X T; W C) -> Y S
  S[] = X[b d] X[b d]
  U[b d] = X[b d] + C[v=T[b] d]
  repeat n carry U:
    H[b e] = U[b d] W[d e]
    G[b e] = silu(H[b e])
    V[b d] = G[b e] W[d e]
    U[b d] = U[b d] - V[b d]
  Y[b d] = normalize[d](U[b d])"""


def test_a_layer_of_ones_own_is_proved():
    report = lc.check_layer(lc.layer(LAYER))
    assert report.passed, str(report)
    compared = " ".join(check.compared for check in report.checks)
    for comparison in (
        "executed operations",
        "prices of the passes",
        "bytes of every line",
        "Jacobians",
        "complex steps",
    ):
        assert comparison in compared
    assert lc.verify(lc.layer(LAYER)).passed


def test_a_foreign_meaning_sees_what_differences_cannot():
    right = lc.layer("rows(X) -> Y\n Y[a b] = softmax[b](X[a b])")
    wrong = lc.layer("rows(X) -> Y\n Y[a b] = softmax[a](X[a b])")

    def rows(x):
        return np.exp(x) / np.exp(x).sum(1, keepdims=True)

    assert lc.check_layer(wrong).passed
    assert lc.check_layer(right, rows).passed
    report = lc.check_layer(wrong, rows)
    assert [check.compared for check in report.failed] == ["values against an independent implementation"]


def test_a_wrong_price_is_named_with_its_line(monkeypatch):
    right = tables.executed

    def wrong(line):
        maccs, flops = right(line)
        return (maccs, flops * 2) if getattr(line, "op", "") == "exp" else (maccs, flops)

    monkeypatch.setattr(tables, "executed", wrong)
    report = lc.check_layer(shipped_layer("attention"))
    assert not report.passed
    failed = report.failed[0]
    assert failed.compared == "executed operations against the price book run, line by line"
    assert failed.found.endswith("in line: P[B h M N] = softmax[N](S[B h M N])  (3)")
    assert lc.check_layer(shipped_layer("residual")).passed


def test_what_breaks_off_is_a_failure():
    def broken(*arrays):
        raise ZeroDivisionError("nothing left")

    report = lc.check_layer(shipped_layer("residual"), broken)
    assert [(check.compared, check.found) for check in report.failed] == [
        ("running", "ZeroDivisionError: nothing left")
    ]


def test_a_shipped_layer_without_a_foreign_implementation_fails():
    failed = [
        check
        for check in proof.verify_table(shipped_layer("norm").table, "norm", required=True)
        if check.passed is False
    ]
    assert [check.found for check in failed] == ["there is none in learncost.verification.references"]


def test_without_torch_and_jax_their_comparisons_are_not_made(monkeypatch):
    monkeypatch.setattr(proof, "find_spec", lambda name: None)
    report = lc.verify("norm")
    assert report.passed
    assert [check.found for check in report.checks if check.passed is None] == [
        "torch is not installed",
        "jax is not installed",
    ]


def test_all_words_and_layers_pass(monkeypatch):
    """Of words and layers an eighteenth: `learncost verify` runs them all."""
    ops = [entry for at, entry in enumerate(entries()) if at % 18 == 0 or entry.name == "softmax"]
    layers = [name for at, name in enumerate(shipped()) if at % 18 == 0 or name == "attention"]
    monkeypatch.setattr(proof, "entries", lambda: ops)
    monkeypatch.setattr(proof, "shipped", lambda: layers)
    report = lc.verify()
    assert report.passed, "\n".join(map(str, report.failed))
    subjects = {check.subject for check in report.checks}
    assert {entry.name for entry in ops if entry.kind != "constant"} | {*layers} <= subjects
    assert {"softmax under a where", "attention with explicit Jacobians"} <= subjects


@pytest.mark.parametrize("procedures", ["bp,recompute,pepita,mempepita", pytest.param(None, marks=pytest.mark.slow)])
def test_a_model_passes_with_every_procedure(procedures):
    """By default its table, too."""
    report = lc.verify("gpt2", procedures)
    assert report.passed, "\n".join(map(str, report.failed))
    comparisons = {(check.subject, check.compared) for check in report.checks}
    assert ("gpt2", "mempepita with pepita, bit for bit") in comparisons
    assert ("gpt2", "recompute with bp, bit for bit") in comparisons
    assert ("gpt2, mempepita with adamw", "executed operations against the price book run, line by line") in comparisons


@pytest.mark.slow
@pytest.mark.parametrize("model", ["encoder", "decoder", "encoder-decoder", "bert-base-uncased", "gpt3-jiang"])
def test_other_models_pass(model):
    report = lc.verify(model)
    assert report.passed, "\n".join(map(str, report.failed))


def test_a_report_prints_as_a_table_and_as_lines():
    report = lc.check_layer(shipped_layer("residual"))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report)
    screen = console.export_text()
    assert "Proof of residual" in screen
    assert "passed" in screen
    assert "\n\npassed  residual, executed operations" in str(report)
    assert json.loads(report.show("json"))["passed"]
    assert report.show("md").count("\n| passed |") == len(report.checks)


def test_an_unknown_model_is_refused():
    with pytest.raises(lc.InputError):
        lc.verify("gpt-nothing")


@pytest.mark.parametrize(("wrong_by", "passes"), [(0.0, True), (3e-9, True), (1e-6, False)])
def test_a_difference_is_rounding_only_where_rounding_moves_gradients_as_far(wrong_by, passes):
    """The sine of ten million times a number: its gradient hangs on the last places of what is given."""
    steep = lc.layer("steep(X; a) -> Y\n  Z[m] = X[m] a[m] 10000000[]\n  Y[m] = sin(Z[m])\n").table

    def autograd(table, arrays, seeds, gradients, sizes):
        values = values_of(derive(table).step, {**arrays, **seeds}, sizes)
        return {"Y": values["Y"]}, {key: values[name] * (1 + wrong_by) for key, name in gradients.items()}

    assert proof._autograd(steep, "steep", "a library", autograd).passed is passes


def test_a_condition_without_axes_is_drawn():
    text = """
chosen(X Y; W) -> Z
constants: Y
  V[a] = X[a] W[a]
  Z[a] = select(Y[], V[a], X[a])
"""
    assert lc.check_layer(lc.layer(text)).passed
