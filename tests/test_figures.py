"""Figures, notebooks and pictures on a terminal: files that say what they rest on, labels that can be read."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

import learncost as lc
from learncost.cli.command import main
from learncost.viz import terminal
from learncost.viz.data.curve import curve
from learncost.viz.data.roofline import roofline
from learncost.viz.figures import FIGURES
from learncost.viz.figures.make import DPI
from learncost.viz.figures.rows import ROWS
from learncost.viz.figures.style import PASSES, WIDTHS

DECODER = {
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": 30,
}


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
    assert FIGURES.keys() == {name for name, row in ROWS.items() if row.ask}


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize(("ending", "columns"), [("pdf", 2), ("svg", 1), ("png", 1)])
def test_a_figure_is_a_file_that_says_what_it_rests_on(
    kind: str, ending: str, columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a.{ending}"
    serif = " --serif" if ending == "svg" else ""
    ops = f"figure {kind} {COMMANDS[kind]} --seq-len 32 --columns {columns}{serif} --data -o {path}".split()
    assert main(ops) == 0
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
        fonts = {text.attrib["style"] for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert all("STIXGeneral" in font for font in fonts)
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


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_numbers_beside_a_figure_are_not_written_over_what_is_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    assert main(["figure", "procedures", "gpt2", "--seq-len", "32", "--data", "-o", str(tmp_path / "a.svg")]) == 2
    assert f"{name} is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", ["numbers.csv", "numbers.json", "a.json"])
def test_a_path_after_data_is_told_where_numbers_go(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    assert main(["figure", "procedures", "gpt2", "--data", name, "-o", "a.svg"]) == 2
    assert f"--data takes no path, so {name} would be a model" in capsys.readouterr().err


def test_numbers_of_a_figure_are_written_again(tmp_path: Path) -> None:
    ops = ["figure", "procedures", "gpt2", "--data", "-o", str(tmp_path / "a.svg"), "--seq-len"]
    assert [main([*ops, length]) for length in ("32", "16")] == [0, 0]
    assert "--seq-len 16" in json.loads((tmp_path / "a.json").read_text())["command"]


def test_a_roofline_is_of_the_lines_where_the_time_of_the_kernels_is_known() -> None:
    answer = lc.cost("gpt2", by="equation", on="A100-SXM-40GB", n_layer=1, seq_len=64, engine="eager")
    assert answer.recorded is not None
    data = roofline(answer)
    assert sum(point.seconds for point in data.points) + data.outside == pytest.approx(data.seconds)
    assert data.seconds != answer.time
    assert data.of_kernels == answer.recorded.sentence


@pytest.mark.parametrize("columns", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_texts_of_a_figure_lie_in_it_and_not_on_each_other(columns: int, tmp_path: Path) -> None:
    for answer, kinds in (
        (lc.compare("gpt2"), ("procedures", "crossover")),
        (lc.memory("t5-small", engine="graph"), ("memory",)),
        (lc.conventions("gpt2"), ("conventions",)),
        (lc.cost("gpt2", by="equation", on="A100-SXM-40GB"), ("roofline", "macro-operations")),
    ):
        for kind in kinds:
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
    ("ops", "message"),
    [
        ("pie gpt2 -o a.pdf", "no figure is called 'pie'"),
        ("memory -o a.pdf", "requires MODEL"),
        ("memory gpt2 -o a.gif", "a figure ends in .pdf, .svg or .png"),
        ("memory gpt2", "needs --output"),
        ("memory gpt2 -o no/such/a.pdf", "no folder"),
        ("memory gpt2 -o a.pdf --columns 3", "columns must be 1 or 2"),
        ("conventions gpt2 -o a.pdf --on A100-SXM-40GB", "a figure of conventions has no --on"),
        ("conventions gpt2 -o a.pdf --procedure bp", "a figure of conventions has no --procedure"),
        ("memory gpt2 -o a.pdf --price-book run", "a figure of memory has no --price-book"),
        ("roofline gpt2 -o a.pdf", "requires a device: --on NAME"),
        ("scaling gpt2 -o a.pdf --along height", "no size to grow along is called 'height'"),
        ("memory gpt2 -o a.pdf --engine torch", "no memory by line"),
    ],
)
def test_what_is_wrong_with_a_figure_is_one_line(
    ops: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figure", *ops.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
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
    ledger = lc.cost("llama-3.1-8b", price_book="paper", batch_size=64, seq_len=131072)
    for frame in (ledger.to_polars(), ledger.to_pandas()):
        assert list(frame["maccs"]) == [row.maccs for row in ledger.rows]
        assert sum(map(int, frame["flops"])) == ledger.total.flops > 2**63
    answer = lc.memory("gpt2", engine="graph", seq_len=8)
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
        assert thing.to_pandas().shape == thing.to_polars().shape, type(thing)
        assert len(thing.to_polars()), type(thing)
    priced = lc.price(linear, sizes)
    assert (sum(priced.to_pandas()["flops"]), sum(priced.to_polars()["bytes"])) == (priced.flops, priced.bytes)
    assert "<math" in linear._repr_html_()
    assert '<td style="text-align:right">48</td>' in lc.price(linear, sizes)._repr_html_()  # 2 x 1 x 2 x 3 x 4 FLOPs


def test_a_notebook_sees_a_picture_over_the_table_where_it_says_more() -> None:
    for answer in (lc.memory("gpt2", seq_len=8), lc.compare("gpt2", "bp,pepita", seq_len=8)):
        bundle = answer._repr_mimebundle_()
        assert bundle["text/html"].startswith("<img alt=")
        assert answer._repr_html_() in bundle["text/html"]
        assert bundle["text/plain"] == str(answer)
    assert lc.cost("gpt2", seq_len=8).plot()._repr_png_().startswith(b"\x89PNG")


# Terminal.


def on_a_terminal(ops: str, monkeypatch: pytest.MonkeyPatch) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(ops.split()) == 0
    return screen.getvalue()


PLOTS = (
    "memory gpt2 --seq-len 64",
    "memory gpt2 --seq-len 64 --engine graph --procedure mempepita",
    "compare gpt2 --procedure bp,pepita",
    "complexity --hidden-size 64",
)


@pytest.mark.parametrize("ops", PLOTS)
def test_a_terminal_has_the_picture_and_a_pipe_nothing_of_it(
    ops: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ops.split(), "--plot"]) == 0
    piped = capsys.readouterr().out
    assert main(ops.split()) == 0
    assert piped == capsys.readouterr().out
    with monkeypatch.context() as patch:
        screen = on_a_terminal(f"{ops} --plot", patch)
    assert max(map(len, screen.split("\n"))) <= 80
    drawn = [line for line in screen.split("\n") if re.search("[⠁-⣿█▒░]", line)]
    assert len(drawn) >= 12


@pytest.mark.parametrize(
    ("ops", "reason"),
    [("complexity", "this figure requires sizes"), ("compare vit-b-16", "vit-b-16 reads 197 positions")],
)
def test_an_answer_without_a_picture_says_why_below_it(
    ops: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ops.split()) == 0
    piped = capsys.readouterr().out
    with monkeypatch.context() as patch:
        screen = on_a_terminal(f"{ops} --plot", patch)
    assert screen.split()[: len(piped.split())] == piped.split()
    assert f"No picture: {reason}" in screen


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ("crossover vit-b-16", "reads 197 positions"),
        ("scaling vit-b-16 --along length", "reads 197 positions"),
        ("crossover resnet-18", "resnet-18 has no sequence length"),
        ("scaling resnet-18 gpt2 --along length", "resnet-18 has no sequence length"),
    ],
)
def test_no_figure_is_drawn_over_a_length_that_a_model_does_not_have(
    ops: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", *ops.split(), "-o", str(tmp_path / "a.svg")]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["memory", "conventions"])
def test_numbers_larger_than_64_bits_are_drawn(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    assert main(["figure", kind, "gpt2", "--batch-size", "1000000000000", "-o", str(path)]) == 0
    assert path.stat().st_size


def test_the_picture_of_memory_is_as_high_as_its_bytes() -> None:
    answer = lc.memory("gpt2", engine="graph", seq_len=1024)
    rows = terminal.plot(answer, 80).split("\n")[1 : terminal.HIGH + 1]
    heights = [sum(line[8:].ljust(80)[column] != " " for line in rows) for column in range(max(map(len, rows)) - 8)]
    data = curve(answer)
    for column, height in enumerate(heights):
        first, last = (int(len(data.lines) * place / len(heights)) for place in (column, column + 1))
        most = max(line.bytes for line in data.lines[first : max(first + 1, last)])
        assert abs(height - terminal.HIGH * most / data.peak) <= 1.05


def test_lines_of_dots_stand_where_their_values_are() -> None:
    x, y = terminal.PlotAxis(1, 1024, True, str), terminal.PlotAxis(0, 100, False, str)
    places = [2**power for power in range(11)]
    line = terminal.CurveLine("up", tuple(places), tuple(10.0 * n for n in range(11)))
    drawn_lines = list(terminal.lines([line], x, y, 60, "title", "below"))
    rows = [line for line in drawn_lines if any("⠀" < letter <= "⣿" for letter in line)]
    starts = [next(place for place, letter in enumerate(line) if "⠀" < letter <= "⣿") for line in rows]
    assert starts == sorted(starts, reverse=True)  # a straight line, from the lower left to the upper right
    assert drawn_lines[1].endswith(" up")


def test_losses_are_cut_above_where_they_began(tmp_path: Path) -> None:
    losses = [4.0, 3.0, 50.0, 2.0, 1.0]
    log = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses, 1))
    Path(tmp_path, "metrics.jsonl").write_text(log)
    Result = type("TrainingResult", (), {"folder": tmp_path})
    plot = terminal.plot(Result(), 60)
    assert "to 50 above" in plot
    assert plot.split("\n")[1].split()[0] == "4.4"
    assert max(map(len, plot.split("\n"))) <= 60


def test_letters_alone_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lc.InputError, match="this figure requires sizes: give hidden_size"):
        terminal.plot(lc.complexity())


def test_a_table_without_lengths_says_its_own_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path(__file__).parent.parent / "examples" / "layers" / "mixer.table"
    sizes = "--B 8 --s 4 --c 6 --f 5"
    for kind in ("procedures", "conventions"):
        assert main(f"figure {kind} {table} {sizes} -o {tmp_path / kind}.svg".split()) == 0
        assert "B = 8" in (printed := " ".join(capsys.readouterr().out.split()))
        assert "1 token" not in printed + (tmp_path / f"{kind}.svg").read_text()
