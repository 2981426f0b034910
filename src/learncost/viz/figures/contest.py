"""The losses of a contest against exact FLOPs: a line for each procedure, the mean of its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from learncost.ir.errors import InputError
from learncost.viz.data.curves import CurveLine, Curves
from learncost.viz.figures.curves import draw, height, notes

if TYPE_CHECKING:
    from learncost.training.contest.contest import Contest, EntrantResult

__all__ = ["draw", "height", "notes", "of"]

POINTS = 100
"""Points of a line: of more steps the means of equally many neighbours."""


def of(answer: Contest) -> Curves:
    """The data of a panel. Raises `InputError` where nobody has finished a training."""
    several = [(result, line) for result in answer.results if (line := _line(result))]
    if not several:
        raise InputError("no training run of the contest is complete yet")
    best = min((line for _, line in several), key=lambda line: line.values[-1])
    seeds = f"{len(answer.seeds)} seed{'s' if len(answer.seeds) > 1 else ''}"
    diverged = [result.entrant.name for result in answer.results if any(each.diverged for each in result.outcomes)]
    return Curves(
        name=answer.setting.problem.name,
        about=f"training loss · {answer.budget} · {seeds}",
        x="FLOPs",
        y="loss",
        lines=tuple(line for _, line in several),
        logarithmic=(False, False),
        finding=f"{best.name} ends lowest, at a loss of {best.values[-1]:.3g} after {best.places[-1]:.3g} FLOPs",
        notes=(
            f"{answer.setting.problem.name}: losses on the training's own batches, the mean of {seeds}",
            "FLOPs are exact: those of a step times the steps; price book run",
            *([f"trainings that diverged are left out: {', '.join(diverged)}"] if diverged else []),
        ),
    )


def _line(result: EntrantResult) -> CurveLine | None:
    losses = [each.losses for each in result.outcomes if each.after is not None and each.diverged is None]
    steps = min((len(each) for each in losses), default=0)
    if not steps:
        return None
    means = [sum(each[step] for each in losses) / len(losses) for step in range(steps)]
    size = -(-steps // POINTS)
    places = [min(first + size, steps) for first in range(0, steps, size)]
    values = [_mean(means[place - size if place % size == 0 else place - place % size : place]) for place in places]
    flops = result.share.cost.flops
    if not all(map(isfinite, values)):
        return None
    return CurveLine(result.entrant.name, tuple(float(flops * place) for place in places), tuple(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
