"""Good and bad requests to a server of one's own, from several clients: which statuses come, and whether memory grows.

    python benchmarks/soak.py --count 100000 --minutes 30

It starts `learncost serve` on a free port of 127.0.0.1 and ends it; nothing else is asked. The exit code is 0 where no
status is 500 or above but 503, where every bad request was refused, and where the memory of the server with its
processes grew by no more than GROWTH after the first tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx

GROWTH = 96 * 2**20
"""Bytes by which memory may grow after the first tenth: caches fill up, and they have an end."""

FRESH = 0.01
"""Of the good requests, those that are of something new."""

MODELS = ("gpt2", "distilgpt2", "llama-3.2-1b", "bert-base", "t5-small", "vit-b-16", "mixtral-8x7b", "llama-3.1-405b")
PROCEDURES = ("bp", "recompute", "pepita", "mempepita", "fa", "prefill")


@dataclass(frozen=True)
class Asked:
    """A request, and the statuses that are right for it."""

    method: str
    path: str
    expected: tuple[int, ...]
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""


def good(chance: random.Random) -> Asked:
    """What a page asks for: mostly what was asked before, as the page itself counts what sliders change.

    That a procedure does not fit a model is told with 400, which is right.
    """
    known = random.Random(chance.randrange(60)) if chance.random() > FRESH else chance
    model, procedure = known.choice(MODELS), known.choice(PROCEDURES)
    query = f"model={model}&procedure={procedure}&batch_size={known.randint(1, 64)}"
    length = f"&seq_len={2 ** known.randint(0, 10)}" if known.random() < 0.7 else ""
    on = f"&on={known.choice(('H100-SXM', 'A100-SXM-80GB'))}" if known.random() < 0.3 else ""
    config = {"model_type": "gpt2", "n_layer": known.randint(1, 12), "n_embd": 64 * known.randint(1, 8), "n_head": 4}
    return known.choice(
        (
            Asked("GET", f"/api/document?{query}{length}{on}", (200, 400)),
            Asked("GET", f"/api/export?as={known.choice(('csv', 'json', 'md', 'tex'))}&{query}{length}", (200, 400)),
            Asked("POST", f"/api/document?seq_len={known.randint(1, 512)}", (200,), {}, json.dumps(config).encode()),
            Asked("GET", "/", (200,)),
            Asked("GET", "/api/fields", (200,)),
        )
    )


def bad(chance: random.Random) -> Asked:
    """What must be refused."""
    noise = bytes(chance.randrange(256) for _ in range(chance.randint(0, 200)))
    op = "".join(chance.choice("abcdefghij./%&=0123456789") for _ in range(chance.randint(1, 30)))
    absurd = chance.choice(("999999999999999999", "-1", "nan", "1e300", "0x10", "__import__('os')"))
    return chance.choice(
        (
            Asked("GET", "/api/document?model=../../etc/passwd", (400,)),
            Asked("GET", f"/api/document?model=gpt2&on=/tmp/{op}", (400,)),
            Asked("GET", f"/api/document?model=gpt2&n_layer={absurd}", (400,)),
            Asked("GET", f"/api/document?model=gpt2&zz{quote(op, '')}=1", (400,)),
            Asked("GET", f"/api/document?model=gpt2&seq_len={absurd}", (400,)),
            Asked("POST", "/api/document", (400,), {}, noise),
            Asked("POST", "/api/document", (413,), {}, b"x" * (2**20 + 1 + chance.randrange(2**16))),
            Asked("POST", "/api/document", (400,), {}, b"[" * chance.randint(1, 10**5)),
            Asked("GET", "/api/document?model=gpt2", (403,), {"host": "example.com"}),
            Asked("POST", "/api/document?model=gpt2", (403,), {"origin": "http://example.com"}),
            Asked("GET", "/api/document?model=gpt2", (403,), {"sec-fetch-site": "cross-site"}),
            Asked("DELETE", "/", (405,)),
            Asked("GET", f"/x/{op}".partition("?")[0], (404,)),
            Asked("GET", f"/api/document?model={'x' * 20_000}", (400, 414)),
        )
    )


class Client(threading.Thread):
    """One after another, half of the requests good and half of them bad."""

    def __init__(self, address: str, count: int, end: float, seed: int) -> None:
        super().__init__()
        self.address, self.left, self.end, self.chance = address, count, end, random.Random(seed)
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.seconds: list[float] = []

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=60) as own:
            while self.left and time.monotonic() < self.end:
                self.left -= 1
                kind = self.chance.random() < 0.5
                asked = (good if kind else bad)(self.chance)
                began = time.monotonic()
                try:
                    answer = own.request(asked.method, asked.path, headers=asked.headers, content=asked.content)
                    status = answer.status_code
                except httpx.TransportError as error:  # a body that is not read is cut off: as good as refused
                    status = 413 if len(asked.content) > 2**20 else 0
                    if not status:
                        self.wrong.append(f"{asked.method} {asked.path[:80]}: {error!r}")
                self.seconds.append(time.monotonic() - began)
                self.statuses[f"{'good' if kind else 'bad'} {status}"] += 1
                if status and status not in (*asked.expected, 503):
                    self.wrong.append(f"{asked.method} {asked.path[:80]}: {status}, not {asked.expected}")


def memory(process: int) -> int:
    """The resident bytes of a process and of those that it began (proc(5))."""
    found = 0
    for path in (Path(f"/proc/{process}"), *_children(process)):
        try:
            lines = (path / "status").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        found += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)
    return found


def worked(process: int) -> float:
    """Seconds that processors have worked for a process and for those that it began, ended ones too (proc(5), stat)."""
    found = 0
    for path in (Path(f"/proc/{process}"), *_children(process)):
        try:
            fields = (path / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            continue
        found += sum(map(int, fields[11:15]))
    return found / os.sysconf("SC_CLK_TCK")


def _children(process: int) -> list[Path]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [Path(f"/proc/{name}") for name in text.split()]


def main() -> int:
    """Ask, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="requests in all, at most 100,000")
    parser.add_argument("--minutes", type=float, default=30.0, help="when it ends at the latest, at most 30")
    parser.add_argument("--clients", type=int, default=4, help="how many ask at once, at most 16")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count, minutes = min(given.count, 100_000), min(given.minutes, 30.0)
    several = max(1, min(given.clients, 16))
    command = [sys.executable, "-m", "learncost", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = server.stderr.readline().split()[2].rstrip(".")
            return _soak(server.pid, address, count, minutes, several, given.seed)
        finally:
            server.terminate()
            server.wait(20)
            print(server.stderr.read(), end="", file=sys.stderr)


def _soak(process: int, address: str, count: int, minutes: float, several: int, seed: int) -> int:
    began = time.monotonic()
    shares = [count // several + (number < count % several) for number in range(several)]
    clients = [Client(address, own, began + 60 * minutes, seed + number) for number, own in enumerate(shares)]
    for client in clients:
        client.start()
    levels: list[tuple[float, int]] = []
    before = worked(process)
    while any(client.is_alive() for client in clients):
        time.sleep(0.5)
        asked = sum(len(client.seconds) for client in clients) / max(1, count)
        done = max(asked, (time.monotonic() - began) / (60 * minutes))  # whichever ends it
        levels.append((done, memory(process)))
    statuses = sum((client.statuses for client in clients), Counter())
    seconds = sorted(own for client in clients for own in client.seconds)
    wrong = [text for client in clients for text in client.wrong]
    early = [level for done, level in levels if 0.05 <= done <= 0.15] or [levels[0][1]]
    grown = levels[-1][1] - max(early)
    print(f"{len(seconds):,} requests from {several} clients in {time.monotonic() - began:.0f} s")
    for name, number in sorted(statuses.items()):
        print(f"  {name}: {number:,}")
    print(
        f"  seconds: median {seconds[len(seconds) // 2]:.4f}, 95th percentile {seconds[int(0.95 * len(seconds))]:.4f}"
    )
    taken = worked(process) - before
    print(f"  processors worked {taken:.0f} s for the server: {len(seconds) / max(taken, 0.01):.0f} requests a second")
    print(
        f"  memory: {max(early) / 1e6:.0f} MB after a tenth, {levels[-1][1] / 1e6:.0f} MB at the end, "
        f"{max(level for _, level in levels) / 1e6:.0f} MB at most"
    )
    for text in wrong[:20]:
        print(f"  wrong: {text}")
    failed = [name for name in statuses if int(name.split()[1]) >= 500 and not name.endswith("503")]
    return int(bool(wrong or failed or grown > GROWTH))


if __name__ == "__main__":
    sys.exit(main())
