"""Several processes: placed steps on gloo give what one process gives, send what is priced, and train alike."""

import json

import pytest

import learncost as lc
from learncost.faces.command import main
from processes import worked

SAMPLE = [["gpt2", "dp=2", "fsdp", "adamw"], ["llama", "tp=2", "megatron-sp", "sgd"]]
FOUR = [
    ["gpt2", "dp=4", "ddp", "adamw"],
    ["gpt2", "dp=2,tp=2", "megatron,zero-1", "adamw"],
    ["gpt2", "dp=2,tp=2", "megatron-sp,fsdp", "adamw"],
    ["llama", "cp=2,tp=2", "ulysses,megatron", "adamw"],
    ["llama", "cp=4", "cp", "sgd"],
    ["bert", "dp=2,tp=2", "zero-2,megatron-sp", "sgd"],
    ["t5", "dp=2,tp=2", "fsdp,megatron", "sgd"],
    ["vit", "dp=2,tp=2", "ddp,megatron", "sgd"],
]
TINY = ["--model", "gpt2", "--n-layer", "2", "--n-embd", "8", "--n-head", "2", "--batch-size", "4", "--seq-len", "16"]
TINY += ["--dropout", "0.1", "--validate-every", "2", "--sample-every", "6", "--steps", "6"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for document in range(8):
        lines = [f"line {line} of document {document * 7919 % 1000}\n" for line in range(30)]
        (folder / f"{document}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    assert main(["train", str(text), *TINY, "--engine", "torch", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def two(text, tmp_path_factory):
    """What two processes found, and their run."""
    folder = tmp_path_factory.mktemp("two")
    trainings = [[str(text), *TINY, "--mesh", "dp=2", "--out", str(folder / "run")]]
    return worked(2, {"steps": SAMPLE, "trainings": trainings}, folder), folder / "run"


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [number for line in lines for number in (line["loss"], line.get("validation_loss", 0.0))]


def test_a_placed_step_gives_what_one_process_gives_and_sends_what_is_priced(two):
    for case, (worst, sent, priced) in zip(SAMPLE, two[0], strict=True):
        assert worst < 1e-12, case
        assert sent == priced > 0, case


def test_two_processes_train_as_one_does(two, alone):
    assert losses(two[1]) == pytest.approx(losses(alone), rel=1e-6)
    assert sorted(path.name for path in two[1].iterdir()) == sorted(path.name for path in alone.iterdir())


@pytest.mark.slow
def test_four_processes(text, alone, tmp_path):
    runs = {"ab": ["--mesh", "dp=2,tp=2"], "cd": ["--mesh", "dp=4", "--placement", "fsdp"]}
    trainings = [[str(text), *TINY, *words, "--out", str(tmp_path / name)] for name, words in runs.items()]
    found = worked(4, {"steps": FOUR, "trainings": trainings}, tmp_path)
    for case, (worst, sent, priced) in zip(FOUR, found, strict=True):
        assert worst < 1e-11, case
        assert sent == priced > 0, case
    for name in runs:
        assert losses(tmp_path / name) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "words", "message"),
    [
        (4, [], "4 processes were started, and nothing says what each of them does: give --mesh, such as --mesh dp=4"),
        (4, ["--mesh", "dp=3"], "the mesh dp=3 is of 3 processes, and 4 were started"),
        (1, ["--mesh", "dp=2"], "torchrun --nproc-per-node 2 -m learncost train"),
    ],
)
def test_other_processes_than_the_mesh_has_are_refused_before_anything_is_written(
    number, words, message, text, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(number))
    given = {"mesh": words[1]} if words else {}
    with pytest.raises(lc.InputError, match=message):
        lc.train(str(text), out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
