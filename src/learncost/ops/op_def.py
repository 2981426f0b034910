"""Define operators: the body is an operator's meaning, and a primitive is one NumPy operation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TypeGuard

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, close_to
from learncost.ir.line import Condition, Line, Meta, Op
from learncost.ir.parse import parse_line
from learncost.ir.term import Literal, Operand, Term

Lines = tuple[Line, ...]


@dataclass(frozen=True)
class OpDef:
    """The definition of an operator; `n` stands for the axes that it acts on, `_` for all others.

    inputs    names of its operands, in order; `defaults` are literals for the last ones
    outputs   names of its results
    body      lines that compute the outputs; empty for a primitive
    gradient  lines that compute d<input> from d<output>, inputs, outputs and lines of the body
    jacobian  lines that compute J[_ n n'], the derivative of output n with respect to input n'
    symmetric  whether the Jacobian is symmetric, so that the gradient table applied to an operand's tangent gives the
               result's tangent
    tangent_texts  otherwise, by operand: lines that compute t<output> from t<operand>, inputs, outputs and the body
    conditions  operands that are boolean masks, which have no gradient
    outside   the value of an input outside a `where` on the axes that the operator acts on (minus infinity for a
              softmax); None if a `where` is not allowed
    empty     the operator that replaces it if a `where` may mask out every element
    kind      of a primitive: elementwise, reduction, constant; scan (a cumulative reduction); choice (returns
              positions as indices); move (a copy of its operand, without a gradient); collective
    inline    whether a layer's line with it is replaced by the single line of its body

    The following are set where a library's function differs from the default:

    spelled   its call by backend, with names of inputs and {axis}, or {shape} for the sizes of the last axes on which
              it acts; default of a primitive: the module's function
    called    the name of a primitive in NumPy, PyTorch and JAX, where it differs
    c         the expression of a primitive in C; default: the function of <math.h>
    work      its cost in simple operations; an inexpensive operator is recomputed where it is read
    sign      its infix operator in Python
    bound     for a minimum or maximum: torch.clamp's argument for the second operand, if that is a number
    truth     whether the result is boolean
    number    its value on scalars; default: the function of Python's math
    chooses   for a choice: "one" position, "all" in sorted order, or "some", as many as the new axis is long
    largest   for a choice: whether the largest come first
    backwards  for a scan: whether it starts at the last position
    by        for a reduction: the elementwise primitive that it repeats
    fill      for a constant: the value of every element
    makes     the kind of its results: probabilities that sum to 1, their logarithms, or normalized values
    complex   whether NumPy supports it for complex numbers, as an analytic function
    aliases   its other names
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
    aliases: tuple[str, ...] = ()

    @property
    def reduces(self) -> bool:
        """Return whether its results do not have the axes that it acts on."""
        results = [line.left[0] for line in self.body if line.name in self.outputs]
        return (
            self.kind == "reduction"
            or self.chooses in ("one", "some")
            or any(not self.pointwise and "n" not in term.declared for term in results)
        )

    def value(self, *numbers: float) -> float | None:
        """Return the value of a primitive on scalars; None if it has none."""
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
        """The lines of its tangent table, by operand."""
        return {name: _parse(text) for name, text in self.tangent_texts.items()}

    def lines(self, part: str, gives: Iterable[str]) -> Lines:
        """Return the lines of the body or a table that compute the wanted names."""
        lines: Lines = {"body": self.body, "gradient": self.gradient, "jacobian": self.jacobian}[part]
        names_needed = set(gives)
        chosen_lines: list[Line] = []
        for line in reversed(lines):
            if names_needed & {*line.makes}:
                chosen_lines.append(line)
                names_needed |= set(line.reads)
        return tuple(reversed(chosen_lines))

    def gradient_reads(self, gives: Iterable[str]) -> tuple[str, ...]:
        """Return the names that the gradient table reads: d<output>, inputs, outputs, and values of the body."""
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


def define(*ops: OpDef) -> None:
    """Register operators."""
    for op in ops:
        _entries[op.name] = op
        _aliases.update(dict.fromkeys(op.aliases, op.name))


_MODULES = r"(?i)^(?:torch|nn|functional|f|jax|jnp|np|numpy|math|scipy|special)\."


def plain(name: str) -> str:
    """Return a name in a uniform spelling: in lower case, without hyphens, spaces and the module of a library."""
    while (rest := re.sub(_MODULES, "", name)) != name:
        name = rest
    return re.sub(r"[^a-z0-9]", "", name.lower())


def op_called(name: str) -> OpDef | None:
    """Return the operator with a name in any spelling, or None."""
    by_spelling = {plain(spelling): spelling for spelling in (*_aliases, *_entries)}
    return entry(by_spelling[plain(name)]) if plain(name) in by_spelling else None


def canonical(name: str) -> str:
    """Return the canonical name of an operator for one of its spellings, such as a library's with its module."""
    if "." in name and re.match(_MODULES, name):
        return op.name if (op := op_called(name)) else name
    return _aliases.get(name, name)


def entry(name: str) -> OpDef:
    """Return the definition of an operator. Raises `InputError` for an unknown name, and suggests the nearest."""
    op = OPAQUE if name == OPAQUE.name else _entries.get(canonical(name))
    if op is None:
        typed = [each for each in _entries if _entries[each].kind != "collective"]  # only sharding adds these
        near = close_to(plain(name), [*typed, *_aliases], 0.65)
        raise InputError(f"no operator is called {name!r}" + (f"; the nearest is {near!r}" if near else ""))
    return op


def applied(
    name: str,
    left: Term,
    right: Iterable[Operand],
    meta: Meta,
    axes: Iterable[str] = (),
    where: tuple[Condition, ...] = (),
) -> Op:
    """Return the line that applies an operator to operands, in the order of its inputs."""
    op = entry(name)
    return Op((left,), tuple(right), where, meta, name, tuple(axes), "body", op.inputs, op.outputs)


OPAQUE = OpDef("opaque", (), (), kind="opaque", source="what is not derived: a line has a cost and no meaning")
"""The operator of opaque lines, which have no derivation; it accepts any operands and results, and cannot be
executed."""


def entries() -> tuple[OpDef, ...]:
    """Return every operator that a layer may use, in the order of definition, without collectives."""
    return tuple(op for op in _entries.values() if op.kind != "collective")


def is_softmax(line: object) -> TypeGuard[Op]:
    """Return whether a line is a softmax of any kind, or its gradient."""
    return isinstance(line, Op) and entry(line.op).makes == "shares"


def is_log_softmax(line: object) -> TypeGuard[Op]:
    """Return whether a line is a log-softmax, or its gradient."""
    return isinstance(line, Op) and entry(line.op).makes == "logarithms"


def is_normalization(line: object) -> TypeGuard[Op]:
    """Return whether a line is a normalization of any kind, or its gradient."""
    return isinstance(line, Op) and entry(line.op).makes == "normal"


def is_choice(line: object) -> TypeGuard[Op]:
    """Return whether the results of a line are indices, such as those of the largest values."""
    return isinstance(line, Op) and entry(line.op).kind == "choice"
