"""The changes that `memory` suggests: each peak is that of the same command with its flags, and none saves more."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from learncost.cli.command import main

OTHERS = (
    "--procedure recompute",
    "--optimizer adamw8bit",
    "--precision nf4-double --lora all-linear",
    "--plan chunked-loss",
    "--seq-len 512",
)


def asked(capsys: pytest.CaptureFixture[str], flags: str) -> dict[str, Any]:
    assert main([*shlex.split(f"memory {flags}"), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def without(flags: str, change: str) -> str:
    """Return the flags without those that the change sets."""
    words, replaced = shlex.split(flags), shlex.split(change)[::2]
    for flag in replaced:
        if flag in words:
            place = words.index(flag)
            del words[place : place + 2]
    return shlex.join([*words, *shlex.split(change)])


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    "flags",
    [
        "gpt2 --on RTX-4090",
        "gpt2 --budget 2GB --batch-size 8",
        "gpt2 --budget 1GB --engine graph --plan flash",
        "gpt2 --budget 8GB --mesh dp=2 --placement fsdp --batch-size 2",
        "gpt2 --budget 1GB --procedure decode --context 512 --batch-size 4",
    ],
)
def test_a_change_leaves_the_peak_of_the_command_with_its_flags(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, flags)
    changes = answer["changes"]
    assert len(changes) == 4
    for change in changes:
        assert asked(capsys, without(flags, change["flags"]))["peak"] == change["peak"] < answer["peak"], change
    *alone, together = changes
    assert alone == sorted(alone, key=lambda change: change["peak"])
    assert together["peak"] < alone[0]["peak"]


@pytest.mark.slow
def test_no_other_change_saves_more(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = {each: asked(capsys, f"gpt2 --on RTX-4090 {each}")["peak"] for each in OTHERS}
    best = sorted(peaks, key=lambda each: peaks[each])[:3]
    assert [change["flags"] for change in asked(capsys, "gpt2 --on RTX-4090")["changes"][:3]] == best


def test_nothing_is_changed_twice_and_engines_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "gpt2 --on RTX-4090 --optimizer adamw8bit --procedure recompute"
    names = {change["name"] for change in asked(capsys, flags)["changes"]}
    assert names == {"QLoRA", "half the length", "chunked loss", "all three together"}
    assert "changes" not in asked(capsys, "gpt2")
    assert "changes" not in asked(capsys, "gpt2 --procedure bp,recompute --budget 8GB")["procedures"]["bp"]


def test_the_screen_answers_first_and_shows_the_changes_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "gpt2", "--on", "RTX-4090"]) == 0
    text = capsys.readouterr().out
    assert "Fits in 24.0 GB with 21.1 GB to spare: up to 18 sequences" in text.partition("\n\n")[0].replace("\n", " ")
    assert text.index("live arrays at the peak") < text.index("Changes that save most memory")
    assert main(["memory", "gpt2", "--budget", "1.2GB"]) == 0
    first = capsys.readouterr().out.partition("\n\n")[0].replace("\n", " ")
    peak = asked(capsys, "gpt2 --budget 1.2GB")["peak"]
    assert f"{(peak - 1_200_000_000) / 1e9:.2f} GB too much: 1,200,000,000 bytes are too few" in first
