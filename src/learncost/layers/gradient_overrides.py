"""Cuts: where a gradient does not go on as it would, because a learning procedure stops it or has it from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from learncost.ir.line import Line
from learncost.ir.value import IdentityKey, Value

Scope: TypeAlias = tuple[tuple[str, ...], ...]
"""Where names stand: what each of the repeats around them makes, the outermost first; of a table's own names none."""


@dataclass(frozen=True)
class GradientSource:
    """What stands for a gradient: its name, the lines that make it, and what is known of the values that these read.

    beyond   of what turns hand on: whether what is before the repeat is handed it, too
    """

    name: str
    lines: tuple[Line, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    beyond: bool = False


@dataclass(frozen=True)
class GradientOverrides:
    """What of a table's derivation is cut.

    stopped   operands that get no gradient of a line: the line, and their places on its right
    given     by scope, values whose gradients come from elsewhere; what reads them hands nothing back
    between   by the scope of a repeat, what its turns hand on to the turn before in the place of the gradient of what
              they were handed, by that one's name; what is before the repeat has the gradient of the first turn, if
              nothing else is said
    slices    by the scope of a repeat, what these lines read of stacks of the same names, and what is known of it
    """

    stopped: frozenset[tuple[IdentityKey[Line], int]] = frozenset()
    given: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    between: Mapping[Scope, Mapping[str, GradientSource]] = field(default_factory=dict)
    slices: Mapping[Scope, Mapping[str, Value]] = field(default_factory=dict)

    def stops(self, line: Line, i: int) -> bool:
        """Whether an operand gets no gradient of a line."""
        return bool(self.stopped) and (IdentityKey(line), i) in self.stopped


NONE = GradientOverrides()
