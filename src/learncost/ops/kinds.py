"""The kinds of operators that analyses and passes look for, as predicates of lines."""

from __future__ import annotations

from typing import TypeGuard

from learncost.ir.line import Op
from learncost.ops import entry


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
