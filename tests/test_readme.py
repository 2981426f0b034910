"""The Python of README and its page runs, README is short, its layer ships; test_pages tests screens and commands."""

import re
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_runs(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(block, names)  # the page's own text
    assert f"# {names['ledger'].total.flops}\n" in text


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 180
    assert len(TEXT.encode()) <= 12_000


def test_the_layer_is_the_one_that_ships():
    match = re.search(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None
    file = resources.files("learncost.layers").joinpath("tables/attention.table")
    assert match[1].strip() == file.read_text(encoding="utf-8").strip()


def test_the_first_two_set_up_commands():
    lines = [line for line in TEXT.splitlines() if re.search(r"pip install|\buv\b", line)]
    assert [line.rpartition("/")[2] for line in lines[:2]] == ["learncost cost gpt2", "pytest"]
