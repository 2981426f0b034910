"""The command contest: what it writes, how it is stopped, what it refuses in one line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from learncost.cli.command import main

COMMAND = [sys.executable, "-m", "learncost.cli.command", "contest"]
QUICK = ["--rates", "0.1", "--seeds", "0", "--widths", "8"]


def test_the_tables_and_the_file(tmp_path, capsys):
    """What is shown is what the file says; the file is written whole under its name alone."""
    out = tmp_path / "contest.json"
    assert main(["contest", "digits", "--budget", "flops:2e6", *QUICK, "--out", str(out)]) == 0
    screen, progress = capsys.readouterr()
    assert [path.name for path in tmp_path.iterdir()] == ["contest.json"]
    data = json.loads(out.read_text())
    names = ["bp", "recompute", "pepita:paper", "pepita:stable", "mempepita:stable", "head-only"]
    lines = {line.split()[0]: line.split() for line in screen.splitlines()[::-1] if line.split()[:1] != []}
    for name, result in zip(names, data["results"], strict=True):
        (outcome,) = result["trainings"]
        assert lines[name][1:6] == [
            f"{outcome['after']['loss']:.3f}",
            "-",
            f"{100 * outcome['after']['accuracy']:.1f}",
            "%",
            "-",
        ]
        assert lines[name][6:] == ["0.1", "no"]
        assert result["flops"] == result["steps"] * result["flops_per_step"] <= 2 * 10**6
        assert result["flops"] + result["flops_per_step"] > 2 * 10**6
        assert len(outcome["losses"]) == result["steps"]
        assert f"{name}: seed 0, learning rate 0.1" in progress
    assert lines["chance"][1] == f"{data['chance']['loss']:.3f}"
    assert {result["procedure"] for result in data["results"]} == {
        "bp",
        "recompute",
        "pepita",
        "mempepita",
        "head-only",
    }


def test_every_procedure_with_every_optimizer(capsys):
    flags = ["--procedures", "bp,fa", "--budget", "steps:2", "--seeds", "0", "--widths", "8", "--json"]
    assert main(["contest", "digits", *flags, "--optimizer", "momentum,adamw"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    taking_part = [(result["procedure"], result["optimizer"]) for result in results]
    assert taking_part == [("bp", "momentum"), ("bp", "adamw"), ("fa", "momentum"), ("fa", "adamw")]
    rates = [sorted(trial["learning_rate"] for trial in result["trials"]) for result in results]
    assert [tried[0] for tried in rates] != [tried[0] for tried in rates[::-1]]
    assert all({0.001, 0.01, 0.1} <= set(tried) for tried in rates)
    assert results[0]["flops_per_step"] < results[1]["flops_per_step"]


@pytest.mark.slow  # equal FLOPs and memory: tests/test_contest_counts.py
def test_equal_seconds(capsys):
    flags = ["--procedures", "bp,head-only", "--budget", "seconds:1", "--batch-size", "1000", "--widths", "512"]
    assert main(["contest", "digits", *flags, "--seeds", "0", "--rates", "0.1"]) == 0
    assert "1 seconds of steps each" in capsys.readouterr().out


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("model", [["--model", "gpt2"], []])
def test_on_text_with_a_model_of_ones_own(model, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("what is learned is what was there, and what was there is learned. " * 40)
    sizes = ["--hidden-size", "8", "--num-attention-heads", "2", "--intermediate-size", "8", "--num-hidden-layers", "1"]
    flags = ["--budget", "memory:500kB", "--steps", "2", "--seq-len", "16", "--seeds", "0", "--rates", "0.01", "--json"]
    assert main(["contest", str(tmp_path), "--procedures", "bp,pepita", *sizes, *flags, *model]) == 0
    data = json.loads(capsys.readouterr().out)
    for result in data["results"]:
        assert result["predicted_peak_bytes"] <= 500_000
        assert result["steps"] == 2
        assert result["measured_peak_bytes"] > 0
    assert data["price_book"] == "run"


def test_markdown_and_the_matrix_products_alone(capsys):
    flags = [
        "--procedures",
        "bp",
        "--budget",
        "steps:2",
        "--price-book",
        "matmul",
        "--batch-size",
        "4",
        "--format",
        "md",
    ]
    assert main(["contest", "digits", *QUICK, *flags]) == 0
    out = capsys.readouterr().out
    # Forward and update of 64 x 8 and 8 x 10, backward of the last: MACCs of two steps on four images.
    maccs = 2 * 4 * (2 * (64 * 8 + 8 * 10) + 8 * 10)
    assert f"| bp | 2 | 4 | {maccs / 1e9:.3f} | {2 * maccs / 1e9:.3f} |" in out


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_prints_what_is_there(number):
    process = subprocess.Popen(
        [*COMMAND, "digits", "--budget", "steps:1000000", "--procedures", "bp,head-only", *QUICK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    while not process.stderr.readline().startswith("bp: seed 0"):
        assert process.poll() is None
    process.send_signal(number)
    screen, progress = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in progress
    assert "Stopped before the end" in screen
    assert "predicted" in screen


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "contest requires DATA"),
        ("digts", "no such file or folder: digts; or DATA is digits"),
        ("digits LICENSE", "digits cannot be combined with other data"),
        ("digits --procedures bp,foo", "no learning procedure is called 'foo'"),
        ("digits --procedures bp,bp", "different names"),
        ("digits --procedures bp:paper", "only pepita and mempepita have modes"),
        ("digits --mode other", "no mode is called 'other'"),
        ("digits --budget flops:1e4", "one step of bp needs"),
        ("digits --budget memory:1kB", "needs"),
        ("digits --budget steps:1e99", "too many"),
        ("digits --budget hours:3", "budget must be such as"),
        ("digits --budget memory:1MB --batch-size 3", "--batch-size cannot be combined with --budget memory"),
        ("digits --steps 3", "--steps cannot be combined with --budget steps"),
        ("digits --batch-size 1301", "exceeds the 1,300 training examples"),
        ("digits --seeds 0,0", "seeds must be a comma-separated list of different"),
        ("digits --rates 0.1,-1", "rates must be a comma-separated list of numbers above 0"),
        ("digits --optimizer adam8bit", "adam8bit has no step, only a state"),
        ("digits --dtype bf16", "no type is called 'bf16'"),
        ("digits --price-book paper", "price-book must be one of run, matmul"),
        ("digits --model resnet", "the models for digits are mlp and vit"),
        ("digits --model vit --widths 3", "--widths does not apply to vit"),
        ("digits --model vit --image-size 16", "8 by 8 pixels"),
        ("digits --model vit --hidden-size 33", "not a multiple of --num-attention-heads"),
        ("digits --hidden-size 3", "--hidden-size does not apply to mlp"),
        ("digits --widths 3,x", "widths must be a whole number"),
        ("digits --hiden-size 3", "unknown flag '--hiden-size'"),
        ("digits --out /nowhere/x.json", "there is no folder /nowhere"),
        ("LICENSE --widths 3", "--widths applies only to the mlp"),
        ("LICENSE --seq-len 100000", "too few for sequences of 100000"),
        ("LICENSE --model bert-base-uncased", "not a causal language model"),
        ("LICENSE --model gtp2", "did you mean 'gpt2'"),
    ],
)
def test_what_is_wrong_is_one_line(line, message, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert main(["contest", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (last,) = err.splitlines()
    assert last.startswith("learncost: ")
    assert message in last
