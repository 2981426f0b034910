"""Several processes: placed steps on gloo give what one process gives, send what is priced, and train alike."""

import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.distributed as distributed

import learncost as lc
from learncost.backends.placed import placed
from learncost.backends.placed.between import HELPERS, MESSAGE
from learncost.cli.command import main
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.models.storage import read_arrays
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.collective import bucketed
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from learncost.training import rendezvous
from learncost.training.folder import Folder
from learncost.training.parts import newest, read_whole
from processes import begun, ended, free_port, worked
from trainings_on_disk import numbered_texts

SAMPLE = [["gpt2", "dp=2", "fsdp", "adamw"], ["gpt2", "cp=2", "cp", "adamw", "ring"]]
TWO = [["llama", "tp=2", "megatron-sp", "sgd"], ["mixtral", "ep=2", "ep", "sgd"]]
THREE = (
    ("gpt2", "dp=3", "fsdp", "adamw"),
    ("llama", "dp=3", "fsdp", "adamw", "flash,fused"),
    ("mixtral", "dp=1,shard=3", "hsdp", "sgd"),
)
FOUR = [
    ["gpt2", "dp=4", "ddp", "adamw"],
    ["gpt2", "dp=2,tp=2", "megatron,zero-1", "adamw"],
    ["gpt2", "dp=2,tp=2", "megatron-sp,fsdp", "adamw"],
    ["llama", "cp=2,tp=2", "ulysses,megatron", "adamw"],
    ["llama", "cp=4", "cp", "sgd"],
    ["llama", "cp=4", "cp", "sgd", "flash,ring"],
    ["llama", "cp=2,tp=2", "megatron-sp,cp", "sgd", "flash,ring"],
    ["bert", "dp=2,tp=2", "zero-2,megatron-sp", "sgd"],
    ["t5", "dp=2,tp=2", "fsdp,megatron", "sgd"],
    ["vit", "dp=2,tp=2", "ddp,megatron", "sgd"],
    ["mixtral", "ep=2,tp=2", "ep,megatron", "sgd"],
    ["deepseek_v2", "dp=2,ep=2", "ep,fsdp", "sgd"],
]
WIDE = {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 600, "batch_size": 8, "seq_len": 64}
MEMORIES = [
    {**WIDE, "mesh": "dp=2", "placement": "fsdp", "engine": "torch"},
    {**WIDE, "mesh": "tp=2", "placement": "megatron", "engine": "torch"},
]
TINY = ["--model", "gpt2", "--n-layer", "2", "--n-embd", "8", "--n-head", "2", "--batch-size", "4", "--seq-len", "16"]
SUMMED = ["--accumulate", "2", "--clip", "0.5"]
TINY += ["--dropout", "0.1", "--validate-every", "2", "--sample-every", "6", "--steps", "6"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return numbered_texts(tmp_path_factory.mktemp("text"))


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
    meshes = {"run": "dp=2", "stages": "pp=2"}
    trainings = [[str(text), *TINY, "--mesh", each, "--out", str(folder / name)] for name, each in meshes.items()]
    trainings.append([str(text), *TINY, *SUMMED, "--mesh", "dp=2", "--placement", "fsdp", "--out", str(folder / "sum")])
    unlike = [[str(text), *TINY, "--mesh", "dp=2", "--out", str(folder / "unlike")]]
    jobs = {"steps": SAMPLE, "trainings": trainings, "unlike": unlike, "modules": True, "memories": MEMORIES}
    return worked(2, jobs, folder), folder / "run"


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [number for line in lines for number in (line["loss"], line.get("validation_loss", 0.0))]


def test_a_placed_step_gives_what_one_process_gives_and_sends_what_is_priced(two):
    steps = two[0][: len(SAMPLE)]
    for case, (worst, sent, priced, _) in zip(SAMPLE, steps, strict=True):
        assert worst < 1e-12, case
        assert sent == priced > 0, case
    # As operators; and in place, where no line reads a part of an axis at an index.
    assert [ran for *_, ran in steps] == [2, 1]


def test_a_process_takes_what_is_predicted(two):
    """In place, with messages beside the arena; and where no kernel computes it, as operators."""
    *_, found = two[0]
    for case, (predicted, measured) in zip(MEMORIES, found, strict=True):
        assert predicted > 2**23, case
        assert abs(measured - predicted) < 64, case


def test_microbatches_are_cut_over_processes_too(two, text, tmp_path):
    """The update behind them has no batch, which the clauses cut; two processes take the steps of one."""
    folder = tmp_path / "alone"
    assert main(["train", str(text), *TINY, *SUMMED, "--engine", "torch", "--out", str(folder)]) == 0
    np.testing.assert_allclose(losses(two[1].with_name("sum")), losses(folder), rtol=1e-5)


def test_gradients_travel_together():
    model, grid = build(small("gpt2")), mesh("dp=2")
    table = planned(without_gradients(step(model, "bp", "adamw")), "fused-update")
    sizes = run_sizes(model, 2, 8, None)
    program = placed(bucketed(place(table, grid, chosen(None, "ddp"), sizes).table), sizes | grid.sizes, "fp32")
    calls = [line for line in program.text.splitlines() if line.strip().startswith("all_reduce(")]
    assert len(calls) == 3  # the last norm's; a turn's; those of the embeddings, with the loss


@pytest.mark.parametrize(("room", "messages"), [(1, 3), (32, 2), (1 << 20, 1)])
def test_what_fills_a_message_goes_alone(room, messages):
    sent = []
    helper = HELPERS["all_reduce"].replace(str(MESSAGE), str(room))
    for op in ("wait_tensor", "all_reduce_"):
        helper = helper.replace(f"torch.ops._c10d_functional.{op}", op)
    doubled = {
        "torch": torch,
        "wait_tensor": lambda X: X,
        "all_reduce_": lambda X, how, group: sent.append(X) or X.mul_(2),
    }
    exec(helper, doubled)
    parts = [torch.ones(size) for size in (5, 2, 6)]
    pairs = [(torch.empty(5), parts[0]), (parts[1], parts[1]), (torch.empty(6), parts[2])]
    doubled["all_reduce"](MagicMock(), "dp", "sum", *pairs)
    assert all((result == 2).all() for result, _ in pairs)
    assert len(sent) == messages


def test_modules_learn_under_ddp_and_fsdp2_as_alone(two):
    *_, gradients, _ = two[0]
    assert len(gradients) == 2
    assert max(gradients) < 1e-13


def test_two_processes_train_as_one_does(two, alone):
    assert losses(two[1]) == pytest.approx(losses(alone), rel=1e-6)
    names = {path.name for path in two[1].iterdir()}
    assert names == {"checkpoint-6", *(path.name for path in alone.iterdir())}


def test_two_stages_train_as_one_process_does(two, alone):
    assert losses(two[1].with_name("stages")) == pytest.approx(losses(alone), rel=1e-6)


def test_processes_of_which_one_has_no_compiler_run_operators_alike(two, alone):
    assert losses(two[1].with_name("unlike")) == pytest.approx(losses(alone), rel=1e-6)


def test_what_they_wrote_in_parts_is_the_plain_folder(two):
    weights, state = read_whole(newest(two[1], ""), "").values()
    for name, array in read_arrays(two[1] / "optimizer-6.safetensors", "")[0].items():
        np.testing.assert_array_equal(state[name], array)
    (two[1] / "model.safetensors").rename(two[1] / "elsewhere")
    folder = Folder(two[1])
    model = build(folder.configuration())
    from_parts = folder.weights(model)
    (two[1] / "elsewhere").rename(two[1] / "model.safetensors")
    for name, array in folder.weights(model).items():
        np.testing.assert_array_equal(from_parts[name], array)
        np.testing.assert_array_equal(weights[name], array)


@pytest.mark.slow
def test_two_processes_of_other_meshes(tmp_path):
    found = worked(2, {"steps": TWO}, tmp_path)
    for case, (worst, sent, priced, ran) in zip(TWO, found, strict=True):
        assert worst < 1e-12, case
        assert sent == priced > 0, case
        assert ran == 1, case


@pytest.mark.slow
def test_three_processes_which_divide_no_width(tmp_path):
    *found, (ours, theirs) = worked(3, {"steps": THREE, "odd": True}, tmp_path)
    for case, (worst, sent, priced, ways) in zip(THREE, found, strict=True):
        assert worst < 1e-11, case
        assert sent == priced > 0, case
        assert ways == 2, case  # as operators, and in place
    assert ours <= theirs


@pytest.mark.slow
def test_four_processes(text, alone, tmp_path):
    runs = {"ab": ["--mesh", "dp=2,tp=2"], "cd": ["--mesh", "dp=4", "--placement", "fsdp"]}
    trainings = [[str(text), *TINY, *ops, "--out", str(tmp_path / name)] for name, ops in runs.items()]
    found = worked(4, {"steps": FOUR, "trainings": trainings}, tmp_path)
    for case, (worst, sent, priced, _) in zip(FOUR, found, strict=True):
        assert worst < 1e-11, case
        assert sent == priced > 0, case
    for name in runs:
        assert losses(tmp_path / name) == pytest.approx(losses(alone), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "ops", "message"),
    [
        (4, [], "4 processes were started without mesh: give mesh, for example mesh='dp=4'"),
        (4, ["--mesh", "dp=3"], "the mesh dp=3 needs 3 processes, and 4 were started"),
        (1, ["--mesh", "dp=2"], "torchrun --nproc-per-node 2 -m learncost train"),
    ],
)
def test_other_processes_than_the_mesh_has_are_refused_before_anything_is_written(
    number, ops, message, text, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(number))
    given = {"mesh": ops[1]} if ops else {}
    with pytest.raises(lc.InputError, match=message):
        lc.train(str(text), out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"placement": "ep"}, "'e over ep of experts' names the axis ep, which is not in the mesh: it has dp"),
        ({"place": "B over tp"}, "'B over tp' names the axis tp, which is not in the mesh: it has dp"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anything_is_written(ops, message, text, tmp_path):
    with pytest.raises(lc.InputError, match=message):
        lc.train(str(text), model="gpt2", n_layer=2, n_embd=8, n_head=2, mesh="dp=1", out=tmp_path / "run", **ops)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_words_that_are_wrong_are_told_by_the_first_process(rank, text, monkeypatch, capsys):
    monkeypatch.setenv("RANK", str(rank))
    ops = ["train", str(text), "--mesh", "dp=2", "--mesh", "dp=2"]
    if rank:
        with pytest.raises(SystemExit, match="2"):
            main(ops)
    else:
        assert main(ops) == 2
    assert capsys.readouterr().err == ("" if rank else "learncost: --mesh is given twice\n")


def test_a_port_that_is_taken_is_one_line(text, tmp_path, monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": taken.getsockname()[1]}
        for name, value in address.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(SystemExit, match="2"):
            main(["train", str(text), "--mesh", "dp=2", "--out", str(tmp_path / "run")])
    place = f"127.0.0.1:{address['MASTER_PORT']}"
    expected = f"learncost: processes cannot meet at {place}, MASTER_ADDR and MASTER_PORT: address already in use\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"MASTER_ADDR": "no.such.host.invalid"}, "for 0 s"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x', and no number"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT must be a port up to"),
    ],
)
def test_who_cannot_meet_says_so_at_once(settings, message, monkeypatch, capsys):
    everyone = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {**everyone, **settings}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rendezvous, "CONNECT_TIMEOUT", 0.2)
    with pytest.raises(SystemExit, match="2"):
        rendezvous.meet(distributed)
    printed = capsys.readouterr().err
    assert printed.startswith("learncost: processes cannot meet at ")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.fixture
def store():
    return distributed.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)


def test_a_process_that_says_nothing_more_is_gone(store, monkeypatch):
    monkeypatch.setattr(rendezvous, "HEARTBEAT_INTERVAL", 0.02)
    monkeypatch.setattr(rendezvous, "HEARTBEAT_TIMEOUT", 0.5)
    gone = threading.Event()
    alive = rendezvous.Heartbeat(store.clone(), 0, 2, gone.set)
    assert not gone.wait(0.7)  # the other one has not come yet
    store.set("alive/1", "1")
    assert gone.wait(5)
    alive.end()


def test_a_process_that_has_ended_is_not_gone(store, monkeypatch):
    monkeypatch.setattr(rendezvous, "HEARTBEAT_INTERVAL", 0.02)
    monkeypatch.setattr(rendezvous, "HEARTBEAT_TIMEOUT", 0.3)
    gone = threading.Event()
    first, second = (rendezvous.Heartbeat(store.clone(), rank, 2, gone.set) for rank in range(2))
    second.end()
    assert not gone.wait(0.7)
    store.set(rendezvous.LOST_KEY, "")  # by another one
    assert gone.wait(5)
    first.end()


def test_who_meets_anew_agrees_whatever_others_left_in_the_store(store):
    for name in ("word/1", "word/2"):
        store.set(f"learncost/{name}", "of somebody who was killed")
    names = {}
    ranks = [
        threading.Thread(target=lambda rank=rank: names.update({rank: rendezvous._agreed(store.clone(), rank, 3)}))
        for rank in range(3)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(10)
    assert len(set(names.values())) == 1
    assert sorted(names) == [0, 1, 2]
    assert rendezvous._agreed(store.clone(), 0, 1) not in names.values()


def test_a_mesh_has_as_many_devices_as_are_left():
    assert str(mesh("dp=*,tp=2", 6)) == "dp=3,tp=2"
    assert str(mesh("dp=*,tp=2", 2)) == "dp=1,tp=2"
    for text, devices in (("dp=*,tp=*", 4), ("dp=*", None)):
        with pytest.raises(lc.InputError, match="cannot be inferred, as"):
            mesh(text, devices)


def test_one_command_begins_a_run_and_goes_on(text, tmp_path):
    folder = str(tmp_path / "run")
    ops = ["train", str(text), *TINY[:-1], "2", "--engine", "numpy", "--out", folder, "--or-resume", "--mesh", "dp=*"]
    assert main(ops) == 0
    assert main([*ops[:-2], "--mesh", "dp=1"]) == 0
    for other in (["--seed", "3"], ["--n-inner", "8"], ["--precision", "fp64"]):
        assert main([*ops, *other]) == 2
    assert main([*ops[:2], *ops[1:]]) == 2
    assert len(losses(tmp_path / "run")) == 4


@pytest.mark.slow
def test_an_elastic_run_goes_on_with_fewer(text, tmp_path, alone):
    run, port = tmp_path / "run", free_port()
    agent = ["-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    train = ["-m", "learncost", "train", str(text), *TINY[:-1], "200", "--save-every", "2", "--precision", "fp64"]
    command = [sys.executable, *agent, *train, "--mesh", "dp=*", "--out", str(run), "--or-resume"]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agents = [subprocess.Popen(command, **out)]
    while not socket_answers(port):
        time.sleep(0.1)
    agents.append(subprocess.Popen(command, **out))
    while newest(run, "") is None or newest(run, "").steps < 4:
        assert all(each.poll() is None for each in agents), ended(agents)
        time.sleep(0.1)
    agents[1].kill()
    codes, printed = ended(agents)
    assert codes[0] == 0, printed[0]
    assert "engine torch, 2 processes, dp=2" in printed[0]
    assert "engine torch, 1 process, dp=1" in printed[0]
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 201))
    straight = tmp_path / "straight"
    ops = ["train", str(text), *TINY[:-1], "200", "--precision", "fp64", "--engine", "torch", "--out", str(straight)]
    assert main(ops) == 0
    assert losses(run) == pytest.approx(losses(straight), rel=1e-12)


def socket_answers(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("mesh_text", ["dp=2", "pp=2"])
def test_a_process_that_is_killed_or_stopped_ends_the_others_within_30_s(how, victim, mesh_text, text, tmp_path):
    run = tmp_path / "run"
    ops = [*TINY[:-1], "100000", "--save-every", "2", "--mesh", mesh_text, "--out", str(run)]
    processes = begun(2, ["-m", "learncost", "train", str(text), *ops])
    while len((run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else "") < 1000:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    processes[victim].send_signal(how)
    began = time.monotonic()
    other = processes[1 - victim]
    other.wait(60)
    assert time.monotonic() - began < 30
    if how == signal.SIGSTOP:
        processes[victim].send_signal(signal.SIGCONT)
    codes, printed = ended(processes)
    assert codes[1 - victim] == 1
    lines = [line for line in printed[1 - victim].splitlines() if "another of the 2 processes is gone" in line]
    assert len(lines) == 1
    assert "Traceback" not in printed[1 - victim]
    assert not list(run.glob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_one_process_is_one_line_of_all(full, text, tmp_path):
    run = tmp_path / "run"
    ops = [*TINY[:-1], "100000", "--save-every", "2", "--mesh", "dp=2", "--placement", "fsdp", "--out", str(run)]
    processes = begun(2, ["-m", "learncost", "train", str(text), *ops])
    while newest(run, "") is None or newest(run, "").steps < 2:  # kernels are compiled in the first step
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    resource.prlimit(processes[full].pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
    codes, printed = ended(processes, 60)
    assert codes == [2, 2]
    everything = "".join(printed)
    assert "Traceback" not in everything
    refusals = [line for line in everything.splitlines() if line.startswith("learncost:")]
    assert len(refusals) == 1
    assert "cannot write" in refusals[0]
    assert "File too large; the checkpoint of step" in refusals[0]
    saved = newest(run, "")
    assert {path.name for path in run.glob("checkpoint-*")} == {saved.path.name}
    read_whole(saved, "")
