"""Expressions and statements as C: what all dialects write alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from learncost.readings.emit.c import tree
from learncost.readings.emit.c.tree import TURN, ZERO, times

_LEVELS = {"?": 0, "&&": 1, "==": 2, "<": 3, "<=": 3, ">": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_ALONE = 6


@dataclass(frozen=True)
class Printer:
    """How a dialect of C writes what others do not.

    preamble     what stands before all functions
    function     the lines of a function, for sizes that are constants
    product      those of a product, or of what is packed for one
    independent  those before a loop whose turns do not depend on each other
    tiles        whether products in float are made of tiles
    """

    preamble: str
    function: Callable[[tree.Routine, Mapping[str, int]], Iterable[str]]
    product: Callable[[tree.Dot | tree.Pack], Iterable[str]]
    independent: tuple[str, ...] = ()
    tiles: bool = False


def number(found: tree.Expression, level: int = 0) -> str:
    """The text of an expression; in brackets if it binds less than `level`."""
    if isinstance(found, tree.Constant | tree.Size | tree.Counter | tree.Variable):
        return found.text
    if isinstance(found, tree.Element):
        return f"{found.array.name}[{number(found.offset)}]"
    if isinstance(found, tree.Call):
        return f"{found.function}({', '.join(map(number, found.operands))})"
    assert isinstance(found, tree.Operation), found
    sign, (first, *rest) = found.sign, found.operands
    if not rest:
        return f"{sign}{number(first, _ALONE)}"
    own = _LEVELS[sign]
    if sign == "?":
        text = "{} ? {} : {}".format(*(number(one, 1) for one in found.operands))
    else:
        text = f" {sign} ".join((number(first, own), *(number(one, own + 1) for one in rest)))
    return f"({text})" if own < level else text


def pointer(matrix: tree.Matrix) -> str:
    """Where a matrix begins."""
    name, offset = matrix.first.array.name, matrix.first.offset
    return name if offset == ZERO else f"{name} + {number(offset)}"


def statements(body: Iterable[tree.Statement], printer: Printer) -> list[str]:
    """The lines of statements, one after another."""
    return [line for statement in body for line in _lines(statement, printer)]


def _lines(statement: tree.Statement, printer: Printer) -> Iterator[str]:
    if isinstance(statement, tree.Let):
        constant = "" if statement.changes else "const "
        yield f"{constant}{statement.type} {statement.name} = {number(statement.value)};"
    elif isinstance(statement, tree.Store):
        yield f"{number(statement.to)} {statement.sign} {number(statement.value)};"
    elif isinstance(statement, tree.Loop):
        yield from printer.independent if statement.independent else ()
        counter, first, last = statement.counter, number(statement.first), number(statement.last)
        step = f" += {number(statement.step)}" if statement.step else "++"
        yield from block(
            f"for (place {counter} = {first}; {counter} < {last}; {counter}{step})", statements(statement.body, printer)
        )
    elif isinstance(statement, tree.Turns):
        yield from block(_head(statement), [*_counters(statement), *statements(statement.body, printer)])
    elif isinstance(statement, tree.Remark):
        yield f"/* {statement.text} */"
    else:
        assert isinstance(statement, tree.Dot | tree.Pack), statement
        yield from printer.product(statement)


def block(head: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines in braces."""
    yield f"{head} {{".strip()
    yield from indented(lines)
    yield "}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Inside of a block; what is for the preprocessor begins on the left."""
    return (line if line.startswith("#") else f"    {line}".rstrip() for line in lines)


def _head(turns: tree.Turns) -> str:
    if not turns.counters:
        return ""
    counter = TURN if len(turns.counters) > 1 else turns.counters[0][0]
    return f"for (place {counter} = 0; {counter} < {number(times(*(c for _, c in turns.counters)))}; {counter}++)"


def _counters(turns: tree.Turns) -> Iterator[str]:
    """Where each counter stands in a turn over several."""
    if len(turns.counters) < 2:
        return
    for i, (counter, count) in enumerate(turns.counters):
        after = [later for _, later in turns.counters[i + 1 :]]
        place: tree.Expression = tree.Counter(TURN)
        place = tree.Operation("/", (place, *after)) if after else place
        yield f"const place {counter} = {number(tree.Operation('%', (place, count)) if i else place)};"
