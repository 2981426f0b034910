"""The sides of a measurement: who takes the steps, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any, Protocol

from against_torch_and_jax.subject import Subject
from learncost.ir.errors import InputError, named_one


class Side(Protocol):
    """What a worker runs. Made, it has imported everything that it needs and started its threads."""

    def begin(self, subject: Subject) -> dict[str, Any]:
        """Make the weights; what is worth knowing of it."""

    def turn(self, count: int) -> dict[str, Any]:
        """Take that many steps: their `seconds`, and the `losses` before them."""

    def gradients(self) -> dict[str, Any]:
        """Those of the first step, by the weights of the model's table; asked for after it."""

    def peak(self) -> int | None:
        """Bytes of a device's memory that were taken at most; None where the process's own are what counts."""


class Learner:
    """A side that learns: batches are made and moved outside the time that is taken."""

    subject: Subject
    steps = 0

    def turn(self, count: int) -> dict[str, Any]:
        seconds, losses = [], []
        for _ in range(count):
            batch = self.prepare(*self.subject.batch(self.steps))
            began = perf_counter()
            losses.append(self.step(*batch))
            seconds.append(perf_counter() - began)
            self.steps += 1
        return {"seconds": seconds, "losses": losses}

    def prepare(self, tokens: Any, targets: Any) -> tuple[Any, Any]:
        """A batch as `step` takes it."""
        return tokens, targets

    def step(self, tokens: Any, targets: Any) -> float:
        """One step, all of it done when the loss is there."""
        raise NotImplementedError

    def peak(self) -> int | None:
        return None


@dataclass(frozen=True)
class Entry:
    """A side's class, as module and name, and what it is; `package` is what it cannot do without."""

    module: str
    name: str
    about: str
    package: str | None = None

    def make(self) -> Side:
        """The side, in this process. Raises InputError where a package is missing."""
        try:
            side: Side = getattr(import_module(f"{__package__}.{self.module}"), self.name)()
        except ModuleNotFoundError as error:
            if self.package is None or error.name is None or error.name.partition(".")[0] != self.package:
                raise
            raise InputError(f"{self.package} is not installed: pip install 'learncost[{self.package}]'") from None
        return side


ENGINE, FLOOR = "engine", "floor"

PEERS: Mapping[str, Entry] = {
    "eager": Entry("torch_side", "Eager", "PyTorch, autograd, flash attention, fused AdamW", "torch"),
    "compile": Entry("torch_side", "Compiled", "the same under torch.compile", "torch"),
    "jax": Entry("jax_side", "Jax", "jax.value_and_grad and AdamW under one jit, arguments donated", "jax"),
}
"""Those that the engine is set against, by name."""

SIDES: Mapping[str, Entry] = {
    ENGINE: Entry("engine_side", "EngineSide", "learncost's engine"),
    **PEERS,
    FLOOR: Entry("floor_side", "FloorSide", "the step's products alone, and the optimizer's bytes", "torch"),
}
"""Everything that a worker can run."""


def peers(names: str) -> tuple[str, ...]:
    """The peers that a list with commas names. Raises InputError."""
    names_asked = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in names_asked:
        named_one("peer", name, PEERS)
    return names_asked
