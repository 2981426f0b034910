"""The emitted step in Triton, beside NumPy's numbers and as a side of timed steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from against_torch_and_jax.subject import LEARNING_RATE, Subject
from against_torch_and_jax.torch_side import Eager, facts

from learncost.backends.triton import in_triton
from learncost.engines.core import PreparedStep
from learncost.engines.in_triton import names_of
from learncost.engines.numpy_engine import Training
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.reports.memory.planner import fastest


class EmittedStep:
    """A file of `learncost emit --backend triton` with its tensors on a device: `run` takes a step in place."""

    def __init__(
        self, prepared: PreparedStep, dtype: str, device: str | torch.device, planner: Callable[..., str] = fastest
    ) -> None:
        table = without_gradients(prepared.table)
        self.plan = planner(table, prepared.sizes, dtype)
        table = planned(table, self.plan, prepared.sizes)
        file = SimpleNamespace(**names_of(in_triton(table, prepared.sizes, dtype, "A step that is measured.").text))
        values: Mapping[str, Any] = prepared.values
        self.given = {
            name: torch.as_tensor(np.array(values[name])).to(device, kind).reshape(shape)
            for name, (shape, kind) in file.GIVEN.items()
        }
        self.given |= {name: self.given[weight].bfloat16() for name, weight in file.COPIES.items()}
        self.memory = file.lay_out(self.given, torch.empty(file.BYTES, dtype=torch.uint8, device=device))
        self.run: Callable[[], object] = lambda: file.step(self.memory, file.KERNELS)
        self.graph: Callable[[], Callable[[], object]] = lambda: file.captured(self.memory)


class InTriton(Eager):
    """Steps on one batch, as a CUDA graph; in Triton's interpreter call by call."""

    def __init__(self, planner: Callable[..., str] = fastest) -> None:
        super().__init__()
        self.planner = planner

    def begin(self, subject: Subject) -> dict[str, Any]:
        given: dict[str, Any] = {"learning_rate": LEARNING_RATE, "dtype": np.float32, "weights": subject.weights()}
        training = Training(subject.configuration, "bp", "adamw", **given)
        batch = dict(zip(getattr(subject, "inputs", ("tokens", "targets")), subject.batch(0), strict=True))
        dtype = "fp32" if subject.dtype == "fp32" else "bf16-masters"
        prepared = training.prepare(**batch)
        self.emitted = EmittedStep(prepared, dtype, self.device, self.planner)
        self.replay = self.emitted.graph() if self.device.type == "cuda" else self.emitted.run
        return facts(self.device)

    def step(self, tokens: Any, targets: Any) -> float:
        self.replay()
        return float(self.emitted.memory.loss)
