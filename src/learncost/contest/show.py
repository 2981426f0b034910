"""How a contest is shown: what each entrant learned, and what it took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from statistics import fmean, median, pstdev
from typing import Any

from learncost.contest.contest import Contest, Result
from learncost.contest.trial import Outcome
from learncost.ledger.sheet import WIDTH, Row, Sheet, size_of

SCHEMA = 1

_UNKNOWN = "-"


def sheets(found: Contest, width: int = WIDTH) -> tuple[Sheet, Sheet]:
    """What was learned, and what it took."""
    return _learned(found), _taken(found)


def _learned(found: Contest) -> Sheet:
    """Means over the seeds that did not diverge, and who diverged. Chance, and the initial weights, stand on top."""
    loss, accuracy = found.setting.problem.chance
    rows = [Row(("chance", f"{loss:.3f}", "", f"{100 * accuracy:.1f} %"), "dim")]
    if begun := found.results[0].outcomes:  # the initial weights are the same for all
        before = [fmean(one.before[place] for one in begun) for place in (0, 1)]
        rows.append(Row(("before", f"{before[0]:.3f}", "", f"{100 * before[1]:.1f} %"), "dim"))
    for result in found.results:
        ends = [one.after for one in result.outcomes if one.after is not None]
        losses, rights = ([end[0] for end in ends], [100 * end[1] for end in ends])
        cells = (*_spread(losses, 3), *_spread(rights, 1, " %"), _rate(result), _diverged(result))
        rows.append(Row((result.entrant.name, *cells)))
    problem, setting = found.setting.problem, found.setting
    columns = ("", "loss", "± seeds", "accuracy", "± seeds", "learning rate", "diverged")
    title = f"{problem.name}: {found.budget} each, {setting.optimizer}, seeds {_listed(found.seeds)}"
    notes = [
        f"{problem.facts}. {found.results[0].parameters:,} parameters in {setting.dtype}. Loss and accuracy on what "
        "validates, means over the seeds that did not diverge, and their standard deviation. Chance: a guess by how "
        "often each class is in the training.",
        *_of_rates(found),
    ]
    if found.stopped:
        notes.insert(0, "Stopped before the end: this is what was there.")
    return Sheet(title, columns, tuple(rows), tuple(notes), frozenset({0, 6}))


def _of_rates(found: Contest) -> Iterator[str]:
    for result in found.results:
        if result.search is None:
            continue
        if result.search.lost:
            yield f"{result.entrant.name}: every rate that was tried diverged; it has the one that did so last."
        elif result.search.edge:
            yield f"* {result.entrant.name}: the first or the last that was tried; one beyond may be better."


def _taken(found: Contest) -> Sheet:
    """One training that goes to its end."""
    rows = []
    for result in found.results:
        seconds = [one.seconds for one in result.outcomes if one.after is not None]
        cells = (
            f"{result.share.steps:,}",
            f"{result.share.batch_size:,}",
            f"{result.maccs / 1e9:,.3f}",
            f"{result.flops / 1e9:,.3f}",
            f"{fmean(seconds):,.2f}" if seconds else _UNKNOWN,
            size_of(result.share.cost.peak),
            _UNKNOWN if result.measured_peak is None else size_of(result.measured_peak),
        )
        rows.append(Row((result.entrant.name, *cells)))
    columns = ("", "steps", "batch", "10^9 MACCs", "10^9 FLOPs", "seconds", "predicted", "measured")
    notes = (
        f"MACCs and FLOPs as executed, by the price book {found.setting.book}; seconds of the steps alone. Predicted: "
        "the arrays' bytes at the worst moment of a step, as NumPy executes it; measured: those that tracemalloc sees, "
        "with Python's own objects. The search for the learning rate is in no "
        "budget and in no row.",
    )
    return Sheet("One training", columns, tuple(rows), notes)


def _spread(values: Sequence[float], digits: int, unit: str = "") -> tuple[str, str]:
    """Mean and standard deviation."""
    if not values:
        return _UNKNOWN, _UNKNOWN
    return f"{fmean(values):,.{digits}f}{unit}", f"{pstdev(values):.{digits}f}" if len(values) > 1 else _UNKNOWN


def _diverged(result: Result) -> str:
    lost = [one.diverged for one in result.outcomes if one.diverged is not None]
    if not lost:
        return "no" if result.outcomes else _UNKNOWN
    return f"{len(lost)} of {len(result.outcomes)}, step {_listed(sorted(set(lost)))}"


def _rate(result: Result) -> str:
    if result.search is None:
        return _UNKNOWN
    return f"{result.search.best:.3g}{'*' if result.search.edge else ''}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def as_dict(found: Contest) -> dict[str, Any]:
    """Everything as data: every step's loss of every training, every trial."""
    problem, setting = found.setting.problem, found.setting
    loss, accuracy = problem.chance
    return {
        "schema": SCHEMA,
        "problem": problem.name,
        "data": problem.facts,
        "budget": {"kind": found.budget.kind, "amount": found.budget.amount},
        "optimizer": setting.optimizer,
        "dtype": setting.dtype,
        "price_book": setting.book,
        "seeds": list(found.seeds),
        "stopped": found.stopped,
        "chance": {"loss": loss, "accuracy": accuracy},
        "diverged_above": problem.diverged,
        "results": [_result(result) for result in found.results],
    }


def _result(result: Result) -> dict[str, Any]:
    steps = [one.seconds / len(one.losses) for one in result.outcomes]
    return {
        "procedure": result.entrant.procedure,
        "mode": result.entrant.mode or None,
        "parameters": result.parameters,
        "steps": result.share.steps,
        "batch_size": result.share.batch_size,
        "maccs": result.maccs,
        "flops": result.flops,
        "maccs_per_step": result.share.cost.maccs,
        "flops_per_step": result.share.cost.flops,
        "seconds_per_step": median(steps) if steps else None,
        "predicted_peak_bytes": result.share.cost.peak,
        "measured_peak_bytes": result.measured_peak,
        "learning_rate": result.search.best if result.search else None,
        "learning_rate_at_edge": result.search.edge if result.search else None,
        "trials": [_outcome(one, False) for one in (result.search.tried if result.search else ())],
        "trainings": [_outcome(one, True) for one in result.outcomes],
    }


def _outcome(one: Outcome, whole: bool) -> dict[str, Any]:
    def pair(values: tuple[float, float] | None) -> dict[str, float] | None:
        return values and {"loss": values[0], "accuracy": values[1]}

    found: dict[str, Any] = {
        "seed": one.seed,
        "learning_rate": one.learning_rate,
        "seconds": one.seconds,
        "before": pair(one.before),
        "after": pair(one.after),
        "diverged_at_step": one.diverged,
    }
    if whole:  # what is no number has no form in JSON
        found["losses"] = [loss if isfinite(loss) else None for loss in one.losses]
    return found
