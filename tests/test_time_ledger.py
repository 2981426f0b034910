"""The time in the ledger: rows add up to the table's, for models of every kind; the flag --on and its refusals."""

import json

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.devices.rates import TILE, published
from learncost.timing.predict import time
from timings import flat, model_rows


@pytest.mark.parametrize("by", ["layer", "macro-operation", "equation", "kind"])
def test_rows_add_up_to_the_time_of_the_step(by):
    asked = {"seq_len": 32, "n_positions": 32, "batch_size": 2, "optimizer": "adamw", "by": by}
    counts = [(row.line, row.maccs, row.flops, row.bytes) for row in lc.cost("gpt2", **asked).rows]
    for plan, run_under in (("none", ""), (None, "flash")):  # without a plan attention is fused
        rows, sizes = model_rows({"model_type": "gpt2", "n_positions": 32}, run_under, length=32)
        predicted = time(rows, sizes, flat(launch=1e-6))
        ledger = lc.cost("gpt2", **asked, plan=plan, on=flat(launch=1e-6))
        assert sum(row.time or 0 for row in ledger.rows) == pytest.approx(predicted.total)
        assert ledger.timing.seconds == pytest.approx(predicted.total)
        if by != "equation":  # where rows without a time of their own are rows of their own
            assert [(row.line, row.maccs, row.flops, row.bytes) for row in ledger.rows] == counts


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    "model", ["bert-base", "t5-small", "mixtral-8x7b", "deberta-base", "deepseek-v2-lite", "vit-base-patch16-224"]
)
def test_models_of_every_kind_have_a_time(model):
    length = 197 if model.startswith("vit") else 64
    ledger = lc.cost(model, seq_len=length, on=lc.rates("H100-SXM", "bf16"), dtype="bf16-masters")
    assert sum(row.time or 0 for row in ledger.rows) == pytest.approx(ledger.timing.seconds)
    assert {row.bound for row in ledger.rows if row.time} <= {"compute", "memory", "launch"}
    # No faster than its peak and the book of matrix products allow.
    floor = lc.cost(model, price_book="matmul", seq_len=length).total.flops / 989e12
    assert ledger.timing.seconds > floor


def test_a_large_product_on_a_published_device_attains_what_its_source_measured():
    device = lc.device("H100-SXM")
    rates = published(device, "bf16")
    share = 8192 / (8192 + TILE)
    assert rates.products["NN"].rate(8192, 8192, 8192) == pytest.approx(
        device.measured_tflops["bf16"] * 1e12 * share**3
    )
    assert rates.products["NN"].rate(TILE, 2**14, 2**14) == pytest.approx(0.5 * 794.5e12, rel=0.02)


# A preset of every kind, with the plan that fuses most where it has blocks that learn.
KINDS = {
    "gpt2": "flash,fused",
    "llama-3.2-1b": "flash,fused",
    "mixtral-8x7b": "flash,fused",
    "deepseek-v2-lite": None,
    "t5-small": None,
    "bert-base": "fused",
    "deberta-base": None,
    "vit-b-16": None,
}


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("by", ["equation", "layer"])
@pytest.mark.parametrize("model", KINDS)
def test_no_line_is_faster_than_the_device(model, by):
    """A line inside of another one's kernel has no time of its own; the kernel's is whole, at one line, and no more
    operations a second are done than at the peak: those of the line, and those of all of its kernel."""
    peak = 989e12
    for plan in {None, "none", KINDS[model]}:
        engine = "graph" if plan and "fused" in plan else ""
        length = 197 if model == "vit-b-16" else 256
        ledger = lc.cost(model, on="H100-SXM", by=by, plan=plan, seq_len=length, engine=engine)
        assert sum(row.time or 0 for row in ledger.rows) == pytest.approx(ledger.timing.seconds)
        for row in ledger.rows:
            if row.time is None:
                assert row.timing.inside
                assert (row.timing.flops, row.timing.bytes) == (0, 0)
            elif row.flops:
                assert row.flops / row.time <= peak, row
                assert row.timing.flops / row.time <= peak, row
        flops_timed = sum(row.timing.flops for row in ledger.rows)
        if plan == "none":  # flash computes the blocks that are visible only
            assert flops_timed == pytest.approx(ledger.total.flops, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "batch", "precision", "milliseconds"),
    [("gpt2", 8, "bf16-masters", 22.8), ("gpt2", 32, "bf16-masters", 73.0), ("gpt2-medium", 8, "bf16-masters", 52.6)],
)
def test_a_step_with_fused_attention_takes_what_was_measured(model, batch, precision, milliseconds):
    """Plain modules with flash attention on an H100, in bf16 throughout (`docs/time-measured.md`, On a GPU)."""
    asked = {"batch_size": batch, "seq_len": 1024, "precision": precision, "optimizer": "adamw", "on": "H100-SXM"}
    assert 1e3 * lc.cost(model, **asked).timing.seconds == pytest.approx(milliseconds, rel=0.06)
    assert 1e3 * lc.cost(model, plan="none", **asked).timing.seconds > 1.3 * milliseconds  # it stores the scores


def test_a_line_inside_a_kernel_says_which(capsys):
    ledger = lc.cost("gpt2", on="H100-SXM", by="equation", seq_len=64)
    rows = {(row.layer, row.macro_operation, row.line): row for row in ledger.rows}
    product, bias = rows["attention", "forward", "Q.linear"], rows["attention", "forward", "Q"]
    assert bias.time is None
    assert bias.timing.inside == ("attention.Q.linear",)
    assert product.timing.flops == product.flops + bias.flops
    # X, W, b and the result, in bf16, of twelve blocks: what lies between them stays in the kernel.
    assert product.timing.bytes == 12 * 2 * (64 * 768 + 768 * 768 + 768 + 64 * 768)
    command = ["cost", "gpt2", "--on", "H100-SXM", "--by", "equation", "--seq-len", "64"]
    assert main([*command, "--json"]) == 0
    (inside_row,) = (
        row
        for row in json.loads(capsys.readouterr().out)["rows"]
        if (row["layer"], row["macro_operation"], row["line"]) == ("attention", "forward", "Q")
    )
    assert (inside_row["seconds"], inside_row["inside"]) == (None, "attention.Q.linear")
    assert main([*command, "--format", "csv"]) == 0
    assert ",,,0,0,attention.Q.linear," in capsys.readouterr().out
    assert main(command) == 0
    assert "in Q.linear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("precision", "optimizer", "width"),
    [
        # Rajbhandari et al. 2020 (ZeRO), section 3.1: fp32 master weights, momentum and variance, 16-bit weights and
        # gradients. Read: gradient 2, masters 4, states 8; written: masters 4, weights 2, states 8.
        ("bf16-masters", "adamw", 2 + 4 + 8 + 4 + 2 + 8),
        ("bf16-masters", "sgd", 2 + 4 + 4 + 2),
        ("bf16-true", "adamw", 2 + 2 + 4 + 2 + 4),
        ("fp32", "adamw", 4 + 4 + 8 + 4 + 8),
        ("bf16-masters-fp32-gradients", "adamw", 4 + 4 + 8 + 4 + 2 + 8),
    ],
)
def test_an_optimizer_reads_and_writes_its_masters_and_states(precision, optimizer, width):
    bandwidth = 1e9
    ledger = lc.cost(
        "gpt2", seq_len=8, n_layer=2, precision=precision, optimizer=optimizer, on=flat(bandwidth=bandwidth)
    )
    (seconds,) = (row.time for row in ledger.rows if row.layer == "optimizer")
    assert seconds == pytest.approx(width * ledger.parameters / bandwidth, rel=1e-3)
    drawn = lc.trace(
        "gpt2", seq_len=8, n_layer=2, precision=precision, optimizer=optimizer, on=flat(bandwidth=bandwidth)
    )
    assert drawn.timeline.processes[0].slices[-1].length / 1e9 == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("command", ["cost gpt2", "run-cost gpt2 --tokens 1e9", "trace gpt2"])
def test_the_time_of_a_step_needs_the_types_of_its_update(command, capsys):
    assert main([*command.split(), "--on", "H100-SXM", "--dtype", "bf16"]) == 2
    assert "bf16 is ambiguous in training" in capsys.readouterr().err


def test_energy_is_time_times_power(capsys):
    ledger = lc.cost("gpt2", on=lc.rates("H100-SXM", "bf16"), dtype="bf16-masters")
    low, usual, high = ledger.timing.joules
    watts = lc.run_cost("gpt2", 10**9, "H100-SXM").figures["power"].value  # the device with its host: one answer
    assert usual == pytest.approx(watts * ledger.timing.seconds)
    assert low < usual < high
    assert main(["cost", "gpt2", "--on", "H100-SXM", "--dtype", "bf16-masters", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["time"]["energy"]["joules"] == pytest.approx(usual)
    assert record["time"]["energy"]["label"] == "modelled"
    assert sum(row["seconds"] or 0 for row in record["rows"]) == pytest.approx(record["time"]["seconds"])


@pytest.mark.parametrize("form", ["table", "md", "csv", "latex"])
def test_every_format_has_the_columns(form, capsys):
    assert main(["cost", "gpt2", "--on", "H100-SXM", "--dtype", "bf16-masters", "--format", form]) == 0
    text = capsys.readouterr().out
    assert "bound" in text
    assert "compute" in text
    assert ("seconds" if form == "csv" else "time") in text


def test_a_device_by_its_name_in_python_as_on_the_command_line(capsys):
    """The same seconds by a name, a `Device`, rates; in the type that training runs in, where none is named."""
    for name, dtype in (("A100-SXM-40GB", "bf16"), ("NVIDIA A100-SXM4-40GB", "bf16"), ("Tesla T4", "fp16")):
        ledger = lc.cost("gpt2", seq_len=64, on=name)
        assert ledger.dtype == f"{dtype}-masters"
        same = [lc.device(name), lc.rates(name), lc.rates(name, dtype)]
        assert {lc.cost("gpt2", seq_len=64, on=on).timing.seconds for on in same} == {ledger.timing.seconds}
        assert main(["cost", "gpt2", "--seq-len", "64", "--on", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["time"] == ledger.timing.to_dict()
    for on in ("nosuch", 3, ["V100"], "nosuch.json", ""):
        with pytest.raises(lc.InputError):
            lc.cost("gpt2", on=on)
    with pytest.raises(lc.InputError, match="are for bf16, not 'fp32'"):
        lc.cost("gpt2", dtype="fp32", on=lc.rates("H100-SXM", "bf16"))


def test_without_a_device_nothing_changes(capsys):
    assert main(["cost", "gpt2", "--json"]) == 0
    assert "seconds" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--on", "here"], "run `learncost calibrate`"),
        (["--on", "nosuch"], "no device or cluster is called 'nosuch'"),
        (["--on", "nosuch.json"], "no such file: 'nosuch.json'; `learncost calibrate --out FILE` makes one"),
        (["--on", "V100", "--dtype", "bf16-masters"], "has no peak in bf16 (known: fp16, fp32, fp64)"),
        (["--on", "H100-SXM", "--price-book", "paper"], "time requires --price-book run or matmul, not paper"),
        (["--on", "H100-SXM", "--price-book", "palm"], "time requires --price-book run or matmul, not palm"),
        (
            ["--on", "H100-SXM", "--price-book", "paper", "--procedure", "decode"],
            "time requires --price-book run or matmul, not paper",
        ),
        (["--on", "V100", "--dtype", "bf16", "--procedure", "prefill"], "has no peak in bf16"),
    ],
)
def test_bad_input_is_one_line(flags, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["cost", "gpt2", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("procedure", ["prefill", "decode"])
@pytest.mark.parametrize(
    "model", ["gpt2", "llama-3.2-1b", "t5-small", "gemma-2-2b", "mixtral-8x7b", "deepseek-v2-lite"]
)
def test_inference_has_a_time(model, procedure):
    lengths = {"seq_len": 64} if procedure == "prefill" or model == "t5-small" else {"context": 63}
    ledger = lc.cost(model, procedure, dtype="bf16", on=lc.rates("H100-SXM", "bf16"), **lengths)
    assert sum(row.time or 0 for row in ledger.rows) == pytest.approx(ledger.timing.seconds)
    assert {row.bound for row in ledger.rows if row.time} <= {"compute", "memory", "launch"}
    low, usual, high = ledger.timing.joules
    assert low < usual < high
    watts = lc.run_cost("gpt2", 10**9, "H100-SXM").figures["power"].value  # the device with its host: one answer
    assert usual == pytest.approx(watts * ledger.timing.seconds)
    floor = lc.cost(model, procedure, "matmul", **lengths).total.flops / 989e12
    assert ledger.timing.seconds > floor


def test_a_token_takes_as_long_as_the_weights_and_the_cache_take_to_be_read():
    # Pope et al. 2022, section 2.2: with a small batch the time of a token is that of loading weights and cache.
    settings = {"dtype": "bf16-masters", "context": 8191, "by": "layer"}
    bandwidth = 100e9
    rates = flat(flops=1e15, bandwidth=bandwidth)
    single, many = (lc.cost("llama-3-8b", "decode", batch_size=batch, on=rates, **settings) for batch in (1, 8))
    weights = 2 * (single.parameters - 128256 * 4096)  # of the table of tokens one row alone is read
    for step_cost, batch in ((single, 1), (many, 8)):
        least = (weights + step_cost.cache.bytes) / bandwidth
        assert least < step_cost.timing.seconds < 1.05 * least, batch
        assert {row.bound for row in step_cost.rows if (row.time or 0) > 1e-3} == {"memory"}
    assert many.timing.seconds < 2 * single.timing.seconds


def test_a_long_prompt_is_bound_by_its_products():
    ledger = lc.cost("llama-3-8b", "prefill", seq_len=2048, dtype="bf16", by="kind", on=lc.rates("H100-SXM", "bf16"))
    (linear,) = (row for row in ledger.rows if row.kind == "linear")
    assert linear.bound == "compute"
    # No faster than the best product that the device's source measured: 794.5 TFLOP/s.
    assert ledger.timing.seconds > linear.time > linear.flops / 794.5e12


LIKE_FUSED = """fused(X; W) -> Y
  Z[B M g p k] = X[B M d] W[g p k d]
  A[B M k] = Z[B M g=0[] p=0[] k] Z[B M g=1[] p=1[] k]
  C[B M k] = Z[B M g=0[] p=1[] k] Z[B M g=1[] p=0[] k]
  Y[B M k] = A[B M k] + C[B M k]
sizes: g=2 p=2 k=8 d=8
"""


def test_gradients_at_places_of_two_axes_have_a_time():
    """Where each of all places of two axes is read by itself, as heads and parts of a fused projection are, a part of
    the gradient has two axes of one place, which are numbers and no sizes.
    """
    layer = lc.layer(LIKE_FUSED)
    assert any("1'" in axis for line in lc.derive(layer).step.lines for axis in line.loops)
    ledger = lc.cost(layer, B=2, M=8, on="A100-SXM-40GB")
    assert ledger.total == lc.cost(layer, B=2, M=8).total
    assert sum(row.time or 0 for row in ledger.rows) == pytest.approx(ledger.timing.seconds)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", ["mamba-130m", "rwkv-4-169m", "gpt2"])
def test_recurrences_are_timed_operator_by_operator_and_this_is_said(model):
    """mamba_ssm is an optional package of transformers; without it the scan runs operator by operator."""
    asked = {"on": "H100-SXM", "num_hidden_layers": 1, "seq_len": 16}
    note = "Recurrences run operator by operator, without the kernels of mamba_ssm"
    over_mesh = {**asked, "on": "DGX-H100", "mesh": "dp=8", "batch_size": 8}
    runs = [lc.run_cost(model, "1e9", **asked), lc.run_cost(model, "1e9", **over_mesh)]
    assert [note in run.answer() for run in runs] == [model != "gpt2"] * 2
    for answer in (lc.cost(model, **asked), *runs):
        assert (note in " ".join(str(answer).split())) == (model != "gpt2")
    assert note not in " ".join(str(lc.cost(model, engine="graph", **asked)).split())
