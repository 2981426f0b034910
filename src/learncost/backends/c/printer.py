"""The printer of C expressions and statements, which all dialects share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from learncost.backends.c import tree
from learncost.backends.c.tree import ONE, ZERO
from learncost.ir.dataclass import dataclass, field, replace

STORED = {
    "fp32": "float", "fp64": "double", "bf16": "bf16", "int64": "int64_t", "uint8": "uint8_t", "bool": "unsigned char",
    "int8": "int8_t",
}  # fmt: skip
"""The types of arrays in C."""

_SIGNS = (("?",), ("||",), ("&&",), ("==", "!="), ("<", "<=", ">"), ("+", "-"), ("*", "/", "%"))
_LEVELS = {sign: level for level, signs in enumerate(_SIGNS) for sign in signs}
_ALONE = len(_SIGNS)


@dataclass(frozen=True)
class Printer:
    """The printer of a dialect of C.

    preamble     the code before all functions
    function     the lines of a function, for sizes that are constants
    product      those of a product, or of what is packed for one
    independent  those before a loop whose iterations do not depend on each other
    tiles        whether products in float are made of tiles
    real         the type of all numbers; empty: float or double, as the arrays are
    types        of arrays by what the notation calls theirs
    alone        whether a single thread runs it, in given memory: sums over iterations are made where
                 they are stored, scratch is a parameter, and numbers of sizes are written out
    tile         rows and columns of a product that are there at once in a kernel that ends it
    """

    preamble: str
    function: Callable[[tree.Routine, Mapping[str, int]], Iterable[str]]
    product: Callable[[tree.Dot | tree.Pack], Iterable[str]]
    independent: tuple[str, ...] = ()
    tiles: bool = False
    real: str = ""
    types: Mapping[str, str] = field(default_factory=lambda: STORED)
    alone: bool = False
    tile: tuple[int, int] = (4, 4)


def number(expression: tree.Expression, level: int = 0) -> str:
    """Return the text of an expression, in parentheses if it binds less than `level`."""
    if isinstance(expression, tree.NameExpression | tree.SizeExpression | tree.LoopCounter):
        return expression.text
    if isinstance(expression, tree.Element):
        return f"{expression.array.name}[{number(expression.offset)}]"
    if isinstance(expression, tree.CallExpression):
        return f"{expression.function}({', '.join(map(number, expression.operands))})"
    assert isinstance(expression, tree.OperationExpression), expression
    sign, (first, *rest) = expression.sign, expression.operands
    if not rest:
        return f"{sign}{number(first, _ALONE)}"
    binding = _LEVELS[sign]
    if sign == "?":
        text = "{} ? {} : {}".format(*(number(operand, 1) for operand in expression.operands))
    else:
        inner = _ALONE if sign == "||" else binding  # compilers warn of && in || without brackets
        text = f" {sign} ".join((number(first, inner), *(number(operand, max(inner, binding + 1)) for operand in rest)))
    return f"({text})" if binding < level else text


def pointer(matrix: tree.MatrixBlock) -> str:
    """Return the pointer to a matrix."""
    name, offset = matrix.first.array.name, matrix.first.offset
    return name if offset == ZERO else f"{name} + {number(offset)}"


def statements(body: Iterable[tree.CStatement], printer: Printer) -> list[str]:
    """Return the lines of statements."""
    return [line for statement in body for line in _lines(statement, printer)]


def _lines(statement: tree.CStatement, printer: Printer) -> Iterator[str]:
    if isinstance(statement, tree.Let):
        constant = "" if statement.changes else "const "
        yield f"{constant}{statement.type} {statement.name} = {number(statement.value)};"
    elif isinstance(statement, tree.Store):
        yield f"{number(statement.to)} {statement.sign} {number(statement.value)};"
    elif isinstance(statement, tree.ForLoop) and printer.alone and _copies(statement):
        yield "for (place odd = 0; odd < 2; odd++) /* by twos: in a row compilers make memmove of it */"
        by_twos = replace(
            statement, first=tree.plus(statement.first, tree.NameExpression("odd")), step=tree.NameExpression("2")
        )
        yield from indented(_lines(by_twos, printer))
    elif isinstance(statement, tree.ForLoop):
        yield from printer.independent if statement.independent else ()
        counter, first, last = statement.counter, number(statement.first), number(statement.last)
        step = "++" if statement.step == ONE else f" += {number(statement.step)}"
        yield from block(
            f"for (place {counter} = {first}; {counter} < {last}; {counter}{step})", statements(statement.body, printer)
        )
    else:
        assert isinstance(statement, tree.Dot | tree.Pack), statement
        yield from (f"/* {statement.line} */",) if isinstance(statement, tree.Dot) else ()
        yield from printer.product(statement)


def _copies(loop: tree.ForLoop) -> bool:
    """Return whether a loop copies contiguous elements, in any order of iterations."""
    if loop.step != ONE:
        return False
    here = tree.LoopCounter(loop.counter)
    moved, made = set[str](), set[str]()
    copies = False
    for statement in loop.body:
        if isinstance(statement, tree.Let) and not statement.changes:
            value = statement.value
            if (
                isinstance(value, tree.OperationExpression)
                and value.sign == "?"
                and _stays(value.operands[0], here, made)
            ):
                value = next((part for part in value.operands[1:] if number(part) in moved), value)
            made.add(statement.name)
            in_a_row = isinstance(value, tree.Element) and value.operands[-1:] == (here,)
            if in_a_row or (isinstance(value, tree.NameExpression) and value.text in moved):
                moved.add(statement.name)
        elif isinstance(statement, tree.Store) and statement.sign == "=" and isinstance(statement.to, tree.Element):
            value = statement.value
            copies |= (
                isinstance(value, tree.NameExpression) and value.text in moved and statement.to.operands[-1:] == (here,)
            )
        else:
            return False
    return copies


def _stays(condition: tree.Expression, here: tree.LoopCounter, made: Collection[str]) -> bool:
    """Return whether a condition is loop-invariant, so that a compiler may remove the branch."""
    parts = [*tree.walk(condition)]
    return here not in parts and not any(isinstance(part, tree.NameExpression) and part.text in made for part in parts)


def block(head: str, lines: Iterable[str]) -> Iterator[str]:
    """Return lines in braces."""
    yield f"{head} {{".strip()
    yield from indented(lines)
    yield "}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Indent a block, except preprocessor lines."""
    return (line if line.startswith("#") else f"    {line}".rstrip() for line in lines)
