"""MEMPEPITA's memory as its authors count it, beside the exact one: their numbers, their claim, what is left of it."""

import json
import re
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.reports.memory.published import conventions, exact, published_memory
from learncost.reports.request import Request

AUTHORS = conventions()["pau-aymone"]
PROCEDURES = ("bp", "pepita", "mempepita")


def one(n, M, d, f, h, v):
    return {"n": n, "M": M, "d": d, "f": f, "h": h, "k": d // h, "v": v}


def two(E, N, D, M, d, f, h, v):
    return {"E": E, "N": N, "D": D, "M": M, "d": d, "f": f, "h": h, "k": d // h, "v": v}


# What the classes of the authors' repository print (commit c8a5347, run November 21, 2026): activations_bp,
# activations_pep, activations_mpep. The first ones are the models and sizes of its results.py, where GPT-3 Small is 784
# wide and AlexaTM's encoder has 100 tokens; the small ones make another moment the largest.
PRINTED = [
    (one(6, 1, 768, 3072, 12, 30522), (66_054, 66_048, 32_058)),
    (one(6, 32, 768, 3072, 12, 30522), (2_119_680, 2_113_536, 1_025_856)),
    (one(6, 512, 768, 3072, 12, 30522), (35_389_440, 33_816_576, 16_413_696)),
    (one(6, 2048, 768, 3072, 12, 30522), (160_432_128, 135_266_304, 65_654_784)),
    (one(12, 32, 784, 3072, 12, 50257), (4_252_672, 4_240_384, 1_658_400)),
    (one(12, 512, 784, 3072, 12, 50257), (70_991_872, 67_846_144, 26_534_400)),
    (one(12, 2048, 784, 3072, 12, 50257), (321_716_224, 271_384_576, 106_137_600)),
    (one(3, 7, 24, 5, 4, 11), (5_628, 5_481, 504)),
    (one(3, 7, 24, 90, 4, 11), (7_413, 7_266, 1_428)),
    (two(46, 100, 32, 1, 4096, 16384, 32, 150_000), (292_958_592, 292_495_360, 15_969_200)),
    (two(46, 100, 32, 32, 4096, 16384, 32, 150_000), (370_545_888, 369_950_720, 20_619_200)),
    (two(46, 100, 32, 512, 4096, 16384, 32, 150_000), (1_579_746_528, 1_569_259_520, 92_619_200)),
    (two(46, 100, 32, 2048, 4096, 16384, 32, 150_000), (5_548_279_008, 5_407_047_680, 323_977_216)),
    (two(2, 9, 3, 7, 24, 5, 4, 2), (14_205, 13_707, 690)),
    (two(2, 9, 3, 7, 24, 5, 24, 2), (14_205, 13_707, 662)),
    (two(2, 9, 3, 7, 24, 90, 4, 2), (17_520, 17_022, 1_850)),
    (two(2, 9, 3, 40, 24, 5, 4, 2), (57_468, 51_426, 2_880)),
    (two(2, 9, 3, 40, 24, 90, 4, 2), (69_198, 63_156, 8_160)),
    (two(2, 9, 3, 7, 24, 5, 4, 30), (14_205, 13_707, 912)),
    (two(2, 90, 3, 7, 24, 5, 2, 1), (83_298, 65_061, 6_564)),
]


@pytest.mark.parametrize(("sizes", "printed"), PRINTED)
def test_the_numbers_that_the_authors_code_prints(sizes, printed):
    assert tuple(AUTHORS.elements(name, sizes) for name in PROCEDURES) == printed


def reduction(sizes):
    return 1 - AUTHORS.elements("mempepita", sizes) / AUTHORS.elements("bp", sizes)


def test_the_claim_of_the_abstract_by_the_authors_own_counting():
    # Pau & Aymone 2024, Electronics 13(2), 402: "reduces it by 50% to 94% with the benefits being more evident for
    # architectures with a long sequence of blocks"; the repository draws 1 to 2,048 tokens.
    models = [
        [one(6, m, 768, 3072, 12, 30522) for m in range(1, 2049, 89)],
        [one(12, m, 784, 3072, 12, 50257) for m in range(1, 2049, 89)],
        [two(46, 100, 32, m, 4096, 16384, 32, 150_000) for m in range(1, 2049, 89)],
    ]
    ranges = [(min(map(reduction, model)), max(map(reduction, model))) for model in models]
    assert [(round(low, 3), round(high, 3)) for low, high in ranges] == [(0.515, 0.591), (0.609, 0.67), (0.941, 0.945)]
    by_blocks = [reduction(one(blocks, 512, 768, 3072, 12, 30522)) for blocks in (1, 2, 4, 8, 16, 32, 64)]
    assert by_blocks == sorted(by_blocks)
    assert by_blocks[1] < 0 < by_blocks[2]  # two blocks keep less than MEMPEPITA is charged for the vocabulary


def test_what_is_mended_is_probabilities_of_all_heads_and_of_the_vocabulary():
    sizes = one(6, 512, 768, 3072, 12, 30522)
    for name, heads in (("bp", 6 * 11 * 512**2), ("pepita", 0), ("mempepita", None)):
        more = AUTHORS.elements(name, sizes, corrected=True) - AUTHORS.elements(name, sizes)
        assert more == (0 if heads is None else heads + 512 * (30522 - 768))
    assert AUTHORS.elements("recompute", sizes) is None


SMALL = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}


@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
def test_the_exact_number_is_what_a_sequence_adds_to_the_peak_of_a_large_batch(procedure):
    elements = exact(build(model := configure("gpt2", SMALL)), procedure, run_sizes(build(model), 1, 16, None))
    less, more = (lc.memory(model, procedure, batch, 16, engine="graph", plan="none") for batch in (10_000, 10_001))
    assert more.peak - less.peak == 4 * elements  # fp32, indices of four bytes


def test_backpropagation_has_more_than_it_keeps_and_no_more_than_twice():
    # A bound from outside: what lies there from the forward pass on, by the authors' rows with both slips corrected.
    for row in published_memory(Request("gpt3-small", seq_len=512)).rows:
        if row.procedure == "bp":
            assert row.corrected < row.exact < 2 * row.corrected


PAGE = (Path(__file__).parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
MODELS = {
    "DistilBERT": ("encoder", {"num_hidden_layers": 6, "vocab_size": 30522}),
    "GPT-3 Small": ("gpt3-small", {}),
    "AlexaTM 20B": (
        "encoder-decoder",
        {"n_enc": 46, "n_dec": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 16384}
        | {"vocab_size": 150_000, "target_len": 1},
    ),
}
BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
ROWS = re.findall(rf"^\| ({'|'.join(MODELS)}) \| (.*) \|$", PAGE, re.M)


def test_the_table_of_the_page_has_all_models():
    assert len(ROWS) == 9


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_table_of_the_page(name, row):
    length, *cells = row.split(" | ")
    tokens = int(length.replace(",", ""))
    model, keys = MODELS[name]
    sides = (100, tokens) if keys.get("target_len") else (tokens, None)
    sizes = {key: size for key, size in {**BASE, **keys}.items() if key != "target_len"}
    rows = {
        row.procedure: row
        for row in published_memory(Request(model, seq_len=sides[0], target_len=sides[1], sizes=sizes)).rows
    }
    bp, recompute, mempepita = (rows[procedure] for procedure in ("bp", "recompute", "mempepita"))
    shares = [
        mempepita.published / bp.published,
        mempepita.corrected / bp.corrected,
        mempepita.exact / bp.exact,
        recompute.exact / bp.exact,
    ]
    assert cells == [f"{100 * (1 - share):.0f} %" for share in shares]
    assert recompute.exact <= mempepita.exact  # as the page says


def test_the_command(capsys):
    assert main(["conventions", "gpt3-small", "--memory", "--seq-len", "512", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["elements"][0]["published"] == 69_992_448  # 12 (10 M d + M f + M^2) + 2 M d
    assert main(["conventions", "gpt3-small", "--memory", "--seq-len", "512", "--format", "md"]) == 0
    assert "| bp | 69,992,448 | 100.0 % |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["gpt2", "--batch-size", "2"], "--memory applies to one sequence: remove --batch-size"),
        (["gpt2", "--format", "yaml"], "format must be one of table, json"),
        (["llama-2-7b"], "llama-2-7b has different blocks than the convention's"),
        (["bert-base"], "bert-base is not covered by the convention"),
        (["whisper-large-v3"], "whisper-large-v3 has frozen weights, but the convention counts only"),
    ],
)
def test_refusals(flags, line, capsys):
    assert main(["conventions", *flags, "--memory"]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
