"""Decode: a forward table rewritten so that new tokens read the keys of earlier ones from a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product
from learncost.ir.loop import Loop, Statement, repeats, walk
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ir.value import Value
from learncost.ops import entry
from learncost.procedures.needed import needed

TOKENS = "M"  # the axis of the tokens that a model reads and predicts: those of a decoder's side


def refusal(name: str, why: str) -> InputError:
    """What is said of a model that cannot decode."""
    return InputError(f"{name} has no decoder to sample from: {why}")


class Keys:
    """An axis runs over keys where a `where` bounds it by the tokens, and in all values that share it.

    windows   by name of a value and place of its axis, the window of the keys there: a size or a number, "" for all
    places    of the values that are cached, the place of the keys' positions
    grows     those of them that have the tokens' own positions
    Raises `InputError` where tokens that are not cached would be read.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = name
        line_of = {line.name: line for line, _ in walk(table.lines) if line.meta.cached is not None}
        self.places = {n: line.meta.cached for n, line in line_of.items() if line.meta.cached is not None}
        self.grows = {n for n, place in self.places.items() if base(str(line_of[n].left[0].axes[place])) == TOKENS}
        self.windows: dict[tuple[str, int], str] = {}
        self._find(table)

    def _find(self, table: Table) -> None:
        lines = [line for line, _ in walk(table.lines)]
        every_repeat = list(repeats(table.lines))
        before = -1
        while before != len(self.windows):
            before = len(self.windows)
            for line in lines:
                self._share(line, self.of(line))
            for repeat in every_repeat:
                for inside, outside in (*repeat.each, *repeat.keep):
                    self._link(inside, outside, 1 if inside != outside else 0)
                for carry in repeat.carry:
                    for carried in (carry.end, carry.initial, carry.final):
                        self._link(carry.start, carried, 0)
                    if any(name == carry.start for name, _ in self.windows):
                        raise refusal(
                            self.name,
                            f"earlier values of {carry.start} are read again, and no layer says that it keeps them",
                        )
        if any(name in table.outputs for name, _ in self.windows):
            raise refusal(self.name, "earlier positions are read again, and no layer says that it keeps them")

    def _slots(self, line: Line) -> Iterator[tuple[str, int, str]]:
        """The axes of a line that have the same window wherever a value of theirs has one."""
        yield from _slots(line.right)
        for term in line.left:
            for slot in _slots((term,)):
                # What is made for the cache has the new positions, what reads it all of them.
                if slot[:2] != (line.name, self.places.get(line.name)):
                    yield slot

    def of(self, line: Line) -> dict[str, str]:
        """The axes of a line that run over keys, with their windows."""
        windows: dict[str, str] = {}
        for condition in line.where:
            if not condition.ordered and TOKENS in map(base, condition.axes):
                raise refusal(self.name, f"it tells positions by number, in line: {line}")
            if base(condition.lower) == base(condition.upper) == TOKENS:
                windows[condition.lower] = condition.window or windows.get(condition.lower, "")
        for name, place, axis in self._slots(line):
            if (name, place) in self.windows:
                window = self.windows[name, place]
                if windows.setdefault(axis, window) != window:
                    raise refusal(self.name, f"keys are seen through two windows, in line: {line}")
        return windows

    def _share(self, line: Line, keys: Mapping[str, str]) -> None:
        self.windows |= {(name, place): keys[axis] for name, place, axis in self._slots(line) if axis in keys}

    def _link(self, first: str, second: str, more: int) -> None:
        for (name, place), window in list(self.windows.items()):
            if name == first:
                self.windows[second, place + more] = window
            elif name == second and place >= more:
                self.windows[first, place - more] = window


def _slots(terms: Iterable[Operand | Affine]) -> Iterator[tuple[str, int, str]]:
    """Every axis of the terms and of their indices: the value's name, the place, and what the line calls it."""
    for term in terms:
        for place, axis in enumerate(term.axes):
            yield term.name, place, axis if isinstance(axis, str) else axis.axis
            if isinstance(axis, Read):
                yield from _slots((axis.at,))


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
