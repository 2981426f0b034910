"""One question, one answer: every command that answers it, on the command line and in Python (docs/questions.md)."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.ir.errors import BYTES, whole_number
from learncost.models.argument import preset
from learncost.procedures.optimizer import STATES
from learncost.reports.columns import write_csv
from learncost.reports.request import Request
from learncost.training.train import ProgressLines

DOCUMENT = Path(__file__).parents[1] / "docs" / "questions.md"
NO_LENGTH = ("vit", "whisper")  # families whose encoder has one length
KINDS = ("gpt2", "bert-base", "t5-small", "mixtral-8x7b", "vit-b-16", "whisper-tiny")
ON, TOKENS = "H100-SXM", 197 * 448 * 1_000  # whole steps of every length that is asked about


@dataclass(frozen=True)
class Asked:
    """A command with what it is told, and how its answer is read off its JSON."""

    command: str
    read: Callable[[dict], object]
    more: Mapping[str, object] = field(default_factory=dict)


def lengths(model: str) -> dict[str, object]:
    preset_found = preset(model)
    return {} if preset_found and preset_found.values["model_type"] in NO_LENGTH else {"seq_len": 64}


def answer(command: str, model: str | None, **given: object) -> dict:
    """What a command says in JSON. Python says the same."""
    return _answer(command, model, tuple(given.items()))


@cache
def _answer(command: str, model: str | None, given: tuple[tuple[str, object], ...]) -> dict:
    flags = [op for name, value in given for op in (f"--{name.replace('_', '-')}", str(value))]
    screen, names = io.StringIO(), () if model is None else (model,)
    json_too = () if command == "sweep" else ("--json",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        assert main([command, *names, *flags, *json_too]) in (0, None)
    answer = getattr(lc, command.replace("-", "_"))(*names, **dict(given))
    if command == "sweep":
        stream = io.StringIO()
        write_csv(answer, stream)
        assert screen.getvalue() == stream.getvalue()
        return {"rows": list(csv.DictReader(io.StringIO(screen.getvalue())))}
    from_python = json.loads(json.dumps(answer.to_dict()))
    assert json.loads(screen.getvalue()) == from_python
    return from_python


def _of_rows(field_name: str) -> Callable[[dict], object]:
    """MACCs or FLOPs of every layer and macro-operation that has any."""

    def count(value: object) -> object:
        return value["value"] if isinstance(value, dict) else value

    def read(found: dict) -> object:
        rows = {(r["layer"], r["block"], r["macro_operation"]): count(r[field_name]) for r in found["rows"]}
        assert len(rows) == len(found["rows"])
        return {name: value for name, value in rows.items() if value}

    return read


def _by_phase(found: dict) -> object:
    """MACCs and FLOPs of every macro-operation that has any, whichever way a command writes them down."""
    phases = found.get("macro_operations") or found.get("price_books", {}).get("run", {}).get("bp", {}).get(
        "macro_operations"
    )
    counts: dict[str, tuple[int, int]] = {}
    if phases is None:
        for row in found["rows"]:
            phase = counts.get(row["macro_operation"], (0, 0))
            new = [row[name]["value"] if isinstance(row[name], dict) else int(row[name]) for name in ("maccs", "flops")]
            counts[row["macro_operation"]] = (phase[0] + new[0], phase[1] + new[1])
    else:
        for name, phase in phases.items():
            keys = ("maccs_value", "flops_value") if "maccs_value" in phase else ("maccs", "flops")
            counts[name] = (phase[keys[0]], phase[keys[1]])
    return {name: count for name, count in counts.items() if any(count)}


def _first(found: dict) -> dict:
    """The row of a sweep; of `fit` that of the step as it is, under the default plan."""
    (row,) = (row for row in found["rows"] if row.get("plan", "") in ("", "flash"))
    return row


def _total(book: str) -> Callable[[dict], object]:
    return lambda found: found["price_books"][book]["bp"]["total"]["flops"]


def _per_step(found: dict) -> object:
    """The FLOPs of a run over its steps."""
    return round(found["figures"]["flops"]["value"] / found["figures"]["steps"]["value"])


def _without_optimizer(found: dict) -> object:
    return found["total"]["flops"] - found["macro_operations"]["optimizer_step"]["flops"]


def _of_convention(book: str) -> Callable[[dict], object]:
    def read(found: dict) -> object:
        (entry,) = (candidate for candidate in found["price_books"] if candidate["price_book"] == book)
        return entry["forward_and_backward"]["flops"]

    return read


def _by_rule(found: dict) -> object:
    """What a rule of thumb is set against: the step itself."""
    (rule,) = (candidate for candidate in found["rules"] if candidate["key"] == "6nd")
    return rule["cases"][0]["exact"]


def _figure(name: str) -> Callable[[dict], object]:
    return lambda found: pytest.approx([found["figures"][name][key] for key in ("low", "value", "high")], rel=1e-12)


RUN = {"tokens": TOKENS, "on": ON}
ROOM = {"budget": "32TB", "procedures": "bp"}

QUESTIONS: Mapping[str, tuple[Asked, ...]] = {
    "How many parameters?": (
        Asked("cost", lambda found: found["parameters"]),
        Asked("compare", lambda found: found["parameters"], {"procedures": "bp"}),
        Asked("sweep", lambda found: int(_first(found)["parameters"])),
        Asked("conventions", lambda found: found["parameters"]),
        Asked("rules", lambda found: found["parameters"]),
        Asked("run-cost", lambda found: found["parameters"], RUN),
    ),
    "How many FLOPs does a step have?": (
        Asked("cost", lambda found: found["total"]["flops"]),
        Asked("compare", _total("run"), {"procedures": "bp"}),
        Asked("sweep", lambda found: int(_first(found)["flops"])),
        Asked("run-cost", _per_step, {**RUN, "price_book": "run"}),
    ),
    "How many FLOPs do its matrix products have?": (
        Asked("cost", lambda found: found["total"]["flops"], {"price_book": "matmul"}),
        Asked("compare", _total("matmul"), {"procedures": "bp", "price_book": "matmul"}),
        Asked("sweep", lambda found: int(_first(found)["flops"]), {"price_book": "matmul"}),
        Asked("conventions", _of_convention("matmul")),
        Asked("rules", _by_rule),
        Asked("run-cost", _per_step, RUN),
    ),
    "How many FLOPs are there without the optimizer step?": (
        Asked("cost", _without_optimizer),
        Asked("conventions", _of_convention("run")),
    ),
    "How many MACCs and FLOPs does a macro-operation have?": (
        Asked("cost", _by_phase),
        Asked("compare", _by_phase, {"procedures": "bp"}),
        Asked("sweep", _by_phase, {"by": "macro-operation"}),
        Asked("formulas", _by_phase),
        Asked("explain", _by_phase),
    ),
    "How many MACCs and FLOPs does a layer of a model have?": (
        Asked("cost", lambda found: (_of_rows("maccs")(found), _of_rows("flops")(found))),
        Asked("formulas", lambda found: (_of_rows("maccs")(found), _of_rows("flops")(found))),
    ),
    "How many bytes is the peak memory?": (
        Asked("memory", lambda found: (found["engine"], found["peak"])),
        Asked("fit", lambda found: (_first(found)["engine"], _first(found)["ram"]), ROOM),
    ),
    "How large is the largest batch that fits?": (
        Asked("memory", lambda found: found["fits"]["batch_size"], {"budget": "32TB"}),
        Asked("fit", lambda found: _first(found)["batch_size"], ROOM),
    ),
    "How many seconds does a step take?": (
        Asked("cost", lambda found: [found["time"][key] for key in ("low", "seconds", "high")], {"on": ON}),
        Asked("run-cost", _figure("step"), RUN),
    ),
    "How much energy does a step use?": (
        Asked("cost", lambda found: [found["time"]["energy"][key] for key in ("low", "joules", "high")], {"on": ON}),
        Asked("run-cost", _figure("step_energy"), RUN),
    ),
}
"""The questions that several commands answer, and how each is asked: one sequence, one step of bp where it matters."""


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("model", KINDS)
def test_all_who_answer_say_the_same(model, question):
    first, *others = (
        question.read(answer(question.command, model, **lengths(model), **question.more))
        for question in QUESTIONS[question]
    )
    for other in others:
        assert other == first


# What `complexity` calls n, d, h, k and r, and what the tables of its layers call them.
WIDTHS = {"seq_len": 64, "hidden_size": 32, "num_attention_heads": 4, "kernel_size": 3, "window": 8}
LETTERS = {"B": 1, "M": 64, "N": 64, "d_model": 32, "d_ff": 128, "e": 32, "h": 4, "c": 3, "r": 8}
LAYERS = (
    "attention",
    "feed_forward_without_biases",
    "recurrent",
    "convolution",
    "separable_convolution",
    "restricted_attention",
)


@pytest.mark.parametrize("layer", LAYERS)
def test_what_a_layer_costs_forward(layer):
    layer_entry = next(
        candidate for candidate in answer("complexity", None, **WIDTHS)["layers"] if candidate["table"] == layer
    )
    (forward,) = (row for row in answer("formulas", layer)["rows"] if row["macro_operation"] == "forward")
    explained = answer("explain", layer)["macro_operations"]["forward"]
    for count in (forward["maccs"], explained["maccs"]):
        assert layer_entry["at"]["maccs"] == eval(count, {}, LETTERS)


def test_the_document_names_those_who_are_asked():
    commands = {
        question: {question.command for question in question_list} for question, question_list in QUESTIONS.items()
    }
    commands["How many MACCs does the forward pass of a single layer have?"] = {"complexity", "formulas", "explain"}
    commands["How many bytes is the peak memory?"].add("train")
    rows = re.findall(r"^\| ([^|]*\?) \| ([^|]*) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert {question: set(re.findall("`([a-z-]+)", names_text)) for question, names_text in rows} == commands


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", KINDS)
def test_every_price_book_says_one_number_to_all(model):
    settings = lengths(model)
    compared = lc.compare(model, "bp", **settings)
    swept = lc.sweep(model, "bp", "run,paper,matmul", **settings)
    for series in swept.series:
        ledger = lc.cost(model, price_book=series.price_book, **settings)
        assert (series.maccs[0], series.flops[0]) == (ledger.total.maccs, ledger.total.flops) or not series.exact[0]
    for book, costs in compared.costs.items():
        assert costs["bp"].total == lc.cost(model, price_book=book, **settings).total
    for convention in lc.conventions(model, **settings).conventions:
        if convention.counts is None:
            continue
        ledger = lc.cost(model, price_book=convention.book, **settings)
        flops = ledger.total.flops - ledger.macro_operations["optimizer_step"][1].flops
        assert convention.counts.whole.flops == flops, convention.book.name


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", KINDS)
def test_the_peak_of_one_sequence_and_the_batch_that_fits(model):
    settings = {"plan": "fused-update", **lengths(model)}
    needs = lc.memory(model, **settings)
    room = 2 * needs.peak
    (row,) = lc.fit(model, room, procedures="bp", **settings).rows
    answer = lc.memory(model, **settings, budget=room)
    assert (row.ram, row.largest, row.engine) == (needs.peak, answer.fits["batch_size"], needs.engine)


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
    assert whole_number(text, BYTES) == number


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("number", [2.0, np.float32(2), np.int64(2), "2"])
def test_a_whole_number_counts_however_it_is_written(number):
    sizes = {"num_hidden_layers": number, "batch_size": number, "seq_len": 8}
    total = lc.cost("gpt2", num_hidden_layers=2, batch_size=2, seq_len=8).total
    assert lc.cost("gpt2", tokens=number, **sizes).total == total
    assert lc.run_cost("gpt2", 300e9, ON, number, **sizes).figures["tokens"].value == 300 * 10**9
    assert lc.memory("gpt2", accumulate=number, budget=8e9, **sizes).budget == 8 * 10**9
    assert lc.fit("gpt2", np.float64(8e9), procedures="bp", seq_len=number).budget == 8 * 10**9
    assert lc.rules("gpt2", tokens=300e9, seq_len=number).tokens == 300 * 10**9
    assert lc.cost("gpt2", "decode", context=number).context == 2
    axes = {"M": 2, "N": 2, "d": 4, "h": 2, "k": 2}
    table = lc.layer("attention").table
    if not isinstance(number, str):
        assert lc.price(table, {"B": number, **axes}).flops == lc.price(table, {"B": 2, **axes}).flops


@pytest.mark.parametrize("number", [0.5, float("nan"), float("inf"), True, "2.5"])
def test_what_is_no_whole_number_is_refused_in_one_line(number):
    wrong_questions = [
        lambda: lc.run_cost("gpt2", number, ON, seq_len=8),
        lambda: lc.cost("gpt2", batch_size=number, seq_len=8),
        lambda: lc.cost("gpt2", num_hidden_layers=number, seq_len=8),
        lambda: lc.memory("gpt2", batch_size=4, seq_len=8, accumulate=2.5 if number is True else number),
        lambda: lc.fit("gpt2", number, seq_len=8),
        lambda: lc.run_cost("gpt2", 64, ON, country="France", year=number, seq_len=8),
    ]
    for ask in wrong_questions:
        with pytest.raises(lc.InputError) as refused:
            ask()
        assert "\n" not in str(refused.value)


def test_several_procedures_where_several_can_stand(capsys):
    small = ["--num-hidden-layers", "1", "--seq-len", "8"]
    for line in (["compare"], ["memory"], ["fit", "--budget", "8G"], ["sweep"]):
        for flag in ("--procedure", "--procedures") if line[0] != "sweep" else ("--procedure",):
            assert main([line[0], "gpt2", *line[1:], *small, flag, "bp,recompute"]) in (0, None)
            assert "recompute" in capsys.readouterr().out
    assert main(["cost", "gpt2", "--procedure", "bp,recompute"]) == 2
    assert "compare, memory, fit, sweep and contest take several" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cost", "compare", "memory", "sweep", "emit", "fit --budget 8GB"])
def test_a_wrong_optimizer_is_answered_with_all(command, capsys):
    name, *more = command.split()
    assert main([name, "gpt2", *more, "--optimizer", "adamm"]) == 2
    assert f"(there are {', '.join(STATES)})" in capsys.readouterr().err


def test_a_line_of_progress_is_no_wider_than_the_screen(capsys):
    text = "engine torch, plan flash,fused,fused-update,recompute=silu+norm, kernels compiled by cc -O3"
    ProgressLines().say(text)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(line.strip() for line in lines) == text


def test_retired_keywords_are_refused_with_todays():
    for old, today in (("ram", "budget"), ("flash", "flash_size")):
        with pytest.raises(lc.InputError, match=f"the keyword '{old}' is called '{today}' now"):
            lc.fit("gpt2", **{old: "1GB"})


NO_QUESTIONS = "derive", "lower", "price", "inference", "check_layer", "list_models", "train", "book"


@pytest.mark.parametrize("name", NO_QUESTIONS)
def test_what_takes_no_request_says_so_in_one_line(name):
    with pytest.raises(lc.InputError, match=r"not Request\(|is called Request\(") as refused:
        getattr(lc, name)(Request("gpt2"))
    assert "\n" not in str(refused.value)
