"""Display of a contest: each entrant's results and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from statistics import fmean, median, pstdev
from typing import Any

from learncost.ir.dataclass import attributes
from learncost.reports.run import left_out_text
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, TableColumn, size_of, table
from learncost.training.contest.contest import Contest, EntrantResult
from learncost.training.contest.trial import TrialOutcome

SCHEMA = 1

_UNKNOWN = "-"


def sheets(contest: Contest, width: int = WIDTH) -> tuple[Sheet, Sheet]:
    """Return the sheets of results and of costs."""
    return _learned(contest), _taken(contest)


def _learned(contest: Contest) -> Sheet:
    """Return means over the seeds that did not diverge, after the rows of chance and the initial weights."""
    loss, accuracy = contest.setting.problem.chance
    rows = [SheetRow(("chance", f"{loss:.3f}", "", f"{100 * accuracy:.1f} %"), "dim")]
    if begun := contest.results[0].outcomes:  # the initial weights are the same for all
        before = [fmean(outcome.before[place] for outcome in begun) for place in (0, 1)]
        rows.append(SheetRow(("before", f"{before[0]:.3f}", "", f"{100 * before[1]:.1f} %"), "dim"))
    for result in contest.results:
        ends = [outcome.after for outcome in result.outcomes if outcome.after is not None]
        losses, rights = ([end[0] for end in ends], [100 * end[1] for end in ends])
        cells = (*_spread(losses, 3), *_spread(rights, 1, " %"), _rate(result), _diverged(result))
        rows.append(SheetRow((result.entrant.name, *cells)))
    problem, setting = contest.setting.problem, contest.setting
    columns = ("", "loss", "± seeds", "accuracy", "± seeds", "learning rate", "diverged")
    optimizers = " and ".join(dict.fromkeys(r.entrant.optimizer or setting.optimizer for r in contest.results))
    title = f"{problem.name}: {contest.budget} each, {optimizers}, seeds {_listed(contest.seeds)}"
    notes = [
        f"{problem.facts}. {contest.results[0].parameters:,} parameters in {setting.dtype}. Loss and accuracy on the "
        "validation set, mean and standard deviation over the seeds that did not diverge. Chance: a guess by class "
        "frequency in the training set.",
        *_of_rates(contest),
    ]
    notes += [f"{text}." for text in (left_out_text(contest.left_out),) if text]
    if contest.stopped:
        notes.insert(0, "Stopped before the end: these are the results so far.")
    return Sheet(title, columns, tuple(rows), tuple(notes), frozenset({0, 6}))


def _of_rates(contest: Contest) -> Iterator[str]:
    for result in contest.results:
        if result.search is None:
            continue
        if result.search.lost:
            yield f"{result.entrant.name}: every learning rate diverged; shown is the one that diverged last."
        elif result.search.edge:
            yield f"* {result.entrant.name}: at the edge of the tried rates; one beyond may be better."


def _taken(contest: Contest) -> Sheet:
    """Return the cost of one complete training."""
    columns = (
        TableColumn("", lambda result: result.entrant.name, words=True),
        TableColumn("steps", lambda result: f"{result.share.steps:,}"),
        TableColumn("batch", lambda result: f"{result.share.batch_size:,}"),
        TableColumn("10^9 MACCs", lambda result: f"{result.maccs / 1e9:,.3f}"),
        TableColumn("10^9 FLOPs", lambda result: f"{result.flops / 1e9:,.3f}"),
        TableColumn("seconds", _seconds),
        TableColumn("predicted", lambda result: size_of(result.share.cost.peak)),
        TableColumn("measured", lambda result: size_of(result.measured_peak) if result.measured_peak else _UNKNOWN),
    )
    notes = (
        f"Executed MACCs and FLOPs under the price book {contest.setting.book}; seconds of the steps only. Predicted: "
        "peak bytes of the arrays of a step in NumPy; measured: by tracemalloc, with Python's own objects. The "
        "search for the learning rate is not included in budgets or rows.",
    )
    return table("One training run", columns, contest.results, notes)


def _seconds(result: EntrantResult) -> str:
    """Return the mean seconds of the trainings that did not diverge."""
    seconds = [outcome.seconds for outcome in result.outcomes if outcome.after is not None]
    return f"{fmean(seconds):,.2f}" if seconds else _UNKNOWN


def _spread(values: Sequence[float], digits: int, unit: str = "") -> tuple[str, str]:
    """Return the mean and standard deviation."""
    if not values:
        return _UNKNOWN, _UNKNOWN
    return f"{fmean(values):,.{digits}f}{unit}", f"{pstdev(values):.{digits}f}" if len(values) > 1 else _UNKNOWN


def _diverged(result: EntrantResult) -> str:
    lost = [outcome.diverged for outcome in result.outcomes if outcome.diverged is not None]
    if not lost:
        return "no" if result.outcomes else _UNKNOWN
    return f"{len(lost)} of {len(result.outcomes)}, step {_listed(sorted(set(lost)))}"


def _rate(result: EntrantResult) -> str:
    if result.search is None:
        return _UNKNOWN
    return f"{result.search.best:.3g}{'*' if result.search.edge else ''}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def as_dict(contest: Contest) -> dict[str, Any]:
    """Return all as data: the losses of every training's steps, and every trial."""
    problem, setting = contest.setting.problem, contest.setting
    loss, accuracy = problem.chance
    return {
        "schema": SCHEMA,
        **attributes(problem="name", data="facts")(problem),
        "budget": attributes("kind amount")(contest.budget),
        **attributes("optimizer dtype", price_book="book")(setting),
        "seeds": list(contest.seeds),
        "stopped": contest.stopped,
        "chance": {"loss": loss, "accuracy": accuracy},
        "diverged_above": problem.diverged,
        "left_out": dict(contest.left_out),
        "results": [_result(result) for result in contest.results],
    }


def _result(result: EntrantResult) -> dict[str, Any]:
    steps = [outcome.seconds / len(outcome.losses) for outcome in result.outcomes]
    return {
        "procedure": result.entrant.procedure,
        "mode": result.entrant.mode or None,
        "optimizer": result.entrant.optimizer or None,
        "parameters": result.parameters,
        **attributes("steps batch_size")(result.share),
        **attributes("maccs flops")(result),
        **attributes(maccs_per_step="maccs", flops_per_step="flops", predicted_peak_bytes="peak")(result.share.cost),
        "seconds_per_step": median(steps) if steps else None,
        "measured_peak_bytes": result.measured_peak,
        "learning_rate": result.search.best if result.search else None,
        "learning_rate_at_edge": result.search.edge if result.search else None,
        "trials": [_outcome(outcome, False) for outcome in (result.search.tried if result.search else ())],
        "trainings": [_outcome(outcome, True) for outcome in result.outcomes],
    }


def _outcome(outcome: TrialOutcome, with_losses: bool) -> dict[str, Any]:
    def pair(values: tuple[float, float] | None) -> dict[str, float] | None:
        return values and {"loss": values[0], "accuracy": values[1]}

    result: dict[str, Any] = {
        **attributes("seed learning_rate seconds")(outcome),
        "before": pair(outcome.before),
        "after": pair(outcome.after),
        "diverged_at_step": outcome.diverged,
    }
    if with_losses:  # what is no number has no form in JSON
        result["losses"] = [loss if isfinite(loss) else None for loss in outcome.losses]
    return result
