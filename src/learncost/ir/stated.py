"""What a layer states of the whole: `sizes: d=768 f=3072`, `limits: M<=1024`, `frozen: W1 W2`, `unread: 4096`."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from learncost.ir.affine import Affine
from learncost.ir.errors import InputError, NotationError
from learncost.ir.loop import walk, windows
from learncost.ir.parse import split_names
from learncost.ir.polynomial import LARGEST as LARGEST
from learncost.ir.polynomial import Polynomial, base, names_of_sizes
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read
from learncost.ir.value import IdentityKey

_STATEMENT = re.compile(r"^\s*(sizes|limits|frozen|unread|unused|follows|undecided|stored)\s*:(.*)$")
_FOLLOWS = re.compile(r"([^\W\d]\w*)=([\w+*/()-]+)")
_SIZE = re.compile(r"([^\W\d]\w*)=(\d[\d_]*)")
_LIMIT = re.compile(r"([^\W\d]\w*)(<=|>=)(\d[\d_]*)")


@dataclass(frozen=True)
class Limit:
    """The sizes that a letter may have: those that its lines are written for."""

    least: int = 1
    most: int = LARGEST

    def __and__(self, other: Limit) -> Limit:
        return Limit(max(self.least, other.least), min(self.most, other.most))

    def holds(self, size: int) -> bool:
        """Whether the letter may have a size."""
        return self.least <= size <= self.most

    def text(self, letter: str) -> str:
        """`M>=4 M<=1024`."""
        least = [f"{letter}>={self.least}"] if self.least > 1 else []
        return " ".join([*least, *([f"{letter}<={self.most}"] if self.most < LARGEST else [])])


@dataclass(frozen=True)
class StateDictEntry:
    """Where the state_dict of a module has a weight, a buffer or a running statistic.

    paths  of each turn, where a repeat has a stack of them, the names of one that has several together
    shape  there, of one turn; None: that of its axes
    """

    paths: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...] | None = None

    @staticmethod
    def usual(name: str, iterations: int | None) -> StateDictEntry:
        """Return that of a name that is a path itself; of a stack `each` stands for the number of the turn."""
        parts = name.split(".")
        numbered = (
            ".".join(str(iteration) if part == "each" else part for part in parts)
            for iteration in range(iterations or 0)
        )
        return StateDictEntry(((name,),) if iterations is None else tuple((path,) for path in numbered))

    def text(self, name: str) -> str:
        """`stored: W path path [4,1,3]`."""
        paths = ["=".join(several) for several in self.paths]
        shape = [] if self.shape is None else [f"[{','.join(map(str, self.shape))}]"]
        return " ".join(["stored:", name, *paths, *shape])


def _is_expression(text: str) -> bool:
    """Whether Python's parser reads it, which reads the expressions of sizes."""
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@dataclass
class Stated:
    """What lines state of the whole layer.

    sizes   of its axes, counts and windows: those that it fixes
    limits  of sizes that it leaves open: `limits: M<=1024 H>=32`
    frozen  weights that do not learn
    follows  sizes that follow from others, with an expression each: `follows: y=(H-1)//2+1`
    unread  how many parameters are stored with it that no line reads; None: nothing is said
    unused  FLOPs forward of a module that it was read from, in its sizes, of which nothing follows and no line tells
    undecided  sizes that the values of an input decide, such as how many places a mask selects
    stored  where the state_dict of the module that it was read from has what is called otherwise here
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
        """Whether the line states such a thing, which is kept. Raises `NotationError`."""
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
            match = _SIZE.fullmatch(item)
            if match is None or not 1 <= int(match[2]) <= LARGEST:
                problem = f"a size is a name and a whole number from 1 to {LARGEST:,}, as in `sizes: d=768 f=3072`"
                raise NotationError(f"{problem}, not {item!r}", line)
            if self.sizes.setdefault(match[1], int(match[2])) != int(match[2]):
                raise NotationError(f"{match[1]} is {self.sizes[match[1]]} already", line)

    def _limits(self, text: str, line: str) -> None:
        for item in split_names(re.sub(r"\s*([<>]=)\s*", r"\1", text)):
            match = _LIMIT.fullmatch(item)
            if match is None or not 1 <= int(match[3]) <= LARGEST:
                raise NotationError(
                    f"a limit is a size and a number that it does not pass, as in `limits: M<=1024`, not {item!r}", line
                )
            said = Limit(most=int(match[3])) if match[2] == "<=" else Limit(int(match[3]))
            both = self.limits[match[1]] = self.limits.get(match[1], Limit()) & said
            if both.least > both.most:
                raise NotationError(f"no {match[1]} is within {both.text(match[1])}", line)

    def _frozen(self, text: str, line: str) -> None:
        self.frozen += [name for name in split_names(text) if name not in self.frozen]

    def _follows(self, text: str, line: str) -> None:
        for item in text.split():
            match = _FOLLOWS.fullmatch(item)
            if match is None or match[1] in self.follows or not _is_expression(match[2]):
                problem = (
                    "a size that follows from others is written once and without spaces, as in `follows: y=H//2+1`"
                )
                raise NotationError(f"{problem}, not {item!r}", line)
            self.follows[match[1]] = match[2]

    def _undecided(self, text: str, line: str) -> None:
        self.undecided += [name for name in split_names(text) if name not in self.undecided]

    def _stored(self, text: str, line: str) -> None:
        name, *ops = text.split() or [""]
        shape = ops.pop() if ops and ops[-1].startswith("[") else None
        if not name or (shape is not None and not re.fullmatch(r"\[(\d+(,\d+)*)?\]", shape)):
            raise NotationError(
                "what a state_dict calls otherwise is written `stored: W net.0.weight [4,1,3,3]`: the name, its paths, "
                "its shape there",
                line,
            )
        sizes = None if shape is None else tuple(map(int, re.findall(r"\d+", shape)))
        self.stored[name] = StateDictEntry(tuple(tuple(op.split("=")) for op in ops), sizes)

    def _unread(self, text: str, line: str) -> None:
        if not text.strip().isdecimal():
            raise NotationError("how many parameters nothing reads is a whole number, as in `unread: 4096`", line)
        if self.unread is not None:
            raise NotationError("`unread:` stands twice", line)
        self.unread = int(text)

    def _unused(self, text: str, line: str) -> None:
        if self.unused is not None:
            raise NotationError("`unused:` stands twice", line)
        try:
            self.unused = Polynomial.operations(text)
        except InputError as error:
            raise NotationError(f"what nothing reads are FLOPs, as in `unused: 2 B M d`; {error}", line) from None

    def check(self, table: Table) -> None:
        """Refuse what the table does not have: sizes of no axis, frozen names that are no weights."""
        sizes, of_none = tuple(size_names(table)), "the size of no axis, count or window"
        known = {"sizes": sizes, "limits": sizes, "undecided": sizes, "frozen": table.weights}
        meant = {"sizes": of_none, "limits": of_none, "undecided": of_none, "frozen": "no weight"}
        stated = {
            "sizes": [*self.sizes, *self.follows],
            "limits": self.limits,
            "undecided": self.undecided,
            "frozen": self.frozen,
        }
        for kind, given in stated.items():
            for name in given:
                if name not in known[kind]:
                    near = difflib.get_close_matches(name, known[kind], n=1)
                    there = (
                        f"the nearest is {near[0]}" if near else f"there are {', '.join(known[kind][:12]) or 'none'}"
                    )
                    raise NotationError(f"`{kind}:` names {name}, which is {meant[kind]} of {table.title}; {there}")


def size_names(table: Table) -> Mapping[str, None]:
    """The names of all sizes of a table, in the order in which its values and lines have them.

    They are those of axes, counts of repeats, windows, and sizes that only numbers and places read.
    """
    return _size_names(IdentityKey(table))


@lru_cache(maxsize=64)
def _size_names(same: IdentityKey[Table]) -> Mapping[str, None]:
    table, names = same.content, dict[str, None]()
    for name in (*table.inputs, *table.weights):
        names |= dict.fromkeys(map(base, table.axes.get(name, ())))
    for line, iterations in walk(table.lines):
        names |= dict.fromkeys(iterations)
        names |= dict.fromkeys(map(base, line.loops))
        for term in (*line.left, *line.right):
            names |= dict.fromkeys(_sizes_of(term))
    for value in table.known.values():
        names |= dict.fromkeys(map(base, value.axes))
    names |= dict.fromkeys(windows(table.lines))
    return MappingProxyType({name: None for name in names if not name.isdigit()})


def _sizes_of(operand: Operand | Affine) -> Iterator[str]:
    """The sizes that a term reads: of the axes that it is declared with, of its numbers and places."""
    if isinstance(operand, Literal):
        for size in operand.sizes:
            yield from names_of_sizes(size)
    elif isinstance(operand, Affine):
        yield from map(base, operand.sizes)
    else:
        yield from map(base, operand.declared)
        for axis in operand.axes:
            if isinstance(axis, Read):
                yield from _sizes_of(axis.at)
