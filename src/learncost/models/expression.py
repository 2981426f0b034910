"""Evaluate the small expressions of the families' data files: derived sizes, choices, conditions.

`hidden_size / num_attention_heads`, `4 * hidden_size`, `'sliding' if i % 2 else 'full'`. They are parsed as Python and
evaluated here: names, numbers, texts, arithmetic, comparisons, and/or/not, if/else, subscripts and the functions below
are supported, anything else is refused. Sizes may be arrays, which are evaluated elementwise.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Container, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from learncost.ir.errors import InputError, shown
from learncost.ir.polynomial import larger, smaller

MOST = 10**5  # the most entries of an expanded list
BITS = 10**4  # the most bits of a power; a size has forty


class NotWholeError(InputError):
    """The error of a quotient that is not a whole number, with the texts and values of numerator and denominator."""

    def __init__(self, numerator: str, denominator: str, values: tuple[Any, Any]) -> None:
        below = denominator if denominator == str(values[1]) else f"{denominator} {values[1]}"
        super().__init__(f"{numerator} {values[0]} is not a multiple of {below}")


def names(text: str) -> frozenset[str]:
    """Return the names that an expression reads."""
    return frozenset(node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)) - FUNCTIONS.keys()


def evaluate(text: str, values: Mapping[str, Any], exact: bool = True) -> Any:
    """Return the value of an expression. Raises `InputError` if a quotient is not a whole number or a list is too
    short.

    exact   whether quotients must be whole numbers; otherwise they are rounded down, to at least 1
    """
    try:
        return _Evaluation(values, exact).of(_parsed(text))
    except InputError:
        raise
    except (ArithmeticError, TypeError, ValueError, RecursionError):  # incompatible values
        numbers = ", ".join(f"{name} = {shown(values[name])}" for name in sorted(names(text)) if name in values)
        raise InputError(f"{text} has no value{f' where {numbers}' if numbers else ''}") from None


def quotients(text: str) -> tuple[tuple[str, str], ...]:
    """Return the numerators and denominators of an expression, as text."""
    divisions = [n for n in ast.walk(_parsed(text)) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    return tuple((ast.unparse(node.left), ast.unparse(node.right)) for node in divisions)


Tree: TypeAlias = "int | str | list[Any]"
"""An expression as data: a whole number, a name, or an operator before its operands, ["/", "hidden_size", 12]."""

_SIGNS: Mapping[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Eq: "==",
    ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def tree(text: str, values: Mapping[str, Any], free: Container[str]) -> Tree:
    """Return an expression as data; names other than the `free` ones are replaced by their values.

    A report's page evaluates it in JavaScript. Raises `InputError` if the result is not integer arithmetic.
    """
    return _tree(_parsed(text), values, free)


def _tree(node: ast.expr, values: Mapping[str, Any], free: Container[str]) -> Tree:
    written = ast.unparse(node)
    if not any(name in free for name in names(written)):
        value = evaluate(written, values)
        if isinstance(value, int):
            return int(value)
        raise InputError(f"{written} is not a whole number")
    match node:
        case ast.Name(name):
            return name
        case ast.IfExp(test, body, otherwise):
            return ["if", *(_tree(part, values, free) for part in (test, body, otherwise))]
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]) if type(kind) in _SIGNS:
            return [_SIGNS[type(kind)], _tree(left, values, free), _tree(right, values, free)]
        case ast.Call(ast.Name("min" | "max" as function), operands):
            return [function, *(_tree(operand, values, free) for operand in operands)]
        case ast.BoolOp(kind, operands):
            sign = "and" if isinstance(kind, ast.And) else "or"
            return [sign, *(_tree(operand, values, free) for operand in operands)]
    raise InputError(f"{written} is not integer arithmetic")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{shown(text)} is not an expression of sizes") from None


def _expanded(groups: Any) -> list[Any]:
    """Return [[["global", "local"], 12]], GPT-Neo's `attention_types`, as a list of 24 texts."""
    result: list[Any] = []
    for group in groups:
        if not (isinstance(group, list) and len(group) == 2 and isinstance(group[0], list) and type(group[1]) is int):
            raise InputError(f"a list of pairs [kinds, times] is needed, not {shown(groups)}")
        if len(result) + len(group[0]) * group[1] > MOST:
            raise InputError(f"a list of more than {MOST:,} layers is not a configuration")
        result += group[0] * group[1]
    return result


def _last(entries: list[Any], value: Any, count: int) -> int:
    """Return the last position of a value among the first entries of a list; -1 if it is absent."""
    return max((place for place, entry in enumerate(entries[: max(count, 0)]) if entry == value), default=-1)


def _only(entries: list[Any]) -> Any:
    """Return the only nonzero value of a list, which may occur several times."""
    values = {entry: None for entry in entries if entry}
    if len(values) > 1:
        raise InputError(f"only one nonzero value is supported, not {', '.join(map(str, values))}")
    return next(iter(values), 0.0)


def _quantile(share: float) -> float:
    """Return the quantile of the normal distribution."""
    from statistics import NormalDist  # few models need it, and it loads slowly

    return NormalDist().inv_cdf(share)


def _power(base: Any, exponent: Any) -> Any:
    """Return a power. Raises `OverflowError` for a huge power of integers."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > BITS:
        raise OverflowError
    return base**exponent


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": smaller,
    "max": larger,
    "expanded": _expanded,
    "distinct": lambda entries: list(dict.fromkeys(entries)),
    "last": _last,
    "len": len,
    "only": _only,
    "quantile": _quantile,
    "log": math.log,
}
"""The functions of expressions."""

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, many: item in many,
    ast.NotIn: lambda item, many: item not in many,
}


def _operator(kind: ast.AST) -> Callable[[Any, Any], Any]:
    """Return the function of an operator. Raises `ValueError` for an unsupported one."""
    if type(kind) not in _OPERATORS:
        raise ValueError(f"no meaning: {type(kind).__name__}")
    return _OPERATORS[type(kind)]


class _Evaluation:
    def __init__(self, values: Mapping[str, Any], exact: bool) -> None:
        self.values = values
        self.exact = exact

    def of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self.values[name]
            case ast.BinOp(left, ast.Div(), right):
                return self._quotient(left, right)
            case ast.BinOp(left, kind, right):
                return _operator(kind)(self.of(left), self.of(right))
            case ast.UnaryOp(ast.Not(), operand):
                return not self.of(operand)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.of(operand)
            case ast.BoolOp(ast.And(), operands):
                return all(self.of(operand) for operand in operands)
            case ast.BoolOp(_, operands):
                return any(self.of(operand) for operand in operands)
            case ast.Compare(left, [kind], [right]):
                return _operator(kind)(self.of(left), self.of(right))
            case ast.IfExp(test, body, otherwise):
                return self.of(body if self.of(test) else otherwise)
            case ast.Subscript(value, index):
                return self._entry(value, self.of(index))
            case ast.Call(ast.Name(function), arguments) if function in FUNCTIONS:
                return FUNCTIONS[function](*map(self.of, arguments))
        raise ValueError(f"no meaning: {ast.unparse(node)}")

    def _quotient(self, left: ast.expr, right: ast.expr) -> Any:
        above, below = self.of(left), self.of(right)
        if isinstance(above, float) or isinstance(below, float):
            return above / below
        rest = above % below
        if isinstance(rest, int) and rest and self.exact:
            raise NotWholeError(ast.unparse(left), ast.unparse(right), (above, below))
        quotient = above // below
        return max(quotient, 1) if isinstance(quotient, int) and not self.exact else quotient

    def _entry(self, value: ast.expr, index: int) -> Any:
        entries = self.of(value)
        if not index < len(entries):
            raise InputError(f"{ast.unparse(value)} has {len(entries)} entries: entry {index + 1} is missing")
        return entries[index]
