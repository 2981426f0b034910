"""The table: lines and repeats, with what is known of every value in their scope. Programs are values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from learncost.ir.displayed import Displayed
from learncost.ir.line import Sum
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.value import FIXED, INDICES, Value, axes_of


@dataclass(frozen=True)
class Table(Displayed):
    """Lines and repeats, with what is known of every value in their scope: its axes, and what it is there for.

    `inputs` and `weights` are given from outside, `outputs` is what others may read.
    """

    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    title: str = field(default="", compare=False)
    within: Table | None = field(default=None, compare=False)  # the whole whose context these lines run in
    keeps: tuple[str, ...] = ()  # collectives of which a placement keeps what they make forward for the backward pass
    zigzag: Mapping[str, tuple[str, ...]] | None = None  # axes in zigzag, over what; before it is placed: none yet
    ring: bool = False  # whether parts go round where a placement would gather what lines sum over
    sizes: Mapping[str, int] = field(default_factory=dict)  # those that it states

    @cached_property
    def repeats(self) -> tuple[Loop, ...]:
        """The repeats among its lines, but those within others."""
        return tuple(line for line in self.lines if isinstance(line, Loop))

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of every name."""
        return axes_of(self.values)

    @cached_property
    def known(self) -> Mapping[str, Value]:
        """What is known of every value of every scope; of a name that several have, in the outermost."""
        return {**_inside(self.lines), **self.values}

    def header(self, name: str) -> str:
        """What the header calls an output: Y, of which the last version is Y.2; a cache, of one that has grown."""
        value = self.values[name]
        grown = value.role == "new" and self.values[value.of].role == "cache"
        return value.of if value.of and (grown or value.role == "value") else name

    @cached_property
    def renewed(self) -> Mapping[str, str]:
        """What a step makes anew, weights and states, with the names of what it makes of them."""
        return {self.values[name].of: name for name in self.outputs if self.values[name].role == "new"}

    @property
    def beside(self) -> tuple[str, ...]:
        """Matrices that a procedure has beside the weights, and that a step makes anew as it does these."""
        return tuple(n for n in self.inputs if n in self.renewed and self.values[n].role == "projection")

    @property
    def following(self) -> tuple[str, ...]:
        """Those of them that take the steps of a weight, and have none of the optimizer's own."""
        made = {line.name: line for line in self.lines if isinstance(line, Sum)}
        return tuple(name for name in self.beside if self.renewed[name] in made)

    @cached_property
    def indices(self) -> frozenset[str]:
        """Names that are only read as an index."""
        return frozenset(name for name, value in self.values.items() if value.role in INDICES)

    @cached_property
    def multiplied(self) -> frozenset[str]:
        """Its weights, those of which it has the codes, and what stands for a weight, as its lines read them."""
        fixed = {name for name, value in self.known.items() if value.role == "projection" and value.of in self.weights}
        whole = {value.of for value in self.values.values() if value.dtype}
        return frozenset(self.weights) | {self.values[name].of for name in self.codes} | whole | fixed

    @cached_property
    def codes(self) -> frozenset[str]:
        """Indices that say which levels the numbers of a weight are, or its scales: they are kept in bytes."""
        return frozenset(name for name in self.indices if self.values[name].role == "index" and self.values[name].of)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Inputs that have no gradient: drawn masks, shares of the loss."""
        return frozenset(name for name, value in self.values.items() if value.role in FIXED)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def _inside(lines: Iterable[Statement]) -> dict[str, Value]:
    """The values of the repeats, outer ones before inner ones."""
    values: dict[str, Value] = {}
    for line in lines:
        if isinstance(line, Loop):
            values = {**values, **_inside(line.lines), **line.values}
    return values


def features(table: Table) -> frozenset[str]:
    """The sizes that its weights have as axes, counts of repeats aside: those of features, not of positions."""
    counts = {count for _, iterations in walk(table.lines) for count in iterations}
    return frozenset(base(axis) for name in table.weights for axis in table.axes[name] if axis not in counts)
