"""Time PyTorch's operators as a module with autograd calls them: each call allocates its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - PyTorch's own custom

from learncost.backends import program
from learncost.calibration.operations import TimedCall, operands, timed_ops
from learncost.layers.layer import layer
from learncost.ops import entry

ROWS, COLUMNS = 210, 330
"""The shape of the arrays on which ops are timed: a quarter of a mebibyte, which fits in caches."""

ON_GPU = 8
"""The factor by which arrays, and products off the grid, are larger on a GPU, where small ones are bound by their
launch."""

BUSY, MOST = 0.002, 50
"""The seconds for which an operation is repeated on a GPU, and the largest number of repetitions, which the queue can
hold."""

HEADS, ROUNDS, LONG = (64, 128), 1024, 1040
"""The head width, model width and sequence length of the timed attention."""

CLOCK = 2e9
"""An upper bound of a GPU's clock in cycles per second, for the duration of the sleeping kernel."""

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

NORMS: Mapping[str, Callable[[Any], Any]] = {
    "normalize": lambda x: F.layer_norm(x, x.shape[-1:], torch.ones_like(x[0]), torch.ones_like(x[0])),
    "rms_normalize": lambda x: F.rms_norm(x, x.shape[-1:], torch.ones_like(x[0])),
}
"""Normalizations, which PyTorch fuses with the scale and shift that follow."""

OTHERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "sum": lambda x, _: x.sum(0),
    "max": lambda x, _: x.amax(-1),
}


def on_gpu() -> str:
    """Return the name of the GPU; empty without one."""
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def library() -> str:
    """Return the version of PyTorch that is timed."""
    return f"PyTorch {torch.__version__}"


def factors(orientation: str, m: int, n: int, k: int, dtype: Any, device: Any, batch: int = 0) -> tuple[Any, Any]:
    """Return matrices m x k and k x n in the memory layout of an orientation."""
    arrays = []
    for layout, shape in zip(orientation, ((m, k), (k, n)), strict=True):
        stored = (shape[1], shape[0]) if layout == "T" else shape
        array = (torch.rand((batch, *stored) if batch else stored, device=device) - 0.5).to(dtype)
        arrays.append(array.transpose(-1, -2) if layout == "T" else array)
    return arrays[0], arrays[1]


def gpu_seconds(operation: TimedCall) -> float:
    """Return the seconds of an operation on a GPU, by events around repetitions that are queued behind a sleeping
    kernel, so that launches take no time."""
    cuda: Any = torch.cuda
    for _ in range(2):
        operation()
    cuda.synchronize()
    began = perf_counter()
    operation()
    called = perf_counter() - began
    cuda.synchronize()
    several = max(2, min(MOST, int(BUSY / max(perf_counter() - began, 1e-6))))
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    times = list[float]()
    for _ in range(3):
        cuda._sleep(int(CLOCK * (0.001 + 1.5 * several * called)))
        first.record()
        for _ in range(several):
            operation()
        last.record()
        cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e3 / several)
    return median(times)


class TorchBench:
    """The bench of PyTorch on the GPU if there is one, else on the CPU with PyTorch's number of threads."""

    operators = True

    def __init__(self, dtype: str = "fp32") -> None:
        self.device = torch.device("cuda" if on_gpu() else "cpu")
        self.dtype = _TYPES[dtype]
        self.threads = 1 if on_gpu() else torch.get_num_threads()
        self.larger = ON_GPU if on_gpu() else 1

    @property
    def busy(self) -> Callable[[TimedCall], float] | None:
        return gpu_seconds if self.device.type == "cuda" else None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def product(self, orientation: str, m: int, n: int, k: int) -> TimedCall:
        left, right = factors(orientation, m, n, k, self.dtype, self.device)
        return partial(torch.mm, left, right)

    def inner(self, m: int, n: int, k: int) -> tuple[TimedCall, int]:
        if self.device.type == "cuda":
            return self._attention(m, n, k)
        several = max(2, min(64, 2**22 // (m * n + n * k + m * k)))
        left, right = factors("NN", m, n, k, self.dtype, self.device, several)
        out = torch.empty(several, m, n, dtype=self.dtype, device=self.device)

        def operation() -> None:
            torch.bmm(left, right, out=out)

        return partial(_on_one_thread, operation), several

    def _attention(self, m: int, n: int, k: int) -> tuple[TimedCall, int]:
        """Return the forward and backward pass of attention, which is timed for products inside of a GPU kernel, and
        the number of products that its seven are equivalent to."""
        head = HEADS[min(m, n, k) >= HEADS[1]]
        batch, length = 4, LONG
        q, key, v = (self._random(batch, ROUNDS // head, length, head).requires_grad_() for _ in range(3))
        gradient = self._random(batch, ROUNDS // head, length, head)

        def operation() -> None:
            result = F.scaled_dot_product_attention(q, key, v)
            torch.autograd.grad(result, (q, key, v), gradient)

        return operation, max(1, round(7 * batch * ROUNDS * length**2 / (m * n * k)))

    def move(self, elements: int) -> TimedCall:
        width = torch.finfo(self.dtype).bits // 8
        left, right = (self._random(elements * 4 // width) for _ in range(2))
        return partial(torch.add, left, right, out=torch.empty_like(left))

    def fill(self, bytes_: int) -> tuple[TimedCall, TimedCall]:
        existing = torch.ones(bytes_, dtype=torch.uint8, device=self.device)
        return partial(torch.ones_like, existing), partial(existing.fill_, 1)

    def _random(self, *shape: int) -> Any:
        return torch.rand(shape, device=self.device).to(self.dtype) + 0.1

    def ops(self) -> Iterator[tuple[str, TimedCall, int]]:
        rows, columns = self.larger * ROWS, self.larger * COLUMNS
        points = rows * columns
        left, right = self._random(rows, columns), self._random(rows, columns)
        for name, other in OTHERS.items():
            yield name, partial(other, left, right), points
        for name, text in timed_ops().items():
            op = NORMS.get(name) or _called(name, text)
            arguments = (left, right)[: max(1, len(entry(name).inputs) - len(entry(name).defaults))]
            yield name, partial(op, *arguments), points
            if not entry(name).body:
                continue
            x = self._random(rows, columns).requires_grad_()
            result = op(x)
            yield f"{name}'", partial(torch.autograd.grad, result, x, right, retain_graph=True), points
        weight = torch.nn.Parameter(left.clone())
        weight.grad = right
        yield "adamw", torch.optim.AdamW([weight], fused=True).step, points

    def calls(self) -> Mapping[str, tuple[TimedCall, int]]:
        times = 20
        linear = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(times))).to(self.device, self.dtype)
        x = self._random(4, 8)
        result, weights = linear(x), list(linear.parameters())
        gradient = torch.ones_like(result)
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer = torch.optim.AdamW(weights, fused=True)
        return {
            "launch": (partial(linear, x), times),
            # Every layer has the gradients of its input, weight and bias.
            "launch_backward": (partial(torch.autograd.grad, result, weights, gradient, retain_graph=True), 3 * times),
            "optimizer": (optimizer.step, len(weights)),
            "product": (self.product("NN", 4, 4, 4), 1),
        }


def _called(name: str, text: str) -> Callable[..., Any]:
    """Return PyTorch's function for an op, as emitted programs call it."""
    op_layer = layer(f"own({operands(text)}) -> Y\nY[B d] = {text}")
    names: dict[str, Any] = {}
    exec(compile(program(op_layer.table, "torch", name).text, f"{name}.py", "exec"), names)
    function: Callable[..., Any] = names[name]
    return function


def _on_one_thread(operation: TimedCall) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        operation()
    finally:
        torch.set_num_threads(before)
