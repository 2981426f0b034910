"""Declarations about a layer: `sizes: d=768 f=3072`, `limits: M<=1024`, `frozen: W1 W2`, `unread: 4096`.

Roles of inputs are declared too, a line each: `targets: index of v`, `share: share of targets`, `last: end of M`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, NotationError, close_to
from learncost.ir.loop import walk, windows
from learncost.ir.parse import split_names
from learncost.ir.parsed import Header
from learncost.ir.polynomial import LARGEST as LARGEST
from learncost.ir.polynomial import Polynomial, base, names_of_sizes
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ir.value import GIVEN, INDICES, IdentityKey, Value

_STATEMENT = re.compile(r"^\s*(sizes|limits|frozen|unread|unused|follows|undecided|stored)\s*:(.*)$")
_FOLLOWS = r"([^\W\d]\w*)=([\w+*/()-]+)"
_SIZE = r"([^\W\d]\w*)=(\d[\d_]*)"
_LIMIT = r"([^\W\d]\w*)(<=|>=)(\d[\d_]*)"


@dataclass(frozen=True)
class Limit:
    """The range of values of a size for which the lines are valid."""

    least: int = 1
    most: int = LARGEST

    def __and__(self, other: Limit) -> Limit:
        return Limit(max(self.least, other.least), min(self.most, other.most))

    def holds(self, size: int) -> bool:
        """Return whether a size is within the range."""
        return self.least <= size <= self.most

    def text(self, letter: str) -> str:
        """Return the range in the notation, `M>=4 M<=1024`."""
        least = [f"{letter}>={self.least}"] if self.least > 1 else []
        return " ".join([*least, *([f"{letter}<={self.most}"] if self.most < LARGEST else [])])


@dataclass(frozen=True)
class StateDictEntry:
    """The entry of a module's state_dict that holds a weight, a buffer or a running statistic.

    paths  for each iteration of a loop that stacks it, the paths that share the value
    shape  there, for one iteration; None: that of its axes
    """

    paths: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...] | None = None

    @staticmethod
    def usual(name: str, iterations: int | None) -> StateDictEntry:
        """Return the entry whose path is the name; in a stack, the iteration's number replaces `each`."""
        parts = name.split(".")
        numbered = (
            ".".join(str(iteration) if part == "each" else part for part in parts)
            for iteration in range(iterations or 0)
        )
        return StateDictEntry(((name,),) if iterations is None else tuple((path,) for path in numbered))

    def text(self, name: str) -> str:
        """Return the entry in the notation, `stored: W path path [4,1,3]`."""
        paths = ["=".join(several) for several in self.paths]
        shape = [] if self.shape is None else [f"[{','.join(map(str, self.shape))}]"]
        return " ".join(["stored:", name, *paths, *shape])


def _is_expression(text: str) -> bool:
    """Return whether Python's parser accepts the text; sizes are Python expressions."""
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@dataclass
class Stated:
    """The declarations about a layer.

    sizes   of its axes, counts and windows: those that it fixes
    limits  of sizes that it leaves open: `limits: M<=1024 H>=32`
    frozen  weights that are not trainable
    follows  sizes that depend on others, with an expression each: `follows: y=(H-1)//2+1`
    unread  the number of stored parameters that no line reads; None: not declared
    unused  forward FLOPs of its source module, in its sizes, whose results no output needs and no line contains
    undecided  sizes that depend on the values of an input, such as how many positions a mask selects
    stored  the state_dict entries of its source module whose names differ from those here
    """

    sizes: dict[str, int] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    unread: int | None = None
    unused: Polynomial | None = None
    follows: dict[str, str] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    stored: dict[str, StateDictEntry] = field(default_factory=dict)

    def take(self, line: str) -> bool:
        """Store the declaration of a line; return whether it was one. Raises `NotationError`."""
        match = _STATEMENT.match(line)
        if match:
            takes = {
                "sizes": self._sizes,
                "limits": self._limits,
                "frozen": self._frozen,
                "unread": self._unread,
                "unused": self._unused,
                "follows": self._follows,
                "undecided": self._undecided,
                "stored": self._stored,
            }
            takes[match[1]](match[2], line)
        return match is not None

    def _sizes(self, text: str, line: str) -> None:
        for item in split_names(re.sub(r"\s*=\s*", "=", text)):
            match = re.fullmatch(_SIZE, item)
            if match is None or not 1 <= int(match[2]) <= LARGEST:
                problem = f"a size is a name and a whole number from 1 to {LARGEST:,}, as in `sizes: d=768 f=3072`"
                raise NotationError(f"{problem}, not {item!r}", line)
            if self.sizes.setdefault(match[1], int(match[2])) != int(match[2]):
                raise NotationError(f"{match[1]} is {self.sizes[match[1]]} already: give it once", line)

    def _limits(self, text: str, line: str) -> None:
        for item in split_names(re.sub(r"\s*([<>]=)\s*", r"\1", text)):
            match = re.fullmatch(_LIMIT, item)
            if match is None or not 1 <= int(match[3]) <= LARGEST:
                raise NotationError(
                    f"a limit is a size and its largest or smallest value, as in `limits: M<=1024`, not {item!r}", line
                )
            limit = Limit(most=int(match[3])) if match[2] == "<=" else Limit(int(match[3]))
            both = self.limits[match[1]] = self.limits.get(match[1], Limit()) & limit
            if both.least > both.most:
                raise NotationError(f"no {match[1]} is within {both.text(match[1])}", line)

    def _frozen(self, text: str, line: str) -> None:
        self.frozen += [name for name in split_names(text) if name not in self.frozen]

    def _follows(self, text: str, line: str) -> None:
        for item in text.split():
            match = re.fullmatch(_FOLLOWS, item)
            if match is None or match[1] in self.follows or not _is_expression(match[2]):
                problem = "a size that depends on others is written once and without spaces, as in `follows: y=H//2+1`"
                raise NotationError(f"{problem}, not {item!r}", line)
            self.follows[match[1]] = match[2]

    def _undecided(self, text: str, line: str) -> None:
        self.undecided += [name for name in split_names(text) if name not in self.undecided]

    def _stored(self, text: str, line: str) -> None:
        name, *ops = text.split() or [""]
        shape = ops.pop() if ops and ops[-1].startswith("[") else None
        if not name or (shape is not None and not re.fullmatch(r"\[(\d+(,\d+)*)?\]", shape)):
            raise NotationError(
                "a state_dict entry is written `stored: W net.0.weight [4,1,3,3]`: the name, its paths, "
                "its shape there",
                line,
            )
        sizes = None if shape is None else tuple(map(int, re.findall(r"\d+", shape)))
        self.stored[name] = StateDictEntry(tuple(tuple(op.split("=")) for op in ops), sizes)

    def _unread(self, text: str, line: str) -> None:
        if not text.strip().isdecimal():
            raise NotationError("the number of unread parameters must be a whole number, as in `unread: 4096`", line)
        if self.unread is not None:
            raise NotationError("`unread:` occurs twice", line)
        self.unread = int(text)

    def _unused(self, text: str, line: str) -> None:
        if self.unused is not None:
            raise NotationError("`unused:` occurs twice", line)
        try:
            self.unused = Polynomial.operations(text)
        except InputError as error:
            raise NotationError(f"`unused:` takes FLOPs, as in `unused: 2 B M d`; {error}", line) from None

    def check(self, table: Table) -> None:
        """Raise `NotationError` for declared sizes of no axis and for frozen names that are not weights."""
        of_sizes = tuple(size_names(table)), "not the size of an axis, count or window"
        stated = {
            "sizes": ([*self.sizes, *self.follows], *of_sizes),
            "limits": (self.limits, *of_sizes),
            "undecided": (self.undecided, *of_sizes),
            "frozen": (self.frozen, table.weights, "not a weight"),
        }
        for kind, (given, known, meant) in stated.items():
            for name in given:
                if name not in known:
                    near = close_to(name, known)
                    there = f"the nearest is {near}" if near else f"there are {', '.join(known[:12]) or 'none'}"
                    raise NotationError(f"`{kind}:` names {name}, which is {meant} of {table.title}; {there}")


def size_names(table: Table) -> Mapping[str, None]:
    """Return the names of all sizes of a table, in the order in which its values and lines have them.

    They are those of axes, trip counts of loops, windows, and sizes that only numbers and indices read.
    """
    return _size_names(IdentityKey(table))


@lru_cache(maxsize=64)
def _size_names(same: IdentityKey[Table]) -> Mapping[str, None]:
    table, names = same.content, dict[str, None]()
    for name in (*table.inputs, *table.weights):
        names |= dict.fromkeys(map(base, table.axes.get(name, ())))
    for line, nest in walk(table.lines):
        names |= dict.fromkeys(nest.counts)
        names |= dict.fromkeys(map(base, line.loops))
        for term in (*line.left, *line.right):
            names |= dict.fromkeys(_sizes_of(term))
    for value in table.known.values():
        names |= dict.fromkeys(map(base, value.axes))
    names |= dict.fromkeys(windows(table.lines))
    return MappingProxyType({name: None for name in names if not name.isdigit()})


def _sizes_of(operand: Operand | Affine) -> Iterator[str]:
    """Yield the sizes that a term reads: of its declared axes, of its numbers and indices."""
    if isinstance(operand, Literal):
        for size in operand.sizes:
            yield from names_of_sizes(size)
    elif isinstance(operand, Affine):
        yield from map(base, operand.sizes)
    else:
        yield from map(base, operand.declared)
        for axis in operand.indexed_axes:
            yield from _sizes_of(axis.at)


_ROLE = re.compile(r"^\s*([^\W\d][\w.]*)\s*:\s*(\w+)\s+of\s+([^\W\d][\w.]*'*)\s*$")
_CONSTANTS = "constants:"


def role(line: str) -> dict[str, Value]:
    """Parse the inputs that a line declares, with their roles; return {} for any other line.

    `tokens: index of v` holds indices on the axis v, and so does `types: kind of s`, which defaults to 0; `share: share
    of targets` holds -1/count where there is a target and 0 elsewhere, `sign: sign of targets` 1 for yes and -1 for no,
    `last: end of M` the last position of a sequence, `c: buffer of e` numbers that are stored with the weights and
    default to 0; `constants: S` have no gradient.
    """
    if line.strip().startswith(_CONSTANTS):
        return {name: Value((), "constant") for name in split_names(line.partition(":")[2])}
    match = _ROLE.match(line)
    if not match:
        return {}
    name, kind_text, of = match.groups()
    for kind in GIVEN:
        if kind == kind_text:
            return {name: Value((), kind, of)}
    raise NotationError(f"the role of an input must be one of {', '.join(sorted(GIVEN))}, not {kind_text}", line)


def spelled(roles: Mapping[str, Value], header: Header) -> dict[str, Value]:
    """Return the roles with `constants: share` next to targets as `share: share of targets`, the form it replaces."""
    spelled_roles = dict(roles)
    if "share" in spelled_roles and spelled_roles["share"].role == "constant" and "targets" in header.inputs:
        spelled_roles["share"] = Value((), "share", "targets")
    return spelled_roles


def check(table: Table, header: Header, roles: Mapping[str, Value]) -> None:
    """Raise `NotationError` for a declaration of an input that the lines contradict."""
    places = places_read(table)
    signed = {value.of for value in roles.values() if value.role == "sign"}
    for name, value in roles.items():
        statement = f"{name}: {value.role} of {value.of}"
        if name not in header.inputs:
            raise NotationError(f"{name} is not an input of {header.name}", statement if value.of else name)
        if value.role in INDICES:
            if name not in places:
                raise NotationError(f"{name} is read as a value, not as an index of {value.of}", statement)
            if base(value.of) not in map(base, places[name]):
                read = " and ".join(dict.fromkeys(places[name]))
                raise NotationError(f"{name} is read as an index of {read}, not of {value.of}", statement)
        elif value.role == "share" and value.of not in (*header.inputs, *signed):
            raise NotationError(f"{value.of} is not an input of {header.name}", statement)
        elif value.role == "share" and value.of not in (*places, *signed):
            raise NotationError(
                f"{value.of} holds values; a share needs targets that are indices: declare {value.of}: index of v",
                statement,
            )


def indexed(table: Table) -> dict[str, str]:
    """Return the axis that each index array indexes, in every scope; the first of several."""
    return {name: axes[0] for name, axes in places_read(table).items()}


def places_read(table: Table) -> dict[str, list[str]]:
    """Return the axes that each index array indexes, in every scope."""
    axis_of: dict[str, list[str]] = {}
    for line, nest in walk(table.lines):
        for term in (*line.left, *line.terms):
            axes = nest.axes if term.name in nest.axes else table.axes
            reads = ((axis.at, axes[term.name][i]) for i, axis in enumerate(term.axes) if isinstance(axis, Read))
            for at, axis in reads:
                if isinstance(at, Term):
                    for name in dict.fromkeys((at.name, nest.stacks.get(at.name, at.name))):
                        axis_of.setdefault(name, []).append(axis)
    return axis_of
