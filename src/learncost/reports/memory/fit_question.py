"""The request of `fit`: procedures under the tried plans, their bytes, and the largest batches that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import OPTIONAL, Key, Serializable, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.precision import precision_of, training_precision
from learncost.models.module import default_module
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.plan import check_plan
from learncost.procedures.procedure import FORWARD, INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.program.arena import Region, largest_assigned
from learncost.program.autograd.module import module_named
from learncost.reports.memory.engine import TYPES
from learncost.reports.memory.engines import GRAPH, memory_engines
from learncost.reports.memory.inference import NAME, InferenceSetting, has_sequences, serving_of
from learncost.reports.memory.largest import largest_batch
from learncost.reports.memory.memory import of_part
from learncost.reports.memory.runs import ChosenEngine, engine_of, largest, longest
from learncost.reports.memory.step import EagerOptions, MemoryStep
from learncost.reports.microbatches import whole_batch
from learncost.reports.request import Request
from learncost.reports.run import PreparedRun, prepare
from learncost.reports.sheet import size_of

if TYPE_CHECKING:
    from learncost.reports.inference import PricedPass
    from learncost.reports.memory.lengths import FitAtLengths
    from learncost.reports.mesh_cost import OverMesh


PLANS = (
    None,
    "fused-update",
    "flash,fused,fused-update",
    "flash,fused,fused-update,recompute=all",
    "flash,fused,epilogue-update,recompute=all",
)
"""The plans that are tried for every procedure, from the default one of the engine to the smallest memory."""

STAGED = (None, "flash,fused", "flash,fused,recompute=all")
"""The same of several microbatches, whose gradients are summed."""

ONE_PASS = tuple(name for name in INFERENCE if name != NAME)
"""The passes of inference that are asked about alone, with lengths of their own."""

SERVED = (None, "flash,fused")
"""The plans that are tried for inference."""


@dataclass(frozen=True)
class FitResult(Serializable):
    """A procedure under a plan: the bytes of one sample in RAM and in flash, and the largest batch that fits.

    engine  who runs it, as in `lc.memory`
    why     why the default engine eager does not
    """

    procedure: str
    plan: str
    engine: str
    ram: int
    flash: int
    largest: int = field(metadata=Key("batch_size").field)
    most: str  # the part that takes most
    why: str = field(default="", metadata=OPTIONAL)

    @property
    @Key(after="flash")
    def fits(self) -> bool:
        return self.largest > 0


@dataclass(frozen=True)
class FitPlan:
    """A procedure under a plan, with a key that equivalent plans have in common.

    longest  the longest sequence that fits, of one sample; None where none is found
    """

    fitting: FitResult
    lines: object
    longest: Callable[[], int | None]
    over: OverMesh | None = None


@dataclass(frozen=True)
class FitQuestion:
    """The request of `fit`, which can be repeated with a change.

    regions  of the RAM, without the stack, where a device was named that has them
    """

    request: Request
    budget: int
    flash_size: int | None
    optimizer: str
    dtype: str
    engine: str
    eager: EagerOptions
    regions: tuple[Region, ...] = ()
    accumulate: int = 1

    @property
    def least(self) -> int:
        """Return the smallest batch: a sample, or one for each device that has its own."""
        return whole_batch(self.request)

    def module(self, run: PreparedRun, rows: Iterable[FitResult | FitAtLengths]) -> str:
        """Return the module whose autograd step is simulated; "" if no row has one."""
        by_module = any(memory_engines()[row.engine].module for row in rows)
        return module_named(self.eager.module or default_module(run.model)).name if by_module else ""

    def at_length(self, length: int) -> FitQuestion:
        """Return the same question for another length."""
        return replace(self, request=replace(self.request, seq_len=length))

    def run(self, procedure: str, seq_len: int | None = None) -> PreparedRun:
        """Return a sample, checked and built."""
        if procedure in ONE_PASS:
            return self.one_pass(procedure, self.request.plan)[0].run
        asked = self.request if seq_len is None else replace(self.request, seq_len=seq_len)
        asked = replace(asked, batch_size=self.least * self.accumulate, optimizer=None).in_precision(self.dtype)
        return prepare(replace(asked, dropout=0.0), ()) if procedure == NAME else prepare(asked, (procedure,))

    def one_pass(self, procedure: str, plan: str | None) -> tuple[PricedPass, InferenceSetting]:
        """Return a prompt or a step of decode alone, as in `memory`. Raises `InputError`."""
        asked = replace(self.request, procedure=procedure, batch_size=self.least, plan=plan, optimizer=None)
        served, serving = serving_of(asked.in_precision(self.dtype))
        return served, replace(serving, in_flash=self.flash_size is not None)

    def candidates(self, procedure: str) -> tuple[list[FitPlan], list[str]]:
        """Return a procedure under the distinct tried plans, and the refused plans with reasons."""
        different: list[FitPlan] = []
        refused: dict[str, None] = {}
        if procedure == NAME and precision_of(self.dtype).autocast:
            return [], [f"{self.dtype} is a precision of training steps only: give fp32, bf16 or fp16"]
        try:
            unplanned = self.run(procedure)
        except InputError as error:
            if self.request.plan or (precision_of(self.dtype).quantized and not self.request.adapts):
                return [], [str(error)]  # the plan changes nothing; or nothing is frozen, but in inference
            raise
        for plan in self.plans(procedure):
            if different and self.never(unplanned, procedure):
                break
            run = replace(unplanned, plan_asked=plan)
            try:
                make = self._serving if procedure in INFERENCE else self._learning
                candidate = make(run, procedure, different)
            except InputError as error:
                refused[str(error)] = None
                continue
            different += [candidate] if candidate else []
        return different, list(refused)

    def never(self, unplanned: PreparedRun, procedure: str) -> int:
        """Return the bytes of weights and states if these alone do not fit a board, under any plan; 0 for others.

        The arena of a board is exact and takes seconds to pack.
        """
        least = self.step(unplanned, procedure).least if self.regions and procedure not in INFERENCE else 0
        return least if least > self.budget else 0

    def plans(self, procedure: str) -> tuple[str | None, ...]:
        if self.request.plan is not None or procedure in ONE_PASS:
            return (self.request.plan,)
        if procedure == NAME:
            return SERVED
        if self.accumulate > 1:
            return STAGED
        plans = (memory_engines()[self.engine].plans if self.engine else None) or PLANS
        return (
            plans
            if self.optimizer in OPTIMIZERS
            else tuple(plan for plan in plans if "epilogue-update" not in (plan or ""))
        )

    def fits(self, procedure: str) -> bool:
        """Return whether a sample fits under any tried plan; False if the procedure is refused."""
        try:
            unplanned = self.run(procedure)
        except InputError:
            return False
        return any(
            self._fits(replace(unplanned, plan_asked=plan), procedure) for plan in reversed(self.plans(procedure))
        )

    def _fits(self, run: PreparedRun, procedure: str) -> bool:
        try:
            if procedure in INFERENCE:
                candidate = self._serving(run, procedure)
                return candidate is not None and candidate.fitting.fits
            step = self.step(run, procedure)
            if step.least > self.budget or not self.stored(step.flash):
                return False
            chosen = self.runner(step)
            return chosen.chosen_engine.peak(chosen.step, chosen.step.sizes()) <= self.budget
        except InputError:
            return False

    def runner(self, step: MemoryStep) -> ChosenEngine:
        """Return the engine of a row: graph under the plans that are tried and that the default engine cannot run."""
        return engine_of(step, self.engine, is_tried=self.request.plan is None)

    def step(self, run: PreparedRun, procedure: str) -> MemoryStep:
        chosen_engine = memory_engines()[self.engine or GRAPH]
        planner, accumulate = of_part(chosen_engine.planner, self.least), self.accumulate
        in_flash = self.flash_size is not None
        kind, eager = precision_of(self.dtype), self.eager
        step = MemoryStep(run, procedure, kind, self.optimizer, accumulate, in_flash, self.budget, planner, eager=eager)
        step.regions = self.regions
        return step.under(chosen_engine).over_mesh(self.request, chosen_engine) if self.request.mesh else step

    def _learning(self, run: PreparedRun, procedure: str, different: Sequence[FitPlan]) -> FitPlan | None:
        """Return a procedure under a plan; None where another one has the same lines: bytes may take long."""
        chosen = self.runner(self.step(run, procedure))
        step, chosen_engine = chosen.step, chosen.chosen_engine
        lines = step.table.lines, chosen_engine.name
        if any(lines == other.lines for other in different):
            return None
        needs = chosen_engine.takes(step, step.sizes())
        flash = step.flash if needs.flash is None else needs.flash
        most = max(needs.split, key=lambda part: needs.split[part])
        fits = self.stored(flash) and needs.bytes <= self.budget  # a peak may take long: it is asked for once
        batch = largest(step, chosen_engine, self.budget) if fits else 0
        fitting = FitResult(procedure, chosen.plan, chosen_engine.name, needs.bytes, flash, batch, most, chosen.why)
        return FitPlan(fitting, lines, lambda: longest(step, chosen_engine, self.budget), step.over)

    def _serving(self, run: PreparedRun, procedure: str, different: Sequence[FitPlan] = ()) -> FitPlan | None:
        """Return inference under a plan; None where another one has the same lines."""
        alone = procedure in ONE_PASS
        served = self.one_pass(procedure, run.plan_asked)[1] if alone else self.serving(run)
        if self.request.plan and not alone:
            name = f"{NAME} of {run.model.configuration.name}"
            check_plan(served.unplanned, self.request.plan, name, self.request.is_sharded)
        lines = tuple(inference_pass.table.lines for inference_pass in served.passes)
        if any(lines == other.lines for other in different):
            return None
        flash = served.flash
        if self.engine in ("", GRAPH):
            split = served.split()
            most, peak, batch = max(split, key=lambda part: split[part]), served.peak(), served.largest(self.budget)
        else:
            if alone:
                raise InputError(f"--procedure {procedure} requires --engine {GRAPH}")
            if (peak_of_pass := memory_engines()[self.engine].passes) is None:
                others = (name for name, chosen_engine in memory_engines().items() if chosen_engine.passes)
                raise InputError(f"{NAME} requires --engine {' or '.join((GRAPH, *others))}")
            stored = memory_engines()[self.engine].stored
            if self.dtype not in TYPES or (self.flash_size is not None and stored is None):
                raise InputError(f"--engine {self.engine} supports only {' or '.join(TYPES)}, with all weights in RAM")

            def peak_of(batch: int) -> int:
                return max(
                    peak_of_pass(inference_pass.whole, {**inference_pass.sizes, "B": batch}, self.dtype)
                    for inference_pass in served.passes
                )

            most, peak, batch = "", peak_of(1), largest_batch(peak_of, self.budget)
            if (arrays := memory_engines()[self.engine].arrays) is not None and len(self.regions) > 1:
                laid, dtype, passes = arrays, self.dtype, served.passes
                batch = largest_assigned(
                    lambda number: [laid(each.whole, {**each.sizes, "B": number}, dtype) for each in passes],
                    self.regions,
                    batch,
                )
            if stored is not None:
                sizes = [(inference_pass.whole, inference_pass.sizes) for inference_pass in served.passes]
                flash = max(stored(table, sizes_of_pass, self.dtype) for table, sizes_of_pass in sizes)
        batch = self.stored(flash) * batch
        fitting = FitResult(procedure, served.plan, self.engine or GRAPH, peak, flash, batch, most)
        over = served.passes[0].over
        return FitPlan(
            fitting,
            lines,
            lambda: served.longest(self.budget) if self.engine in ("", GRAPH) and not alone else None,
            over,
        )

    def serving(self, run: PreparedRun) -> InferenceSetting:
        """Return the inference of the request."""
        axes, two_sided = run.axes, run.model.two_sided
        seq_len, target_len = (axes["N"], axes["M"]) if two_sided else (axes["M"], None)
        kind, in_flash, sharded = precision_of(self.dtype), self.flash_size is not None, self.request.is_sharded
        given = replace(self.request, procedure=FORWARD).in_precision(kind.name) if sharded else None
        seq_len = seq_len if has_sequences(run.model) else 0
        page = self.request.tokens_in_page
        return InferenceSetting(
            run.model,
            kind,
            seq_len,
            target_len,
            in_flash,
            run.plan_asked,
            batch=self.least,
            sharded=given,
            page_size=page,
        )

    def changed(self, change: Mapping[str, str], procedure: str) -> FitQuestion | None:
        """Return the question with a change; None if the request fixes it, or it does not apply to the procedure."""
        ((name, value),) = change.items()
        if name == "dtype":
            value = value if procedure in INFERENCE else training_precision(value)
            narrow = self.dtype in (value, "int8") or precision_of(self.dtype).quantized
            return None if narrow else replace(self, dtype=value)
        if name == "optimizer":
            return None if self.optimizer == value or procedure in INFERENCE else replace(self, optimizer=value)
        if procedure in INFERENCE or not find_procedure(procedure).differentiates or self.request.adapts:
            return None
        changed: dict[str, Any] = {name: value}
        return replace(self, request=replace(self.request, **changed))

    def stored(self, frozen: int) -> bool:
        """Return whether frozen weights fit the flash."""
        return self.flash_size is None or frozen <= self.flash_size


ADVICE = {
    "weights": "use a smaller model, or freeze weights and give --flash-size",
    "master weights": "use int8, or freeze weights",
    "gradients": "use --plan fused-update, or freeze weights",
    "optimizer state": "use 8-bit Adam, SGD or LoRA, or freeze weights",
    "activations": "use shorter sequences or recomputation",
    "workspace": "logits are as wide as the vocabulary; use shorter sequences or --engine graph --plan chunked-loss",
}
"""Advice by the largest part of the peak."""

SERVED_ADVICE = ADVICE | {
    "KV cache": "use shorter sequences, or a model with grouped queries",
    "activations": "use shorter sequences",
}
"""The same of inference."""

MOST_CHANGES = 3
"""So many are said."""

CHANGES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("--optimizer sgd", {"optimizer": "sgd"}),
    ("--dtype bf16", {"dtype": "bf16"}),
    ("--dtype int8", {"dtype": "int8"}),
    ("--lora all-linear", {"lora": "all-linear"}),
    ("--train-layers 'last 1'", {"train_layers": "last 1"}),
)
"""The changes that are tried in this order if nothing fits; those that fit are suggested."""


def advice_for(question: FitQuestion, procedure: str, candidates: Sequence[FitPlan]) -> str:
    """Return how far a procedure is from fitting, the largest part of its peak, and tried changes that fit."""
    least = min((candidate.fitting for candidate in candidates), key=lambda fitting: fitting.ram)
    under = f" under {least.plan}" if least.plan else ""
    sentences = []
    if question.flash_size is not None and least.flash > question.flash_size:
        subject = "All" if procedure in INFERENCE else "Frozen"
        sentences.append(
            f"{subject} weights need {least.flash:,} bytes, {least.flash / question.flash_size:,.2f}x the available "
            "flash: use a smaller model or a narrower --dtype."
        )
    if least.ram > question.budget:
        alone = question.never(question.run(procedure), procedure)
        size = alone or least.ram
        who = "Under any plan weights and optimizer states alone need" if alone else f"The closest option{under} needs"
        much = f"{size / question.budget:,.2f}x the available memory"
        sentences.append(f"{who} {size:,} bytes ({size_of(size)}), {much}.")
        advice = SERVED_ADVICE if procedure in INFERENCE else ADVICE
        if least.most in advice:
            sentences.append(f"The largest part is {least.most}: {advice[least.most]}.")
    elif len(question.regions) > 1 and question.stored(least.flash):
        regions = " and ".join(f"{region.bytes:,} in {region.name}" for region in question.regions)
        sentences.append(
            f"The closest option{under} needs {least.ram:,} bytes, but its arrays do not fit in {regions}, since each "
            "array must be in one region: use a smaller batch or model, or another --plan."
        )
    lengths = sorted({candidate.longest() or 0 for candidate in candidates}, reverse=True)
    length = next(
        (
            fitting_length
            for fitting_length in lengths
            if fitting_length and question.at_length(fitting_length).fits(procedure)
        ),
        0,
    )
    changes = [f"--seq-len {length}"] if length else []
    for text, change in CHANGES:
        if (other := question.changed(change, procedure)) and other.fits(procedure):
            changes.append(f"--dtype {other.dtype}" if "dtype" in change else text)
        if len(changes) == MOST_CHANGES:
            break
    if changes:
        also = f", or with {' or with '.join(changes[1:])}" if changes[1:] else ""
        sentences.append(f"It fits with {changes[0]}{also} ({'each ' if also else ''}verified).")
    return " ".join(sentences)


def refusal(refused: tuple[bool, str], procedures: Sequence[str]) -> str:
    """Return the reason why procedures are not supported."""
    of_each, text = refused
    if of_each:
        return f"{', '.join(procedures)}{': each' if len(procedures) > 1 else ''} {text}"
    return f"{', '.join(procedures)}: {text}"
