"""The explorer in a browser: what is chosen on the page is what the command line says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import learncost as lc
from browsing import Watched, chromium

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 3,
    "n_embd": 96,
    "n_head": 4,
    "vocab_size": 500,
    "n_positions": 64,
}

EXAMPLES = Path(__file__).parent.parent / "examples" / "trainer_files"
LEARNS = {"precision": "nf4-double", "lora": "all-linear", "lora_rank": 16}

SEEN = ("top", "memory", "time", "growth", "formulas")
"""Places of the page at which a slider is dragged."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "learncost.cli.command", "serve", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    announced = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
    assert announced
    yield announced[0]
    server.terminate()
    server.wait(10)


@pytest.fixture(scope="module")
def opened(address: str) -> Iterator[Watched]:
    with chromium() as browser:
        watched = Watched(browser, allowed=address)
        watched.page.set_default_timeout(90_000)
        watched.open(address)
        yield watched


def until(page: Any, text: str, place: str = "#exactly", seconds: float = 90) -> None:
    """Wait until a place of the page says something: the page may evaluate no text, so that it is asked again."""
    end = time.monotonic() + seconds
    while text not in (content := page.text_content(place)):
        assert time.monotonic() < end, f"{text!r} is not in {content!r}"
        page.wait_for_timeout(30)


def put(page: Any, control: str, value: str) -> None:
    page.fill(f'[data-control="{control}"]', value)
    page.press(f'[data-control="{control}"]', "Enter")


def test_the_first_view_teaches_without_any_input(opened: Watched) -> None:
    page = opened.page
    until(page, f"{lc.cost('gpt2').total.flops:,} FLOPs")
    assert "equation (3)" in page.text_content("#inspector .name")
    assert opened.serious() == []
    assert opened.requests == []


def test_choices_are_those_of_the_command_line_and_the_address_keeps_them(opened: Watched, address: str) -> None:
    page = opened.page
    put(page, "seq_len", "128")
    until(page, f"{lc.cost('gpt2', seq_len=128).total.flops:,} FLOPs")
    put(page, "model", "bert-base-uncased")
    until(page, f"{lc.cost('bert-base-uncased').total.flops:,} FLOPs")
    page.select_option('[data-control="procedure"]', "recompute")
    total = f"{lc.cost('bert-base-uncased', 'recompute').total.flops:,} FLOPs"
    until(page, total)
    url = page.url
    page.goto("about:blank")
    page.goto(url)
    until(page, total)
    page.click("#more summary")
    page.select_option('[data-more="price_book"]', "paper")
    until(page, f"{lc.cost('bert-base-uncased', 'recompute', 'paper').total.flops:,} FLOPs")
    page.goto(address)
    until(page, f"{lc.cost('gpt2').total.flops:,} FLOPs")


def test_what_is_refused_is_told_and_changes_nothing(opened: Watched) -> None:
    page = opened.page
    before = page.text_content("#exactly")
    put(page, "model", "gpt-nine")
    until(page, "unknown model 'gpt-nine'", "#problem")
    assert page.text_content("#exactly") == before
    opened.errors.clear()  # the browser's own line about the status 400


def test_a_configuration_is_dropped_on_the_page(opened: Watched) -> None:
    page = opened.page

    def drop(text: str) -> None:
        page.evaluate("(text) => takeFiles([['config.json', text]])", text)

    drop("{ broken")
    until(page, "config.json is no JSON", "#problem")
    page.evaluate("render()")
    until(page, "config.json is no JSON", "#problem")
    drop(json.dumps(CONFIG | {"n_head": 5}))
    until(page, "5", "#problem")
    drop(json.dumps(CONFIG))
    sizes = {name: value for name, value in CONFIG.items() if name.startswith(("n_", "vocab"))}
    until(page, f"{lc.cost('gpt2', **sizes).total.flops:,} FLOPs")
    put(page, "model", "gpt-nine")
    until(page, "unknown model 'gpt-nine'", "#problem")
    put(page, "seq_len", "32")  # of the file still, which what was refused has not put away
    until(page, f"{lc.cost('gpt2', seq_len=32, **sizes).total.flops:,} FLOPs")
    opened.errors.clear()


@pytest.mark.slow
def test_the_file_of_a_trainer_is_dropped_on_the_page(opened: Watched, address: str) -> None:
    page = opened.page
    text = (EXAMPLES / "qlora.yaml").read_text()

    def drop(text: str, **others: str) -> None:
        files = page.evaluate_handle(
            """(files) => {
                const data = new DataTransfer();
                for (const [name, text] of Object.entries(files)) data.items.add(new File([text], name));
                return data;
            }""",
            {"qlora.yaml": text, **others},
        )
        page.dispatch_event("body", "drop", {"dataTransfer": files})

    drop(text)
    step = lc.cost("llama-3-8b", "recompute", batch_size=8, seq_len=2048, **LEARNS)
    until(page, f"{step.total.flops:,} FLOPs")
    notice = page.text_content("#problem")
    assert "qlora.yaml: axolotl" in notice
    assert "Not counted: liger_rms_norm" in notice
    assert "Not on this page: --" in notice
    drop(text.replace("meta-llama/Meta-Llama-3-8B", "nobody/knows-this"))
    until(page, "'nobody/knows-this' is no known preset", "#problem")
    drop("just words\n")
    until(page, "qlora.yaml", "#problem")
    drop(text + "deepspeed: zero3.json\n")
    until(page, "give that file behind it", "#problem")
    drop(text + "deepspeed: zero3.json\n", **{"zero3.json": (EXAMPLES / "zero3.json").read_text()})
    until(page, "does not say over how many devices", "#problem")
    assert f"{step.total.flops:,} FLOPs" in page.text_content("#exactly")
    opened.errors.clear()
    page.goto(address)
    page.reload()


def test_a_slider_of_the_largest_model_answers_at_once(opened: Watched) -> None:
    page = opened.page
    put(page, "model", "llama-3.1-405b")
    until(page, f"{lc.cost('llama-3.1-405b').total.flops:,} FLOPs")
    page.wait_for_timeout(300)
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")

    def worked() -> float:
        """Seconds that a processor has worked for the page: others are at work on the machine of the tests, too."""
        metrics_sent = metrics.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics_sent if metric["name"] == "ThreadTime")

    times = []
    for at in range(10):
        if not at % 2:
            page.evaluate("(id) => document.getElementById(id).scrollIntoView()", SEEN[at // 2])
            page.wait_for_timeout(300)
        begun = worked()
        page.evaluate(
            """(size) => new Promise((done) => {
              choose({ seq_len: String(size) }, true);
              requestAnimationFrame(() => requestAnimationFrame(done));
            })""",
            1024 + 64 * at,
        )
        times.append(worked() - begun)
    page.evaluate("scrollTo(0, 0)")
    assert sorted(times)[8] < 0.1  # a third of that on a quiet machine: neighbours share its caches
    until(page, f"{lc.cost('llama-3.1-405b', seq_len=1024 + 64 * 9).total.flops:,} FLOPs")
    assert opened.requests == []
    assert [error for error in opened.errors if "400" not in error] == []  # a program in C99 of it is refused
    opened.errors.clear()


def test_files_are_what_is_shown(opened: Watched, address: str) -> None:
    page = opened.page
    page.goto("about:blank")
    page.goto(f"{address}/#model=llama-3.1-405b")
    until(page, f"{lc.cost('llama-3.1-405b').total.flops:,} FLOPs")
    with page.expect_download() as waiting:
        page.click("#export button")
        page.click("text=Numbers as JSON")
    document = json.loads(waiting.value.path().read_text())
    assert document["totals"]["flops"] == sum(line["flops"] for line in document["lines"])
    assert document["command"].startswith("learncost cost llama-3.1-405b")
    with page.expect_download() as waiting:
        page.click("#export button")
        page.click("text=Table as LaTeX")
    assert r"\begin{tabular}" in waiting.value.path().read_text()
    with page.expect_download() as waiting:
        page.click("#export button")
        page.click("text=Icicle as SVG")
    assert waiting.value.path().read_text().startswith("<svg")


@pytest.mark.slow  # tests/test_views.py chooses a runner
def test_a_runner_is_chosen_and_a_mesh_is_moved(opened: Watched, address: str) -> None:
    page = opened.page
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64, "seq_len": 16}
    page.goto("about:blank")
    opened.errors.clear()  # refusals of views of the model before, which are answered whenever they are
    page.goto(f"{address}/#{'&'.join(f'{name}={size}' for name, size in sizes.items())}")
    until(page, f"{lc.cost('gpt2', **sizes).total.flops:,} FLOPs")
    page.evaluate("document.getElementById('engines').scrollIntoView()")
    until(page, "The same step takes", "#engines")
    page.click('#engines >> text="eager"')
    answer = lc.memory("gpt2", engine="eager", precision="bf16-masters", **sizes)
    until(page, f"{answer.peak / 1e3:.3g} kB", "#peak")
    page.evaluate("document.getElementById('devices').scrollIntoView()")
    until(page, "Over 8 devices", "#devices")
    page.press('[data-more="mesh-dp"]', "ArrowRight")
    until(page, "Over 2 devices", "#devices")
    assert "mesh=dp%3D2" in page.url
    assert "The table of every device" in page.text_content("#devices")
    assert page.input_value('[data-more="mesh"]') == "dp=2"
    page.evaluate("document.getElementById('arena').scrollIntoView()")
    until(page, "As a program in C99", "#arena")
    assert opened.serious() == []
    assert opened.errors == []
