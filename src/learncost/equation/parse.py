"""Text to statements. Three kinds of line, calls of layers, the repeat; every error quotes its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isinf

from learncost.equation.affine import Affine, Part, total
from learncost.equation.count import Count
from learncost.equation.errors import InputError, NotationError, advice, header_advice, in_two_lines
from learncost.equation.line import Condition, Line, Opaque, Product, Sum, Tag, Word
from learncost.equation.repeat import Carry
from learncost.equation.term import Literal, Operand, Read, Term

_NAME = r"(?:(?:\d+\.)+(?![eE]\d))?[^\W\d][\w.]*"  # parts of a path may be numbers, as in 0.weight
_TOKEN = re.compile(
    rf"\s*(?:(?P<name>(?!inf\b){_NAME}'*)|(?P<number>-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf\b))|(?P<mark><=|[^\w\s]))"
)
_ORIGIN = re.compile(r"\s@\s+([^\s()\[\]{}=,;]+)(?:\s+([^\W\d][\w.:]*))?\s*$")
_EQUATION = re.compile(r"\s\(([\d][\d, ()\-]*)\)\s*$")
_HEADER = re.compile(r"^\s*([^\W\d]\w*)\s*\(([^;()]*)(?:;([^()]*))?\)\s*->\s*(.+?)\s*$")
_REPEAT = re.compile(
    r"^repeat\s+(\w+)(\s+backwards)?\s+carry\s+([\w\s,.]+?)(?:\s+each\s+([\w\s,.=]+?))?(?:\s+keep\s+([\w\s,.=]+?))?"
    r"(?:\s+shared\s+([\w\s,.]+?))?\s*:$"
)
_WHERE = re.compile(r"\swhere\s")
_SIDE = r"([^\W\d]\w*'*|\d+)"
_CONDITION = re.compile(rf"{_SIDE}\s*(<=|>=|!=|<|>|=)\s*{_SIDE}(?:\s*<\s*{_SIDE}\s*\+\s*{_SIDE})?")
_OPAQUE = re.compile(
    r"(=\s*opaque\s*\([^()]*\))(?:\s+forward\s+(.+?))?(?:\s+backward\s+(.+?))?(?:\s+source\s+\"([^\"]*)\")?\s*$"
)
_TURNED = {">": "<", ">=": "<="}


OWN = "*"
"""In the place of a call's weights: they, and the values inside, keep the names that the called layer has for them."""


@dataclass(frozen=True)
class Header:
    """`name(inputs; weights) -> outputs`."""

    name: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """`A[B M d] = attention(H, H, H; attn, N = M') where M' <= M`: replaced by the layer's lines when it is defined."""

    left: tuple[Term, ...]
    layer: str
    arguments: tuple[str, ...]
    weights: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    where: tuple[Condition, ...]
    text: str
    module: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the called lines become the caller's own."""
        return self.weights == (OWN,)


@dataclass(frozen=True)
class Block:
    """A repeat before its names are bound. `each` and `keep` are pairs of a new name and what it is made of.

    own   weights of which every turn has its own; None: all but those `shared` and those read around it
    """

    count: str
    carry: tuple[Carry, ...]
    each: tuple[tuple[str, str], ...]
    keep: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]
    lines: tuple[Parsed, ...]
    text: str
    backwards: bool = False
    own: tuple[str, ...] | None = None


Parsed = Line | Call | Block


def names_of(line: Parsed) -> Iterator[str]:
    """The names that a line reads, weights included."""
    if isinstance(line, Line):
        yield from line.reads
    elif isinstance(line, Call):
        yield from (*line.arguments, *line.weights)
    else:
        yield from (*(handed.initial for handed in line.carry), *(old for _, old in line.each), *line.shared)
        for inner in line.lines:
            yield from names_of(inner)


def makes(line: Parsed) -> tuple[str, ...]:
    """The names that a line makes."""
    if isinstance(line, Block):
        return (*(handed.final for handed in line.carry), *(new for new, _ in line.keep))
    return tuple(term.name for term in line.left)


def calls_of(lines: Iterable[Parsed]) -> Iterator[Call]:
    """The calls among lines, in their order."""
    for line in lines:
        if isinstance(line, Call):
            yield line
        elif isinstance(line, Block):
            yield from calls_of(line.lines)


def split_names(text: str | None) -> tuple[str, ...]:
    """Names parted by spaces or commas."""
    return tuple((text or "").replace(",", " ").split())


def _pairs(names: str | None, text: str) -> tuple[tuple[str, str], ...]:
    """`x=X, y=Y`: a new name and what it is made of."""
    pairs = []
    for item in split_names(re.sub(r"\s*=\s*", "=", names or "")):
        new, _, old = item.partition("=")
        if not new.isidentifier() or not _is_name(old):
            raise NotationError("`each` and `keep` take pairs, as in `each x=X z=Z keep Y=y`", text)
        pairs.append((new, old))
    return tuple(pairs)


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(_NAME, text)) and f"_{text.replace('.', '_')}".isidentifier()


def parse_header(text: str) -> Header:
    """The first line of a layer."""
    match = _HEADER.match(text)
    if not match:
        rule = "a layer begins with its header `name(inputs; weights) -> outputs`"
        raise NotationError(f"{rule}{header_advice(text)}", text or "(empty)")
    name, *groups = match.groups()
    inputs, weights, outputs = (split_names(group) for group in groups)
    for item in (*inputs, *weights, *outputs):
        if not _is_name(item):
            raise NotationError(f"{item!r} is no name: letters, digits and _ are{header_advice(text)}", text)
    if not outputs:
        raise NotationError("the header names no output behind ->", text)
    for names in ((*inputs, *weights), outputs):
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise NotationError(f"{twice[0]} stands twice in the header", text)
    return Header(name, inputs, weights, outputs)


def parse_lines(lines: Sequence[str]) -> tuple[Parsed, ...]:
    """The lines of a body; what is indented under a `repeat ...:` belongs to it."""
    result: list[Parsed] = []
    rest = [line for line in lines if line.strip()]
    while rest:
        line, *rest = rest
        indent = _indent(line)
        text = line.strip()
        if not text.startswith("repeat "):
            result.append(parse_line(text))
            continue
        match = _REPEAT.match(text)
        if not match:
            raise NotationError(
                "a repeat is written `repeat COUNT carry X:`, with `each y=Y keep Z=z shared W` before the colon, "
                "and `repeat COUNT backwards` where its last turn is the first to run",
                text,
            )
        count, backwards, carry, each, keep, shared = match.groups()
        if int(count) < 1 if count.isdecimal() else not count.isidentifier():
            raise NotationError(f"a repeat of {count} cannot run: how often is a size or a number from 1", text)
        pairs = _pairs(each, text), _pairs(keep, text)
        for names in (split_names(carry), [new for new, _ in pairs[0]], [new for new, _ in pairs[1]]):
            if twice := [name for i, name in enumerate(names) if name in names[:i]]:
                raise NotationError(f"{twice[0]} stands twice in the repeat", text)
        body = []
        while rest and _indent(rest[0]) > indent:
            body.append(rest.pop(0))
        if not body:
            raise NotationError("a repeat needs an indented body", text)
        handed = tuple(Carry(name, name, name, name) for name in split_names(carry))
        shares = split_names(shared)
        result.append(Block(count, handed, *pairs, shares, parse_lines(body), text, bool(backwards)))
    return tuple(result)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=4096)
def parse_line(text: str) -> Line | Call:
    """One line: a product, a sum, a word, or a call. Families share most of theirs, and models are composed often."""
    body, equation = _ending(text, _EQUATION)
    body, module, operator = _ending(body, _ORIGIN)
    if module and not equation:
        body, equation = _ending(body, _EQUATION)
    opaque = None
    if match := _OPAQUE.search(body):
        body, opaque = body[: match.end(1)], _opaque_cost(match, text)
    body, *conditions = _WHERE.split(body)
    where = tuple(_condition(c, text) for c in conditions)
    left, line = _read(body, where, text)
    if isinstance(line, Word):
        line = replace(line, opaque=opaque)
    tag = Tag(equation=equation, module=module, operator=operator)
    if isinstance(line, Call) and operator:
        raise NotationError(f"the lines of {line.layer} say themselves what computes them: write @ {module}", text)
    if isinstance(line, Line):
        if len(left) > 1 and not isinstance(line, Word):
            raise NotationError("several names on the left stand only before a word or a call", text)
        if not all(isinstance(term, Term) for term in left):
            raise NotationError("a name must stand on the left", text)
        return replace(line, tag=tag)
    return replace(line, module=module)


def _ending(text: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """A line without what stands at its end, and the groups of that; empty ones where nothing does."""
    match = pattern.search(text)
    if match is None:
        return (text, *("" for _ in range(pattern.groups)))
    return (text[: match.start()], *(group or "" for group in match.groups()))


def _opaque_cost(match: re.Match[str], text: str) -> Opaque:
    """What a line that is not derived says of its cost."""
    _, forward, backward, source = match.groups()
    try:
        forward, backward = (None if part is None else str(Count.parse(part)) for part in (forward, backward))
    except InputError as error:
        raise NotationError(str(error), text) from None
    return Opaque(forward, backward, source or "")


def _read(body: str, where: tuple[Condition, ...], text: str) -> tuple[list[Term], Line | Call]:
    """The left and the whole of a line; what is refused is refused with what to write instead."""
    try:
        reader = _Reader(body, text)
        left = [reader.term()]
        while not reader.take("="):
            left.append(reader.term())
        line = reader.right(tuple(left), where)
        if not reader.done:
            raise _RefusedError(f"{reader.peek!r} is not expected")
    except _RefusedError as refused:
        raise NotationError(f"{refused}{refused.advice or advice(body) or advice(text)}", text) from None
    return left, line


class _RefusedError(Exception):
    """What a line has that cannot be read, and what to write instead where that is known already."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def _condition(text: str, line: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if not match:
        raise NotationError(
            "`where` takes two axes, as in `where N <= M`, and a window's size, as in `where N <= M < N + w`, or an "
            "axis and a number, as in `where M != 0`",
            line,
        )
    lower, relation, upper, start, window = match.groups()
    if lower.isdigit() and upper.isdigit():
        raise NotationError(f"where {lower} {relation} {upper} has no axis", line)
    if window is None:
        if relation in _TURNED or (relation not in ("<", "<=") and lower.isdigit()):
            lower, upper = upper, lower
        return Condition(lower, upper, _TURNED.get(relation, relation))
    if lower.isdigit() or upper.isdigit() or relation not in ("<", "<="):
        raise NotationError("a window lies between two axes, as in `where N <= M < N + w`", line)
    if start != lower:
        right = f"{lower} {relation} {upper} < {lower} + {window}"
        raise NotationError(f"a window begins at the first axis, as in `where {right}`", line)
    if window.endswith("'"):
        raise NotationError(f"the window {window} is a size, which has no prime", line)
    if window.isdigit() and int(window) < 1:
        raise NotationError(f"the window {window} holds nothing: it is a size or a number from 1", line)
    return Condition(lower, upper, relation, window)


class _Reader:
    """Reads the tokens of one line from left to right."""

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
            raise _RefusedError(f"expected {mark!r}" + (f" before {self.peek!r}" if not self.done else " at the end"))

    def kind(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at][0] if at < len(self.tokens) else "end"

    def value(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def name(self) -> str:
        if self.kind() != "name":
            raise _RefusedError(f"expected a name{f' before {self.peek!r}' if self.peek else ' at the end'}")
        if not _is_name(self.value().rstrip("'")):
            raise _RefusedError(f"{self.value()!r} is no name: letters, digits and _ are")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def turns(self) -> str:
        """How often a repeat turns, as a number."""
        if self.kind() != "number" or not self.value().isdecimal() or int(self.value()) < 1:
            raise _RefusedError(f"an axis is called by a name, a repeat turns a whole number of times, not {self.peek}")
        self.position += 1
        return self.value(-1)

    def number(self) -> float:
        if self.kind() != "number":
            raise _RefusedError("expected a number")
        number = float(self.value())
        if isinf(number) and not self.value().endswith("inf"):
            raise _RefusedError(f"{self.value()} is larger than any number that a table computes with")
        self.position += 1
        return number

    def term(self) -> Term:
        operand = self.operand()
        if isinstance(operand, Literal):
            raise _RefusedError("a number cannot stand here")
        return operand

    def size(self) -> str:
        """A size by name, a whole number, or in parentheses a sum of sizes and whole numbers."""
        if not self.take("("):
            if self.kind() == "number" and self.value().isdigit():
                self.position += 1
                return self.value(-1)
            return self.name()
        text = ""
        while not self.take(")"):
            if text:  # the sign of a number may stand with its digits
                sign = "" if self.value().startswith("-") and self.kind() == "number" else self.value()
                if sign not in ("", "+", "-"):
                    raise _RefusedError("sizes are added, as in #(M+N)^-1[]")
                self.position += bool(sign)
                text += sign
            if self.kind() == "number" and self.value().lstrip("-").isdigit():
                text += self.value()
                self.position += 1
            else:
                text += self.name()
        if not text:
            raise _RefusedError("sizes are added, as in #(M+N)^-1[]")
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
                raise _RefusedError("a size is raised to a number, not to infinity")
            self.expect("[")
            self.expect("]")
            return Literal(1.0, tuple(sizes), power)
        name = self.name()
        if name.endswith("'"):
            raise _RefusedError(f"{name!r}: a prime belongs to an axis, not to a name")
        self.expect("[")
        axes: list[str | Read] = []
        while not self.take("]"):
            axis = self.name()
            axes.append(Read(axis, self.place()) if self.take("=") else axis)
        term = Term(name, tuple(axes))
        plain = [axis for axis in axes if isinstance(axis, str)]
        if len(set(plain)) < len(plain):
            raise _RefusedError(*twice(term))
        return term

    def place(self) -> Term | Affine:
        """Where an axis is read: at an index, `T[B M]`, or at a place that positions on axes give, `2 i + u - 1`."""
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

    def part(self, sign: int) -> Part:
        """A whole number, sizes and an axis, multiplied: `2 i`, `#k h`, `1`."""
        factor, sizes, axis = sign, [], ""
        number = self.kind() == "number"
        if number:
            value = self.number()
            if value != int(value):
                raise _RefusedError(f"a place on an axis has whole numbers, not {value:g}", ": y=2 i + u - 1")
            factor *= int(value)
        while self.take("#"):
            sizes.append(self.name())
        over = self.whole_number() if sizes and self.take("/") else 1
        if self.kind() == "name" and self.value(1) not in ("=", "["):
            axis = self.name()
        if not number and not sizes and not axis:
            raise _RefusedError("a place on an axis is written as in y=2 i + u - 1, or as an index T[B M]")
        return Part(factor, tuple(sizes), axis, over)

    def whole_number(self) -> int:
        """A whole number from 1."""
        value = self.number()
        if value != int(value) or value < 1:
            raise _RefusedError(f"a size is divided by a whole number from 1, not by {value:g}")
        return int(value)

    def right(self, left: tuple[Term, ...], where: tuple[Condition, ...]) -> Line | Call:
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
                    raise _RefusedError("a line is a product or a sum, not both", in_two_lines(self.body))
                terms.append(self.operand())
            return Product(left, tuple(terms), where)
        if not self.done:
            raise _RefusedError("a line is a product or a sum, not both", in_two_lines(self.body))
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
    ) -> Line | Call:
        """What follows a name and an open parenthesis: terms for a word, bare names for a call."""
        self.expect("(")
        bare = self.kind() == "name" and self.value(1) in (",", ")", ";")
        if bare or self.peek == ";":
            if axes:
                raise _RefusedError("a call takes names without axes before its parenthesis")
            return self.call(name, left, where)
        operands: list[Operand] = []
        while not self.take(")"):
            operands.append(self.operand())
            if not self.take(",") and self.peek != ")":
                raise _RefusedError(f"{name} takes operands with commas between them")
        return Word(left, tuple(operands), where, word=name, axes=axes)

    def call(self, layer: str, left: tuple[Term, ...], where: tuple[Condition, ...]) -> Call:
        arguments: list[str] = []
        weights: list[str] = []
        axes: list[tuple[str, str]] = []
        while self.peek not in (")", ";"):
            arguments.append(self.name())
            self.take(",")
        if self.take(";"):
            while self.peek != ")":
                name = OWN if self.take(OWN) else self.name()
                if name != OWN and self.take("="):
                    axes.append((name, self.name() if self.kind() == "name" else self.turns()))
                else:
                    weights.append(name)
                self.take(",")
        self.expect(")")
        return Call(left, layer, tuple(arguments), tuple(weights), tuple(axes), where, self.text)


def twice(term: Term) -> tuple[str, str]:
    """What is said of a term in which an axis stands twice, and what to write: a prime on every one but the first."""
    axes: list[str | Read] = []
    for axis, axis_name in zip(term.axes, term.declared, strict=True):
        while axis_name in Term("", tuple(axes)).declared:
            axis_name += "'"
        axes.append(Read(axis_name, axis.at) if isinstance(axis, Read) else axis_name)
    problem = f"an axis stands twice in {term.name}; write a second one as a prime (N and N')"
    return problem, f": {Term(term.name, tuple(axes))}"


def _tokens(body: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(body.rstrip()):
        match = _TOKEN.match(body, position)
        if not match:
            raise _RefusedError(f"{body[position]!r} is not expected")
        kind, value = match.lastgroup or "", match.group(match.lastgroup or "")
        # A minus sign before a number is a sign between terms when a term ended just before it.
        if kind == "number" and value.startswith("-") and body[:position].rstrip().endswith("]"):
            yield "mark", "-"
            value = value[1:]
        yield kind, value
        position = match.end()
