"""Split a loop over layers into consecutive or nested ones, so that its iterations can differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace as changed

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Carry, Loop, map_loops
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.value import Value


@dataclass(frozen=True)
class LoopPart:
    """Iterations of a loop, from the first to the last one, counted from 0, with their body."""

    first: int
    last: int
    body: Loop

    @property
    def mark(self) -> str:
        """The suffix of names that belong to these iterations."""
        return f"@{self.first}" + (f"-{self.last}" if self.last > self.first else "")


def split(table: Table, repeat: Loop, parts: Iterable[LoopPart]) -> Table:
    """Return the table with one loop split into consecutive loops, which run all of its iterations in order.

    Stacks of weights or inputs whose slices it reads are split into one stack for each part, `W@0-9` and `W@10-11`.
    Raises `InputError` if lines define or read a stack of its values.
    """
    parts = tuple(parts)
    handed_in = {*table.inputs, *table.weights}
    made_outside = [outer for _, outer in repeat.each if outer not in handed_in] + [outer for _, outer in repeat.keep]
    if made_outside:
        raise InputError(f"a loop with a stack of values cannot be split: its iterations share {made_outside[0]}")
    values = dict(table.values)
    repeats: list[Loop] = []
    initial = {carry.final: carry.initial for carry in repeat.carry}
    for part in parts:
        repeats.append(_part(part, initial, part is parts[-1], values))
        initial = {carry.final: now.final for carry, now in zip(repeat.carry, repeats[-1].carry, strict=True)}
    stacks = {
        outer: tuple(f"{outer}{part.mark}" for part in parts if outer in {name for _, name in part.body.each})
        for part in parts
        for _, outer in part.body.each
    }

    def apart(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new for name in names for new in stacks.get(name, (name,)))

    for outer, names in stacks.items():
        stack = values.pop(outer)
        stack = replace(stack, group=stack.group or outer)
        values |= {
            name: stack.along((_count(part), *stack.axes[1:]))
            for part in parts
            for name in names
            if name == f"{outer}{part.mark}"
        }
    at = next(place for place, line in enumerate(table.lines) if line is repeat)
    return replace(
        table,
        lines=(*table.lines[:at], *repeats, *table.lines[at + 1 :]),
        values=values,
        inputs=apart(table.inputs),
        weights=apart(table.weights),
    )


def _count(part: LoopPart) -> str:
    return str(part.last - part.first + 1)


def _part(part: LoopPart, initial: dict[str, str], is_last: bool, values: dict[str, Value]) -> Loop:
    """Return the loop of one part, with marked names; `initial` maps the final name of each loop-carried value to its
    source."""
    inside = map_loops(part.body.lines, lambda loop: _marked(loop, part.mark))
    body = _marked(replace(part.body, lines=inside), part.mark)
    carry = []
    for old, new in zip(part.body.carry, body.carry, strict=True):
        final = old.final if is_last else f"{old.final}{part.mark}"
        values[final] = part.body.values[old.end]
        carry.append(replace(new, initial=initial[old.final], final=final))
    each = tuple((inside, f"{outer}{part.mark}") for inside, outer in body.each)
    return replace(body, count=_count(part), carry=tuple(carry), each=each)


def _marked(repeat: Loop, mark: str) -> Loop:
    """Return the loop with its inner names marked."""
    values = {name: replace(value, group=value.group or name) for name, value in repeat.values.items()}
    return replace(repeat, values=values).with_own({name: f"{name}{mark}" for name in repeat.inside})


MOST_LAYERS = 128


def flat(table: Table, sizes: Mapping[str, int]) -> Table:
    """Return the table with nested loops over groups of iterations of layers flattened, which computes the same.

    A stack of weights becomes one weight for each group and layer: with two groups of one layer, `attn.WQ` becomes
    `group_0.attn.WQ` and `group_1.attn.WQ`; a single weight keeps its name. Other nested loops remain.
    """
    for loop in table.repeats:
        if len(nest := _nest(loop)) == 3:
            table = _Groups(table, nest, sizes).table()
    return table


def _nest(repeat: Loop) -> list[Loop]:
    """Return the nested loops of groups, iterations and layers if they carry one value; otherwise fewer than three
    loops."""
    nest = [repeat]
    while len(nest) < 3 and len(nest[-1].lines) == len(nest[-1].repeats) == 1:
        nest += nest[-1].repeats
    return [] if nest[-1].repeats or any(len(group.carry) != 1 or group.keep for group in nest) else nest


@dataclass
class _Groups:
    """The flattening of one nest of loops; `made` has the new names of every stack."""

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
        """Return the loop over the iterations of one group, whose body has the lines of all of its layers."""
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
        """Return the name of the array that a layer's slice becomes: a shared weight, or a stack over iterations."""
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
        """Return the name of a group's result, which for the last group is the nest's result."""
        (outer,) = self.groups.carry
        return outer.final if group == self.counts[0] - 1 else f"{outer.final}@{group}"
