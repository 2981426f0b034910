"""What a runner of steps is: who executes a step, what that takes in memory, and by which rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.value import RANDOM
from learncost.liveness import LiveArray, LiveInterval, Moment
from learncost.ops.optimizers import OPTIMIZERS
from learncost.program.arena import Arena
from learncost.reports.memory.planner import chosen
from learncost.reports.memory.step import MemoryStep

FIXED = "fixed matrices"
"""The part of the memory that matrices take which are drawn once and read at every step."""

TYPES = ("fp32", "fp64")
"""The types that every runner of programs computes in."""

RULES = ("new weights and states", "gradients", "kept for backward", "temporaries")
"""What the rules of runners are about: where what an optimizer makes lies, how long gradients are there, what the
forward pass leaves for the backward pass, and what a line takes beside its result."""


@dataclass(frozen=True)
class MemoryUse:
    """What a step takes: the most bytes, when, what they are, and which arrays; the bytes at every line if known, and
    the arrays over the lines, which sum to them: found where they are asked for, and once.

    said   the convention, where it is another than the runner's
    flash  bytes of flash, of a runner that says what lies there; None: those of frozen weights, where there is flash
    arena  where arrays lie over the calls, of a runner that gives each its place before it runs
    rules  the rules, where they are others than the runner's
    buffers  bytes that libraries of products take from the allocator beside these at most; None: not known
    unfit  why it does not fit the regions of a device's RAM; empty where it does, or none are known
    """

    bytes: int
    moment: Moment
    split: Mapping[str, int]
    live_at_peak: tuple[LiveArray, ...]
    curve: tuple[Moment, ...] = ()
    stays: Iterable[LiveInterval] = ()
    said: str = ""
    flash: int | None = None
    arena: Arena | None = None
    rules: Mapping[str, str] | None = None
    unfit: str = ""
    buffers: int | None = None


@dataclass(frozen=True)
class Engine:
    """Who runs a step.

    name        as --engine has it
    peak        the most bytes of a step, at the sizes of a microbatch
    takes       the same with all that is known of it
    rules       by what they are about (`RULES`)
    convention  what is counted, and what is not
    refuses     why it cannot run a step, as it goes on behind its name; empty where it can
    plan        under which plan it runs a step where none is named; `planner` chooses where that is auto
    plans       the plans that are tried for it where none is named
    largest     the largest batch within a budget, where that is solved for
    lengths     whether it is quick enough to be asked for many lengths
    module      whether it runs a module, which is named
    passes      the most bytes of any table at sizes, in a type: of a pass of inference
    arrays      the bytes of every array in RAM of the same, of a runner that lays them out over regions
    stored      bytes of flash of the same, where the runner says what lies there
    trains      whether it is what learncost train runs: over a mesh a vocabulary stays whole that does not divide
    alone       why it has nothing to say of one device among many; empty where it has
    """

    name: str
    peak: Callable[[MemoryStep, Mapping[str, int]], int]
    takes: Callable[[MemoryStep, Mapping[str, int]], MemoryUse]
    rules: Mapping[str, str]
    convention: str
    refuses: Callable[[MemoryStep], str] = lambda step: ""
    plan: str | None = None
    planner: Callable[..., str] = chosen
    plans: tuple[str, ...] | None = None
    largest: Callable[[MemoryStep, int], int] | None = None
    lengths: bool = False
    module: bool = False
    passes: Callable[[Table, Mapping[str, int], str], int] | None = None
    arrays: Callable[[Table, Mapping[str, int], str], Mapping[str, int]] | None = None
    stored: Callable[[Table, Mapping[str, int], str], int] | None = None
    trains: bool = False
    alone: str = ""


def refusal(step: MemoryStep, dtypes: Collection[str], with_flash: bool = False) -> str:
    """Why no program runs a step: its types, its optimizer, microbatches, weights in flash.

    with_flash  whether frozen weights may lie there, in codes too, where products read these
    """
    if dtypes and (step.kind.computed if with_flash else step.kind.name) not in dtypes:
        return f"computes in {' or '.join(dtypes)}"
    if step.optimizer.name not in OPTIMIZERS:
        return f"executes the optimizers {', '.join(OPTIMIZERS)}"
    if step.accumulate > 1:
        return "takes the whole batch at once: leave --accumulate out"
    return "has all weights in RAM: leave --flash out" if step.in_flash and not with_flash else ""


def grouped(allocations: Iterable[tuple[int, str]]) -> tuple[LiveArray, ...]:
    """Arrays of one kind together: how many, and their bytes."""
    counted = sorted(
        Counter(allocations).items(), key=lambda counted_allocation: -counted_allocation[0][0] * counted_allocation[1]
    )
    return tuple(LiveArray(line, (), (number, size), number * size) for (size, line), number in counted)


def at_line(line: str, size: int) -> Moment:
    """The moment of a program's line."""
    return Moment(line, "", "", size)


def bytes_of(table: Table, names: Iterable[str], sizes: Mapping[str, Any], width: Callable[[str], int]) -> int:
    """The bytes of names of a table, of so many each element."""
    return sum(width(name) * prod(shape_of(table.axes[name], sizes)) for name in names)


def given_bytes(step: MemoryStep, table: Table, sizes: Mapping[str, int]) -> dict[str, int]:
    """What a program is given: weights, states, the batch."""
    width = {"fp64": 8}.get(step.kind.name, 4)
    states, fixed = (
        [name for name in table.inputs if table.values[name].role in roles] for roles in (("state",), RANDOM)
    )
    others = [name for name in table.inputs if name not in (*states, *fixed)]
    parts = {
        "weights": bytes_of(table, table.weights, sizes, lambda _: width),
        "optimizer state": bytes_of(table, states, sizes, lambda _: width),
        "batch": bytes_of(table, others, sizes, lambda name: 8 if name in table.indices else width),
    }
    return parts | ({FIXED: bytes_of(table, fixed, sizes, lambda _: width)} if fixed else {})
