"""The memory of a training step: its peak, who makes it, the curve, the split, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from learncost.equation.errors import InputError
from learncost.ledger.cost import adaptation_of, prepare
from learncost.ledger.memory_step import Step
from learncost.ledger.memory_types import bytes_of, format_of
from learncost.models.configuration import Configuration
from learncost.plans.planner import chosen, smallest
from learncost.procedures.accumulation import GATHERED
from learncost.readings.live import Held, Moment

SPLIT = ("weights", "master weights", "gradients", "optimizer state", "activations", "workspace")
"""What memory holds. Activations are values of the forward pass that later passes read, and the batch; workspace is
what is made and gone within a pass."""

_PART = {"weight": "weights", "gradient": "gradients", "kept": "activations", "index": "activations"}


@dataclass(frozen=True)
class Memory:
    """What a step takes: all exact bytes, predicted as the step's table says or as an engine executes it.

    peak        at the worst moment, `moment`: the line, the layer and the macro-operation that run then
    split       the peak by what it holds (SPLIT; of an engine also its arena)
    witnesses   the arrays alive then, the largest first; of an engine by what makes them: how many, of how many bytes
    curve       the bytes at every line, in their order; of an engine empty
    fits        with a budget, the largest batch and sequence that fit: by name, 0 where nothing fits, None where no
                polynomial says it
    engine      whose step it is; empty: nobody's, the table's own
    convention  what is counted of an engine, and what is not
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
    engine: str = ""
    convention: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        result: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        moment = {"line": self.moment.line, "layer": self.moment.layer, "macro_operation": self.moment.macro_operation}
        if self.engine:
            result |= {"engine": self.engine, "convention": self.convention}
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
    engine: str = "",
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
    plan        rewritings of the step; auto, and by default the engine torch: the planner's own, for the budget where
                there is one
    accumulate  microbatches that the batch is cut into
    budget      bytes that the step may take, as 8GB: what is the largest batch, the longest sequence?
    engine      of `ENGINES`: numpy, torch, torch-operators, autograd, autograd-foreach, autograd-for-loop; by default
                nobody's: as the table says
    Raises `InputError`.
    """
    limit = None if budget is None else bytes_of("budget", budget)
    planner = smallest if engine == "torch" else chosen
    plan = "auto" if plan is None and engine == "torch" else plan
    given = train, train_layers, lora, lora_rank, lora_alpha
    lengths = batch_size, seq_len, target_len
    kind = format_of(dtype)
    run = prepare(
        model, "run", *lengths, None, "sgd", dropout, "fp32", sizes, (procedure,), adaptation_of(*given), plan
    )
    step = Step(run, procedure, kind, optimizer, accumulate, budget=limit, planner=planner)
    if engine:
        from learncost.ledger.memory_engine import executed_by  # only where it is asked for: start-up counts

        return executed_by(engine, step, limit)
    found = measured(step, limit)
    if limit is not None and not any(found.fits.values() if found.fits else ()):
        least = replace(found, budget=None)
        raise InputError(
            f"budget: {limit:,} bytes are too few for one sequence of one token: weights, gradients and optimizer "
            f"state alone take {least.peak - least.split['activations'] - least.split['workspace']:,}"
        )
    return found


def measured(step: Step, budget: int | None = None) -> Memory:
    """The memory of a step as its table says."""
    found, beside = step.live(), step.beside
    split = dict.fromkeys(SPLIT, 0)
    for held in found.witnesses:
        split[_part(held)] += held.bytes
    split["weights"] -= step.flash
    split["optimizer state"], split["master weights"] = step.state, step.master
    curve = tuple(replace(moment, bytes=moment.bytes + beside) for moment in found.curve)
    moment = next(one for one in curve if one.bytes == found.peak + beside)
    fits = None if budget is None else {"batch_size": step.largest("B", budget), "seq_len": step.longest(budget)}
    return Memory(
        **described(step),
        peak=found.peak + beside,
        moment=moment,
        split=split,
        witnesses=found.witnesses,
        curve=curve,
        flash=step.flash,
        budget=budget,
        fits=fits,
    )


def described(step: Step) -> dict[str, Any]:
    """What was asked for, as `Memory` has it."""
    axes, two_sided = step.run.axes, step.model.two_sided
    return {
        "model": step.model.configuration.name,
        "procedure": step.procedure,
        "plan": step.plan,
        "optimizer": step.optimizer.name,
        "dtype": step.kind.name,
        "batch_size": axes["B"],
        "seq_len": axes["N"] if two_sided else axes["M"],
        "target_len": axes["M"] if two_sided else None,
        "accumulate": step.accumulate,
        "trained": step.run.trained,
    }


def _part(held: Held) -> str:
    if held.name.endswith(GATHERED):
        return "gradients"
    return _PART.get(held.role, "workspace")
