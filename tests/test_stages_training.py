"""Training over stages of a pipeline: as one process learns, moved between meshes, and what is refused."""

import json
import time

import numpy as np
import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.engines.options import Options
from learncost.models.configuration import configure
from learncost.models.storage import read_arrays
from learncost.training.parts import newest
from learncost.training.stages import mesh_engine
from processes import begun, ended
from trainings_on_disk import numbered_texts

TINY = ["--model", "gpt2", "--n-layer", "4", "--n-embd", "8", "--n-head", "2", "--batch-size", "4", "--seq-len", "16"]
TINY += ["--dropout", "0.1", "--validate-every", "3", "--sample-every", "12", "--save-every", "2"]
TINY += ["--precision", "fp64"]

CONFIGURATION = configure("gpt2", {"n_layer": 4, "n_embd": 8, "n_head": 2, "vocab_size": 16})


def engine_of(**flags):
    options = {"mesh": "pp=2", "batch_size": 4, "seq_len": 8, "paths": (), **flags}
    return mesh_engine(CONFIGURATION, Options(**options))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"schedule": "interleaved", "microbatches": 1}, "1 microbatches are not a multiple of the 2 devices"),
        ({"schedule": "interleaved", "clip": 1.0}, "stages 0, 1, 2, 3 sum clip.squares, and one device has several"),
        ({"schedule": "2f2b"}, "no schedule is called '2f2b'"),
        ({"microbatches": 3}, "--batch-size 4 is not divisible into 3 microbatches .* the next divisible size is 6"),
        ({"accumulate": 2}, "remove --accumulate: --microbatches cuts the batch"),
        ({"procedure": "pepita"}, "remove --procedure pepita"),
        (
            {"plan": "fused-update"},
            "stages update with the gradients of all microbatches: remove the plan fused-update",
        ),
        ({"mesh": "pp=3"}, "4 blocks are not divisible into 3 equal stages"),
        ({"mesh": "dp=2", "schedule": "1f1b"}, "--schedule and --microbatches require pipeline stages"),
    ],
)
def test_what_stages_do_not_train_is_refused(flags, message):
    with pytest.raises(lc.InputError, match=message):
        engine_of(**flags)


def test_the_schedule_of_one_process_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be, " * 50)
    with pytest.raises(lc.InputError, match="require pipeline stages, for example mesh='pp=2'"):
        lc.train(tmp_path / "a.txt", out=tmp_path / "run", schedule="1f1b")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return numbered_texts(tmp_path_factory.mktemp("text"))


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [number for line in lines for number in (line["loss"], line.get("validation_loss", 0.0))]


def arrays(run, steps):
    return {
        **read_arrays(run / "model.safetensors", "")[0],
        **read_arrays(run / f"optimizer-{steps}.safetensors", "")[0],
    }


def trained(number, ops):
    codes, printed = ended(begun(number, ["-m", "learncost", "train", *ops]))
    assert codes == [0] * number, "\n".join(printed)


def killed(number, run, ops):
    """A run that was killed, all of its processes, after a checkpoint and before its end."""
    began = newest(run, "").steps if newest(run, "") else 0
    processes = begun(number, ["-m", "learncost", "train", *ops])
    while newest(run, "") is None or newest(run, "").steps < began + 6:
        assert all(process.poll() is None for process in processes), ended(processes)
        time.sleep(0.01)
    for process in processes:
        process.kill()
    ended(processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "mesh"),
    [
        (2, ["--mesh", "pp=2"]),
        (2, ["--mesh", "pp=2", "--schedule", "gpipe", "--microbatches", "2"]),
        (4, ["--mesh", "pp=2,dp=2"]),
        (4, ["--mesh", "pp=2,dp=2", "--placement", "pp,fsdp"]),
        (4, ["--mesh", "pp=2,tp=2"]),
        (2, ["--mesh", "pp=2", "--schedule", "interleaved"]),
        (2, ["--mesh", "pp=2", "--schedule", "zb-h1"]),
        (4, ["--mesh", "pp=4", "--place", "blocks over pp of 1 2 1 0"]),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_stages_train_as_one_process_does(number, mesh, optimizer, text, tmp_path):
    ops = [str(text), *TINY, "--steps", "12", "--optimizer", optimizer, "--learning-rate", "0.003"]
    ops += [] if "interleaved" in mesh else ["--clip", "0.5"]
    trained(number, [*ops, *mesh, "--out", str(tmp_path / "stages")])
    assert main(["train", *ops, "--engine", "torch", "--out", str(tmp_path / "alone")]) == 0
    assert losses(tmp_path / "stages") == pytest.approx(losses(tmp_path / "alone"), rel=1e-12)
    found = arrays(tmp_path / "stages", 12)
    for name, array in arrays(tmp_path / "alone", 12).items():
        # Of the biases of keys the gradient is zero in mathematics: adamw divides rounding by itself.
        if optimizer == "sgd" or not name.endswith(("bK", "bK.m", "bK.v", "c_attn.bias")):
            np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "error"),
    [(["--precision", "bf16-masters"], 1e-4), (["--lora", "all-linear"], 1e-12), (["--train-layers", "2"], 1e-12)],
)
def test_stages_train_in_bf16_and_a_part(more, error, text, tmp_path):
    ops = [str(text), *(TINY[:-2] if "--precision" in more else TINY), "--steps", "6", *more]
    trained(2, [*ops, "--mesh", "pp=2", "--schedule", "interleaved", "--out", str(tmp_path / "stages")])
    assert main(["train", *ops, "--engine", "torch", "--out", str(tmp_path / "alone")]) == 0
    assert losses(tmp_path / "stages") == pytest.approx(losses(tmp_path / "alone"), rel=error)


@pytest.mark.slow
def test_killed_stages_go_on_bit_for_bit_and_over_other_meshes(text, tmp_path):
    ops = [str(text), *TINY, "--steps", "60"]
    stages = ["--mesh", "pp=2"]
    trained(2, [*ops, *stages, "--out", str(tmp_path / "straight")])
    killed(2, tmp_path / "again", [*ops, *stages, "--out", str(tmp_path / "again")])
    trained(2, ["--resume", str(tmp_path / "again"), *stages])
    assert losses(tmp_path / "again") == losses(tmp_path / "straight")
    straight = arrays(tmp_path / "straight", 60)
    for name, array in arrays(tmp_path / "again", 60).items():
        np.testing.assert_array_equal(array, straight[name])
    run = tmp_path / "moved"
    killed(2, run, [*ops, *stages, "--out", str(run)])
    resume = ["--resume", str(run)]
    killed(2, run, [*resume, "--mesh", "dp=2"])
    killed(2, run, [*resume, *stages, "--schedule", "gpipe", "--microbatches", "1"])
    killed(2, run, [*resume, *stages, "--schedule", "interleaved", "--microbatches", "2"])
    killed(4, run, [*resume, "--mesh", "pp=2,dp=2", "--placement", "pp,zero-1"])
    trained(1, resume)
    assert losses(run) == pytest.approx(losses(tmp_path / "straight"), rel=1e-12)


@pytest.mark.slow
def test_stages_go_on_with_what_one_process_left(text, tmp_path):
    for name, mesh in {"alone": [], "stages": ["--mesh", "pp=2"]}.items():
        run = tmp_path / name
        assert main(["train", str(text), *TINY, "--steps", "6", "--engine", "torch", "--out", str(run)]) == 0
        trained(2 if mesh else 1, ["--resume", str(run), "--steps", "12", *mesh])
    assert losses(tmp_path / "stages") == pytest.approx(losses(tmp_path / "alone"), rel=1e-12)
