import csv
import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learncost as lc
from learncost.cli.command import main
from learncost.cost_models.books import BOOKS
from learncost.models.configuration import configure
from learncost.procedures.procedure import MACRO_OPERATIONS, PROCEDURES
from learncost.reports.sheet import joules_of, rounded, seconds_of, size_of

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "seq_len": 4,
}
TWO_SIDED = {name: size for name, size in SMALL.items() if name != "num_hidden_layers"} | {"n_enc": 2, "n_dec": 3}
BY = ("layer", "macro-operation", "equation", "kind")
TOP = {
    "schema": int,
    "model": str,
    "procedure": str,
    "price_book": str,
    "batch_size": int,
    "seq_len": int,
    "target_len": (int, type(None)),
    "parameters": int,
    "total": dict,
    "macro_operations": dict,
    "rows": list,
}
ROW = ("layer", "block", "repeat", "macro_operation", "maccs", "flops", "bytes")


def check(ledger: dict) -> None:
    """The schema, and that rows sum to macro-operations, and these to the total."""
    for name, kind in TOP.items():
        assert isinstance(ledger[name], kind), name
    assert ledger["schema"] == 1
    assert tuple(ledger["macro_operations"]) == MACRO_OPERATIONS
    counts = ("maccs", "flops")
    for name, phase in ledger["macro_operations"].items():
        assert set(phase) == {"passes", *counts}
        assert all(type(value) is int for value in phase.values())
        rows = [row for row in ledger["rows"] if row["macro_operation"] == name]
        assert {c: sum(row[c] for row in rows) for c in counts} == {c: phase[c] for c in counts}
        assert phase["passes"] or not rows
    for count in counts:
        assert sum(phase[count] for phase in ledger["macro_operations"].values()) == ledger["total"][count]
    for row in ledger["rows"]:
        assert set(ROW) <= set(row)
        assert row["block"] in ("encoder", "decoder", None)
        assert all(type(row[count]) is int for count in ("repeat", "maccs", "flops", "bytes"))
        assert row["repeat"] >= 1


@pytest.mark.one_in(every=46)
@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("by", BY)
def test_rows_sum_to_macro_operations_and_these_to_the_total(book, procedure, by):
    for model, sizes in (("encoder", SMALL), ("encoder-decoder", TWO_SIDED), ("gpt2", {})):
        check(lc.cost(model, procedure, book, by=by, batch_size=3, **sizes).to_dict())


def test_the_example_of_the_interface():
    ledger = lc.cost("encoder", procedure="pepita", price_book="paper", **SMALL).to_dict()
    assert ledger["parameters"] == 728
    assert ledger["model"] == "encoder"
    assert ledger["target_len"] is None
    passes = {name: phase["passes"] for name, phase in ledger["macro_operations"].items()}
    assert passes == {
        "forward": 2,
        "recomputation": 0,
        "backward": 0,
        "error_projection": 0,
        "weight_update": 1,
        "optimizer_step": 1,
    }


def test_the_worked_example_of_the_paper():
    sizes = {"num_hidden_layers": 1, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    sizes |= {"vocab_size": 30522, "seq_len": 128}
    totals = [lc.cost("encoder", name, "paper", **sizes).total.maccs for name in ("bp", "pepita", "mempepita")]
    assert totals == [14_971_502_592, 20_771_045_376, 27_703_050_240]


def test_names_of_layers():
    names = {row.layer for model in ("gpt2", "transformer-base") for row in lc.cost(model, "pepita", seq_len=8).rows}
    assert names == {
        *("embedding", "positions", "attention", "cross_attention", "feed_forward", "norm", "add_norm", "residual"),
        *("head", "error_projection", "loss", "optimizer"),
    }


def test_equal_layers_are_merged_and_counted():
    rows = {(row.layer, row.block): row.repeat for row in lc.cost("gpt2").rows if row.macro_operation == "forward"}
    assert rows["attention", "decoder"] == 12
    assert rows["norm", "decoder"] == rows["residual", "decoder"] == 24
    assert rows["norm", None] == rows["head", None] == 1
    with_passes = [r for r in lc.cost("gpt2", "mempepita").rows if r.layer == "attention"]
    assert {row.repeat for row in with_passes} == {12}
    of_tokens = (lc.cost("mamba2-130m", procedure, seq_len=5).rows for procedure in ("bp", "decode"))
    assert {row.repeat for rows in of_tokens for row in rows if row.layer == "state_space_duality"} == {24}


MERGED = ("albert-base-v2", "bart-base", "deberta-v2-xlarge", "deepseek-v2-lite", "gemma-3-1b", "gpt2", "mixtral-8x7b")


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("model", [*MERGED, "phi-2", "t5-small", "vit-b-16"])
def test_numbers_of_a_line_are_those_of_so_many_layers(model):
    """Every row of `by="equation"` is `repeat` times something; one with no repeat is in no block.

    But the additions of parts: of what all turns share there is one fewer.
    """
    for row in lc.cost(model, by="equation").rows:
        flops = 0 if row.line == "merge" else row.flops
        assert not any(count % row.repeat for count in (row.maccs, flops, row.bytes)), row


def test_so_many_layers_have_so_many_times_the_numbers_of_one():
    one_layer, many = (
        {(row.macro_operation, row.layer, row.line, row.equation): row for row in ledger.rows if row.block}
        for ledger in (lc.cost("gpt2", by="equation", n_layer=layers) for layers in (1, 7))
    )
    assert one_layer.keys() == many.keys()
    for key, row in many.items():
        first = one_layer[key]
        assert row.repeat == 7 * first.repeat, key
        assert (row.maccs, row.flops) == (7 * first.maccs, 7 * first.flops), key
    gradients = [row for key, row in many.items() if key[2] in ("dXQ", "dXK", "dXV")]
    assert [row.repeat for row in gradients] == [7, 7, 7]


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("model", "procedure"),
    [
        *((model, "bp") for model in ("mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "t5-small")),
        *(("mixtral-8x7b", procedure) for procedure in ("recompute", "pepita", "mempepita")),
    ],
)
def test_what_runs_has_the_maccs_of_its_matrix_products(model, procedure):
    """A sum of products over tokens is a MACC wherever it is added up, at an expert's index as well."""
    run, matmul = (lc.cost(model, procedure, book).total for book in ("run", "matmul"))
    assert matmul.maccs <= run.maccs
    assert 2 * run.maccs <= run.flops


def test_defaults():
    ledger = lc.cost("gpt2")
    assert (ledger.procedure, ledger.price_book, ledger.batch_size, ledger.seq_len) == ("bp", "run", 1, 1024)
    assert (ledger.dtype, ledger.optimizer, ledger.target_len) == ("fp32", "adamw", None)
    assert ledger.parameters == 124_439_808
    assert {lc.cost("gpt2", price_book=book).optimizer for book in ("paper", "paper-corrected")} == {"sgd"}
    assert lc.cost("gpt2", price_book="paper", optimizer="momentum").optimizer == "momentum"
    assert "training" not in ledger.to_dict()
    assert lc.cost("encoder-decoder", **TWO_SIDED).target_len == TWO_SIDED["seq_len"]
    assert lc.cost("encoder-decoder", target_len=9, **TWO_SIDED).target_len == 9
    with pytest.raises(lc.InputError, match="give seq_len"):
        lc.cost("encoder", **{**SMALL, "seq_len": None})


def test_counts_are_proportional_to_the_batch():
    single, seven = (lc.cost("gpt2", "pepita", "paper", batch_size=size) for size in (1, 7))
    assert (seven.total.maccs, seven.total.flops) == (7 * single.total.maccs, 7 * single.total.flops)


def test_a_training_run():
    ledger = lc.cost("gpt2", batch_size=2, seq_len=100, tokens=10**9 + 1)
    assert ledger.training == {
        "tokens": 10**9 + 1,
        "steps": 5_000_001,
        "maccs": ledger.total.maccs * 5_000_001,
        "flops": ledger.total.flops * 5_000_001,
    }
    assert ledger.to_dict()["training"] == ledger.training
    assert lc.cost("gpt2", tokens="3e11").tokens == lc.cost("gpt2", tokens=3 * 10**11).tokens


@pytest.mark.parametrize("tokens", ["1e400", "1.5", "nan", "0", "-1", "", "1e19", "abc", 0.5, True, 0, "1e-3"])
def test_tokens_are_a_whole_number(tokens):
    with pytest.raises(lc.InputError, match="tokens must be a whole number"):
        lc.cost("gpt2", tokens=tokens)


def test_spellings_lead_to_the_same_ledger():
    ours = lc.cost("encoder-decoder", target_len=5, **TWO_SIDED)
    paper = lc.cost("encoder-decoder", d_model=8, h=2, d_ff=16, voc=10, n_enc=2, n_dec=3, N=4, M=5)
    assert ours.to_dict() == paper.to_dict()
    assert (
        lc.cost("gpt2", n_layer=3, n_embd=24).to_dict() == lc.cost("gpt2", "bp", n_layers=3, hidden_size=24).to_dict()
    )
    with pytest.raises(lc.InputError, match="contradicts"):
        lc.cost("gpt2", seq_len=4, N=5)
    with pytest.raises(lc.InputError, match="sizes cannot be given with a Configuration"):
        lc.cost(configure("gpt2"), hidden_size=24)


def test_e3_takes_the_row_of_28_away_again():
    rows = lc.cost("gpt2", price_book="paper", by="equation").rows
    taken_rows = [row for row in rows if row.line == "E3"]
    printed = [row for row in rows if row.equation == "28"]
    assert len(taken_rows) == len(printed) == 1
    assert taken_rows[0].flops == -printed[0].flops == -(12 * 12 * 1024**3)
    assert not [row for row in lc.cost("gpt2", price_book="paper-corrected", by="equation").rows if row.line == "E3"]


def test_what_the_paper_does_not_have_is_marked():
    marked = [row for row in lc.cost("gpt2", price_book="paper", activation="relu").rows if row.outside_paper]
    assert {row.layer for row in marked} == {"feed_forward"}
    assert all(row.to_dict()["outside_paper"] is True for row in marked)
    assert not any(row.outside_paper for row in lc.cost("gpt2", price_book="paper").rows)
    assert not any(row.outside_paper for row in lc.cost("gpt2", activation="relu").rows)
    text = str(lc.cost("gpt2", price_book="paper", activation="relu"))
    assert "feed_forward × 12*" in text
    assert "* includes lines that are not in the publication" in text


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["bp", "recompute", "pepita", "mempepita"]),
    st.sampled_from(list(BOOKS)),
    st.lists(st.integers(1, 10**12), min_size=6, max_size=6),
)
def test_counts_are_exact_however_large(procedure, book, drawn):
    layers, width, inner, vocabulary, length, batch = drawn
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": 1, "intermediate_size": inner}
    sizes |= {"vocab_size": vocabulary, "seq_len": length, "batch_size": batch}
    ledger = lc.cost("encoder", procedure, book, **sizes)
    check(ledger.to_dict())
    assert json.loads(json.dumps(ledger.to_dict())) == ledger.to_dict()
    assert all(len(line) <= 80 for line in str(ledger).splitlines())


def test_the_matrix_product_book_at_the_largest_sizes():
    largest = 10**12
    sizes = dict.fromkeys(("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"), largest)
    ledger = lc.cost("encoder", "bp", "matmul", num_hidden_layers=largest, seq_len=largest, batch_size=largest, **sizes)
    # 6 products of B M times d f or d d each of the L layers, and 2 of B h M M d_k; the head B M d v; d_k is 1.
    forward = largest * largest**2 * (4 * largest**2 + 2 * largest**2) + 2 * largest**5 + largest**4
    assert ledger.macro_operations["forward"][1].maccs == forward


@pytest.mark.parametrize("by", BY)
def test_the_command_prints_the_same_ledger(by, capsys):
    assert main(["cost", "gpt2", "--procedure", "pepita", "--seq-len=77", "--by", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == lc.cost("gpt2", procedure="pepita", seq_len=77, by=by).to_dict()


@pytest.mark.parametrize("by", BY)
def test_csv_has_every_row_exactly(by):
    ledger = lc.cost("gpt3-175b", batch_size=10**9, by=by)
    rows = list(csv.DictReader(io.StringIO(ledger.show("csv"))))
    assert sum(int(row["flops"]) for row in rows) == ledger.total.flops
    assert len(rows) == len(ledger.rows)


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    ("model", "batch"), [("gpt2", 1), ("transformer-big", 1), ("gpt3-175b", 10**6), ("gpt3-175b", 10**12)]
)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_its_width(model, batch, by, width):
    text = lc.cost(model, "mempepita", "paper", batch, seq_len=500, by=by, tokens=10**12).text(width)
    assert all(len(line) <= width for line in text.splitlines() if "training" not in line)
    assert "1 MACC = 2 FLOPs; price book: paper" in text
    assert "parameters. Counted: " in text


def test_the_table_says_when_it_is_rounded():
    ledger = lc.cost("gpt3-175b", batch_size=10**12)
    assert "Rounded to fit" in str(ledger)
    assert "Rounded to fit" not in ledger.text(400)
    assert f"{ledger.total.flops:,}" in ledger.text(400)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999_999_999, "999,999,999"),
        (1_234_500_000, "1.234e9"),
        (9_999_900_000, "1.000e10"),
        (-2_345_678_901, "-2.346e9"),
        (10**60, "1.000e60"),
    ],
)
def test_rounding(value, text):
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *[(0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "1.00 kB"), (6_300_000, "6.30 MB"), (999_499, "999 kB")],
        *[(999_600, "1.00 MB"), (7_270_000_000, "7.27 GB"), (15 * 10**9, "15.0 GB"), (2_100 * 10**6, "2.10 GB")],
    ],
)
def test_bytes_in_units(count, text):
    assert size_of(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, ""),
        (2e-6, "2.00 us"),
        (0.0999, "99.9 ms"),
        (0.5, "500 ms"),
        (0.99999, "1.00 s"),
        (15, "15.0 s"),
        (12345, "12,300 s"),
    ],
)
def test_seconds_in_units(seconds, text):
    assert seconds_of(seconds) == text


@pytest.mark.parametrize(
    ("joules", "text"), [(3e-6, "3.00 uJ"), (0.002, "2.00 mJ"), (15, "15.0 J"), (12345, "12.3 kJ"), (2.1e6, "2.10 MJ")]
)
def test_joules_in_units(joules, text):
    assert joules_of(joules) == text


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, meta, attrs):
        self.open.append(meta)

    def handle_endtag(self, meta):
        assert self.open.pop() == meta

    def handle_data(self, data):
        self.text += data


def test_html_is_a_small_self_contained_table(tmp_path):
    (tmp_path / "a<b>&.json").write_text('{"model_type": "gpt2"}')
    ledger = lc.cost(str(tmp_path / "a<b>&.json"))
    html = ledger._repr_html_()
    reader = Balanced()
    reader.feed(html)
    assert not reader.open
    assert "a<b>&.json" in reader.text
    assert "<b>" not in html
    assert f"{ledger.total.flops:,}" in reader.text
    assert "http" not in html
    assert "<script" not in html
    assert "<style" not in html


def test_markdown_and_latex_have_every_row():
    ledger = lc.cost("gpt2")
    markdown = ledger.show("md")
    assert sum(line.startswith("|") for line in markdown.splitlines()) == len(ledger.rows) + 3
    latex = ledger.show("latex")
    assert latex.count("\\\\\n") == len(ledger.rows) + 2
    assert "feed\\_forward" in latex
    assert f"{ledger.total.flops:,}" in markdown
    assert f"{ledger.total.flops:,}" in latex


def test_a_book_of_ones_own():
    mine = lc.Book("mine", "twice nothing", "here", "matrix")
    ledger = lc.cost("gpt2", price_book=mine)
    assert ledger.total == lc.cost("gpt2", price_book="matmul").total
    assert ledger.price_book == "mine"
    assert "price book: mine." in str(ledger)


def test_every_row_has_the_name_of_a_layer():
    """ALBERT's blocks share their weights: what adds the gradients of its turns is no layer's."""
    assert {row.layer for row in lc.cost("albert-base-v2", seq_len=8).rows} >= {"shared_weights", "attention"}
    assert all(row.layer for row in lc.cost("albert-base-v2", seq_len=8).rows)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("model", "context"),
    [("llama-3.2-1b", 131072), ("llama-3-8b", 8192), ("qwen3-0.6b", 40960), ("deepseek-v3", 163840)],
)
def test_a_longer_context_than_4096_is_no_default_length(model, context):
    """The contexts are those of the published config.json files (max_position_embeddings)."""
    sizes = {"num_hidden_layers": 1} if model != "deepseek-v3" else {}
    found, stated = lc.rules(model, **sizes), lc.rules(model, seq_len=4096, **sizes)
    assert found.seq_len == 4096
    assert found.to_dict() == stated.to_dict()
    note = f" (--seq-len; context {context:,})"
    assert found.sheets()[0].title.count(note) == 1
    assert note not in stated.sheets()[0].title


@pytest.mark.parametrize(
    "model", ["gpt2", "llama-2-7b", "t5-small", "vit-base-patch16-224", "whisper-tiny", "bloom-560m"]
)
def test_a_context_of_at_most_4096_is_the_default_length(model):
    assert lc.cost(model, batch_size=1)._length_note == ""


def test_the_default_length_is_in_the_first_line_of_every_command(capsys):
    sizes = ["llama-3.2-1b", "--num-hidden-layers", "1"]
    for command in (
        ["cost"], ["compare"], ["memory"], ["fit", "--budget", "80GB"], ["conventions"], ["rules"],
        ["cost", "--procedure", "prefill"], ["place", "--mesh", "tp=2", "--placement", "megatron"],
        ["run-cost", "--tokens", "1e9", "--on", "H100-SXM"], ["search", "--on", "DGX-H100", "--devices", "8"],
    ):  # fmt: skip
        assert main([command[0], *sizes, *command[1:]]) == 0
        heading = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
        assert "4,096" in heading, command
        assert "(--seq-len; context 131,072)" in heading, command
    assert main(["cost", *sizes, "--procedure", "decode"]) == 0
    heading = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert heading.endswith("1 new token after 4,095 (--context; context 131,072)")
