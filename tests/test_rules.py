"""Rules of thumb: what is exact is what the ledger says, errors add up from their parts, and the known numbers hold."""

import csv
import io
import json
from fractions import Fraction

import pytest

import learncost as lc
from learncost.models.configuration import configure
from learncost.reports.rules import rules
from learncost.reports.rules_of_thumb import evaluate, rules_of_thumb

GENERIC = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 11, "seq_len": 5}
MODELS = {
    "gpt2": {},
    "gpt3-13b": {"batch_size": 2},
    "gpt3-jiang": {},
    "transformer-base": {"seq_len": 100, "target_len": 80},
    "encoder": {"num_hidden_layers": 2, **GENERIC},
    "encoder-decoder": {"n_enc": 2, "n_dec": 1, "target_len": 7, **GENERIC},
}


def only(found, key, subject=""):
    (case,) = [case for case in found[key].cases if case.subject.startswith(subject)]
    return case


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", MODELS)
def test_parts_sum_to_the_error(model):
    for rule in rules(model, tokens=12345, **MODELS[model]).rules:
        for case in rule.cases:
            if rule.thumb.key in ("6nd", "8nd", "products") or rule.thumb.key.startswith("block"):
                assert sum(part.amount for part in case.parts) == case.rule - case.exact, rule.thumb.key
            assert case.error == pytest.approx(float(case.rule) / float(case.exact) - 1)


KINDS = ("llama-3.2-1b", "gemma-2-2b", "qwen1.5-moe-a2.7b", "gpt-oss-20b", "deepseek-v2-lite", "albert-base-v2",
         "whisper-tiny", "vit-b-16", "bloom-560m")  # fmt: skip


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("model", KINDS)
def test_every_kind_of_block_is_held_against_the_rules(model):
    """A block is the mean of those in its repeat: together they are the ledger's parameters, operations and softmax."""
    rules_found, ledger = rules(model), lc.cost(model, price_book="matmul", by="layer")
    assert all(rule.cases and all(case.exact for case in rule.cases) for rule in rules_found.rules)
    assert {"block", "block_parameters", "elementwise", "softmax"} <= {rule.thumb.key for rule in rules_found.rules}
    for rule in rules_found.rules:
        if rule.thumb.key.startswith("block"):
            assert all(sum(part.amount for part in case.parts) == case.rule - case.exact for case in rule.cases)
    exact_by_block = {case.subject: case.exact for case in rules_found["block"].cases}
    if len(exact_by_block) == 1:
        blocks = configure(model).sizes["num_hidden_layers"]
        inside = [row.flops for row in ledger.rows if row.macro_operation == "forward" and row.block]
        assert sum(exact_by_block.values()) * blocks == sum(inside)
    str(rules_found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("key", "procedure", "factor"), [("6nd", "bp", 6), ("8nd", "recompute", 8)])
def test_training_is_that_of_the_ledger(model, key, procedure, factor):
    ledger = lc.cost(model, procedure, "matmul", tokens=10**6, **MODELS[model])
    case = only(rules(model, tokens=10**6, **MODELS[model]), key)
    assert case.exact == ledger.training["flops"]
    assert case.rule == factor * ledger.parameters * 10**6


def test_gpt2():
    rules_found = rules("gpt2", tokens="3e11")
    assert rules_found.parameters == 124_439_808
    s, h = 1024, 768
    for key, factor in (("block", 1), ("block_training", 3), ("block_recomputed", 4)):
        case = only(rules_found, key)
        assert case.rule == case.exact == factor * (24 * s * h**2 + 4 * s**2 * h)
    assert only(rules_found, "block_parameters").exact == 12 * h**2 + 13 * h
    assert only(rules_found, "overtakes", "block").exact == 6 * h
    assert only(rules_found, "overtakes", "the whole").exact > 6 * h
    assert only(rules_found, "third").exact > Fraction(4, 3)
    assert only(rules_found, "third").exact < Fraction(3, 2)


def test_the_crossing_is_where_the_two_terms_are_equal():
    exact = only(rules("gpt2"), "overtakes", "the whole").exact
    length = round(exact)
    sizes = {"seq_len": length, "max_position_embeddings": length}
    rows = lc.cost("gpt2", "bp", "matmul", by="kind", **sizes).rows
    kinds = {row.kind: row.flops for row in rows if row.macro_operation == "forward"}
    assert kinds["attention"] == pytest.approx(kinds["linear"], rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_backward_is_twice_forward_for_products_only(model):
    cases = rules(model, **MODELS[model])["backward"].cases
    exact = {(case.subject, case.price_book): case.exact for case in cases}
    assert exact["products with weights", "matmul"] == 2
    assert exact["products of attention", "matmul"] == 2
    assert exact["a convolution of width 3", "matmul"] == 2
    assert exact["attention", "paper"] != 2
    for norm in ("norm", "add norm"):
        if (norm, "paper") in exact:
            assert exact[norm, "run"] != 2
            assert exact[norm, "paper"] > 9  # the explicit Jacobian


def test_norm_through_the_jacobian():
    """(41) to (44) over (39) and (40): 11 d^2 + 2 d and 3 d FLOPs against 9 d, at d = 512."""
    cases = rules("transformer-base", seq_len=100)["backward"].cases
    (case,) = [case for case in cases if (case.subject, case.price_book) == ("add norm", "paper")]
    assert case.exact == Fraction(11 * 512 + 2 + 3, 9)


def test_softmax_is_never_orders_of_magnitude_below():
    softmax_rule = rules("gpt3-175b")["softmax"]
    paper, run = softmax_rule.cases
    assert paper.rule == paper.exact == Fraction(5, 4 * 128)
    assert run.price_book == "run"


@pytest.mark.parametrize("model", ["gpt2", "encoder"])
def test_elementwise_is_that_of_the_ledger(model):
    sizes = MODELS[model]
    rows = lc.cost(model, "bp", "run", by="equation", **sizes).rows
    by_kind = lc.cost(model, "bp", "run", by="kind", **sizes).rows
    assert sum(row.flops for row in rows) == sum(row.flops for row in by_kind)
    first, wide = rules(model, **sizes)["elementwise"].cases
    assert first.rule == Fraction(1, 768 if model == "gpt2" else 12)
    assert wide.rule == Fraction(1, 8192)
    assert 0 < wide.exact < first.exact


def test_additions():
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 11, "seq_len": 5}
    case = only(rules("encoder", num_hidden_layers=1, **sizes), "products")
    d, h, k, f, v, s = 12, 3, 4, 20, 11, 5
    terms = [(s * h * k, d)] * 3 + [(h * s * s, k), (s * h * k, s), (s * d, h * k)]
    terms += [(s * f, d), (s * d, f), (s * v, d)]
    assert case.rule == sum(2 * mp * n for mp, n in terms)
    assert case.exact == sum(mp * (2 * n - 1) for mp, n in terms)


def test_a_third_is_the_papers_section_six():
    """(3 f + w) / (2 f + w) of the paper's one-block encoder at M = N = 128."""
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522}
    case = only(rules("encoder", num_hidden_layers=1, seq_len=128, **sizes), "third")
    assert case.exact == Fraction(27_703_050_240, 20_771_045_376)


def test_gpt3():
    rules_found = rules("gpt2")
    assert only(rules_found, "gpt3_blog").exact == 174_563_733_504
    assert only(rules_found, "gpt3_full").exact == 174_604_259_328
    days, products = rules_found["gpt3_days"].cases
    assert days.rule == 3640 * 10**15 * 86_400
    assert days.exact == 6 * 174_604_259_328 * 300 * 10**9
    assert abs(days.error) < 1e-3
    assert products.exact == lc.cost("gpt3-175b", "bp", "matmul", tokens="3e11").training["flops"]
    assert only(rules_found, "gpt3_rounded").rule == 6 * 175 * 10**9 * 300 * 10**9


def test_models_without_an_output_have_no_rule_about_pepita():
    rules_found = rules("gpt2", architecture="GPT2Model")
    assert "third" not in [rule.thumb.key for rule in rules_found.rules]


def test_every_rule_has_a_source_and_is_shown():
    rules_found = rules("gpt2")
    assert [rule.thumb.key for rule in rules_found.rules] == list(rules_of_thumb())
    for thumb in rules_of_thumb().values():
        assert thumb.source
        assert thumb.because
        assert thumb.title[0].islower() or thumb.title.startswith(("MEMPEPITA", "GPT-3"))


def test_a_partly_filled_step():
    case = only(rules("gpt2", tokens=1), "6nd")
    assert case.exact == lc.cost("gpt2", "bp", "matmul", tokens=1).training["flops"]
    assert [part.what for part in case.parts][-1] == "the last step is only partly filled"


@pytest.mark.parametrize("model", MODELS)
def test_text_fits_80_columns(model):
    text = str(rules(model, tokens=10**18, **MODELS[model]))
    assert max(map(len, text.splitlines())) <= 80


def test_formats():
    rules_found = rules("gpt2")
    data = json.loads(rules_found.show("json"))
    assert data == json.loads(json.dumps(rules_found.to_dict()))
    assert data["rules"][0]["cases"][0]["relative_error"] == rules_found.rules[0].cases[0].error
    rows = list(csv.DictReader(io.StringIO(rules_found.show("csv"))))
    assert len(rows) == sum(len(rule.cases) for rule in rules_found.rules)
    assert rules_found.show("md").count("\n| --- |") == len(rules_found.rules)
    assert rules_found._repr_html_().count("<table>") == len(rules_found.rules)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": 0}, "tokens must be"),
        ({"tokens": "many"}, "tokens must be"),
        ({"seq_len": 2000}, "longer than the 1024"),
        ({"n_head": 7}, "not a multiple"),
        ({"hiden_size": 7}, "hiden_size"),
    ],
)
def test_refused_in_one_line(given, message):
    with pytest.raises(lc.InputError, match=message) as error:
        rules("gpt2", **given)
    assert "\n" not in str(error.value)


def test_formulas_of_rules():
    letters = {"b": 2, "s": 3, "h": 5}
    assert evaluate("24 b s h^2 + 4 b s^2 h", letters) == 24 * 2 * 3 * 25 + 4 * 2 * 9 * 5
    assert evaluate("1 / h", letters) == Fraction(1, 5)
    assert evaluate("4 / 3", {}) == Fraction(4, 3)
    with pytest.raises(AssertionError):
        evaluate("6 x", letters)


def test_every_reading_speaks_of_the_same_parameters():
    """An untied BERT stores a second bias of the vocabulary's size that nothing reads: all say it, or none."""
    keys = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    masked = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 10, **keys}
    tied, untied = ({**masked, "tie_word_embeddings": tied} for tied in (True, False))
    counts = {reading(untied, seq_len=4).parameters for reading in (lc.cost, lc.conventions, lc.rules)}
    assert counts == {lc.cost(tied, seq_len=4).parameters + 10 * 8 + 10}


@pytest.mark.parametrize("model", ["mamba-130m", "rwkv-4-169m"])
def test_a_model_without_attention_has_no_rule_of_softmax(model):
    found = rules(model).rules
    assert all(rule.cases for rule in found)
    assert "softmax" not in {rule.thumb.key for rule in found}
