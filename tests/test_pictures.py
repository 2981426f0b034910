"""The data behind pictures: no picture says another number than the commands do."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.program.program import ProgramBuilder, intervals, timeline
from learncost.reports.question import flags_of
from learncost.viz.data.bridge import bridge
from learncost.viz.data.curve import curve
from learncost.viz.data.growth import growth
from learncost.viz.data.procedures import procedures
from learncost.viz.data.roofline import roofline
from learncost.viz.document import document

SMALL = {"seq_len": 32, "num_hidden_layers": 3}
DECODER = {
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": 30,
}

STEPS = [
    ("gpt2", {}),
    ("gpt2", {"procedure": "recompute"}),
    ("gpt2", {"procedure": "pepita"}),
    ("gpt2", {"procedure": "mempepita", "mode": "stable"}),
    ("gpt2", {"plan": "chunked-loss,fused-update", "batch_size": 3}),
    ("gpt2", {"batch_size": 4, "accumulate": 2}),
    ("llama-3.1-8b", {"precision": "qlora", "lora": "q_proj,v_proj"}),
    ("mixtral-8x7b", {"dtype": "bf16-masters"}),
    ("bert-base", {"dropout": 0.1}),
    ("t5-small", {"n_enc": 2, "n_dec": 4, "target_len": 9, "num_hidden_layers": None}),
    ("whisper-tiny", {"seq_len": None, "num_hidden_layers": None, "target_len": 9}),
    ("vit-base-patch16-224", {"seq_len": None, "num_hidden_layers": 7}),
    ("gemma-3-1b", {"num_hidden_layers": 26, "seq_len": 16}),
    ("gpt2", {"engine": "eager"}),
    ("gpt2", {"engine": "eager", "optimizer_implementation": "foreach", "procedure": "recompute", "batch_size": 2}),
    ("gpt2", {"engine": "eager", "procedure": "recompute", "module": "transformers-reentrant"}),
    ("t5-small", {"engine": "eager", "plan": "fused-update", "n_enc": 2, "n_dec": 4, "num_hidden_layers": None}),
    ("bert-base", {"engine": "eager", "optimizer_implementation": "for-loop", "precision": "bf16-masters"}),
]


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(("model", "flags"), STEPS, ids=[f"{name} {flags}" for name, flags in STEPS])
def test_the_arrays_at_every_line_sum_to_the_curve_and_its_top_is_the_peak(model: str, flags: dict) -> None:
    sizes = {name: value for name, value in (SMALL | flags).items() if value is not None}
    answer = lc.memory(model, **({"engine": "graph"} | sizes))
    memory_curve = curve(answer)
    sums = [
        sum(array.bytes for array in memory_curve.arrays if array.first <= place <= array.last)
        for place in range(len(memory_curve.lines))
    ]
    assert sums == [line.bytes for line in memory_curve.lines] == [moment.bytes for moment in answer.curve]
    assert max(sums) == sums[memory_curve.peak_at] == memory_curve.peak == answer.peak
    assert [sum(sizes) for sizes in zip(*memory_curve.kinds.values(), strict=True)] == sums
    parts = Counter[str]()
    for array in memory_curve.alive(memory_curve.peak_at):
        parts[array.part] += array.bytes
    if answer.engine == "graph":  # autograd's account says what an array becomes: a gradient from its first moment on
        assert {name: size for name, size in parts.items() if size} == {k: v for k, v in answer.split.items() if v}
    assert sum(array.bytes for array in memory_curve.alive(memory_curve.peak_at)) == answer.peak
    assert sum(array.bytes for array in answer.live_at_peak) == answer.peak
    assert json.loads(json.dumps(memory_curve.to_dict()))["peak"] == json.loads(answer.show("json"))["peak"]


def test_live_arrays_at_the_peak_are_those_found_otherwise() -> None:
    answer = lc.memory("gpt2", engine="graph", **SMALL)
    at_peak = Counter[str]()
    for live_array in curve(answer).alive(curve(answer).peak_at):
        at_peak[live_array.name] += live_array.bytes
    live_at_peak = Counter[str]()
    for live_array in answer.live_at_peak:
        live_at_peak[live_array.name.rstrip("*")] += live_array.bytes
    assert at_peak == live_at_peak
    assert at_peak["optimizer state"] == 8 * lc.cost("gpt2", **SMALL).parameters


def test_a_fold_keeps_the_worst_of_every_turn() -> None:
    running = ""
    builder = ProgramBuilder(where=lambda: running)
    for iteration in range(5):
        for running, size in (("a", 10), ("b", 3 + iteration % 2)):
            buffer = builder.allocate(size)
            builder.run(running)
        builder.free(buffer)
    running = "end"
    builder.allocate(1)
    builder.run(running)
    program = builder.program()
    lines = timeline(program)
    assert [(line.label, line.bytes, line.iterations) for line in lines] == [("a", 50, 5), ("b", 53, 5), ("end", 51, 1)]
    sums = [0, 0, 0]
    for live, first, last in intervals(program, lines):
        for place in range(first, last + 1):
            sums[place] += live.bytes
    assert sums == [line.bytes for line in lines]


def test_who_runs_a_step_by_default_has_a_curve_and_programs_have_none() -> None:
    answer = lc.memory("gpt2", seq_len=16)
    assert answer.engine == "eager"
    assert curve(answer).peak == max(moment.bytes for moment in answer.curve) == answer.peak
    passes = list(dict.fromkeys(line.macro_operation for line in curve(answer).lines))
    assert passes[:2] == ["forward", "backward"]
    with pytest.raises(lc.InputError, match="no memory by line"):
        curve(lc.memory("gpt2", seq_len=16, engine="numpy", num_hidden_layers=1))


def test_brackets_say_how_often_lines_run() -> None:
    memory_curve = curve(lc.memory("t5-small", engine="graph", seq_len=8, n_enc=2, n_dec=4))
    assert [bracket.title for bracket in memory_curve.brackets] == [
        "one encoder block, runs 2 ×", "one block, runs 4 ×", "one block, runs 4 ×", "one encoder block, runs 2 ×"
    ]  # fmt: skip
    for bracket in memory_curve.brackets:
        assert {line.iterations for line in memory_curve.lines[bracket.first : bracket.last + 1]} == {
            bracket.iterations
        }
    mixed = curve(lc.memory("gemma-3-1b", engine="graph", seq_len=8))
    assert {bracket.title.partition(" run ")[0] for bracket in mixed.brackets} == {"these lines"}  # six kinds in a turn


def test_a_weight_is_there_throughout_and_a_value_of_the_forward_pass_until_it_is_read() -> None:
    memory_curve = curve(lc.memory("gpt2", engine="graph", **SMALL))
    last = len(memory_curve.lines) - 1
    weights = [array for array in memory_curve.arrays if array.kind == "weights"]
    assert {(weight.first, weight.last) for weight in weights} == {(0, last)}
    assert sum(weight.bytes for weight in weights) == 4 * lc.cost("gpt2", **SMALL).parameters
    head = [place for place, line in enumerate(memory_curve.lines) if line.layer == "head"]
    (scores,) = [array for array in memory_curve.arrays if array.name == "P" and array.layer == "head"]
    assert (scores.shape, scores.bytes) == ((1, 32, 50257), 4 * 32 * 50257)
    assert scores.first == head[1]
    assert memory_curve.lines[scores.last].macro_operation == "backward"


@pytest.mark.parametrize("plan", [None, "none"])
@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "t5-small"])
def test_a_roofline_has_every_second_and_every_operation_once(model: str, plan: str | None) -> None:
    answer = lc.cost(model, by="equation", on="A100-SXM-40GB", seq_len=64, plan=plan)
    lines_roof = roofline(answer)
    assert sum(point.seconds for point in lines_roof.points) + lines_roof.outside == pytest.approx(
        lines_roof.seconds, rel=1e-12
    )
    assert lines_roof.seconds == lc.cost(model, on="A100-SXM-40GB", seq_len=64, plan=plan).timing.seconds
    if plan:  # fused attention computes visible blocks alone, and scores once more
        assert sum(point.flops for point in lines_roof.points) == answer.total.flops  # those inside of kernels too
    for point in lines_roof.points:
        roof = min(lines_roof.peak, point.intensity * lines_roof.roofs[0].bandwidth)
        assert 0 <= point.speed <= roof * (1 + 1e-9)
    inside = [name for point in lines_roof.points for name in point.inside]
    guests = [row for row in answer.rows if row.time is None]
    assert sorted(inside) == sorted(f"{row.layer}.{row.line}" for row in guests)
    assert sum(lines_roof.limits.values()) + lines_roof.outside == pytest.approx(lines_roof.seconds, rel=1e-12)


def test_a_roofline_needs_lines_and_a_device() -> None:
    with pytest.raises(lc.InputError, match="requires lines on a device"):
        roofline(lc.cost("gpt2", seq_len=8, on="A100-SXM-40GB"))
    with pytest.raises(lc.InputError, match="requires lines on a device"):
        roofline(lc.cost("gpt2", seq_len=8, by="equation"))


def test_a_bridge_leads_from_any_book_to_any_other_to_the_unit() -> None:
    answer = lc.conventions("gpt2", seq_len=48)
    books = [convention.book.name for convention in answer.conventions if convention.counts]
    for start, end in zip(books, [*books[1:], books[0]], strict=True):
        bridge_found = bridge(answer, start, end)
        amounts = [answer[name].counts.whole.flops for name in (start, end)]
        assert [bridge_found.start.amount, bridge_found.end.amount] == amounts
        assert bridge_found.start.amount + sum(item.amount for item in bridge_found.items) == bridge_found.end.amount
        assert sum(item.amount for item in bridge_found.drawn) == sum(item.amount for item in bridge_found.items)
        low, high = bridge_found.reach
        assert low <= min(amounts) <= max(amounts) <= high
    with pytest.raises(lc.InputError, match="no number of t5-small"):
        bridge(lc.conventions("t5-small", seq_len=8), "run", "palm")


@pytest.mark.parametrize("along", ["length", "batch", "depth", "width"])
def test_growth_is_what_the_command_says_at_other_sizes(along: str) -> None:
    answer = lc.compare("decoder", "bp,pepita", seq_len=16, **DECODER)
    growth_found = growth(answer, along)
    flags = {
        "length": lambda size: {"seq_len": size},
        "batch": lambda size: {"seq_len": 16, "batch_size": size},
        "depth": lambda size: {"seq_len": 16, "num_hidden_layers": size},
        "width": lambda size: {
            "seq_len": 16, "hidden_size": size, "num_attention_heads": size // 4, "intermediate_size": 20 * size // 12
        },
    }[along]  # fmt: skip
    assert growth_found.here in growth_found.places
    for place in {
        growth_found.places[0],
        growth_found.places[len(growth_found.places) // 2],
        growth_found.places[-1],
        growth_found.here,
    }:
        for series in growth_found.series:
            flops = lc.cost("decoder", series.procedure, **(DECODER | flags(place))).total.flops
            assert series.totals[growth_found.places.index(place)] == flops
    bp, pepita = growth_found.series
    assert pepita.ratios == tuple(total / other for total, other in zip(pepita.totals, bp.totals, strict=True))


def test_crossings_are_those_of_compare_and_lie_where_the_totals_cross() -> None:
    answer = lc.compare("gpt2", "bp,pepita")
    growth_found = growth(answer)
    (crossing,) = growth_found.crossings
    assert (crossing.at, crossing.cheaper, crossing.dearer, crossing.beyond_positions) == (4229, "pepita", "bp", True)
    for seq_len, cheaper in ((crossing.at - 1, False), (crossing.at, True)):
        near = lc.compare("gpt2", "bp,pepita", seq_len=seq_len, max_position_embeddings=seq_len)
        assert (near.ratio("pepita") < 1) is cheaper
    assert "4,229" in growth_found.finding
    assert "beyond the 1,024" in growth_found.finding


def test_growth_of_a_model_with_several_kinds_of_blocks_has_the_depths_that_it_can_have() -> None:
    answer = lc.compare("gemma-3-1b", "bp", seq_len=8)
    growth_found = growth(answer, "depth")
    assert growth_found.places[:2] == (13, 19)  # 6 is one turn of six, and nothing is left for the second repeat
    for place in growth_found.places[:3]:
        flops = lc.cost("gemma-3-1b", seq_len=8, num_hidden_layers=place).total.flops
        assert growth_found.series[0].totals[growth_found.places.index(place)] == flops


def test_the_width_takes_along_what_is_as_wide() -> None:
    grown = growth(lc.compare("opt-125m", "bp", seq_len=8), "width")
    wider = {"hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144, "word_embed_proj_dim": 1536}
    expected = lc.cost("opt-125m", seq_len=8, **wider).total.flops
    assert grown.series[0].totals[grown.places.index(1536)] == expected


def test_procedures_have_the_passes_of_compare_and_the_peaks_of_memory() -> None:
    answer = lc.compare("gpt2", **SMALL)
    peaks = {name: lc.memory("gpt2", name, engine="graph", **SMALL) for name in answer.procedures}
    procedures_found = procedures(answer, peaks)
    assert [procedure.name for procedure in procedures_found.procedures] == list(answer.procedures)
    for procedure in procedures_found.procedures:
        cost = lc.cost("gpt2", procedure.name, **SMALL)
        assert sum(pass_.flops for pass_ in procedure.passes) == procedure.flops == cost.total.flops
        assert procedure.peak == lc.memory("gpt2", procedure.name, engine="graph", **SMALL).peak
        assert procedure.ratio["flops"] == procedure.flops / procedures_found.procedures[0].flops
    assert {pass_.macro_operation for pass_ in procedures_found.procedures[1].passes} >= {"recomputation"}


ASKED_FOR: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "gpt2",
        {"batch_size": 2, "optimizer": "sgd", "dropout": 0.1, "train": ["head", "biases"], "precision": "bf16-true"},
    ),
    (
        "gpt2",
        {
            "lora": "c_attn,c_proj",
            "lora_rank": np.int64(2),
            "lora_alpha": 4.0,
            "dora": True,
            "train_layers": "last 1",
            "dtype": "bf16-masters",
        },
    ),
    ("gpt2", {"procedure": "decode", "context": 5, "on": "A100-SXM-40GB"}),
    (
        "gpt2",
        {
            "on": "A100-SXM-40GB",
            "engine": "eager",
            "optimizer_implementation": "foreach",
            "module": "transformers",
            "loss": "liger",
            "procedure": "recompute",
            "checkpoint_every": 2,
            "lora": "c_attn",
            "lora_dropout": 0.1,
            "offload": "optimizer",
        },
    ),
    ("gpt2", {"plan": "fused", "tie_word_embeddings": False, "activation": "relu"}),
    (
        "t5-small",
        {
            "procedure": "pepita",
            "price_book": "paper",
            "num_hidden_layers": None,
            "num_layers": np.int64(1),
            "target_len": "4",
        },
    ),
)


def test_command_and_call_of_a_document_ask_for_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a reader's model; echo"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 24, "n_head": 2}))
    names = {
        "model",
        "side_by_side",
        "accumulate",
        "clip",
        "page_size",
    }  # what stands beside the step, and what only its memory depends on, are no setting of a cost
    by_table = document("gpt2", **SMALL, engine="graph")
    by_autograd = document("gpt2", **SMALL, engine="eager", module="plain", side_by_side="bp,skip")  # no device has it
    assert [each["name"] for each in by_autograd["compared"]["procedures"]] == ["bp", "skip"]
    assert by_table["command"].replace("graph", "eager") == by_autograd["command"]
    assert by_table["python"].replace("graph", "eager") == by_autograd["python"]
    assert by_table["memory"]["engine"] != by_autograd["memory"]["engine"]
    for model, more in (*ASKED_FOR, (str(folder), {"num_hidden_layers": None})):
        sizes = {name: value for name, value in (SMALL | more).items() if value is not None}
        shown = document(model, **sizes)
        assert main([*shlex.split(shown["command"])[1:], "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        called = eval(shown["python"], {"lc": lc})  # the text is the test's own
        assert called.to_dict() == printed
        assert printed["total"]["flops"] == lc.cost(model, **sizes).total.flops == int(shown["totals"]["flops"])
        names |= sizes.keys()
    assert {flag.name for flag in flags_of(document) if flag.how != "flags"} <= names
