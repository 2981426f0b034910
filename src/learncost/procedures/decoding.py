"""Rewrite a forward table into decoding, where new tokens read what earlier ones left.

Attention reads earlier keys and values from the KV cache; a recurrence begins with the state behind the last token, and
a causal convolution reads the last rows of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, repeats, walk
from learncost.ir.polynomial import Polynomial, base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ir.value import Value
from learncost.layers.layer import CachedAlong
from learncost.ops import applied, entry
from learncost.procedures.needed import needed

TOKENS = "M"  # the axis of the tokens that a model reads and predicts, on the decoder's side of an encoder-decoder


def refusal(name: str, why: str) -> InputError:
    """Return the error for a model that cannot decode."""
    return InputError(f"{name} has no decoder to sample from: {why}")


class Keys:
    """The axes that run over keys: those that a `where` bounds by the tokens, and those of values that share them.

    windows   the window of the keys (a size, a number, or "" for all), by a value's name and its axis's position
    places    the position of the keys' axis in each cached value
    grows     the cached values with the positions of the tokens
    Raises `InputError` if tokens that are not cached would be read.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = name
        line_of = {line.name: line for line, _ in walk(table.lines)}
        notes = {name: line.meta.note for name, line in line_of.items()}
        self.places = {name: note.keys for name, note in notes.items() if isinstance(note, CachedAlong)}
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
                            self.name, f"earlier values of {carry.start} are read again, but no layer caches them"
                        )
        if any(name in table.outputs for name, _ in self.windows):
            raise refusal(self.name, "earlier positions are read again, but no layer caches them")

    def _slots(self, line: Line) -> Iterator[tuple[str, int, str]]:
        """Yield the axes of a line, each with the window that its values have on it."""
        yield from _slots(line.right)
        for term in line.left:
            for slot in _slots((term,)):
                # Lines that write the cache have the new positions; lines that read it have all positions.
                if slot[:2] != (line.name, self.places.get(line.name)):
                    yield slot

    def of(self, line: Line) -> dict[str, str]:
        """Return the axes of a line that run over keys, with their windows."""
        windows: dict[str, str] = {}
        for condition in line.where:
            if not condition.ordered and TOKENS in map(base, condition.axes):
                raise refusal(self.name, f"it compares positions by number, in line: {line}")
            if base(condition.lower) == base(condition.upper) == TOKENS:
                windows[condition.lower] = condition.window or windows.get(condition.lower, "")
        for name, place, axis in self._slots(line):
            if (name, place) in self.windows:
                window = self.windows[name, place]
                if windows.setdefault(axis, window) != window:
                    raise refusal(self.name, f"keys have two different windows, in line: {line}")
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
    """Yield every axis of terms and of their indices: the value's name, the axis's position in it, and the axis."""
    for term in terms:
        for place, axis in enumerate(term.axes):
            yield term.name, place, axis if isinstance(axis, str) else axis.axis
            if isinstance(axis, Read):
                yield from _slots((axis.at,))


CACHED, ALL = "C", "T"  # the axes of the cached positions, and of cached and new positions together
KEPT, RECENT = "K", "R"  # those of the last rows that a convolution reads, and of these and the new ones together

Values: TypeAlias = dict[str, Value]


@dataclass(frozen=True)
class CachedValue:
    """A value in the KV cache, or a state that takes its place; a stack if a loop computes it.

    `tokens` is whether it grows with the decoded tokens; otherwise it has one position for each encoder position, or
    none: it is a state, as large after any number of tokens.
    `window` is the largest number of keys that a token attends to, or the name of a size; the last window - 1 are
    cached. `of` is the value that it holds after a pass; `kept` of a convolution is the size of its kernel, or by how
    many positions a line looks back: so many rows are its state.
    """

    name: str
    axes: tuple[str, ...]
    tokens: bool
    window: str = ""
    of: str = ""
    kept: str = ""

    @property
    def elements(self) -> Polynomial:
        """Return the number of elements per position of a sequence, over all iterations of loops."""
        several = ("B", self.positions)
        return Polynomial.of(axis for axis in self.axes if axis.partition("/")[0] not in several)

    @property
    def positions(self) -> str:
        """Return the axis of its positions; empty of a state."""
        if self.tokens:
            return axis_of(CACHED, self.window)
        return next((name for name in (axis.partition("/")[0] for axis in self.axes) if base(name) == "N"), "")

    @property
    def is_state(self) -> bool:
        """Return whether it is as large after any number of tokens."""
        return not self.positions

    def sharded_as(self, axes: Sequence[str]) -> CachedValue:
        """Return the value with its axes sharded like those of a table, whose axis of positions may have another
        name."""
        cuts = (axis.partition("/")[1:] for axis in axes)
        return replace(self, axes=tuple("".join((axis, *cut)) for axis, cut in zip(self.axes, cuts, strict=True)))


def lookback(term: Operand) -> tuple[int, Affine, str] | None:
    """Return where a term reads earlier positions of the tokens, and how many rows of them are kept; None if nowhere.

    Returned are the number of the axis, the index, and the kept rows: k for M - k, and the size of a kernel for
    M + u - #u + 1, as transformers' caches of convolutions are.
    """
    if not isinstance(term, Term):
        return None
    for place, axis in enumerate(term.axes):
        if not isinstance(axis, Read) or not isinstance(axis.at, Affine) or base(axis.axis) != TOKENS:
            continue
        others = tuple(part for part in axis.at.parts if part != AffineTerm(1, (), axis.at.loops[0]))
        if not axis.at.loops or base(axis.at.loops[0]) != TOKENS:
            continue
        kernel = [part.axis for part in others if part.axis]
        if not kernel and not others[0].sizes and len(others) == 1 and others[0].factor < 0:
            return place, axis.at, str(-others[0].factor)
        size = base(kernel[0]) if len(kernel) == 1 else ""
        ends = AffineTerm(-int(size)) if size.isdigit() else AffineTerm(-1, (size,))
        if size and total(others) == total((AffineTerm(1, (), kernel[0]), ends, AffineTerm(1))):
            return place, axis.at, size
    return None


def kept_axes(term: Term, place: int, kept: str) -> tuple[str, ...]:
    """Return the axes of the last rows of a value, of which a term reads earlier ones."""
    return (*term.declared[:place], axis_of(KEPT, kept), *term.declared[place + 1 :])


def last_rows(left: Term, right: Term, place: int, meta: Meta) -> Product:
    """Return the line that takes the last rows of a value; those before its first are 0."""
    kept, every = str(left.axes[place]), str(right.axes[place])
    at = Affine((AffineTerm(1, (), kept), AffineTerm(1, (every,)), AffineTerm(-1, (kept,))))
    read = replace(right, axes=(*right.axes[:place], Read(every, at), *right.axes[place + 1 :]))
    return Product((left,), (read,), (), meta.of_step(f"{meta.local}.cache"))


def meta_of(loop: Loop) -> Meta:
    """Return the metadata of a loop's first line."""
    return next(line.meta for line, _ in walk(loop.lines))


def cache(name: str) -> str:
    """Return the name of a value's cached array."""
    return f"{name}.cache"


def axis_of(axis: str, window: str) -> str:
    """Return the name of an axis of positions, which differs for every window."""
    return f"{axis}.{window}" if window else axis


class Decoding:
    """A builder of the decoding table, line by line.

    Lines that compute a cached value run over the new tokens, their results are appended to the cache, and other lines
    read the whole cache.
    """

    def __init__(self, table: Table, name: str, several: bool) -> None:
        self.prefill = table
        self.name = name
        self.several = several
        self.keys = Keys(table, name)
        self.outputs: list[str] = []
        self.cached: list[CachedValue] = []  # without axes, which the loops around them add
        self.seen: Values = {}
        self.settled: set[str] = set()  # values that are zero where a token does not attend

    def table(self) -> tuple[Table, tuple[CachedValue, ...]]:
        """Return the decoding table and the values of its cache."""
        table = self.prefill
        values = self.declared(table.values)
        lines = self.statements(table.lines, values)
        values |= self.seen
        inputs = (*table.inputs, *(array.name for array in self.cached), *self.seen)
        grown_table = replace(table, lines=lines, values=values, inputs=inputs)
        decode = needed(grown_table, (*table.outputs, *self.outputs))
        # The keys of an encoder's self-attention grow with no decoded token, and the decoder never reads them.
        read = needed(decode, table.outputs).inputs
        caches = tuple(replace(each, axes=values[each.name].axes) for each in self.cached if each.name in read)
        if not caches:
            axes = {axis for line, _ in walk(table.lines) for axis in line.loops}
            why = "none of its layers caches keys of earlier tokens, or has a state"
            forward = f"its table has no axis {TOKENS} of tokens, only the forward pass of --procedure inference"
            raise refusal(self.name, why if TOKENS in axes else forward)
        self.check(decode)
        return decode, caches

    def declared(self, values: Mapping[str, Value]) -> Values:
        """Return the values with key axes renamed to those of all positions; cached values have the new positions."""
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
                result.extend(self.recurrence(line, values))
            elif line.name not in self.keys.places:
                result.extend(self.line(line, values))
            elif line.name in self.keys.grows:
                result.extend((*self.line(line, values), self.appended(line, values)))
            else:
                values[cache(line.name)] = Value(values[line.name].axes, "cache", line.name)
                self.cached.append(CachedValue(cache(line.name), (), tokens=False, of=line.name))
        return tuple(result)

    def recurrence(self, line: Loop, outer: Values) -> Iterator[Statement]:
        """Yield a loop; one over the new tokens begins with the state behind earlier ones, and lines keep its last."""
        if base(line.count) != TOKENS:
            yield self.repeat(line, outer)
            return
        if line.reverse and line.carry:
            raise refusal(self.name, f"its recurrence {line.carry[0].start} begins with the last token")
        names = [cache(carry.start if cache(carry.start) not in outer else carry.final) for carry in line.carry]
        for name, carry in zip(names, line.carry, strict=True):
            self.keep(CachedValue(name, (), tokens=False, of=carry.final), outer[carry.final].axes, outer)
        starts = (replace(carry, initial=name) for name, carry in zip(names, line.carry, strict=True))
        yield self.repeat(replace(line, carry=tuple(starts)), outer)
        for name, carry in zip(names, line.carry, strict=True):
            left, right = (Term(each, outer[carry.final].axes) for each in (f"{name}.2", carry.final))
            yield Sum((left,), (right,), (), meta_of(line).of_step(f"{carry.start}.cache"), (1,))

    def keep(self, array: CachedValue, axes: tuple[str, ...], values: Values) -> None:
        """Declare a state, and what it is after the step."""
        values |= {array.name: Value(axes, "cache", array.of), f"{array.name}.2": Value(axes, "new", array.name)}
        self.cached.append(array)
        self.outputs.append(f"{array.name}.2")

    def recent(self, line: Line, values: Values) -> Iterator[Line]:
        """Yield the line with the tokens that it reads at earlier positions taken from the last rows and the new ones,
        behind the lines that append these and keep the last."""
        right = list(line.right)
        for i, term in enumerate(line.right):
            if not isinstance(term, Term) or (found := lookback(term)) is None:
                continue
            place, at, kept = found
            array = CachedValue(cache(term.name), (), tokens=False, of=term.name, kept=kept)
            rows, held = f"{term.name}.recent", kept_axes(term, place, kept)
            every = (*held[:place], axis_of(RECENT, kept), *held[place + 1 :])
            known = next((each for each in self.cached if each.name == array.name), None)
            if known and (known != array or rows not in values):
                raise refusal(self.name, f"{term.name} is read at several earlier positions, in line: {line}")
            if not known:
                self.keep(array, held, values)
                values[rows] = Value(every, "value", array.name)
                appended = (Term(array.name, held), Term(term.name, term.declared))
                meta = line.meta.of_step(f"{line.meta.local}.recent")
                yield applied("append", Term(rows, every), appended, meta, (every[place],))
                yield last_rows(Term(f"{array.name}.2", held), Term(rows, every), place, line.meta)
            read = Read(every[place], replace(at, parts=total((*at.parts, AffineTerm(1, (kept,))))))
            right[i] = replace(term, name=rows, axes=(*term.axes[:place], read, *term.axes[place + 1 :]))
        yield replace(line, right=tuple(right))

    def repeat(self, line: Loop, outer: Values) -> Loop:
        values = self.declared(line.values)
        before, grown = len(self.cached), len(self.outputs)
        lines = self.statements(line.lines, values)
        each = tuple((array.name, array.name) for array in self.cached[before:])
        keep = tuple((name, name) for name in self.outputs[grown:])
        outer |= {name: values[name].stacked(line.count) for name, _ in (*each, *keep)}
        return replace(line, lines=lines, values=values, each=(*line.each, *each), keep=(*line.keep, *keep))

    def appended(self, line: Line, values: Values) -> Line:
        """Return the line that appends a value's new positions to the cached ones."""
        name, place = line.name, self.keys.places[line.name]
        if (name, place) not in self.keys.windows:
            raise refusal(self.name, f"the tokens of its {line.meta.layer.replace('_', ' ')} attend to later ones")
        if set(self.keys.of(line)) & {line.left[0].axes[place]}:
            raise refusal(self.name, f"a cached value depends on another cached value, in line: {line}")
        window = self.keys.windows[name, place]
        axes = values[name].axes
        cached, all_axes = ((*axes[:place], axis_of(axis, window), *axes[place + 1 :]) for axis in (CACHED, ALL))
        left = Term(f"{cache(name)}.2", all_axes)
        values |= {cache(name): Value(cached, "cache", name), left.name: Value(all_axes, "new", cache(name))}
        self.cached.append(CachedValue(cache(name), (), tokens=True, window=window, of=name))
        self.outputs.append(left.name)
        local = f"{line.meta.local}.cache"
        meta = replace(line.meta, equation="", local=local, locals=(local, line.meta.local), note=None)
        right = (Term(cache(name), cached), Term(name, axes))
        return applied("append", left, right, meta, (all_axes[place],))

    def line(self, line: Line, values: Values) -> Iterator[Line]:
        *before, line = self.recent(line, values)
        yield from before
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
        """Return lines in which each of several new tokens attends only to earlier ones: other scores are minus
        infinity."""
        key = axis_of(ALL, window)
        if isinstance(line, Op) and key in line.axes and entry(line.op).outside is not None:
            term, mask = line.right[0], axis_of("seen", window)
            left = Term(f"{line.name}.seen", term.axes)
            values[left.name] = Value(values[term.name].axes)
            self.seen[mask] = Value((TOKENS, key), "constant")
            right = (Term(mask, (tokens, key)), term, Literal(float("-inf")))
            meta = Meta(line.meta.layer, line.meta.block, local="seen", locals=("seen", line.meta.locals[0], ""))
            meta = replace(meta, binding=line.meta.binding, module=line.meta.module)
            yield applied("select", left, right, meta)
            line = replace(line, right=(left, *line.right[1:]))
            self.settled.add(line.name)
        elif isinstance(line, Product) and any(term.name in self.settled for term in line.right):
            self.settled.add(line.name)
        elif isinstance(line, Product) and key not in line.left[0].loops:
            raise refusal(
                self.name, f"several new tokens need a softmax over the keys that they attend to, in line: {line}"
            )
        yield line

    # What cannot be decoded.

    def check(self, table: Table) -> None:
        """Refuse lines in which a token reads values of other tokens that are not cached."""
        for line, nest in walk(table.lines):
            if isinstance(line, Op) and line.op == "append":
                continue
            left, right = ({axis for term in side for axis in term.loops} for side in (line.left, line.right))
            tokens = {axis for axis in left | right if base(axis) == TOKENS}
            acts = isinstance(line, Op) and any(base(axis) == TOKENS for axis in line.axes)
            at = any(base(axis.axis) == TOKENS for term in line.right for axis in term.indexed_axes)
            if acts or at or len(tokens) > 1 or tokens - left or (tokens and TOKENS in nest.counts):
                layer = line.meta.layer.replace("_", " ") or "it"
                raise refusal(self.name, f"{layer} reads other positions and caches nothing of them, in line: {line}")
