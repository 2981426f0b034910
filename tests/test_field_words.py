"""Words that people of the field type (field_words.toml): a flag or a value is the one that it means, or is refused
with the right one, and the search of the documentation finds a phrase on its page."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import learncost as lc
from learncost.cli.command import COMMANDS, main
from learncost.cli.typed import read
from learncost.ir.precision import precision_of
from learncost.reports.question import FLAGS, canonical_arguments, switches
from test_documentation_search import HIGHEST_SCORE_OF_TEXT, scores

ROWS = tomllib.loads(Path(__file__).with_name("field_words.toml").read_text(encoding="utf-8"))


def cases(kind: str) -> list[tuple[str, str]]:
    return [(typed, meant) for row in ROWS.values() for typed, meant in row.get(kind, {}).items()]


def split(line: str) -> tuple[str, list[str]]:
    """Return the command, memory if none is named, and its words."""
    words = shlex.split(line)
    return (words[0], words[1:]) if words[0] in COMMANDS else ("memory", words)


def asked(line: str) -> dict[str, Any]:
    """Return what a command is asked, under the names and in the spellings of its function."""
    name, words = split(line)
    _, flags = read(name, COMMANDS[name].flags, ["gpt2", *words])
    arguments = canonical_arguments(flags, {flag.name: flag for flag in COMMANDS[name].flags})
    if "precision" in arguments:
        arguments["precision"] = precision_of(arguments["precision"]).name
    return arguments


def test_there_are_a_hundred_words_with_their_threads() -> None:
    assert len({typed.lower() for kind in ("same", "refused", "page") for typed, _ in cases(kind)}) >= 100
    assert all(row["source"].startswith("https://github.com/") for row in ROWS.values())


@pytest.mark.parametrize(("typed", "meant"), cases("same"))
def test_a_flag_or_value_of_other_tools_is_the_one_that_it_means(typed: str, meant: str) -> None:
    assert asked(typed) == asked(meant)
    assert typed != meant


@pytest.mark.parametrize(("typed", "meant"), cases("refused"))
def test_a_flag_that_means_something_else_is_refused_with_what_to_type(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, words = split(typed)
    assert main([name, "gpt2", *words]) == 2
    message = capsys.readouterr().err
    assert meant in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(("phrase", "page"), cases("page"))
def test_a_phrase_is_found_first_on_its_page(phrase: str, page: str) -> None:
    found = scores(phrase)
    assert page in found, sorted(found)
    best = found.pop(page)
    assert best > max([HIGHEST_SCORE_OF_TEXT, *found.values()])


def test_the_same_words_are_keywords_in_python() -> None:
    usual = lc.memory("gpt2", procedure="recompute", batch_size=4, accumulate=2, optimizer="adamw8bit", seq_len=64)
    other = lc.memory("gpt2", gradient_checkpointing=True, bs=4, grad_accum=2, optim="adamw_8bit", max_length=64)
    assert (other.peak, other.optimizer, other.procedure) == (usual.peak, "adamw8bit", "recompute")
    with pytest.raises(lc.InputError, match="the same option"):
        lc.memory("gpt2", gradient_checkpointing=True, procedure="bp")
    assert lc.memory("gpt2", gradient_checkpointing=False, seq_len=64).procedure == "bp"


def test_other_words_name_what_there_is() -> None:
    """Each value is one of the flag's, and no spelling of a flag is taken twice on one command."""
    for name, row in FLAGS.items():
        for value in (*row.values.values(), *row.switches.values()):
            assert value in row.choices, (name, value)
    for command in COMMANDS.values():
        spelled = [each for flag in command.flags if flag.how == "flag" for each in flag.names]
        own = {flag.name for flag in command.flags}
        spelled += [switch for switch, (name, _) in switches().items() if name in own]
        assert len(spelled) - len({*spelled}) <= 1  # explain and formulas have a format of their own
    assert main(["memory", "gpt2", "--gradient-checkpointing", "--procedure", "bp"]) == 2
    assert main(["memory", "gpt2", "--gradient-checkpointing=yes"]) == 2
