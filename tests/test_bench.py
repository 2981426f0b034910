"""`benchmarks/against_torch_and_jax`: how a measurement goes on and fails, what it prints; and a real tiny one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from against_torch_and_jax import process, rounds
from against_torch_and_jax.check import TOLERANCES, difference
from against_torch_and_jax.main import main
from against_torch_and_jax.process import Process, SideError
from against_torch_and_jax.result import Bench, Case, Memory, SideFound
from against_torch_and_jax.subject import Subject, shapes, subjects

from processes import forked

TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 9, "vocab_size": 13}
SUBJECT = Subject("tiny", TINY, 3, 7)
MIB = 2**20


# The real thing.


@pytest.mark.parametrize(
    ("named", "message"),
    [("bp", "bp is measured anyway"), ("nope", "no learning procedure is called 'nope'")],
)
def test_a_way_that_cannot_stand_beside_is_refused(
    config: str, capsys: pytest.CaptureFixture[str], named: str, message: str
) -> None:
    assert main([config, "--shape", "3", "7", "--procedure", named]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two threads that wait for each other are slow beside other tests.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def pretended(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Workers find a package jax that does this when it is imported."""
    (folder / "jax").mkdir()
    (folder / "jax" / "__init__.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


class Starting:
    """`subprocess` in which only the first process of a side imports PyTorch; the others are forks of this one."""

    PIPE = subprocess.PIPE

    def __init__(self) -> None:
        self.started: set[str] = set()

    def Popen(self, command: list[str], **settings: Any) -> subprocess.Popen[str]:  # noqa: N802 - as in subprocess
        is_first = command[-1] not in self.started
        self.started.add(command[-1])
        return subprocess.Popen(command, **settings) if is_first else forked(command[2:], **settings)


@pytest.mark.usefixtures("alone")
@pytest.mark.slow
@pytest.mark.parametrize("others", [False, True])
def test_engine_and_eager_end_to_end(
    others: bool, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every side is two processes, the second one without its start: `others` are a second procedure and plan."""
    pretended(monkeypatch, tmp_path, "raise ModuleNotFoundError(name='jax')")
    monkeypatch.setattr(process, "subprocess", Starting())
    out = tmp_path / "bench.json"
    flags = ["--shape", "3", "7", "--rounds", "2", "--against", "eager,jax", "--out", str(out), "--plan"]
    flags += ["fused; fused,epilogue-update", "--procedure", "skip"] if others else ["fused"]
    assert main([config, *flags]) == 0
    printed = capsys.readouterr()
    assert "round 2 of 2" in printed.err
    assert "jax is left out: jax is not installed: pip install 'learncost[jax]'." in printed.out
    answer = json.loads(out.read_text())
    assert answer["rounds"] == 2
    assert answer["machine"]["versions"]["torch"]
    (case,) = answer["cases"]
    engine, eager, floor = (case["sides"][name] for name in ("engine", "eager", "floor"))
    assert engine["facts"]["plan"] == "fused"
    if others:
        skip = case["sides"]["engine skip"]  # another learning procedure, in the same run
        assert "engine skip learns by skip:" in printed.out
        assert skip["procedure"] == "skip"
        ratios = [median(other) / median(step) for other, step in zip(skip["rounds"], engine["rounds"], strict=True)]
        assert skip["over_engine"] == pytest.approx(median(ratios))
        assert skip["memory"]["peak"] > 0
        second = case["sides"]["engine fused,epilogue-update"]  # the same step under another plan
        assert second["facts"]["plan"] == second["plan"] == "fused,epilogue-update"
        assert second["difference"]["gradient"] < 1e-5
        assert "engine fused,epilogue-update: " in printed.out
    # 8 x (13 + 9) embeddings, 2 blocks of 12 x 8^2 + 13 x 8 parameters, the last norm's 2 x 8.
    assert case["parameters"] == 8 * 22 + 2 * (12 * 64 + 13 * 8) + 16
    # Both start from the same weights and read the same batches: what is left is rounding in fp32.
    assert engine["difference"]["side"] == "eager"
    assert engine["difference"]["loss"] < 1e-5
    assert engine["difference"]["gradient"] < 1e-5
    for side in (engine, eager):
        assert len(side["rounds"]) == 2
        assert side["tokens_per_second"] == pytest.approx(21 / side["seconds"])
        # PyTorch is imported before, so that the peak is above it, and the steps of this size add little to it.
        assert 100 * MIB < side["memory"]["runtime"] < side["memory"]["peak"] < side["memory"]["runtime"] + 200 * MIB
    assert eager["over_best_peer"] == 1.0
    assert [len(seconds) for seconds in floor["rounds"]] == [1, 1]
    assert floor["facts"]["optimizer_bytes"] == 28 * case["parameters"]


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.timeout(900)
def test_every_peer_in_both_types(config: str, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    main([config, "--shape", "3", "7", "--rounds", "2", "--dtype", "fp32,bf16", "--out", str(out)])
    for case in json.loads(out.read_text())["cases"]:
        for name in ("eager", "compile", "jax", "floor"):
            assert case["sides"][name]["left_out"] is None, name
            assert len(case["sides"][name]["rounds"]) == 2


def test_a_process_that_dies_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended(monkeypatch, tmp_path, "import os, sys\nprint('no more', file=sys.stderr, flush=True)\nos._exit(3)")
    with pytest.raises(SideError, match=r"^its process ended with exit code 3: no more$"):
        Process("jax")


def test_a_process_that_is_killed_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended(monkeypatch, tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(SideError, match="killed, as for want of memory"):
        Process("jax")


def test_an_error_within_a_side_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended(monkeypatch, tmp_path, "raise RuntimeError('first\\nsecond')")
    with pytest.raises(SideError, match=r"^RuntimeError: first$"):
        Process("jax")


PEAK = """
import numpy as np
from learncost.training.memory import reset_peak, highest

reset_peak()
array = np.ones(25 * 2**20)  # 200 MiB
reached = highest()
del array
kept = highest()
reset_peak()
print(reached, kept, highest())
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets its highest memory")
def test_memory_is_the_highest_since_the_weights_are_there() -> None:
    # In a process of its own: a large heap keeps what is freed, and the peak is never below what is resident.
    printed = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True).stdout
    reached, kept, after = map(int, printed.split())
    assert reached >= 200 * MIB
    assert kept == pytest.approx(reached, abs=MIB)  # the kernel's own count is that exact
    assert after < reached - 150 * MIB


# How it is led, with processes that are none.


class Pretended:
    """Steps take as long as `SECONDS` says; everybody's gradients are ones, but the `wrong` side's."""

    SECONDS: dict[str, float] = {"engine": 0.2, "eager": 0.1, "jax": 0.4, "floor": 0.05}  # noqa: RUF012
    calls: list[tuple[str, int]] = []  # noqa: RUF012
    alive: list[str] = []  # noqa: RUF012
    wrong = dying = ""

    def __init__(self, side: str) -> None:
        self.side = side
        self.alive.append(side)

    def __enter__(self) -> "Pretended":
        return self

    def __exit__(self, *_: object) -> None:
        self.alive.remove(self.side)

    def begin(self, subject: Subject) -> dict[str, object]:
        return {"threads": 1}

    def turn(self, count: int) -> dict[str, object]:
        self.calls.append((self.side, count))
        if self.side == self.dying and [name for name, _ in self.calls].count(self.side) > 4:
            raise SideError("gone")
        return {"seconds": [self.SECONDS[self.side]] * count, "losses": [1.0] * count}

    def gradients(self, folder: Path) -> None:
        np.save(folder / "W.npy", np.full(4, 1.001 if self.side == self.wrong else 1.0))

    def memory(self) -> dict[str, object]:
        return {"peak": 500, "runtime": 100, "where": "process"}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[Pretended]:
    pretended = type("Own", (Pretended,), {"calls": [], "alive": []})
    monkeypatch.setattr(rounds, "Process", pretended)
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    return pretended


def test_sides_take_turns(processes: type[Pretended]) -> None:
    results = rounds.bench([SUBJECT], ("eager", "jax"), 3)
    (case,) = results.cases
    # Memory: 3 steps each, alone. Check: 1 and 2 steps, the engine last. Rounds: as many steps as the fastest side,
    # 0.1 s, takes in 0.25 s, the sides in turns.
    memory = [("engine", 3), ("eager", 3), ("jax", 3)]
    check = [(name, count) for name in ("eager", "jax", "engine") for count in (1, 2)]
    turn = [("engine", 3), ("eager", 3), ("jax", 3), ("floor", 3)]
    assert processes.calls == [*memory, *check, *turn * 3]
    assert processes.alive == []
    assert case.over_peers("engine") == pytest.approx(2.0)  # 0.2 s over eager's 0.1 s
    assert case.over_floor("engine") == pytest.approx(4.0)
    assert results.exit_code == 0


def test_a_side_that_does_something_else_is_not_timed(processes: type[Pretended]) -> None:
    processes.wrong = "engine"
    results = rounds.bench([SUBJECT], ("eager", "jax"), 2)
    engine = results.cases[0].sides["engine"]
    assert engine.rounds == []
    assert engine.left_out == "it does something else: losses 0.0e+00, gradients 1.0e-03 (W) from those of eager"
    assert results.exit_code == 1
    assert "engine is left out" in str(results)
    assert len(results.cases[0].sides["jax"].rounds) == 2


def test_a_side_that_dies_leaves_the_others(processes: type[Pretended]) -> None:
    processes.dying = "eager"
    results = rounds.bench([SUBJECT], ("eager", "jax"), 3)
    assert results.cases[0].sides["eager"].left_out == "gone"
    assert results.cases[0].over_peers("engine") == pytest.approx(0.5)  # jax is the best that is left
    assert len(results.cases[0].sides["engine"].rounds) == 3


def test_an_interruption_keeps_what_there_is(processes: type[Pretended], monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(self: Pretended, count: int) -> dict[str, object]:
        if len(self.calls) > 14:
            raise KeyboardInterrupt
        return Pretended.turn(self, count)

    monkeypatch.setattr(processes, "turn", turn)
    results = rounds.bench([SUBJECT, SUBJECT], ("eager", "jax"), 3)
    assert (results.interrupted, results.exit_code, len(results.cases)) == (True, 130, 1)
    # 9 turns before the rounds and 4 in each: the second one breaks off after two.
    assert [len(side.rounds) for side in results.cases[0].sides.values()] == [2, 2, 1, 1]
    assert results.cases[0].over_peers("engine") == pytest.approx(2.0)
    assert "Interrupted" in str(results)
    assert processes.alive == []


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_there_is(
    number: int,
    processes: type[Pretended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def turn(self: Pretended, count: int) -> dict[str, object]:
        if len(self.calls) > 14:
            signal.raise_signal(number)
        return Pretended.turn(self, count)

    monkeypatch.setattr(processes, "turn", turn)
    file, before = tmp_path / "found.json", signal.getsignal(number)
    assert main(["tiny", "--against", "eager,jax", "--rounds", "3", "--out", str(file)]) == 130
    found = json.loads(file.read_text())
    assert found["interrupted"]
    assert [len(side["rounds"]) for side in found["cases"][0]["sides"].values()] == [2, 2, 1, 1]
    assert "Interrupted" in capsys.readouterr().out
    assert signal.getsignal(number) is before


# What it says.


def case(**turns: list[float]) -> Case:
    sides = {name: SideFound(name, rounds=[[seconds] for seconds in turn]) for name, turn in turns.items()}
    return Case(SUBJECT, sides)


def test_ratios_are_of_a_round() -> None:
    # The machine is twice as slow in the second round, and in the third one the other peer is the best.
    bench_case = case(engine=[3.0, 6.0, 3.0], eager=[4.0, 8.0, 6.0], jax=[5.0, 10.0, 5.0], floor=[1.0, 2.0, 1.5])
    assert bench_case.over_peers("engine") == 0.75  # of 3/4, 6/8, 3/5
    assert bench_case.over_peers("jax") == 1.25  # of 5/4, 10/8, 5/5
    assert bench_case.over_floor("engine") == 3.0  # of 3/1, 6/2, 3/1.5
    assert bench_case.sides["engine"].step == 3.0
    assert case(engine=[1.0], eager=[]).over_peers("engine") is None
    assert case(engine=[1.0], eager=[1.0]).over_floor("engine") is None


def test_memory_beyond_what_all_have() -> None:
    bench_case = case(engine=[1.0], eager=[1.0], jax=[1.0])
    for name, peak in (("engine", 60_000), ("eager", 100_000), ("jax", 140_000)):
        bench_case.sides[name].memory = Memory(peak, 10_000, "process")
    weights_and_moments = 12 * bench_case.subject.parameters  # a weight and two moments in fp32
    assert bench_case.beyond("engine") == 50_000 - weights_and_moments
    assert bench_case.beyond_over_peers("engine") == pytest.approx(
        (50_000 - weights_and_moments) / (90_000 - weights_and_moments)
    )


def test_the_table() -> None:
    bench_case = case(engine=[0.003], eager=[0.004], floor=[0.002])
    bench_case.sides["engine"].memory = Memory(300 * MIB, 100 * MIB, "process")
    machine = {"processor": "P", "cores": 2, "memory_bytes": 2**34, "system": "S", "python": "3", "compiler": None}
    screen = str(
        Bench(machine | {"versions": {}, "threads": None, "load": 0.5, "date": "2026-01-01T"}, 1, [bench_case])
    )
    lines: dict[str, list[str]] = {}
    for first, *cells in (line.split() for line in screen.splitlines() if line.strip()):  # a wide table is in blocks
        lines.setdefault(first, []).extend(cells)
    assert lines["engine"][:5] == ["3.00", "7,000", "0.75", "1.50", "300"]  # 21 tokens in 3 ms
    assert lines["floor"] == ["2.00"]
    assert "P, 2 cores; 16 GiB; S; Python 3; no C compiler" in screen
    html = Bench(
        machine | {"versions": {}, "threads": None, "load": 0.5, "date": "2026-01-01T"}, 1, [bench_case]
    )._repr_html_()
    assert html.count("<table>") == 1
    assert "7,000" in html


@pytest.mark.parametrize(("format", "begins"), [("md", "**tiny, fp32: 3 × 7 tokens"), ("json", "{\n")])
def test_forms_for_programs_keep_the_exit_code(
    format: str,
    begins: str,
    config: str,
    processes: type[Pretended],
    capsys: pytest.CaptureFixture[str],
) -> None:
    processes.wrong = "engine"
    assert main([config, "--shape", "3", "7", "--rounds", "1", "--format", format, "--against", "jax"]) == 1
    out = capsys.readouterr().out
    assert out.replace(config, "tiny").startswith(begins)
    assert "it does something else" in out


# Whether two sides do the same.


def differing(tmp_path: Path, one: dict[str, list[float]], two: dict[str, list[float]], losses=(1.0, 1.0)):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, arrays in zip(folders, (one, two), strict=True):
        folder.mkdir()
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", np.array(array, np.float32))
    return difference("eager", folders[0], [losses[0]], folders[1], [losses[1]])


def test_a_wrong_gradient_of_one_weight_is_found(tmp_path: Path) -> None:
    different = differing(tmp_path, {"W": [3.0, 4.0], "b": [0.1]}, {"W": [3.0, 4.0], "b": [0.11]})
    assert (different.weight, different.loss) == ("b", 0.0)
    assert different.gradient == pytest.approx(0.1, rel=1e-5)
    assert not different.within(TOLERANCES["fp32"])


def test_the_gradient_that_is_zero_is_not_held_to_its_rounding(tmp_path: Path) -> None:
    # Of norm 5: what has less than 5e-3 is measured by that.
    different = differing(tmp_path, {"W": [3.0, 4.0], "bK": [1e-9]}, {"W": [3.0, 4.0], "bK": [-2e-9]})
    assert different.gradient == pytest.approx(3e-9 / 5e-3, rel=1e-5)
    assert different.within(TOLERANCES["fp32"])


@pytest.mark.parametrize("two", [{"W": [np.nan, 4.0], "b": [1.0]}, {"W": [3.0, 4.0, 5.0], "b": [1.0]}])
def test_what_is_no_number_or_has_another_shape_is_not_the_same(two: dict[str, list[float]], tmp_path: Path) -> None:
    different = differing(tmp_path, {"W": [3.0, 4.0], "b": [1.0]}, two)
    assert different.weight == "W"
    assert not different.within(TOLERANCES["bf16"])
    assert different.to_dict()["gradient"] is None


def test_a_loss_that_is_no_number_is_not_the_same(tmp_path: Path) -> None:
    different = differing(tmp_path, {"W": [1.0]}, {"W": [1.0]}, (1.0, float("nan")))
    assert not different.within(TOLERANCES["bf16"])


# What is measured.


@pytest.mark.parametrize(
    ("name", "parameters", "gflops"),
    # As published with the shapes: millions of parameters, and billions of FLOPs of the products with causal
    # attention in half. By hand for tiny: 12 L d^2 + 13 L d + (v + T + 2) d = 813,824.
    [("char", 10.8, 207), ("gpt2-124m", 124, 774), ("tiny", 0.8, 3.8), ("long", 2.1, 33)],
)
def test_the_shapes(name: str, parameters: float, gflops: float) -> None:
    from against_torch_and_jax.floor import products

    (subject,) = subjects([name], None, ["fp32"])
    assert subject.parameters / 1e6 == pytest.approx(parameters, rel=0.03)
    assert float(sum(product.flops * times for product, times in products(subject).items())) / 1e9 == pytest.approx(
        gflops, 0.02
    )
    assert set(shapes()) >= {name}


def test_a_subject_goes_through_json() -> None:
    (subject,) = subjects(["llama-char"], (2, 16), ["bf16"], "flash")
    again = Subject(**json.loads(json.dumps(subject.to_dict())))
    assert again == subject
    assert again.configuration.sizes == subject.configuration.sizes
    assert again.plan == "flash"


def test_batches_differ_and_repeat() -> None:
    tokens, targets = SUBJECT.batch(0)
    assert tokens.shape == targets.shape == (3, 7)
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    assert (SUBJECT.batch(0)[0] == tokens).all()
    assert (SUBJECT.batch(1)[0] != tokens).any()
    assert max(SUBJECT.batch(step)[0].max() for step in range(50)) == TINY["vocab_size"] - 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["gpt3"], "gpt3 needs --shape B T; those with a shape of their own are char"),
        (["bert-base-uncased", "--shape", "2", "8"], "language models of gpt2, llama only"),
        (["char", "--shape", "2", "300"], "longer than the 256 positions"),
        (["char", "--shape", "0", "8"], "B must be a whole number from 1"),
        (["char", "--shape", "x", "8"], "argument --shape: invalid int value: 'x'"),
        (["char", "--dtype", "fp16"], "no type is called 'fp16'"),
        (["char", "--against", "eagre"], "no peer is called 'eagre'; the nearest is 'eager'"),
        (["char", "--rounds", "0"], "rounds must be a whole number from 1"),
        (["char", "--rounds", "many"], "argument --rounds: invalid int value: 'many'"),
        (["char", "--out", os.sep.join(("nowhere", "file.json"))], "its folder does not exist"),
        (["nothing", "--shape", "2", "8"], "unknown model 'nothing'"),
    ],
)
def test_bad_input_is_one_line(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert says in printed.err
    assert not printed.out
