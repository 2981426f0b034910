"""The engine on a GPU beside PyTorch: losses, predictions, then each side alone: first step, steps, memory."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from against_torch_and_jax.floor import products
from against_torch_and_jax.floor_side import FloorSide
from against_torch_and_jax.subject import BETAS, LEARNING_RATE, WEIGHT_DECAY
from against_torch_and_jax.torch_side import Compiled, Eager, facts
from torch._inductor.async_compile import shutdown_compile_workers

import learncost as lc
import learncost.torch
from learncost.devices.device import device as find_device
from learncost.devices.gpus import gpu
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.reports.memory.planner import fastest
from on_gpu.asked import Asked, Row, message_of
from on_gpu.in_triton import InTriton
from on_gpu.steps import CARD, seconds
from on_gpu.subjects import Text, leanest, subjects

LIMIT, END, EACH = 480, 570, 120
"""Seconds after which no side begins, after which one that runs is ended, and that one takes at most."""
STEPS, LOSSES, KERNELS = 15, 100, 12


class Plain(Eager):
    """Operator by operator, also of images, whose weights the peers' module draws."""

    def made(self, subject: Any) -> torch.nn.Module:
        with self.device:
            own = subject.module()
        return own or super().made(subject)


class PlainCompiled(Plain, Compiled):
    """The same under torch.compile by default."""


class Autotuned(PlainCompiled):
    """torch.compile with all choices of kernels tried, and CUDA graphs."""

    def loss_module(self, module: torch.nn.Module) -> Any:
        return torch.compile(module, mode="max-autotune")


class OwnModule(Eager):
    """The module of `learncost.torch` in the place of PyTorch's."""

    def begin(self, subject: Text) -> dict[str, Any]:
        self.subject = subject
        self.module = learncost.torch.model(subject.configuration, device=self.device)
        self.run = lambda *given: self.module(**dict(zip(subject.inputs, given, strict=True)))
        rates: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
        self.optimizer = torch.optim.AdamW(self.module.parameters(), fused=True, **rates)
        return facts(self.device)


SIDES: Mapping[str, tuple[type[Eager] | Callable[..., str], int]] = {
    "ours": (fastest, 4),
    "compile": (PlainCompiled, 4),
    "eager": (Plain, 4),
    "ours, least memory": (leanest, 2),
    "learncost.torch": (OwnModule, 1),
    "compile, max-autotune": (Autotuned, 2),
}
"""Each side and how many of the first subjects it is measured at, what must be known first."""


class SideEnded(BaseException):
    """A side takes too long: no `Exception`, which torch.compile takes for the failure of a kernel that it tries."""


def engine(asked: Asked, first: int = 0, gone: float = 0.0, known: Mapping[str, int] | None = None) -> Iterator[Row]:
    """Losses beside autocast's, predictions of ours, then the floor, the rows of each side, and the kernels of ours.

    After an error that ends all kernels of a process, such as an illegal access, what follows runs in another one.

    first, gone, known  where this process begins: the number of a section, the seconds before, what was predicted
    """
    began, name = time.perf_counter() - gone, "{0.model}, {0.batch_size} x {0.seq_len}".format
    several, predicted = subjects(asked), {**(known or {})}
    sided = [(f"{name(subject)}, {side}", side, subject)
             for side, (_, number) in SIDES.items() for subject in several[:number]]  # fmt: skip
    sections: list[tuple[str, Callable[[str], Iterator[Row]]]] = []
    sections.append((f"{name(several[0])}, losses", partial(_losses, several[0], asked)))
    sections += [(what, partial(_predicted, side, subject, asked, predicted))
                 for what, side, subject in sided if not isinstance(SIDES[side][0], type)]  # fmt: skip
    sections += [(f"{name(subject)}, floor", partial(_floor, subject, asked)) for subject in several]
    sections += [(what, partial(_side, side, subject, asked, predicted)) for what, side, subject in sided]
    if not first:
        yield {"what": torch.cuda.get_device_name() if asked.device == "cuda" else "a CPU, in Triton's interpreter"}
    for number, (what, find) in enumerate(sections[first:], first + 1):
        if not asked.takes(what):
            continue
        passed = time.perf_counter() - began
        if passed > LIMIT:
            yield {"what": what, "error": f"not begun after {LIMIT} s"}
            continue
        _clear(asked)
        try:
            with _ending(min(EACH, int(END - passed))):
                yield from find(what)
        except (Exception, SideEnded) as error:  # the next side goes on
            yield {"what": what, "error": message_of(error)}
            if "CUDA error" in str(error) or "Triton Error [CUDA]" in str(error):
                yield from _in_another_process(asked, number, time.perf_counter() - began, predicted)
                return
    _clear(asked)


def _in_another_process(*rest: Any) -> Iterator[Row]:
    context = get_context("spawn")
    rows: Any = context.Queue()
    process = context.Process(target=_put, args=(rows, *rest))
    process.start()
    yield from iter(partial(rows.get, timeout=END), None)
    process.join()


def _put(rows: Any, *rest: Any) -> None:
    for row in engine(*rest):
        rows.put(row)
    rows.put(None)


def _clear(asked: Asked) -> None:
    """Forget what sides before have compiled, captured and allocated; end the processes in which torch.compile does."""
    torch._dynamo.reset()
    shutdown_compile_workers()
    gc.collect()
    if asked.device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def _ending(after: int) -> Iterator[None]:
    """Raise `SideEnded` in a side that still runs after some seconds, such as one that tries all kernels."""

    def end(*_: object) -> None:
        raise SideEnded(f"ended after {after} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(after)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _predicted(side: str, subject: Text, asked: Asked, peaks: dict[str, int], what: str) -> Iterator[Row]:
    """Yield the peak and the time of ours, which are told before it runs."""
    precision = {"dtype": "bf16-masters", "optimizer": "adamw"}
    table, sizes = without_gradients(step(subject.built, "bp", "adamw")), subject.sizes
    plan = SIDES[side][0](table, sizes, "bf16-masters")
    given = {"engine": "cuda", "plan": plan, **precision, **subject.lengths}
    expected = lc.cost(subject.configuration, on=_card(asked.device == "cuda"), **given).recorded.seconds
    peaks[what] = lc.memory(subject.configuration, **given).peak
    yield {"what": f"{what}, plan {plan}", "predicted": peaks[what], "expected": expected}


def _side(side: str, subject: Text, asked: Asked, peaks: Mapping[str, int], what: str) -> Iterator[Row]:
    """Yield the first step, the median of others, and the most bytes allocated beside those that were predicted."""
    on_gpu, (plans, _) = asked.device == "cuda", SIDES[side]
    before = torch.cuda.memory_allocated() if on_gpu else 0
    own = not isinstance(plans, type)
    for cache in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[cache] = tempfile.mkdtemp()  # kernels compile in the first step
    running = InTriton(plans) if own else plans()
    subject.weights()  # drawn before the clock runs
    begun = time.perf_counter()
    running.begin(subject)
    given = running.prepare(*subject.batch(0))
    run = partial(running.step, *given)
    run()
    first = time.perf_counter() - begun
    times = sorted(seconds(run, asked.device) for _ in range(asked.some(range(STEPS), 2)[-1] + 1))
    row: Row = {"what": what, "first": first, "seconds": statistics.median(times)}
    if on_gpu:
        row["measured"] = torch.cuda.max_memory_allocated() - before
        row |= {"predicted": peaks[what], "ratio": peaks[what] / row["measured"]} if what in peaks else {}
    yield row
    if own and on_gpu:
        yield from _kernels(what, run)


def _card(on_gpu: bool) -> str:
    """Return the GPU, or another one where its kernels cannot be timed."""
    try:
        return gpu(find_device(torch.cuda.get_device_name())).name if on_gpu else CARD
    except lc.InputError:
        return CARD


def _kernels(what: str, run: Any) -> Iterator[Row]:
    """Yield the kernels that take the longest: where the time of a step is."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    longest = sorted(profiled.key_averages(), key=lambda each: -each.self_device_time_total)
    for each in longest[:KERNELS]:
        yield {"what": f"{what}: {each.count} x {each.key[:60]}", "seconds": each.self_device_time_total / 1e6}


def _losses(subject: Text, asked: Asked, what: str) -> Iterator[Row]:
    """Yield the largest distance between losses of steps on one batch each, and those of PyTorch under autocast."""
    sides: list[Any] = [InTriton(fastest), Plain()]
    several: list[list[float]] = []
    for running in sides:
        running.begin(subject)
        number = 3 if asked.quick else LOSSES
        given = running.prepare(*subject.batch(0))
        several.append([running.step(*given) for _ in range(number)])
    off = max(abs(one - other) / abs(other) for one, other in zip(*several, strict=True))
    yield {"what": f"{what}: {len(several[0])} beside autocast's", "off": off}


def _floor(subject: Text, asked: Asked, what: str) -> Iterator[Row]:
    """Yield the seconds of products alone, of attention's kernels, and of the bytes of AdamW."""
    side = FloorSide()
    side.begin(subject)
    side.products = {product: times for product, times in products(subject).items() if product.batch == 1}
    side.routes = dict.fromkeys(side.products, ("highest",))
    found = side.turn(1)
    sizes = subject.configuration.sizes
    heads = sizes.get("n_head", sizes.get("num_attention_heads"))
    layers, width = sizes.get("n_layer", sizes.get("num_hidden_layers")), sizes.get("n_embd", sizes.get("hidden_size"))
    shape = subject.batch_size, heads, subject.seq_len, width // heads
    q, k, v, gradient = (torch.randn(shape, device=side.device, dtype=torch.bfloat16) for _ in range(4))

    def attention() -> None:
        factors = [each.detach().requires_grad_() for each in (q, k, v)]
        torch.nn.functional.scaled_dot_product_attention(*factors, is_causal=subject.causal).backward(gradient)

    for _ in range(2):
        attention()
    attended = layers * statistics.median(seconds(attention, asked.device) for _ in range(5))
    yield {"what": what, "seconds": found["seconds"][0] + attended}
    yield {"what": f"{what}: attention", "seconds": attended}
    yield {"what": f"{what}: AdamW", "seconds": found["optimizer"]}
