import csv
import io
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learncost as lc
from learncost.cli.command import main
from learncost.ir.polynomial import Polynomial
from learncost.models.small import contents
from learncost.procedures.procedure import PROCEDURES
from learncost.reports.crossing import coefficients, sign_intervals

GENERIC = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 100}
ENCODER = {**GENERIC, "num_hidden_layers": 3, "seq_len": 4}
TWO_SIDED = {**GENERIC, "n_enc": 2, "n_dec": 1, "seq_len": 4}


def sign(number: int) -> int:
    return (number > 0) - (number < 0)


def value(polynomial: list[int], at: int) -> int:
    return sum(factor * at**power for power, factor in enumerate(polynomial))


@settings(deadline=None)
@given(st.lists(st.integers(-60, 60), min_size=1, max_size=5), st.integers(1, 50))
def test_every_sign_at_every_number(polynomial, last):
    signs = sign_intervals(polynomial, 1, last)
    assert [s.sign for s in signs for _ in range(s.first, s.last + 1)] == [
        sign(value(polynomial, number)) for number in range(1, last + 1)
    ]
    assert all(stretch.last + 1 == two.first and stretch.sign != two.sign for stretch, two in pairwise(signs))


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=4), st.sampled_from([-3, 1, 7]))
def test_every_root_however_close_or_far(roots, factor):
    polynomial = [factor]
    for root in roots:
        polynomial = [a - root * b for a, b in zip([0, *polynomial], [*polynomial, 0], strict=True)]
    signs = sign_intervals(polynomial)
    assert {s.first for s in signs if s.sign == 0} | set() <= set(roots)
    assert set(roots) == {number for s in signs if s.sign == 0 for number in range(s.first, s.last + 1)}
    for stretch in signs:
        assert {sign(value(polynomial, number)) for number in (stretch.first, stretch.last)} == {stretch.sign}


def test_coefficients():
    assert coefficients(Polynomial({("L", "L"): 3, (): -2}), "L") == (-2, 0, 3)
    assert coefficients(Polynomial(), "L") == (0,)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("model", "sizes"), [("encoder", ENCODER), ("encoder-decoder", TWO_SIDED), ("gpt2", {})])
@pytest.mark.parametrize("book", ["run", "paper-corrected"])
def test_the_ledgers_are_those_of_cost(model, sizes, book):
    comparison = lc.compare(model, price_book=book, batch_size=2, optimizer="adamw", tokens=10**6, **sizes)
    assert comparison.procedures == tuple(PROCEDURES)
    assert {"run", "paper", book} == set(comparison.costs)
    for name, costs in comparison.costs.items():
        for procedure, cost in costs.items():
            alone = lc.cost(model, procedure, name, batch_size=2, optimizer="adamw", tokens=10**6, **sizes)
            assert cost.to_dict() == alone.to_dict()
    assert comparison.ratio("bp") == 1
    assert comparison.ratio("pepita", "paper", "maccs") == (
        comparison.costs["paper"]["pepita"].total.maccs / comparison.costs["paper"]["bp"].total.maccs
    )


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("model", "sizes", "fixed"),
    [
        ("encoder", ENCODER, {}),
        ("encoder-decoder", TWO_SIDED, {}),
        ("encoder-decoder", TWO_SIDED, {"target_len": 7}),
        ("encoder-decoder", TWO_SIDED, {"M": 7}),
    ],
)
def test_a_crossing_is_where_the_costs_cross(model, sizes, fixed):
    comparison = lc.compare(model, **sizes, **fixed)
    assert comparison.varied == (
        ("seq_len", "target_len") if model == "encoder-decoder" and not fixed else ("seq_len",)
    )
    checked = 0
    for pair in comparison.overtaking:
        for before, crossing in pairwise(pair.cheaper):
            for length, cheaper in ((crossing.seq_len - 1, before.procedure), (crossing.seq_len, crossing.procedure)):
                sizes_there = {**sizes, "seq_len": length}
                first_flops, two = (
                    getattr(lc.cost(model, name, pair.price_book, **sizes_there, **fixed).total, pair.quantity)
                    for name in pair.procedures
                )
                winner = None if first_flops == two else pair.procedures[first_flops > two]
                assert winner == cheaper
                checked += 1
    assert checked


def test_lengths_beyond_what_a_model_learns():
    comparison = lc.compare("gpt2", "bp,pepita")
    (crossing,) = next(o for o in comparison.overtaking if (o.price_book, o.quantity) == ("run", "flops")).crossings
    assert crossing.beyond_positions
    # Head and embedding cost PEPITA two products more of voc d, and each block saves it two of M d: about voc/layers.
    assert crossing.seq_len == pytest.approx(50257 / 12, rel=0.02)
    longer = lc.compare("gpt2", "bp,pepita", n_positions=10**6, seq_len=10)
    (again,) = next(o for o in longer.overtaking if (o.price_book, o.quantity) == ("run", "flops")).crossings
    assert not again.beyond_positions
    assert "beyond the 1,024 positions" in str(comparison)
    assert "beyond the" not in str(longer)


def test_the_reader_is_told_what_the_jacobians_do():
    comparison = lc.compare("gpt2")
    assert comparison.ratio("pepita", "run") > 1 > comparison.ratio("pepita", "paper")
    text = " ".join(str(comparison).split())
    assert "explicit Jacobians" in text
    assert "so PEPITA and MEMPEPITA look cheaper" in text
    assert "run, FLOPs" in text
    assert "paper, FLOPs" in text


def test_a_model_without_an_output_to_learn_from():
    comparison = lc.compare("distilbert-base")
    assert comparison.procedures == ("bp", "recompute")
    assert "pepita and mempepita require a model with an output" in " ".join(str(comparison).split())
    with pytest.raises(lc.InputError, match="has no output to learn from"):
        lc.compare("distilbert-base", "pepita,mempepita")


def test_who_is_named_and_refused_is_left_out_and_the_others_are_compared(tmp_path):
    """So it is of all that takes several procedures; who alone is named is refused."""
    file, sizes = tmp_path / "albert.json", {"seq_len": 8}
    file.write_text(json.dumps(contents("albert")))
    model = str(file)
    reason = f"galore needs trainable matrices in blocks, one per block, which {model} does not have"
    why = reason.replace("galore", "galore, which", 1)
    comparison = lc.compare(model, "bp,galore,pepita", **sizes)
    assert comparison.procedures == ("bp", "pepita")
    assert comparison.left_out == comparison.to_dict()["left_out"] == f"left out: {why}"
    assert "left out: galore" in " ".join(str(comparison).split())
    held = lc.memory(model, procedure="bp,galore", engine="graph", **sizes)
    assert held.to_dict()["left_out"] == {"galore": reason}
    assert "left out: galore" in " ".join(str(held).split())
    assert lc.sweep(model, "bp,galore").left_out == f"left out: {why}"
    for ask in (lc.compare, lc.memory, lc.sweep):
        with pytest.raises(lc.InputError, match="galore needs trainable matrices"):
            ask(model, "galore", **({} if ask is lc.sweep else sizes))


@pytest.mark.parametrize("procedures", ["", "bp,", "bp,bp", "bp,foo", []])
def test_procedures_are_checked(procedures):
    with pytest.raises(lc.InputError):
        lc.compare("gpt2", procedures)


def test_without_bp_there_is_no_ratio():
    comparison = lc.compare("gpt2", ["pepita", "mempepita"])
    assert comparison.ratio("pepita") is None
    assert json.loads(json.dumps(comparison.to_dict()))["price_books"]["run"]["pepita"]["ratio_to_bp"]["flops"] is None
    assert str(comparison)


def test_the_command_prints_the_same(capsys):
    assert main(["compare", "gpt2", "--procedures", "bp,pepita", "--seq-len", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == lc.compare("gpt2", "bp,pepita", seq_len=64).to_dict()
    assert answer["schema"] == 1
    assert {(o["price_book"], o["quantity"]) for o in answer["overtaking"]} == {
        (book, quantity) for book in ("run", "paper") for quantity in ("maccs", "flops")
    }


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("model", ["gpt2", "gpt3-175b", "transformer-big"])
@pytest.mark.parametrize("batch", [1, 10**6, 10**12])
def test_the_screen_fits(model, batch):
    text = str(lc.compare(model, batch_size=batch, seq_len=512))
    assert max(map(len, text.splitlines())) <= 80
    assert "1 MACC = 2 FLOPs; price book: run" in text


def test_other_formats():
    comparison = lc.compare("gpt2", "bp,pepita")
    rows = list(csv.DictReader(io.StringIO(comparison.show("csv"))))
    totals = {(r["price_book"], r["procedure"]): int(r["flops"]) for r in rows if r["macro_operation"] == "total"}
    assert totals["run", "pepita"] == comparison.costs["run"]["pepita"].total.flops
    assert f"{comparison.costs['run']['bp'].total.flops:,}" in comparison.show("md")
    assert comparison.show("latex").count(r"\begin{tabular}") == 3
    assert comparison._repr_html_().count("<table>") == 3


@pytest.mark.parametrize(
    ("model", "more", "varied"),
    [
        ("whisper-tiny", {}, ("target_len",)),  # 1,500 positions of the encoder are fixed
        ("t5-small", {"seq_len": 32}, ("seq_len", "target_len")),
        ("t5-small", {"seq_len": 32, "target_len": 8}, ("seq_len",)),
    ],
)
def test_the_lengths_that_vary_are_those_that_a_model_has(model, more, varied):
    comparison = lc.compare(model, "bp,recompute", price_book="matmul", **more)
    assert comparison.varied == varied
    assert f"({' = '.join(varied).replace('_', '-')}, all else" in " ".join(str(comparison).split())


@pytest.mark.parametrize("model", ["vit-b-16", "resnet-18"])
def test_nothing_is_said_of_lengths_where_there_is_none_to_vary(model):
    comparison = lc.compare(model, "bp,recompute")
    assert (comparison.varied, comparison.overtaking) == ((), ())
    assert "every sequence length" not in str(comparison)
    assert f"{model}: the sequence length is fixed" in " ".join(str(comparison).split())


def test_procedures_go_by_both_names_of_the_argument():
    for call in (lc.compare, lambda *given, **named: lc.fit(*given, "8GB", seq_len=8, **named)):
        expected = str(call("gpt2", procedures="bp,pepita"))
        assert str(call("gpt2", procedure=["bp", "pepita"])) == expected == str(call("gpt2", procedure="bp, pepita"))
        with pytest.raises(lc.InputError, match="procedure and procedures are the same option"):
            call("gpt2", procedure="bp", procedures="bp")


def test_one_procedure_is_overtaken_by_none():
    assert "The cheaper procedure" not in str(lc.compare("gpt2", "bp"))


def test_a_procedure_alone_has_no_ratio_to_itself():
    assert "Ratios of one step" not in str(lc.compare("gpt2", "bp", seq_len=8))
    assert "Ratios of one step" in str(lc.compare("gpt2", "bp,pepita", seq_len=8))
