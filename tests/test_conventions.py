"""`conventions`: reasons that sum to the difference, counters as they were measured, screens of every format."""

import csv
import io
import json

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.cost_models.books import every
from learncost.cost_models.formula import formulas
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.reports.identify import typed
from sampling import sampled

GROUPED = {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}
SLIDING = {
    "model_type": "gemma2",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
SMALL = {"intermediate_size": 20, "num_hidden_layers": 2, "vocab_size": 50, "max_position_embeddings": 64}
LLAMA_2_7B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def configuration(keys):
    return configure("-", stdin=io.StringIO(json.dumps(keys)))


SUBJECTS = {
    "gpt2": ("gpt2", {}),
    "bert": ("bert-base", {"seq_len": 32, "architecture": "BertForMaskedLM"}),
    "encoder alone": ("bert-base", {"seq_len": 32}),
    "no vocabulary": ("vit-b-16", {}),
    "two sides": ("transformer-base", {"seq_len": 24, "target_len": 10}),
    "heads wider than the model": ("gpt3-xl", {"seq_len": 64, "batch_size": 3, "n_head": 24}),
    "grouped": (configuration(GROUPED | SMALL), {"seq_len": 32}),
    "windows": (configuration(SLIDING | SMALL | {"sliding_window": 8}), {"seq_len": 32}),
}


def four(counts):
    return counts.forward.maccs, counts.forward.flops, counts.whole.maccs, counts.whole.flops


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("name", SUBJECTS)
def test_reasons_sum_to_the_difference_from_matrix_products(name):
    """In all four numbers, for every book; a book's own number is that of `cost` without the optimizer's step."""
    model, sizes = SUBJECTS[name]
    conventions = lc.conventions(model, **sizes)
    assert [convention.book.name for convention in conventions.conventions] == [
        "matmul",
        *(book for book in every() if book != "matmul"),
    ]
    yardstick = conventions["matmul"].counts
    for convention in conventions.conventions:
        if convention.refused:
            with pytest.raises(lc.InputError, match=f"price book {convention.book.name} is a formula of"):
                lc.cost(model, price_book=convention.book, **sizes)
            continue
        cost = lc.cost(model, price_book=convention.book, **sizes)
        amounts = {phase: amount for phase, (_, amount) in cost.macro_operations.items() if phase != "optimizer_step"}
        assert convention.counts.forward == amounts["forward"]
        assert convention.counts.whole.flops == sum(amount.flops for amount in amounts.values())
        sums = [sum(numbers) for numbers in zip(*(four(reason.amount) for reason in convention.reasons), strict=True)]
        assert four(convention.difference) == tuple(
            a - b for a, b in zip(four(convention.counts), four(yardstick), strict=True)
        )
        assert tuple(sums or [0] * 4) == four(convention.difference), convention.book.name
        assert all(any(four(reason.amount)) for reason in convention.reasons)
        assert len({reason.what for reason in convention.reasons}) == len(convention.reasons)


@pytest.mark.one_in(every=26)
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"encoder", "decoder", "encoder-decoder", "gpt3-jiang"}))
def test_every_family_has_its_conventions(family):
    """By the defaults of its model type: reasons that sum and have names, a screen of 80 columns."""
    try:
        model = configuration({"model_type": family})
        conventions = lc.conventions(model, seq_len=64)
    except lc.InputError as error:  # images and sounds have no length to choose, a few types no defaults
        pytest.skip(str(error))
    for convention in conventions.conventions:
        if not convention.refused:
            sums = [
                sum(numbers) for numbers in zip(*(four(reason.amount) for reason in convention.reasons), strict=True)
            ]
            assert tuple(sums or [0] * 4) == four(convention.difference), convention.book.name
            assert not any("other sizes" in reason.what for reason in convention.reasons), convention.book.name
    assert all(len(line) <= 80 for line in str(conventions).splitlines())


def reasons(found, book):
    return {reason.what: (reason.amount.forward.flops, reason.amount.whole.flops) for reason in found[book].reasons}


def test_rows_of_an_own_module_say_in_words_what_differs():
    """A formula of the blocks' matrices: what stands outside is named, and no two rows take each other away."""
    torch = pytest.importorskip("torch")
    from own_modules import GPT

    tokens = torch.zeros(2, 7, dtype=torch.long)
    found = lc.conventions(lc.from_module(GPT(), (tokens, tokens), {"idx": "B M", "targets": "B M"}), B=2, M=16)
    blocks, width, vocabulary, tokens_in_all = 2, 12, 50, 2 * 16
    assert reasons(found, "kaplan") == {
        "attention's products of scores and values, left out": tuple(
            -passes * 2 * 2 * blocks * tokens_in_all * 16 * width for passes in (1, 3)
        ),
        "matrix products of GPT (outside the blocks), left out": tuple(
            -passes * 2 * tokens_in_all * width * vocabulary for passes in (1, 3)
        ),
    }


def test_why_the_books_differ_about_gpt2():
    """Each amount from the sizes: 12 layers, width 768, 12 heads, 1024 tokens, a vocabulary of 50257."""
    conventions = lc.conventions("gpt2")
    head = 2 * 1024 * 768 * 50257
    scores = 2 * 12 * 1024 * 1024 * 768  # of one product of attention in all layers
    assert head == 79_047_426_048
    assert reasons(conventions, "kaplan") == {
        "attention's products of scores and values, left out": (-2 * scores, -6 * scores),
        "matrix products of the head, left out": (-head, -3 * head),
    }
    assert reasons(conventions, "chinchilla") == {
        "embedding as a product with one-hot rows": (head, 3 * head),
        "attention: Softmax, counted too": (3 * 12 * 12 * 1024 * 1024, 9 * 12 * 12 * 1024 * 1024),
    }
    unmultiplied = 124_439_808 - 50257 * 768 - 12 * 12 * 768 * 768
    assert reasons(conventions, "palm") == {
        "parameters without a product (look-ups, norms, biases)": (2 * 1024 * unmultiplied, 6 * 1024 * unmultiplied)
    }
    assert reasons(conventions, "causal-half") == {"causal attention in half": (-scores, -3 * scores)}
    assert reasons(conventions, "flash") == {
        "causal attention in half": (-scores, -3 * scores),
        "attention scores recomputed in the backward pass": (0, scores // 2),
    }
    pairs = 12 * 12 * (1024 * 1023 // 2) * 2 * 64
    assert reasons(conventions, "causal-exact") == {"pairs that causal attention hides": (-2 * pairs, -6 * pairs)}
    assert reasons(conventions, "megatron") == reasons(conventions, "nanogpt") == {}
    assert reasons(conventions, "paper")["embedding as a product with one-hot rows"][0] == head
    # (29) with the slip E2 corrected or not: the same where queries and keys are as many; E3 is left out by the total.
    assert "left out of the publication's total: E3" in reasons(conventions, "paper")
    assert conventions.ratio("matmul") == 1
    assert conventions.ratio("causal-half") == pytest.approx(1 - 3 * scores / conventions["matmul"].counts.whole.flops)


# A block of GPT-2 with its head: 2 sequences of 64 tokens, width 128, 4 heads, network 512, vocabulary 1000, written
# with torch.matmul and with scaled_dot_product_attention on the CPU, as the counters themselves reported it.
BLOCK = {
    "n_layer": 1,
    "n_embd": 128,
    "n_head": 4,
    "vocab_size": 1000,
    "n_positions": 64,
    "batch_size": 2,
    "seq_len": 64,
}
MEASURED = {
    "FlopCounterMode, CPU, forward": (87_293_952, 83_099_648),
    "FlopCounterMode, CPU, in all": (261_881_856, 249_298_944),
    "fvcore": (43_892_736, 41_795_584),
    "ptflops, aten": (43_794_432, 41_697_280),
    "calflops": (43_646_976, 41_549_824),
    "thop": (41_746_432, 41_746_432),
}


def test_counters_as_they_were_measured():
    conventions = lc.conventions("gpt2", **BLOCK)
    assert conventions.parameters == 334_720
    measured = {counter.name: (counter.by_matmul, counter.fused) for counter in conventions.counters}
    assert {name: measured.pop(name) for name in MEASURED} == MEASURED
    # On meta the fused kernel falls apart into products; on CUDA its backward has one product more.
    assert measured == {
        "FlopCounterMode, meta, in all": (261_881_856, 261_881_856),
        "FlopCounterMode, CUDA, in all": (261_881_856, 261_881_856 + 2 * 2 * 64 * 64 * 128),
    }


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_flop_counter_mode_over_transformers(attention, device, dropout):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.GPT2Config(
        n_layer=1, n_embd=128, n_head=4, vocab_size=1000, n_positions=64, attn_pdrop=dropout
    )
    config._attn_implementation = attention
    with torch.device(device):
        module = transformers.GPT2LMHeadModel(config)
        tokens = torch.ones(2, 64, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        module(input_ids=tokens, labels=tokens).loss.backward()
    device_name = {"cpu": "CPU", "meta": "meta"}[device]
    predicted = {counter.name: counter for counter in lc.conventions("gpt2", **BLOCK).counters}[
        f"FlopCounterMode, {device_name}, in all"
    ]
    fused = attention == "sdpa" and not dropout  # with dropout the CPU has no fused kernel
    assert counter.get_total_flops() == (predicted.fused if fused else predicted.by_matmul)


# Published numbers of one Llama.


def of_kinds(book, **sizes):
    ledger = lc.cost(configuration(LLAMA_2_7B), price_book=book, by="kind", seq_len=8192, **sizes)
    return {kind: sum(row.flops for row in ledger.rows if row.kind == kind) for kind in ("linear", "attention")}


def test_maxtext_llama_2_7b():
    """MaxText's pull request 1988, 4 sequences of 8192: weights 1299.00 TFLOP, attention 422.21, and 211.11 in half."""
    full, half = of_kinds("matmul", batch_size=4), of_kinds("causal-half", batch_size=4)
    assert round(full["linear"] / 1e12, 2) == round(half["linear"] / 1e12, 2) == 1299.00
    assert round(full["attention"] / 1e12, 2) == 422.21
    assert round(half["attention"] / 1e12, 2) == 211.11


@pytest.mark.parametrize(
    ("book", "teraflops", "formula"),
    [
        ("matmul", 105.6, lambda s, h, n: 12 * s * s * h * n),
        ("causal-half", 52.8, lambda s, h, n: 6 * s * s * h * n),
        ("causal-exact", 52.8, lambda s, h, n: 6 * s * (s + 1) * h * n),
        ("flash", 61.6, lambda s, h, n: 7 * s * s * h * n),
        ("torch-flop-counter", 123.1, lambda s, h, n: 14 * s * s * h * n),
    ],
)
def test_attention_of_llama_2_7b_under_causal_conventions(book, teraflops, formula):
    """Forward and backward of one sequence of 8192 tokens: 12 s^2 h L in full, halves, flash 7/12 of it."""
    flops = of_kinds(book)["attention"]
    assert flops == formula(8192, 4096, 32)
    assert round(flops / 1e12, 1) == teraflops


def test_palm_and_torchtitan_count_the_whole_square():
    """PaLM's 12 L H Q T a token is attention in full, also with grouped heads wider than the model."""
    for keys in (LLAMA_2_7B, GROUPED | SMALL):
        rows = {}
        for book in ("palm", "matmul"):
            ledger = lc.cost(configuration(keys), price_book=book, by="kind", seq_len=64)
            rows[book] = sum(row.flops for row in ledger.rows if row.kind == "attention")
        assert rows["palm"] == rows["matmul"]


# The command.


def run(capsys, *arguments):
    code = main(["conventions", *arguments])
    return code, *capsys.readouterr()


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", ["gpt2", "bert-base", "gpt3-175b", "transformer-big"])
def test_the_screen_is_no_wider_than_80_columns_and_names_every_book(model, capsys):
    code, out, err = run(capsys, model, "--seq-len", "512")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert [book for book in every() if f"\n{book} " not in out] == []
    assert "Differences: FLOPs more" in out
    assert "Common counters, with attention" in out
    assert str(lc.conventions(model, seq_len=512)) == out.rstrip("\n")


def test_formats(capsys):
    conventions = lc.conventions("gpt2", seq_len=128, batch_size=2)
    flags = ("gpt2", "--seq-len", "128", "--batch-size", "2")
    assert json.loads(run(capsys, *flags, "--json")[1]) == conventions.to_dict()
    rows = list(csv.DictReader(io.StringIO(run(capsys, *flags, "--format", "csv")[1])))
    books = {row["name"]: int(row["flops"]) for row in rows if row["kind"] == "price book"}
    assert books == {convention.book.name: convention.counts.whole.flops for convention in conventions.conventions}
    assert sum(row["kind"] == "counter" for row in rows) == len(conventions.counters)
    out = run(capsys, *flags, "--format", "md")[1]
    assert out.count("| --- |") + out.count("| ---: |") > 2
    assert f"{books['palm']:,}" in out
    assert "<table>" in conventions._repr_html_()


def test_refused_formulas_say_why_in_the_screen_and_in_the_data(capsys):
    out = " ".join(run(capsys, "transformer-base", "--seq-len", "16")[1].split())
    assert f"{', '.join(formulas())}: a formula of one stack of blocks" in out
    conventions = lc.conventions("transformer-base", seq_len=16)
    assert {convention.book.name for convention in conventions.conventions if convention.refused} == set(formulas())
    assert (
        "has an encoder and a decoder"
        in next(b for b in conventions.to_dict()["price_books"] if "refused" in b)["refused"]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("gpt5",), "unknown model"),
        (("gpt2", "--seq-len", "0"), "--seq-len must be"),
        (("gpt2", "--price-book", "run"), "unknown flag"),
        (("gpt2", "--format", "yaml"), "format must be one of table, json, csv, md"),
    ],
)
def test_what_is_wrong_is_one_line(flags, message, capsys):
    code, out, err = run(capsys, *flags)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("number", "value"),
    [
        *[("291.6G", 291_600_000_000), ("8.75e11", 875_000_000_000), ("875 GFLOPs", 875_000_000_000)],
        *[("437,472,460,800", 437_472_460_800), (0.5e12, 500_000_000_000), (124439808, 124439808), ("1.3B", 1.3e9)],
    ],
)
def test_numbers_as_people_write_them(number, value):
    assert typed(number).value == value


def test_a_float_has_the_digits_that_were_typed():
    assert typed(2.91648e11).rounding == typed("291.648G").rounding == 500_000


@pytest.mark.parametrize("number", ["", "abc", "-3", "0", "1.2.3", "nan", "1e999", "3 apples", True, "9" * 99])
def test_what_is_no_number(number):
    with pytest.raises(lc.InputError, match="identify must be a number"):
        lc.conventions("gpt2", identify=number)


@pytest.mark.parametrize("model", sampled(["t5-small", "gpt2", "bert-base"], 3))
def test_identify_finds_every_convention(model):
    """The exact number of each book and counter leads back to it; so does its rounding to four digits."""
    lengths = {"seq_len": 128, "batch_size": 2}
    conventions = lc.conventions(model, **lengths)
    expected = [
        (convention.book.name, convention.counts.whole.flops, "forward and backward")
        for convention in conventions.conventions
        if convention.counts
    ]
    expected += [(f"{counter.name}, attention by matmul", counter.by_matmul, "") for counter in conventions.counters]
    for name, value, part in expected[::3]:
        for number in (value, f"{value:.3e}"):
            matches = lc.conventions(model, identify=number, **lengths).identified.matches
            assert any(
                match.convention == name and part in match.part and match.per == "a step" for match in matches
            ), name
    sequence = lc.conventions(
        model, identify=conventions["matmul"].counts.forward.flops // 2, **lengths
    ).identified.matches
    assert any((match.convention, match.part, match.per) == ("matmul", "forward", "a sequence") for match in sequence)


def test_identify_that_nobody_says_is_explained():
    """Forward matrix products and the scores of softmax as the run counts them: the nearest, and the line between."""
    conventions = lc.conventions("gpt2")
    products = conventions["palm"].counts.forward.flops
    softmax = next(reason for reason in conventions["run"].reasons if reason.what == "softmax").amount.forward.flops
    found = lc.conventions("gpt2", identify=products + softmax).identified
    assert not found.matches
    assert found.rest == 0
    assert found.nearest.value + sum(amount for _, amount in found.lines) == products + softmax
    below = lc.conventions("gpt2", identify=products - softmax).identified  # products have no softmax to leave out
    assert all(amount > 0 or reason not in ("softmax", "activations") for reason, amount in below.lines)
    kaplan = lc.conventions("gpt2", identify="62GMac").identified  # it counts no scores and no head
    assert kaplan.nearest.convention == "kaplan"
    assert not kaplan.lines
    odd = lc.conventions("gpt2", identify=1234567).identified
    assert odd.nearest.value + sum(amount for _, amount in odd.lines) + odd.rest == 1234567


def test_identify_on_the_screen_and_as_data(capsys):
    assert main(["conventions", "gpt2", "--identify", "291.6G"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gpt2: conventions that give 291.6G")
    assert "price book matmul: FLOPs of forward, for a step" in out
    assert "A step is 1 sequence of 1,024 tokens." in out
    assert len(out.splitlines()) < 20, "the answer, without all the conventions that it was sought among"
    assert max(map(len, out.splitlines())) <= 80
    assert main(["conventions", "gpt2", "--identify", "300G", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["identified"]
    assert data["matches"] == []
    assert data["nearest"]["value"] + sum(line["amount"] for line in data["lines"]) + data["rest"] == 300 * 10**9
    assert main(["conventions", "gpt2", "--identify", "300G", "--format", "md"]) == 0
    assert main(["conventions", "gpt2", "--identify", "300G", "--memory"]) == 2


def test_counters_come_first(capsys):
    assert main(["conventions", "gpt2"]) == 0
    out = capsys.readouterr().out
    assert out.index("fvcore") < out.index("price book")
