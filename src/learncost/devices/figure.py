"""Figures: a value with its unit, source and interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log, prod

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Serializable, dataclass, field
from learncost.ir.displayed import Displayed

LABELS = {
    "counted": "counted exactly from the model's tables",
    "measured": "measured by its source",
    "published": "in a publication",
    "given": "typed, and believed",
    "assumed": "a default",
    "modelled": "computed from an assumed or uncertain value",
    "arithmetic": "computed from counted, measured, published or given values",
}


@dataclass(frozen=True)
class Figure(Displayed, Serializable):
    """A value with its unit, source and interval.

    Attributes
    ----------
    value
        The value, 0 or more.
    unit
        Its unit; empty for a plain number.
    label
        The kind: counted, measured, published, given, assumed, modelled or arithmetic.
    source
        The source or the formula.
    low
        The lower end of its interval; None for an exact value.
    high
        The upper end of its interval; None for an exact value.
    computed
        Whether the source is a formula of other figures.

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
    low: float | None = field(default=None, metadata=OPTIONAL)
    high: float | None = field(default=None, metadata=OPTIONAL)
    computed: bool = field(default=False, metadata=HIDDEN)  # the source is a formula of the figures above

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the ends of its interval; None for an exact value."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def uncertain(self) -> bool:
        """Return whether values computed from it are modelled."""
        return self.interval is not None or self.label in ("assumed", "modelled")


def computed(
    unit: str, source: str, times: Sequence[Figure], over: Sequence[Figure] = (), constant: float = 1.0
) -> Figure:
    """Return the product of figures divided by that of others. `source` is the formula.

    The figures are taken as independent: the ends of its interval are as far from the value as those of all of them
    together, the root of the sum of the squares of their factors' logarithms. A busier device is faster and draws more
    power, so that the interval is rather too wide.
    """

    def at(end: int) -> float:
        factors = [figure.interval[end] / figure.value for figure in times if figure.interval]
        factors += [figure.value / figure.interval[1 - end] for figure in over if figure.interval]
        if 0 in factors:
            return 0.0
        away = hypot(*(log(factor) for factor in factors))
        return value * exp(away if end else -away)

    inputs = (*times, *over)
    value = constant * prod(figure.value for figure in times) / prod(figure.value for figure in over)
    label = "modelled" if any(figure.uncertain for figure in inputs) else "arithmetic"
    if all(figure.interval is None for figure in inputs):
        return Figure(value, unit, label, source, computed=True)
    return Figure(value, unit, label, source, at(0), at(1), computed=True)
