"""Seconds and joules of a step: `cost --on` and `run-cost`, on the command line and in Python, say the same."""

import json
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.calibration import Calibration, save
from timings import flat

# A preset of every kind, with lengths that are quick to price.
CASES = {
    "gpt2": {"batch_size": 2, "seq_len": 64},
    "bert-base": {"seq_len": 64},
    "llama-3.2-1b": {"seq_len": 128},
    "gemma-2-2b": {"seq_len": 64},
    "mixtral-8x7b": {"seq_len": 64},
    "deepseek-v2-lite": {"seq_len": 64},
    "t5-small": {"seq_len": 32, "target_len": 16},
    "bart-base": {"seq_len": 32},
    "whisper-tiny": {"target_len": 16},
    "vit-base-patch16-224": {"seq_len": 197},
    "deberta-base": {"seq_len": 64},
}


def flags(given: dict[str, object]) -> list[str]:
    return [op for name, value in given.items() for op in (f"--{name.replace('_', '-')}", str(value))]


def printed(capsys, *line: str) -> dict:
    assert main([*line, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("model", CASES)
def test_one_step_takes_as_long_wherever_it_is_asked(model, capsys):
    settings, on = CASES[model], "H100-SXM"
    step = lc.cost(model, on=on, **settings)
    run = lc.run_cost(model, 10**9, on, 64, **settings)
    answer = printed(capsys, "cost", model, "--on", on, *flags(settings))
    run_answer = printed(capsys, "run-cost", model, "--tokens", "1e9", "--on", on, "--devices", "64", *flags(settings))
    assert step.dtype == answer["dtype"] == "bf16-masters"
    assert run.dtype == run_answer["dtype"] == "bf16"
    seconds, joules = run.figures["step"], run.figures["step_energy"]
    assert (seconds.value, *seconds.interval) == (step.timing.seconds, step.timing.time.low, step.timing.time.high)
    assert (joules.low, joules.value, joules.high) == pytest.approx(step.timing.joules)
    assert answer["time"]["seconds"] == run_answer["figures"]["step"]["value"] == seconds.value
    assert answer["time"]["energy"]["joules"] == pytest.approx(run_answer["figures"]["step_energy"]["value"])
    assert run_answer["total_by"] == "step"


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("more", [{"procedure": "recompute"}, {"procedure": "pepita"}, {"lora": "c_attn"}])
@pytest.mark.parametrize(("on", "dtype"), [("V100", "fp16-masters"), ("V100", "fp32"), ("RTX 4090", "bf16-masters")])
def test_whatever_the_step_is(more, on, dtype):
    settings = {"seq_len": 64, "optimizer": "adamw", "dtype": dtype, **more}
    step = lc.cost("gpt2", on=on, **settings)
    for book in ("matmul", "run"):  # what counts as an operation does not change how long it takes
        assert lc.run_cost("gpt2", 10**9, on, price_book=book, **settings).figures["step"].value == step.timing.seconds


def test_a_measured_machine_makes_the_time_of_the_run(tmp_path: Path, monkeypatch, capsys):
    """Steps times seconds over devices: a calibration's file, `here`, and rates; by hand."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "learncost" / "device.json"
    save(Calibration("made up", "2026-01-01", "PyTorch 0", {"operators": {"fp32": flat()}}), path)
    settings = {"seq_len": 64, "batch_size": 2, "optimizer": "adamw"}
    seconds = lc.cost("gpt2", on="here", **settings).timing.seconds
    for on in ("here", str(path), lc.rates("here")):
        run = lc.run_cost("gpt2", 128 * 1000, on, 4, **settings)
        assert run.total_by == "step"
        assert run.figures["step"].value == seconds
        assert run.days == pytest.approx(1000 * seconds / 4 / 86_400)
        assert run.energy_kwh is None
        assert "--power" in run.unknown["energy"]
    powered = lc.run_cost("gpt2", 128 * 1000, "here", power=65, **settings)
    assert powered.figures["step_energy"].value == pytest.approx(65 * seconds)
    run_answer = printed(
        capsys, "run-cost", "gpt2", "--tokens", "128000", "--on", "here", "--devices", "4", *flags(settings)
    )
    assert run_answer["figures"]["step"]["value"] == seconds
    planned = {**settings, "plan": "flash"}
    assert lc.run_cost("gpt2", 10**6, "here", **planned).figures["step"].value == (
        lc.cost("gpt2", on="here", **planned).timing.seconds
    )
    with pytest.raises(lc.InputError, match="was measured in fp32, not in 'bf16'"):
        lc.run_cost("gpt2", 10**6, "here", dtype="bf16-masters", **settings)
    assert main(["run-cost", "gpt2", "--tokens", "1e9", "--on", "here"]) == 0
    assert "Run time uses the modelled steps" in " ".join(capsys.readouterr().out.split())


def test_where_the_step_is_not_known_the_run_still_is():
    run = lc.run_cost("gpt2", 10**9, "A10G", peak_tflops=70)
    assert "has no bandwidth" in run.unknown["modelled_step"]
    assert run.days > 0
