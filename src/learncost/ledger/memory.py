"""The memory of a training step: its peak, who makes it, the curve, the split, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from learncost.equation.count import Count, base
from learncost.equation.errors import InputError
from learncost.equation.table import Line, Repeat, Table, each_line, walk
from learncost.ledger.cost import Run, adaptation_of, prepare
from learncost.ledger.memory_types import INDEX, Format, bytes_of, format_of, state_of
from learncost.models.configuration import Configuration
from learncost.models.model import run_sizes
from learncost.plans.plan import planned
from learncost.plans.planner import chosen, stored
from learncost.procedures.accumulation import GATHERED, accumulated
from learncost.procedures.procedure import step, trained_by
from learncost.readings.live import Held, Live, Moment, levels, live

SPLIT = ("weights", "master weights", "gradients", "optimizer state", "activations", "workspace")
"""What memory holds. Activations are values of the forward pass that later passes read, and the batch; workspace is
what is made and gone within a pass."""

_PART = {"weight": "weights", "gradient": "gradients", "kept": "activations", "index": "activations"}


@dataclass(frozen=True)
class Memory:
    """What a step takes: all exact bytes, as the step's table says, whatever engine runs it.

    peak        at the worst moment, `moment`: the line, the layer and the macro-operation that run then
    split       the peak by what it holds (SPLIT)
    witnesses   the arrays alive then, the largest first
    curve       the bytes at every line, in their order
    fits        with a budget, the largest batch and sequence that fit: by name, 0 where nothing fits, None where no
                polynomial says it
    """

    model: str
    procedure: str
    plan: str
    optimizer: str
    dtype: str
    batch_size: int
    seq_len: int
    target_len: int | None
    accumulate: int
    trained: str
    peak: int
    moment: Moment
    split: Mapping[str, int]
    witnesses: tuple[Held, ...]
    curve: tuple[Moment, ...]
    flash: int = 0  # frozen weights that do not lie in RAM
    budget: int | None = None
    fits: Mapping[str, int | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        result: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        moment = {"line": self.moment.line, "layer": self.moment.layer, "macro_operation": self.moment.macro_operation}
        result |= {"peak": self.peak, "moment": moment, "split": dict(self.split)}
        if self.flash:
            result["flash"] = self.flash
        if self.budget is not None:
            result |= {"budget": self.budget, "fits": dict(self.fits or {})}
        result["witnesses"] = [
            {"name": one.name, "axes": one.axes, "shape": one.shape, "bytes": one.bytes, "layer": one.layer}
            for one in self.witnesses
        ]
        result["curve"] = [
            {"line": one.line, "layer": one.layer, "macro_operation": one.macro_operation, "bytes": one.bytes}
            for one in self.curve
        ]
        return result

    def __rich__(self) -> Any:
        from learncost.ledger.show_memory import sheet

        return sheet(self)

    def __str__(self) -> str:
        from learncost.ledger.show_memory import sheet

        return str(sheet(self))


_FIELDS = (
    "model", "procedure", "plan", "optimizer", "dtype", "batch_size", "seq_len", "target_len", "accumulate", "trained",
)  # fmt: skip


def memory(
    model: str | Configuration,
    procedure: str = "bp",
    batch_size: int | str = 1,
    seq_len: int | str | None = None,
    target_len: int | str | None = None,
    optimizer: str = "sgd",
    dropout: float | str = 0.0,
    dtype: str = "fp32",
    *,
    plan: str | None = None,
    accumulate: int | str = 1,
    budget: int | str | None = None,
    train: object = None,
    train_layers: object = None,
    lora: object = None,
    lora_rank: object = None,
    lora_alpha: object = None,
    **sizes: Any,
) -> Memory:
    """The memory of one training step, exactly. Arguments as `cost` takes them, and:

    optimizer   of `STATES`: sgd, momentum, adamw, adam8bit, adafactor, lion, muon
    dtype       of `FORMATS`: fp32, fp64, bf16 and fp16 and fp8 with fp32 master weights, int8
    plan        rewritings of the step; auto: the planner's own, for the budget where there is one
    accumulate  microbatches that the batch is cut into
    budget      bytes that the step may take, as 8GB: what is the largest batch, the longest sequence?
    Raises `InputError`.
    """
    limit = None if budget is None else bytes_of("budget", budget)
    given = train, train_layers, lora, lora_rank, lora_alpha
    lengths = batch_size, seq_len, target_len
    kind = format_of(dtype)
    run = prepare(
        model, "run", *lengths, None, "sgd", dropout, "fp32", sizes, (procedure,), adaptation_of(*given), plan
    )
    found = Step(run, procedure, kind, optimizer, accumulate).measured(limit)
    if limit is not None and not any(found.fits.values() if found.fits else ()):
        least = replace(found, budget=None)
        raise InputError(
            f"budget: {limit:,} bytes are too few for one sequence of one token: weights, gradients and optimizer "
            f"state alone take {least.peak - least.split['activations'] - least.split['workspace']:,}"
        )
    return found


class Step:
    """A step's table with what it takes that no line says: state, master weights, frozen weights in flash.

    in_flash   frozen weights lie in flash, not in RAM
    """

    def __init__(
        self,
        run: Run,
        procedure: str,
        kind: Format,
        optimizer: str = "sgd",
        accumulate: Any = 1,
        in_flash: bool = False,
    ) -> None:
        self.run, self.procedure, self.kind = run, procedure, kind
        self.model = trained_by(run.model, procedure)
        self.optimizer = state_of(optimizer)
        self.accumulate = _parts(accumulate, run.axes["B"])
        learning = set(self.model.learning)
        table = step(self.model, procedure, "sgd")
        table = replace(table, outputs=tuple(n for n in table.outputs if n not in {f"d{w}" for w in table.weights}))
        self.plan = run.plan
        if run.plan == "auto":
            self.plan = chosen(table, run.axes, "fp32")
        table = planned(table, self.plan)
        self.table = stored(_gathering(table) if self.accumulate > 1 else table)
        weights = self.model.table.weights
        shapes = {w: [_size(a, run.axes) for a in table.axes[w]] for w in weights}
        stacks = _stacks(self.model.table)
        self.state = sum(_state(self.optimizer.bytes, shapes[w], w in stacks, kind.state) for w in learning)
        self.master = kind.master * sum(_points(shapes[w]) for w in learning)
        frozen = [w for w in weights if w not in learning]
        self.flash = kind.weight * sum(_points(shapes[w]) for w in frozen) if in_flash else 0
        self.widths = {"weight": kind.weight, "gradient": kind.gradient, "kept": kind.value, "": kind.value}
        self.widths["index"] = INDEX

    def whole(self) -> Table:
        """The step with its optimizer under the plan, as an engine executes it: new weights beside the old ones."""
        table = step(self.model, self.procedure, self.optimizer.name)
        gradients = {f"d{weight}" for weight in table.weights}
        return planned(replace(table, outputs=tuple(n for n in table.outputs if n not in gradients)), self.plan)

    @property
    def beside(self) -> int:
        """Bytes that are there at every moment, and that no line's level counts (or counts too much)."""
        return self.state + self.master - self.flash

    def sizes(self, batch: int | None = None) -> dict[str, int]:
        """The sizes of what runs at once: a microbatch."""
        return {**self.run.axes, "B": (batch or self.run.axes["B"]) // self.accumulate}

    def live(self) -> Live:
        return live(self.table, self.sizes(), _NAMES[self.kind.value], self.widths)

    def measured(self, budget: int | None = None) -> Memory:
        """The memory of this step."""
        found, beside = self.live(), self.beside
        split = dict.fromkeys(SPLIT, 0)
        for held in found.witnesses:
            split[_part(held)] += held.bytes
        split["weights"] -= self.flash
        split["optimizer state"], split["master weights"] = self.state, self.master
        curve = tuple(replace(moment, bytes=moment.bytes + beside) for moment in found.curve)
        moment = next(one for one in curve if one.bytes == found.peak + beside)
        axes, two_sided = self.run.axes, self.model.two_sided
        return Memory(
            self.model.configuration.name,
            self.procedure,
            self.plan,
            self.optimizer.name,
            self.kind.name,
            axes["B"],
            axes["N"] if two_sided else axes["M"],
            axes["M"] if two_sided else None,
            self.accumulate,
            self.run.trained,
            found.peak + beside,
            moment,
            split,
            found.witnesses,
            curve,
            self.flash,
            budget,
            None if budget is None else {"batch_size": self.largest("B", budget), "seq_len": self.longest(budget)},
        )

    def largest(self, axis: str, budget: int) -> int:
        """The largest size of an axis at which every line fits: a polynomial of at most second degree, solved."""
        sizes = {name: size for name, size in self.sizes().items() if name != axis}
        own = {str(level): level for level in levels(self.table, sizes, _NAMES[self.kind.value], self.widths)}
        most = min(_solved(level, axis, budget - self.beside) for level in own.values())
        return most * (self.accumulate if axis == "B" else 1)

    def longest(self, budget: int) -> int | None:
        """The longest sequence that fits, at most as long as the model has positions; None of a model of two sides."""
        if self.model.two_sided:
            return None
        found = self.largest("M", budget)
        model, batch = self.model, self.run.axes["B"]
        try:
            other = run_sizes(model, batch, max(1, found), None)
        except InputError:  # longer than its positions
            return run_sizes(model, batch, None, None)["M"]
        same = {**other, "M": 0} == {**self.run.axes, "M": 0}
        return found if same else None


def _gathering(table: Table) -> Table:
    """A microbatch, whose gradients are added in place to those of the ones before."""
    if any(
        isinstance(line, Repeat) and any(one.tag.macro == "optimizer_step" for one, _ in walk((line,)))
        for line in table.lines
    ):
        raise InputError("accumulate waits for the gradients of all microbatches: leave the plan at-once out")
    found = accumulated(table).gather

    def in_place(line: Line) -> tuple[Line, ...]:
        ends = line.name.endswith(f"{GATHERED}.new")
        return (replace(line, tag=replace(line.tag, macro="optimizer_step")) if ends else line,)

    return replace(found, lines=each_line(found.lines, in_place))


_NAMES = {8: "fp64", 4: "fp32", 2: "fp16", 1: "int8"}


def _part(held: Held) -> str:
    if held.name.endswith(GATHERED):
        return "gradients"
    return _PART.get(held.role, "workspace")


def _parts(accumulate: Any, batch: int) -> int:
    text = str(accumulate)
    number = int(text) if text.isdigit() else 0
    if not number or batch % number:
        raise InputError(f"accumulate must be a divisor of the batch size {batch}, not {text!r}")
    return number


def _size(axis: str, sizes: Mapping[str, int]) -> int:
    return int(axis) if axis.isdigit() else sizes[base(axis)]


def _points(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _stacks(table: Table) -> frozenset[str]:
    """The weights that are stacks of every turn's own."""
    return frozenset(outer for line in table.lines if isinstance(line, Repeat) for _, outer in line.each)


def _state(of: Any, shape: list[int], stacked: bool, width: int) -> int:
    """An optimizer sees every turn's weight by itself, as a matrix: its first axis by all others."""
    times, own = (shape[0], shape[1:]) if stacked else (1, shape)
    matrix = [own[0], _points(own[1:])] if len(own) > 1 else own
    return int(times * of(matrix, width))


def _solved(level: Count, axis: str, budget: int) -> int:
    """The largest whole number at which a polynomial of at most second degree is within the budget, 0 where none is."""
    terms = {len(monomial): coefficient for monomial, coefficient in level.terms.items()}
    if set(terms) - {0, 1, 2}:
        raise InputError(f"bytes grow faster than with the square of {axis}: no size is solved for")
    free, slope, square = budget - terms.get(0, 0), terms.get(1, 0), terms.get(2, 0)
    if free < 0:
        return 0
    if square:
        # The root of square x^2 + slope x = free, rounded down: (sqrt(slope^2 + 4 square free) - slope) / (2 square).
        return int((isqrt(slope * slope + 4 * square * free) - slope) // (2 * square))
    return int(free // slope) if slope else 10**18
