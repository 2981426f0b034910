"""The largest batch that fits a device's memory by procedure, plan and sequence length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import Key, dataclass, field, made_of, replace
from learncost.ir.errors import InputError
from learncost.models.sizes import check_size
from learncost.program.autograd.module import UserModule
from learncost.reports.memory.engines import GRAPH
from learncost.reports.memory.fit import RECORDED, SHARDED, each_of
from learncost.reports.memory.fit_question import FitQuestion, refusal
from learncost.reports.memory.inference import NAME
from learncost.reports.memory.runs import largest, longest
from learncost.reports.memory.types import bytes_text
from learncost.reports.sheet import WIDTH, Sheet, TableColumn, TabularAnswer, microbatches_text, table, words_of

if TYPE_CHECKING:
    from learncost.reports.mesh_cost import OverMesh


@dataclass(frozen=True)
class FitAtLengths:
    """A procedure under a plan: the largest batch at each length, 0 where none fits; the longest single sequence.

    batches  None at a length that cannot be, as where the model has no positions for it
    longest  None where it is not looked for
    """

    procedure: str
    plan: str
    engine: str
    batches: tuple[int | None, ...] = field(metadata=Key("batch_sizes").field)
    longest: int | None


@dataclass(frozen=True, repr=False)
class Lengths(TabularAnswer):
    """The largest batches that fit a device's memory at several sequence lengths.

    Attributes
    ----------
    model
        The model, by name.
    dtype
        The precision.
    optimizer
        The optimizer.
    budget
        Available bytes of memory.
    seq_lens
        Tokens in a sequence.
    rows
        For each procedure and plan the largest `batches`, one at each length, and the `longest` sequence that fits.
    refused
        The reasons why procedures or plans are left out.
    over
        Of many devices: what is cut over them; `budget` is then what each of them has, a batch that of all together.
    accumulate
        Microbatches that a batch is cut into.
    module
        The module whose autograd step is simulated; else "".
    """

    model: str
    dtype: str
    optimizer: str
    budget: int
    trained: str
    seq_lens: tuple[int, ...]
    rows: tuple[FitAtLengths, ...]
    refused: tuple[str, ...] = ()
    over: OverMesh | None = field(default=None, metadata=SHARDED)
    accumulate: int = field(default=1, metadata=Key(when=lambda found: found.accumulate > 1, after="budget").field)
    module: str = field(default="", metadata=Key(optional=True, after="budget").field)

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return the table: a row for each procedure and plan, a column for each length."""

        def shown(largest: int | None) -> str:
            return "-" if largest is None else f"{largest:,}" if largest else "no"

        def of_length(place: int, row: FitAtLengths) -> str:
            return shown(row.batches[place])

        columns = (
            *words_of("procedure plan"),
            *(TableColumn(f"{length:,}", partial(of_length, place)) for place, length in enumerate(self.seq_lens)),
            TableColumn("longest", lambda row: shown(row.longest)),
        )
        title = (
            f"{self.model} in {bytes_text(self.budget)}{each_of(self.over)}: {self.dtype}, {self.optimizer}; the "
            f"largest batch of sequences{microbatches_text(self.accumulate)}"
        )
        title += " by their tokens, and the longest single sequence"
        learns = () if self.trained == "all" else (f"Trainable: {self.trained}.",)
        over = (f"{self.over.sharding} The batch is global.",) if self.over else ()
        sentences = [f"Engine: {', '.join(dict.fromkeys(row.engine for row in self.rows))}, as in learncost memory."]
        sentences += [RECORDED] if self.module == UserModule.name else []
        if any(row.procedure == "recompute" or "recompute" in row.plan for row in self.rows):
            sentences.append(
                "recompute is gradient checkpointing: activations of a block are recomputed in the backward pass."
            )
        return (table(title, columns, self.rows, (*learns, *over, " ".join(sentences), *self.refused), self.answer),)

    @property
    def answer(self) -> str:
        """The sentence on the longest sequence that fits, with its procedure and plan."""
        best = max(self.rows, key=lambda row: row.longest or 0, default=None)
        if best is not None and best.longest:
            under = f" under {best.plan}" if best.plan else ""
            return f"The longest sequence that fits has {best.longest:,} tokens: {best.procedure}{under}."
        return "" if any(batch for row in self.rows for batch in row.batches) else "Nothing fits at these lengths."


def lengths_of(lengths: object) -> tuple[int, ...] | None:
    """Return several lengths from a comma-separated text or numbers; None for one length. Raises `InputError`."""
    several = lengths.split(",") if isinstance(lengths, str) else lengths if isinstance(lengths, (list, tuple)) else ()
    if len(several) < 2:
        return None
    return tuple(
        dict.fromkeys(
            check_size("seq_len", length.strip() if isinstance(length, str) else length) for length in several
        )
    )


def at_lengths(question: FitQuestion, procedures: Sequence[str], lengths: tuple[int, ...]) -> Lengths:
    """Return what fits at each of several lengths under every tried plan. Raises `InputError` as `fit`."""
    rows: list[FitAtLengths] = []
    refused: dict[str, list[str]] = {}
    why_not: dict[int, str] = {}
    trained = model = ""
    over: OverMesh | None = None
    for name in procedures:
        rows_by_lines: list[FitAtLengths] = []
        try:
            unplanned = question.run(name, min(lengths))
            model = unplanned.model.configuration.name
            trained = unplanned.trained if name != NAME else trained
            for plan in question.plans(name):
                run = replace(unplanned, plan_asked=plan)
                over = over or (question.step(run, name).over if question.request.is_sharded else None)
                rows_by_lines.append(
                    _served(question, run, lengths, why_not)
                    if name == NAME
                    else _learned(question, run, name, lengths, why_not)
                )
        except InputError as error:
            refused.setdefault(str(error), []).append(name)
        numbers: dict[object, FitAtLengths] = {}
        for row in rows_by_lines:
            numbers.setdefault((row.batches, row.longest), row)
        rows += numbers.values()
    if not rows:
        raise InputError(next(iter(refused)))
    sentences = tuple(f"{refusal((False, text), names)}." for text, names in refused.items())
    sentences += tuple(f"{length:,} tokens: {text}." for length, text in why_not.items())
    return made_of(
        Lengths,
        question,
        model=model,
        trained=trained or "all",
        seq_lens=lengths,
        rows=tuple(rows),
        refused=sentences,
        over=over,
        module=question.module(unplanned, rows),
    )


def _learned(
    question: FitQuestion, run: Any, procedure: str, lengths: tuple[int, ...], why_not: dict[int, str]
) -> FitAtLengths:
    chosen = question.runner(question.step(run, procedure))
    step, chosen_engine = chosen.step, chosen.chosen_engine
    batches: list[int | None] = []
    for length in lengths:
        try:
            at_length = step.at(step.run.axes["B"], length)
        except InputError as refusal_of_length:  # more than the model has positions for, or not what devices divide
            why_not.setdefault(length, str(refusal_of_length))
            batches.append(None)
            continue
        batches.append(question.stored(at_length.flash) * largest(at_length, chosen_engine, question.budget))
    most = (
        longest(step, chosen_engine, question.budget)
        if chosen_engine.name == GRAPH and question.stored(step.flash)
        else None
    )
    plan = chosen.plan if chosen_engine.module else step.run.plan  # which a planner chooses anew for every length
    return FitAtLengths(procedure, plan, chosen_engine.name, tuple(batches), most)


def _served(question: FitQuestion, run: Any, lengths: tuple[int, ...], why_not: dict[int, str]) -> FitAtLengths:
    served = question.serving(run)
    batches: list[int | None] = []
    for length in lengths:
        try:
            batches.append(question.stored(served.flash) * replace(served, seq_len=length).largest(question.budget))
        except InputError as refusal_of_length:
            why_not.setdefault(length, str(refusal_of_length))
            batches.append(None)
    return FitAtLengths(NAME, served.plan, GRAPH, tuple(batches), None)
