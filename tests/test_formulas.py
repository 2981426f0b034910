"""Formulas of layers: as symbols equal to the printed ones, the same number however they are written, well formed."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import sympy

from learncost.autodiff.derive import derive
from learncost.cli.command import main
from learncost.cost_models.books import BOOKS
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.parse import parse_line
from learncost.ir.polynomial import Polynomial, total
from learncost.layers.layer import layer, names_of_layers, shipped, shipped_layer
from learncost.models.sizes import MODEL_SIZES, RUN_SIZES
from learncost.ops import op_called, plain
from learncost.reports import notation as write
from learncost.reports.cost import cost
from learncost.reports.formulas.explain import explain
from learncost.reports.formulas.formulas import Formulas, formulas
from learncost.reports.formulas.subject import layers
from sampling import sampled

ROWS = json.loads((Path(__file__).parent / "printed" / "formulas.json").read_text(encoding="utf-8"))["entries"]
LAYER = {
    "embedding": "embedding",
    "mha": "attention",
    "ffn": "feed_forward",
    "add_norm": "add_norm",
    "softmax": "head",
    "error_projection": "error_projection",
}
TOTALS = [
    row
    for row in ROWS
    if row["doc"] == "000/003" and row["is_total"] and row["layer"] in LAYER and row["macro_operation"] != "none"
    if row["section"].startswith("5") and row["variant"] in ("printed", "corrected", "alternative_vector_form")
    # What runs spends fewer operations on the closed form of the normalization's gradient than the list supposes.
    if (row["layer"], row["variant"]) != ("add_norm", "alternative_vector_form")
]
CORE = {
    *("math", "mtable", "mtr", "mtd", "mrow", "mi", "mn", "mo", "mtext", "mspace"),
    *("msub", "msup", "msubsup", "munder", "mfrac", "msqrt"),
}
CHILDREN = {"msub": 2, "msup": 2, "munder": 2, "mfrac": 2, "msubsup": 3}


def symbol(expression: str) -> sympy.Expr:
    names = ("M", "N", "B", "d_model", "d_k", "d_ff", "h", "voc")
    return sympy.sympify(expression, locals={name: sympy.Symbol(name, positive=True) for name in names})


def written(found: Formulas, phase: str, quantity: str, procedures: str = "") -> str:
    data = found.to_dict()
    rows = [row for row in data["rows"] if row["macro_operation"] == phase]
    (row,) = [row for row in rows if not procedures or not row["procedures"] or procedures in row["procedures"]]
    return str(row[quantity.lower()])


def test_the_printed_totals_are_all_there() -> None:
    assert len([row for row in TOTALS if row["variant"] == "printed"]) == 32


@pytest.mark.parametrize("row", TOTALS, ids=lambda row: f"{row['id']}-{row['layer']}-{row['macro_operation']}")
def test_equal_to_the_printed_total(row: dict) -> None:
    book = "paper" if row["variant"] == "printed" else "paper-corrected"
    jacobian = False if row["variant"] == "alternative_vector_form" else None
    formula = formulas(LAYER[row["layer"]], price_book=book, jacobian=jacobian)
    assert formula.to_dict()["times"] == "B"
    # The printed total of the embedding's update is PEPITA's.
    procedure = "pepita" if row["layer"] == "embedding" else "bp"
    ours = written(formula, row["macro_operation"], row["quantity"], procedure)
    assert sympy.expand(symbol(ours) - symbol(row["expression"])) == 0


def test_cross_attention_costs_what_attention_does() -> None:
    first, other = (formulas(name, price_book="paper").to_dict() for name in ("attention", "cross-attention"))
    assert first["rows"] == other["rows"]


def test_embedding_under_bp_and_pepita() -> None:
    bp, pepita = (formulas("embedding", price_book="paper", procedure=p) for p in ("bp", "pepita"))
    assert written(bp, "weight_update", "MACCs", "bp") == "0"
    assert written(bp, "weight_update", "MACCs", "mempepita") == "M*voc*d_model"
    assert written(pepita, "weight_update", "FLOPs", "pepita") == "2*M*voc*d_model"
    assert bp.to_dict()["total"]["maccs"] == "M*voc*d_model"
    assert pepita.to_dict()["total"]["maccs"] == "3*M*voc*d_model"
    text = str(bp)
    assert "(bp, recompute)" in text
    assert "(pepita, mempepita)" in text


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
def test_embedding_is_that_of_the_ledger(book: str, procedure: str) -> None:
    flags = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 5, "vocab_size": 7, "seq_len": 4}
    ledger = cost("encoder", procedure=procedure, price_book=book, batch_size=3, num_hidden_layers=1, **flags)
    rows = [row for row in ledger.rows if row.layer == "embedding"]
    total = formulas("embedding", price_book=book, procedure=procedure).total
    sizes = {"B": 3, "M": 4, "d": 6, "v": 7}
    assert total.maccs.at(sizes) == sum(row.maccs for row in rows)
    assert total.flops.at(sizes) == sum(row.flops for row in rows)


@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
@pytest.mark.parametrize("name", ["embedding", "attention", "add_norm", "feed_forward", "head"])
def test_totals_follow_table_2(name: str, procedure: str) -> None:
    answer = formulas(name, price_book="paper", procedure=procedure)
    passes = {row.macro_operation: row.passes for row in answer.rows}
    assert passes.pop("forward") == {"bp": 1, "recompute": 1, "pepita": 2, "mempepita": 3}[procedure]
    assert passes.pop("weight_update") == 1
    again = procedure == "recompute" and name in ("attention", "add_norm", "feed_forward")
    assert passes == {
        **({"recomputation": 1} if again else {}),
        **({"backward": 1} if procedure in ("bp", "recompute") else {}),
    }
    assert answer.total.maccs.terms == sum((r.maccs * r.passes for r in answer.rows), Polynomial()).terms


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("name", "book"), sampled([(name, book) for name in layers() for book in BOOKS], 5))
def test_written_counts_keep_their_value(name: str, book: str) -> None:
    answer = formulas(name, price_book=book)
    generator = np.random.default_rng(7)
    for _ in range(3):
        sizes = {
            axis: int(size) for axis, size in zip(sorted(answer.axes), generator.integers(2, 99, 20), strict=False)
        }
        if {"d", "h", "k"} <= set(sizes):
            sizes["d"] = sizes["h"] * sizes["k"]
        values = {write.SYMBOLS.get(axis, axis): size for axis, size in sizes.items()}
        times = sizes.get("B", 1) if answer._per_sequence else 1
        for count in answer._counts:
            written_text = write.python(answer._written(count))
            assert eval(written_text, {"__builtins__": {}}, values) * times == count.at(sizes)
            assert write.plain(answer._written(count)) == written_text.replace("**", "^")


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("name", "format"), sampled([(name, form) for name in layers() for form in ("text", "latex", "mathml", "json")], 5)
)
def test_every_layer_in_every_format(name: str, format: str) -> None:
    answer = formulas(name.replace("_", "-"), price_book="paper")
    text = answer.show(format)
    assert "Pau & Aymone" in text.replace("&amp;", "&")
    if format == "text":
        assert max(map(len, text.splitlines())) <= 80
    elif format == "latex":
        assert_latex(text)
    elif format == "mathml":
        assert_mathml(ElementTree.fromstring(text)[0])
    else:
        assert json.loads(text) == answer.to_dict()


def assert_latex(text: str) -> None:
    depth = 0
    for character in text.replace(r"\{", "").replace(r"\}", ""):
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert text.count(r"\left") == text.count(r"\right") + text.count(r"\left\r")
    assert text.count(r"\begin") == text.count(r"\end")


def assert_mathml(element: ElementTree.Element) -> None:
    """Elements of MathML Core alone, each with as many children as it must have."""
    for inner in element.iter():
        meta = inner.tag.rpartition("}")[2]
        assert meta in CORE, meta
        if meta in CHILDREN:
            assert len(inner) == CHILDREN[meta], ElementTree.tostring(inner)


@pytest.mark.one_in(every=13)
@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("jacobian", [False, True])
def test_every_table_as_latex_and_mathml(name: str, jacobian: bool) -> None:
    step = derive(shipped_layer(name), jacobian=jacobian).step
    assert_latex(write.latex(step))
    assert_mathml(ElementTree.fromstring(write.mathml(step)))


def shown(text: str, known: tuple[str, ...] | None = None) -> str:
    line = parse_line(text)
    assert isinstance(line, Line)
    assert_mathml(ElementTree.fromstring(write.mathml(line, known)))
    assert_latex(write.latex(line, known))
    return write.latex(line, known)


def test_lines_in_latex() -> None:
    assert shown("Q[B M h k] = XQ[B M d] WQ[d h k]") == r"Q_{bmhk} = \sum_{d}\,X_{bmd}^{Q}\,W_{dhk}^{Q}"
    assert shown("S[h M N] = R[h M N] #k^-0.5[]") == r"S_{hmn} = \frac{1}{\sqrt{d_{k}}}\,R_{hmn}"
    assert shown("M[n] = t[n] #v^-1[]") == r"M_{n} = \frac{1}{\mathrm{voc}}\,t_{n}"
    assert shown("R[M] = X[M] - 1e-05[]") == r"R_{m} = X_{m} - 10^{-5}"
    assert shown("E[M d] = W[v=tokens[M] d]") == r"E_{md} = W_{\mathrm{tokens}_{m}, d}"
    assert shown("dW[v=tokens[M] d] = dE[M d]") == (
        r"\frac{\partial \mathcal{L}}{\partial W_{\mathrm{tokens}_{m}, d}} \mathrel{+}= "
        r"\frac{\partial \mathcal{L}}{\partial E_{md}}"
    )
    assert shown("A[M k] = P[M M'] V[M' k] where M' <= M") == r"A_{mk} = \sum_{m' \le m}\,P_{mm'}\,V_{m'k}"
    assert shown("P[M N] = softmax[N](S[M N])") == r"P_{mn} = \mathrm{softmax}_{n}(S_{mn})"
    assert shown("loss[] = T[M] share[M]") == r"\mathrm{loss} = \sum_{m}\,T_{m}\,\mathrm{share}_{m}"
    # Two axes that are one letter in two cases stay apart; an axis with a long name is parted by commas.
    assert shown("Y[M m] = X[M m] + b[m]") == r"Y_{Mm} = X_{Mm} + b_{m}"
    assert shown("Y[row d] = X[row d] + b[d]") == r"Y_{\mathrm{row}, d} = X_{\mathrm{row}, d} + b_{d}"


def test_names_in_latex() -> None:
    assert shown("Y[d] = attn.WQ[d] + W1[d]") == r"Y_{d} = W_{d}^{Q, \mathrm{attn}} + W_{d}^{(1)}"
    assert shown("dg[d] = dY[d] Z[d]", ("g", "Y", "Z")).startswith(r"\frac{\partial \mathcal{L}}{\partial g_{d}}")
    assert shown("dg[d] = share[d] Z[d]").startswith(r"\mathrm{dg}_{d}")
    assert shown("Y[d] = dbeta[d] + decay[d]", ("beta",)) == (
        r"Y_{d} = \frac{\partial \mathcal{L}}{\partial \mathrm{beta}_{d}} + \mathrm{decay}_{d}"
    )
    line = parse_line("Y[d] = A[d] + B[d]")
    assert isinstance(line, Line)
    terms = tuple(replace(line.right[0], name=name) for name in ("dX+2", "R~1", "X.2", "Z:g"))
    text = write.latex(replace(line, right=terms, signs=(1, 1, 1, 1)))
    assert r"\left.\frac{\partial \mathcal{L}}{\partial X_{d}}\right\rvert_{2}" in text
    assert r"R_{d}^{\mathrm{\sim 1}}" in text
    assert r"X_{d}^{(\mathrm{version}\,2)}" in text
    assert r"Z_{d}^{g}" in text


def test_counts() -> None:
    count = Polynomial.of("BMdhk", 2) + Polynomial.of("BMMNh") - Polynomial.of("BMf")
    assert write.plain(count) == "B*M^2*N*h + 2*B*M*d_model*d_k*h - B*M*d_ff"
    assert write.plain(write.one_width(count, "BMNdhkf")) == "B*M^2*N*h + 2*B*M*d_model^2 - B*M*d_ff"
    assert write.one_width(count, "BMNhkf") == count
    assert write.one_width(count, "BMNdghkf") == count
    assert write.plain(Polynomial()) == "0"
    assert write.latex(Polynomial.of("dd", 3)) == r"3\,d_{\mathrm{model}}^{2}"
    assert write.divided((count,), "B") is not None
    assert write.divided((count + Polynomial.of("M"),), "B") is None
    assert write.plain(Polynomial.of(("n_layer", "M", "d"))) == "n_layer*M*d_model"


def test_symbols_are_those_of_the_sizes() -> None:
    symbols = {size.symbol for size in (*MODEL_SIZES, *RUN_SIZES)}
    assert set(write.SYMBOLS.values()) <= symbols


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "linear.table"
    path.write_text("linear(X; W) -> Y\n  Y[M e] = X[M d] W[d e]\n", encoding="utf-8")
    answer = formulas(str(path), price_book="matmul")
    assert answer.to_dict()["total"]["maccs"] == "3*M*d_model*e"
    assert answer.to_dict()["times"] == ""


def test_the_optimizer() -> None:
    flops = {name: formulas("optimizer", optimizer=name).to_dict()["rows"][0]["flops"] for name in ("sgd", "momentum")}
    assert flops == {"sgd": "2*n_parameters", "momentum": "4*n_parameters"}
    assert formulas("optimizer", price_book="paper").to_dict()["rows"][0]["flops"] == "0"


@pytest.mark.parametrize(
    ("subject", "arguments", "message"),
    [
        ("atention", {}, "'attention'"),
        ("no/such.table", {}, "cannot be read"),
        ("attention", {"price_book": "papre"}, "'paper'"),
        ("attention", {"procedure": "hebb"}, "mempepita"),
        ("optimizer", {"optimizer": "adam8bit"}, "adamw"),
        ("attention", {"seq_len": 4}, "seq_len applies to models"),
        ("softmax", {"hidden_size": 4}, "hidden_size applies to models"),
        ("softmax", {"price_book": "paper"}, "operators are priced by run"),
        ("gpt2", {"jacobian": True}, "jacobian applies to layers"),
        ("gpt2", {"seq_len": "long"}, "whole number"),
    ],
)
def test_refusals(subject: str, arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        formulas(subject, **arguments)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "bytes.table").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.table").write_text("")
    for name in ("bytes.table", "empty.table", "."):
        with pytest.raises(InputError):
            formulas(str(tmp_path / name))


def test_no_heavy_import() -> None:
    code = (
        "import sys; from learncost import explain, formulas;"
        "str(formulas('attention')); str(explain('attention'));"
        "assert not {'torch', 'sympy', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_layer_text_is_not_changed_by_printing() -> None:
    own_layer = layer("linear(X; W) -> Y\n  Y[M e] = X[M d] W[d e]")
    assert write.text(own_layer) == "Y[M e] = X[M d] W[d e]"
    assert write.text(Polynomial.of("Md")) == "M*d_model"


def test_words_cost_what_their_lines_cost() -> None:
    answer = formulas("softmax")
    assert [str(row.flops) for row in answer.rows] == ["5 B n", "4 B n"]
    assert json.loads(answer.show("json"))["rows"][0]["flops"] == "5*n"


MODELS = ["gpt2", "llama-3.2-1b", "t5-small", "vit-b-16", "distilbert-base", "mixtral-8x7b", "pythia-70m", "opt-125m"]


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_s_formulas_are_the_rows_of_cost(model: str) -> None:
    """As data too: the expressions of Python, at the sizes beside them, are the counts of the ledger."""
    answer, ledger = formulas(model), cost(model)
    rows = {(row.layer, row.block, row.macro_operation): (row.maccs, row.flops) for row in ledger.rows}
    assert {(row.layer, row.block, row.macro_operation): row.values for row in answer.rows} == rows
    data = answer.to_dict()
    for row in data["rows"]:
        for kind in ("maccs", "flops"):
            assert eval(row[kind]["formula"], {"min": min, **data["sizes"]}) == row[kind]["value"]
    assert max(map(len, str(answer).splitlines())) <= 80
    assert "<table" in answer._repr_html_()


@pytest.mark.parametrize("model", ["gpt2", "t5-small", "mixtral-8x7b"])
@pytest.mark.parametrize("asked", ["attention", "ffn", "norm"])
def test_a_model_s_layer_is_its_own(model: str, asked: str) -> None:
    asked = "moe" if (model, asked) == ("mixtral-8x7b", "ffn") else asked
    lines, sums = explain(model, asked), formulas(model, asked)
    assert sums.layer
    ledger = cost(model)
    for part in lines.parts:
        own = [row for row in sums.rows if row.macro_operation == part.macro_operation]
        assert part.flops.terms == total(row.flops for row in own).terms
        rows = [
            r for r in ledger.rows if r.macro_operation == part.macro_operation and r.layer in sums.layer.split(", ")
        ]
        assert part.maccs.at(lines.sizes) == sum(row.maccs for row in rows)
    assert max(map(len, str(lines).splitlines())) <= 80


def test_a_model_s_lines_stand_as_they_are_in_its_table() -> None:
    texts = [step.text for part in explain("gpt2", "mha").parts for step in part.steps]
    assert "attn.Q[B M h k] = attn.Q.linear[B M h k] + attn.bQ[h k]" in texts  # GPT-2 has biases
    assert any("where M' <= M" in text for text in texts)  # and a causal mask
    assert "d = hidden_size = 768" in str(formulas("gpt2", "attention"))
    smaller = formulas("gpt2", "attention", n_layer=2, seq_len=8, batch_size=3)
    assert (smaller.sizes["n_layer"], smaller.sizes["M"], smaller.sizes["B"]) == (2, 8, 3)


@pytest.mark.parametrize(
    ("called", "layer"),
    [
        *[("mha", "attention"), ("MultiHeadAttention", "attention"), ("Multi-Head-Attention", "attention")],
        *[("nn.MultiheadAttention", "attention"), ("GQA", "grouped_attention"), ("SwiGLU", "gated_feed_forward")],
        *[("mlp", "feed_forward"), ("FFN", "feed_forward"), ("LayerNorm", "norm"), ("rmsnorm", "rms_norm")],
        *[("cross-attention", "cross_attention"), ("MoE", "mixture_of_experts"), ("lm head", "head")],
        *[("layer_norm", "norm"), ("nn.LayerNorm", "norm"), ("RNN", "recurrent"), ("MLA", "latent_attention")],
    ],
)
def test_what_people_call_layers(called: str, layer: str) -> None:
    assert formulas(called).layer == explain(called).layer == layer


def test_usual_names_are_of_one_layer_each() -> None:
    assert all(names_of_layers()[plain(name)] == name for name in shipped())
    for name in shipped():
        text = (resources.files("learncost.layers") / "tables" / f"{name}.table").read_text(encoding="utf-8")
        for line in (line.removeprefix("also:") for line in text.splitlines() if line.startswith("also:")):
            for spelling in line.split(","):
                assert names_of_layers()[plain(spelling)] == name
                assert op_called(spelling) is None, "a word is not a layer"


@pytest.mark.parametrize("ops", [("gpt2",), ("t5-small", "attention"), ("attention",)])
def test_formulas_are_mathematics_of_a_page(ops, capsys):
    assert main(["formulas", *ops, "--format", "mathml"]) == 0
    math = ElementTree.fromstring(capsys.readouterr().out)
    rows = math.findall(".//{*}mtr")
    assert len(rows) == 2 * len(rows[::2]) >= 6
    assert {row[1][0].text for row in rows} == {"MACCs", "FLOPs"}
