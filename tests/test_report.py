"""The report: opened from a disk in a browser, its numbers and its sliders held against the command line's."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import learncost as lc
from browsing import Watched, chromium
from learncost.cli.command import main
from learncost.devices.calibration import Calibration, save
from learncost.viz.data.curve import curve
from learncost.viz.report import Report, report
from timings import flat

DEVICE = "A100-SXM-40GB"

NOW = """(chosen) => {
  try {
    const view = viewOf(page.step, chosen), text = (value) => (typeof value === "bigint" ? String(value) : value);
    const pairs = Object.entries(view.totals).map(([name, amount]) => [name, text(amount)]);
    const totals = Object.fromEntries(pairs);
    const counted = (line) => ["maccs", "flops", "bytes"].map((name) => String(line.values[name]));
    const lines = view.lines.map((line) => [line.phase, line.layer, line.line, ...counted(line), line.values.seconds]);
    const curve = view.memory?.curve() ?? null;
    const sum = (at) => aliveAt(curve, at).reduce((all, array) => all + array.bytes, 0n);
    const memory = curve && {
      finding: findingOf(curve),
      lines: curve.lines.map((line) => [line.line, line.layer, String(line.bytes)]),
      alive: curve.lines.map((line, at) => String(sum(at))),
      kinds: Object.fromEntries(Object.entries(curve.kinds).map(([kind, sizes]) => [kind, sizes.map(Number)])),
      brackets: curve.brackets.map(({ label, iterations }) => `${label} ${grouped(exact(iterations))} ×`),
    };
    const engine = view.memory?.other?.engine ?? page.step.memory?.engine ?? null;
    const peak = view.peak === null ? null : String(view.peak);
    return { ...totals, peak, memory, lines, engine, changed: view.changed };
  } catch (error) {
    if (error instanceof NotWhole) return { refused: error.message };
    throw error;
  }
}"""
"""What the page computes of its document at chosen sizes."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened_browser:
        yield opened_browser


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "gpt2.html"
    report("gpt2", procedure="bp,pepita", on=DEVICE, output=str(path))
    return path


@pytest.fixture(scope="module")
def opened(browser: Any, gpt2: Path) -> Iterator[Watched]:
    watched = Watched(browser)
    watched.open(gpt2.as_uri())
    yield watched
    watched.page.close()


def agree(page: Any, chosen: dict[str, int], model: str, procedure: str, on: str | None, **given: Any) -> None:
    """The page's numbers at sizes are Python's: counts, bytes and the peak to the unit, time to 1e-9."""
    numbers = page.evaluate(NOW, chosen)
    try:
        step = lc.cost(model, procedure, on=on, by="equation", **{**given, **chosen})
    except lc.InputError:
        assert "refused" in numbers, chosen
        return
    assert "refused" not in numbers, (chosen, numbers)
    counts = (step.total.flops, step.total.maccs, sum(row.bytes for row in step.rows), step.parameters)
    assert tuple(int(numbers[name]) for name in ("flops", "maccs", "bytes", "parameters")) == counts, chosen
    if step.timing:
        assert numbers["seconds"] == pytest.approx(step.timing.seconds, rel=1e-9), chosen
    if numbers["peak"] is not None:
        memory_arguments = {name: value for name, value in given.items() if name != "price_book"}
        on_gpu = "cuda" if step.memory is not None and not numbers["changed"] else None
        memory_arguments |= {**chosen, "precision": given.get("precision", step.dtype), "on": on_gpu}
        engine = "graph" if numbers["changed"] else lc.memory(model, procedure, **memory_arguments).engine
        assert numbers["engine"] == engine, chosen
        needs = lc.memory(model, procedure, engine=engine, **memory_arguments)
        assert int(numbers["peak"]) == needs.peak, chosen
        if numbers["memory"]:
            drawn, levels = curve(needs), [str(moment.bytes) for moment in needs.curve]
            assert numbers["memory"]["alive"] == levels, chosen
            assert numbers["memory"]["lines"] == [[at.line, at.layer, str(at.bytes)] for at in needs.curve], chosen
            assert numbers["memory"]["kinds"] == {kind: list(sizes) for kind, sizes in drawn.kinds.items()}, chosen
            assert numbers["memory"]["finding"] == drawn.finding
            assert numbers["memory"]["brackets"] == [bracket.title for bracket in drawn.brackets]


def chosen_at_random(shown_document: dict[str, Any], rng: random.Random) -> dict[str, int]:
    """Sizes for some of the controls of a document, most of which make a model."""
    chosen = {}
    for size in shown_document["sizes"]:
        name, value = size["name"], int(size["value"])
        if not size["changes"] or rng.random() < 0.5:
            continue
        if name == "batch_size":
            chosen[name] = rng.randint(1, 9)
        elif name in ("seq_len", "target_len", "context", "vocab_size"):
            chosen[name] = rng.randint(1, value)
        elif name in ("num_hidden_layers", "n_enc", "n_dec"):
            chosen[name] = rng.randint(1, 2 * value)
        else:
            chosen[name] = value * rng.choice([1, 2, 3])
    return chosen


def given_to(page: Any) -> dict[str, Any]:
    document: dict[str, Any] = page.evaluate("({ sizes: page.step.sizes, lines: page.step.lines.length })")
    return document


def test_it_opens_from_a_disk_and_asks_for_nothing(opened: Watched) -> None:
    page = opened.page
    step = lc.cost("gpt2", on=DEVICE)
    assert page.text_content("#flops") == "881 billion FLOPs"
    assert f"{step.total.flops:,} FLOPs" in page.text_content("#exactly")
    assert f"{step.total.maccs:,} MACCs" in page.text_content("#exactly")
    ops = page.locator("nav a").all_text_contents()
    assert ops == ["cost", "procedures", "memory", "time", "conventions", "growth", "formulas"]
    page.evaluate("choose({ show: 'parameters' })")
    page.wait_for_function("page.root.value === 124439808n && page.fixed.value > 0n")
    page.evaluate("choose({ show: null })")
    assert opened.errors == []
    assert opened.requests == []


def test_every_line_is_the_command_lines(opened: Watched) -> None:
    rows = lc.cost("gpt2", on=DEVICE, by="equation").rows
    lines_shown = opened.page.evaluate(NOW, {})["lines"]
    expected = [
        [row.macro_operation, row.layer, row.line, str(row.maccs), str(row.flops), str(row.bytes)] for row in rows
    ]
    assert [line[:6] for line in lines_shown] == expected
    assert [line[6] for line in lines_shown] == pytest.approx([row.time or 0.0 for row in rows], rel=1e-9)


def test_sliders_agree_with_python(opened: Watched) -> None:
    rng = random.Random(14)
    document = given_to(opened.page)
    for _ in range(5):
        agree(opened.page, chosen_at_random(document, rng), "gpt2", "bp", DEVICE)


def test_the_slider_changes_the_sentence_and_the_address_gives_it_back(
    opened: Watched, gpt2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened.page
    page.fill('[data-control="seq_len"]', "256")
    page.press('[data-control="seq_len"]', "Enter")
    step = lc.cost("gpt2", seq_len=256)
    page.wait_for_function(f"document.getElementById('exactly').textContent.includes('{step.total.flops:,}')")
    assert "seq_len=256" in page.url
    page.select_option('[data-control="procedure"]', "pepita")
    flops = lc.cost("gpt2", "pepita", seq_len=256).total.flops
    page.wait_for_function(f"document.getElementById('exactly').textContent.includes('{flops:,}')")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    assert f"{flops:,} FLOPs" in page.text_content("#exactly")
    command = shlex.split(page.locator("footer pre").first.text_content())
    assert main([*command[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["flops"] == flops
    page.fill('[data-control="seq_len"]', "4096")
    page.press('[data-control="seq_len"]', "Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "longer than the 1,024 positions" in page.text_content("#problem")
    opened.open(gpt2.as_uri())


def test_who_drags_a_slider_holds_it_while_everything_follows(opened: Watched, gpt2: Path) -> None:
    page = opened.open(gpt2.as_uri())
    page.click("#more summary")
    slider = page.locator('[data-more="seq_len-slider"]')
    box = slider.bounding_box()
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.97 * box["width"], height)
    page.mouse.down()
    lengths = set()
    for part in (0.9, 0.7, 0.5, 0.3):
        page.mouse.move(box["x"] + part * box["width"], height)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        lengths.add(int(page.evaluate("page.state.seq_len")))
    page.mouse.up()
    assert len(lengths) == 4
    length = min(lengths)
    needs = lc.memory("gpt2", engine="graph", precision="bf16-masters", seq_len=length)
    page.wait_for_function("(peak) => String(page.view.peak) === peak", arg=str(needs.peak))
    page.evaluate("drawSections(true)")
    assert curve(needs).finding == page.text_content("#memory h2")
    opened.open(gpt2.as_uri())


FIXED_SIZES = """(chosen) => {
  choose({ ...chosen, grow: chosen.grow ?? null }, true);
  render(true);
  const marks = [...document.querySelectorAll("section .mark.fixed")];
  const said = Object.fromEntries(marks.map((mark) => [mark.closest("section").id, mark.textContent]));
  choose(Object.fromEntries(Object.keys(chosen).map((name) => [name, null])), true);
  render(true);
  return said;
}"""
"""By section what it says of the sizes that it stays at, where others are chosen."""


def test_what_no_slider_moves_says_at_which_sizes_it_stands(opened: Watched) -> None:
    page = opened.page
    assert page.evaluate(FIXED_SIZES, {}) == {}
    notices = page.evaluate(FIXED_SIZES, {"seq_len": "256"})
    assert notices.keys() == {"conventions"}  # growth over the length has all lengths
    assert notices["conventions"].endswith("It shows the sizes of the report: seq len 1,024.")
    notices = page.evaluate(FIXED_SIZES, {"num_hidden_layers": "3", "hidden_size": "1536", "grow": "batch"})
    assert notices.keys() == {"conventions", "growth"}
    assert {text.partition("report: ")[2] for text in notices.values()} == {"num hidden layers 12; hidden size 768."}


MLP = """
net(x targets share; W1 W2) -> loss
  A[B f] = x[B d] W1[d f] @ first linear
  R[B f] = relu(A[B f]) @ first relu
  Z[B c] = R[B f] W2[f c] @ second linear
  P[B c] = log_softmax[c](Z[B c])
  L[B] = P[B c=targets[B]]
  loss[] = L[B] share[B]
targets: index of c
share: share of targets
constants: x
sizes: f=12 d=8 c=5
"""


def test_a_table_of_no_sequences_has_no_length(browser: Any, tmp_path: Path) -> None:
    table, path = tmp_path / "net.table", tmp_path / "report.html"
    table.write_text(MLP)
    report(str(table), procedure="bp", output=str(path), B=6)
    watched = Watched(browser)
    page = watched.open(path.as_uri())
    assert page.text_content("#sentence").startswith(f"One training step of {table} on a batch of ")
    assert {size["name"] for size in given_to(page)["sizes"]} == {"batch_size", "f", "d", "c"}
    agree(page, {"batch_size": 9, "f": 5}, str(table), "bp", None)
    notices = page.evaluate(FIXED_SIZES, {"batch_size": "9"})
    assert notices.keys() == {"conventions", "arena", "modules"}  # growth over the batch has all batches
    assert {text.partition("report: ")[2] for text in notices.values()} == {"batch size 6."}
    page.evaluate("choose({ batch_size: '9' })")
    page.wait_for_function("page.view.names.batch_size === 9n")
    ops = shlex.split(page.evaluate("callOf().command"))[2:]
    assert ops == [str(table), "--batch-size", "9"]
    of_layers = "treeOf(page.view, 'flops', 'layer').parts.map((part) => [part.name, String(part.value)])"
    by_module = dict[str, int]()
    for row in lc.cost(str(table), by="module", B=9).rows:
        name = "net" if row.module == "." else row.module  # a line of no module is of the whole
        by_module[name] = by_module.get(name, 0) + row.flops
    assert {name: int(flops) for name, flops in page.evaluate(of_layers)} == by_module
    assert watched.errors == []
    page.close()


def test_a_notebook_shows_a_report_whose_sliders_move(browser: Any, gpt2: Path) -> None:
    answer = Report(gpt2.read_text(encoding="utf-8"), gpt2, ("gpt2",), ("bp", "pepita"))
    watched = Watched(browser)
    watched.page.set_content(answer._repr_html_())
    frame = watched.page.frames[1]
    frame.wait_for_selector("html[data-ready]")
    frame.fill('[data-control="seq_len"]', "4")
    frame.press('[data-control="seq_len"]', "Enter")
    step = lc.cost("gpt2", seq_len=4)
    frame.wait_for_function(f"document.getElementById('exactly').textContent.includes('{step.total.flops:,}')")
    assert watched.errors == []
    assert watched.requests == []
    watched.page.close()


def test_what_is_drawn_has_the_width_of_the_paper_or_of_the_page_whenever_it_has_one(opened: Watched) -> None:
    page = opened.page
    wide = "Number(document.querySelector('#growth svg').getAttribute('viewBox').split(' ')[2])"
    before = page.evaluate(wide)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(wide) == 688
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(wide) == before
    page.evaluate("document.getElementById('growth').scrollIntoView()")
    page.evaluate("document.getElementById('top').style.display = 'none'")
    page.wait_for_function("page.width === 0")
    page.evaluate("document.getElementById('top').style.cssText = 'width: 600px'")
    page.wait_for_function(f"page.width === 600 && {wide} < 600")
    page.evaluate("document.getElementById('top').style.cssText = ''")
    page.wait_for_function(f"{wide} === {before}")
    page.evaluate("scrollTo(0, 0)")


def test_keys_walk_the_icicle_and_the_memory(opened: Watched) -> None:
    page = opened.page
    name = "#inspector .name"
    assert "equation (3)" in page.text_content(name)
    page.focus('#icicle [tabindex="0"]')
    page.keyboard.press("Escape")
    assert page.text_content(name) == "one step"
    page.keyboard.press("ArrowDown")
    assert page.text_content(name) == "backward"
    page.keyboard.press("ArrowLeft")
    assert page.text_content(name) == "forward"
    page.keyboard.press("ArrowUp")
    assert page.text_content(name) == "one step"
    peak = lc.memory("gpt2", on=DEVICE).peak
    slider = page.locator("#memory [role=slider]")
    slider.focus()
    alive = "aliveAt(page.view.memory.curve(), page.view.memory.curve().peak_at)"
    assert int(page.evaluate(f"String({alive}.reduce((all, array) => all + array.bytes, 0n))")) == peak
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuenow") == "1"
    page.keyboard.press("p")
    assert slider.get_attribute("aria-valuenow") != "1"


def test_a_part_is_shown_alone_and_left_by_the_breadcrumb(opened: Watched) -> None:
    page = opened.page
    whole = page.locator("#icicle [role=treeitem]").count()

    def leads_to(path: str) -> None:
        page.wait_for_function("path => document.getElementById('breadcrumb').textContent === path", arg=path)

    page.locator("#icicle [data-key=forward]").dblclick()
    leads_to("one step › forward")
    assert "in=forward" in page.url
    shown = page.locator("#icicle [role=treeitem]").evaluate_all("cells => cells.map((cell) => cell.dataset.key)")
    assert all(key.split("/")[0] == "forward" for key in shown)
    assert "33 %" in page.text_content("#icicle [data-key=forward]")  # of the whole step
    page.focus('#icicle [tabindex="0"]')
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    leads_to("one step › forward › feed forward × 12")
    page.go_back()
    leads_to("one step › forward")
    page.click("#breadcrumb button")
    leads_to("")
    assert page.locator("#icicle [role=treeitem]").count() == whole


def test_every_formula_shown_equals_the_value_beside_it(opened: Watched) -> None:
    """The numbers that are put into a formula, multiplied out as they stand, are the value."""
    pairs = opened.page.evaluate("""() => page.view.lines.flatMap((line) => Object.entries(line.formulas ?? {})
      .filter(([, formula]) => formula.count.length <= 5)
      .map(([name, formula]) => [inNumbers(page.view, formula.count), String(line.values[name])]))""")
    assert len(pairs) > 100
    for text, value in pairs:
        expression, _, over = text.replace(",", "").replace("×", "*").replace("−", "-").partition(" over ")
        terms = expression.replace("- ", "+ -").split("+ ")
        total = sum(_product(term) for term in terms if term.strip())
        assert total == int(value) * int(over or 1), text


def _product(text: str) -> int:
    result = 1
    for factor in text.split("*"):
        sign, digits = (-1, factor.strip()[1:]) if factor.strip().startswith("-") else (1, factor)
        result *= sign * int(digits.strip())
    return result


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    browser: Any, gpt2: Path, width: int, dark: bool
) -> None:
    watched = Watched(browser, width, dark)
    page = watched.open(gpt2.as_uri())
    assert watched.serious() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.errors == []
    page.close()


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize(
    ("model", "procedure", "given"),
    [
        ("qwen2.5-0.5b", "bp", {"lora": "attention", "precision": "qlora", "seq_len": 64}),
        ("t5-small", "bp", {"seq_len": 64}),
        ("mixtral-8x7b", "mempepita", {}),
        ("gpt2", "decode", {}),
        ("mamba-130m", "decode", {"num_hidden_layers": 2}),
        ("gpt2", "bp", {"price_book": "causal-half", "num_hidden_layers": 2, "seq_len": 64}),
        ("albert-base-v2", "bp", {"seq_len": 64}),
    ],
)
def test_models_of_other_kinds(
    browser: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    procedure: str,
    given: dict[str, Any],
) -> None:
    if model != "mixtral-8x7b":  # what is the same for every procedure takes the longest, and is drawn of this one
        nothing: dict[str, Any] = {"growth": {}, "conventions": {}, "compared": {}}
        monkeypatch.setattr("learncost.viz.document.comparisons", lambda *_: nothing)
    path = tmp_path / "report.html"
    report(model, procedure=procedure, on=DEVICE, output=str(path), **given)
    watched = Watched(browser, 900)
    page = watched.open(path.as_uri())
    rng, document = random.Random(model), given_to(page)
    agree(page, {}, model, procedure, DEVICE, **given)
    agree(page, chosen_at_random(document, rng), model, procedure, DEVICE, **given)
    assert page.evaluate("document.documentElement.scrollWidth") <= 900
    assert watched.errors == []
    assert watched.requests == []
    page.close()


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("launch", [1e-7, 1e-2])
def test_a_device_that_queues(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: float) -> None:
    """Calls are hidden behind kernels, or kernels behind calls; attention's words were timed with it."""
    nothing: dict[str, Any] = {"growth": {}, "conventions": {}, "compared": {}}
    monkeypatch.setattr("learncost.viz.document.comparisons", lambda *_: nothing)
    rates = flat(1e12, 1e11, launch, ops={"gelu_tanh": 1e-9, "softmax": 1e-9}, queues=True)
    device = str(tmp_path / "gpu.json")
    save(Calibration("A GPU", "2026-11-26", "PyTorch 9", {"operators": {"fp32": rates}}, 1), Path(device))
    given: dict[str, Any] = {"plan": "flash", "num_hidden_layers": 2, "seq_len": 64}
    report("gpt2", on=device, output=str(tmp_path / "report.html"), **given)
    watched = Watched(browser)
    page = watched.open((tmp_path / "report.html").as_uri())
    agree(page, {}, "gpt2", "bp", device, **given)
    agree(page, {"batch_size": 7, "num_hidden_layers": 3}, "gpt2", "bp", device, **given)
    assert watched.errors == []
    page.close()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_sliders_agree_at_a_thousand_points(browser: Any, tmp_path: Path) -> None:
    rng = random.Random(1000)
    kinds = [
        ("gpt3-175b", "bp", 400),
        ("t5-small", "pepita", 200),
        ("llama-3.1-405b", "recompute", 200),
        ("deberta-base", "bp", 200),
    ]
    for model, procedure, points in kinds:
        path = tmp_path / f"{model}.html"
        report(model, procedure=procedure, on=DEVICE, output=str(path))
        watched = Watched(browser)
        page = watched.open(path.as_uri())
        document = given_to(page)
        for _ in range(points):
            agree(page, chosen_at_random(document, rng), model, procedure, DEVICE)
        page.close()


def test_a_report_is_one_small_file_made_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpt3.html"
    begun = time.process_time()
    assert main(["report", "gpt3-175b", "--on", DEVICE, "-o", str(path)]) == 0
    assert time.process_time() - begun < 5
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith(f"{path}: ")
    html = path.read_text(encoding="utf-8")
    assert len(html.encode()) < 6_000_000
    assert "<script src" not in html
    assert "http-equiv" not in html
    assert "@import" not in html
    answer = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    assert [document["summary"]["procedure"] for document in answer["documents"]] == [
        "bp",
        "recompute",
        "pepita",
        "mempepita",
    ]


def test_a_report_has_the_engine_of_memory_and_names_that_of_the_procedures() -> None:
    sizes = {"num_hidden_layers": 2, "seq_len": 4, "procedure": "bp"}
    peak = lc.memory("gpt2", num_hidden_layers=2, seq_len=4).peak
    html = report("gpt2", **sizes, output=None).html
    assert f'"peak":{peak},' in html
    assert '"memory":"engine graph in fp32 under flash"' in html


def test_usual_procedures_that_make_a_report_too_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {"growth": {}, "conventions": {}, "compared": {}}
    monkeypatch.setattr("learncost.viz.document.comparisons", lambda *_: nothing)
    usual = ("bp", "recompute", "pepita", "mempepita")
    every = report("vit-b-16", output=None, num_hidden_layers=1)
    assert every.procedures == usual
    monkeypatch.setattr("learncost.viz.report.LARGEST", len(every.html.encode()) - 1)
    smaller = report("vit-b-16", output=None, num_hidden_layers=1)
    assert smaller.procedures == usual[:-1]
    assert any("by mempepita: the report would be larger than" in why for why in smaller.refused)
    with pytest.raises(lc.InputError, match="4 steps make a report of"):
        report("vit-b-16", procedure=",".join(usual), output=None, num_hidden_layers=1)


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ops, message in (
        ([], "report requires a model"),
        (["gpt9"], "unknown model 'gpt9'"),
        (["gpt2", "--on", "abacus"], "abacus"),
        (["gpt2", "--procedure", "magic"], "magic"),
        (["gpt2", "-o", str(tmp_path / "none" / "r.html")], "cannot write"),
    ):
        assert main(["report", *ops]) == 2
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1
        assert message in printed.err, printed.err
    assert list(tmp_path.iterdir()) == []
