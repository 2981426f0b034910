"""FLOPs of a sweep over the size that takes most values: a line for each procedure, price book and other size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from learncost.ir.errors import InputError
from learncost.viz.data.curves import CurveLine, Curves
from learncost.viz.figures.curves import draw, height, notes

if TYPE_CHECKING:
    from learncost.reports.sweep import Sweep

__all__ = ["draw", "height", "notes", "of"]

MOST = 12
"""Distinguishable line styles."""


def of(answer: Sweep) -> Curves:
    """The data of a panel. Raises `InputError` where nothing varies, or more than can be drawn."""
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
            more = ", ".join(f"{other} {size:,}" for other, size in zip(others, group, strict=True))
            places, values = (tuple(map(float, column[order])) for column in (answer.sizes[along], series.flops))
            lines.append(CurveLine(", ".join(filter(None, (name, more))) or "FLOPs", places, values))
    first, last = float(several[along][0]), float(several[along][-1])
    ends = lines[0].values
    times = f"{last / first:.3g} times the {along} takes {ends[-1] / ends[0]:.3g} times the FLOPs" if ends[0] else along
    return Curves(
        name=answer.model,
        about=f"FLOPs of a step over {along}",
        x=along,
        y="FLOPs",
        lines=tuple(lines),
        logarithmic=(last / first > 8, last / first > 8),
        finding=f"{answer.model}: {times}",
        notes=(f"{answer.model}: {answer.configurations:,} configurations", _inexact(answer)),
    )


def _follows(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether every value has a single one of the others."""
    return len(np.unique(np.stack([values, others], axis=1), axis=0)) == len(np.unique(values))


def _name(answer: Sweep, place: int) -> str:
    """The values that distinguish a series."""
    series = answer.series[place]
    fields = ("procedure", "price_book", "macro_operation")
    return " ".join(
        str(getattr(series, field)).replace("_", " ")
        for field in fields
        if len({getattr(other, field) for other in answer.series}) > 1
    )


def _inexact(answer: Sweep) -> str:
    return f"{answer.inexact:,} counts are from 2^53 on, rounded to 64-bit floats" if answer.inexact else ""
