"""The parser of layers: three kinds of line, calls of layers, and loops; every error quotes its line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError, NotationError, advice, header_advice
from learncost.ir.line import Condition, Line, Meta, Op, Opaque, RunningStatistics
from learncost.ir.line_reader import LineReader, TokenError, integer_of, is_name
from learncost.ir.loop import Carry
from learncost.ir.parsed import Header, LayerCall, Parsed, ParsedLoop
from learncost.ir.polynomial import Polynomial
from learncost.ir.term import Term

_ORIGIN = re.compile(
    r"\s@\s+([^\s()\[\]{}=,;]+)(?:\s+(?!again\s+\d)([^\W\d][\w.:]*))?(?:\s+again\s+(\d+!{0,2}-?(?:/\d+!{0,2}-?)*))?\s*$"
)
LONGEST_SHARE = 40
"""A share is written in up to so many characters."""

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
    r"(=\s*opaque\s*\([^()]*\))(?:\s+forward\s+(.+?))?(?:\s+backward\s+(.+?))?(?:\s+visible\s+(\S+))?"
    r"(?:\s+source\s+\"([^\"]*)\")?\s*$"
)
_RUNNING = re.compile(
    r"\srunning\s+([^\s\[\]]+)\[([^\[\]]*)\]\s+([^\s\[\]]+)\[\2\](?:\s+([^\s\[\]]+)\[\])?\s+momentum\s+(\S+)\s*$"
)
_MIRRORED = {">": "<", ">=": "<="}


def split_names(text: str | None) -> tuple[str, ...]:
    """Split names at spaces and commas."""
    return tuple((text or "").replace(",", " ").split())


def _pairs(names: str | None, text: str) -> tuple[tuple[str, str], ...]:
    """Parse the pairs `x=X, y=Y` of a new name and its source."""
    pairs = []
    for item in split_names(re.sub(r"\s*=\s*", "=", names or "")):
        new, _, old = item.partition("=")
        if not new.isidentifier() or not is_name(old):
            raise NotationError("`each` and `keep` take pairs, as in `each x=X z=Z keep Y=y`", text)
        pairs.append((new, old))
    return tuple(pairs)


def parse_header(text: str) -> Header:
    """Parse the header of a layer."""
    match = _HEADER.match(text)
    if not match:
        rule = "a layer must begin with its header `name(inputs; weights) -> outputs`"
        raise NotationError(f"{rule}{header_advice(text)}", text or "(empty)")
    name, *groups = match.groups()
    inputs, weights, outputs = (split_names(group) for group in groups)
    for item in (*inputs, *weights, *outputs):
        if not is_name(item):
            raise NotationError(f"{item!r} is not a name: use letters, digits and _{header_advice(text)}", text)
    if not outputs:
        raise NotationError("the header names no output after ->", text)
    for names in ((*inputs, *weights), outputs):
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise NotationError(f"{twice[0]} occurs twice in the header", text)
    return Header(name, inputs, weights, outputs)


def parse_lines(lines: Sequence[str]) -> tuple[Parsed, ...]:
    """Parse the lines of a body; lines that are indented under a `repeat ...:` belong to it."""
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
        if not match or not split_names(match[3]):
            raise NotationError(
                "a loop is written `repeat COUNT carry X:`, with `each y=Y keep Z=z shared W` before the colon, "
                "and `repeat COUNT backwards` to run the last iteration first",
                text,
            )
        count, backwards, carry, each, keep, shared = match.groups()
        if _whole(count, text) < 1 if count.isdecimal() else not count.isidentifier():
            raise NotationError(f"a loop cannot run {count} times: the count must be a size or a number from 1", text)
        pairs = _pairs(each, text), _pairs(keep, text)
        for names in (split_names(carry), [new for new, _ in pairs[0]], [new for new, _ in pairs[1]]):
            if twice := [name for i, name in enumerate(names) if name in names[:i]]:
                raise NotationError(f"{twice[0]} occurs twice in the loop", text)
        body = []
        while rest and _indent(rest[0]) > indent:
            body.append(rest.pop(0))
        if not body:
            raise NotationError("a loop needs an indented body", text)
        handed = tuple(Carry(name, name, name, name) for name in split_names(carry))
        shares = split_names(shared)
        result.append(ParsedLoop(count, handed, *pairs, shares, parse_lines(body), text, bool(backwards)))
    return tuple(result)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=4096)
def parse_line(text: str) -> Line | LayerCall:
    """Parse one line: a product, a sum, an op, or a call. The results are cached, since families share most lines."""
    body, equation = _ending(text, _EQUATION)
    body, module, operator, again = _ending(body, _ORIGIN)
    if module and not equation:
        body, equation = _ending(body, _EQUATION)
    if statistics := _RUNNING.search(body):
        body = body[: statistics.start()]
    opaque = None
    if match := _OPAQUE.search(body):
        body, opaque = body[: match.end(1)], _opaque_cost(match, text)
    body, *conditions = _WHERE.split(body)
    where = tuple(_condition(c, text) for c in conditions)
    left, line = _read(body, where, text)
    if isinstance(line, Op):
        line = replace(line, opaque=opaque)
    meta = Meta(equation=equation, module=module, operator=operator, again=again)
    if isinstance(line, LayerCall) and (operator or again):
        raise NotationError(f"the lines of {line.layer} name their own operators: write only @ {module}", text)
    if isinstance(line, Line):
        if len(left) > 1 and not isinstance(line, Op):
            raise NotationError("only an operator or a call may have several names on the left", text)
        if not all(isinstance(term, Term) for term in left):
            raise NotationError("the left side must be a name", text)
        if statistics:
            meta = replace(meta, running=_running(statistics, line, text))
        return replace(line, meta=meta)
    return replace(line, module=module)


def _running(match: re.Match[str], line: Line, text: str) -> RunningStatistics:
    """Return the statistics that a normalization updates: their axes are among those of its result."""
    mean, axes, variance, count, momentum = match.groups()
    rule = "`running` follows a normalize, as in `running m[c] v[c] n[] momentum 0.1`"
    result = line.left[0].axes
    if not isinstance(line, Op) or line.op != "normalize" or not set(axes.split()) <= set(result) - set(line.axes):
        raise NotationError(f"{rule}, with axes that it does not act on", text)
    try:
        share = None if momentum == "none" else float(momentum)
    except ValueError:
        raise NotationError(f"{rule}; its momentum is a number or none, not {momentum!r}", text) from None
    return RunningStatistics(mean, variance, count or "", tuple(result.index(axis) for axis in axes.split()), share)


def _ending(text: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Split the match of a pattern off the end of a line; return the rest and the groups, or empty groups."""
    match = pattern.search(text)
    if match is None:
        return (text, *("" for _ in range(pattern.groups)))
    return (text[: match.start()], *(group or "" for group in match.groups()))


def _opaque_cost(match: re.Match[str], text: str) -> Opaque:
    """Return the declared cost of a line without a derivation."""
    _, forward, backward, visible, source = match.groups()
    if visible and not _is_share(visible):
        raise NotationError("`visible` is the share of pairs that a mask leaves, a fraction such as 5/9", text)
    try:
        forward, backward = (None if part is None else str(Polynomial.operations(part)) for part in (forward, backward))
    except InputError as error:
        raise NotationError(str(error), text) from None
    return Opaque(forward, backward, source or "", visible or "")


def _is_share(text: str) -> bool:
    """Return whether a text is a fraction of whole numbers between 0 and 1."""
    above, _, below = text.partition("/")
    if not (above.isdecimal() and below.isdecimal() and len(text) <= LONGEST_SHARE):
        return False
    return 0 <= int(above) <= int(below) and int(below) > 0


def _read(body: str, where: tuple[Condition, ...], text: str) -> tuple[list[Term], Line | LayerCall]:
    """Parse the left side and the entire line. Raises `NotationError` with a correction where one is known."""
    try:
        reader = LineReader(body, text)
        left = [reader.term()]
        while not reader.take("="):
            left.append(reader.term())
        line = reader.right(tuple(left), where)
        if not reader.done:
            raise TokenError(f"{reader.peek!r} is not expected")
    except TokenError as refused:
        raise NotationError(f"{refused}{refused.advice or advice(body) or advice(text)}", text) from None
    return left, line


def _whole(side: str, line: str) -> int:
    """Return a number, or 0 for a name. Raises `NotationError` for any other text, or a number that is too large."""
    if side and not side.isdecimal() and not is_name(side.rstrip("'")):
        raise NotationError(f"{side!r} is not a name: use letters, digits and _", line)
    try:
        return integer_of(side) if side.isdecimal() else 0
    except TokenError as refused:
        raise NotationError(str(refused), line) from None


def _condition(text: str, line: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if not match:
        raise NotationError(
            "`where` takes two axes, as in `where N <= M`, and a window's size, as in `where N <= M < N + w`, or an "
            "axis and a number, as in `where M != 0`",
            line,
        )
    lower, relation, upper, start, window = match.groups()
    for side in (lower, upper, window or ""):
        _whole(side, line)
    if lower.isdigit() and upper.isdigit():
        raise NotationError(f"where {lower} {relation} {upper} has no axis", line)
    if window is None:
        if relation in _MIRRORED or (relation not in ("<", "<=") and lower.isdigit()):
            lower, upper = upper, lower
        return Condition(lower, upper, _MIRRORED.get(relation, relation))
    if lower.isdigit() or upper.isdigit() or relation not in ("<", "<="):
        raise NotationError("a window needs two axes, as in `where N <= M < N + w`", line)
    if start != lower:
        right = f"{lower} {relation} {upper} < {lower} + {window}"
        raise NotationError(f"a window must begin at the first axis, as in `where {right}`", line)
    if window.endswith("'"):
        raise NotationError(f"the window {window} is a size, which has no prime", line)
    if window.isdigit() and int(window) < 1:
        raise NotationError(f"the window {window} is empty: it must be a size or a number from 1", line)
    return Condition(lower, upper, relation, window)
