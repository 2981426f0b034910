"""What fits a device's memory: which learning procedures under which plans, how large a batch, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learncost.equation.errors import InputError, named_one
from learncost.equation.table import Table
from learncost.ledger.cost import adaptation_of, prepare
from learncost.ledger.memory import measured
from learncost.ledger.memory_step import Step
from learncost.ledger.memory_types import bytes_of, format_of
from learncost.ledger.sheet import Row, Sheet, number, size_of
from learncost.models.configuration import Configuration
from learncost.plans.executed import TYPES, executed
from learncost.procedures.procedure import procedure as find_procedure

PLANS = ("", "at-once", "flash,fused,at-once", "flash,fused,at-once,recompute=all")
"""What is tried of every procedure, from what runs the step as it is derived to what takes least."""

ADVICE = {
    "weights": "a smaller model, a narrower --dtype, or frozen weights in --flash (--train-layers 'last 1')",
    "master weights": "--dtype int8, which has none, or fewer weights that learn (--lora, --train-layers)",
    "gradients": "the plan at-once, or fewer weights that learn (--lora, --train-layers)",
    "optimizer state": "--optimizer sgd, or fewer weights that learn (--lora, --train-layers)",
    "activations": "a shorter --seq-len, recompute=all, or mempepita, which keeps none",
    "workspace": "a shorter --seq-len, or a smaller vocabulary: the head's scores are of that width",
}
"""What makes the largest part of a peak smaller."""


@dataclass(frozen=True)
class Fitting:
    """A procedure under a plan with the bytes of one sample in RAM and in flash, and the largest batch that fits."""

    procedure: str
    plan: str
    ram: int
    flash: int
    largest: int
    most: str  # the part that takes most

    @property
    def fits(self) -> bool:
        return self.largest > 0


@dataclass(frozen=True)
class Fit:
    """What fits; `advice` says what to change where nothing does."""

    model: str
    dtype: str
    optimizer: str
    seq_len: int
    ram: int
    flash: int | None
    engine: str
    rows: tuple[Fitting, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        names = ("model", "dtype", "optimizer", "seq_len", "ram", "flash", "engine")
        rows = [
            {"procedure": r.procedure, "plan": r.plan, "ram": r.ram, "flash": r.flash, "fits": r.fits}
            | {"batch_size": r.largest, "most": r.most}
            for r in self.rows
        ]
        return {name: getattr(self, name) for name in names} | {"rows": rows, "advice": list(self.advice)}

    @property
    def sheet(self) -> Sheet:
        """A row a procedure and plan."""
        rows = [
            Row((r.procedure, r.plan, number(r.ram), size_of(r.flash), f"{r.largest:,}" if r.fits else "no", r.most))
            for r in self.rows
        ]
        flash = "" if self.flash is None else f" and {size_of(self.flash)} of flash"
        title = f"{self.model} in {size_of(self.ram)} of RAM{flash}: {self.dtype}, {self.optimizer}, "
        title += f"sequences of {self.seq_len:,} tokens"
        rule = "Weights that learn lie in RAM, with their gradients and all values; frozen ones " + (
            "lie in RAM too: no --flash is given." if self.flash is None else "in flash."
        )
        engine = f" As {self.engine} executes the step." if self.engine else " As the step's table says."
        columns = ("procedure", "plan", "RAM for one", "flash", "batch", "most is")
        return Sheet(title, columns, tuple(rows), (*self.advice, rule + engine), frozenset({0, 1, 5}))

    def __rich__(self) -> Sheet:
        return self.sheet

    def __str__(self) -> str:
        return str(self.sheet)


def fit(
    model: str | Configuration,
    ram: int | str,
    flash: int | str | None = None,
    procedures: str = "bp,recompute,pepita,mempepita",
    seq_len: int | str | None = None,
    optimizer: str = "sgd",
    dtype: str = "fp32",
    *,
    plan: str | None = None,
    engine: str = "",
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    **sizes: Any,
) -> Fit:
    """Which procedures fit a device's memory, one sample after the other, and how large a batch would.

    ram, flash  bytes that there are, as 256MB; frozen weights lie in flash where it is given, else in RAM
    procedures  with commas between
    plan        this one alone; by default those of `PLANS` that change something
    engine      numpy: exactly as NumPy executes the step, with its temporaries; by default as the table says
    Raises `InputError`, also where no procedure can train the model as asked.
    """
    room, store = bytes_of("ram", ram), None if flash is None else bytes_of("flash", flash)
    kind = format_of(dtype)
    if engine:
        named_one("engine", engine, {"numpy": None})
        if dtype not in TYPES or flash is not None:
            raise InputError(f"--engine numpy computes in {' or '.join(TYPES)}, with all weights in RAM")
    names = tuple(dict.fromkeys(name.strip() for name in procedures.split(",")))
    rows, refused, closest = [], "", None
    for name in names:
        find_procedure(name)
        seen: list[Table] = []
        for text in (plan,) if plan is not None else PLANS:
            wanted = adaptation_of(train, train_layers, lora, lora_rank, None)
            run = prepare(
                model, "run", 1, seq_len, None, None, "sgd", 0, "fp32", sizes, (name,), wanted, text
            )  # fmt: skip
            try:
                step = Step(run, name, kind, optimizer, in_flash=store is not None)
            except InputError as error:
                refused = str(error)
                continue
            if any(step.table.lines == other.lines for other in seen):
                continue
            seen.append(step.table)
            row = _executed(step, name, room) if engine else _row(step, name, room, store)
            rows.append(row)
            if closest is None or row.ram < closest[0].ram:
                closest = row, step
    if closest is None:
        raise InputError(refused)
    advice = () if any(row.fits for row in rows) else _advice(*closest, room, store)
    length = run.axes["N"] if run.model.two_sided else run.axes["M"]
    name = run.model.configuration.name
    return Fit(name, dtype, optimizer, length, room, store, engine, tuple(rows), advice)


def _row(step: Step, name: str, room: int, store: int | None) -> Fitting:
    found = measured(step)
    largest = step.largest("B", room) if store is None or step.flash <= store else 0
    most = max(found.split, key=lambda part: found.split[part])
    return Fitting(name, step.plan, found.peak, step.flash, largest, most)


def _executed(step: Step, name: str, room: int) -> Fitting:
    """As NumPy executes it: the batch that fits is found along the lines of the peak, which bends at few places."""

    def peak(batch: int) -> int:
        return executed(step.whole(), step.sizes(batch), step.kind.name).peak

    return Fitting(name, step.plan, peak(1), 0, largest_batch(peak, room), "")


def largest_batch(peak: Callable[[int], int], room: int) -> int:
    """The largest batch whose peak fits, 0 where one sample does not.

    peak    the bytes of a batch: lines that bend where another moment becomes the worst. A step of Newton's method
            from a batch goes to where its own line meets the room.
    """
    batch = 1
    for _ in range(64):
        here, more = peak(batch), peak(batch + 1)
        if here <= room < more:
            return batch
        if batch == 1 and here > room:
            return 0
        batch = max(1, batch + int((room - here) // max(1, more - here)))
    raise InputError("the largest batch was not found: the peak does not grow with the batch")


def _advice(row: Fitting, step: Step, room: int, store: int | None) -> tuple[str, ...]:
    """What to change where nothing fits: how near the least is, what takes most there, the length that would fit."""
    if store is not None and row.flash > store:
        return (f"Frozen weights take {row.flash:,} bytes of flash: a smaller model or a narrower --dtype.",)
    under = f" under {row.plan}" if row.plan else ""
    found = [f"Nothing fits. The least is {row.procedure}{under}: {row.ram:,} bytes, {row.ram / room:.2f} of the RAM."]
    if row.most:
        found.append(f"Most of it is {row.most}: {ADVICE[row.most]}.")
    length = step.longest(room) if row.most else None
    if length:
        found.append(f"With --seq-len {length} it fits.")
    return tuple(found)
