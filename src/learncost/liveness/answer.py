"""The results of liveness analysis: the curve, its peak, the live arrays there, and all live intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from learncost.ir.displayed import Displayed


@dataclass(frozen=True)
class LiveArray:
    """An array in memory: its name, its axes and shape, its bytes, and the layer whose line defines it."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    bytes: Any
    layer: str = ""
    block: str | None = None
    role: str = ""  # weight, index, gradient, kept (a saved tensor), or "" for a temporary


@dataclass(frozen=True)
class Moment:
    """One line of the table, and the bytes that are live while it runs.

    `loops` are the loops around it, from the outermost: the number of each, the size that is its trip count, and that
    count. A line occurs once for all iterations, with the bytes of the iteration in which most is live.
    """

    line: str
    layer: str
    macro_operation: str
    bytes: Any
    block: str | None = None
    loops: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class LiveInterval:
    """The live interval of an array, or of several equal ones: the first and last moment of a curve, both included.

    A line of a loop occurs once, for the iteration in which most is live.
    shape   of one of them, and `number`, how many there are: of the saved tensors of iterations, those that are live
    bytes   of all of them
    macro_operation, layer, block  of the line that defines it; "given" and "" for an input
    role    as in `LiveArray`
    part    its category in the account of a step; empty where only a table was read
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    number: int
    bytes: int
    first: int
    last: int
    macro_operation: str = ""
    layer: str = ""
    block: str | None = None
    role: str = ""
    part: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the interval as a dictionary for JSON."""
        names = ("name", "axes", "shape", "number", "bytes", "first", "last", "macro_operation", "layer", "block")
        return {name: getattr(self, name) for name in names} | {"part": self.part}


@dataclass(frozen=True)
class Live(Displayed):
    """The live arrays of a table over time. Bytes are exact whole numbers, or arrays where sizes were arrays.

    Attributes
    ----------
    kept
        Saved tensors: values of the forward pass that later passes read, including its inputs and without its weights,
        with `name`, `axes`, `shape`, `bytes`.
    peak
        The peak memory in bytes.
    peak_line
        The line that runs at the peak.
    live_at_peak
        The live arrays at the peak.
    curve
        The bytes at every line, in the order of the lines. A loop's lines occur once.
    dtype
        The data type of the arrays.

    Examples
    --------
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> found = lc.live(linear, {"B": 1, "M": 2, "d": 3, "f": 4})
    >>> found.peak, found.peak_line
    (208, 'dW')
    >>> [(held.name, held.bytes) for held in found.kept], found.kept_bytes
    ([('X', 24)], 24)
    """

    kept: tuple[LiveArray, ...]
    peak: Any
    peak_line: str
    live_at_peak: tuple[LiveArray, ...]
    curve: tuple[Moment, ...]
    dtype: str
    _stays: Callable[[], tuple[LiveInterval, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def stays(self) -> tuple[LiveInterval, ...]:
        """Every array with the first and the last line of the curve at which it is live, and its bytes there.

        Their sum at a line is the curve. Empty where sizes were arrays.
        """
        return self._stays()

    @property
    def kept_bytes(self) -> Any:
        """Bytes of all saved tensors."""
        return sum(array.bytes for array in self.kept)
