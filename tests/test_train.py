"""`learncost train`: what it reads, how it learns, what it writes, and what it refuses."""

import errno
import gc
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import learncost as lc
from learncost.cli.command import main
from learncost.engines.options import Options
from learncost.engines.tokenizer import ByteTokenizer
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.models.storage import read_arrays, write_arrays
from learncost.training.data import corpus
from learncost.training.data.corpus import SkippedFiles, documents
from learncost.training.data.tasks import Text, next_tokens
from learncost.training.folder import Folder
from learncost.training.loop import go_on, start
from learncost.training.train import summary
from learncost.viz.terminal import plot
from trainings_on_disk import (
    COMMAND,
    SIZES,
    TINY,
    Silent,
    command,
    environment,
    losses_of,
    numbered_texts,
    same,
    weights_of,
)

OWN = """
import sys
sys.path.insert(0, {examples!r})
import transformer
inputs = transformer.inputs
def build():
    return transformer.Model({words}, 8, 2, 2)
"""


@pytest.mark.slow  # its refusals: tests/test_importing.py
def test_a_module_of_a_file_learns(text, tmp_path, monkeypatch):
    """The run begins with the module's weights and ends with a state_dict; going on does not run the file again."""
    torch = pytest.importorskip("torch")
    examples = os.path.join(os.path.dirname(__file__), "..", "examples", "modules")
    file, run = tmp_path / "own.py", tmp_path / "run"
    model, sizes = f"{file}:build", {"seq_len": 8, "batch_size": 2, "learning_rate": 0.1}
    sizes |= {"optimizer": "sgd", "weight_decay": 0.0}
    file.write_text(OWN.format(examples=examples, words=96), encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.py:build has 96 different tokens, and the tokenizer has 257"):
        lc.train(text, out=run, model=model, steps=2, **sizes)
    file.write_text(OWN.format(examples=examples, words=257), encoding="utf-8")
    with pytest.raises(InputError, match=r"--prompt applies to models that continue a text, not to Model"):
        lc.train(text, out=run, model=model, steps=2, prompt="a", **sizes)
    named = {}
    exec(file.read_text(encoding="utf-8"), named)
    torch.manual_seed(0)
    module = named["build"]()
    lc.train(text, out=run, model=model, steps=1, engine="numpy", **sizes)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    data = Text(next_tokens, ByteTokenizer()).load(Folder(run).options(), run, "")

    def loss_of(step):
        batch = data.batch(step)
        return module(**{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()})

    first = loss_of(0)
    first.backward()
    optimizer.step()
    saved = {name: torch.from_numpy(array) for name, array in load_file(run / "model.safetensors").items()}
    for name, array in module.state_dict().items():
        torch.testing.assert_close(saved[name], array, rtol=0, atol=1e-6)
    module.load_state_dict(saved)
    file.unlink()
    lc.train(resume=run, steps=2)
    second = loss_of(1)
    losses = [line["loss"] for line in losses_of(run)]
    assert losses == pytest.approx([first.item(), second.item()], rel=1e-5)


def written(folder):
    folder.mkdir()
    return numbered_texts(folder, 12)


@pytest.fixture
def text(tmp_path):
    return written(tmp_path / "text")


def options(text, **others):
    """A tiny GPT-2 on NumPy; twelve steps."""
    own = {"model": "gpt2", "engine": "numpy", "steps": 12, "batch_size": 2, "seq_len": 16, "sizes": SIZES}
    own |= {"validate_every": 1, "sample_every": 12}
    return Options(paths=(str(text),), **{**own, **others})


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    start(options(written(folder / "text"), steps=2), folder / "run", Silent())
    return folder / "run"


@pytest.fixture
def run(trained_once, tmp_path):
    """A training of two steps, to do something to."""
    return shutil.copytree(trained_once, tmp_path / "run")


# Memory


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita", "head-only"])
def test_numpy_takes_what_is_predicted(procedure, text, tmp_path):
    # Beside the engine's own number stands that of `learncost memory`, and the process's, as the kernel counts it.
    sizes = {**SIZES, "hidden_size": 64}
    how = options(text, procedure=procedure, mode="paper", steps=3, seq_len=64, batch_size=16, sizes=sizes)
    report = Silent()
    start(how, tmp_path / "run", report)
    step, last = report.steps[-2:]
    needs = lc.memory(
        str(tmp_path / "run"), procedure=procedure, batch_size=16, seq_len=64, optimizer="adamw", engine="numpy"
    )
    # The step of a training has scalars and the share of each target, which the table of a price does not need.
    assert step.predicted == pytest.approx(needs.peak, rel=0.01)
    assert last.process > last.memory
    assert last.memory < last.predicted + 12e6  # pages of libraries that are first touched here, samples


def test_the_interpreter_lets_go_what_a_turn_made():
    # Without the collector of circles: what a turn made goes when nothing refers to it any more.
    training = lc.Training("gpt2", **SIZES, vocab_size=50)
    tokens = np.zeros((8, 64), int)
    training.forward(tokens)
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            training.forward(tokens)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
        gc.enable()


# Learning


def test_it_learns_what_can_be_foreseen(tmp_path):
    # After three letters of a cycle of four, the next one is certain: the bits of a byte go towards 0. Chance is
    # log2(257) = 8.0, the frequencies of single letters alone give 2 bits.
    (tmp_path / "text.txt").write_text("abcd" * 2000)
    how = options(
        tmp_path / "text.txt",
        steps=120,
        learning_rate=2e-2,
        batch_size=4,
        validate_every=120,
        sample_every=120,
        sizes=SIZES | {"hidden_size": 16},
    )
    result = start(how, tmp_path / "run", Silent())
    assert result.validated.bits_per_byte < 0.2
    assert result.steps == 120
    assert "loss" in plot(result).splitlines()[0]


@pytest.mark.slow  # tests/test_train_precision.py has it by precision
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
def test_torch_takes_the_steps_of_numpy(procedure, family, text, tmp_path):
    # The same tables, weights, batches and masks of dropout; in float64 only the order of sums differs.
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "intermediate_size": 24, **SIZES}))
    how = options(
        text, model=str(tmp_path / "config.json"), sizes={}, procedure=procedure, dtype="fp64", dropout=0.1, steps=6
    )
    found = {}
    for name in ("numpy", "torch"):
        report = Silent()
        start(replace(how, engine=name), tmp_path / name, report)
        found[name] = [value for step in report.steps for value in (step.loss, step.validation_loss)]
    np.testing.assert_allclose(found["torch"], found["numpy"], rtol=1e-11)
    for name, array in weights_of(tmp_path / "numpy").items():
        np.testing.assert_allclose(weights_of(tmp_path / "torch")[name], array, atol=1e-9)


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("procedure", ["recompute", "mempepita"])
def test_other_procedures_are_the_steps_of_training(procedure, text, tmp_path):
    # The losses are those of lc.Training on the same batches: of the interpreter, that is, not of the emitted step.
    how = options(text, procedure=procedure, steps=4, learning_rate=1e-2, dtype="fp64", dropout=0.1, warm_up=0)
    report = Silent()
    start(how, tmp_path / "run", report)
    tokens = corpus.load(tmp_path / "run", "")
    training = lc.Training(
        configure(str(tmp_path / "run" / "config.json")),
        procedure,
        "adamw",
        betas=(0.9, 0.99),
        weight_decay=0.01,
        mode="stable",
        dropout=0.1,
    )
    for step, done in enumerate(report.steps):
        # Half a cosine from 1 to a tenth, over four steps.
        training.learning_rate = 1e-2 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 4)))
        rows = tokens.windows(2, 16, 0, step)
        assert done.loss == pytest.approx(training.step(rows[:, :-1], rows[:, 1:]), rel=1e-12)


def test_validation_is_of_all_its_windows(text, tmp_path):
    report = Silent()
    start(options(text, steps=1, dtype="fp64"), tmp_path / "run", report)
    run = tmp_path / "run"
    tokens = np.fromfile(run / "validation.tokens", "<u2")
    assert len(tokens) > 33
    # Windows of 16 tokens and their next ones, evenly spread over what is there: fewer than 16,384 tokens, so all.
    number = len(tokens) // 16
    starts = [int(at) for at in np.linspace(0, len(tokens) - 17, number)]
    rows = np.stack([tokens[at : at + 17] for at in starts]).astype(int)
    weights = load_file(run / "model.safetensors")
    training = lc.Training(configure(str(run / "config.json")), weights=ours(run, weights))
    loss = float(training.forward(rows[:, :-1], rows[:, 1:])["loss"])
    (step,) = report.steps
    assert step.validation_loss == pytest.approx(loss, abs=1e-12)
    # A token is a byte but for the end of each document.
    files = list(text.iterdir())
    length = sum(file.stat().st_size for file in files)
    assert step.bits_per_byte == pytest.approx(loss / math.log(2) * (length + len(files)) / length, abs=1e-12)


def ours(run, tensors):
    from learncost.engines import hugging_face
    from learncost.models.model import build

    return hugging_face.from_checkpoint(build(configure(str(run / "config.json"))), tensors, "")


def test_the_rate_rises_and_falls():
    how = Options(paths=("x",), learning_rate=1.0, warm_up=4, steps=104, final_learning_rate=0.2)
    assert [how.rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert how.rate(4) == 1.0
    assert how.rate(54) == pytest.approx(0.6)  # half way: the middle of 1 and 0.2
    assert how.rate(104) == pytest.approx(0.2)


def test_minutes_say_how_many_steps(text, tmp_path):
    report, seldom = Silent(), {"validate_every": 1000, "sample_every": 1000}
    result = start(options(text, steps=None, minutes=0.005, **seldom), tmp_path / "run", report)
    assert result.steps == len(report.steps) == json.loads((tmp_path / "run/training.json").read_text())["steps"]
    # The steps that were timed are forgotten: the first ones are those of a run that is told its steps.
    start(options(text, steps=result.steps, **seldom), tmp_path / "other", Silent())
    assert same(tmp_path / "run", tmp_path / "other")


def test_mfu_is_of_the_matrix_products(text, tmp_path):
    report = Silent()
    start(options(text, steps=1, peak_flops=1e9), tmp_path / "run", report)
    cost = lc.cost("gpt2", price_book="matmul", batch_size=2, seq_len=16, vocab_size=257, **SIZES).total.flops
    (step,) = report.steps
    assert step.mfu == pytest.approx(cost / step.seconds / 1e9)


# Data


def test_files_that_are_no_text_are_counted(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.txt").write_text("β")
    (tmp_path / "a.txt").write_bytes(b"plain")
    (tmp_path / "empty").touch()
    (tmp_path / "zero.bin").write_bytes(b"text\0text")
    (tmp_path / "latin.txt").write_bytes("ä".encode("latin-1"))
    (tmp_path / "again").symlink_to(tmp_path / "a.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    skipped = SkippedFiles()
    assert list(documents([str(tmp_path)], skipped)) == [b"plain", "β".encode()]
    assert (skipped.binary, skipped.empty, skipped.unreadable) == (2, 1, 1)


def test_an_empty_name_is_no_folder():
    with pytest.raises(lc.InputError, match="not a path: ''"):
        list(documents([""], SkippedFiles()))


def test_a_list_that_is_read_as_a_text_says_so(tmp_path):
    (tmp_path / "labels.csv").write_text("file,label\n" + "a.png,cat\n" * 200)
    notices: list[str] = []
    Text(next_tokens, ByteTokenizer()).prepare(
        options(tmp_path / "labels.csv", validation_share=0.1), tmp_path, notices.append
    )
    assert any("labels.csv is read as a text" in line for line in notices)


def test_the_split_is_by_the_text_alone(text, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    corpus.prepare([str(text)], ByteTokenizer(), 0.4, tmp_path / "one")
    # Other names, the same texts: the first document alone may change sides, which fills a side that is empty.
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in text.iterdir():
        (moved / file.name[::-1]).write_bytes(file.read_bytes())
    (moved / f"0{min(file.name for file in text.iterdir())[::-1]}").write_bytes(sorted(text.iterdir())[0].read_bytes())
    corpus.prepare([str(moved)], ByteTokenizer(), 0.4, tmp_path / "two")
    parts = []
    for name in ("one", "two"):
        tokens = {part: np.fromfile(tmp_path / name / f"{part}.tokens", "<u2") for part in corpus.PARTS}
        parts.append({part: set(split(tokens[part])) for part in corpus.PARTS})
        whole = set().union(*parts[-1].values())
        assert whole == {file.read_bytes() for file in text.iterdir()}
        assert all(parts[-1].values())
    assert parts[0]["validation"] ^ parts[1]["validation"] <= {sorted(text.iterdir())[0].read_bytes()}


def split(tokens):
    """The documents that stand one after the other, each with its end."""
    ends = [*np.flatnonzero(tokens == 256)]
    return [bytes(tokens[a:b].tolist()) for a, b in zip([0, *(end + 1 for end in ends)], ends, strict=False)]


def test_a_single_document_is_cut(tmp_path):
    (tmp_path / "a.txt").write_text("0123456789" * 10)
    corpus.prepare([str(tmp_path / "a.txt")], ByteTokenizer(), 0.1, tmp_path)
    loaded = corpus.load(tmp_path, "")
    assert bytes(loaded.training.tolist()) == b"0123456789" * 9 + b"0"  # 101 tokens, a tenth of them validate
    assert loaded.validation.tolist() == [*b"123456789", 256]


def test_batches_depend_on_seed_and_step_alone(tmp_path):
    (tmp_path / "a.txt").write_text("".join(chr(33 + n % 90) for n in range(5000)))
    corpus.prepare([str(tmp_path / "a.txt")], ByteTokenizer(), 0.1, tmp_path)
    loaded = corpus.load(tmp_path, "")
    rows = loaded.windows(3, 8, seed=5, step=7)
    assert rows.shape == (3, 9)
    assert np.array_equal(rows, corpus.load(tmp_path, "").windows(3, 8, seed=5, step=7))
    others = [loaded.windows(3, 8, seed, step) for seed, step in ((5, 8), (6, 7))]
    assert not any(np.array_equal(rows, other) for other in others)
    # Every place can be drawn, the first and the last too.
    firsts = {int(token) for step in range(40) for token in loaded.windows(64, 4488, 0, step)[:, 0]}
    assert len(loaded.training) - 4488 == 13
    assert firsts == set(loaded.training[:13].tolist())


# Going on


def test_pieces_are_the_whole_bit_for_bit(text, tmp_path):
    how = options(text, dropout=0.1, save_every=3, validate_every=4, sample_every=5, seq_len=12)
    start(how, tmp_path / "whole", Silent())
    stops = iter([False, True])  # after the second step, which is no step of a checkpoint
    result = start(how, tmp_path / "pieces", Silent(), lambda: next(stops))
    assert (result.steps, result.stopped) == (2, True)
    for steps in (3, 1, 4):
        left = iter([False] * (steps - 1) + [True])
        go_on(tmp_path / "pieces", Silent(), lambda left=left: next(left))
    result = go_on(tmp_path / "pieces", Silent())
    assert (result.steps, result.stopped) == (12, False)
    assert same(tmp_path / "whole", tmp_path / "pieces")
    assert [line["step"] for line in losses_of(tmp_path / "whole")] == list(range(1, 13))


def killed_and_resumed(text, tmp_path, kills, seed, engine="numpy"):
    """Train in a process that is killed at random moments, and set the end beside a run that was left alone."""
    flags = ["--steps", "60", "--save-every", "1", "--sample-every", "20", "--validate-every", "30", *TINY]
    flags += ["--engine", engine]
    assert main(["train", str(text), "--out", str(tmp_path / "whole"), *flags]) == 0
    random, run = np.random.default_rng(seed), tmp_path / "run"
    steps_at_death = []
    for _ in range(kills):
        begun = (run / "training.json").exists()
        more = ["--resume", run] if begun else [text, "--out", run, *flags]
        process = subprocess.Popen(
            [*COMMAND, "train", *map(str, more)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
        )
        # From before the first line of Python to well into the steps; one a step, checkpoints are most of the time.
        try:
            _, printed = process.communicate(timeout=random.uniform(0.2, 1.6 if engine == "numpy" else 6))
            assert process.returncode == 0, printed.decode()
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        if (run / "model.safetensors").exists():
            _, facts = read_arrays(run / "model.safetensors", "")
            steps_at_death.append(json.loads(facts["learncost"])["steps"])
    assert steps_at_death == sorted(steps_at_death)
    more = ["--resume", run] if (run / "training.json").exists() else [text, "--out", run, *flags]
    last = command("train", *more)
    assert last.returncode == 0, last.stderr
    assert same(tmp_path / "whole", run)
    assert not list(run.glob("*.partial"))
    assert len(list(run.glob("optimizer-*"))) == 1
    return steps_at_death


def test_killed_at_random_moments(text, tmp_path):
    killed_and_resumed(text, tmp_path, 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 11))
def test_killed_at_a_hundred_random_moments(seed, text, tmp_path):
    killed_and_resumed(text, tmp_path, 10, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments_with_torch(text, tmp_path):
    pytest.importorskip("torch")
    killed_and_resumed(text, tmp_path, 10, 0, "torch")


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(number, text, tmp_path):
    run = tmp_path / "run"
    flags = ["--steps", "100000", "--save-every", "100000", "--validate-every", "1", *TINY, "--engine", "numpy"]
    process = subprocess.Popen(
        [*COMMAND, "train", str(text), "--out", str(run), *flags], stderr=subprocess.PIPE, text=True, env=environment()
    )
    while not process.stderr.readline().startswith("step 3:"):
        assert process.poll() is None
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    (line,) = [line for line in printed.splitlines() if "saved" in line]
    steps = int(line.split()[3])
    assert line == f"saved after step {steps} of 100,000; learncost train --resume {run} continues it"
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == steps >= 3
    more = command("train", "--resume", run, "--steps", steps + 2)
    assert more.returncode == 0, more.stderr
    assert f"{steps + 2} steps" in more.stdout


# What goes wrong


def refused(*arguments, capsys):
    """The one line with which the command is refused."""
    assert main([str(argument) for argument in arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("learncost: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.slow  # why it cannot be written: the next tests
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit of the size of files")
@pytest.mark.parametrize("room", [100, 3_000, 30_000])
def test_no_space_left(room, text, tmp_path):
    # A process whose files may not grow beyond some bytes fails to write as on a full disk: in the metrics, in the
    # optimizer's file, or in that of the weights.
    run = tmp_path / "run"
    how = options(text, steps=9, save_every=3)
    start(how, tmp_path / "whole", Silent())
    stops = iter([False] * 3 + [True])
    start(how, run, Silent(), lambda: next(stops))
    before = weights_of(run)
    limit = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    code = f"{limit}; from learncost.cli.command import main; sys.exit(main(['train', '--resume', {str(run)!r}]))"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert failed.returncode == 2
    line = failed.stderr.splitlines()[-1]
    assert line.startswith("learncost: cannot write ")
    assert line.endswith(f"the checkpoint of step 4 is kept: free some space, then learncost train --resume {run}"), (
        line
    )
    assert "Traceback" not in failed.stderr
    assert all(np.array_equal(array, before[name]) for name, array in weights_of(run).items())
    go_on(run, Silent())
    assert same(tmp_path / "whole", run)


def test_no_folder_can_be_made(text, tmp_path, capsys):
    (tmp_path / "file").touch()
    message = refused("train", text, "--out", tmp_path / "file" / "run", "--steps", 1, *TINY, capsys=capsys)
    file = tmp_path / "file"
    assert message == f"learncost: cannot write {file / 'run'}: {file} is a file, not a folder; move it away"


@pytest.mark.parametrize(
    ("number", "reason", "advice"),
    [
        (errno.EROFS, "the disk is mounted read-only", "make the disk writable"),
        (errno.EACCES, "no permission (Permission denied)", "give yourself the right to write there"),
        (errno.ENOSPC, "No space left on device", "free some space"),
        (errno.EISDIR, "there is a folder of this name", "move that folder away"),
        (errno.EIO, "Input/output error", ""),
    ],
)
def test_why_a_checkpoint_cannot_be_written(number, reason, advice, run, capsys, monkeypatch):
    # The superuser may write everywhere, so the system's answer is made here.
    def refuse(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.replace", refuse)
    message = refused("train", "--resume", run, "--steps", 4, capsys=capsys)
    then = f"{advice}, then " if advice else ""
    again = f"the checkpoint of step 2 is kept: {then}learncost train --resume {run}"
    assert message.endswith(f": {reason}; {again}"), message


def test_names_of_runs_are_taken_at_once(tmp_path, text, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--engine", "numpy", "--steps", "1", *TINY]
    (tmp_path / "run-1").mkdir()
    assert main(["train", str(text), *flags]) == 0
    assert capsys.readouterr().out.startswith("run-2: gpt2 with num_hidden_layers 1, hidden_size 8")
    assert main(["train", str(tmp_path / "nothing"), *flags]) == 2
    assert not (tmp_path / "run-3").exists()  # what was refused leaves nothing behind


def test_two_trainings_in_one_folder(run, capsys):
    code = (
        "import sys, time; from pathlib import Path; from learncost.training.folder import Folder\n"
        "with Folder(Path(sys.argv[1])).alone():\n    print('held', flush=True)\n    time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        message = refused("train", "--resume", run, "--steps", 4, capsys=capsys)
        assert message == f"learncost: another training is at work in {run}: wait for it, or give another --out"
    finally:
        other.kill()
        other.wait()
    assert main(["train", "--resume", str(run), "--steps", "4"]) == 0  # who was killed holds nothing


@pytest.mark.slow  # tests/test_train_precision.py has it by every engine
def test_torch_goes_on_bit_for_bit(text, tmp_path):
    pytest.importorskip("torch")
    how = options(text, engine="torch", dropout=0.1, steps=8, save_every=8)
    start(how, tmp_path / "whole", Silent())
    stops = iter([False, False, True])
    start(how, tmp_path / "run", Silent(), lambda: next(stops))
    go_on(tmp_path / "run", Silent())
    assert same(tmp_path / "whole", tmp_path / "run")


def test_the_last_lines_are_as_narrow_as_the_terminal_and_have_three_digits():
    last = SimpleNamespace(process=258_629_632, memory=5_909_440, predicted=273_768)
    result = SimpleNamespace(
        options=None, folder="run-1", name=f"nano with {', '.join(f'num_of_things {n}' for n in range(6))}", last=last,
        parameters=10_832, steps=400, validated=None, writes=True,
    )  # fmt: skip
    text = summary(result)
    assert max(map(len, text.splitlines())) <= 80
    assert "259 MB at most, 5.91 MB of it" in text
    assert "predicted: 274 kB" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to the superuser")
def test_a_folder_that_is_read_only(run, capsys):
    run.chmod(0o500)
    message = refused("train", "--resume", run, "--steps", 4, capsys=capsys)
    assert "Permission denied" in message


def spoiled(name, change):
    """Something that is done to a run, and the file that a message has to name."""
    return pytest.param(name, change, id=f"{name} {change.__name__}")


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path):
    path.write_bytes(b"")


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def foreign(path):
    save_file({"weight": np.zeros(3, np.float32)}, path)


def removed(path):
    path.unlink()


def of_another_step(path):
    arrays, facts = read_arrays(path, "")
    save_file(arrays, path, {"learncost": json.dumps(json.loads(facts["learncost"]) | {"steps": 3})})


def no_numbers(path):
    arrays, facts = read_arrays(path, "")
    name = min(arrays)
    write_arrays(path, {**arrays, name: np.full_like(arrays[name], np.nan)}, {"learncost": facts["learncost"]})


SPOILED = (cut, emptied, flipped, foreign, removed, of_another_step, no_numbers)


def without_a_length(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seq_len": None}))


def with_several_models(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": [math.nan, math.nan]}))


def with_a_number(option):
    def change(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | {option: 1e-320}))

    change.__name__ = f"with_a_number_as_{option}"
    return change


TEXTS = ("model", "start", "tokenizer", "engine", "procedure", "mode", "optimizer", "dtype", "plan", "device", "budget")
TEXTS += ("prompt", "train", "lora", "mesh", "placement")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(spoiled("model.safetensors", c) for c in (cut, emptied, flipped, foreign, removed, no_numbers)),
        *(spoiled("optimizer-2.safetensors", c) for c in SPOILED),
        *(spoiled("training.json", change) for change in (cut, emptied, without_a_length, with_several_models)),
        *(spoiled("training.json", with_a_number(option)) for option in TEXTS),
        *(spoiled("data.json", change) for change in (cut, emptied)),
        *(spoiled("config.json", change) for change in (cut, emptied, removed)),
        *(spoiled("training.tokens", change) for change in (cut, flipped, removed)),
        *(spoiled("validation.tokens", change) for change in (cut, flipped, removed)),
        *(spoiled(log, cut) for log in ("metrics.jsonl", "samples.txt")),
    ],
)
def test_a_damaged_run_is_refused(name, change, run, capsys):
    change(run / name)
    before = {path: path.read_bytes() for path in run.iterdir()}
    message = refused("train", "--resume", run, "--steps", 4, capsys=capsys)
    assert name in message
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_files_of_two_runs_are_not_mixed(text, tmp_path, capsys):
    for seed in (0, 1):
        start(options(text, steps=2, seed=seed), tmp_path / f"run-{seed}", Silent())
    name = "optimizer-2.safetensors"
    (tmp_path / "run-0" / name).write_bytes((tmp_path / "run-1" / name).read_bytes())
    message = refused("train", "--resume", tmp_path / "run-0", "--steps", 4, capsys=capsys)
    assert f"{name} is of another run than model.safetensors" in message


def test_without_the_metrics_it_goes_on(run):
    (run / "metrics.jsonl").unlink()
    go_on(run, Silent(), steps=4)
    assert [line["step"] for line in losses_of(run)] == [3, 4]


def test_weights_that_are_no_numbers_are_not_saved(run):
    before = weights_of(run)
    folder = Folder(run)
    model = build(folder.configuration())
    loaded = folder.load(model)
    name = min(loaded.state)
    broken = {**loaded.state, name: np.full_like(loaded.state[name], np.inf)}
    with pytest.raises(InputError, match=f"^step 3: {name} holds numbers that are not finite; give a smaller --learn"):
        folder.save(model, loaded.weights, broken, 3, 2)
    assert all(np.array_equal(array, before[name]) for name, array in weights_of(run).items())


def test_a_run_is_not_written_over(text, run, capsys):
    message = refused("train", text, "--out", run, capsys=capsys)
    assert message.endswith(
        f"already contains a run: continue it with learncost train --resume {run}, or give another --out"
    )
    assert refused("train", text, "--out", text, capsys=capsys).endswith("is not empty and no run: give another --out")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "train requires PATH"),
        ("TEXT --steps none", "steps must be a whole number, not 'none'"),
        ("TEXT --steps 0", "steps must be a whole number from 1, not 0"),
        ("TEXT --learning-rate -1", "--learning-rate must be a number above 0"),
        ("TEXT --dropout nan", "dropout must be a number from 0"),
        ("TEXT --modle nano", "unknown flag '--modle'; did you mean '--mode' or '--model'"),
        ("TEXT --model nanoo", "unknown model 'nanoo'"),
        ("TEXT --model bert-base", "has no answers to learn from; --architecture BertForMaskedLM has one"),
        ("TEXT --model gpt2 --seq-len 1025", "longer than the 1024 positions"),
        ("TEXT --engine cuda", "no engine is called 'cuda'"),
        ("TEXT --procedure bpp", "no learning procedure is called 'bpp'"),
        ("TEXT --optimizer adma", "no optimizer is called 'adma'"),
        ("TEXT --dtype fp7", "no precision is called 'fp7'"),
        ("TEXT --clip -1", "clip must be a number from 0, not -1"),
        ("TEXT --accumulate 0", "accumulate must be a whole number from 1, not 0"),
        ("TEXT --engine numpy --dtype fp16-masters", "programs have fp32, fp64, bf16, and no fp16"),
        ("TEXT --engine torch --dtype int8-learned", "--engine torch does not support trainable quantized weights"),
        ("TEXT --engine torch --dtype int8-learned-products", "as in int8-learned-products: use --engine numpy"),
        ("TEXT --tokenizer nothing.json", "cannot read nothing.json: No such file"),
        ("TEXT --from nothing", "no such folder: nothing"),
        ("nowhere", "no such file or folder: nowhere"),
        ("--resume nowhere", "nowhere is not a run: it has no training.json"),
        ("--resume nowhere --seed 3", "remove --seed"),
        ("TEXT --resume nowhere", "remove PATH"),
    ],
)
def test_what_is_refused(flags, message, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", *flags.replace("TEXT", str(text)).split(), capsys=capsys)
    assert not [path for path in tmp_path.iterdir() if path != text]  # nothing was made


def test_too_little_text(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("short")
    message = refused("train", tmp_path / "a.txt", "--out", tmp_path / "run", *TINY, capsys=capsys)
    assert "too few for sequences of 16" in message
    (tmp_path / "b").write_bytes(b"\0")
    assert "the paths contain no text" in refused(
        "train", tmp_path / "b", "--out", tmp_path / "two", *TINY, capsys=capsys
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b"]  # nothing was made


def test_what_was_mended_is_said_again(text, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("short")
    run = tmp_path / "run"
    assert "too few" in refused("train", tmp_path / "a.txt", "--out", run, *TINY, capsys=capsys)
    start(options(text, steps=1), run, Silent())
    assert losses_of(run)


def test_a_loss_that_is_no_number_ends_it(text, tmp_path):
    how = options(text, steps=200, learning_rate=1e30, optimizer="sgd", warm_up=0, save_every=1)
    with (
        pytest.raises(InputError, match="give a smaller --learning-rate; the checkpoint of step"),
        np.errstate(all="ignore"),
    ):
        start(how, tmp_path / "run", Silent())


def test_without_the_package_safetensors(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = refused("train", text, "--out", tmp_path / "run", capsys=capsys)
    assert message == (
        "learncost: training needs the package safetensors: pip install 'learncost[train]', or in a clone pip "
        "install -e '.[train]'"
    )
