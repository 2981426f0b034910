"""Nested loops as one loop for each group of layers, so that their iterations can differ.

Shared layers, as in ALBERT, are groups of iterations of layers: three nested loops. In flat form, a group is one loop
whose body has its layers one after the other and whose iterations share weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Carry, Loop
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.value import Value

MOST_LAYERS = 128


def is_nested(repeat: Loop) -> bool:
    """Return whether a loop contains other loops."""
    return any(isinstance(line, Loop) for line in repeat.lines)


def flat(table: Table, sizes: Mapping[str, int]) -> Table:
    """Return the table without groups of iterations of layers: the same lines, as often, on the same numbers.

    A stack of weights of groups and layers becomes one weight for each of them: with two groups of one layer `attn.WQ`
    is `group_0.attn.WQ` and `group_1.attn.WQ`; a single one keeps its name. Other nested loops remain.
    """
    for line in table.lines:
        if isinstance(line, Loop) and len(nest := _nest(line)) == 3:
            table = _Groups(table, nest, sizes).table()
    return table


def _nest(repeat: Loop) -> list[Loop]:
    """Return the nested loops of groups, iterations and layers that carry one value; otherwise fewer than three."""
    nest = [repeat]
    while len(nest) < 3 and len(nest[-1].lines) == 1 and isinstance(inner := nest[-1].lines[0], Loop):
        nest.append(inner)
    return [] if is_nested(nest[-1]) or any(len(group.carry) != 1 or group.keep for group in nest) else nest


@dataclass
class _Groups:
    """The flattening of one nest; `made` has the new names of every stack."""

    whole: Table
    nest: list[Loop]
    sizes: Mapping[str, int]
    made: dict[str, list[str]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups, self.iterations, self.layers = self.nest
        self.counts = [int(size_of(repeat.count, self.sizes)) for repeat in (self.groups, self.layers)]
        if self.counts[0] * self.counts[1] > MOST_LAYERS:
            raise InputError(f"layers of groups are unrolled here, {MOST_LAYERS:,} at most: use fewer layers")

    def table(self) -> Table:
        groups = tuple(self.group(number) for number in range(self.counts[0]))
        at = next(place for place, line in enumerate(self.whole.lines) if line is self.groups)

        def apart(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new for name in names for new in self.made.get(name, (name,)))

        outer_values = {name: value for name, value in self.whole.values.items() if name not in self.made}
        return changed(
            self.whole,
            lines=(*self.whole.lines[:at], *groups, *self.whole.lines[at + 1 :]),
            values={**outer_values, **self.values},
            inputs=apart(self.whole.inputs),
            weights=apart(self.whole.weights),
        )

    def group(self, group: int) -> Loop:
        """Return the loop of one group: its layers as lines one after the other, its iterations as the iterations."""
        (outer,), (inner,) = self.groups.carry, self.layers.carry
        lines: list[Line] = []
        values: dict[str, Value] = {}
        each: list[tuple[str, str]] = []
        start = handed = self.prefixed(inner.start, group, 0)
        values[start] = self.layers.values[inner.start]
        for layer in range(self.counts[1]):
            names = {name: self.prefixed(name, group, layer) for name in self.layers.inside}
            for inside, stack in self.layers.each:
                new = self.stack(names[inside], stack, each)
                values |= {new: self.layers.values[inside]} if (new, new) in each else {}
            names[inner.start] = handed
            for line in self.layers.lines:
                assert isinstance(line, Line)  # the innermost loop of the nest
                lines.append(line.renamed(names))
            sliced = {inside for inside, _ in self.layers.each}
            values |= {new: self.layers.values[name] for name, new in names.items() if name not in sliced}
            handed = names[inner.end]
        before = outer.initial if group == 0 else self.final(group - 1)
        self.values[self.final(group)] = self.layers.values[inner.end]
        carry = Carry(start, handed, before, self.final(group))
        return Loop(self.iterations.count, tuple(lines), values, (carry,), tuple(each))

    def stack(self, new: str, stack: str, each: list[tuple[str, str]]) -> str:
        """Return the outer array that a layer's slice becomes: a shared weight itself, or a stack over iterations."""
        slices = dict(self.iterations.each)
        outside = dict(self.groups.each)[slices.get(stack, stack)]
        _, *inner = self.whole.axes[outside]
        if stack in slices:
            each.append((new, new))
            inner = [inner[0], *inner[2:]]
        else:
            inner = inner[1:]
        self.values[new] = self.whole.values[outside].along(inner)
        self.made.setdefault(outside, []).append(new)
        return new

    def prefixed(self, name: str, group: int, layer: int) -> str:
        groups, layers = self.counts
        parts = ([f"group_{group}"] if groups > 1 else []) + ([f"layer_{layer}"] if layers > 1 else [])
        return ".".join((*parts, name))

    def final(self, group: int) -> str:
        """Return the name of a group's result; that of the last one is the nest's."""
        (outer,) = self.groups.carry
        return outer.final if group == self.counts[0] - 1 else f"{outer.final}@{group}"
