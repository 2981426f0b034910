"""Time collectives between processes of torch.distributed, and write the fitted link to a file for a cluster's
description.

Run as a program, this module is one of the processes: `python -m learncost.calibration.links MEETING RANK NUMBER
ROUNDS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from learncost.devices.calibration import save_text
from learncost.devices.collective import algorithm
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, imported

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 23)
"""Bytes of the payloads."""

ROUNDS, QUICK = 7, 3
"""The number of timings of each; the median counts."""

LIMIT = 180.0
"""The time limit in seconds for processes to connect."""


@dataclass(frozen=True)
class TimedCollective:
    """A timed collective: its op, payload bytes and seconds."""

    op: str
    payload: int
    seconds: float


@dataclass(frozen=True)
class Links:
    """The measurements between processes and the fitted link: latency per step, bytes per second."""

    processes: int
    backend: str
    library: str
    timed: tuple[TimedCollective, ...]
    gbs: float
    latency_us: float

    @property
    def row(self) -> dict[str, Any]:
        """Return the link in the format of clusters.toml."""
        source = f"measured here: {self.backend} of {self.library} between {self.processes} processes"
        sources = dict.fromkeys(("gbs", "links", "latency_us", "topology"), source)
        name = f"{self.backend} here"
        return {
            "name": name, "gbs": self.gbs, "links": 1, "latency_us": self.latency_us, "topology": "network",
            "sources": sources,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.processes} processes, {self.backend} of {self.library}"]
        ring = algorithm("ring")
        for each in self.timed:
            if each.payload in (SIZES[0], SIZES[-1]):
                busbw = float(ring.sent(each.op, self.processes)) * each.payload / each.seconds / 1e9
                lines.append(
                    f"{each.op} of {each.payload:,} bytes: {each.seconds * 1e6:,.0f} us, busbw {busbw:.3g} GB/s"
                )
        lines.append(f"as a link: {self.latency_us:.3g} us a step, {self.gbs:.3g} GB/s one way")
        return "\n".join(lines)


def measure(processes: int, quick: bool, report: Callable[[str], None]) -> Links:
    """Start and connect the processes and time every collective. Raises `InputError` if they cannot connect."""
    version = str(imported("torch", "calibrate --processes needs PyTorch", "torch").__version__)
    report(f"collectives between {processes} processes")
    rounds = QUICK if quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, rendezvous]
        several = [
            subprocess.Popen([*command, str(rank), str(processes), str(rounds)], stderr=subprocess.PIPE, text=True)
            for rank in range(processes)
        ]
        try:
            end = time.monotonic() + LIMIT
            errors = [each.communicate(timeout=max(1.0, end - time.monotonic()))[1] for each in several]
        except subprocess.TimeoutExpired:
            raise InputError(f"{processes} processes did not end within {LIMIT:g} s") from None
        finally:
            for each in several:
                each.kill()
        if any(each.returncode for each in several):
            last = next((text.strip().splitlines()[-1] for text in errors if text.strip()), "no reason given")
            raise InputError(f"{processes} processes could not connect: {last}")
        reply = json.loads(Path(f"{rendezvous}.json").read_text(encoding="utf-8"))
    timed = tuple(TimedCollective(*row) for row in reply["timed"])
    return Links(processes, reply["backend"], f"PyTorch {version}", timed, *fitted(timed, processes, reply["backend"]))


def fitted(timed: tuple[TimedCollective, ...], processes: int, backend: str) -> tuple[float, float]:
    """Return 10^9 bytes per second and microseconds per step, by least squares of relative errors."""
    convention = algorithm("gloo" if backend == "gloo" else "ring")
    rows = [
        (float(convention.sent(each.op, processes)) * each.payload, convention.steps(each.op, processes), each.seconds)
        for each in timed
    ]
    sides = np.array([[sent / seconds, steps / seconds] for sent, steps, seconds in rows])
    per_byte, per_step = np.linalg.lstsq(sides, np.ones(len(rows)), rcond=None)[0]
    least = min(seconds / steps for _, steps, seconds in rows)
    per_step = float(per_step) if per_step > 0 else least
    per_byte = float(per_byte) if per_byte > 0 else min(seconds / sent for sent, _, seconds in rows)
    return 1e-9 / per_byte, 1e6 * per_step


def save(links: Links, path: Path) -> None:
    """Write the link to a file that the keys `inside` and `between` of a cluster may refer to."""
    save_text(json.dumps(links.row, indent=1), path)


def _calls(distributed: Any, torch: Any, device: str, number: int, payload: int) -> dict[str, Callable[[], Any]]:
    """Return a call for each collective, on arrays whose global payload is split over the processes."""
    count = max(number, payload // 4 // number * number)
    whole, part = (torch.zeros(size, device=device) for size in (count, count // number))
    rank = distributed.get_rank()

    def send() -> None:
        if rank == 0:
            distributed.send(whole, 1)
        elif rank == 1:
            distributed.recv(whole, 0)

    return {
        "all_reduce": lambda: distributed.all_reduce(whole),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: distributed.all_to_all_single(torch.empty_like(whole), whole),
        "send": send,
    }


def main(rendezvous: str, rank: int, number: int, rounds: int) -> None:
    """Run one of the processes."""
    torch: Any = import_module("torch")
    distributed: Any = import_module("torch.distributed")
    gpus = torch.cuda.device_count() >= number
    backend = "nccl" if gpus else "gloo"
    if gpus:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    distributed.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=number)
    timed = []
    for payload in SIZES:
        for op, call in _calls(distributed, torch, "cuda" if gpus else "cpu", number, payload).items():
            seconds = []
            for place in range(rounds + 1):
                distributed.barrier()
                begin = time.perf_counter()
                call()
                if gpus:
                    torch.cuda.synchronize()
                if place:
                    seconds.append(time.perf_counter() - begin)
            timed.append((op, payload, sorted(seconds)[len(seconds) // 2]))
    if rank == (1 if number > 1 else 0):  # it receives the message
        Path(f"{rendezvous}.json").write_text(json.dumps({"backend": backend, "timed": timed}), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(sys.argv[1], *map(int, sys.argv[2:5]))
