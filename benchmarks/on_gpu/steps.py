"""Times of steps, beside those that are predicted."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from against_torch_and_jax.subject import Subject
from against_torch_and_jax.torch_side import Compiled, Eager
from prediction import gpt2, llama

import learncost as lc
from learncost.calibration.calibrate import calibrate
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.devices.calibration import save
from learncost.devices.rates import rates
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.timing.predict import time as predicted_time
from on_gpu.asked import Asked, Row, message_of

CARD, PEAK = "H100-SXM", 989e12
"""The published record that predictions use where the GPU is none of `learncost list devices`, and its bf16 peak."""


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
        if device == "cuda":
            from on_gpu.in_triton import InTriton

            sides["emitted in Triton"] = InTriton
        if compiles and not number:
            sides["compiled"] = Compiled
        yield from _of_subject(subject, sides, {"published": card, "calibrated": str(path)}, device)


def _of_subject(
    subject: Subject, sides: Mapping[str, type[Eager]], cards: Mapping[str, str], device: str
) -> Iterator[Row]:
    name = f"{subject.model}, {subject.batch_size} x {subject.seq_len}, {subject.dtype}"
    predictions = {}
    for source, card in cards.items():
        try:
            table = planned(step(subject.built, "bp", "adamw"), "flash")
            rows = price(table, subject.sizes, book("run")).rows
            dtype = "fp32" if source == "calibrated" and device == "cpu" else subject.dtype
            expected = predicted_time(rows, subject.sizes, rates(card, dtype), subject.dtype)
            predictions |= {source: expected.total, f"{source}_low": expected.low, f"{source}_high": expected.high}
            predictions[f"{source}_bounds"] = {str(key): value for key, value in expected.bounds.items()}
        except Exception as error:
            predictions[f"{source}_error"] = message_of(error)
    flops = lc.cost(subject.configuration, "bp", "matmul", subject.batch_size, subject.seq_len).total.flops
    try:
        times = _measured(subject, sides, device)
    except Exception as error:
        yield {"what": name, "error": message_of(error)} | predictions
        return
    for side, (median, low, high, busy) in times.items():
        row = {"what": f"{name}, {side}", "seconds": median, "from": low, "to": high, "busy": busy}
        yield row | {"mfu": float(flops) / median / PEAK} | predictions


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
            times[name].append(seconds(run, device))
    found = {}
    for name, several in times.items():
        low, median, high = statistics.quantiles(several, n=4)
        found[name] = median, low, high, _busy(running[name]) if device != "cpu" else 0.0
    return found


def seconds(run: Callable[[], object], device: str) -> float:
    """Return the seconds of a run, by CUDA's events on a GPU."""
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
