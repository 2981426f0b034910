"""README's pieces of Python run, and its layer is the one that ships; test_pages.py holds its screens and commands."""

import re
from importlib import resources
from pathlib import Path

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_runs():
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(block, names)  # README's own text
    assert f"# {names['ledger'].total.flops}\n" in TEXT


def test_the_layer_is_the_one_that_ships():
    match = re.search(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None
    file = resources.files("learncost.layers").joinpath("tables/attention.table")
    assert match[1].strip() == file.read_text(encoding="utf-8").strip()


def test_the_first_two_set_up_commands():
    lines = [line for line in TEXT.splitlines() if re.search(r"pip install|\buv\b", line)]
    assert [line.rpartition("/")[2] for line in lines[:2]] == ["learncost cost gpt2", "pytest"]
