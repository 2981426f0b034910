"""A kernel as C99 and no more: one thread, no extensions, memory on the stack, as small devices have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.readings.emit.c import tree
from learncost.readings.emit.c.prelude import BASIS
from learncost.readings.emit.c.printer import Printer, block, number, pointer, statements

_FUNCTIONS = r"""
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
    numbers = [str(int(factor.turned)) for factor in factors]
    numbers += map(number, part.extents)
    numbers += (f"{pointer(factor)}, {number(factor.stride)}" for factor in factors)
    numbers += (str(int(part.add)), pointer(part.to), number(part.to.stride))
    yield f"loops_{part.to.first.array.type}({', '.join(numbers)});"


C99 = Printer(BASIS.lstrip() + _FUNCTIONS, _function, _product)
