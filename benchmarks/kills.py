"""Trainings that are killed and go on: nothing that a checkpoint promised is lost, and every bit is as if nobody had.

    python benchmarks/kills.py [--mesh dp=2] [--placement NAMES] [--kills 50] [--seed 0]
    python benchmarks/kills.py --mesh "dp=2 tp=2 1" --kills 12
    python benchmarks/kills.py --engine numpy,torch,jax --precision all --kills 20 [--device cuda]

A small model learns text, in fp64, by one process and, uninterrupted, over the mesh; their losses are equal but for
rounding. Then the same run is begun anew, killed at random moments with SIGKILL - one of its processes,
torchrun alone, or all - and goes on with --resume. After every kill nobody is left within 30 seconds, no more than one
line says that somebody is gone, and the checkpoint is not before the last one that was complete. At the end losses of
all steps and weights are those of the uninterrupted run, bit for bit. Over several meshes (`1` is one process) each
start takes the next one, and losses are held to those of one process: sums in another order are rounded otherwise.

With engines, one process learns by each of them in each of the precisions, is killed so often, and ends with the
losses, weights and states of a run that was left alone. What an engine refuses is told. On a GPU PyTorch's sums at
indices are not deterministic, and the losses are not the same (docs/train.md).

A run that ends before it was killed often enough is begun anew in another folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import torch.distributed as distributed
import torch.distributed.checkpoint.state_dict_saver  # noqa: F401  # which takes as long as PyTorch itself

from learncost.cli.command import main as command
from learncost.ir.precision import PRECISIONS
from learncost.models.storage import read_arrays
from learncost.sharding.mesh import mesh
from learncost.training.folder import Folder

MODEL = "--model gpt2 --n-layer 2 --n-embd 16 --n-head 2 --batch-size 4 --seq-len 32 --dropout 0.1"
TURNED = (
    "--model tinyllama-1.1b --num-hidden-layers 2 --hidden-size 32 --num-attention-heads 2 --num-key-value-heads 1 "
    "--intermediate-size 48 --batch-size 4 --seq-len 32 --dropout 0.1 --learning-rate 0.0001"
)
"""A model whose checkpoint has most matrices the other way round than a step reads them."""

PATHS = "--lora all-linear --lora-rank 2"
STEPS = "--steps {steps} --learning-rate 0.003 --validate-every 50 --save-every 3 --sample-every 1000"
ROUNDING = 1e-9
"""How far losses in fp64 may be apart, relatively, after all steps, where sums have another order."""

WITHIN = 30.0
"""Seconds in which everybody notices that one is gone."""


def text(folder: Path) -> Path:
    """Eight documents of sentences that can be learned."""
    folder.mkdir()
    subjects, verbs = ("the cat", "a dog", "my friend", "the river"), ("sees", "follows", "finds", "likes")
    for document in range(8):
        draw = random.Random(document)
        lines = [f"{draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(subjects)}." for _ in range(200)]
        (folder / f"{document}.txt").write_text("\n".join(lines))
    return folder


def begun(grid: str, ops: Sequence[str], given: argparse.Namespace) -> Started:
    """A command over a mesh, or alone."""
    train = ["train", *ops]
    if grid == "1":
        return Forked(1, train)
    number = mesh(grid).devices
    train += ["--mesh", grid, *(["--placement", given.placement] if given.placement else [])]
    if not given.torchrun:
        return Forked(number, train)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number), "-m", "learncost"]
    return Torchrun([sys.executable, *agent, *train])


class Started(Protocol):
    """torchrun, or what stands for it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""

    def output(self) -> str:
        """What it and all that it started wrote."""


class Torchrun:
    """The real one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=self._out)
        self.pid, self.poll = self._process.pid, self._process.poll

    def output(self) -> str:
        self._out.seek(0)
        return self._out.read()


class Forked:
    """What stands for torchrun: it keeps the store, starts the processes, and ends them all where one has failed.

    They are copies of this process, which has PyTorch already: most of the time is theirs for steps.
    """

    def __init__(self, number: int, ops: Sequence[str]) -> None:
        self._out, self._code = tempfile.TemporaryFile("w+"), None  # noqa: SIM115
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(self._out.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _leave(lambda: self._agent(number, ops))

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def output(self) -> str:
        self._out.seek(0)
        return self._out.read()

    @staticmethod
    def _agent(number: int, ops: Sequence[str]) -> int:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        if number > 1:
            os.environ |= {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "kills"}
        there = set()
        for rank in range(number):
            if (pid := os.fork()) == 0:
                if number > 1:
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                _leave(lambda: command(ops))
            there.add(pid)
        store = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if number > 1 else None
        failed = 0
        while there:
            pid, status = os.waitpid(-1, 0)
            there.discard(pid)
            if status and not failed:
                failed = 1
                for other in there:
                    os.kill(other, signal.SIGTERM)
        del store
        return failed


def _leave(action: Callable[[], int]) -> NoReturn:
    """End a copy of this process with a code, whatever happens: what comes after is for the first one alone."""
    code = 1
    try:
        code = action()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def workers(parent: int) -> list[int]:
    """The processes that one has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(place.name))
    return sorted(found)


def is_there(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(process: Started, others: Sequence[int] = (), seconds: float = math.inf) -> tuple[int, str]:
    """The exit code and what was said; nobody is left, which is an error after so many seconds."""
    until = time.monotonic() + seconds
    try:
        while (code := process.poll()) is None or any(map(is_there, others)):
            assert time.monotonic() < until, f"processes are left: {process.output()}"
            time.sleep(0.02)
    finally:
        for pid in {*others, *(workers(process.pid) if process.poll() is None else ()), process.pid}:
            with suppress(OSError):
                if process.poll() is None or pid != process.pid:
                    os.kill(pid, signal.SIGKILL)
    return code, process.output()


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended by itself a moment before."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def steps_of(run: Path) -> int:
    """After how many steps the last complete checkpoint is; -1 before the first."""
    folder = Folder(run)
    try:
        saved = folder.distributed()
        return saved.steps if saved is not None else folder.whole_steps()
    except Exception:  # it is being replaced at this moment
        return -1


def losses(run: Path) -> dict[int, float]:
    """The loss of every step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}


def weights(run: Path) -> dict[str, np.ndarray]:
    """The last ones, and the states of the optimizer."""
    states = next(iter(run.glob("optimizer-*.safetensors")), None)  # over a mesh they lie in parts
    return read_arrays(run / "model.safetensors", "")[0] | (read_arrays(states, "")[0] if states else {})


def whole(grid: str, ops: Sequence[str], given: argparse.Namespace) -> None:
    """A run that nobody interrupts."""
    code, output = ended(begun(grid, ops, given))
    assert code == 0, output


def life(
    grid: str, ops: Sequence[str], run: Path, given: argparse.Namespace, draw: random.Random, found: Counter
) -> bool:
    """Begin or go on, until a kill at a random moment, or the end: whether it was killed."""
    metrics, before, began = run / "metrics.jsonl", 0, time.monotonic()
    with_steps = draw.random() < 0.85  # else it is killed anywhere in its beginning
    wait = (
        draw.uniform(0.0, 2.5) if with_steps else draw.uniform(0.5, 9.0) if given.torchrun else draw.uniform(0.1, 2.0)
    )
    size = metrics.stat().st_size if metrics.exists() else 0
    process = begun(grid, ops, given)
    promised = steps_of(run)
    until = None if with_steps else began + wait
    while process.poll() is None:
        if until is None and metrics.exists() and metrics.stat().st_size != size:
            before += 1
            until = time.monotonic() + wait if before > 1 else None
            size = metrics.stat().st_size
        promised = max(promised, steps_of(run))
        if until is not None and time.monotonic() > until:
            break
        time.sleep(0.02)
    _signal(process.pid, signal.SIGSTOP)  # it starts no process between the list and the kill
    others = workers(process.pid)
    kinds = {
        "all": [process.pid, *others],
        "torchrun alone": [process.pid],
        "one process": [draw.choice(others or [0])],
    }
    kind = "all" if not others or grid == "1" else draw.choices([*kinds], (3, 1, 6))[0]
    killed = process.poll() is None
    for victim in kinds[kind] if killed else ():
        _signal(victim, signal.SIGKILL)
    _signal(process.pid, signal.SIGCONT)
    code, output = ended(process, others, WITHIN)
    if code == 0:
        return False
    assert killed, output
    assert output.count("is gone") <= 1, output
    ours = [line for line in output.splitlines() if line.startswith("learncost:") and "is gone" not in line]
    assert not ours, output
    after = steps_of(run)
    assert after >= promised, f"checkpoint {promised} was complete, and {after} is left"
    found[kind] += 1
    found["in its beginning"] += not with_steps
    return True


def check_same(run: Path, alone: Path) -> int:
    """Hold losses, weights and states to those of a run that was left alone, bit for bit; how many arrays there are."""
    assert losses(run) == losses(alone), f"{run.name}: other losses"
    expected, left = weights(alone), weights(run)
    assert expected.keys() == left.keys(), f"{run.name}: other arrays"
    other = [name for name in expected if not np.array_equal(expected[name], left[name])]
    assert not other, f"{run.name}: other numbers in {other[0]}"
    return len(expected)


def by_engine(given: argparse.Namespace) -> None:
    """Every engine in every precision, by one process."""
    chosen = [*PRECISIONS] if given.precision == "all" else given.precision.split(",")
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        texts = str(text(place / "text"))
        for engine, precision in product(given.engine.split(","), chosen):
            draw, found = random.Random(f"{given.seed} {engine} {precision}"), Counter[str]()
            steps = f"--steps {given.steps} --validate-every 50 --save-every 3 --sample-every 1000"
            ops = [texts, *TURNED.split(), *steps.split(), "--engine", engine, "--precision", precision]
            ops += ["--device", given.device] if given.device else []
            frozen = PRECISIONS[precision].quantized
            ops += PATHS.split() if frozen and not frozen.learns else []
            alone, run = place / f"{engine}-{precision}", place / f"{engine}-{precision}-killed"
            code, output = ended(begun("1", [*ops, "--out", str(alone)], given))
            if code:
                print(f"{engine} {precision}: refused, {output.splitlines()[-1]}", flush=True)
                continue
            kills = 0
            while kills < given.kills:
                how = ["--resume", str(run)] if (run / "training.json").exists() else [*ops, "--out", str(run)]
                if life("1", how, run, given, draw, found):
                    kills += 1
                else:  # it ended before it was killed often enough
                    check_same(run, alone)
                    shutil.rmtree(run)
            how = ["--resume", str(run)] if (run / "training.json").exists() else [*ops, "--out", str(run)]
            whole("1", how, given)
            arrays = check_same(run, alone)
            print(f"{engine} {precision}: {kills} kills, {arrays} arrays and all losses bit for bit", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """Measure, and say what was found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--mesh", default="dp=2")
    arguments.add_argument("--placement")
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--torchrun", action="store_true", help="start the processes with it: slower")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--engine", help="engines of one process, with commas between")
    arguments.add_argument("--precision", default="all", help="with --engine: precisions, with commas between")
    arguments.add_argument("--device", help="with --engine: where its steps run, as train has it")
    given = arguments.parse_args()
    if given.engine:
        by_engine(given)
        return
    grids, draw, found = given.mesh.split(), random.Random(given.seed), Counter()
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        ops = [
            str(text(place / "text")),
            *MODEL.split(),
            "--precision",
            "fp64",
            *STEPS.format(steps=given.steps).split(),
        ]
        whole("1", [*ops, "--engine", "torch", "--out", str(place / "one")], given)
        one = losses(place / "one")
        first, last = one[1], one[given.steps]
        assert last < 0.7 * first, f"it learns nothing: {first} to {last}"
        print(f"one process: loss {first:.3f} at the first step, {last:.3f} at step {given.steps}", flush=True)
        straight = place / "straight"
        if len(grids) == 1:
            whole(grids[0], [*ops, "--out", str(straight)], given)
            apart = max(abs(loss - one[step]) / one[step] for step, loss in losses(straight).items())
            assert apart < ROUNDING, f"losses over {grids[0]} are {apart} apart from those of one process"
            print(f"{grids[0]}, uninterrupted: losses {apart:.1e} apart from those of one process", flush=True)
        kills = runs = iterations = 0
        while kills < given.kills:
            run, runs = place / f"killed-{runs}", runs + 1
            while True:
                started = (run / "training.json").exists()
                how = ["--resume", str(run)] if started else [*ops, "--out", str(run)]
                if not life(grids[iterations % len(grids)], how, run, given, draw, found):
                    break
                kills, iterations = kills + 1, iterations + 1
                print(f"kill {kills}: checkpoint of step {steps_of(run)} of {given.steps}", flush=True)
                if kills == given.kills:  # the rest of it is left in peace
                    started = (run / "training.json").exists()
                    how = ["--resume", str(run)] if started else [*ops, "--out", str(run)]
                    whole(grids[iterations % len(grids)], how, given)
                    break
            of_run = losses(run)
            assert sorted(of_run) == sorted(one), "a step is missing, or twice"
            if len(grids) == 1:
                expected, left = weights(straight), weights(run)
                assert all(np.array_equal(expected[name], left[name]) for name in expected), "other weights"
                assert of_run == losses(straight), "other losses"
            apart = max(abs(loss - one[step]) / one[step] for step, loss in of_run.items())
            assert apart < ROUNDING, f"losses are {apart} apart from those of one process"
            print(
                f"run {runs}: all {given.steps} steps, losses {apart:.1e} apart from those of one process", flush=True
            )
        by = ", ".join(f"{name} {number}" for name, number in sorted(found.items()))
        same = (
            "weights and losses of the uninterrupted run, bit for bit" if len(grids) == 1 else "losses of one process"
        )
        print(f"{kills} kills ({by}), {runs} runs to the end: {same}; no checkpoint lost")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
