"""How a measurement is shown: a table a case, with what was left out, and the machine under the last one."""

from __future__ import annotations

from against_torch_and_jax.machine import described
from against_torch_and_jax.result import Bench, Case, SideFound
from against_torch_and_jax.sides import ENGINE, FLOOR
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, significant

COLUMNS = ("", "ms a step", "tokens/s", "of best peer", "of floor", "peak MiB", "beyond MiB", "of leanest peer")

_MIB = 2**20


def sheets(results: Bench, width: int = WIDTH) -> tuple[Sheet, ...]:
    """A table a case; what goes for all of them stands below."""
    return *map(_sheet, results.cases), Sheet("", (), (), _notes(results))


def _notes(results: Bench) -> tuple[str, ...]:
    """What goes for all cases."""
    ended = ("Interrupted: not all that was asked for is here.",) if results.interrupted else ()
    return (*_METHOD, *ended, f"{described(results.machine)}.")


_METHOD = (
    "Medians over rounds in which the sides take turns; ratios are medians of those within a round, to its best peer.",
    "beyond: of the peak, what is neither the runtime after its imports nor weights and the optimizer's state. floor: "
    "the step's matrix products alone, causal ones in half, and a copy of the bytes that AdamW moves.",
)


def _sheet(case: Case) -> Sheet:
    subject = case.subject
    title = (
        f"{subject.model}, {subject.dtype}: {subject.batch_size:,} × {subject.seq_len:,} tokens a step, "
        f"{subject.parameters:,} parameters; {_rounds(case)}"
    )
    rows = tuple(_row(case, side) for side in case.sides.values())
    plan = case.sides[ENGINE].facts.get("plan")
    notes = [f"engine: plan {plan}."] if plan else []
    notes += [f"{side.name} is left out: {side.left_out}." for side in case.sides.values() if side.left_out]
    for side in case.ways.values():
        if (ratio := case.over_engine(side.name)) is not None:
            how = f" learns by {side.procedure}" if side.plan is None else ""
            by = ", by bp" if side.plan is None else ""
            notes.append(f"{side.name}{how}: {ratio:.2f} of engine's time a step{by}.")
    notes += [f"{side.name}: {side.difference}." for side in case.learners if side.difference and not side.left_out]
    return Sheet(title, COLUMNS, rows, tuple(notes))


def _rounds(case: Case) -> str:
    count = max(len(side.rounds) for side in case.sides.values())
    steps = max((len(seconds) for side in case.learners for seconds in side.rounds), default=0)
    each = f" of {steps} steps" if steps > 1 else ""
    return f"{count} round{'' if count == 1 else 's'}{each}"


def _row(case: Case, side: SideFound) -> SheetRow:
    name, style = side.name, "bold" if side.name == ENGINE else ""
    step = "-" if side.step is None else significant(1000 * side.step)
    if name == FLOOR:
        return SheetRow((name, step, *[""] * (len(COLUMNS) - 2)), "dim")
    memory, beyond = (None, None) if side.memory is None else (side.memory.peak, case.beyond(name))
    cells = (
        *(step, "-" if side.step is None else f"{case.subject.tokens / side.step:,.0f}"),
        *(_ratio(case.over_peers(name)), _ratio(case.over_floor(name))),
        *(_mib(memory), _mib(beyond), _ratio(case.beyond_over_peers(name))),
    )
    return SheetRow((name, *cells), style)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / _MIB:,.0f}"
