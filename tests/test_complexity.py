"""`learncost complexity`: what the slides and Vaswani et al. print, as independent text; crossings by brute force."""

import json
from math import log

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.layers.layer import shipped_layer
from learncost.reports.complexity import complexity

SIZES = {"seq_len": 100, "hidden_size": 512, "num_attention_heads": 8, "kernel_size": 3, "window": 5}


def printed(function, n=7, d=12, h=3, k=5, r=4):
    return function(n, d, h, k, r)


# DSBA's slides on "A Survey of Transformers"; table 1 and section 4 of Vaswani et al. 2017.
MACCS = {
    "self-attention": lambda n, d, h, k, r: 4 * n * d**2 + 2 * n**2 * d,
    "self-attention without projections": lambda n, d, h, k, r: 2 * n**2 * d,
    "feed-forward": lambda n, d, h, k, r: 8 * n * d**2,
    "recurrent": lambda n, d, h, k, r: 2 * n * d**2,
    "convolution": lambda n, d, h, k, r: k * n * d**2,
    "separable convolution": lambda n, d, h, k, r: k * n * d + n * d**2,
    "restricted attention without projections": lambda n, d, h, k, r: 2 * r * n * d,
}
PARAMETERS = {"self-attention": lambda d: 4 * d**2, "feed-forward": lambda d: 8 * d**2}
ORDERS = {
    "self-attention": "O(n*d**2 + n**2*d)",
    "self-attention without projections": "O(n**2*d)",
    "feed-forward": "O(n*d**2)",
    "recurrent": "O(n*d**2)",
    "convolution": "O(k*n*d**2)",
    "separable convolution": "O(k*n*d + n*d**2)",
    "restricted attention without projections": "O(r*n*d)",
}
TABLE_1 = {
    "self-attention without projections": ("O(1)", "O(1)"),
    "recurrent": ("O(n)", "O(n)"),
    "convolution": ("O(1)", "O(log_k(n))"),
    "restricted attention without projections": ("O(1)", "O(n/r)"),
}


@pytest.mark.parametrize("name", MACCS)
def test_maccs_are_the_printed_ones(name):
    sizes = {"n": 7, "d": 12, "h": 3, "k": 5, "r": 4}
    assert complexity().kind(name).maccs.at(sizes) == printed(MACCS[name])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_printed_ones(name):
    assert complexity().kind(name).parameters.at({"d": 12}) == PARAMETERS[name](12)


@pytest.mark.parametrize("name", ORDERS)
def test_orders_are_the_printed_ones(name):
    assert complexity().kind(name).to_dict()["order"] == ORDERS[name]


@pytest.mark.parametrize("name", TABLE_1)
def test_steps_and_paths_are_those_of_table_1(name):
    row = complexity().kind(name).to_dict()
    assert (row["sequential_operations"], row["maximum_path_length"]) == TABLE_1[name]


def test_a_head_costs_what_the_slides_print():
    steps = {step.line: step.to_dict() for step in complexity().kind("self-attention").steps}
    assert {name: steps[name]["maccs_per_head"] for name in steps} == {
        "Q": "(n*d**2)/h",
        "K": "(n*d**2)/h",
        "V": "(n*d**2)/h",
        "R": "(n**2*d)/h",
        "A": "(n**2*d)/h",
        "Y": None,
    }
    assert steps["Y"]["maccs"] == "n*d**2"


def test_the_slides_example_of_a_product():
    prices = lc.price(lc.layer("example(A; x) -> y\n  y[i] = A[i j] x[j]"), {"i": 2, "j": 3})
    assert prices.maccs == 6  # 2 x 3 x 1 multiplications, 3 parameters


def test_a_counter_of_matrix_products_sees_the_same_where_it_sees_them():
    for kind in complexity().kinds:
        if kind.part or kind.name in ("separable convolution", "restricted attention"):
            continue  # windows and kernels of one channel have no columns
        sizes = {"B": 1, "M": 7, "N": 7, "h": 3, "k": 4, "d": 12, "e": 12, "f": 48, "c": 5}
        maccs = lc.price(shipped_layer(kind.table), sizes, "matmul").maccs
        assert maccs == kind.maccs.at({"n": 7, "d": 12, "h": 3, "k": 5, "r": 4})


LENGTHS = {
    ("self-attention without projections", "recurrent"): "n < d",
    ("self-attention without projections", "convolution"): "n < k d/2",
    ("self-attention without projections", "separable convolution"): "n < (k + d)/2",
    ("self-attention without projections", "feed-forward"): "n < 4 d",
    ("self-attention without projections", "restricted attention without projections"): "n < r",
    ("self-attention", "recurrent"): "never",
    ("self-attention", "feed-forward"): "n < 2 d",
}


@pytest.mark.parametrize("pair", LENGTHS, ids=" < ".join)
def test_lengths_where_costs_cross(pair):
    lengths = {(c.cheaper.name, c.dearer.name): c.to_dict({})["below"] for c in complexity().crossings}
    assert lengths[pair] == LENGTHS[pair]


def test_crossings_hold_at_every_length():
    sizes = {"d": 12, "h": 3, "k": 7, "r": 9}
    for crossing in complexity().crossings:
        length, stretches = crossing.at(sizes)
        for n in range(1, 120):
            difference = maccs_of(crossing.cheaper, n, sizes) - maccs_of(crossing.dearer, n, sizes)
            sign = (difference > 0) - (difference < 0)
            assert [s.sign for s in stretches if s.first <= n <= s.last] == [sign]
            assert (n > length) - (n < length) == sign


def maccs_of(kind, n, sizes):
    return kind.maccs.at({"n": n, **sizes})


def test_attention_beats_recurrence_at_the_lengths_of_google():
    # The slides: n is about 100 and d about 512 in the usual setting, so attention costs less.
    answer = complexity(**SIZES)
    at = {row["name"]: row["at"] for row in answer.to_dict()["layers"]}
    assert at["self-attention without projections"]["maccs"] < at["recurrent"]["maccs"]
    assert at["self-attention"]["maccs"] == 4 * 100 * 512**2 + 2 * 100**2 * 512
    assert log(100, 3) < 100 / 5


def test_what_is_not_given_stays_a_letter():
    answer = complexity(hidden_size=512)
    assert answer.value(answer.kind("self-attention").maccs).at({"n": 3}) == 4 * 3 * 512**2 + 2 * 3**2 * 512
    assert answer.value(answer.kind("self-attention").parameters) == 4 * 512**2
    assert "n <= 511" in str(answer)
    assert "r" in str(answer.value(answer.kind("restricted attention").maccs))


@pytest.mark.parametrize("given", [{}, SIZES, {"seq_len": 10**12, "hidden_size": 10**12}])
def test_it_fits_eighty_columns(given):
    text = str(complexity(**given))
    assert max(map(len, text.splitlines())) <= 80


def test_other_spellings():
    assert complexity(d_model=512, N=7).sizes == complexity(hidden_size="512", seq_len=7).sizes


@pytest.mark.parametrize("form", ["json", "csv", "md", "latex", "table"])
def test_the_command(form, capsys):
    assert main(["complexity", "--seq-len", "100", "--hidden-size", "512", "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        at = json.loads(out)["layers"][0]["at"]
        assert at == {"maccs": 4 * 100 * 512**2 + 2 * 100**2 * 512, "parameters": 4 * 512**2}
    else:
        assert "separable" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hidden-size 7 --num-attention-heads 2", "7 is not a multiple of its 2 heads"),
        ("--hidden-size 0", "hidden-size must be a whole number"),
        ("--window 1.5", "window must be a whole number"),
        ("--vocab-size 7", "vocab-size does not apply"),
        ("--hidden-size 7 --d-model 8", "contradicts"),
        ("--kernel 7", "unknown flag '--kernel'; did you mean '--kernel-size'"),
        ("--format yaml", "format must be one of"),
        ("gpt2", "complexity takes no arguments; unexpected argument 'gpt2'"),
    ],
)
def test_refusals(arguments, message, capsys):
    assert main(["complexity", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
