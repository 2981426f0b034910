"""What the package says of PyTorch, held to a GPU: values, trainings, memory, time.

    python benchmarks/on_cuda.py [--only values,training,memory,imported,time] [--quick] [--json FILE]
    python benchmarks/on_cuda.py --device cpu --quick

Needs torch, and transformers for rows of its modules. A row that fails says why, and the others go on. With
`--device cpu` everything is tried that needs no GPU, which says nothing of CUDA. What is measured:

values    the emitted step of a small model of every family, and the modules of `learncost.torch` with their gradients,
          in fp64 beside NumPy
training  `learncost train --device cuda` beside the same on a processor: losses, and checkpoints that move
memory    the peak that `memory` predicts beside the bytes that were asked of the caching allocator (`requested_bytes`,
          without its rounding) while two steps ran, and those that it handed out; libraries' workspaces apart
imported  the same of modules that were read
time      the median of steps by CUDA's events, in turns, beside what the published record of the card and a calibration
          say; MFU by the price book `matmul` over the published peak
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import imported_peaks
import numpy as np
import peaks
import torch
from measure import show
from prediction import gpt2, llama
from torch.utils.checkpoint import checkpoint

import learncost as lc
import learncost.torch as lt
from allocator import PRODUCT, apart, workspaces  # of the tests, whose folder peaks.py has put on the path
from learncost.bench.subject import Subject
from learncost.bench.torch_models import module as plain_module
from learncost.bench.torch_side import Compiled, Eager
from learncost.books.book import book
from learncost.devices.calibration import save
from learncost.devices.rates import rates
from learncost.engines.emitted import Emitted
from learncost.engines.inputs import random_data
from learncost.engines.numpy_engine import Training
from learncost.hardware.calibrate import calibrate
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.small import small
from learncost.plans.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.readings.price import price
from learncost.readings.time import time as predicted_time

Row = dict[str, Any]
Case = tuple[str, Callable[[], object], Callable[[], int]]
"""A name, two steps to run, and what is predicted of them."""

CARD, PEAK = "H100-SXM", 989e12
"""The published record that predictions use where the GPU is none of `learncost list devices`, and its bf16 peak."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured: on which device, whether few and small ones alone, and which rows, by parts of names."""

    device: str
    quick: bool
    rows: tuple[str, ...]

    def takes(self, name: str) -> bool:
        """Whether a row is asked for."""
        return any(part in name for part in self.rows)

    def some(self, every: Iterable[Any], few: int) -> list[Any]:
        """All of them, or the first few."""
        return [*every][: few if self.quick else None]


# Values.


def values(asked: Asked) -> Iterator[Row]:
    """The largest difference from NumPy over the largest weight, or of gradients over the largest gradient."""
    device = asked.device
    rows = {f"emitted step, {name}": partial(_emitted, name, device) for name in asked.some(FAMILIES, 4)}
    rows |= {f"learncost.torch, {name}": partial(_module, name, device) for name in ("gpt2", "tinyllama-1.1b", *SIZES)}
    rows["learncost.torch, gpt2, torch.compile"] = partial(_module, "gpt2", device, torch.compile)
    rows["from_module, gpt2 of transformers"] = partial(_read, device)
    for name, found in rows.items():
        if asked.takes(name):
            yield _tried({"what": name}, found)


def _read(device: str) -> Row:
    """FLOPs of a module that lies on the device, and of one on a processor."""
    build, given = imported_peaks.CASES["gpt2"]
    sides = []
    for place in ("cpu", device):
        with torch.device(place):
            inputs = given(torch.float32)
            module = imported_peaks.built(build, inputs)
        sides.append(lc.cost(lc.from_module(module, inputs)).total.flops)
    return {"off": abs(sides[1] / sides[0] - 1)}


def _emitted(name: str, device: str) -> Row:
    training = Training(small(name), "bp", "adamw", learning_rate=0.01, dtype=np.float64, seed=1)
    data = random_data(training.model, 2, 6, 5, seed=1)
    prepared = training.prepare(**data)
    table = without_gradients(prepared.table)
    tensors = {name: torch.as_tensor(np.array(array), device=device) for name, array in prepared.values.items()}
    results = Emitted(table, prepared.sizes, "torch")(tensors)
    training.step(**data)
    return {"off": max(_off(results[new], training.weights[name]) for name, new in table.renewed.items()
                       if name in training.weights)}  # fmt: skip


SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
SIZES = {"vit-b-16": {**SMALL, "image_size": 32, "patch_size": 8, "num_labels": 7}}


def _module(name: str, device: str, compiled: Callable[..., Any] = lambda module: module) -> Row:
    sides = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        module = lt.model(name, **SIZES.get(name, {**SMALL, "vocab_size": 61, "max_position_embeddings": 16}))
        module = module.double().to(place)
        if name in SIZES:
            given = {"image": torch.randn(2, 3, 4, 8, 4, 8, dtype=torch.float64), "labels": torch.randint(0, 7, (2,))}
        else:
            given = {name: torch.randint(0, 61, (2, 16)) for name in ("tokens", "targets")}
        called = compiled(module) if place == device else module
        loss = called(**{name: each.to(place) for name, each in given.items()})
        loss.backward()
        sides.append([loss, *(each.grad for each in module.parameters())])
    return {"off": max(_off(ours, theirs.detach().numpy()) for theirs, ours in zip(*sides, strict=True))}


def _off(tensor: torch.Tensor, array: Any) -> float:
    return float(np.abs(tensor.detach().cpu().numpy() - array).max() / max(1.0, np.abs(array).max()))


# Trainings.

TRAININGS: Mapping[str, Sequence[str]] = {
    "adamw": (),
    "adamw, bf16": ("--precision", "bf16"),
    "adamw, bf16-pure": ("--precision", "bf16-pure"),
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
    text, device = str(Path(__file__).parent.parent / "README.md"), asked.device
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
            yield _tried({"what": name}, lambda: _compared(futures[0].result(), futures[-1].result()))  # noqa: B023


def _trained(flags: Sequence[str], out: Path) -> Path:
    began = time.perf_counter()
    mesh = ("torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m") if "--mesh" in flags else ()
    command = [sys.executable, "-m", *mesh, "learncost", "train", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("engine", "process"))]
    print(f"  {out.name}: {time.perf_counter() - began:.0f} s", *said, sep="; ", file=sys.stderr, flush=True)
    return out


def _compared(cpu: Path, other: Path) -> Row:
    sides = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for run in (cpu, other)
    ]
    off = max(abs(ours / theirs - 1) for theirs, ours in zip(*sides, strict=True))
    return {"off": off, "steps": len(sides[0]), "first": sides[1][0], "last": sides[1][-1]}


# Memory.

DTYPES = {"fp32": (torch.float32, "fp32"), "bf16": (torch.bfloat16, "bf16-pure")}
LARGE = {
    "gpt2": peaks.Kind("GPT2LMHeadModel", {**peaks.GPT, "n_positions": 1024}, "c_attn"),
    "llama": peaks.Kind("LlamaForCausalLM", {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
                                             "num_hidden_layers": 12, "intermediate_size": 2816}),
    "vit": peaks.Kind("ViTForImageClassification", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip
"""Models of transformers in sizes that people train."""


SHAPES = (
    ("gpt2", gpt2(12, 768, 12, 1024, 50257), 8),
    ("llama", llama(12, 1024, 16, 2816, 1024, 32000), 8),
    ("gpt2-medium", gpt2(24, 1024, 16, 1024, 50257), 4),
)
"""Plain modules, with sequences in a batch."""


ENGINES = {"cpu": "autograd", "cuda": "autograd-cuda"}
"""Of `learncost memory`."""


def memory_cases(asked: Asked) -> Iterator[Case]:
    """Plain modules, then transformers' own, small and large."""
    way, engine = ("cuda" if asked.device == "cuda" else "fused"), ENGINES[asked.device]
    shapes = (("gpt2", gpt2(2, 128, 4, 64, 512), 2),) if asked.quick else SHAPES
    for (name, keys, batch), dtype, procedure in product(shapes, DTYPES, ("bp", "recompute")):
        own = keys, batch, dtype, procedure
        yield (
            f"plain {name}, {dtype} {procedure}",
            partial(_plain, *own),
            partial(_plain_predicted, *own, engine),
        )
    for name, dtype, setting in product(asked.some([*peaks.KINDS][:11], 2), DTYPES, ("plain", "checkpoints")):
        case = name, "block", dtype, setting, way
        yield f"transformers {name}, {dtype} {setting}", partial(peaks.train, *case), partial(peaks.predicted, *case)
    for name, dtype, setting in product(asked.some(LARGE, 0), DTYPES, ("plain", "checkpoints", "lora", "dropout")):
        if setting == "dropout" and not any("drop" in key for key in LARGE[name].keys):
            continue
        own = name, dtype, setting, way
        run, expected = (partial(_large, asked, *own) for asked in (peaks.train, peaks.predicted))
        yield f"transformers {name}, large, {dtype} {setting}", run, expected


def _plain(keys: Mapping[str, Any], batch: int, dtype: str, procedure: str) -> None:
    """Two steps as a user of PyTorch writes them."""
    sizes = configure(keys).sizes
    network = plain_module(configure(keys)).to(DTYPES[dtype][0])
    if procedure == "recompute":
        for block in network.h if hasattr(network, "h") else network.layers:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    steps = torch.optim.AdamW(network.parameters(), fused=True)
    shape = batch, sizes["max_position_embeddings"]
    tokens, targets = (torch.randint(0, sizes["vocab_size"], shape) for _ in range(2))
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        network(tokens, targets).backward()
        steps.step()


def _plain_predicted(keys: Mapping[str, Any], batch: int, dtype: str, procedure: str, engine: str) -> int:
    length = configure(keys).sizes["max_position_embeddings"]
    found = lc.memory(configure(keys), procedure, batch, length, optimizer="adamw", engine=engine, module="plain",
                      precision=DTYPES[dtype][1])  # fmt: skip
    return found.peak


def _large(asked: Callable[..., Any], name: str, dtype: str, setting: str, *optimizer: str) -> Any:
    """What is asked of a small model of peaks.py, asked of a large one."""
    before, rate = peaks.KINDS[name], 0.1 if setting == "dropout" else 0.0
    dropped = {key: rate for key in LARGE[name].keys if "drop" in key}
    peaks.KINDS[name] = replace(LARGE[name], keys={**LARGE[name].keys, **dropped})  # type: ignore[index]
    peaks.SHAPES["large"] = (32, 0, 1000) if name == "vit" else (4, 1024, 32000)
    more = {"dropout": rate} if rate and asked is peaks.predicted else {}
    try:
        return asked(name, "large", dtype, "plain" if rate else setting, *optimizer, **more)
    finally:
        peaks.KINDS[name] = before  # type: ignore[index]


def imported_cases(asked: Asked) -> Iterator[Case]:
    """Modules of PyTorch, torchvision, timm, transformers and peft, as `imported_peaks.py` has them."""
    for (name, (build, given)), dtype in product(asked.some(imported_peaks.CASES.items(), 3), DTYPES):
        run = partial(imported_peaks.train, build, given, DTYPES[dtype][0])
        yield f"{name}, {dtype}", run, partial(imported_peaks.predicted, build, given, dtype, ENGINES[asked.device])


_CASES: dict[str, Callable[[Asked], Iterator[Case]]] = {"memory": memory_cases, "imported": imported_cases}


def _cases(section: str, asked: Asked) -> list[Case]:
    return [case for case in _CASES[section](asked) if asked.takes(case[0])]


def _predicted(section: str, asked: Asked, number: int) -> int | str:
    """The prediction of a case by its number, in another process."""
    torch.set_num_threads(1)
    try:
        with torch.device(asked.device):
            return _cases(section, asked)[number][2]()
    except Exception as error:  # the row says so
        return _said(error)


def peaks_of(section: str, asked: Asked, futures: Sequence[Any]) -> Iterator[Row]:
    """Case by case."""
    kept = workspaces() if asked.device == "cuda" else 0
    yield {"what": "libraries' workspaces", "measured": kept}
    for (name, run, _), future in zip(_cases(section, asked), futures, strict=True):
        yield _tried({"what": name}, partial(_peak, run, asked.device, future, kept))


def _peak(run: Callable[[], object], device: str, future: Any, kept: int) -> Row:
    torch.manual_seed(0)
    gc.collect()
    if device == "cpu":
        handed, measured = apart(run)
    else:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with torch.device(device):
            run()
            stats = torch.cuda.memory_stats()
            handed = stats["allocated_bytes.all.peak"] - kept
            whole, without, there = alive(run)
        measured = stats["requested_bytes.all.peak"] - kept - (whole - without)
    expected = future.result()
    if isinstance(expected, str):
        raise RuntimeError(f"prediction: {expected} (measured {measured:,})")
    row = {"predicted": expected, "measured": measured, "handed_out": handed, "ratio": expected / measured}
    if device != "cpu" and abs(row["ratio"] - 1) > 0.003:
        row["alive"] = there
    return row


def alive(run: Callable[[], object]) -> tuple[int, int, list[tuple[int, int, str]]]:
    """The peak by the profiler; the same without buffers, which the operator gives back that took them; and what is
    there at that moment: bytes, how many, and the operators that made it."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events: list[tuple[int, int, int, int, str]] = []

    def collect(found: Any, ends: int, above: str, whole: bool = False) -> None:
        for event in found:
            if event.name == "[memory]":
                fields = event.extra_fields
                if "cuda" in str(fields.device).lower():
                    events.append((event.start_time_ns, fields.ptr, fields.alloc_size, ends, above))
                continue
            inside = PRODUCT.fullmatch(event.name) is not None
            until = event.end_time_ns if event.name.startswith("aten::") and not whole else ends
            collect(event.children, until, f"{above} < {event.name}"[-120:], whole or inside)

    collect(profiled.profiler.kineto_results.experimental_event_tree(), 0, "")
    events.sort()
    taken: dict[int, tuple[int, int, str]] = {}
    buffers: set[int] = set()
    for number, (when, place, size, ends, above) in enumerate(events):
        if size > 0:
            taken[place] = number, ends, above
        elif place in taken:
            first, until, _ = taken.pop(place)
            if when <= until:
                buffers |= {first, number}
    whole, _ = _most(events)
    without, there = _most([event for number, event in enumerate(events) if number not in buffers])
    return whole, without, there


def _most(events: Sequence[tuple[int, int, int, int, str]]) -> tuple[int, list[tuple[int, int, str]]]:
    there: dict[int, tuple[int, str]] = {}
    now, most, at_most = 0, 0, list[tuple[int, str]]()
    for _, place, size, _, above in events:
        if size > 0:
            there[place] = size, above
            now += size
            if now > most:
                most, at_most = now, [*there.values()]
        else:
            now -= there.pop(place, (0, ""))[0]
    groups = {each: at_most.count(each) for each in dict.fromkeys(at_most)}
    rows = [(size, many, above) for (size, above), many in groups.items()]
    return most, sorted(rows, key=lambda row: -row[0] * row[1])[:40]


# Time.


def subjects(asked: Asked) -> Sequence[Subject]:
    """GPT-2 of 124M and 355M, and a Llama."""
    if asked.quick:
        return (Subject("gpt2 2 x 128", gpt2(2, 128, 4, 64, 512), 2, 64, "bf16"),)
    return (
        Subject("gpt2 124M", gpt2(12, 768, 12, 1024, 50304), 8, 1024, "bf16"),
        Subject("gpt2 124M", gpt2(12, 768, 12, 1024, 50304), 32, 1024, "bf16"),
        Subject("gpt2 355M", gpt2(24, 1024, 16, 1024, 50304), 8, 1024, "bf16"),
        Subject("llama 271M", llama(16, 1024, 16, 2816, 2048, 32000), 8, 2048, "bf16"),
        Subject("gpt2 124M", gpt2(12, 768, 12, 1024, 50304), 8, 1024, "fp32"),
        Subject("gpt2 6 x 384", gpt2(6, 384, 6, 256, 96), 12, 256, "bf16"),
    )


class Pure(Eager):
    """A module in bf16 throughout, without autocast."""

    def begin(self, subject: Subject) -> Row:
        facts = super().begin(subject)
        self.module.to(torch.bfloat16)
        self.subject = replace(subject, dtype="fp32")
        return facts


def timed(asked: Asked, out: Path | None, compiles: bool) -> Iterator[Row]:
    """Steps by autograd in turns, and predictions of them."""
    device = asked.device
    card = torch.cuda.get_device_name() if device == "cuda" else CARD
    began = time.perf_counter()
    found = calibrate(lambda text: None, asked.quick)
    path = out or Path(tempfile.mkdtemp(), "calibration.json")
    save(found, path)
    yield {"what": "calibrate", "seconds": time.perf_counter() - began}
    for number, subject in enumerate(subjects(asked)):
        if not asked.takes(subject.model):
            continue
        sides = {"eager": Eager, "bf16 throughout": Pure} if subject.dtype == "bf16" else {"eager": Eager}
        if compiles and not number:
            sides["compiled"] = Compiled
        yield from _tried_all(subject, sides, {"published": card, "calibrated": str(path)}, device)


def _tried_all(
    subject: Subject, sides: Mapping[str, type[Eager]], cards: Mapping[str, str], device: str
) -> Iterator[Row]:
    name = f"{subject.model}, {subject.batch_size} x {subject.seq_len}, {subject.dtype}"
    said = {}
    for source, card in cards.items():
        try:
            table = planned(step(subject.built, "bp", "adamw"), "flash")
            rows = price(table, subject.sizes, book("run")).rows
            dtype = "fp32" if source == "calibrated" and device == "cpu" else subject.dtype
            expected = predicted_time(rows, subject.sizes, rates(card, dtype), subject.dtype)
            said |= {source: expected.total, f"{source}_low": expected.low, f"{source}_high": expected.high}
            said[f"{source}_bounds"] = {str(key): value for key, value in expected.bounds.items()}
        except Exception as error:
            said[f"{source}_error"] = _said(error)
    flops = lc.cost(subject.configuration, "bp", "matmul", subject.batch_size, subject.seq_len).total.flops
    try:
        times = _measured(subject, sides, device)
    except Exception as error:
        yield {"what": name, "error": _said(error)} | said
        return
    for side, (median, low, high, busy) in times.items():
        row = {"what": f"{name}, {side}", "seconds": median, "from": low, "to": high, "busy": busy}
        yield row | {"mfu": float(flops) / median / PEAK} | said


def _measured(
    subject: Subject, sides: Mapping[str, type[Eager]], device: str
) -> dict[str, tuple[float, float, float, float]]:
    """The median step, its quartiles, and the seconds that kernels run, of all sides in turns."""
    running: dict[str, Callable[[], float]] = {}
    for name, make in sides.items():
        side = make()
        side.begin(subject)
        given = side.prepare(*subject.batch(0))
        running[name] = partial(side.step, *given)
        for _ in range(3):
            running[name]()
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(3 if device == "cpu" else 20):
        for name, run in running.items():
            times[name].append(_seconds(run, device))
    found = {}
    for name, several in times.items():
        low, median, high = statistics.quantiles(several, n=4)
        found[name] = median, low, high, _busy(running[name]) if device != "cpu" else 0.0
    return found


def _seconds(run: Callable[[], object], device: str) -> float:
    if device == "cpu":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def _busy(run: Callable[[], object]) -> float:
    """Seconds of a step in which kernels run."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    return sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6


# All of it.


def _tried(row: Row, found: Callable[[], Row]) -> Row:
    try:
        return row | found()
    except Exception as error:
        return row | {"error": _said(error)}


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} {lines[-1] if len(lines) > 1 else ''}"[:400]


COLUMNS: Mapping[str, Sequence[str]] = {
    "values": ("off",),
    "training": ("off", "steps", "first", "last"),
    "memory": ("predicted", "measured", "handed_out", "ratio"),
    "imported": ("predicted", "measured", "handed_out", "ratio"),
    "time": ("seconds", "from", "to", "busy", "published", "calibrated", "mfu"),
}


SILENT = ("alive", "published_bounds", "calibrated_bounds")
"""What the file has alone."""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure section by section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default=",".join(COLUMNS))
    parser.add_argument("--rows", default="", help="parts of their names, with commas between: only these")
    parser.add_argument("--quick", action="store_true", help="few and small ones")
    parser.add_argument("--compile", action="store_true", help="time a step under torch.compile too")
    parser.add_argument("--json", type=Path, help="everything, into a file")
    parser.add_argument("--calibration", type=Path, help="where the calibration is written")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("on_cuda.py: there is no GPU; --device cpu tries what needs none")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    asked = Asked(given.device, given.quick, tuple(given.rows.split(",")))
    chosen, began = given.only.split(","), time.perf_counter()
    everything: dict[str, Any] = {"torch": torch.__version__, "device": given.device}
    if given.device == "cuda":
        everything["device"] = torch.cuda.get_device_name()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) // 2), get_context("spawn")) as pool:
        futures = {
            section: [
                pool.submit(_predicted, section, asked, number) for number, _ in enumerate(_cases(section, asked))
            ]
            for section in _CASES
            if section in chosen
        }
        sections: dict[str, Callable[[], Iterator[Row]]] = {
            "values": lambda: values(asked),
            "training": lambda: training(asked),
            "memory": lambda: peaks_of("memory", asked, futures["memory"]),
            "imported": lambda: peaks_of("imported", asked, futures["imported"]),
            "time": lambda: timed(asked, given.calibration, given.compile),
        }
        for section in (each for each in COLUMNS if each in chosen):
            rows: list[Row] = []
            try:
                for row in sections[section]():
                    rows.append(row)
                    told = (f"{key}={_cell(value)}" for key, value in row.items() if key not in SILENT)
                    print(*told, file=sys.stderr, flush=True)
                    if given.json:
                        given.json.write_text(json.dumps(everything | {section: rows}), encoding="utf-8")
            except Exception as error:  # the next section goes on
                rows.append({"what": section, "error": _said(error)})
            everything[section] = rows
            columns = COLUMNS[section]
            show(
                f"\n{section}, {everything['device']}, torch {torch.__version__}, {time.perf_counter() - began:.0f} s",
                ["what", *columns],
                [[row["what"], *(_cell(row.get(column)) for column in columns)] for row in rows if "error" not in row],
            )
            for row in rows:
                if "error" in row:
                    print(f"failed: {row['what']}: {row['error']}")


if __name__ == "__main__":
    main()
