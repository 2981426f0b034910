"""The engine of a step, its memory use, and what fits a budget, for all commands that ask it."""

from __future__ import annotations

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one
from learncost.models.model import run_sizes
from learncost.models.tables import has_batch
from learncost.passes.plan import CHOSEN, by_eager, plan_of
from learncost.reports.memory.engine import Engine
from learncost.reports.memory.engines import DEFAULT_ENGINE, GRAPH, memory_engines
from learncost.reports.memory.largest import largest_batch, longest_within
from learncost.reports.memory.step import MemoryStep

PLANS = 16
"""Plans that a planner is asked for at most, each for longer sequences than the one before."""


@dataclass(frozen=True)
class ChosenEngine:
    """The engine of a step, and the step as it runs it; `why` the default one does not, if none was named."""

    chosen_engine: Engine
    step: MemoryStep
    why: str = ""

    @property
    def plan(self) -> str:
        """The plan that runs: of a module with its own fused attention."""
        if self.chosen_engine.module:
            return by_eager(self.step.unplanned, self.step.run.plan_asked)[0]
        return self.step.plan


def engine_of(step: MemoryStep, engine: str = "", is_tried: bool = False) -> ChosenEngine:
    """Return the engine of a step, with the step under its default plan: the one that is named, or the default.

    The default is eager, PyTorch's autograd, and graph where that has no step of the model, procedure, type or device;
    plans, optimizers, accumulation and clipping do not change it. Raises `InputError` for an unknown engine, and if the
    engine does not support what is asked, with one that does.

    is_tried  whether the plan is one of several that a command tries: graph runs it if the default engine cannot
    """
    plan_of(step.plan)  # raises for names that no plan has
    engines, why = memory_engines(), ""
    chosen = named_one("engine", engine or DEFAULT_ENGINE, engines)
    if not engine and not step.module_asked and (why := _outside(step, chosen)):
        chosen = engines[GRAPH]
    if not (refused := _refused(step, chosen)):
        return ChosenEngine(chosen, step.under(chosen), why)
    if is_tried and not engine and not _refused(step, engines[GRAPH]):
        return ChosenEngine(engines[GRAPH], step.under(engines[GRAPH]), refused)
    others = (name for name, each in engines.items() if not each.outside(step) and not _refused(step, each))
    able = "" if "--engine" in refused else next(others, "")
    named = f"--engine {engine}" if engine else f"engine {chosen.name}"
    raise InputError(f"{named} {refused}{f': give --engine {able}' if able else ''}")


def _outside(step: MemoryStep, chosen_engine: Engine) -> str:
    """Return why the default engine has no step of the model, procedure, type or device."""
    if why := chosen_engine.outside(step):
        return why
    try:
        if not _refused(step, chosen_engine):
            chosen_engine.peak(step, step.sizes(step.accumulate))
    except InputError as error:
        return str(error)
    return ""


def _refused(step: MemoryStep, chosen_engine: Engine) -> str:
    """Return why an engine does not support the settings of a step."""
    if not chosen_engine.module and step.eager.implementation:
        return "does not support --optimizer-implementation"
    if step.kind.autocast and not chosen_engine.module:
        return f"does not support --precision {step.kind.name}, which is PyTorch's autocast"
    chooses = step.eager.every > 1 or step.eager.selects
    if chooses and not step.recomputes:
        return "requires --procedure recompute with --checkpoint-every"
    options = {"--module": step.module_asked, "--loss": step.eager.loss, "--lora-dropout": step.eager.drops_paths}
    options |= {"--checkpoint-every": chooses, "--offload": step.eager.offload}
    options |= {"--task": step.eager.task}
    options |= {
        "--no-sync": step.eager.no_sync,
        "--communication-buffers": step.eager.communication_buffers and chosen_engine.name != GRAPH,
    }
    for flag in [flag for flag, given in options.items() if given and not chosen_engine.module]:
        return f"does not support {flag}"
    if step.eager.clip and not chosen_engine.module:
        if chosen_engine.name != GRAPH:
            return "does not support --clip"
        if step.plan == CHOSEN or "update" in step.plan:
            return f"does not support --clip with --plan {step.plan}, which may step before all gradients are there"
    return chosen_engine.outside(step) or chosen_engine.refuses(step)


def largest(step: MemoryStep, chosen_engine: Engine, budget: int) -> int:
    """Return the largest batch that fits, or 0.

    A planner that chooses for every batch is asked again for a batch of one more than what fits under its last plan.
    """
    if step.run.plan != CHOSEN or chosen_engine.is_of_every_plan(step):
        return _largest(step, chosen_engine, budget)
    unit = _unit(step)
    planned = step.at(unit)
    batch, more = 0, _largest(planned, chosen_engine, budget)
    if more:  # of a batch that does not fit, the planner chooses the plan that takes least
        planned = step.at(4 * more)
        more = max(more, _largest(planned, chosen_engine, budget))
    while more > batch:
        batch, before, planned = more, planned, step.at(more + unit)
        if planned.plan == before.plan or chosen_engine.peak(planned, planned.sizes()) > budget:
            break  # a search takes ten peaks
        more = _largest(planned, chosen_engine, budget)
    return batch


def _unit(step: MemoryStep) -> int:
    """Return the smallest batch: a sequence, or a pair, for each microbatch of each device that has its own."""
    return step.shares.get("B", 1) * step.accumulate * (2 if step.eager.task else 1)


def _largest(step: MemoryStep, chosen_engine: Engine, budget: int) -> int:
    if not has_batch(step.model.table):
        return int(chosen_engine.peak(step, step.sizes()) <= budget)
    if chosen_engine.largest and not step.over:
        return chosen_engine.largest(step, budget)
    unit = _unit(step)  # every device, and every microbatch, has as many
    return unit * largest_batch(lambda several: chosen_engine.peak(step, step.sizes(several * unit)), budget)


def longest(step: MemoryStep, chosen_engine: Engine, budget: int) -> int | None:
    """Return the longest sequence that fits with the batch, or 0; at most the model's positions.

    None where there is one length, or two; and of engines whose program is written anew for every length. A planner
    that chooses for every length is asked again for one more than what fits under its last plan.
    """
    length = _longest(step, chosen_engine, budget)
    if step.run.plan != CHOSEN or length is None:
        return length
    for _ in range(PLANS):
        try:
            more = _longest(step.at(step.run.axes["B"], length + 1), chosen_engine, budget)
        except InputError:
            break
        if more is None or more <= length:
            break
        length = more
    return length


def _longest(step: MemoryStep, chosen_engine: Engine, budget: int) -> int | None:
    if step.model.two_sided or not chosen_engine.lengths:
        return None
    batch, unit = step.run.axes["B"], step.shares.get("M", 1)

    def peak(several: int) -> int:
        sizes = {**step.sizes(), **run_sizes(step.model, batch, several * unit, None), "B": batch // step.accumulate}
        return chosen_engine.peak(step, sizes)

    try:
        if step.least > budget or peak(1) > budget:
            return 0
    except InputError:  # an image has all its patches
        return None
    return unit * longest_within(peak, budget)
