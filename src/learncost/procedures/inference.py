"""Inference as a rewriting of the forward table: prefill writes a cache of keys and values, decode reads it.

A layer says which of its values are kept for a key's position (`cache: K V`). In decode the lines that make such a
value run over the M new positions alone, what they make is appended to the C positions of the cache, and every line
that reads it sees T = C + M keys. What is cached along other positions, such as the encoder's, is read and never made
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from learncost.equation.count import Count, base
from learncost.equation.errors import InputError
from learncost.equation.scope import UNDER_WHERE
from learncost.equation.table import (
    Line,
    Literal,
    Operand,
    Product,
    Read,
    Repeat,
    Statement,
    Sum,
    Table,
    Tag,
    Term,
    Word,
    walk,
)
from learncost.layers.layer import Layer, marked
from learncost.procedures.needed import needed
from learncost.procedures.procedure import Procedure

TOKENS = "M"  # the axis of the tokens that a model reads and predicts: those of a decoder's side
CACHED, ALL = "C", "T"  # the axes of the positions in the cache, and of these with the new ones

Slot = tuple[str, int]  # the name of a value and the place of one of its axes
Windows = dict[Slot, str]  # the window of the keys that an axis runs over, "" for all


_SOURCE = "Pope et al. 2022, Efficiently scaling transformer inference, section 2"

INFERENCE: Mapping[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        Procedure("prefill", "the prompt's forward pass, which fills the cache", {"forward": 1}, _SOURCE),
        Procedure("decode", "the forward pass of new tokens with the cache", {"forward": 1}, _SOURCE),
    )
}


@dataclass(frozen=True)
class Kept:
    """A value of the cache as decode is given it, a stack where a repeat makes it.

    `tokens` says whether it grows with the tokens decoded; if not, it has a position for every one of the encoder's.
    `window` is the number of keys that a token sees at most, or a size's name; then the last window - 1 are kept.
    """

    name: str
    axes: tuple[str, ...]
    tokens: bool
    window: str = ""

    @property
    def elements(self) -> Count:
        """Elements of a position of a sequence, turns of repeats included."""
        return Count.of(axis for axis in self.axes if axis != "B" and axis != self.positions)

    @property
    def positions(self) -> str:
        """The axis of its positions."""
        return _named(CACHED, self.window) if self.tokens else next(a for a in self.axes if base(a) == "N")


@dataclass(frozen=True)
class Inference:
    """The tables of prefill and decode, and what is cached between them.

    `prefill` has the outputs `<value>.cache` beside the logits of the last position of each sequence, `last[B]`.
    `decode` is given them, and gives the grown ones (`<value>.cache.2`) beside the logits of the M new tokens.
    """

    prefill: Table
    decode: Table
    cache: tuple[Kept, ...]

    @property
    def remade(self) -> bool:
        """Whether decode multiplies what is cached with weights, for all positions again in every step."""
        whole = {_named(ALL, kept.window) for kept in self.cache if kept.tokens}
        lines = (line for line, _ in walk(self.decode.lines) if isinstance(line, Product))
        return any(whole & set(line.left[0].loops) and set(line.reads) & set(self.decode.weights) for line in lines)

    def lengths(self, sizes: Mapping[str, Any], context: int, new: int) -> dict[str, int]:
        """The sizes of the axes of positions: C and T, and those of every window."""
        found = {TOKENS: new}
        for window in {kept.window for kept in self.cache if kept.tokens}:
            most = context if not window else min(context, _number(window, sizes) - 1)
            found |= {_named(CACHED, window): most, _named(ALL, window): most + new}
        return found


def inference(model: Layer | Table, name: str = "", several: bool = False) -> Inference:
    """Prefill and decode of a model's forward table, whose tokens have the axes B and M.

    name      what to call the model in a message
    several   whether decode runs several new tokens of a sequence at once: inputs `seen[M T]` (`seen.w` for a window of
              w) then say which keys each of them sees. One new token sees all that is in the cache.
    Raises `InputError` for a model that cannot decode: one whose tokens see later ones, or whose lines read other
    positions and keep nothing of them.
    """
    table = marked(model) if isinstance(model, Layer) else model
    name = name or table.title or "the table"
    forward = _to_logits(table)
    decode, kept = _Decoding(forward, name, several).table()
    return Inference(_prefill(_last_only(forward), kept), decode, kept)


def _number(window: str, sizes: Mapping[str, Any]) -> int:
    return int(window) if window.isdigit() else int(sizes[window])


def _named(axis: str, window: str) -> str:
    return f"{axis}.{window}" if window else axis


# What both have: the forward pass up to the logits.


def _to_logits(table: Table) -> Table:
    """Without the loss, and without the logarithm of the probabilities: logits are what a token is chosen by."""
    words = [line for line in table.lines if isinstance(line, Word) and line.word == "log_softmax"]
    return needed(table, (words[-1].right[0].name,)) if words else needed(table, table.outputs)


def _last_only(table: Table) -> Table:
    """The head on the last position of each sequence alone: its layer reads there, and has no axis of positions."""
    own = {line.name for line in table.lines if isinstance(line, Line) and line.tag.layer == "head"}
    if not own:
        return table

    def cut(term: Operand) -> Operand:
        if not isinstance(term, Term) or TOKENS not in term.axes:
            return term
        if term.name in own:
            return Term(term.name, tuple(axis for axis in term.axes if axis != TOKENS))
        return Term(term.name, tuple(Read(a, Term("last", ("B",))) if a == TOKENS else a for a in term.axes))

    lines: list[Statement] = []
    for line in table.lines:
        if isinstance(line, Line) and line.name in own:
            left = tuple(term for term in map(cut, line.left) if isinstance(term, Term))
            line = replace(line, left=left, right=tuple(map(cut, line.right)))
        lines.append(line)
    axes = {n: tuple(a for a in own_axes if n not in own or a != TOKENS) for n, own_axes in table.axes.items()}
    inputs, indices = (*table.inputs, "last"), table.indices | {"last"}
    return replace(table, lines=tuple(lines), axes={**axes, "last": ("B",)}, inputs=inputs, indices=indices)


# Prefill.


def _prefill(table: Table, kept: Iterable[Kept]) -> Table:
    """The forward pass that also gives what decode will read."""
    names = {one.name for one in kept}
    axes = dict(table.axes)
    lines: list[Statement] = []
    for line in table.lines:
        lines.append(line)
        if isinstance(line, Repeat):
            made = [own.name for own in line.lines if isinstance(own, Line) and _cache(own.name) in names]
            lines[-1] = replace(line, keep=(*line.keep, *((own, _cache(own)) for own in made)))
            axes |= {_cache(own): (line.count, *line.axes[own]) for own in made}
        elif _cache(line.name) in names:
            tag = Tag(line.tag.layer, line.tag.block, local="cache", locals=(line.tag.local,))
            left = Term(_cache(line.name), line.left[0].axes)
            lines.append(Sum((left,), (line.left[0],), (), tag, (1,)))
            axes[left.name] = axes[line.name]
    outputs = (*table.outputs, *(one.name for one in kept))
    return needed(replace(table, lines=tuple(lines), axes=axes), outputs)


def _cache(name: str) -> str:
    return f"{name}.cache"


# Decode.


class _Decoding:
    """Finds which axes run over keys, then rewrites line by line."""

    def __init__(self, table: Table, name: str, several: bool) -> None:
        self.given = table
        self.name = name
        self.several = several
        made = {line.name: line for line, _ in walk(table.lines) if line.tag.cached is not None}
        self.places = {n: line.tag.cached for n, line in made.items() if line.tag.cached is not None}
        self.grows = {n for n, place in self.places.items() if base(str(made[n].left[0].axes[place])) == TOKENS}
        self.windows: Windows = {}
        self.find_windows()
        self.outputs: list[str] = []
        self.kept: list[Kept] = []
        self.seen: dict[str, tuple[str, ...]] = {}
        self.settled: set[str] = set()  # values that are zero where a token does not see

    def table(self) -> tuple[Table, tuple[Kept, ...]]:
        """Decode's table and its cache."""
        given = self.given
        axes = self.declared(given.axes)
        lines = self.statements(given.lines, axes, None)
        axes |= self.seen
        inputs = (*given.inputs, *(one.name for one in self.kept), *self.seen)
        constants = given.constants | self.seen.keys()
        whole = replace(given, lines=lines, axes=axes, inputs=inputs, constants=constants)
        found = needed(whole, (*given.outputs, *self.outputs))
        # The cache of an encoder's own attention grows with no token, and nothing of a decoder reads it.
        read = needed(found, given.outputs).inputs
        kept = tuple(one for one in self.kept if one.name in read)
        if not kept:
            raise InputError(f"{self.name} has no decoder to sample from: nothing in it keeps keys of earlier tokens")
        self.check(found)
        return found, kept

    # Which axes run over keys.

    def find_windows(self) -> None:
        """An axis runs over keys where a `where` bounds it by the tokens, and in all values that share it."""
        lines = [line for line, _ in walk(self.given.lines)]
        repeats = list(_repeats(self.given.lines))
        before = -1
        while before != len(self.windows):
            before = len(self.windows)
            for line in lines:
                self.share(line, self.keys_of(line))
            for repeat in repeats:
                for inside, outside in (*repeat.each, *repeat.keep):
                    self.link(inside, outside, 1 if inside != outside else 0)
                for carry in repeat.carry:
                    for one in (carry.end, carry.initial, carry.final):
                        self.link(carry.start, one, 0)
                    if any(name == carry.start for name, _ in self.windows):
                        raise self.refusal(
                            f"earlier {carry.start} are read again, and no layer says that it keeps them"
                        )
        if any(name in self.given.outputs for name, _ in self.windows):
            raise self.refusal("earlier positions are read again, and no layer says that it keeps them")

    def slots(self, line: Line) -> Iterator[tuple[str, int, str]]:
        """The axes of a line that have the same window wherever a value of theirs has one."""
        yield from _slots(line.right)
        for term in line.left:
            for slot in _slots((term,)):
                # What is made for the cache has the new positions, what reads it all of them.
                if slot[:2] != (line.name, self.places.get(line.name)):
                    yield slot

    def keys_of(self, line: Line) -> dict[str, str]:
        """The axes of a line that run over keys, with their windows."""
        found: dict[str, str] = {}
        for one in line.where:
            if base(one.lower) == base(one.upper) == TOKENS:
                found[one.lower] = one.window or found.get(one.lower, "")
        for name, place, axis in self.slots(line):
            if (name, place) in self.windows:
                window = self.windows[name, place]
                if found.setdefault(axis, window) != window:
                    raise self.refusal(f"keys are seen through two windows, in line: {line}")
        return found

    def share(self, line: Line, keys: Mapping[str, str]) -> None:
        self.windows |= {(name, place): keys[axis] for name, place, axis in self.slots(line) if axis in keys}

    def link(self, one: str, two: str, more: int) -> None:
        for (name, place), window in list(self.windows.items()):
            if name == one:
                self.windows[two, place + more] = window
            elif name == two and place >= more:
                self.windows[one, place - more] = window

    # The rewriting.

    def declared(self, axes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """The axes of every value, keys under their new name; those of a cached value are of the new positions."""
        return {
            name: tuple(
                _named(ALL, self.windows[name, i]) if (name, i) in self.windows and name not in self.grows else axis
                for i, axis in enumerate(own)
            )
            for name, own in axes.items()
        }

    def statements(
        self, lines: Iterable[Statement], axes: dict[str, tuple[str, ...]], around: Repeat | None
    ) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Repeat):
                result.append(self.repeat(line, axes))
            elif line.name not in self.places:
                result.extend(self.line(line, axes))
            elif line.name in self.grows:
                result.extend((*self.line(line, axes), self.appended(line, axes, around)))
            else:
                self.keep(line.name, axes[line.name], axes, around, "", False)
        return tuple(result)

    def repeat(self, line: Repeat, outer: dict[str, tuple[str, ...]]) -> Repeat:
        axes = self.declared(line.axes)
        given, grown = len(self.kept), len(self.outputs)
        lines = self.statements(line.lines, axes, line)
        each = tuple((one.name, one.name) for one in self.kept[given:])
        keep = tuple((name, name) for name in self.outputs[grown:])
        outer |= {name: (line.count, *axes[name]) for name, _ in (*each, *keep)}
        return replace(line, lines=lines, axes=axes, each=(*line.each, *each), keep=(*line.keep, *keep))

    def keep(
        self,
        name: str,
        own: tuple[str, ...],
        axes: dict[str, tuple[str, ...]],
        around: Repeat | None,
        window: str,
        tokens: bool,
    ) -> None:
        axes[_cache(name)] = own
        self.kept.append(Kept(_cache(name), (around.count, *own) if around else own, tokens, window))

    def appended(self, line: Line, axes: dict[str, tuple[str, ...]], around: Repeat | None) -> Line:
        """The new positions of a value behind those in the cache."""
        name, place = line.name, self.places[line.name]
        if (name, place) not in self.windows:
            raise self.refusal(f"the tokens of its {line.tag.layer.replace('_', ' ')} see later ones")
        if set(self.keys_of(line)) & {line.left[0].axes[place]}:
            raise self.refusal(f"what it caches is made of what it caches, in line: {line}")
        window = self.windows[name, place]
        own = axes[name]
        cached, whole = ((*own[:place], _named(axis, window), *own[place + 1 :]) for axis in (CACHED, ALL))
        self.keep(name, cached, axes, around, window, True)
        left = Term(f"{_cache(name)}.2", whole)
        axes[left.name] = whole
        self.outputs.append(left.name)
        local = f"{line.tag.local}.cache"
        tag = replace(line.tag, equation="", local=local, locals=(local, line.tag.local), cached=None)
        right = (Term(_cache(name), cached), Term(name, own))
        return Word((left,), right, (), tag, "append", (whole[place],), "body", ("X", "Z"), ("Y",))

    def line(self, line: Line, axes: dict[str, tuple[str, ...]]) -> Iterator[Line]:
        keys = self.keys_of(line)
        read = {name: f"{_cache(name)}.2" if name in self.grows else _cache(name) for name in self.places}
        where = tuple(one for one in line.where if one.lower not in keys)
        bounded = keys.keys() & {one.lower for one in line.where}
        new = replace(line, where=where).renamed({}, {axis: _named(ALL, window) for axis, window in keys.items()})
        new = replace(new, right=tuple(term.renamed(read) for term in new.right))
        if bounded and self.several:
            window = keys[min(bounded)]
            yield from self.seeing(new, window, next(o.upper for o in line.where if o.lower in bounded), axes)
        else:
            yield new

    def seeing(self, line: Line, window: str, tokens: str, axes: dict[str, tuple[str, ...]]) -> Iterator[Line]:
        """Each of several new tokens sees the earlier ones alone: all else is minus infinity to a softmax."""
        key = _named(ALL, window)
        if isinstance(line, Word) and line.word in UNDER_WHERE and key in line.axes:
            term, mask = line.right[0], _named("seen", window)
            left = Term(f"{line.name}.seen", term.axes)
            axes[left.name] = axes[term.name]
            self.seen[mask] = (TOKENS, key)
            right = (Term(mask, (tokens, key)), term, Literal(float("-inf")))
            tag = Tag(line.tag.layer, line.tag.block, local="seen", locals=("seen", line.tag.locals[0], ""))
            tag = replace(tag, binding=line.tag.binding)
            yield Word((left,), right, (), tag, "select", (), "body", ("C", "X", "Z"), ("Y",))
            line = replace(line, right=(left, *line.right[1:]))
            self.settled.add(line.name)
        elif isinstance(line, Product) and any(term.name in self.settled for term in line.right):
            self.settled.add(line.name)
        elif isinstance(line, Product) and key not in line.left[0].loops:
            raise self.refusal(f"several new tokens need a softmax over what they see, in line: {line}")
        yield line

    # What cannot be decoded.

    def refusal(self, why: str) -> InputError:
        return InputError(f"{self.name} has no decoder to sample from: {why}")

    def check(self, table: Table) -> None:
        """A token reads nothing of another one but what is cached."""
        for line, turns in walk(table.lines):
            if isinstance(line, Word) and line.word == "append":
                continue
            left, right = ({axis for term in side for axis in term.loops} for side in (line.left, line.right))
            tokens = {axis for axis in left | right if base(axis) == TOKENS}
            acts = isinstance(line, Word) and any(base(axis) == TOKENS for axis in line.axes)
            at = any(base(axis.axis) == TOKENS for term in line.right for axis in term.axes if isinstance(axis, Read))
            if acts or at or len(tokens) > 1 or tokens - left or TOKENS in turns:
                layer = line.tag.layer.replace("_", " ") or "it"
                raise self.refusal(f"{layer} reads other positions and keeps nothing of them, in line: {line}")


def _repeats(lines: Iterable[Statement]) -> Iterator[Repeat]:
    for line in lines:
        if isinstance(line, Repeat):
            yield line
            yield from _repeats(line.lines)


def _slots(terms: Iterable[Operand]) -> Iterator[tuple[str, int, str]]:
    """Every axis of the terms and of their indices: the value's name, the place, and what the line calls it."""
    for term in terms:
        for place, axis in enumerate(term.axes):
            yield term.name, place, axis if isinstance(axis, str) else axis.axis
            if isinstance(axis, Read):
                yield from _slots((axis.at,))
