"""The tokenizer and recursive-descent parser of one line: terms, numbers, index expressions and operations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isinf

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.errors import as_two_lines
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.parsed import OWN_NAMES, LayerCall
from learncost.ir.polynomial import LARGEST
from learncost.ir.term import Literal, Operand, Read, Term

_NAME = r"(?:(?:\d+\.)+(?![eE]\d))?[^\W\d][\w.]*"  # parts of a path may be numbers, as in 0.weight
_TOKEN = re.compile(
    rf"\s*(?:(?P<name>(?!inf\b){_NAME}'*)|(?P<number>-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf\b))|(?P<mark><=|[^\w\s]))"
)


def is_name(text: str) -> bool:
    """Return whether a text is a name of the notation; paths such as 0.weight are names."""
    return bool(re.fullmatch(_NAME, text)) and f"_{text.replace('.', '_')}".isidentifier()


class TokenError(Exception):
    """A token that cannot be parsed, with a correction where one is known."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def integer_of(digits: str) -> int:
    """Return the integer that the digits write. Raises `TokenError` for one that is larger than `LARGEST`."""
    number = int(digits)
    if number > LARGEST:
        raise TokenError(f"{number:g} is larger than {LARGEST:,}, the largest whole number in a table")
    return number


class LineReader:
    """The parser of the tokens of one line, from left to right."""

    def __init__(self, body: str, text: str) -> None:
        self.body = body
        self.text = text
        self.tokens = list(_tokens(body))
        self.position = 0

    @property
    def done(self) -> bool:
        return self.position >= len(self.tokens)

    @property
    def peek(self) -> str:
        return "" if self.done else self.tokens[self.position][1]

    def take(self, mark: str) -> bool:
        if not self.done and self.tokens[self.position] == ("mark", mark):
            self.position += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise TokenError(f"expected {mark!r}" + (f" before {self.peek!r}" if not self.done else " at the end"))

    def kind(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at][0] if at < len(self.tokens) else "end"

    def value(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def name(self) -> str:
        if self.kind() != "name":
            raise TokenError(f"expected a name{f' before {self.peek!r}' if self.peek else ' at the end'}")
        if not is_name(self.value().rstrip("'")):
            raise TokenError(f"{self.value()!r} is not a name: use letters, digits and _")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def iterations(self) -> str:
        """Parse the trip count of a loop, as a number."""
        if self.kind() != "number" or not self.value().isdecimal() or integer_of(self.value()) < 1:
            raise TokenError(f"expected the name of an axis or a whole number of iterations, not {self.peek}")
        self.position += 1
        return self.value(-1)

    def number(self) -> float:
        if self.kind() != "number":
            raise TokenError("expected a number")
        number = float(self.value())
        if isinf(number) and not self.value().endswith("inf"):
            raise TokenError(f"{self.value()} is larger than the largest floating-point number")
        self.position += 1
        return number

    def term(self) -> Term:
        operand = self.operand()
        if isinstance(operand, Literal):
            raise TokenError("expected a value, not a number")
        return operand

    def size(self) -> str:
        """Parse a size: a name, an integer, or in parentheses a sum of sizes and integers."""
        if not self.take("("):
            if self.kind() == "number" and self.value().isdecimal():
                integer_of(self.value())
                self.position += 1
                return self.value(-1)
            return self.name()
        text = ""
        while not self.take(")"):
            if text:  # the sign of a number may be part of its token
                sign = "" if self.value().startswith("-") and self.kind() == "number" else self.value()
                if self.kind() == "name" or (self.kind() == "number" and sign):
                    sign = "*"  # as in 2 M
                elif sign not in ("", "+", "-"):
                    raise TokenError("sizes are added, as in #(M+N)^-1[]")
                else:
                    self.position += bool(sign)
                text += sign
            if self.kind() == "number" and self.value().lstrip("-").isdecimal():
                integer_of(self.value().lstrip("-"))
                text += self.value()
                self.position += 1
            else:
                text += self.name()
        if not text:
            raise TokenError("sizes are added, as in #(M+N)^-1[]")
        return text

    def operand(self) -> Operand:
        if self.kind() == "number":
            literal = Literal(self.number())
            self.expect("[")
            self.expect("]")
            return literal
        if self.take("#"):
            sizes = [self.size()]
            while self.take("#"):
                sizes.append(self.size())
            power = self.number() if self.take("^") else 1.0
            if isinf(power):
                raise TokenError("a size is raised to a number, not to infinity")
            self.expect("[")
            self.expect("]")
            return Literal(1.0, tuple(sizes), power)
        name = self.name()
        if name.endswith("'"):
            raise TokenError(f"{name!r}: a prime belongs to an axis, not to a name")
        self.expect("[")
        axes: list[str | Read] = []
        while not self.take("]"):
            axis = self.name()
            axes.append(Read(axis, self.place()) if self.take("=") else axis)
        term = Term(name, tuple(axes))
        plain = [axis for axis in axes if isinstance(axis, str)]
        if len(set(plain)) < len(plain):
            raise TokenError(*twice(term))
        return term

    def place(self) -> Term | Affine:
        """Parse where an axis is read: at an index array, `T[B M]`, or at an affine index, `2 i + u - 1`."""
        if self.kind() == "name" and self.value(1) == "[":
            return self.term()
        in_brackets = self.take("(")
        parts = [self.part(-1 if self.take("-") else 1)]
        if parts[0].factor >= 0 and self.peek == "[":  # a fixed place is written as a number, 0[]
            self.expect("[")
            self.expect("]")
        while self.peek in ("+", "-") or (self.kind() == "number" and self.value().startswith("-")):
            sign = -1 if self.take("-") else 1
            if sign > 0:
                self.take("+")
            parts.append(self.part(sign))
        if in_brackets:
            self.expect(")")
        return Affine(total(parts))

    def part(self, sign: int) -> AffineTerm:
        """Parse one summand, an integer, sizes and an axis multiplied: `2 i`, `#k h`, `1`."""
        factor, sizes, axis = sign, [], ""
        number = self.kind() == "number"
        if number:
            value = self.number()
            if not (value.is_integer() and abs(value) <= LARGEST):
                limit = f"whole numbers up to {LARGEST:,}" if abs(value) > LARGEST else "whole numbers"
                raise TokenError(f"an index on an axis takes {limit}, not {value:g}", ": y=2 i + u - 1")
            factor *= int(value)
        while self.take("#"):
            sizes.append(self.name())
        over = self.whole_number() if sizes and self.take("/") else 1
        if self.kind() == "name" and self.value(1) not in ("=", "["):
            axis = self.name()
        if not number and not sizes and not axis:
            raise TokenError("an index on an axis is written as in y=2 i + u - 1, or as an index array T[B M]")
        return AffineTerm(factor, tuple(sizes), axis, over)

    def whole_number(self) -> int:
        """Parse an integer from 1."""
        value = self.number()
        if not (value.is_integer() and 1 <= value <= LARGEST):
            raise TokenError(f"a size is divided by a whole number from 1 to {LARGEST:,}, not by {value:g}")
        return int(value)

    def right(self, left: tuple[Term, ...], where: tuple[Condition, ...]) -> Line | LayerCall:
        if self.kind() == "name":
            if self.value(1) == "(":
                name = self.name()
                return self.applied(name, (), left, where)
            if self.value(1) == "[" and self._applied_with_axes():
                name = self.name()
                self.expect("[")
                axes = []
                while not self.take("]"):
                    axes.append(self.name())
                return self.applied(name, tuple(axes), left, where)
        signs = [-1 if self.take("-") else 1]
        terms = [self.operand()]
        while not self.done and self.peek in ("+", "-"):
            signs.append(1 if self.take("+") else -1)
            if signs[-1] < 0:
                self.expect("-")
            terms.append(self.operand())
        if len(terms) == 1 and signs == [1]:
            while not self.done:
                if self.peek in ("+", "-"):
                    raise TokenError("a line is a product or a sum, not both", as_two_lines(self.body))
                terms.append(self.operand())
            return Product(left, tuple(terms), where)
        if not self.done:
            raise TokenError("a line is a product or a sum, not both", as_two_lines(self.body))
        return Sum(left, tuple(terms), where, signs=tuple(signs))

    def _applied_with_axes(self) -> bool:
        depth = 0
        for at in range(self.position + 1, len(self.tokens)):
            mark = self.tokens[at][1]
            depth += (mark == "[") - (mark == "]")
            if depth == 0:
                return at + 1 < len(self.tokens) and self.tokens[at + 1][1] == "("
        return False

    def applied(
        self, name: str, axes: tuple[str, ...], left: tuple[Term, ...], where: tuple[Condition, ...]
    ) -> Line | LayerCall:
        """Parse the operands in the parentheses after a name: terms for an op, bare names for a call of a layer."""
        self.expect("(")
        bare = self.kind() == "name" and self.value(1) in (",", ")", ";")
        if bare or self.peek == ";":
            if axes:
                raise TokenError("a call takes names without axes before its parenthesis")
            return self.call(name, left, where)
        operands: list[Operand] = []
        while not self.take(")"):
            operands.append(self.operand())
            if not self.take(",") and self.peek != ")":
                raise TokenError(f"{name} takes operands separated by commas")
        return Op(left, tuple(operands), where, op=name, axes=axes)

    def call(self, layer: str, left: tuple[Term, ...], where: tuple[Condition, ...]) -> LayerCall:
        arguments: list[str] = []
        weights: list[str] = []
        axes: list[tuple[str, str]] = []
        while self.peek not in (")", ";"):
            arguments.append(self.name())
            self.take(",")
        if self.take(";"):
            while self.peek != ")":
                name = OWN_NAMES if self.take(OWN_NAMES) else self.name()
                if name != OWN_NAMES and self.take("="):
                    axes.append((name, self.name() if self.kind() == "name" else self.iterations()))
                else:
                    weights.append(name)
                self.take(",")
        self.expect(")")
        if primed := [name for name in weights if name.endswith("'")]:
            raise TokenError(f"{primed[0]!r}: a prime belongs to an axis, not to a weight", "; an axis has N = M'")
        if OWN_NAMES in weights and len(weights) > 1:
            raise TokenError(
                f"{OWN_NAMES} stands for all weights of {layer}", "; give it alone, or a name for each weight"
            )
        if len(dict(axes)) < len(axes):
            raise TokenError(f"an axis of {layer} is named twice", "; write N = M' once")
        return LayerCall(left, layer, tuple(arguments), tuple(weights), tuple(axes), where, self.text)


def twice(term: Term) -> tuple[str, str]:
    """Return the problem of a term in which an axis occurs twice, and the correction with primes."""
    axes: list[str | Read] = []
    for axis, axis_name in zip(term.axes, term.declared, strict=True):
        while axis_name in Term("", tuple(axes)).declared:
            axis_name += "'"
        axes.append(Read(axis_name, axis.at) if isinstance(axis, Read) else axis_name)
    problem = f"an axis occurs twice in {term.name}; write the second with a prime (N and N')"
    return problem, f": {Term(term.name, tuple(axes))}"


def _tokens(body: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(body.rstrip()):
        match = _TOKEN.match(body, position)
        if not match:
            raise TokenError(f"{body[position]!r} is not expected")
        kind, value = match.lastgroup or "", match.group(match.lastgroup or "")
        # A minus sign right after a term is a sign between terms, not a part of the number.
        if kind == "number" and value.startswith("-") and body[:position].rstrip().endswith("]"):
            yield "mark", "-"
            value = value[1:]
        yield kind, value
        position = match.end()
