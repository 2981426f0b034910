"""Numbers of the explorer are those of the command line: all families, procedures and price books, by chance."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from answering import Here
from browsing import Watched, chromium
from learncost.cli.command import main
from learncost.cost_models.books import every
from learncost.devices.device import devices
from learncost.ir.precision import PRECISIONS
from learncost.models.families import FAMILIES
from learncost.models.small import contents
from learncost.procedures.optimizer import STATES
from learncost.procedures.procedure import INFERENCE, LEARNING
from learncost.viz.page import page as page_of
from learncost.viz.serve.app import application
from sampling import sampled

PORT = 8642
CASES = 1000
PROCEDURES, BOOKS, NAMES = [*LEARNING, *INFERENCE], [*every()], [*FAMILIES]
OF_MEMORY = ("procedure", "batch-size", "seq-len", "optimizer", "dropout", "precision")


def case(number: int) -> tuple[dict[str, Any], dict[str, str]]:
    """A configuration and flags: families, procedures and price books in turn, the rest by chance."""
    chance = random.Random(number)
    config = contents(NAMES[number % len(NAMES)])
    flags = {
        "procedure": PROCEDURES[number * 7 % len(PROCEDURES)],
        "price-book": BOOKS[number * 5 % len(BOOKS)] if chance.random() < 0.6 else "run",
        "batch-size": str(chance.randint(1, 5)),
        "seq-len": str(chance.randint(1, 12)),
    }
    some = {
        "optimizer": chance.choice([*STATES]),
        "precision": chance.choice([*PRECISIONS]),
        "dropout": "0.1",
        "on": chance.choice([*devices()]),
        "num-hidden-layers": "2",
    }
    if not config.get("image_size") or chance.random() < 0.1:
        flags |= {name: value for name, value in some.items() if chance.random() < 0.2}
    else:
        del flags["seq-len"]
    return config, flags


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(application(PORT, answers=Here()), f"http://127.0.0.1:{PORT}") as test_client:
        yield test_client


def answered(*ops: str) -> tuple[int, dict[str, Any], str]:
    """What a command answers: its exit code, its JSON, its one line."""
    with redirect_stdout(io.StringIO()) as screen, redirect_stderr(io.StringIO()) as error:
        code = main([*ops, "--json"])
    return code, json.loads(screen.getvalue()) if not code else {}, " ".join(error.getvalue().split())


def agree(client: TestClient, config: dict[str, Any], flags: dict[str, str], folder: Path) -> dict[str, Any] | None:
    """The document of a case, whose numbers are those of the commands; None where both refuse."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    ops = [op for name, value in flags.items() for op in (f"--{name}", value)]
    code, cost, error = answered("cost", str(path), *ops, "--by", "equation")
    answer = client.post("/api/document", params=flags, json=config)
    if code:
        message = answer.json().get("error")
        assert answer.status_code == 400, (error, answer.text[:200])
        family = config["model_type"]  # by which a page calls what came without a name
        refusal = error.replace(f"{path} has", f"{family} has").replace(str(path), "config.json")
        assert message.partition(": ")[2][-30:] in refusal or message in refusal
        return None
    if answer.status_code == 400 and answer.json()["error"].startswith("a report"):
        return None
    document = answer.json()
    assert answer.status_code == 200, document
    for name in ("maccs", "flops"):
        assert int(document["totals"][name]) == cost["total"][name]
        assert sum(int(line.get(name, 0)) for line in document["lines"]) == cost["total"][name]
    assert int(document["totals"]["bytes"]) == sum(row["bytes"] for row in cost["rows"])
    assert int(document["totals"]["parameters"]) == cost["parameters"]
    if "on" in flags:
        assert document["totals"]["seconds"] == pytest.approx(cost["time"]["seconds"], rel=1e-12)
    if "peak" in (document["memory"] or {}):
        usual = {"precision": document["summary"]["dtype"], "optimizer": document["summary"]["optimizer"]}
        for_memory = {
            **usual,
            **{name: value for name, value in flags.items() if name in OF_MEMORY or "layers" in name},
        }
        ops = [op for name, value in for_memory.items() for op in (f"--{name}", value)]
        code, memory, error = answered("memory", str(path), *ops, "--engine", document["memory"]["engine"])
        assert not code, error
        assert int(document["memory"]["peak"]) == memory["peak"]
    return dict(document)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("number", sampled(range(CASES), every=83))
def test_documents_have_the_numbers_of_the_command_line(client: TestClient, number: int, tmp_path: Path) -> None:
    agree(client, *case(number), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_page_shows_the_numbers_of_the_command_line(client: TestClient, tmp_path: Path) -> None:
    with chromium() as browser:
        watched = Watched(browser)
        for number in range(0, CASES, 7):
            document = agree(client, *case(number), tmp_path)
            if document is None:
                continue
            path = tmp_path / "page.html"
            path.write_text(page_of([document]), encoding="utf-8")
            page = watched.open(path.as_uri())
            text = page.text_content("#exactly")
            for name, unit in (("flops", "FLOPs"), ("maccs", "MACCs"), ("parameters", "parameters")):
                assert f"{int(document['totals'][name]):,} {unit}" in text, number
            counted = page.evaluate(
                "Object.fromEntries(Object.entries(page.view.totals).map(([k, v]) => [k, String(v)]))"
            )
            for name in ("flops", "maccs", "bytes", "parameters"):
                assert int(counted[name]) == int(document["totals"][name]), number
            assert watched.errors == [], number
