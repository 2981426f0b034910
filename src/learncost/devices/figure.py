"""Figures: a value with its unit, where it comes from, and how far it may be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from learncost.ir.displayed import Displayed

LABELS = {
    "counted": "read off the model's tables, exactly",
    "measured": "measured by whoever gives it",
    "published": "in a publication",
    "given": "typed, and believed",
    "assumed": "a default",
    "modelled": "computed from something that is assumed or has an interval",
    "arithmetic": "computed from what is counted, measured, published or given",
}


@dataclass(frozen=True)
class Figure(Displayed):
    """A value with its unit, where it comes from, and how far it may be off.

    Attributes
    ----------
    value
        The value, 0 or more.
    unit
        Its unit; empty for a plain number.
    label
        How it is known: counted, measured, published, given, assumed, modelled or arithmetic.
    source
        Who says so, or the formula.
    low
        The lowest that it may be; None where it is taken as it stands.
    high
        The highest that it may be; None where it is taken as it stands.
    computed
        Whether the source is a formula, of other figures.

    Examples
    --------
    >>> power = lc.Figure(300, "W", "assumed", "a guess", low=250, high=350)
    >>> power.interval, power.uncertain
    ((250, 350), True)
    """

    value: float
    unit: str
    label: str
    source: str
    low: float | None = None
    high: float | None = None
    computed: bool = False  # the source is a formula, of figures that stand above

    @property
    def interval(self) -> tuple[float, float] | None:
        """The lowest and the highest that it may be; None where it is taken as it stands."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def uncertain(self) -> bool:
        """Whether what is computed from it is modelled."""
        return self.interval is not None or self.label in ("assumed", "modelled")

    def to_dict(self) -> dict[str, Any]:
        """The figure as the JSON has it."""
        result: dict[str, Any] = {"value": self.value, "unit": self.unit, "label": self.label, "source": self.source}
        return result if self.interval is None else result | {"low": self.low, "high": self.high}


def computed(
    unit: str, source: str, times: Sequence[Figure], over: Sequence[Figure] = (), constant: float = 1.0
) -> Figure:
    """The product of figures over that of others. `source` says the formula.

    Its interval is the outermost one: every figure at the end of its own interval that makes the result smallest, or
    largest. That is wider than it need be where the figures hang together (a busier device is faster and draws more).
    """

    def at(end: int) -> float:
        up = prod(figure.interval[end] if figure.interval else figure.value for figure in times)
        down = prod(figure.interval[1 - end] if figure.interval else figure.value for figure in over)
        return constant * up / down

    inputs = (*times, *over)
    value = constant * prod(figure.value for figure in times) / prod(figure.value for figure in over)
    label = "modelled" if any(figure.uncertain for figure in inputs) else "arithmetic"
    if all(figure.interval is None for figure in inputs):
        return Figure(value, unit, label, source, computed=True)
    return Figure(value, unit, label, source, at(0), at(1), computed=True)
