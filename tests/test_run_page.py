"""The page that watches trainings, in a browser: its numbers are those of the files, and it follows them."""

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
from sampling import sampled

CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 50, "n_positions": 16}
SPEED = {"bp": 4000.0, "pepita": 5000.0, "mempepita": 6000.0}


def row(name: str, step: int) -> str:
    losses = {"bp": 4 / step, "pepita": 5 / step**0.5, "mempepita": 4 + 8 * (step == 6)}
    record: dict[str, Any] = {"step": step, "loss": losses[name], "learning_rate": 0.004, "seconds": 0.1}
    record |= {"tokens_per_second": SPEED[name], "memory": 3_000_000, "predicted": 1_000_000, "process": 90_000_000}
    return json.dumps(record | ({"validation_loss": losses[name] + 0.5} if step % 5 == 0 else {})) + "\n"


def written(folder: Path, name: str, steps: int) -> None:
    path = folder / name
    path.mkdir()
    options = {
        "model": "nano",
        "procedure": name,
        "optimizer": "adamw",
        "engine": "numpy",
        "batch_size": 2,
        "seq_len": 8,
    }
    (path / "training.json").write_text(json.dumps(options | {"steps": 20}))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "metrics.jsonl").write_text("".join(row(name, step) for step in range(1, steps + 1)))
    (path / "samples.txt").write_text("--- step 10\nto be <b>or</b>\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched")
    for number, name in enumerate(SPEED):
        written(path, name, 10 + 2 * number)
    contest = {"schema": 1, "problem": "digits", "budget": {}, "seeds": [0], "optimizer": "sgd"}
    training = {"seed": 0, "losses": [2.0, 1.0], "seconds": 0.2, "after": {"loss": 1.0, "accuracy": 0.75}}
    result = {"procedure": "fa", "mode": None, "steps": 2, "flops_per_step": 500, "trainings": [training]}
    (path / "contest.json").write_text(json.dumps(contest | {"results": [result]}))
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "learncost", "serve", "--port", "0", "--run", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        announced = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
        assert announced
        yield announced[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened_browser:
        yield opened_browser


def opened(browser: Any, address: str, **more: Any) -> Watched:
    watched = Watched(browser, allowed=address, **more)
    watched.open(f"{address}/run#of=nano")
    return watched


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(
    ("width", "dark"), sampled([(1440, False), (390, True), (900, True), (900, False), (1440, True), (390, False)], 3)
)
def test_it_is_read_at_every_width_and_nothing_leaves_the_machine(
    browser: Any, address: str, width: int, dark: bool
) -> None:
    watched = opened(browser, address, width=width, dark=dark)
    assert watched.serious() == []
    assert watched.errors == []
    assert watched.requests == []
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.page.locator("#loss-chart canvas").count() == 1
    watched.page.close()


def test_its_numbers_are_those_of_the_files(browser: Any, address: str, folder: Path) -> None:
    page = opened(browser, address).page
    flops = {name: lc.cost(CONFIG, name, batch_size=2, seq_len=8, optimizer="adamw").total.flops for name in SPEED}
    sentence = page.inner_text("#sentence")
    assert sentence.startswith("With the same ")
    assert "FLOPs backpropagation reaches a loss of " in sentence
    assert page.inner_text("#tiles").count("backpropagation") >= 2
    table = page.locator("#loss-table")
    page.locator("#loss details summary").click()
    rows = [line.split("\t") for line in table.inner_text().splitlines()[1:]]
    for (name, procedure, step, loss, _, seconds, total, predicted, measured), entrant in zip(
        rows, SORTED, strict=True
    ):
        steps = 10 + 2 * list(SPEED).index(entrant)
        assert (name, procedure, step) == (entrant, entrant, str(steps))
        assert float(loss) == json.loads(row(entrant, steps))["loss"]
        assert float(seconds) == pytest.approx(0.1 * steps)
        assert total == f"{flops[entrant] * steps:,}"
        assert (predicted, measured) == ("1,000,000", "3,000,000")
    assert "goes up to 12.0" in page.inner_text("#loss-caption")
    assert "4,000" in page.inner_text("#speed-chart")
    assert "1.00 MB predicted, 3.00 MB measured" in page.inner_text("#memory-chart")
    assert page.inner_text("#sample-text") == "to be <b>or</b>"
    page.close()


SORTED = sorted(SPEED)


def test_choices_are_the_address(browser: Any, address: str) -> None:
    watched = opened(browser, address)
    page = watched.page
    page.locator("#axis label", has_text="steps").click()
    assert page.inner_text("#sentence").startswith("With the same 10 steps ")
    assert "against=step" in page.url
    page.locator("#model label", has_text="digits").click()
    assert "feedback alignment" in page.inner_text("#sentence").lower()
    assert "75.0 % right" in page.inner_text("#tiles")
    again = Watched(browser, allowed=address)
    again.open(page.url)
    assert "feedback alignment" in again.page.inner_text("#sentence").lower()
    again.page.close()
    page.close()


def test_it_follows_a_training(browser: Any, address: str, folder: Path) -> None:
    page = opened(browser, address).page
    page.locator("#axis label", has_text="steps").click()
    for name in SPEED:
        steps = 10 + 2 * list(SPEED).index(name)
        with (folder / name / "metrics.jsonl").open("a") as file:
            file.writelines(row(name, step) for step in range(steps + 1, 21))
    end = time.monotonic() + 15
    while "With the same 20 steps" not in page.inner_text("#sentence"):
        assert time.monotonic() < end
        page.wait_for_timeout(100)
    assert "All have finished." in page.inner_text("#exactly")
    page.close()
