"""Print a kernel in plain C99, for processors without an operating system: one thread, and workspace as parameters.

All numbers are `real`, which the file defines as float or double.
"""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterator, Mapping

from learncost.backends.c import tree
from learncost.backends.c.printer import Printer, number, pointer, statements

TYPES = {
    **dict.fromkeys(("fp32", "fp64", "int32"), "real"),
    "int64": "place",
    **dict.fromkeys(("uint8", "bool"), "uint8_t"),
    "int8": "int8_t",
}

BASIS = """\
typedef int32_t place; /* a position along an axis, or what an index holds */

#define LOWEST ((real)-1e30) /* in place of minus infinity */
"""

WHOLE_BASIS = BASIS.replace("-1e30", "-1073741824")
"""The prelude of integer-only functions."""

BODY = """\
    for (place i = 0, tall; i < rows; i += tall) {
        tall = rows - i < 4 ? 1 : 4;
        for (place j = 0, wide; j < columns; j += wide) {
            const LEFT *left = a + i * a_row;
            const RIGHT *right = b + j * b_column;
            real *to = c + i * c_row + j;
            wide = columns - j < 4 ? 1 : 4;
"""

REAL, CODE, WHOLE = "real", "int8_t", "whole"

SUMS = "typedef int32_t whole; /* a sum of products of whole numbers of 8 bits, of which 131,072 fit */\n"


def product_name(left: str, right: str) -> str:
    """Return the function name of a product of two types: of numbers or of 8-bit integers."""
    ops = {REAL: "real", CODE: "codes"}
    return "product" if left == right == REAL else f"product_{ops[left]}_{ops[right]}"


def product_text(left: str, right: str) -> str:
    """Return the product function of two types; integer products have integer sums until they are stored.

    Sixteen sums are in registers at a time, so that each loaded element is multiplied four times; the last rows and
    columns, fewer than four, use four sums.
    """
    total = WHOLE if left == right == CODE else REAL
    head = (
        f"static void {product_name(left, right)}(place rows, place columns, place inner, const {left} *a, "
        f"place a_row, place a_column, const {right} *b, place b_row, place b_column, int add, real *c, place c_row) {{"
    )
    indent = " " * (head.index("(") + 1)
    tiles = {"tall == 4 && wide == 4": (4, 4), "wide == 4": (1, 4), "tall == 4": (4, 1), "": (1, 1)}
    lines: list[str] = []
    for condition, (tall, wide) in tiles.items():
        lines.append(f"{'} else ' if lines else ''}{f'if ({condition}) ' if condition else ''}{{")
        lines += [f"    {line}" for line in _tile(total, tall, wide)]
    body = BODY + "".join(f"{' ' * 12}{line}\n" for line in (*lines, "}")) + "        }\n    }\n}\n"
    return (
        "/* C = A B, or C += A B. Of each factor: the stride of its rows, and of its columns; the rows of C are "
        "contiguous. */\n"
        + textwrap.fill(head, 118, subsequent_indent=indent)
        + "\n"
        + body.replace("LEFT", left).replace("RIGHT", right)
    )


def products(called: Container[str]) -> list[str]:
    """Return the products that a text calls, with the type of their sums."""
    pairs = [(left, right) for left in (REAL, CODE) for right in (REAL, CODE) if product_name(left, right) in called]
    return [*([SUMS] if (CODE, CODE) in pairs else ()), *(product_text(*pair) for pair in pairs)]


def _tile(total: str, tall: int, wide: int) -> Iterator[str]:
    """Return the lines for a tile of rows and columns."""
    rows, columns = range(tall), range(wide)
    for y in rows:
        yield f"{total} {', '.join(f's{y}{x} = 0' for x in columns)};"
    yield "for (place l = 0; l < inner; l++) {"
    factors = ", ".join(f"b{x} = right[{_times(x, 'b_column')}]" for x in columns)
    yield f"    const {total} {factors};"
    for y in rows:
        yield f"    const {total} a{y} = left[{_times(y, 'a_row')}];"
        yield "    " + " ".join(f"s{y}{x} += a{y} * b{x};" for x in columns)
    yield "    left += a_column;"
    yield "    right += b_row;"
    yield "}"
    made = "" if total == REAL else "(real)"
    for sign, head in (("+=", "if (add) {"), ("=", "} else {")):
        yield head
        for y in rows:
            row = _times(y, "c_row")
            places = ["+".join(filter(lambda part: part != "0", (row, str(x)))).replace("+", " + ") for x in columns]
            yield "    " + " ".join(f"to[{place or '0'}] {sign} {made}s{y}{x};" for x, place in enumerate(places))
    yield "}"


def _times(number_of: int, stride: str) -> str:
    return ("0", stride)[number_of] if number_of < 2 else f"{number_of} * {stride}"


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> Iterator[str]:
    """Return the constants, then the iterations in sequence."""
    fixed = [f"{c} = {constants[axis]}" for axis, c in routine.sizes.items() if axis in constants]
    if fixed:
        yield f"enum {{ {', '.join(fixed)} }};"
    yield from statements(routine.before, C99)
    yield from statements([routine.iterations, *routine.after], C99)


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    assert isinstance(part, tree.Dot)
    numbers, types = [*map(number, part.extents)], []
    for factor in (part.left, part.right):
        assert isinstance(factor, tree.MatrixBlock)
        types.append(factor.first.array.type)
        numbers += (pointer(factor), *map(number, factor.strides))
    numbers += (str(int(part.add)), pointer(part.to), number(part.to.stride))
    yield f"{product_name(*types)}({', '.join(numbers)});"


C99 = Printer(BASIS, _function, _product, real="real", types=TYPES, alone=True)
