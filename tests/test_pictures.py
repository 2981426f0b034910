"""The data behind pictures: no picture says another number than the commands do."""

from __future__ import annotations

import csv
import io
import itertools
import json
import pkgutil
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

import learncost as lc
from learncost.faces.command import main
from learncost.pictures import figures, terminal
from learncost.pictures.data.bridge import bridge
from learncost.pictures.data.curve import curve
from learncost.pictures.data.growth import growth
from learncost.pictures.data.procedures import procedures
from learncost.pictures.data.roofline import roofline
from learncost.pictures.figures import FIGURES
from learncost.pictures.figures.make import DPI
from learncost.pictures.figures.style import PASSES, WIDTHS
from learncost.schedule.log import Log

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
    ("gpt2", {"plan": "head,at-once", "batch_size": 3}),
    ("gpt2", {"batch_size": 4, "accumulate": 2}),
    ("llama-3.1-8b", {"precision": "qlora", "lora": "q_proj,v_proj"}),
    ("mixtral-8x7b", {"dtype": "bf16"}),
    ("bert-base", {"dropout": 0.1}),
    ("t5-small", {"n_enc": 2, "n_dec": 4, "target_len": 9, "num_hidden_layers": None}),
    ("whisper-tiny", {"seq_len": None, "num_hidden_layers": None, "target_len": 9}),
    ("vit-base-patch16-224", {"seq_len": None, "num_hidden_layers": 7}),
    ("gemma-3-1b", {"num_hidden_layers": 26, "seq_len": 16}),
    ("gpt2", {"engine": "autograd"}),
    ("gpt2", {"engine": "autograd-foreach", "procedure": "recompute", "batch_size": 2}),
    ("gpt2", {"engine": "autograd", "procedure": "recompute", "module": "transformers-reentrant"}),
    ("t5-small", {"engine": "autograd-in-backward", "n_enc": 2, "n_dec": 4, "num_hidden_layers": None}),
    ("bert-base", {"engine": "autograd-for-loop", "precision": "bf16"}),
]


@pytest.mark.parametrize(("model", "asked"), STEPS, ids=[f"{name} {asked}" for name, asked in STEPS])
def test_the_arrays_at_every_line_sum_to_the_curve_and_its_top_is_the_peak(model: str, asked: dict) -> None:
    sizes = {name: value for name, value in (SMALL | asked).items() if value is not None}
    answer = lc.memory(model, **({"engine": "table"} | sizes))
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
    if answer.engine == "table":  # autograd's account says what an array becomes: a gradient from its first moment on
        assert {name: size for name, size in parts.items() if size} == {k: v for k, v in answer.split.items() if v}
    assert sum(array.bytes for array in memory_curve.alive(memory_curve.peak_at)) == answer.peak
    assert json.loads(json.dumps(memory_curve.to_dict()))["peak"] == json.loads(answer.show("json"))["peak"]


def test_arrays_of_the_peak_are_the_witnesses_found_otherwise() -> None:
    answer = lc.memory("gpt2", engine="table", **SMALL)
    at_peak = Counter[str]()
    for witness in curve(answer).alive(curve(answer).peak_at):
        at_peak[witness.name] += witness.bytes
    witnesses = Counter[str]()
    for witness in answer.witnesses:
        witnesses[witness.name.rstrip("*")] += witness.bytes
    assert {name: size for name, size in at_peak.items() if name != "optimizer state"} == dict(witnesses)


def test_a_fold_keeps_the_worst_of_every_turn() -> None:
    log = Log()
    level = 0
    for turn in range(5):
        for label, size in (("a", 10), ("b", 3 + turn % 2)):
            level += size
            log.take(10 * turn + ord(label), size, label, level)
        level -= 3 + turn % 2
        log.give(10 * turn + ord("b"), "b", level)
    level += 1
    log.take(1000, 1, "end", level)
    lines = log.lines()
    assert [(line.label, line.bytes, line.turns) for line in lines] == [("a", 50, 5), ("b", 53, 5), ("end", 51, 1)]
    sums = [0, 0, 0]
    for array, first, last in log.stays(lines):
        for place in range(first, last + 1):
            sums[place] += array.bytes
    assert sums == [50, 53, 51]


def test_who_runs_a_step_by_default_has_a_curve_and_programs_have_none() -> None:
    answer = lc.memory("gpt2", seq_len=16)
    assert answer.engine == "autograd"
    assert curve(answer).peak == max(moment.bytes for moment in answer.curve) == answer.peak
    passes = list(dict.fromkeys(line.macro_operation for line in curve(answer).lines))
    assert passes[:2] == ["forward", "backward"]
    with pytest.raises(lc.InputError, match="no account of every line"):
        curve(lc.memory("gpt2", seq_len=16, engine="numpy", num_hidden_layers=1))


def test_brackets_say_how_often_lines_run() -> None:
    memory_curve = curve(lc.memory("t5-small", engine="table", seq_len=8, n_enc=2, n_dec=4))
    assert [bracket.title for bracket in memory_curve.brackets] == [
        "one encoder block, runs 2 ×", "one block, runs 4 ×", "one block, runs 4 ×", "one encoder block, runs 2 ×"
    ]  # fmt: skip
    for bracket in memory_curve.brackets:
        assert {line.turns for line in memory_curve.lines[bracket.first : bracket.last + 1]} == {bracket.turns}
    mixed = curve(lc.memory("gemma-3-1b", engine="table", seq_len=8))
    assert {bracket.title.partition(" run ")[0] for bracket in mixed.brackets} == {"these lines"}  # six kinds in a turn


def test_a_weight_is_there_throughout_and_a_value_of_the_forward_pass_until_it_is_read() -> None:
    memory_curve = curve(lc.memory("gpt2", engine="table", **SMALL))
    last = len(memory_curve.lines) - 1
    weights = [array for array in memory_curve.arrays if array.kind == "weights"]
    assert {(weight.first, weight.last) for weight in weights} == {(0, last)}
    assert sum(weight.bytes for weight in weights) == 4 * lc.cost("gpt2", **SMALL).parameters
    head = [place for place, line in enumerate(memory_curve.lines) if line.layer == "head"]
    (scores,) = [array for array in memory_curve.arrays if array.name == "P" and array.layer == "head"]
    assert (scores.shape, scores.bytes) == ((1, 32, 50257), 4 * 32 * 50257)
    assert scores.first == head[1]
    assert memory_curve.lines[scores.last].macro_operation == "backward"


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "t5-small"])
def test_a_roofline_has_every_second_and_every_operation_once(model: str) -> None:
    answer = lc.cost(model, by="equation", on="A100-SXM-40GB", seq_len=64)
    lines_roof = roofline(answer)
    assert sum(point.seconds for point in lines_roof.points) + lines_roof.beside == pytest.approx(
        lines_roof.seconds, rel=1e-12
    )
    assert lines_roof.seconds == lc.cost(model, on="A100-SXM-40GB", seq_len=64).timing.seconds
    assert sum(point.flops for point in lines_roof.points) == answer.total.flops  # those inside of kernels too
    for point in lines_roof.points:
        roof = min(lines_roof.peak, point.intensity * lines_roof.roofs[0].bandwidth)
        assert 0 <= point.speed <= roof * (1 + 1e-9)
    inside = [name for point in lines_roof.points for name in point.inside]
    guests = [row for row in answer.rows if row.seconds is None]
    assert sorted(inside) == sorted(f"{row.layer}.{row.line}" for row in guests)
    assert sum(lines_roof.limits.values()) + lines_roof.beside == pytest.approx(lines_roof.seconds, rel=1e-12)


def test_a_roofline_needs_lines_and_a_device() -> None:
    with pytest.raises(lc.InputError, match="every line on a device"):
        roofline(lc.cost("gpt2", seq_len=8, on="A100-SXM-40GB"))
    with pytest.raises(lc.InputError, match="every line on a device"):
        roofline(lc.cost("gpt2", seq_len=8, by="equation"))


@pytest.mark.parametrize("quantity", ["flops", "maccs"])
@pytest.mark.parametrize("part", ["whole", "forward"])
def test_a_bridge_leads_from_any_book_to_any_other_to_the_unit(quantity: str, part: str) -> None:
    answer = lc.conventions("gpt2", seq_len=48)
    books = [convention.book.name for convention in answer.conventions if convention.counts]
    for start, end in zip(books, [*books[1:], books[0]], strict=True):
        bridge_found = bridge(answer, start, end, quantity, part)
        amounts = [getattr(getattr(answer[name].counts, part), quantity) for name in (start, end)]
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
    near = growth(answer, places=[crossing.at - 1, crossing.at])
    assert [ratio < 1 for ratio in near.series[1].ratios] == [False, True]
    assert "4,229" in growth_found.finding
    assert "beyond the 1,024" in growth_found.finding
    assert growth(answer, price_book="paper", quantity="maccs").crossings[0].at == 598


def test_growth_of_a_model_with_several_kinds_of_blocks_has_the_depths_that_it_can_have() -> None:
    answer = lc.compare("gemma-3-1b", "bp", seq_len=8)
    growth_found = growth(answer, "depth", places=[12, 13, 20])
    assert growth_found.places == (13, 20)  # 12 are two turns of six, and nothing is left for the second repeat
    for place in growth_found.places:
        flops = lc.cost("gemma-3-1b", seq_len=8, num_hidden_layers=place).total.flops
        assert growth_found.series[0].totals[growth_found.places.index(place)] == flops


def test_the_width_takes_along_what_is_as_wide() -> None:
    found = growth(lc.compare("opt-125m", "bp", seq_len=8), "width")
    wider = {"hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144, "word_embed_proj_dim": 1536}
    told = lc.cost("opt-125m", seq_len=8, **wider).total.flops
    assert found.series[0].totals[found.places.index(1536)] == told


def test_procedures_have_the_passes_of_compare_and_the_peaks_of_memory() -> None:
    answer = lc.compare("gpt2", **SMALL)
    peaks = {name: lc.memory("gpt2", name, engine="table", **SMALL) for name in answer.procedures}
    procedures_found = procedures(answer, peaks)
    assert [procedure.name for procedure in procedures_found.procedures] == list(answer.procedures)
    for procedure in procedures_found.procedures:
        cost = lc.cost("gpt2", procedure.name, **SMALL)
        assert sum(pass_.flops for pass_ in procedure.passes) == procedure.flops == cost.total.flops
        assert procedure.peak == lc.memory("gpt2", procedure.name, engine="table", **SMALL).peak
        assert procedure.ratio["flops"] == procedure.flops / procedures_found.procedures[0].flops
    assert {pass_.macro_operation for pass_ in procedures_found.procedures[1].passes} >= {"recomputation"}
    assert procedures(answer, price_book="paper").procedures[0].flops == answer.costs["paper"]["bp"].total.flops


# Figures.

COMMANDS = {
    "macro-operations": "gpt2 t5-small --procedure bp,recompute",
    "scaling": "gpt2 --procedure bp,pepita",
    "crossover": "gpt2",
    "memory": "gpt2 --procedure pepita",
    "roofline": "mixtral-8x7b --on A100-SXM-40GB",
    "procedures": "gpt2",
    "conventions": "gpt2 --price-book paper",
}


def test_every_kind_of_figure_is_tried() -> None:
    assert COMMANDS.keys() == FIGURES.keys()
    assert {name.replace("-", "_") for name in FIGURES} <= {
        module.name for module in pkgutil.iter_modules(figures.__path__)
    }


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize(("ending", "columns"), [("pdf", 2), ("svg", 1), ("png", 1)])
def test_a_figure_is_a_file_that_says_what_it_rests_on(
    kind: str, ending: str, columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a.{ending}"
    words = f"figure {kind} {COMMANDS[kind]} --seq-len 32 --columns {columns} --data -o {path}".split()
    assert main(words) == 0
    assert str(path) in "".join(capsys.readouterr().out.split("\n"))
    width = WIDTHS[columns]
    data = path.read_bytes()
    if ending == "pdf":
        text = data.decode("latin1")
        box = re.search(r"/MediaBox \[ 0 0 ([0-9.]+) ([0-9.]+) \]", text)
        assert float(box[1]) == pytest.approx(72 * width, abs=0.01)
        assert "/Title" in text
        assert "/Subject" in text
        assert f"learncost figure {kind}" in text
        assert "/Type3" not in text  # publishers want embedded TrueType
    elif ending == "svg":
        root = ElementTree.fromstring(data)
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * width, abs=0.01)
        text_drawn = " ".join(root.itertext())
        assert f"learncost figure {kind}" in text_drawn
        assert "gpt2" in text_drawn or "mixtral-8x7b" in text_drawn
    else:
        with Image.open(path) as image:
            assert image.size[0] == pytest.approx(DPI * width, abs=1)
            assert image.text["Source"].startswith(f"learncost figure {kind}")
            assert image.text["Description"]
            assert image.convert("L").getextrema()[0] < 60
    answer = json.loads(path.with_suffix(".json").read_text())
    assert answer["command"].startswith(f"learncost figure {kind}")
    assert answer["panels"]
    with path.with_suffix(".csv").open() as table:
        assert len(list(csv.DictReader(table))) > 1
    assert not list(tmp_path.glob("*.partial"))


def test_texts_of_a_figure_lie_in_it_and_not_on_each_other(tmp_path: Path) -> None:
    for answer, kinds in (
        (lc.compare("gpt2"), ("procedures", "crossover")),
        (lc.memory("t5-small", engine="table"), ("memory",)),
        (lc.conventions("gpt2"), ("conventions",)),
        (lc.cost("gpt2", by="equation", on="A100-SXM-40GB"), ("roofline", "macro-operations")),
    ):
        for kind in kinds:
            for columns in (1, 2):
                figure = answer.plot(kind, columns)
                figure.savefig(io.BytesIO(), format="png", dpi=72)
                bbox, boxes, away = figure.bbox, [], set()
                for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
                    low, high = sorted(axis.get_view_interval())
                    away |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
                for text in figure.findobj(Text):
                    if not text.get_text().strip() or not text.get_visible() or id(text) in away:
                        continue
                    box = text.get_window_extent()
                    if box.width < 1 or text.get_rotation():
                        continue
                    inside = box.x0 >= -2 and box.x1 <= bbox.x1 + 2 and box.y0 >= -2 and box.y1 <= bbox.y1 + 2
                    assert inside, (kind, columns, text.get_text())
                    boxes.append((text.get_text(), box.padded(-1.5)))
                for place, (text, box) in enumerate(boxes):
                    for other, beside in boxes[:place]:
                        assert not box.overlaps(beside), (kind, columns, text, other)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pie gpt2 -o a.pdf", "no figure is called 'pie'"),
        ("memory -o a.pdf", "needs MODEL"),
        ("memory gpt2 -o a.gif", "a figure ends in .pdf, .svg or .png"),
        ("memory gpt2", "needs --output"),
        ("memory gpt2 -o no/such/a.pdf", "no folder"),
        ("memory gpt2 -o a.pdf --columns 3", "columns must be 1 or 2"),
        ("memory gpt2 -o a.pdf --on A100-SXM-40GB", "a figure of memory has no --on"),
        ("conventions gpt2 -o a.pdf --procedure bp", "a figure of conventions has no --procedure"),
        ("roofline gpt2 -o a.pdf", "give --on NAME"),
        ("scaling gpt2 -o a.pdf --along height", "no size to grow along is called 'height'"),
        ("memory gpt2 -o a.pdf --engine torch", "no account of every line"),
    ],
)
def test_what_is_wrong_with_a_figure_is_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figure", *words.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(lc.InputError, match=r"pip install 'learncost\[figures\]'"):
        lc.compare("gpt2", "bp", seq_len=8).plot()
    assert "<table" in lc.compare("gpt2", "bp", seq_len=8)._repr_mimebundle_()["text/html"]


def test_colours_stay_apart_in_grey() -> None:
    greys = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (to_rgb(look.fill) for look in PASSES.values()))
    assert all(high - low > 0.03 for low, high in itertools.pairwise(greys))


def test_answers_are_frames_with_whole_numbers() -> None:
    ledger = lc.cost("llama-3.1-8b", price_book="paper", batch_size=64)
    for frame in (ledger.to_polars(), ledger.to_pandas()):
        assert list(frame["maccs"]) == [row.maccs for row in ledger.rows]
        assert sum(map(int, frame["flops"])) == ledger.total.flops > 2**63
    answer = lc.memory("gpt2", engine="table", seq_len=8)
    assert list(answer.to_pandas()["bytes"]) == [array.bytes for array in answer.arrays]
    assert answer.to_polars().height == len(answer.arrays)
    sweep = lc.sweep("gpt2", seq_len=[128, 256])
    assert list(sweep.to_pandas()["flops"]) == list(sweep.to_polars()["flops"])
    for other in (lc.compare("gpt2", "bp"), lc.conventions("gpt2"), lc.rules("gpt2"), lc.complexity()):
        assert len(other.to_pandas()) == other.to_polars().height > 1


# Notebooks.

LINEAR = """linear(X; W b) -> Y
  H[B M f] = X[B M d] W[d f]
  Y[B M f] = H[B M f] + b[f]
"""


def test_every_public_object_shows_itself_in_a_notebook() -> None:
    linear, sizes = lc.layer(LINEAR), {"B": 1, "M": 2, "d": 3, "f": 4}
    objects = [
        linear, lc.derive(linear), lc.lower(linear.table), lc.price(linear, sizes), lc.price(linear, {"B": 1}),
        lc.live(linear, sizes), lc.book("paper"), lc.device("A100-SXM-40GB"), lc.rates("A100-SXM-40GB"),
        lc.formulas("attention"), lc.explain("attention"), *lc.errata()[:2], lc.rules("gpt2"), lc.complexity(),
        lc.Figure(3, "W", "assumed", "a guess"), lc.inference(lc.layer("attention")), lc.sweep("gpt2", seq_len=[8, 9]),
        lc.memory("gpt2", seq_len=8), lc.conventions("gpt2", seq_len=8), lc.trace("gpt2", seq_len=8, n_layer=1),
        lc.Training("decoder", max_position_embeddings=8, **DECODER),
    ]  # fmt: skip
    for thing in objects:
        html = thing._repr_html_()
        root = ElementTree.fromstring(f"<div>{html.replace('&nbsp;', ' ')}</div>")
        assert " ".join("".join(root.itertext()).split()), type(thing)
        assert "object at 0x" not in html
    assert "<math" in linear._repr_html_()
    assert '<td style="text-align:right">48</td>' in lc.price(linear, sizes)._repr_html_()  # 2 x 1 x 2 x 3 x 4 FLOPs


def test_a_notebook_sees_a_picture_over_the_table_where_it_says_more() -> None:
    for answer in (lc.memory("gpt2", seq_len=8), lc.compare("gpt2", "bp,pepita", seq_len=8)):
        shown = answer._repr_mimebundle_()
        assert shown["text/html"].startswith("<img alt=")
        assert answer._repr_html_() in shown["text/html"]
        assert shown["text/plain"] == str(answer)
    assert lc.cost("gpt2", seq_len=8).plot()._repr_png_().startswith(b"\x89PNG")


# Terminal.


def on_a_terminal(words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(words.split()) == 0
    return screen.getvalue()


PLOTS = (
    "memory gpt2 --seq-len 64",
    "memory gpt2 --seq-len 64 --engine table --procedure mempepita",
    "compare gpt2 --procedure bp,pepita",
    "complexity --hidden-size 64",
)


@pytest.mark.parametrize("words", PLOTS)
def test_a_terminal_has_the_picture_and_a_pipe_nothing_of_it(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--plot"]) == 0
    piped = capsys.readouterr().out
    assert main(words.split()) == 0
    assert piped == capsys.readouterr().out
    with monkeypatch.context() as patch:
        shown = on_a_terminal(f"{words} --plot", patch)
    assert max(map(len, shown.split("\n"))) <= 80
    drawn = [line for line in shown.split("\n") if re.search("[⠁-⣿█▒░]", line)]
    assert len(drawn) >= 12


def test_the_picture_of_memory_is_as_high_as_its_bytes() -> None:
    answer = lc.memory("gpt2", engine="table", seq_len=1024)
    rows = terminal.plot(answer, 80).split("\n")[1 : terminal.HIGH + 1]
    heights = [sum(line[8:].ljust(80)[column] != " " for line in rows) for column in range(max(map(len, rows)) - 8)]
    told = curve(answer)
    for column, height in enumerate(heights):
        first, last = (int(len(told.lines) * place / len(heights)) for place in (column, column + 1))
        most = max(line.bytes for line in told.lines[first : max(first + 1, last)])
        assert abs(height - terminal.HIGH * most / told.peak) <= 1.05


def test_lines_of_dots_stand_where_their_values_are() -> None:
    x, y = terminal.Axis(1, 1024, True, str), terminal.Axis(0, 100, False, str)
    places = [2**power for power in range(11)]
    made = list(terminal.lines([terminal.Line("up", places, [10 * n for n in range(11)])], x, y, 60, "title", "below"))
    rows = [line for line in made if any("⠀" < letter <= "⣿" for letter in line)]
    starts = [next(place for place, letter in enumerate(line) if "⠀" < letter <= "⣿") for line in rows]
    assert starts == sorted(starts, reverse=True)  # a straight line, from the lower left to the upper right
    assert made[1].endswith(" up")


def test_losses_are_cut_above_where_they_began(tmp_path: Path) -> None:
    losses = [4.0, 3.0, 50.0, 2.0, 1.0]
    log = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses, 1))
    Path(tmp_path, "metrics.jsonl").write_text(log)
    Result = type("Result", (), {"folder": tmp_path})
    shown = terminal.plot(Result(), 60)
    assert "to 50 above" in shown
    assert shown.split("\n")[1].split()[0] == "4.4"
    assert max(map(len, shown.split("\n"))) <= 60


def test_letters_alone_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lc.InputError, match="--plot needs numbers: give --hidden-size"):
        terminal.plot(lc.complexity())
