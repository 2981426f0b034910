"""Decode: a forward table rewritten so that new tokens read the keys of earlier ones from a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from learncost.ir.line import Line, Meta, Op, Product
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Read, Term
from learncost.ir.value import Value
from learncost.ops import entry
from learncost.procedures.keys import TOKENS, Keys, refusal
from learncost.procedures.needed import needed

CACHED, ALL = "C", "T"  # the axes of the positions in the cache, and of these with the new ones

Values: TypeAlias = dict[str, Value]


@dataclass(frozen=True)
class CachedValue:
    """A value of the cache as decode is given it, a stack where a repeat makes it.

    `tokens` says whether it grows with the tokens decoded; if not, it has a position for every one of the encoder's.
    `window` is the number of keys that a token sees at most, or a size's name; then the last window - 1 are kept.
    """

    name: str
    axes: tuple[str, ...]
    tokens: bool
    window: str = ""

    @property
    def elements(self) -> Polynomial:
        """Elements of a position of a sequence, turns of repeats included."""
        return Polynomial.of(axis for axis in self.axes if axis != "B" and axis != self.positions)

    @property
    def positions(self) -> str:
        """The axis of its positions."""
        return axis_of(CACHED, self.window) if self.tokens else next(a for a in self.axes if base(a) == "N")


def cache(name: str) -> str:
    """What the cached positions of a value are called."""
    return f"{name}.cache"


def axis_of(axis: str, window: str) -> str:
    """An axis of positions, for each window one of its own."""
    return f"{axis}.{window}" if window else axis


class Decoding:
    """Decode's table, rewritten line by line.

    lines of a cached value run over the new tokens, what they make is appended to the cache, its readers read all of it
    """

    def __init__(self, table: Table, name: str, several: bool) -> None:
        self.prefill = table
        self.name = name
        self.several = several
        self.keys = Keys(table, name)
        self.outputs: list[str] = []
        self.cached: list[tuple[str, bool, str]] = []  # name, whether it grows, window
        self.seen: Values = {}
        self.settled: set[str] = set()  # values that are zero where a token does not see

    def table(self) -> tuple[Table, tuple[CachedValue, ...]]:
        """Decode's table and its cache."""
        table = self.prefill
        values = self.declared(table.values)
        lines = self.statements(table.lines, values)
        values |= self.seen
        inputs = (*table.inputs, *(name for name, _, _ in self.cached), *self.seen)
        grown_table = replace(table, lines=lines, values=values, inputs=inputs)
        decode = needed(grown_table, (*table.outputs, *self.outputs))
        # The cache of an encoder's own attention grows with no token, and nothing of a decoder reads it.
        read = needed(decode, table.outputs).inputs
        every = (CachedValue(name, values[name].axes, grows, window) for name, grows, window in self.cached)
        caches = tuple(array for array in every if array.name in read)
        if not caches:
            raise refusal(self.name, "nothing in it keeps keys of earlier tokens")
        self.check(decode)
        return decode, caches

    def declared(self, values: Mapping[str, Value]) -> Values:
        """Every value, keys under their new name; those of a cached value are of the new positions."""
        return {
            name: value.along(
                axis_of(ALL, self.keys.windows[name, i])
                if (name, i) in self.keys.windows and name not in self.keys.grows
                else axis
                for i, axis in enumerate(value.axes)
            )
            for name, value in values.items()
        }

    def statements(self, lines: Iterable[Statement], values: Values) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                result.append(self.repeat(line, values))
            elif line.name not in self.keys.places:
                result.extend(self.line(line, values))
            elif line.name in self.keys.grows:
                result.extend((*self.line(line, values), self.appended(line, values)))
            else:
                values[cache(line.name)] = Value(values[line.name].axes, "cache", line.name)
                self.cached.append((cache(line.name), False, ""))
        return tuple(result)

    def repeat(self, line: Loop, outer: Values) -> Loop:
        values = self.declared(line.values)
        before, grown = len(self.cached), len(self.outputs)
        lines = self.statements(line.lines, values)
        each = tuple((name, name) for name, _, _ in self.cached[before:])
        keep = tuple((name, name) for name in self.outputs[grown:])
        outer |= {name: values[name].stacked(line.count) for name, _ in (*each, *keep)}
        return replace(line, lines=lines, values=values, each=(*line.each, *each), keep=(*line.keep, *keep))

    def appended(self, line: Line, values: Values) -> Line:
        """The new positions of a value behind those in the cache."""
        name, place = line.name, self.keys.places[line.name]
        if (name, place) not in self.keys.windows:
            raise refusal(self.name, f"the tokens of its {line.meta.layer.replace('_', ' ')} see later ones")
        if set(self.keys.of(line)) & {line.left[0].axes[place]}:
            raise refusal(self.name, f"what it caches is made of what it caches, in line: {line}")
        window = self.keys.windows[name, place]
        axes = values[name].axes
        cached, all_axes = ((*axes[:place], axis_of(axis, window), *axes[place + 1 :]) for axis in (CACHED, ALL))
        left = Term(f"{cache(name)}.2", all_axes)
        values |= {cache(name): Value(cached, "cache", name), left.name: Value(all_axes, "new", cache(name))}
        self.cached.append((cache(name), True, window))
        self.outputs.append(left.name)
        local = f"{line.meta.local}.cache"
        meta = replace(line.meta, equation="", local=local, locals=(local, line.meta.local), cached=None)
        right = (Term(cache(name), cached), Term(name, axes))
        return Op((left,), right, (), meta, "append", (all_axes[place],), "body", ("X", "Z"), ("Y",))

    def line(self, line: Line, values: Values) -> Iterator[Line]:
        keys = self.keys.of(line)
        read = {name: f"{cache(name)}.2" if name in self.keys.grows else cache(name) for name in self.keys.places}
        where = tuple(condition for condition in line.where if condition.lower not in keys)
        bounded = keys.keys() & {condition.lower for condition in line.where}
        new = replace(line, where=where).renamed({}, {axis: axis_of(ALL, window) for axis, window in keys.items()})
        new = replace(new, right=tuple(term.renamed(read) for term in new.right))
        if bounded and self.several:
            window = keys[min(bounded)]
            yield from self.seeing(new, window, next(o.upper for o in line.where if o.lower in bounded), values)
        else:
            yield new

    def seeing(self, line: Line, window: str, tokens: str, values: Values) -> Iterator[Line]:
        """Each of several new tokens sees the earlier ones alone: all else is minus infinity to a softmax."""
        key = axis_of(ALL, window)
        if isinstance(line, Op) and key in line.axes and entry(line.op).outside is not None:
            term, mask = line.right[0], axis_of("seen", window)
            left = Term(f"{line.name}.seen", term.axes)
            values[left.name] = Value(values[term.name].axes)
            self.seen[mask] = Value((TOKENS, key), "constant")
            right = (Term(mask, (tokens, key)), term, Literal(float("-inf")))
            meta = Meta(line.meta.layer, line.meta.block, local="seen", locals=("seen", line.meta.locals[0], ""))
            meta = replace(meta, binding=line.meta.binding, module=line.meta.module)
            yield Op((left,), right, (), meta, "select", (), "body", ("C", "X", "Z"), ("Y",))
            line = replace(line, right=(left, *line.right[1:]))
            self.settled.add(line.name)
        elif isinstance(line, Product) and any(term.name in self.settled for term in line.right):
            self.settled.add(line.name)
        elif isinstance(line, Product) and key not in line.left[0].loops:
            raise refusal(self.name, f"several new tokens need a softmax over what they see, in line: {line}")
        yield line

    # What cannot be decoded.

    def check(self, table: Table) -> None:
        """A token reads nothing of another one but what is cached."""
        for line, iterations in walk(table.lines):
            if isinstance(line, Op) and line.op == "append":
                continue
            left, right = ({axis for term in side for axis in term.loops} for side in (line.left, line.right))
            tokens = {axis for axis in left | right if base(axis) == TOKENS}
            acts = isinstance(line, Op) and any(base(axis) == TOKENS for axis in line.axes)
            at = any(base(axis.axis) == TOKENS for term in line.right for axis in term.axes if isinstance(axis, Read))
            if acts or at or len(tokens) > 1 or tokens - left or TOKENS in iterations:
                layer = line.meta.layer.replace("_", " ") or "it"
                raise refusal(self.name, f"{layer} reads other positions and keeps nothing of them, in line: {line}")
