"""Figures for papers: a figure is a row of `rows`, drawn as lines, bars, points, memory charts, or parts of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learncost.viz.figures.rows import FigureRow

FIGURES: Mapping[str, str] = {
    "macro-operations": "The share of each pass in a step, for models and procedures.",
    "scaling": "Growth of a step with length, batch, depth and width.",
    "crossover": "Procedures relative to backpropagation by length, with crossover lengths.",
    "memory": "Memory at every line of a step by kind, with live arrays at the peak.",
    "roofline": "Every line on a device: FLOPs per byte, FLOP/s, and its bound (--on).",
    "procedures": "Learning procedures compared: passes, totals, ratios, memory.",
    "conventions": "The difference of two price books, item by item.",
}
"""The figures of the command."""


def figure_row(name: str) -> FigureRow:
    """Return the row of a figure, of the command or of an answer alone."""
    from learncost.viz.figures.rows import ROWS  # all that figures are drawn of

    return ROWS[name]
