"""Gradient overrides and stops of a learning procedure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from learncost.ir.line import Line
from learncost.ir.value import IdentityKey, Value

Scope: TypeAlias = tuple[tuple[str, ...], ...]
"""The path of a scope: the names that each loop around it defines, the outermost first; () for the table."""


@dataclass(frozen=True)
class GradientSource:
    """The replacement of a gradient: its name, the lines that compute it, and the values that these read.

    beyond   for a loop-carried value: whether the gradient of the initial value is replaced, too
    """

    name: str
    lines: tuple[Line, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    beyond: bool = False


@dataclass(frozen=True)
class GradientOverrides:
    """The overrides and stops of a derivation.

    stopped   operands that get no gradient from a line: the line, and their numbers on its right
    given     by scope, values whose gradients are replaced; their readers contribute nothing
    between   by the scope of a loop, the replacement of the gradient that its iterations pass to the previous one, by
              the
              loop-carried name; by default the initial value has the gradient of the first iteration
    slices    by the scope of a loop, the values that these lines read of stacks of the same names
    """

    stopped: frozenset[tuple[IdentityKey[Line], int]] = frozenset()
    given: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    between: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    slices: Mapping[Scope, Mapping[str, Value]] = field(default_factory=dict)

    def stops(self, line: Line, i: int) -> bool:
        """Return whether an operand gets no gradient from a line."""
        return bool(self.stopped) and (IdentityKey(line), i) in self.stopped


NONE = GradientOverrides()
