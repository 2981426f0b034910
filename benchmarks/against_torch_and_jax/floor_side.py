"""The floor as a side that takes its turn in every round, so that a drift of the machine's speed hits it too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from against_torch_and_jax.floor import OPTIMIZER_BYTES, products
from against_torch_and_jax.subject import Subject
from against_torch_and_jax.torch_side import facts, start
from learncost.timing.work import MatmulShape

ROUTES = ("highest", "medium")
"""Of torch.set_float32_matmul_precision. On a processor without AMX `medium` is fp32 too, done by oneDNN."""

ACCURACY = 1e-5
"""The error, relative to the result in float64, up to which a route is fp32: 1e-7 to 1e-6 is usual, bf16 has 2e-3."""

REPEATS, LEAST_SECONDS = 3, 0.01
"""How often at least, and for how long, a product is timed in a turn; the median counts."""

LARGEST_COPY = 2**28
"""Bytes copied at most to measure bandwidth, far above any cache."""

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class FloorSide:
    """Every distinct product of the step by torch.mm or torch.bmm, and a copy of as many bytes as AdamW moves."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        start(self.device)

    def begin(self, subject: Subject) -> dict[str, Any]:
        self.products, self.dtype = products(subject), _TYPES[subject.dtype]
        self.bytes = OPTIMIZER_BYTES * subject.parameters
        self.routes = {product: self._accurate(product) for product in self.products}
        flops = int(sum(product.flops * times for product, times in self.products.items()))
        return {"flops": flops, "optimizer_bytes": self.bytes, **facts(self.device)}

    def turn(self, count: int) -> dict[str, Any]:
        """One measurement, whatever the count: `seconds`, of it those of the `optimizer`; FLOPs a second by product."""
        times = {product: self._product(product) for product in self.products}
        products_seconds = sum(seconds * float(self.products[product]) for product, seconds in times.items())
        optimizer = self._copy()
        rates = {str(product): product.flops / seconds for product, seconds in times.items()}
        return {"seconds": [products_seconds + optimizer], "losses": [], "optimizer": optimizer, "rates": rates}

    def gradients(self) -> dict[str, Any]:
        raise NotImplementedError("the floor learns nothing")

    def peak(self) -> int | None:
        return None

    def _factors(self, product: MatmulShape) -> tuple[Any, Any, Any]:
        """Factors as they lie in memory, seen as m x k and k x n, and their product's place."""
        shapes = ((product.m, product.k), (product.k, product.n))
        arrays = []
        for (rows, columns), transposed in zip(shapes, product.transposed, strict=True):
            shape = (product.batch, columns, rows) if transposed else (product.batch, rows, columns)
            array = (torch.rand(shape, device=self.device) - 0.5).to(self.dtype)
            arrays.append(array.transpose(1, 2) if transposed else array)
        place = torch.empty(product.batch, product.m, product.n, dtype=self.dtype, device=self.device)
        first, second = arrays
        return (first, second, place) if product.batch > 1 else (first[0], second[0], place[0])

    def _accurate(self, product: MatmulShape) -> tuple[str, ...]:
        """The routes that are as exact as the type says; for bf16 there is one."""
        if self.dtype is not torch.float32:
            return ROUTES[:1]
        first, second, place = self._factors(product)
        # A part of the rows and columns tells as much as all.
        exact = first[..., :64, :].double() @ second[..., :, :64].double()
        exact_routes = []
        for route in ROUTES:
            _multiply(route, first, second, place)
            error = (place[..., :64, :64].double() - exact).norm() / exact.norm()
            if float(error) <= ACCURACY:
                exact_routes.append(route)
        return tuple(exact_routes) or ROUTES[:1]

    def _product(self, product: MatmulShape) -> float:
        """Seconds of the product by its best route."""
        factors = self._factors(product)
        return min(self._timed(partial(_multiply, route, *factors)) for route in self.routes[product])

    def _copy(self) -> float:
        """Seconds to read half of the optimizer's bytes and to write the other half."""
        half = self.bytes // 2
        copied_bytes = min(half, LARGEST_COPY)
        source = torch.ones(copied_bytes, dtype=torch.uint8, device=self.device)
        target = torch.zeros_like(source)
        return self._timed(lambda: target.copy_(source)) * half / copied_bytes

    def _timed(self, work: Callable[[], Any]) -> float:
        work()  # threads, caches and the pages of the result
        seconds: list[float] = []
        while len(seconds) < REPEATS or sum(seconds) < LEAST_SECONDS:
            self._wait()
            began = perf_counter()
            work()
            self._wait()
            seconds.append(perf_counter() - began)
        return median(seconds)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _multiply(route: str, first: Any, second: Any, place: Any) -> None:
    torch.set_float32_matmul_precision(route)
    (torch.bmm if first.ndim == 3 else torch.mm)(first, second, out=place)
