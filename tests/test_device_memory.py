"""The first line of every answer about a device says what does not fit, with the peak of `memory`."""

import json

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.viz.document import document
from learncost.viz.views.engines import by_engine

ONE = "--on H100-SXM"
MESH = "--mesh dp=2 --placement ddp --on DGX-H100"


def asked(line, capsys):
    assert main(line.split()) == 0
    return capsys.readouterr().out


def first_line(text):
    """The title of an answer, which may be broken into several lines, up to the first empty line or sentence."""
    return " ".join(text.partition("\n\n")[0].split())


def peak_of(line, capsys):
    found = json.loads(asked(f"memory {line} --json", capsys))
    return found["peak"], found["budget"]


def test_the_memory_of_gpus_is_that_of_their_data_sheets():
    assert [lc.device(name).ram for name in ("H100-SXM", "A100-SXM-40GB")] == [80 * 10**9, 40 * 10**9]


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize(
    "line",
    [
        f"cost llama-3-8b {ONE}",
        f"run-cost llama-3-8b --tokens 1e9 {ONE}",
        f"trace llama-3-8b --seq-len 64 {ONE}",
        f"cost llama-3-8b {MESH}",
        f"place llama-3-8b {MESH}",
        f"cost llama-3-8b --plan flash {ONE}",
        f"cost llama-3-70b --procedure decode --context 100 {ONE}",
        "cost gpt2 --batch-size 512 --procedure pepita --on A100-SXM-40GB",
    ],
)
def test_what_does_not_fit_is_in_the_first_line(line, capsys):
    """The bytes are those of `memory` with the same flags: of llama-3-8b, 8.03e9 parameters of 2 bytes, 4 of masters
    and 8 of AdamW are 112 GB in any case."""
    command, *words = line.split()
    same = " ".join(words).replace("--tokens 1e9 ", "")
    peak, budget = peak_of(same, capsys)
    assert peak > budget
    if "llama-3-8b" in line:
        assert peak > lc.cost("llama-3-8b").parameters * 14 > budget == 80 * 10**9
    text = f"; does not fit: {peak / 1e9:.3g} GB of {budget / 1e9:.1f} GB"
    assert text in first_line(asked(line, capsys))
    answer = json.loads(asked(f"{line} --json", capsys))
    if command != "trace":
        assert (answer["memory"]["peak"], answer["memory"]["available"]) == (peak, budget)
        assert answer["memory"]["fits"] is False


@pytest.mark.parametrize("command", ["cost", "trace", "run-cost --tokens 1e9", "memory"])
def test_what_fits_says_nothing(command, capsys):
    """124,439,808 parameters take 1.99 GB with all states."""
    name, *more = command.split()
    assert "does not fit" not in asked(" ".join((name, "gpt2", *more, ONE)), capsys)


def test_devices_without_a_mesh_each_hold_the_model(capsys):
    """GPT-3 has 175e9 parameters: no V100 holds them, however many there are (Brown et al. 2020)."""
    line = "run-cost gpt3-175b --tokens 3e11 --on V100 --devices 10000"
    assert "GB on each device, without --mesh" in first_line(asked(line, capsys))


def test_a_mesh_that_run_cost_and_search_do_not_fit(capsys):
    line = "llama-3-8b --tokens 1e9 --mesh dp=2 --placement ddp --on DGX-H100"
    run = json.loads(asked(f"run-cost {line} --json", capsys))
    assert run["memory"]["peak"] == run["mesh"]["memory"] > run["memory"]["available"] == int(80e9 / 1.16)
    assert f"; does not fit: {run['memory']['peak'] / 1e9:.3g} GB of 69.0 GB" in first_line(
        asked(f"run-cost {line}", capsys)
    )
    found = lc.search("llama-3-70b", on="DGX-H100", devices=2, batch_size=2, seq_len=128)
    assert not found.found
    assert found.nearest is not None
    assert f"; does not fit: {found.nearest[0] / 1e9:.3g} GB of 69.0 GB" in found.sheets()[0].title


def test_a_microcontroller_is_answered_without_a_program(capsys):
    """Weights and AdamW's states of gpt2 in fp32 are 12 bytes a parameter; no program is laid out for them."""
    first = first_line(asked("cost gpt2 --on stm32f407", capsys))
    assert f"; does not fit: at least {124_439_808 * 12 / 1e9:.3g} GB of 193 kB" in first


def test_a_device_of_unknown_memory_has_no_answer(tmp_path):
    """Neither has a machine that was calibrated: what it has free is not published."""
    path = tmp_path / "board.toml"
    path.write_text('name = "Board"\nsource = "a test"\npeak_tflops = { fp32 = 1.0 }\nbandwidth_gbs = [10.0]\n')
    found = lc.cost("gpt2", on=str(path), seq_len=8)
    assert found.memory is None
    assert "memory" not in found.to_dict()


def test_a_peak_that_is_not_known_is_said(monkeypatch):
    def refused(*arguments, **keywords):
        raise lc.InputError("the engine refuses it")

    monkeypatch.setattr("learncost.reports.memory.on_device.engine_of", refused)
    for found, available in (
        (lc.cost("gpt2", seq_len=8, on="H100-SXM"), 80 * 10**9),
        (lc.place("gpt2", "dp=2", placement="ddp", seq_len=8, on="DGX-H100"), int(80e9 / 1.16)),
    ):
        assert found.memory.to_dict() == {"available": available, "unavailable": "the engine refuses it"}
        (sheet, *_) = found.sheets()
        assert "Whether it fits the memory of the device is not known: the engine refuses it." in sheet.notes
        assert "does not fit" not in sheet.title


def test_the_page_of_a_step_begins_with_it():
    page = lc.report("llama-3-8b", procedure="bp", on="H100-SXM", seq_len=64, output=None).html
    peak = lc.memory("llama-3-8b", on="H100-SXM", seq_len=64).peak
    assert f"; does not fit: {peak / 1e9:.3g} GB of 80.0 GB" in page


def test_the_time_of_collectives_of_place():
    """A ring of two devices sends half of an all_reduce's payload twice over NVLink; the time is cost's."""
    asked_of = {"mesh": "dp=2", "placement": "ddp", "seq_len": 64, "on": "DGX-H100"}
    placed, cost = lc.place("gpt2", **asked_of), lc.cost("gpt2", **asked_of)
    assert [*map(vars, placed.times())] == [pytest.approx(vars(row)) for row in cost.over_time.moved]
    (row,) = [row for row in placed.times() if row.op == "all_reduce" and row.role == "gradients"]
    assert row.seconds > 124_439_808 * 2 / 450e9  # bf16 over 18 links of 25 GB/s (NVIDIA H100 white paper)


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("model", ["gpt2", "t5-small", "vit-b-16"])
def test_a_page_about_a_gpu_has_the_memory_that_memory_and_fit_have(model):
    """PyTorch's autograd on that GPU is the engine of all three; `test_memory_cuda.py` compares it with an H100."""
    expected = lc.memory(model, on="H100-SXM")
    page = document(model, on="H100-SXM")["memory"]
    assert (page["engine"], page["peak"], page["split"]) == ("eager", expected.peak, dict(expected.split))
    assert page["available"] == expected.budget == 80 * 10**9
    assert max(line["bytes"] for line in page["curve"]["lines"]) == expected.peak
    (row, *_) = lc.fit(model, procedures="bp", on="H100-SXM").rows
    assert (row.engine, row.plan, row.ram) == ("eager", expected.plan, expected.peak)
    (bar,) = [bar for bar in by_engine(model, on="H100-SXM").charts[0].rows if bar.here]
    assert (bar.name, sum(bar.parts.values())) == ("eager", expected.peak)


def test_a_page_without_a_device_has_the_engine_of_memory_and_the_table_at_other_sizes():
    page = document("gpt2", seq_len=64)["memory"]
    assert (page["engine"], page["available"]) == ("eager", None)
    assert page["peak"] == lc.memory("gpt2", seq_len=64).peak
    assert page["other_sizes"]["engine"] == "graph"
    table = document("gpt2", seq_len=64, engine="graph")["memory"]
    assert (table["engine"], table["peak"]) == ("graph", lc.memory("gpt2", seq_len=64, engine="graph").peak)


def test_a_scan_of_many_tokens_has_the_peak_of_memory():
    """A Mamba scans 2,048 tokens in each block, of which a few run."""
    assert lc.cost("mamba-130m", num_hidden_layers=2, on="H100-SXM").memory.peak == (
        lc.memory("mamba-130m", num_hidden_layers=2, on="H100-SXM").peak
    )


def test_compare_has_the_time_and_the_memory_of_each_procedure(capsys):
    """Both are those of `cost --on` and `memory --on` with the procedure."""
    asked_of = {"on": "A100-SXM-40GB", "batch_size": 8}
    found = lc.compare("gpt2", "bp,recompute,pepita", **asked_of)
    of_run = found.to_dict()["price_books"]["run"]
    plain = lc.compare("gpt2", "bp,recompute,pepita", batch_size=8)
    for name in ("bp", "recompute", "pepita"):
        assert of_run[name]["time"]["seconds"] == lc.cost("gpt2", name, **asked_of).time
        assert of_run[name]["memory"]["peak"] == lc.memory("gpt2", procedure=name, **asked_of).peak
        assert found.costs["run"][name].total == plain.costs["run"][name].total
        assert "time" not in plain.to_dict()["price_books"]["run"][name]
    # More operations take more time, and a checkpoint of each block less memory.
    assert of_run["bp"]["time"]["seconds"] < of_run["recompute"]["time"]["seconds"]
    assert of_run["bp"]["memory"]["peak"] > of_run["recompute"]["memory"]["peak"]
    text = asked("compare llama-3-8b --on H100-SXM --procedures bp,pepita --seq-len 64", capsys)
    assert "; does not fit in 80.0 GB: bp, pepita" in first_line(text)
    assert "peak memory" in text
    assert main(["compare", "gpt2", "--on", "H100"]) == 2
    assert "'H100' matches NVIDIA H100 SXM, NVIDIA H100 PCIe, DGX H100: give one of these" in capsys.readouterr().err


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("ways", [{"procedure": "recompute"}, {"plan": "recompute=all"}])
def test_recomputation_costs_time_in_every_answer(ways):
    """A block's forward pass runs once more: the added time is that of its lines in `recomputation`, and at most that
    of the forward pass."""
    asked_of = {"on": "A100-SXM-40GB", "batch_size": 4, "seq_len": 256}
    plain = {"plan": "flash", "engine": "graph"} if "plan" in ways else {}
    more = plain | {"plan": f"flash,{ways['plan']}"} if "plan" in ways else ways
    without, with_it = lc.cost("gpt2", **plain, **asked_of), lc.cost("gpt2", **more, **asked_of)
    forward = sum(row.time or 0.0 for row in without.rows if row.macro_operation == "forward")
    added = with_it.time - without.time
    assert 0.3 * forward < added < 1.1 * forward
    run = [lc.run_cost("gpt2", tokens="1e9", **each, **asked_of).figures["step"].value for each in (plain, more)]
    assert run == [without.time, with_it.time]
    for cost, each in ((without, plain), (with_it, more)):
        timeline = lc.trace("gpt2", **each, **asked_of).timeline
        traced = sum(part.length for process in timeline.processes for part in process.slices)
        assert traced == pytest.approx(cost.time * 1e9, rel=1e-6)
        assert document("gpt2", **each, **asked_of)["totals"]["seconds"] == cost.time
