"""Losses of `learncost train` on a GPU, beside those on a processor."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from on_gpu.asked import Asked, Row, tried

TRAININGS: Mapping[str, Sequence[str]] = {
    "adamw": (),
    "adamw, bf16": ("--precision", "bf16-masters"),
    "adamw, bf16-true": ("--precision", "bf16-true"),
    "momentum, clip, accumulate": ("--optimizer", "momentum", "--clip", "0.5", "--accumulate", "2"),
    "sgd, dropout": ("--optimizer", "sgd", "--dropout", "0.1"),
    "recompute": ("--procedure", "recompute"),
    "pepita": ("--procedure", "pepita"),
    "traced": ("--trace", "2"),
    "a mesh of one process": ("--mesh", "dp=1"),
}
TINY = ("--model", "nano", "--num-hidden-layers", "2", "--hidden-size", "64", "--seq-len", "64", "--batch-size", "4")


def training(asked: Asked) -> Iterator[Row]:
    """Losses of a few steps on both devices; then of runs that go on from a checkpoint of the same or the other one."""
    text, device = str(Path(__file__).parents[2] / "README.md"), asked.device
    devices = tuple(dict.fromkeys(("cpu", device)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1 if device == "cpu" else 8) as several:

        def run(name: str, on: str, *flags: str) -> Path:
            out = Path(folder, f"{name}-{on}".replace(", ", "-"))
            return _trained([text, *TINY, *flags, "--steps", "4", "--device", on, "--out", str(out)], out)

        def moved(begun: str, on: str) -> Path:
            out = run(f"begun on {begun}, on {on}", begun)
            return _trained(["--resume", str(out), "--steps", "8", "--device", on], out)

        names = [name for name in asked.some(TRAININGS, 2) if asked.takes(name)]
        runs = {name: [several.submit(run, name, on, *TRAININGS[name]) for on in ("cpu", device)[: len(devices)]]
                for name in names}  # fmt: skip
        pairs = [*product(devices, repeat=2)] if asked.takes("begun on") else []
        went = {pair: several.submit(moved, *pair) for pair in pairs}
        sides = runs | {
            f"begun on {one}, goes on on {other}": [went["cpu", "cpu"], went[one, other]] for one, other in went
        }
        for name, futures in sides.items():
            yield tried({"what": name}, lambda: _compared(futures[0].result(), futures[-1].result()))  # noqa: B023


def _trained(flags: Sequence[str], out: Path) -> Path:
    began = time.perf_counter()
    mesh = ("torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m") if "--mesh" in flags else ()
    command = [sys.executable, "-m", *mesh, "learncost", "train", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("engine", "process"))]
    print(f"  {out.name}: {time.perf_counter() - began:.0f} s", *lines, sep="; ", file=sys.stderr, flush=True)
    return out


def _compared(cpu: Path, other: Path) -> Row:
    sides = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for run in (cpu, other)
    ]
    off = max(abs(ours / theirs - 1) for theirs, ours in zip(*sides, strict=True))
    return {"off": off, "steps": len(sides[0]), "first": sides[1][0], "last": sides[1][-1]}
