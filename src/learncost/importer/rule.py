"""The rules of operators by name: what each does to operands, and what it does where one is of complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Rule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=Rule)

RULES: dict[str, Rule] = {}
"""What an operator does, by its name without the namespace `aten` and the overload `default`."""

COMPLEX_RULES: dict[str, Rule] = {}
"""What an operator does where an operand is a pair of real numbers."""


VIEW_RULES: set[Rule] = set()
"""Rules that only look at a value otherwise: what is outside of a table stays so, and what is chosen too."""

INDEX_RULES: set[Rule] = set()
"""Rules that read at chosen places; for others the places are outside."""


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers the rule of operators."""
    return _registers(RULES, names)


def view_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers the rule of operators that only look at a value otherwise."""
    return _registers(RULES, names, VIEW_RULES)


def index_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers the rule of operators that read at places."""
    return _registers(RULES, names, INDEX_RULES)


def complex_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers what operators do with complex numbers."""
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
    """The rule of an operator, or of all its overloads."""
    return rules.get(name) or rules.get(name.partition(".")[0])
