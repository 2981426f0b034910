"""Layers line by line: the rows sum to the formulas, what is kept is what `live` keeps, screens fit 80 columns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.cost_models import price
from learncost.cost_models.books import BOOKS
from learncost.ir.errors import InputError
from learncost.ir.line import Meta
from learncost.ir.polynomial import total
from learncost.layers.layer import layer, shipped_layer
from learncost.liveness import live
from learncost.ops import entries, entry
from learncost.reports.formulas.explain import explain
from learncost.reports.formulas.formulas import formulas
from learncost.reports.formulas.subject import layers
from sampling import sampled

GPT2 = """% The decoder of GPT-2 in two lines.
gpt2(tokens; wte) -> P
  X[B M d] = wte[v=tokens[B M] d]
  repeat n_layer carry X:
    A[B M d] = attention(X, X, X; attn, N = M') where M' <= M
    X[B M d] = X[B M d] + A[B M d]
  L[B M v] = X[B M d] wte[v d]
  P[B M v] = softmax[v](L[B M v])
"""


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize(("name", "book"), sampled([(name, book) for name in layers() for book in BOOKS], 5))
def test_lines_sum_to_the_formulas(name: str, book: str) -> None:
    explanation, sums = explain(name, price_book=book), formulas(name, price_book=book)
    rows = {row.macro_operation: row for row in sums.rows}
    assert list(rows) == [part.macro_operation for part in explanation.parts]
    for part in explanation.parts:
        assert part.maccs.terms == rows[part.macro_operation].maccs.terms
        assert part.flops.terms == rows[part.macro_operation].flops.terms


@pytest.mark.one_in(every=34)
@pytest.mark.parametrize(("name", "book"), sampled([(name, book) for name in layers() for book in BOOKS], 5))
def test_every_format(name: str, book: str) -> None:
    explanation = explain(name, price_book=book)
    text = explanation.show("text")
    assert max(map(len, text.splitlines())) <= 80
    assert f"Price book {book}:" in text
    for format in ("markdown", "latex"):
        assert explanation.show(format).count("{") == explanation.show(format).count("}")
    assert json.loads(explanation.show("json")) == explanation.to_dict()
    lines = [line for line in explanation.markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} <= {4, 6}  # a bar in a formula would make one cell more


def test_attention_under_the_paper() -> None:
    data = explain("attention", price_book="paper").to_dict()
    parts = data["macro_operations"]
    assert list(parts) == ["forward", "backward", "weight_update"]
    first = parts["forward"]["lines"][0]
    assert first["equation"] == "(2)"
    assert first["line"] == "Q[B M h k] = XQ[B M d] WQ[d h k]"
    assert first["maccs"] == "M*d_model**2"
    numbers = [line["equation"] for line in parts["backward"]["lines"]]
    assert "(25-26)" in numbers
    assert "E3" in numbers
    assert sorted(line["equation"] for line in parts["weight_update"]["lines"]) == ["(23)", "(27)", "(33)", "(37)"]
    kept_rows = {row["name"]: row for row in data["saved"]}
    assert set(kept_rows) == {"XQ", "XK", "XV", "Q", "K", "V", "P", "A"}
    assert kept_rows["P"]["elements"] == "M*N*h"
    assert kept_rows["XQ"]["input"]
    assert kept_rows["A"]["read_by"] == ["dWO"]


def test_closed_form_and_jacobian() -> None:
    closed, through = (explain("attention", price_book="run", jacobian=j).show("text") for j in (False, True))
    assert "softmax'[N]" in closed
    assert "JS[" not in closed
    assert "JS[" in through
    assert "explicit Jacobian" in through


@pytest.mark.parametrize("name", ["attention", "add_norm", "feed_forward", "head", "embedding"])
def test_kept_is_what_live_keeps(name: str) -> None:
    derived = derive(shipped_layer(name))
    sizes = {"B": 2, "M": 3, "N": 5, "d": 14, "h": 2, "k": 7, "f": 11, "v": 13}
    expected = {array.name: array.bytes for array in live(derived, sizes, "fp32").saved}
    assert {array.name: array.elements.at(sizes) * 4 for array in explain(name).saved} == expected


def test_values_from_inside_a_word_are_named() -> None:
    text = explain("norm").show("text")
    assert "Z:g is line g of the body of normalize." in text


def test_a_repeat(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.table"
    path.write_text(GPT2, encoding="utf-8")
    explanation = explain(str(path), price_book="matmul")
    text = explanation.show("text")
    assert max(map(len, text.splitlines())) <= 80
    assert "repeat n_layer carry X->X.2:" in text
    assert "repeat n_layer backwards" in text
    stacks = {array.name: array.readers for array in explanation.saved if array.name.endswith("*")}
    assert stacks
    assert all(stacks.values())


def test_what_a_repeat_hands_out_is_kept_too() -> None:
    layer = lc.layer("net(X; W) -> Y\nrepeat n carry X:\n  X[B d] = X[B d'] W[d' d]\nY[B d] = X[B d] X[B d]")
    assert (
        sum(array.elements.at({"n": 3, "B": 1, "d": 2}) for array in explain(layer).saved) == 8
    )  # into turns, and out


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="format must be one of table, json, csv, md, latex, html"):
        explain("attention").show("markdowns")
    (tmp_path / "bad.table").write_text("bad(X) -> Y\n  Y[M] = nosuchword(X[M])\n")
    with pytest.raises(InputError, match="nosuchword"):
        explain(str(tmp_path / "bad.table"))
    for name, message in (
        ("x" * 300, "no layer, operator or model is called"),
        ("x" * 300 + ".table", "cannot be read"),
        ("\0.table", "path"),
    ):
        with pytest.raises(InputError, match=message):
            explain(name)


@pytest.mark.parametrize("op", [op.name for op in entries()])
def test_words_have_pages(op: str) -> None:
    """The lines of the body cost what `price` says of the word in a layer; the gradient is written out."""
    explanation, word_entry = explain(op), entry(op)
    text = explanation.show("text")
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(explanation.show("json")) == explanation.to_dict()
    assert explanation.show("latex").count("{") == explanation.show("latex").count("}")
    parts = {part.macro_operation: part for part in explanation.parts}
    assert [step.text for step in parts["backward"].steps] == [
        str(replace(line.renamed({}, {"_": "B"}), meta=Meta())) for line in word_entry.gradient
    ]
    if word_entry.kind == "constant":
        return
    acts = "" if word_entry.pointwise else "[n]"
    shape = "[B]" if word_entry.pointwise else "[B n]"
    left = "[B k]" if word_entry.chooses == "some" else "[B]" if word_entry.reduces else shape
    defaulted = len(word_entry.inputs) - len(word_entry.defaults)
    scalars = {"lr", "mu", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay"}
    operands = [f"{name}{'[]' if name in scalars else shape}" for name in word_entry.inputs[:defaulted]]
    if op == "softmax_with_sink":
        operands[1] = "z[B]"
    names = " ".join(name.partition("[")[0] for name in operands)
    body = f"{' '.join(f'{name}{left}' for name in word_entry.outputs)} = {op}{acts}({', '.join(operands)})"
    learns = {line.name for line in word_entry.gradient}
    fixed = [name for name in names.split() if learns and f"d{name}" not in learns]
    constants = f"constants: {' '.join(fixed)}\n" if fixed else ""
    priced = price(layer(f"one({names}) -> {' '.join(word_entry.outputs)}\n{constants}  {body}"), {}, BOOKS["run"])
    assert parts["forward"].flops.terms == total(row.flops for row in priced.rows).terms
    assert parts["forward"].maccs.terms == total(row.maccs for row in priced.rows).terms


def test_words_in_any_spelling() -> None:
    assert explain("LogSoftmax").layer == explain("log-softmax").layer == "log_softmax"
    assert explain("GELU").layer == "gelu"
    assert explain("swish").layer == "silu"
    assert "<table" in explain("softmax")._repr_html_()


def test_a_model_is_a_model_and_its_layer_a_layer():
    model_pages, part, layer = (
        explain(*arguments).to_dict() for arguments in (("gpt2",), ("gpt2", "attention"), ("attention",))
    )
    assert (model_pages["model"], model_pages["layer"]) == ("gpt2", None)
    assert (part["model"], part["layer"]) == ("gpt2", "attention")
    assert layer["layer"] == "attention"
    assert "model" not in layer
    assert (part["model"], part["layer"]) == tuple(
        formulas("gpt2", "attention").to_dict()[key] for key in ("model", "layer")
    )


def test_a_layer_itself_is_explained():
    layer = lc.layer("linear(X; W) -> Y\n  Y[B f] = X[B d] W[d f]\n")
    assert "dW[d f] = dY[B f] X[B d]" in str(lc.explain(layer))
    assert lc.formulas(layer).to_dict()["layer"] == "linear"
    assert str(lc.explain(lc.layer("attention"))) == str(lc.explain("attention"))
    with pytest.raises(lc.InputError, match="or a layer, not 5"):
        lc.explain(5)


def test_a_term_that_is_longer_than_its_column_goes_on_further_in():
    lines = str(lc.explain("llama-3.1-8b")).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("  k=flip[k]]")]
    assert "attn.Q.unrotated[B M h g k=flip[k]]" in lc.explain("llama-3.1-8b").show("csv"), "spaces elsewhere"


@pytest.mark.parametrize("question", [lc.explain, lc.formulas, lc.cost])
def test_a_format_is_given_to_the_answer(question):
    with pytest.raises(lc.InputError, match=r"^format is no keyword: write the answer by \.show\('latex'\)$"):
        question("attention", format="latex")
