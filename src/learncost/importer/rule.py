"""The registries of rules by operator name, for real and for complex operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Rule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
"""The rule of an operator, by its name without the namespace `aten` and the overload `default`."""

COMPLEX_RULES: dict[str, Rule] = {}
"""The rule of an operator for complex operands, which are pairs of real numbers."""


VIEW_RULES: set[Rule] = set()
"""Rules that only change a shape: outside values and selected positions pass through them."""

INDEX_RULES: set[Rule] = set()
"""Rules that read at selected positions; for other rules the positions are outside values."""


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register the rule of operators."""
    return _registers(RULES, names)


def view_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register the rule of operators that only change the shape of a value."""
    return _registers(RULES, names, VIEW_RULES)


def index_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register the rule of operators that read at positions."""
    return _registers(RULES, names, INDEX_RULES)


def complex_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register the rule of operators for complex numbers."""
    return _registers(COMPLEX_RULES, names)


def _registers(
    rules: dict[str, Rule], names: tuple[str, ...], kind: set[Rule] | None = None
) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        rules.update(dict.fromkeys(names, function))
        if kind is not None:
            kind.add(function)
        return function

    return register


def rule_of(name: str, rules: Mapping[str, Rule]) -> Rule | None:
    """Return the rule of an operator, or of all its overloads."""
    return rules.get(name) or rules.get(name.partition(".")[0])
