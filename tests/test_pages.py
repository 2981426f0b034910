"""README and the pages of the documentation: screens are what commands print, commands run, names and links exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from learncost.cli.command import COMMANDS, MORE, main
from learncost.cli.typed import read

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import screens as documentation

ROOT = documentation.ROOT
LONG = (
    "qlora.yaml --on", "--precision qlora", "transformer.py:build", "learncost search", "fit qwen2.5-7b --lora",
    "fit llama-3-8b --budget", "list procedures --of", "list models", "net.table --on nrf52840", "figure memory gpt2",
)  # fmt: skip
"""Parts of the commands that take more than two seconds of a processor: `pytest -m slow` runs these."""


def slow(command):
    return [pytest.mark.slow] if any(part in command for part in LONG) else []


SCREENS = [
    pytest.param(
        screen,
        marks=slow(screen.command),
        id=f"{screen.page.stem}: {screen.command[:60]}",
    )
    for page in documentation.PAGES
    for screen in documentation.screens(page)
]

SLOW = ("train", "sample", "contest", "calibrate", "verify", "serve")
"""Commands that take long, all cores, or until Ctrl-C: their arguments are read; the slow test runs what it can."""


def prose(page):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "", text)


def blocks(page, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page):
    """The command lines of learncost in the blocks `sh` of a page."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("learncost "):
                yield line


def spoken(page):
    """The command lines within sentences and tables that are whole, with no PLACE for something else."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"`(learncost [a-z-]+ [^-`][^`]*)`", text):
        words = line.split()
        if not any(re.fullmatch(r"[A-Z|.]{2,}|FILE.*|run-1|.*\.\.\.", word) for word in words):
            yield " ".join(words)


COMMAND_LINES = sorted(
    {
        (page.name, line)
        for page in documentation.PAGES
        for line in (*commands(page), *spoken(page))
        if "--backend toy" not in line  # which the page's program registers: test_documentation runs both
    }
)


def arguments(line):
    text = line.replace("\"$(python3 -c 'import os; print(os.path.dirname(os.__file__))')\"", "texts")
    return shlex.split(text, comments=True)[1:]


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen(screen):
    """`python docs/screens.py` writes what is out of date anew."""
    code, printed = documentation.printed(screen)
    assert code == 0
    assert screen.agrees(printed), screen.renewed(printed)


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(
    ("page", "line"), [pytest.param(*both, marks=slow(both[1]), id=" ".join(both)) for both in COMMAND_LINES]
)
def test_a_command(page, line, tmp_path, monkeypatch, capsys):
    """What is quick runs; of what is slow the arguments are read. `here` is a published device then."""
    words = arguments(line)
    read(words[0], COMMANDS[words[0]].flags, words[1:])
    if words[0] in SLOW:
        return
    monkeypatch.chdir(tmp_path)
    words = ["A100-SXM-80GB" if word == "here" else word for word in words]
    for word in words:
        path = Path(word.partition(":")[0] if ".py:" in word else word)
        if (ROOT / path).is_file() and path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((ROOT / path).read_text("utf-8"), encoding="utf-8")
        elif path.suffix == ".table":
            path.write_text(next(iter(blocks(ROOT / "docs" / "add-a-layer.md", "text"))), encoding="utf-8")
    assert main(words) == 0, capsys.readouterr().err
    written = [Path(words[place + 1]) for place, word in enumerate(words) if word in ("--output", "-o")]
    assert capsys.readouterr().out or all(path.stat().st_size for path in written)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_as_the_page_has_it(tmp_path, monkeypatch, capsys):
    """The page's first training with a sixth of its two minutes, on files of this package, and its sample."""
    monkeypatch.chdir(tmp_path)
    train, sample, *_ = commands(ROOT / "docs" / "train.md")
    texts = str(ROOT / "src")
    words = [texts if word == "texts" else word for word in arguments(train)]
    assert main([*words, "--minutes", "0.33"]) == 0
    capsys.readouterr()
    assert main(arguments(sample)) == 0
    assert capsys.readouterr().out.startswith("def ")


@pytest.mark.parametrize("page", documentation.PAGES, ids=lambda page: page.name)
def test_commands_that_are_named_exist(page):
    for name in re.findall(r"`learncost ([a-z-]+)", page.read_text(encoding="utf-8")):
        assert name in {*COMMANDS, MORE}, name


def test_every_task_of_the_index_has_each_with_a_command_and_a_page():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert len(blocks(ROOT / "docs" / "index.md", "sh")) == 1
    assert len(list(documentation.screens(ROOT / "docs" / "index.md"))) == 1
    tasks = text.partition("## I want to ...")[2].partition("\n## ")[0]
    rows = [line for line in tasks.splitlines() if re.match(r"\| [a-z]", line)]
    assert 10 <= len(rows) <= 13
    assert all(re.fullmatch(r"\| [^|]+ \| `learncost [^|]+` \| \[[^|]+\]\(\S+\.md\) \|", row) for row in rows)


@pytest.mark.parametrize("page", documentation.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Pages that are generated are those of layers and of the reference, which tests of their own hold complete."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose(page)):
        generated = (ROOT / "docs" / "layers", ROOT / "docs" / "api")
        place = (page.parent / target).resolve()
        assert target.startswith("http") or place.exists() or place.parent in generated, target


def test_a_screen_that_is_out_of_date_is_found_and_renewed(tmp_path):
    page = tmp_path / "page.md"
    block = "$ learncost list plans\nold\n...\nold too\n$ learncost list \\\n  plans\nold\n"
    text = f"# Page\n\n```console\n{block}```\n\nend\n"
    page.write_text(text, encoding="utf-8")
    assert documentation.renew(page, write=False) == ["learncost list plans", "learncost list \\\n  plans"]
    assert page.read_text(encoding="utf-8") == text
    documentation.renew(page, write=True)
    first, second = documentation.screens(page)
    _, printed = documentation.printed(first)
    assert second.shown == printed
    assert first.shown == printed.splitlines(True)[0] + "...\n" + printed.splitlines(True)[-1]
    assert documentation.renew(page, write=False) == []
    assert page.read_text(encoding="utf-8").endswith("```\n\nend\n")
