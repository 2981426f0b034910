"""Lines over an axis: what contests, sweeps and complexities are drawn from."""

from __future__ import annotations

from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial
from learncost.reports.complexity import Complexity
from learncost.reports.crossing import LETTERS
from learncost.viz.figures.style import short

if TYPE_CHECKING:
    from learncost.reports.sweep import Sweep
    from learncost.training.contest.contest import Contest, EntrantResult

LENGTHS = tuple(2**power for power in range(4, 18))
"""The sequence lengths at which the kinds of layers are counted."""

POINTS = 100
"""Points of a line of losses: of more steps the means of equally many neighbours."""

_SIZES = {"seq_len": "tokens", "batch_size": "sequences", "num_hidden_layers": "blocks", "hidden_size": "width"}

MOST = 12
"""Distinguishable line styles."""


@dataclass(frozen=True)
class CurveLine:
    """A line by its points; of several that are called the same the last has the name at its end."""

    name: str
    places: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    """Lines of one panel.

    name, about  what they are of
    x, y  what the axes are
    lines  the lines
    logarithmic  whether each of the axes is
    finding  what the picture shows, in one sentence
    notes  what it rests on, in sentences
    """

    name: str
    about: str
    x: str
    y: str
    lines: tuple[CurveLine, ...]
    logarithmic: tuple[bool, bool]
    finding: str
    notes: tuple[str, ...]


def of_complexity(answer: Complexity) -> Curves:
    """Return the MACCs of kinds of layer by the length. Raises `InputError` where no kind has all its sizes."""
    sizes = {letter: size for letter, size in answer.sizes.items() if letter != "n"}
    lines = []
    for kind in answer.kinds:
        counts = [kind.maccs.at({**sizes, "n": length}) for length in LENGTHS]
        if not kind.part and not any(isinstance(count, Polynomial) for count in counts):
            lines.append(CurveLine(kind.name, tuple(map(float, LENGTHS)), tuple(map(float, counts))))
    if not lines:
        raise InputError("this figure requires sizes: give hidden_size, and kernel_size and window for more kinds")
    names = {letter: name for name, letter in LETTERS.items()}
    text = ", ".join(f"{names.get(letter, letter)} {size:,}" for letter, size in sizes.items())
    dearest = max(lines, key=lambda line: line.values[-1])
    return Curves(
        name="One layer",
        about=f"MACCs over the length · {text}",
        x="tokens in a sequence",
        y="MACCs",
        lines=tuple(lines),
        logarithmic=(True, True),
        finding=f"At {LENGTHS[-1]:,} tokens {dearest.name} takes the most, {short(dearest.values[-1])} MACCs",
        notes=(f"One sequence, {text}", "Counts derived from the layers' tables"),
    )


def of_contest(answer: Contest) -> Curves:
    """Return the losses of a contest against exact FLOPs, the mean of its seeds for each procedure.

    Raises `InputError` where nobody has finished a training.
    """
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
        finding=f"{best.name} ends lowest, at a loss of {best.values[-1]:.3g} after {short(best.places[-1])} FLOPs",
        notes=(
            f"{answer.setting.problem.name}: losses on the training's own batches, the mean of {seeds}",
            "FLOPs are exact: those of a step times the steps; price book run",
            *([f"Trainings that diverged are left out: {', '.join(diverged)}"] if diverged else []),
        ),
    )


def _line(result: EntrantResult) -> CurveLine | None:
    losses = [each.losses for each in result.outcomes if each.after is not None and each.diverged is None]
    steps = min((len(each) for each in losses), default=0)
    if not steps:
        return None
    means = [fmean(each[step] for each in losses) for step in range(steps)]
    size = -(-steps // POINTS)
    places = [min(first + size, steps) for first in range(0, steps, size)]
    values = [fmean(means[place - size if place % size == 0 else place - place % size : place]) for place in places]
    flops = result.share.cost.flops
    if not all(map(isfinite, values)):
        return None
    return CurveLine(result.entrant.name, tuple(float(flops * place) for place in places), tuple(values))


def of_sweep(answer: Sweep) -> Curves:
    """Return the FLOPs of a sweep over the size that takes most values, a line for each of the others.

    Raises `InputError` where nothing varies, or more than can be drawn.
    """
    several = {name: np.unique(values) for name, values in answer.sizes.items() if len(np.unique(values)) > 1}
    if not several:
        raise InputError("this figure requires a size with several values")
    along = max(several, key=lambda name: len(several[name]))
    # A size that follows the drawn one, as heads follow a width, has no separate line.
    others = [name for name in several if name != along and not _follows(answer.sizes[along], answer.sizes[name])]
    groups, which = (
        np.unique(np.stack([answer.sizes[name] for name in others], axis=1), axis=0, return_inverse=True)
        if others
        else (np.zeros((1, 0), np.int64), np.zeros(answer.configurations, np.int64))
    )
    names = [_name(answer, place) for place in range(len(answer.series))]
    if len(groups) * len(names) > MOST:
        raise InputError(
            f"the sweep has {len(groups) * len(names):,} lines over {along}, more than {MOST} distinguishable ones: "
            "use fewer values of other sizes, fewer procedures or price books"
        )
    lines = []
    for series, name in zip(answer.series, names, strict=True):
        for place, group in enumerate(groups):
            chosen = np.flatnonzero(which.ravel() == place)
            order = chosen[np.argsort(answer.sizes[along][chosen], kind="stable")]
            more = ", ".join(f"{size:,} {_size_name(other, size)}" for other, size in zip(others, group, strict=True))
            places, values = (tuple(map(float, column[order])) for column in (answer.sizes[along], series.flops))
            lines.append(CurveLine(", ".join(filter(None, (name, more))) or "FLOPs", places, values))
    first, last = float(several[along][0]), float(several[along][-1])
    ends = lines[0].values
    size_name = _size_name(along)
    inexact = f"{answer.inexact:,} counts are from 2^53 on, rounded to 64-bit floats" if answer.inexact else ""
    times = f"{ends[-1] / ends[0]:.3g} times the FLOPs" if ends[0] else "no FLOPs"
    return Curves(
        name=answer.model,
        about=f"FLOPs of a step over {size_name}",
        x=size_name,
        y="FLOPs",
        lines=tuple(lines),
        logarithmic=(last / first > 8, last / first > 8),
        finding=f"{answer.model} takes {times} at {last / first:.3g} times the {size_name}",
        notes=(f"{answer.model}: {answer.configurations:,} configurations", inexact),
    )


def _size_name(size: str, value: float = 0) -> str:
    """Return the name of a size as people say it, of a value of one in the singular."""
    name = _SIZES.get(size, size.replace("_", " "))
    return name.removesuffix("s") if size in _SIZES and value == 1 else name


def _follows(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether every value has a single one of the others."""
    return len(np.unique(np.stack([values, others], axis=1), axis=0)) == len(np.unique(values))


def _name(answer: Sweep, place: int) -> str:
    """Return the values that distinguish a series."""
    series = answer.series[place]
    fields = ("procedure", "price_book", "macro_operation")
    return " ".join(
        str(getattr(series, field)).replace("_", " ")
        for field in fields
        if len({getattr(other, field) for other in answer.series}) > 1
    )
