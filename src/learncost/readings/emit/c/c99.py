"""A kernel as C99 and no more: one thread, no extensions, memory on the stack, as small devices have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.readings.emit.c import tree
from learncost.readings.emit.c.printer import Printer, block, number, pointer, statements

_PREAMBLE = r"""
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef ptrdiff_t place; /* a position along an axis */
typedef uint16_t bf16;   /* the upper half of a float */

#define LOWEST -1e30f /* what minus infinity is here */
#define exp_float expf
#define log_float logf
#define tanh_float tanhf
#define erf_float erff
#define sqrt_float sqrtf
#define exp_double exp
#define log_double log
#define tanh_double tanh
#define erf_double erf
#define sqrt_double sqrt

static inline float from_bf16(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bf16 to_bf16(float x) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (bf16)(bits >> 16 | 0x40u);
    return (bf16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* C = A B, or C += A B; the places of a row, or of a turned factor's column, lie side by side. */
#define PRODUCT(TYPE)                                                                                                  \
    static inline void product_##TYPE(int a_turned, int b_turned, place rows, place columns, place inner,              \
                                      const TYPE *a, place a_stride, const TYPE *b, place b_stride, int add, TYPE *c,  \
                                      place c_stride) {                                                                \
        for (place i = 0; i < rows; i++) {                                                                             \
            if (!add) memset(c + i * c_stride, 0, (size_t)columns * sizeof(TYPE));                                     \
            for (place l = 0; l < inner; l++) {                                                                        \
                const TYPE factor = a_turned ? a[l * a_stride + i] : a[i * a_stride + l];                              \
                for (place j = 0; j < columns; j++)                                                                    \
                    c[i * c_stride + j] += factor * (b_turned ? b[j * b_stride + l] : b[l * b_stride + j]);            \
            }                                                                                                          \
        }                                                                                                              \
    }
PRODUCT(float)
PRODUCT(double)
"""


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> Iterator[str]:
    """Constants, memory, the turns one after another, and what they added to."""
    fixed = [f"{c} = {constants[axis]}" for axis, c in routine.sizes.items() if axis in constants]
    if fixed:
        yield f"enum {{ {', '.join(fixed)} }};"
    yield from statements(routine.before, C99)
    sums = [total.sums for total in routine.totals]
    for array in (*sums, *routine.arrays("scratch")):
        yield f"{array.type} {array.name}[{number(array.points)}];"
    yield from (f"memset({array.name}, 0, sizeof {array.name});" for array in sums)
    yield from statements([routine.turns], C99)
    for total in routine.totals:
        loop = f"for (place i = 0; i < {number(total.sums.points)}; i++)"
        sum_ = f"const {total.sums.type} sum = {total.sums.name}[i];"
        yield from block(loop, (sum_, f"{total.to.name}[i] = {number(total.value)};"))


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    assert isinstance(part, tree.Dot)
    factors = [factor for factor in (part.left, part.right) if isinstance(factor, tree.Matrix)]
    given = [str(int(factor.turned)) for factor in factors]
    given += map(number, part.extents)
    given += (f"{pointer(factor)}, {number(factor.stride)}" for factor in factors)
    given += (str(int(part.add)), pointer(part.to), number(part.to.stride))
    yield f"product_{part.to.first.array.type}({', '.join(given)});"


C99 = Printer(_PREAMBLE.lstrip() + "\n", _function, _product)
