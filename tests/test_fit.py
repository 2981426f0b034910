"""What fits: the largest batch under a limit that the operating system sets, flash beside RAM, advice, refusals."""

import json
import os
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.engines.emitted import EmittedProgram
from learncost.ir.errors import InputError
from learncost.ir.polynomial import base
from learncost.ir.precision import precision_of
from learncost.liveness import live
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.reports.memory.fit import fit
from learncost.reports.memory.inference import InferenceSetting
from learncost.reports.memory.largest import largest_batch, longest_within

MIB = 2**20
MODEL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 500}

STEP = """
import json, resource, sys
import numpy as np
from learncost.engines.emitted import EmittedProgram
from learncost.ir.polynomial import base
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.procedures.step import step

batch, room, model = json.loads(sys.argv[1])
built = build(configure("gpt2", model))
table = step(built, "bp", "sgd")
table = type(table)(**{**vars(table), "outputs": tuple(n for n in table.outputs if n[1:] not in table.weights)})
program = EmittedProgram(table, built.sizes)

def run(batch, length):
    sizes = run_sizes(built, batch, length, None)
    shapes = {name: [sizes[base(axis)] for axis in table.axes[name]] for name in (*table.inputs, *table.weights)}
    given = {name: np.zeros(own, int if name in table.indices else "f4") for name, own in shapes.items()}
    return program(given)

run(1, 128)  # what NumPy and BLAS keep for themselves is there before the limit
with open("/proc/self/status") as status:
    (data,) = (int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + room, data + room))
try:
    run(batch, 512)
except MemoryError:
    sys.exit(3)
"""


def runs(batch, room):
    """Whether a step on so many samples runs in a fresh process that gets so many bytes more than it has."""
    # Every array of 64 KiB and more is given back to the system at once, as NumPy gives it back to the library.
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OPENBLAS_NUM_THREADS": "1"}
    argument = json.dumps([batch, room, MODEL])
    done = subprocess.run(
        [sys.executable, "-c", STEP, argument], env=os.environ | environment, check=False, capture_output=True
    )
    assert done.returncode in (0, 3), done.stderr.decode()
    return done.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA limits what is mapped on Linux only")
def test_the_batch_that_fit_finds_runs_and_one_more_fails():
    room = 160 * MIB
    (row,) = fit("gpt2", room, procedures="bp", seq_len=512, plan="", engine="numpy", **MODEL).rows
    assert row.ram > 8 * MIB
    # Besides the arrays there are Python's objects, and what is rounded up to pages: less than a MiB.
    assert runs(row.largest, room + MIB)
    assert not runs(row.largest + 1, room + MIB)


def test_the_largest_batch_is_found_where_the_peak_jumps():
    """As the chunks of Liger's loss make it: steps of Newton's method went round between two batches."""

    def peak(batch):
        chunk = 2 ** (batch // 1024).bit_length()
        return 10_000 + 20 * batch + 40_000 * batch // chunk % 70_000

    for room in range(10_100, 200_000, 4567):
        batch = largest_batch(peak, room)
        assert peak(batch) <= room < peak(batch + 1)


def test_the_largest_batch_is_where_the_lines_of_a_bent_peak_meet_the_room():
    def peak(batch):
        return max(100 + 7 * batch, 10 * batch + 40, 25 * batch - 500)

    for room in range(107, 2000, 13):
        batch = largest_batch(peak, room)
        assert peak(batch) <= room < peak(batch + 1)
    assert largest_batch(peak, 106) == 0
    asked = []
    with pytest.raises(lc.InputError, match="does not grow with the batch"):
        largest_batch(lambda batch: asked.append(batch) or 64, 100_000)
    assert len(asked) == 6
    almost_level = [largest_batch(lambda batch: asked.append(batch) or max(64 + batch, 2**20 * batch), 2**30)]
    assert almost_level == [1024]
    assert max(asked) < 2**21  # it goes no further than 1,024 times the batch, since a loss has a list of its sequences


def test_frozen_weights_lie_in_flash_where_there_is_flash():
    sizes = {**MODEL, "num_hidden_layers": 3}
    settings = {"procedures": "bp", "seq_len": 16, "train_layers": "last 1", "plan": "", "engine": "graph", **sizes}
    (ram,) = fit("gpt2", "1GB", **settings).rows
    (both,) = fit("gpt2", "1GB", "1GB", **settings).rows
    cost = lc.cost("gpt2", seq_len=16, train_layers="last 1", **sizes)
    assert ram.flash == 0
    # fp32: four bytes of every weight that does not learn.
    assert both.flash == ram.ram - both.ram == 4 * (cost.parameters - cost.trained_parameters)
    (none,) = fit("gpt2", "1GB", "1kB", **settings).rows
    assert not none.fits


def test_a_batch_more_than_the_largest_takes_more_than_there_is():
    for row in fit("gpt2", "20MB", procedures="bp,mempepita", seq_len=64, **MODEL).rows:
        settings = {"seq_len": 64, "procedure": row.procedure, "plan": row.plan or None, **MODEL}
        settings["engine"] = row.engine
        assert lc.memory("gpt2", batch_size=row.largest, **settings).peak <= 20 * 10**6
        assert lc.memory("gpt2", batch_size=row.largest + 1, **settings).peak > 20 * 10**6


@pytest.mark.slow  # tests/test_fit_agrees.py tries all advice
def test_what_to_change_where_nothing_fits(capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in MODEL.items()]
    flags.append("--optimizer=sgd")
    assert main(["fit", "gpt2", "--budget", "1500kB", "--seq-len", "512", *flags]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Nothing fits." in text
    for name in ("inference", "recompute"):
        advice = text[re.search(rf"{name}(, \w+)* (does|do) not fit", text).start() :]
        length = int(re.search(r"It fits with --seq-len (\d+)", advice)[1])
        for length_tried, fits in ((length, True), (length + 1, False)):
            flags_given = ["--budget", "1500kB", "--seq-len", str(length_tried), "--procedure", name, "--json"]
            assert main(["fit", "gpt2", *flags_given, *flags]) == 0
            assert any(row["fits"] for row in json.loads(capsys.readouterr().out)["rows"]) is fits, (name, length_tried)


def test_an_image_has_one_length_and_nothing_else_is_advised(capsys):
    assert main(["fit", "vit-b-16", "--budget", "1MB", "--procedure", "inference,bp"]) == 0
    assert "--seq-len" not in re.sub(r"a shorter --seq-len", "", capsys.readouterr().out)


def served(model, kind="fp32", length=32, target=None, **given):
    sizes = given.pop("sizes", {})
    return InferenceSetting(build(configure(model, sizes)), precision_of(kind), length, target, **given)


@pytest.mark.parametrize(
    ("model", "sizes", "target"), [("gpt2", MODEL, None), ("t5-small", {}, 8), ("gemma-2-2b", {}, None)]
)
def test_inference_holds_all_weights_and_a_cache_of_every_token(model, sizes, target):
    served_pass = served(model, "bf16", 32, target, sizes=sizes)
    _, last = served_pass.passes
    lengths = {"seq_len": 32} if target is None else {"seq_len": 32, "target_len": 1}
    context = (target or 32) - 1
    ledger = lc.cost(
        model, "decode", context=context, dtype="bf16", **{**lengths, **({} if target else {"seq_len": 1}), **sizes}
    )
    assert served_pass.weights == 2 * lc.cost(model, seq_len=32, **sizes).parameters
    # What decode is given, and the place of its new token.
    assert last.cache_growth == 2 * ledger.cache.elements
    live_at_peak = live(last.table, last.sizes, "fp16", {"weight": 2, "index": 4}).live_at_peak
    assert sum(array.bytes for array in live_at_peak if array.name.endswith(".cache")) == ledger.cache.bytes
    assert served_pass.split()["KV cache"] == ledger.cache.bytes + last.cache_growth
    split = served_pass.split()
    assert sum(split.values()) == served_pass.peak() > served_pass.weights + split["KV cache"]
    flash = replace(served_pass, in_flash=True)
    assert (flash.flash, flash.peak()) == (served_pass.weights, served_pass.peak() - served_pass.weights)


def test_the_batch_and_the_length_that_inference_finds_fit_and_no_more_do():
    served_pass = served("gpt2", length=128, sizes=MODEL)
    for budget in (served_pass.peak(), 2 * served_pass.peak() + 77):
        batch = served_pass.largest(budget)
        assert served_pass.peak(batch) <= budget < served_pass.peak(batch + 1)
    assert served_pass.largest(served_pass.peak() - 1) == 0
    length = served_pass.longest(served_pass.peak() - 1)
    assert (
        replace(served_pass, seq_len=length).peak()
        < served_pass.peak()
        <= replace(served_pass, seq_len=length + 1).peak()
    )


def test_inference_as_numpy_executes_it():
    (row,) = fit("gpt2", "100MB", procedures="inference", seq_len=512, engine="numpy", plan="", **MODEL).rows
    built = build(configure("gpt2", MODEL))
    sizes = run_sizes(built, 1, 512, None)
    table = served("gpt2", length=512, sizes=MODEL).passes[0].whole
    shapes = {name: [sizes[base(axis)] for axis in table.axes[name]] for name in (*table.inputs, *table.weights)}
    program = EmittedProgram(table, sizes)
    tracemalloc.start()
    inputs = {name: np.zeros(shape, int if name in table.indices else "f4") for name, shape in shapes.items()}
    program(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 <= peak - row.ram < 64 * 2**10  # Python's own objects


def test_what_a_model_cannot_learn_by_is_said_and_the_rest_is_there(capsys):
    assert main(["fit", "bert-base", "--budget", "1GB", "--seq-len", "16"]) == 0
    text = capsys.readouterr().out
    assert "pepita, mempepita: bert-base has no output to learn from" in text
    assert "\ninference " in text
    assert "\nbp " in text


def test_weights_that_do_not_fit_the_flash_are_said_beside_the_ram():
    answer = fit("gpt2", "10kB", "100kB", "inference", 16, **MODEL)
    (line,) = answer.advice[1:]
    says = (
        r"inference does not fit\. All weights need 590,592 bytes, 5\.91x the available flash: .*x the available memory"
    )
    assert re.match(says, line)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--budget", "lots"], "budget must be bytes such as 8GB, 256KiB or 1e9, not 'lots'"),
        (["--budget", "1GB", "--dtype", "fp12"], "no precision is called 'fp12'"),
        (["--budget", "1GB", "--procedure", "pepitta"], "no procedure is called 'pepitta'; the nearest is 'pepita'"),
        (["--budget", "1GB", "--procedure", "bp,,pepita"], "no procedure is called ''"),
        (["--budget", "1GB", "--optimizer", "adamm"], "no optimizer is called 'adamm'"),
        (["--budget", "1GB", "--plan", "bogus"], "no plan is called 'bogus'"),
        (["--budget", "0"], "budget must be bytes such as 8GB"),
        (["--budget", "1e18"], "budget must be bytes such as 8GB"),
        (["--budget", "5XB"], "budget must be bytes such as 8GB"),
        (["--budget", "1GB", "--flash-size", "-1"], "--flash-size must be bytes such as 8GB"),
        (["--budget", "1GB", "--engine", "numpy", "--dtype", "bf16-masters"], "supports only fp32 or fp64"),
    ],
)
def test_refusals_are_one_line(flags, line, capsys):
    assert main(["fit", "gpt2", *flags]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    ("model", "given"),
    [("gpt2", {}), ("gpt2", {"lora": "c_attn"}), ("t5-small", {"seq_len": 16}), ("bert-base", {"seq_len": 16})],
)
def test_no_two_rows_say_the_same(model, given):
    sizes = MODEL if model == "gpt2" else {}
    rows = [
        {**row, "plan": "", "why": ""}
        for row in fit(model, "8GB", **{"seq_len": 64, **sizes, **given}).to_dict()["rows"]
    ]
    assert all(row not in rows[:place] for place, row in enumerate(rows))


def test_why_autograd_was_not_taken_is_said_once():
    settings = {"seq_len": 64, "lora": "c_attn", "dtype": "int8", **MODEL}
    answer = fit("gpt2", "8GB", **settings)
    (refused,) = (line for line in answer.advice if "updates every weight" in line)
    assert refused.startswith("pepita, mempepita: each updates every weight")
    text = lc.memory("gpt2", **settings).convention.partition("does not support this step (it ")[2]
    reason = text.partition("); using graph.")[0]
    assert {row.why for row in answer.rows if row.procedure == "bp" and row.plan == "flash"} == {reason}
    assert f"Rows of bp and recompute use graph, since engine eager {reason}." in " ".join(str(answer).split())
    assert "does not support" not in str(fit("gpt2", "8GB", seq_len=64, procedures="bp", engine="eager", **MODEL))


@pytest.mark.parametrize("procedures", ["recompute", pytest.param("bp,recompute", marks=pytest.mark.slow)])
def test_several_lengths_are_one_table(procedures, capsys):
    settings = {"procedures": procedures, "optimizer": "sgd", "precision": "nf4", "lora_rank": 2, **NARROW}
    fit = lc.fit("gpt2", "2MB", seq_len="8,32,4096", **settings)
    assert fit.seq_lens == (8, 32, 4096)
    for place, length in enumerate(fit.seq_lens[:2]):
        alone = {
            (row.procedure, row.plan): row.largest for row in lc.fit("gpt2", "2MB", seq_len=length, **settings).rows
        }
        at_length = {(row.procedure, row.plan): row.batches[place] for row in fit.rows}
        assert {key: at_length[key] for key in at_length.keys() & alone.keys()} == {
            key: alone[key] for key in at_length.keys() & alone
        }
        assert at_length.keys() & alone.keys()
    assert {row.batches[2] for row in fit.rows} == {None}  # the model has positions for 64
    for row in fit.rows:
        settings_of_row = {**settings, "procedures": row.procedure, "plan": row.plan, "engine": row.engine}
        assert lc.fit("gpt2", "2MB", seq_len=row.longest, **settings_of_row).rows[0].fits
    ops = ["fit", "gpt2", "--budget", "2MB", "--seq-len", "8,16", "--precision", "nf4", "--lora-rank", "2"]
    assert main([*ops, *(f"--{name}={value}" for name, value in NARROW.items())]) == 0
    out = capsys.readouterr().out
    assert "longest" in out
    assert max(map(len, out.splitlines())) <= 80


NARROW = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 64}


def test_without_frozen_weights_only_inference_is_quantized():
    fit = lc.fit("gpt2", "2MB", seq_len=8, precision="nf4", procedures="inference,bp", **NARROW)
    assert {row.procedure for row in fit.rows} == {"inference"}
    assert "gpt2 has none: freeze some" in " ".join(fit.advice)
    with pytest.raises(InputError, match="has no weights called 'nothing'"):
        lc.fit("gpt2", "2MB", seq_len=8, lora="nothing", **NARROW)


@pytest.mark.parametrize(("model", "batch"), [("gpt2", "batch_size"), ("examples/layers/mixer.table", "B")])
def test_the_batch_is_what_is_found(model, batch, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    with pytest.raises(lc.InputError, match=rf"^remove {batch}: learncost fit finds"):
        lc.fit(model, "1GB", **{batch: 8})


@pytest.mark.parametrize("power", [1, 2])
def test_the_longest_that_fits_is_asked_few_peaks_for(power):
    """Held to a count from below; lengths without positions do not fit, and the most is where nobody looks further."""
    asked = []

    def peak(length):
        asked.append(length)
        if length > 4_000:
            raise lc.InputError("no positions")
        return 50 + max(7 * length, length**power)

    for room in (60, 1_000, 20_000, 3_000_000, 10**9):
        asked.clear()
        longest = longest_within(peak, room)
        assert longest == max(length for length in range(1, 4_001) if 50 + max(7 * length, length**power) <= room)
        assert len(asked) < 25
    assert longest_within(lambda length: 3, 5, 1_000) == 1_000


def test_a_table_without_a_batch_is_told_that_nothing_of_it_grows():
    nodes = lc.layer("Nodes(X; W) -> Y\nsizes: d=4 f=3\n  Y[N f] = X[N d] W[d f]\n")
    found = lc.fit(nodes, "1MB", procedures="inference,bp", N=8)
    assert "its memory does not grow with a batch B" in " ".join(str(found).split())
