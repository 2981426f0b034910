"""Sweeps: every row is what `cost` says, whatever is varied; what no model has is refused or left out."""

import csv
import io
import json
import random

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.cli.sweep import notes
from learncost.cli.sweep import sweep as command
from learncost.cost_models.books import BOOKS
from learncost.reports import columns
from learncost.reports.grid import values
from learncost.reports.sweep import sweep
from sampling import sampled

SIZES = {
    "encoder": {"num_hidden_layers": [1, 3], "hidden_size": [12, 24], "num_attention_heads": [2, 3]},
    "decoder": {"num_hidden_layers": [1, 2], "hidden_size": [12, 20], "num_attention_heads": [2], "head_dim": [5, 7]},
    "encoder-decoder": {"n_enc": [1, 2], "n_dec": [3], "hidden_size": [12, 24], "num_attention_heads": [3, 4]},
}
REST = {"intermediate_size": [13], "vocab_size": [11, 17], "batch_size": [1, 3], "seq_len": [5, 7]}


def check(found, model, count=12, seed=1, **settings):
    """Random rows of a sweep equal the ledger of their sizes, to the unit."""
    draw = random.Random(seed)
    for _ in range(count):
        series, i = draw.choice(found.series), draw.randrange(found.configurations)
        row = {name: int(column[i]) for name, column in found.sizes.items()}
        ledger = lc.cost(model, series.procedure, series.price_book, **row, **settings)
        assert found.parameters[i] == ledger.parameters
        part = ledger.total if series.macro_operation is None else ledger.macro_operations[series.macro_operation][1]
        assert (int(series.maccs[i]), int(series.flops[i])) == (part.maccs, part.flops), (row, series)
        assert series.exact[i]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", SIZES)
@pytest.mark.parametrize("by", sampled(["macro-operation", "total"], 2))
def test_rows_are_those_of_cost(model, by):
    sizes = SIZES[model] | REST
    if model == "encoder-decoder":
        sizes |= {"target_len": [4, 9]}
    swept = sweep(model, "all", "all", by=by, **sizes)
    assert swept.configurations == np.prod([len(value) for value in sizes.values()])
    assert len(swept.series) == 4 * len(BOOKS) * (6 if by == "macro-operation" else 1)
    check(swept, model, count=40)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", ["gpt2", "gpt3-13b", "transformer-base", "gpt3-jiang"])
def test_presets_keep_what_follows_from_a_size(model):
    rows_swept = sweep(model, "all", "run,paper", hidden_size=[480, 960], vocab_size=[10, 21], seq_len=[3, 8])
    check(rows_swept, model)
    assert ("head_dim" in rows_swept.sizes) == (model != "gpt3-13b")


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("model", ["bert-base", "distilbert-base"])
def test_masked_language_models(model):
    name = {"bert-base": "BertForMaskedLM", "distilbert-base": "DistilBertForMaskedLM"}[model]
    rows_swept = sweep(
        model, "all", "run,paper", architecture=name, hidden_size=[24, 36], seq_len=[3, 8], vocab_size=[9, 7]
    )
    check(rows_swept, model, architecture=name)
    check(sweep(model, "bp,recompute", "run,paper", seq_len=[3, 8]), model)
    with pytest.raises(lc.InputError):
        sweep(model, "pepita", seq_len=[3, 8])


def test_spellings_settings_and_single_values():
    rows_swept = sweep("gpt2", n_embd=[36, 72], n_layer=2, N=[4, 6], activation="relu", dropout=0.1, optimizer="adamw")
    assert list(rows_swept.sizes)[:2] == ["batch_size", "seq_len"]
    check(rows_swept, "gpt2", activation="relu", dropout=0.1, optimizer="adamw")


def test_arrays_side_by_side():
    draw = np.random.default_rng(3)
    count = 1000
    rows_swept = sweep(
        "gpt2",
        "all",
        "run,paper",
        grid=False,
        seq_len=draw.integers(1, 1024, count),
        batch_size=draw.integers(1, 9, count).astype(float),
        hidden_size=12 * draw.integers(1, 90, count),
        num_hidden_layers=draw.integers(1, 50, count),
        vocab_size=draw.integers(1, 60000, count),
    )
    assert rows_swept.configurations == count
    check(rows_swept, "gpt2", count=40)


def test_the_last_size_varies_fastest():
    rows_swept = sweep("gpt2", hidden_size=[12, 24], seq_len=range(1, 4))
    assert rows_swept.sizes["seq_len"].tolist() == [1, 2, 3, 1, 2, 3]
    assert rows_swept.sizes["hidden_size"].tolist() == [12] * 3 + [24] * 3
    assert rows_swept.sizes["intermediate_size"].tolist() == [48] * 3 + [96] * 3


def test_default_length_follows_the_positions():
    rows_swept = sweep("gpt2", max_position_embeddings=[16, 32])
    assert rows_swept.sizes["seq_len"].tolist() == [16, 32]
    check(rows_swept, "gpt2", count=4)


def test_counts_from_2_to_the_53_are_marked():
    rows_swept = sweep("gpt2", "bp", "run", batch_size=[1, 10**5, 10**9])
    exact = [lc.cost("gpt2", batch_size=size).total.flops for size in (1, 10**5, 10**9)]
    assert rows_swept.series[0].exact.tolist() == [count < 2**53 for count in exact] == [True, False, False]
    assert rows_swept.inexact == 2
    np.testing.assert_allclose(rows_swept.series[0].flops, np.array(exact, dtype=float), rtol=1e-14)
    assert notes(rows_swept, None) == ["rows with counts from 2^53 on, which may be rounded (exact is false): 2"]


def test_exact_up_to_the_limit():
    low, high = 1, 10**12
    while high - low > 1:  # the largest batch whose count is below 2^53
        middle = (low + high) // 2
        fits = lc.cost("gpt2", batch_size=middle, seq_len=3).total.flops < 2**53
        low, high = (middle, high) if fits else (low, middle)
    rows_swept = sweep("gpt2", batch_size=[low, high], seq_len=3)
    assert rows_swept.series[0].exact.tolist() == [True, False]
    assert int(rows_swept.series[0].flops[0]) == lc.cost("gpt2", batch_size=low, seq_len=3).total.flops


REFUSED = [
    ({"hidden_size": [24, 25]}, "hidden_size 25 is not a multiple of num_attention_heads 12"),
    ({"num_attention_heads": [5, 7]}, "none of 2 combinations is valid: hidden_size 768 is not a multiple"),
    ({"seq_len": [1024, 1025, 1026]}, r"seq_len 1025 is longer than the 1024 positions .* \(2 of 3 combinations"),
    ({"seq_len": [0]}, "seq_len must be whole numbers from 1 to 1,000,000,000,000, not 0"),
    ({"seq_len": [2.5, 3]}, "not 2.5"),
    ({"seq_len": [float("nan")]}, "not nan"),
    ({"seq_len": [True]}, "seq_len must be whole numbers"),
    ({"seq_len": ["a"]}, "seq_len must be whole numbers"),
    ({"seq_len": []}, "seq_len"),
    ({"seq_len": [[1, 2], [3]]}, "seq_len must be whole numbers"),
    ({"seq_len": np.ones((2, 2))}, "seq_len must be whole numbers"),
    ({"seq_len": 10**13}, "seq_len must be a whole number"),
    ({"hidden_sise": 3}, "hidden_sise"),
    ({"n_enc": 3}, "gpt2 has no n_enc"),
    ({"n_embd": 768, "hidden_size": [768]}, "hidden_size is given twice"),
    ({"target_len": 3}, "remove target_len"),
    ({"procedure": "bb"}, "no learning procedure is called 'bb'"),
    ({"procedure": []}, "procedure must be a text, not"),
    ({"price_book": "run,papr"}, "no price book is called 'papr'"),
    ({"by": "row"}, "by must be one of"),
    ({"seq_len": range(1, 10**6), "batch_size": range(1, 10**6)}, "999,998,000,001 configurations; .* grid=False"),
    ({"seq_len": [1, 2], "batch_size": [1, 2, 3], "grid": False}, "batch_size 3, seq_len 2"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused_in_one_line(given, message):
    with pytest.raises(lc.InputError, match=message) as error:
        sweep("gpt2", **given)
    assert "\n" not in str(error.value)


def test_a_quotient_by_what_a_model_does_not_have(tmp_path):
    """Experts that are chosen without groups: a configuration without n_group."""
    values = {"model_type": "deepseek_v2", "num_hidden_layers": 2, "num_experts_per_tok": 2, "topk_method": "greedy"}
    small = {"hidden_size": 8, "vocab_size": 11, "n_routed_experts": 4, "moe_intermediate_size": 6}
    (tmp_path / "config.json").write_text(json.dumps({**values, **small}))
    check(sweep(str(tmp_path), seq_len=[4, 8]), str(tmp_path), 2)


def test_missing_sizes_are_named():
    with pytest.raises(lc.InputError, match="encoder needs num_hidden_layers, hidden_size"):
        sweep("encoder", seq_len=[3, 4])
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 3}
    with pytest.raises(lc.InputError, match="no default length: give seq_len"):
        sweep("encoder", vocab_size=[5, 6], **sizes)


def test_all_is_what_the_model_can_be_trained_by(capsys):
    rows_swept = sweep("bert-base", "all", seq_len=[8])
    assert [series.procedure for series in rows_swept.series] == ["bp", "recompute"]
    assert "left out: pepita and mempepita; bert-base has no output to learn from" in rows_swept.left_out
    command("bert-base", procedure="all", seq_len="8")
    assert rows_swept.left_out in capsys.readouterr().err
    assert sweep("gpt2", "all", seq_len=[8]).left_out == ""


def test_invalid_combinations_can_be_left_out():
    rows_swept = sweep("gpt2", hidden_size=range(12, 40), seq_len=[8, 2000], skip_invalid=True)
    assert rows_swept.sizes["hidden_size"].tolist() == [12, 24, 36]
    assert rows_swept.dropped == 28 * 2 - 3
    check(rows_swept, "gpt2", count=3)


def test_ranges_are_pythons():
    assert values("5,1:4,10:20:5", "seq_len").tolist() == [5, 1, 2, 3, 10, 15]
    for text in ("4:4", "1:2:3:4", "a", "1:", "3:1", "", "1,,2", "1:9:0", "-1:4"):
        with pytest.raises(lc.InputError, match="seq_len"):
            values(text, "seq_len")


@pytest.mark.parametrize("with_polars", [True, False])
def test_csv_is_what_the_columns_hold(with_polars, monkeypatch):
    if not with_polars:
        monkeypatch.setattr(columns, "find_spec", lambda name: None)
    rows_swept = sweep("gpt2", "bp,pepita", "run,paper", hidden_size=[24, 36], batch_size=[1, 10**9])
    text = io.StringIO()
    rows_swept.write_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert len(rows) == len(rows_swept) == 4 * 4
    for row, procedure, maccs in zip(rows, rows_swept.columns["procedure"], rows_swept.columns["maccs"], strict=True):
        assert row["procedure"] == procedure
        assert float(row["maccs"]) == maccs
        assert row["exact"] == ("true" if row["batch_size"] == "1" else "false")
    first = lc.cost("gpt2", "bp", "run", hidden_size=24)
    assert rows[0]["flops"] == str(first.total.flops)


def test_files_are_complete_or_absent(tmp_path, monkeypatch):
    polars = pytest.importorskip("polars")
    rows_swept = sweep("gpt2", "all", "run", hidden_size=[24, 36], seq_len=range(1, 9))
    for name, read in (("a.csv", polars.read_csv), ("a.parquet", polars.read_parquet)):
        rows_swept.write(tmp_path / name)
        frame = read(tmp_path / name)
        assert frame["flops"].to_list() == rows_swept.columns["flops"].tolist()
        assert frame["procedure"].to_list() == rows_swept.columns["procedure"].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet"]

    def broken(*_):
        raise OSError(28, "No space left on device")

    def full(*_):
        raise polars.exceptions.ComputeError("underlying IO error: No space left on device")

    monkeypatch.setattr(columns, "frame", full)
    with pytest.raises(lc.InputError, match="No space left"):
        rows_swept.write(tmp_path / "b.parquet")
    before = (tmp_path / "a.csv").read_bytes()
    monkeypatch.setattr(columns, "write_csv", broken)
    with pytest.raises(lc.InputError, match="No space left"):
        rows_swept.write(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_paths_are_checked_first(tmp_path, monkeypatch):
    for name in ("a.txt", "a", str(tmp_path), str(tmp_path / "no" / "a.csv")):
        with pytest.raises(lc.InputError):
            columns.check_path(name)
    monkeypatch.setattr(columns, "find_spec", lambda name: None)
    with pytest.raises(lc.InputError, match=r"pip install 'learncost\[sweep\]'"):
        columns.check_path("a.parquet")


def test_the_command_writes_csv(capsys, tmp_path):
    command("gpt2", **{"hidden-size": "24,36", "seq-len": "1:3"})
    out, err = capsys.readouterr()
    assert out.startswith("batch_size,seq_len,hidden_size,head_dim,intermediate_size,procedure,price_book,parameters,")
    assert len(out.splitlines()) == 5
    assert err == ""
    command("gpt2", **{"batch-size": "2,3", "seq-len": "4"})
    out, err = capsys.readouterr()
    assert [row["flops"] for row in csv.DictReader(io.StringIO(out))] == [
        str(lc.cost("gpt2", batch_size=size, seq_len=4).total.flops) for size in (2, 3)
    ]
    command("gpt2", output=tmp_path / "a.csv", procedure="all", skip_invalid=True, n_embd="24:49", n_head="12")
    out, err = capsys.readouterr()
    assert out == ""
    assert "12 rows of 3 configurations" in err
    assert "left out: 22" in err


def test_a_dictionary_of_columns():
    answer = sweep("gpt2", hidden_size=[24, 36]).to_dict()
    assert answer["flops"] == [lc.cost("gpt2", hidden_size=size).total.flops for size in (24, 36)]
    assert answer["fixed"]["vocab_size"] == 50257


@pytest.mark.parametrize("book", ["run", "paper"])
def test_a_million_configurations(book):
    rows_swept = sweep(
        "gpt2",
        "all",
        book,
        batch_size=range(1, 11),
        seq_len=range(64, 704, 64),
        hidden_size=range(96, 1056, 96),
        num_hidden_layers=range(1, 101),
        vocab_size=range(1000, 2000, 100),
    )
    assert rows_swept.configurations == 10**6
    check(rows_swept, "gpt2")


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("bert-base", {"batch_size": [1, 900], "seq_len": [128], "num_hidden_layers": [2]}),
        ("gpt2", {"seq_len": [64, 1024], "batch_size": [64], "n_layer": [2, 3]}),
        ("t5-small", {"seq_len": [8, 16], "d_model": [512, 256]}),
        ("llama-3.2-1b", {"seq_len": [128], "activation": "gelu"}),
    ],
)
def test_a_row_on_a_device_is_cost_and_memory_on_it(model, sizes):
    """The time is that of `cost --on`, the memory that of `memory --on`, and it fits where that is at most 40 GB."""
    found = lc.sweep(model, "bp,pepita", on="A100-SXM-40GB", **sizes)
    columns = found.columns
    names = [name for name in sizes if name != "activation"]
    aliases = {"n_layer": "num_hidden_layers", "d_model": "hidden_size"}
    for place in range(len(found)):
        one = {name: int(columns[aliases[name] if aliases.get(name) in columns else name][place]) for name in names}
        one |= {name: sizes[name] for name in sizes if name not in names}
        asked = {"procedure": str(columns["procedure"][place]), "on": "A100-SXM-40GB", **one}
        assert columns["seconds"][place] == lc.cost(model, **asked).time
        peak = lc.memory(model, **asked).peak
        assert columns["memory"][place] == peak
        assert columns["fits"][place] == (peak <= 40 * 10**9)
    assert found.unfit == sum(memory > 40e9 for memory in columns["memory"])
    plain = lc.sweep(model, "bp,pepita", **sizes)
    assert {"seconds", "memory", "fits"}.isdisjoint(plain.columns)
    assert all((plain.columns[name] == columns[name]).all() for name in plain.columns)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--seq-len 1:1002 --on A100-SXM-40GB", "at most 1,000 rows; the sizes make 1,001"),
        ("--seq-len 8 --by macro-operation --on A100-SXM-40GB", "--on requires --by total"),
        ("--seq-len 8 --on H100", "'H100' matches NVIDIA H100 SXM, NVIDIA H100 PCIe, DGX H100: give one of these"),
        ("--seq-len 8 --on A100-SXM-40GB --price-book paper", "time requires --price-book run or matmul, not paper"),
        ("--seq-len 8 --precision bf16-true", "--precision requires --on"),
    ],
)
def test_what_a_sweep_on_a_device_refuses(line, message, capsys):
    assert main(["sweep", "gpt2", *line.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_sweep_on_a_device_is_written(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    line = f"sweep gpt2 --seq-len 64,1024 --batch-size 64 --on A100-SXM-40GB -o {path}"
    assert main(line.split()) == 0
    first, second = list(csv.DictReader(path.read_text().splitlines()))
    assert (first["fits"], second["fits"]) == ("true", "false")
    assert int(second["memory"]) == lc.memory("gpt2", batch_size=64, on="A100-SXM-40GB").peak
    assert float(first["seconds"]) == lc.cost("gpt2", batch_size=64, seq_len=64, on="A100-SXM-40GB").time
    assert "rows that do not fit the device, or whose memory is not known: 1" in capsys.readouterr().err
