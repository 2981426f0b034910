"""What fits a device's memory: which learning procedures under which plans, how large a batch, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from learncost.equation.errors import InputError, named_one
from learncost.equation.table import Table
from learncost.ledger.cost import Run, adaptation_of, prepare
from learncost.ledger.memory import measured
from learncost.ledger.memory_inference import NAME, Serving
from learncost.ledger.memory_step import Step
from learncost.ledger.memory_types import Format, bytes_of, format_of
from learncost.ledger.sheet import Row, Sheet, number, size_of
from learncost.models.configuration import Configuration
from learncost.plans.executed import TYPES, executed
from learncost.procedures.optimizer import DEFAULT, state_of
from learncost.procedures.procedure import CONTROLS, PROCEDURES

PLANS = ("", "at-once", "flash,fused,at-once", "flash,fused,at-once,recompute=all")
"""What is tried of every procedure, from what runs the step as it is derived to what takes least."""

SERVED = ("", "flash,fused")
"""What is tried of inference."""

ADVICE = {
    "weights": "a smaller model, a narrower --dtype, or frozen weights in --flash (--train-layers 'last 1')",
    "master weights": "--dtype int8, which has none, or fewer weights that learn (--lora, --train-layers)",
    "gradients": "the plan at-once, or fewer weights that learn (--lora, --train-layers)",
    "optimizer state": "--optimizer sgd, or fewer weights that learn (--lora, --train-layers)",
    "activations": "a shorter --seq-len, or recomputation (--procedure recompute, --plan recompute=all)",
    "workspace": "a shorter --seq-len, or a smaller vocabulary: the head's scores are of that width",
}
"""What makes the largest part of a peak smaller."""

SERVING_ADVICE = {
    "weights": "a smaller model, a narrower --dtype, or --flash, where all weights of inference lie",
    "cache": "a shorter --seq-len, a narrower --dtype, or a model whose queries share keys",
    "values": "a shorter --seq-len, or the plan flash, which stores no scores",
}
"""The same for inference."""


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
    """What fits a device's memory, and what to change for what does not.

    Attributes
    ----------
    model
        The model, by name.
    dtype
        The data type.
    optimizer
        The optimizer.
    seq_len
        Tokens in a sequence.
    ram
        Bytes of RAM that there are.
    flash
        Bytes of flash that there are, or None.
    engine
        Whose step it is, as in `lc.memory`.
    rows
        For each procedure and plan: `ram` and `flash` bytes of one sample, the `largest` batch that fits (0: none), and
        what takes `most`.
    advice
        For every procedure that does not fit what to change, and which procedures the model cannot learn by.

    Examples
    --------
    >>> found = lc.fit("gpt2", "64MB", procedures="bp", seq_len=128, optimizer="sgd")
    >>> any(row.fits for row in found.rows), len(found.advice) > 0
    (False, True)
    """

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
        if any(row.procedure == NAME for row in self.rows):
            rule += (
                " In inference all are frozen: a prompt of so many tokens, or its last one with a cache of the others."
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
    procedures: str = "inference,bp,recompute,pepita,mempepita",
    seq_len: int | str | None = None,
    optimizer: str | None = None,
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
    """Which learning procedures fit a device's memory, and how large a batch would.

    Arguments that are not listed here mean what they mean in `lc.memory`.

    Parameters
    ----------
    ram
        Bytes of RAM, as 256MB.
    flash
        Bytes of flash. Frozen weights lie there where it is given, else in RAM.
    procedures
        Names with commas between; `inference` is the model as it is, which learns nothing.
    plan
        This plan alone; by default several are tried.
    engine
        Whose step it is, as in `lc.memory`.

    Returns
    -------
    Fit
        A row for each procedure and plan.

    Raises
    ------
    InputError
        As for `lc.memory`, and where the model can do none of this.

    Examples
    --------
    >>> found = lc.fit("gpt2", "256MB", "512MB", procedures="inference,bp", seq_len=128, dtype="int8", optimizer="sgd")
    >>> [(row.procedure, row.largest) for row in found.rows if row.fits]
    [('inference', 78), ('inference', 86), ('bp', 3), ('bp', 3), ('bp', 11)]
    """
    room, store = bytes_of("ram", ram), None if flash is None else bytes_of("flash", flash)
    kind = format_of(dtype)
    optimizer = state_of(optimizer or DEFAULT).name
    if engine:
        named_one("engine", engine, {"numpy": None})
        if dtype not in TYPES or flash is not None:
            raise InputError(f"--engine numpy computes in {' or '.join(TYPES)}, with all weights in RAM")
    names = tuple(dict.fromkeys(name.strip() for name in procedures.split(",")))
    for name in names:
        named_one("procedure", name, {NAME: None, **PROCEDURES, **CONTROLS})
    given = train, train_layers, lora, lora_rank, None
    rows: list[Fitting] = []
    said: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for name in names:
        wanted = None if name == NAME else adaptation_of(*given)
        ways: list[Way] = []
        for text in (plan,) if plan is not None else (SERVED if name == NAME else PLANS):
            learned = () if name == NAME else (name,)
            run = prepare(model, "run", 1, seq_len, None, None, None, 0, "fp32", sizes, learned, wanted, text)
            try:
                way = _serving(run, kind, store) if name == NAME else _learning(run, name, kind, optimizer, store)
            except InputError as error:
                refused.setdefault(str(error), []).append(name)
                continue
            if not any(way.lines == other.lines for other in ways):
                ways.append(way)
        ways = [way.executed() for way in ways] if engine else ways
        rows += [
            Fitting(way.procedure, way.plan, way.ram, way.flash, way.fitting(room, store), way.most) for way in ways
        ]
        if ways and not any(row.fits for row in rows[-len(ways) :]):
            said.setdefault(_advice(ways, room, store), []).append(name)
    if not rows:
        raise InputError(next(iter(refused)))
    advice = [] if any(row.fits for row in rows) else ["Nothing fits."]
    advice += [f"{', '.join(own)} {'does' if len(own) == 1 else 'do'} not fit. {text}" for text, own in said.items()]
    for why, own in refused.items():
        advice.append(f"{why}." if why.startswith(own[0]) else f"{', '.join(dict.fromkeys(own))}: {why}.")
    length = run.axes["N"] if run.model.two_sided else run.axes["M"]
    name = run.model.configuration.name
    return Fit(name, dtype, optimizer, length, room, store, engine, tuple(rows), tuple(advice))


@dataclass(frozen=True)
class Way:
    """A procedure under a plan, as it is asked what it takes.

    lines    what two plans have in common that come to the same
    most     the part that takes most of the RAM; "" where parts are not known
    largest  the largest batch within so many bytes
    longest  the longest sequence within so many bytes, of one sample; None where none is found
    run      tables and the sizes of their axes by the batch, as an engine runs them
    """

    procedure: str
    plan: str
    lines: object
    ram: int
    flash: int
    most: str
    largest: Callable[[int], int]
    longest: Callable[[int], int | None]
    run: Callable[[int], Iterable[tuple[Table, Mapping[str, int]]]]
    dtype: str

    def fitting(self, room: int, store: int | None) -> int:
        """The largest batch; 0 where one sample does not fit the RAM, or the frozen weights not the flash."""
        return self.largest(room) if store is None or self.flash <= store else 0

    def executed(self) -> Way:
        """As NumPy executes it: the batch that fits is found along the lines of the peak, which bends at few places."""

        def peak(batch: int) -> int:
            return max(executed(table, sizes, self.dtype).peak for table, sizes in self.run(batch))

        return replace(
            self, ram=peak(1), most="", largest=lambda room: largest_batch(peak, room), longest=lambda room: None
        )


def _learning(run: Run, name: str, kind: Format, optimizer: str, store: int | None) -> Way:
    step = Step(run, name, kind, optimizer, in_flash=store is not None)
    found = measured(step)
    most = max(found.split, key=lambda part: found.split[part])
    largest = partial(step.largest, "B")

    def longest(budget: int) -> int | None:
        length = step.longest(budget)
        return length if length is not None and length < run.axes["M"] else None  # an image has all its patches

    return Way(
        name, step.plan, step.table.lines, found.peak, step.flash, most, largest, longest,
        lambda batch: [(step.whole(), step.sizes(batch))], kind.name,
    )  # fmt: skip


def _serving(run: Run, kind: Format, store: int | None) -> Way:
    axes, two_sided = run.axes, run.model.two_sided
    seq_len, target_len = (axes["N"], axes["M"]) if two_sided else (axes["M"], None)
    found = Serving(run.model, kind, seq_len, target_len, store is not None, run.plan)
    split = found.split()
    lines = tuple(one.table.lines for one in found.passes)
    most = max(split, key=lambda part: split[part])
    return Way(
        NAME, run.plan, lines, found.peak(), found.flash, most, found.largest, found.longest,
        lambda batch: [(one.whole, {**one.sizes, "B": batch}) for one in found.passes], kind.name,
    )  # fmt: skip


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


def _advice(ways: Sequence[Way], room: int, store: int | None) -> str:
    """What to change where a procedure does not fit: how near its least is, what takes most, a length that fits."""
    way = min(ways, key=lambda way: way.ram)
    under = f" under {way.plan}" if way.plan else ""
    found = []
    if store is not None and way.flash > store:
        which = "All" if way.procedure == NAME else "Frozen"
        found.append(
            f"{which} weights take {way.flash:,} bytes, {way.flash / store:,.2f} of the flash: "
            "a smaller model or a narrower --dtype."
        )
    if way.ram > room:
        found.append(f"The least{under} is {way.ram:,} bytes, {way.ram / room:,.2f} of the RAM.")
        if way.most:
            change = SERVING_ADVICE if way.procedure == NAME else ADVICE
            found.append(f"Most of it is {way.most}: {change[way.most]}.")
        if length := max(way.longest(room) or 0 for way in ways):
            found.append(f"With --seq-len {length} it fits.")
    return " ".join(found)
