"""An entry of the vocabulary. A word means its body; primitives have none and mean a NumPy operation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from learncost.equation.errors import InputError
from learncost.equation.parse import parse_line
from learncost.equation.table import Line, Literal

Lines = tuple[Line, ...]


@dataclass(frozen=True)
class Entry:
    """A word: `n` stands for the axes it acts on, `_` for all the others.

    inputs    names of its operands, in order; `defaults` are literals for the last ones
    outputs   names of its results
    body      lines that compute the outputs; empty for a primitive
    gradient  lines that compute d<input> from d<output>, inputs, outputs and lines of the body
    jacobian  lines that compute J[_ n n'], the derivative of output n with respect to input n'
    conditions  operands that hold or not at each element: they choose, and have no gradient
    outside   the value that an input has outside a `where` (minus infinity for a softmax)
    kind      of a primitive: elementwise, reduction, or constant
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body_text: str = ""
    gradient_text: str = ""
    jacobian_text: str = ""
    defaults: tuple[Literal, ...] = ()
    conditions: tuple[str, ...] = ()
    outside: float = 0.0
    kind: str = ""
    pointwise: bool = False
    source: str = ""

    @cached_property
    def body(self) -> Lines:
        return _parse(self.body_text)

    @cached_property
    def gradient(self) -> Lines:
        return _parse(self.gradient_text)

    @cached_property
    def jacobian(self) -> Lines:
        return _parse(self.jacobian_text)

    def lines(self, part: str, gives: Iterable[str]) -> Lines:
        """The lines of a part that the wanted names need."""
        lines: Lines = {"body": self.body, "gradient": self.gradient, "jacobian": self.jacobian}[part]
        wanted = set(gives)
        kept: list[Line] = []
        for line in reversed(lines):
            if wanted & {term.name for term in line.left}:
                kept.append(line)
                wanted |= set(line.reads)
        return tuple(reversed(kept))

    def gradient_reads(self, gives: Iterable[str]) -> tuple[str, ...]:
        """What the gradient needs from outside itself: d<output>, inputs, outputs, lines of the body."""
        lines = self.lines("gradient", gives)
        own = {term.name for line in lines for term in line.left}
        return tuple(dict.fromkeys(name for line in lines for name in line.reads if name not in own))

    def jacobian_reads(self) -> tuple[str, ...]:
        own = {term.name for line in self.jacobian for term in line.left}
        return tuple(dict.fromkeys(name for line in self.jacobian for name in line.reads if name not in own))


def _parse(text: str) -> Lines:
    lines = [parse_line(line.strip()) for line in text.splitlines() if line.strip()]
    assert all(isinstance(line, Line) for line in lines)
    return tuple(line for line in lines if isinstance(line, Line))


_entries: dict[str, Entry] = {}
_aliases: dict[str, str] = {}


def define(entry: Entry, aliases: tuple[str, ...] = ()) -> Entry:
    """Add a word to the vocabulary."""
    _entries[entry.name] = entry
    _aliases.update(dict.fromkeys(aliases, entry.name))
    return entry


def plain(name: str) -> str:
    """A name without what people write differently: case, hyphens, spaces, the module that PyTorch has it in."""
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("torch.").removeprefix("nn."))


def called(name: str) -> Entry | None:
    """The word that people call so, in any case and with hyphens."""
    known = {plain(one): one for one in (*_aliases, *_entries)}
    return entry(known[plain(name)]) if plain(name) in known else None


def canonical(name: str) -> str:
    """The word's own name for one of its spellings."""
    return _aliases.get(name, name)


def entry(name: str) -> Entry:
    """The entry of a word; an unknown one is refused with the nearest known."""
    found = _entries.get(canonical(name))
    if found is None:
        near = difflib.get_close_matches(name.lower(), [*_entries, *_aliases], n=1)
        raise InputError(f"no word is called {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""))
    return found


def entries() -> tuple[Entry, ...]:
    """Every word, in the order of their definition."""
    return tuple(_entries.values())
