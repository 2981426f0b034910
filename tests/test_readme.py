"""README shows true output: every screen is that of its command, every piece of Python runs."""

import re
from importlib import resources
from pathlib import Path

import pytest

from learncost.faces.command import COMMANDS, main

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SCREENS = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("line", "screen"), SCREENS, ids=[line for line, _ in SCREENS])
def test_a_screen(line, screen, capsys):
    program, *arguments = line.split()
    assert program == "learncost"
    assert main(arguments) == 0
    out = capsys.readouterr().out
    if arguments[0] == "verify":  # its errors are those of the machine's last bits
        out, screen = (re.sub(r"worst\s+error\s+\S+\s+in\s+\S+|\s+", " ", text) for text in (out, screen))
    start, more, end = screen.partition("...\n")
    assert out.startswith(start) if more else out == start
    assert out.endswith(end)


def test_the_python_runs():
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(block, names)  # README's own text
    assert f"# {names['ledger'].total.flops}\n" in TEXT


def test_the_layer_is_the_one_that_ships():
    shown = re.search(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert shown is not None
    file = resources.files("learncost.layers").joinpath("tables/attention.table")
    assert shown[1].strip() == file.read_text(encoding="utf-8").strip()


def test_commands_that_are_named_exist():
    for name in re.findall(r"`learncost ([a-z-]+)", TEXT):
        assert name in COMMANDS


def test_the_first_two_set_up_commands():
    lines = [line for line in TEXT.splitlines() if re.search(r"pip install|\buv\b", line)]
    assert [line.rpartition("/")[2] for line in lines[:2]] == ["learncost cost gpt2", "pytest"]


def test_links_lead_somewhere():
    prose = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert target.startswith("http") or (Path(__file__).parent.parent / target).exists(), target
