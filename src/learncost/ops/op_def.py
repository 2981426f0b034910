"""An entry of the vocabulary: all that is told of a word. A word means its body; primitives mean a NumPy operation."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.parse import parse_line
from learncost.ir.term import Literal

Lines = tuple[Line, ...]


@dataclass(frozen=True)
class OpDef:
    """A word: `n` stands for the axes it acts on, `_` for all the others.

    inputs    names of its operands, in order; `defaults` are literals for the last ones
    outputs   names of its results
    body      lines that compute the outputs; empty for a primitive
    gradient  lines that compute d<input> from d<output>, inputs, outputs and lines of the body
    jacobian  lines that compute J[_ n n'], the derivative of output n with respect to input n'
    symmetric  whether its Jacobian is, so that the gradient table read with an operand's tangent gives the result's
    tangent_texts  where it is not: by operand, lines that compute t<output> from t<operand>, inputs, outputs, the body
    conditions  operands that hold or not at each element: they choose, and have no gradient
    outside   the value that an input has outside a `where` on the axes it acts on (minus infinity for a softmax); None:
              the word has no meaning there
    empty     the word that it is where a `where` may leave nothing of what it acts on
    kind      of a primitive: elementwise, reduction, constant; scan: of all up to each place; choice: places, which are
              indices; move: what it was given, without a gradient;
              collective: between the devices of a mesh
    inline    a layer's line with it stands for the one line of its body

    Where the default does not do, of what libraries have a function for:

    spelled   its call by backend, with names of inputs and {axis}, or with {shape}, the sizes of the last axes, along
              which it acts; default of a primitive: the module's function
    called    what NumPy, PyTorch and JAX call a primitive, where that is not its name
    c         the expression of a primitive in C; default: the function of <math.h>
    work      how many simple operations that is: what takes few is computed again where it is read
    sign      its sign between two operands, in Python
    bound     of the larger or smaller of two: what PyTorch's clamp calls the second where that is a number
    truth     whether it says what holds
    number    its value on numbers alone; default: the function of Python's math
    chooses   of a choice: one place, all in their order, or some of them, as many as the axis is long that they get
    largest   of a choice: whether the largest come first
    backwards  of a scan: whether it begins at the last place
    by        of a reduction: the elementwise primitive that it takes again and again
    fill      of a constant: the number that stands everywhere
    makes     what numbers: shares of a whole, as a softmax; logarithms of such shares; normal ones, of one scale
    complex   whether NumPy has it for complex numbers, as an analytic function
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body_text: str = ""
    gradient_text: str = ""
    jacobian_text: str = ""
    symmetric: bool = False
    tangent_texts: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[Literal, ...] = ()
    conditions: tuple[str, ...] = ()
    outside: float | None = None
    empty: str = ""
    kind: str = ""
    pointwise: bool = False
    source: str = ""
    inline: bool = False
    spelled: Mapping[str, str] = field(default_factory=dict)
    called: str = ""
    c: str = ""
    work: int = 1
    sign: str = ""
    bound: str = ""
    truth: bool = False
    number: Callable[..., float] | None = None
    chooses: str = ""
    largest: bool = False
    backwards: bool = False
    by: str = ""
    fill: float | None = None
    makes: str = ""
    complex: bool = True

    @property
    def reduces(self) -> bool:
        """Whether its results lack the axes that it acts on."""
        results = [line.left[0] for line in self.body if line.name in self.outputs]
        return (
            self.kind == "reduction"
            or self.chooses in ("one", "some")
            or any(not self.pointwise and "n" not in term.declared for term in results)
        )

    def value(self, *numbers: float) -> float | None:
        """A primitive of numbers alone; None where it has no value."""
        function = self.number or getattr(math, self.name, None)
        try:
            return None if function is None or not self.pointwise or self.body else float(function(*numbers))
        except (ValueError, OverflowError):
            return None

    @cached_property
    def body(self) -> Lines:
        return _parse(self.body_text)

    @cached_property
    def gradient(self) -> Lines:
        return _parse(self.gradient_text)

    @cached_property
    def jacobian(self) -> Lines:
        return _parse(self.jacobian_text)

    @cached_property
    def tangents(self) -> Mapping[str, Lines]:
        """By operand, the lines of its tangent table."""
        return {name: _parse(text) for name, text in self.tangent_texts.items()}

    def lines(self, part: str, gives: Iterable[str]) -> Lines:
        """The lines of a part that the wanted names need."""
        lines: Lines = {"body": self.body, "gradient": self.gradient, "jacobian": self.jacobian}[part]
        names_needed = set(gives)
        chosen_lines: list[Line] = []
        for line in reversed(lines):
            if names_needed & {term.name for term in line.left}:
                chosen_lines.append(line)
                names_needed |= set(line.reads)
        return tuple(reversed(chosen_lines))

    def gradient_reads(self, gives: Iterable[str]) -> tuple[str, ...]:
        """What the gradient needs from outside itself: d<output>, inputs, outputs, lines of the body."""
        lines = self.lines("gradient", gives)
        makes = {term.name for line in lines for term in line.left}
        return tuple(dict.fromkeys(name for line in lines for name in line.reads if name not in makes))

    def jacobian_reads(self) -> tuple[str, ...]:
        makes = {term.name for line in self.jacobian for term in line.left}
        return tuple(dict.fromkeys(name for line in self.jacobian for name in line.reads if name not in makes))


def _parse(text: str) -> Lines:
    lines = [parse_line(line.strip()) for line in text.splitlines() if line.strip()]
    assert all(isinstance(line, Line) for line in lines)
    return tuple(line for line in lines if isinstance(line, Line))


_entries: dict[str, OpDef] = {}
_aliases: dict[str, str] = {}


def define(entry: OpDef, aliases: tuple[str, ...] = ()) -> OpDef:
    """Add a word to the vocabulary."""
    _entries[entry.name] = entry
    _aliases.update(dict.fromkeys(aliases, entry.name))
    return entry


_MODULES = re.compile(r"^(?:torch|nn|functional|f|jax|jnp|np|numpy|math|scipy|special)\.", re.IGNORECASE)


def plain(name: str) -> str:
    """A name without what people write differently: case, hyphens, spaces, the module that libraries have it in."""
    while (rest := _MODULES.sub("", name)) != name:
        name = rest
    return re.sub(r"[^a-z0-9]", "", name.lower())


def op_called(name: str) -> OpDef | None:
    """The word that people call so, in any case and with hyphens."""
    by_spelling = {plain(spelling): spelling for spelling in (*_aliases, *_entries)}
    return entry(by_spelling[plain(name)]) if plain(name) in by_spelling else None


def canonical(name: str) -> str:
    """The word's own name for one of its spellings, which may have the module that a library has it in."""
    if "." in name and _MODULES.match(name):
        return op.name if (op := op_called(name)) else name
    return _aliases.get(name, name)


def entry(name: str) -> OpDef:
    """The entry of a word; an unknown one is refused with the nearest known."""
    op = OPAQUE if name == OPAQUE.name else _entries.get(canonical(name))
    if op is None:
        typed = [each for each in _entries if _entries[each].kind != "collective"]  # those, placements write
        near = difflib.get_close_matches(plain(name), [*typed, *_aliases], n=1, cutoff=0.65)
        raise InputError(f"no word is called {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""))
    return op


OPAQUE = OpDef("opaque", (), (), kind="opaque", source="what is not derived: a line has a cost and no meaning")
"""No word like others, so it is not among them: any operands, any results, nothing to run."""


def entries() -> tuple[OpDef, ...]:
    """Every word that a layer may be written with, in the order of their definition: collectives are not among them."""
    return tuple(op for op in _entries.values() if op.kind != "collective")
