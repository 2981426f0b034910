"""Figures for papers: a kind is a row here and a module beside it, which asks, draws, and says what it rests on.

A module has `ask(models, arguments)`, which gives the data of every panel; `of(answer)`, which makes it of an answer;
`height(data, columns)` in inches; `draw(data, panel)`; and `notes(data)`, conventions and sources in sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

FIGURES: Mapping[str, str] = {
    "macro-operations": "What share of a step each pass has, models and procedures below each other.",
    "scaling": "How a step grows with the length, the batch, the depth and the width.",
    "crossover": "Procedures over backpropagation by the length, and from which length on one is the cheaper.",
    "memory": "The bytes at every line of a step, what they are, and the arrays at the peak.",
    "roofline": "Every line on a device: FLOPs a byte, FLOPs a second, and what limits it (--on).",
    "procedures": "Learning procedures side by side: passes, totals, ratios, memory.",
    "conventions": "Why two price books give different numbers, item by item.",
}
"""What there is to draw."""


def module_of(name: str) -> Any:
    """The module that draws a kind of figure."""
    return import_module(f"learncost.viz.figures.{name.replace('-', '_')}")
