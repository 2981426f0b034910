"""Figures for papers: a kind is a row here and a module in this package, which asks, draws, and notes its assumptions.

A module has `ask(models, arguments)`, which gives the data of every panel; `of(answer)`, which makes it of an answer;
`height(data, columns)` in inches; `draw(data, panel)`; and `notes(data)`, conventions and sources in sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

FIGURES: Mapping[str, str] = {
    "macro-operations": "The share of each pass in a step, for models and procedures.",
    "scaling": "Growth of a step with length, batch, depth and width.",
    "crossover": "Procedures relative to backpropagation by length, with crossover lengths.",
    "memory": "Memory at every line of a step by kind, with live arrays at the peak.",
    "roofline": "Every line on a device: FLOPs per byte, FLOP/s, and its bound (--on).",
    "procedures": "Learning procedures compared: passes, totals, ratios, memory.",
    "conventions": "The difference of two price books, item by item.",
}
"""The kinds of figures."""


def module_of(name: str) -> Any:
    """The module that draws a kind of figure."""
    return import_module(f"learncost.viz.figures.{name.replace('-', '_')}")
