"""The table: an immutable program of lines and loops, with what is known of every value in their scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from learncost.ir.dataclass import dataclass, field
from learncost.ir.displayed import Displayed
from learncost.ir.line import Sum
from learncost.ir.loop import Loop, Statement, repeats
from learncost.ir.polynomial import base
from learncost.ir.value import FIXED, INDICES, Value, axes_of


@dataclass(frozen=True)
class Table(Displayed):
    """Lines and loops, with the axes and the role of every value in their scope.

    `inputs` and `weights` are its parameters, `outputs` are the values that callers may read.
    """

    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    title: str = field(default="", compare=False)
    within: Table | None = field(default=None, compare=False)  # the table of which these lines are a part
    sizes: Mapping[str, int] = field(default_factory=dict)  # the sizes that it declares

    @cached_property
    def repeats(self) -> tuple[Loop, ...]:
        """The loops among its lines; inner loops are not listed."""
        return tuple(line for line in self.lines if isinstance(line, Loop))

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of every name."""
        return axes_of(self.values)

    @cached_property
    def known(self) -> Mapping[str, Value]:
        """The values of every scope; a name in several scopes has that of the outermost."""
        return {**_inside(self.lines), **self.values}

    def header(self, name: str) -> str:
        """Return the name of an output in the header: Y for its last version Y.2; the cache after an append."""
        value = self.values[name]
        grown = value.role == "new" and self.values[value.of].role == "cache"
        return value.of if value.of and (grown or value.role == "value") else name

    @cached_property
    def renewed(self) -> Mapping[str, str]:
        """The weights and states that a step updates, with the names of their new values."""
        return {self.values[name].of: name for name in self.outputs if self.values[name].role == "new"}

    @property
    def projections(self) -> tuple[str, ...]:
        """Matrices that a procedure adds to the weights, and that a step updates as it does these."""
        return tuple(n for n in self.inputs if n in self.renewed and self.values[n].role == "projection")

    @property
    def following(self) -> tuple[str, ...]:
        """The matrices of `projections` that take the update of a weight and have no optimizer state."""
        made = {line.name: line for line in self.lines if isinstance(line, Sum)}
        return tuple(name for name in self.projections if self.renewed[name] in made)

    @cached_property
    def indices(self) -> frozenset[str]:
        """Names that are only read as an index."""
        return frozenset(name for name, value in self.values.items() if value.role in INDICES)

    @cached_property
    def multiplied(self) -> frozenset[str]:
        """Weights, quantized weights, and values that stand for a weight, by the names that its lines read."""
        fixed = {name for name, value in self.known.items() if value.role == "projection" and value.of in self.weights}
        whole = {value.of for value in self.values.values() if value.dtype}
        return frozenset(self.weights) | {self.values[name].of for name in self.codes} | whole | fixed

    @cached_property
    def codes(self) -> frozenset[str]:
        """Indices that are the codes of a quantized weight, or of its scales: they are stored in bytes."""
        return frozenset(name for name in self.indices if self.values[name].role == "index" and self.values[name].of)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Inputs that have no gradient: random masks, weights of targets in the loss."""
        return frozenset(name for name, value in self.values.items() if value.role in FIXED)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def _inside(lines: Iterable[Statement]) -> dict[str, Value]:
    """Return the values of the loops, outer ones before inner ones."""
    values: dict[str, Value] = {}
    for line in lines:
        if isinstance(line, Loop):
            values = {**values, **_inside(line.lines), **line.values}
    return values


def features(table: Table) -> frozenset[str]:
    """Return the sizes of the axes of weights, without trip counts of loops: feature sizes, not positions."""
    counts = {loop.count for loop in repeats(table.lines)}
    return frozenset(base(axis) for name in table.weights for axis in table.axes[name] if axis not in counts)
