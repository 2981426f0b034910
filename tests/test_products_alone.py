"""fp8 and fp4: products alone are known, so FLOPs are told, and memory and time are refused with a type that works."""

from __future__ import annotations

import json

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.device import devices
from learncost.devices.sustained import sustained
from learncost.ir.precision import BYTES, PRECISIONS, PRODUCTS_ALONE
from learncost.viz.serve.query import choices

SIZES = "--n-layer 1 --seq-len 8"

TOLD = (
    f"cost gpt2 --dtype fp8 {SIZES}",
    f"cost gpt2 --precision fp8 {SIZES} --by equation",
    f"cost gpt2 --dtype fp8 {SIZES} --format csv",
    f"cost gpt2 --dtype fp8 {SIZES} --format html",
    f"cost gpt2 --dtype fp8 --procedure decode --context 4 {SIZES}",
    f"cost llama-2-7b --dtype fp8 --lora q_proj {SIZES}",
    f"compare gpt2 --dtype fp8 --procedure bp,recompute {SIZES}",
)

REFUSED = (
    f"cost gpt2 --dtype fp8 --on H100-SXM {SIZES}",
    f"cost gpt2 --precision fp8 --procedure prefill --on H100-SXM {SIZES}",
    f"cost gpt2 --dtype fp8 --mesh dp=2 --placement zero-1 --batch-size 2 {SIZES}",
    f"memory gpt2 --dtype fp8 {SIZES}",
    f"memory gpt2 --precision fp8 --engine graph {SIZES}",
    f"memory gpt2 --precision fp8 --mesh dp=2 --placement zero-1 --batch-size 2 {SIZES}",
    f"fit gpt2 --budget 24GB --dtype fp8 {SIZES}",
    f"place gpt2 --mesh dp=2 --placement zero-1 --batch-size 2 --precision fp8 {SIZES}",
    f"run-cost gpt2 --tokens 1e9 --on H100-SXM --dtype fp8 {SIZES}",
    f"run-cost gpt2 --tokens 1e9 --on H100-SXM --precision fp8 --mfu 0.4 {SIZES}",
    f"run-cost gpt2 --tokens 1e9 --on B200 --dtype fp4 {SIZES}",
    f"run-cost gpt2 --tokens 1e9 --on DGX-H100 --mesh dp=8 --precision fp8 {SIZES}",
    f"search gpt2 --on DGX-H100 --devices 8 --precision fp8 {SIZES}",
    f"search gpt2 --on DGX-H100 --devices 8 --precision bf16-masters,fp8 {SIZES}",
    f"report gpt2 --dtype fp8 {SIZES}",
    f"trace gpt2 --dtype fp8 {SIZES}",
    f"figure memory gpt2 -o /tmp/never.pdf --dtype fp8 {SIZES}",
    f"figure roofline gpt2 -o /tmp/never.pdf --on H100-SXM --dtype fp8 {SIZES}",
)


@pytest.mark.parametrize("line", TOLD)
def test_counts_are_those_of_any_type(line, capsys):
    assert main(line.split()) == 0
    in_fp8 = capsys.readouterr().out
    assert "fp8" in in_fp8 or "csv" in line or "compare" in line
    if line.startswith("cost"):
        counts = []
        for dtype in ("fp8", "bf16"):
            assert main([*line.replace("fp8", dtype).partition(" --format")[0].split(), "--json"]) == 0
            counts.append(json.loads(capsys.readouterr().out))
        assert counts[0]["total"] == counts[1]["total"]
        assert {row["bytes"] for row in counts[0]["rows"]} == {None}
        assert all(row["bytes"] is not None for row in counts[1]["rows"])


@pytest.mark.parametrize("line", REFUSED)
def test_memory_and_time_are_refused_with_a_type_that_works(line, capsys):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert "the memory and time of fp" in err
    assert "use bf16-masters" in err


@pytest.mark.parametrize("line", [line for line in REFUSED if line.split()[0] in ("cost", "memory", "place")])
def test_the_type_that_is_named_works(line, capsys):
    assert main(line.replace("fp8", "bf16-masters").split()) == 0


@pytest.mark.parametrize("name", PRODUCTS_ALONE)
def test_no_rate_is_told_in_them(name):
    """Every way from a device's name to its rates, in Python too."""
    assert name not in BYTES
    for device in devices().values():
        if name in device.peak_tflops:
            with pytest.raises(lc.InputError, match="use bf16-masters"):
                lc.rates(device, name)
            with pytest.raises(lc.InputError, match="use bf16-masters"):
                sustained(device, name)


def test_programs_and_trainings_say_what_they_compute_in(tmp_path, capsys):
    for line in (f"train {tmp_path} --precision fp8", f"train {tmp_path} --dtype fp8", "emit gpt2 --dtype fp8"):
        assert main(line.split()) == 2
        assert "programs have fp32, fp64, bf16, and no fp8: fp8 works only with cost" in capsys.readouterr().err
    with pytest.raises(lc.InputError, match="no fp8"):
        lc.Training("gpt2", precision="fp8", n_layer=1, n_embd=8, n_head=2, vocab_size=8)


def test_the_explorer_offers_what_it_can_answer():
    offered = {each["name"] for each in choices()["precision"]}
    assert offered == {name for name, precision in PRECISIONS.items() if precision.is_trained}
    assert "fp8" not in offered
