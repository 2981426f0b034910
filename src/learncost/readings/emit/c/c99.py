"""A kernel as C99 and no more, for processors without an operating system: one thread, and memory that is handed in.

All numbers are `real`, which the file says to be float or double.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.readings.emit.c import tree
from learncost.readings.emit.c.printer import Printer, number, pointer, statements

TYPES = {"fp32": "real", "fp64": "real", "int64": "place", "uint8": "uint8_t", "bool": "uint8_t"}

BASIS = """\
typedef int32_t place; /* a position along an axis, or what an index holds */

#define LOWEST ((real)-1e30) /* what stands for minus infinity */
"""

# Sixteen sums at a time lie in registers, so that an element that is read is multiplied four times.
PRODUCT = """\
/* C = A B, or C += A B. Of each factor: how far apart its rows lie, and its columns; the rows of C are contiguous. */
static void product(place rows, place columns, place inner, const real *a, place a_row, place a_column, const real *b,
                    place b_row, place b_column, int add, real *c, place c_row) {
    for (place i = 0; i < rows; i += 4) {
        for (place j = 0; j < columns; j += 4) {
            const real *left = a + i * a_row, *right = b + j * b_column;
            real *to = c + i * c_row + j;
            if (rows - i >= 4 && columns - j >= 4) {
%s
            } else {
                const place tall = rows - i < 4 ? rows - i : 4, wide = columns - j < 4 ? columns - j : 4;
                for (place y = 0; y < tall; y++) {
                    for (place x = 0; x < wide; x++) {
                        real s = 0;
                        for (place l = 0; l < inner; l++)
                            s += left[y * a_row + l * a_column] * right[l * b_row + x * b_column];
                        if (add) to[y * c_row + x] += s;
                        else to[y * c_row + x] = s;
                    }
                }
            }
        }
    }
}
"""


def _tile() -> Iterator[str]:
    """The lines that make four rows of four columns."""
    for y in range(4):
        yield f"real {', '.join(f's{y}{x} = 0' for x in range(4))};"
    yield "for (place l = 0; l < inner; l++) {"
    factors = ", ".join(f"b{x} = right[{_times(x, 'b_column')}]" for x in range(4))
    yield f"    const real {factors};"
    for y in range(4):
        yield f"    const real a{y} = left[{_times(y, 'a_row')}];"
        yield "    " + " ".join(f"s{y}{x} += a{y} * b{x};" for x in range(4))
    yield "    left += a_column;"
    yield "    right += b_row;"
    yield "}"
    for sign, head in (("+=", "if (add) {"), ("=", "} else {")):
        yield head
        for y in range(4):
            row = _times(y, "c_row")
            places = ["+".join(filter(lambda part: part != "0", (row, str(x)))).replace("+", " + ") for x in range(4)]
            yield "    " + " ".join(f"to[{place or '0'}] {sign} s{y}{x};" for x, place in enumerate(places))
    yield "}"


def _times(number_of: int, stride: str) -> str:
    return ("0", stride)[number_of] if number_of < 2 else f"{number_of} * {stride}"


PRODUCT %= "\n".join(f"{' ' * 16}{line}" for line in _tile())


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> Iterator[str]:
    """Constants, then the turns one after another."""
    fixed = [f"{c} = {constants[axis]}" for axis, c in routine.sizes.items() if axis in constants]
    if fixed:
        yield f"enum {{ {', '.join(fixed)} }};"
    yield from statements(routine.before, C99)
    yield from statements([routine.turns], C99)


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    assert isinstance(part, tree.Dot)
    numbers = [*map(number, part.extents)]
    for factor in (part.left, part.right):
        assert isinstance(factor, tree.Matrix)
        numbers += (pointer(factor), *map(number, factor.strides))
    yield f"product({', '.join((*numbers, str(int(part.add)), pointer(part.to), number(part.to.stride)))});"


C99 = Printer(BASIS + PRODUCT, _function, _product, real="real", types=TYPES, alone=True)
