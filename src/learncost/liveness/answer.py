"""What is alive: the curve, its peak, the arrays that make it, and how long they stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from learncost.ir.displayed import Displayed


@dataclass(frozen=True)
class LiveArray:
    """An array in memory: its name, its axes and shape, its bytes, and the layer whose line made it."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    bytes: Any
    layer: str = ""
    block: str | None = None
    role: str = ""  # weight, index, gradient, kept (of the forward pass, read later), or what is made and gone


@dataclass(frozen=True)
class Moment:
    """One line of the table, and the bytes that are alive while it runs.

    `loops` are the repeats that it stands in, from the outermost: the number of each, the size that says how often it
    turns, and how often that is. A line stands once for all turns, with the bytes of the one in which most is alive.
    """

    line: str
    layer: str
    macro_operation: str
    bytes: Any
    block: str | None = None
    loops: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class LiveInterval:
    """An array, or several alike, over the lines at which it is alive: numbers of moments of a curve, both included.

    Where a line stands for several turns, it is what is alive in the turn in which most is.

    shape   of one of them, and `number`, how many there are: of what every turn keeps, those that are there
    bytes   of all of them
    macro_operation, layer, block  of the line that made it; "given" and "" of what came from outside
    role    as of `LiveArray`
    part    what it is for, of those that the account of a step has; empty where only a table was read
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
        """As the JSON has it."""
        names = ("name", "axes", "shape", "number", "bytes", "first", "last", "macro_operation", "layer", "block")
        return {name: getattr(self, name) for name in names} | {"part": self.part}


@dataclass(frozen=True)
class Live(Displayed):
    """Which arrays are alive when. Bytes are exact whole numbers, or arrays where sizes were arrays.

    Attributes
    ----------
    kept
        Values of the forward pass that later passes read, its inputs included and its weights not: `name`, `axes`,
        `shape`, `bytes`.
    peak
        Bytes at the worst moment.
    peak_line
        The line that runs at that moment.
    live_at_peak
        The arrays that are alive then.
    curve
        The bytes at every line, in the order of the lines. A repeated block stands once.
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
        """Every array with the first and the last line of the curve at which it is alive, and its bytes there.

        At every line they sum to the curve. None where sizes were arrays.
        """
        return self._stays()

    @property
    def kept_bytes(self) -> Any:
        """Bytes of all that is kept."""
        return sum(array.bytes for array in self.kept)
