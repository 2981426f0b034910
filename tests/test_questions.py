"""One question, one answer: all commands that answer it agree, for presets of every kind (docs/questions.md)."""

import pytest

import learncost as lc
from learncost.faces.command import main
from learncost.models.numbers import BYTES, whole

PRESETS = ("gpt2", "bert-base", "t5-small", "mixtral-8x7b", "vit-b-16", "whisper-tiny")


def lengths(model):
    return {} if model in ("vit-b-16", "whisper-tiny") else {"seq_len": 64}


@pytest.mark.parametrize("model", PRESETS)
def test_parameters_and_flops(model):
    given = lengths(model)
    step = lc.cost(model, **given)
    compared = lc.compare(model, "bp", **given)
    swept = lc.sweep(model, "bp", "run,paper,matmul", **given)
    assert step.parameters == compared.first.parameters == swept.parameters[0]
    assert step.parameters == lc.conventions(model, **given).parameters == lc.rules(model, **given).parameters
    for series in swept.series:
        own = lc.cost(model, price_book=series.price_book, **given)
        assert (series.maccs[0], series.flops[0]) == (own.total.maccs, own.total.flops) or not series.exact[0]
    for book, costs in compared.costs.items():
        assert costs["bp"].total == lc.cost(model, price_book=book, **given).total
    for found in lc.conventions(model, **given).conventions:
        if found.counts is None:
            continue
        own = lc.cost(model, price_book=found.book, **given)
        flops = own.total.flops - own.macro_operations["optimizer_step"][1].flops
        assert found.counts.whole.flops == flops, found.book.name


@pytest.mark.parametrize("model", PRESETS)
def test_the_peak_of_one_sequence_and_the_batch_that_fits(model):
    given = {"plan": "at-once", **lengths(model)}
    one = lc.memory(model, **given)
    room = 2 * one.peak
    (row,) = lc.fit(model, room, procedures="bp", **given).rows
    told = lc.memory(model, **given, budget=room)
    assert (row.ram, row.largest, row.engine) == (one.peak, told.fits["batch_size"], one.engine)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("8G", 8 * 10**9), ("8GB", 8 * 10**9), ("24GiB", 24 * 2**30), ("1e3", 1000), ("3e11", 3 * 10**11)),
        *(
            ("16 GB", 16 * 10**9),
            ("512k", 512_000),
            ("1.5 KiB", 1536),
            ("0.5", None),
            ("1.0", None),
            ("5XB", None),
            ("-1", None),
        ),
    ],
)
def test_bytes_as_people_write_them(text, number):
    assert whole(text, BYTES) == number


def test_several_procedures_where_several_can_stand(capsys):
    small = ["--num-hidden-layers", "1", "--seq-len", "8"]
    for line in (["compare"], ["memory"], ["fit", "--ram", "8G"], ["sweep"]):
        for flag in ("--procedure", "--procedures") if line[0] != "sweep" else ("--procedure",):
            assert main([line[0], "gpt2", *line[1:], *small, flag, "bp,recompute"]) in (0, None)
            assert "recompute" in capsys.readouterr().out
    assert main(["cost", "gpt2", "--procedure", "bp,recompute"]) == 2
    assert "compare, memory, fit, sweep and contest take several" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cost", "compare", "memory", "sweep", "emit", "fit --ram 8GB"])
def test_a_wrong_optimizer_is_answered_with_all(command, capsys):
    name, *more = command.split()
    assert main([name, "gpt2", *more, "--optimizer", "adamm"]) == 2
    assert "sgd, momentum, adamw, adam8bit, adafactor, lion, muon" in capsys.readouterr().err
