"""Print a kernel in GNU C: iterations in parallel threads (OpenMP), vectorizable loops, tiled products.

Sums over the iterations are added up thread by thread, so that the result is deterministic for a number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.backends.c import tree
from learncost.backends.c.packed import PACKED
from learncost.backends.c.prelude import BASIS, PRELUDE
from learncost.backends.c.printer import Printer, block, number, pointer, statements
from learncost.backends.c.tiles import TILES
from learncost.backends.c.tree import ITERATION, ZERO


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> Iterator[str]:
    """Return constants and a parallel region: a thread's workspace, iterations, and the sums of all threads."""
    totals, scratch = routine.totals, routine.arrays("scratch")
    yield from (f"const place {c} = {constants[axis]};" for axis, c in routine.sizes.items() if axis in constants)
    yield from statements(routine.before, GNU)
    if totals:
        yield "static char *sums[THREADS];"
    inside = []
    if totals:
        parallel = "omp_get_thread_num(), threads = omp_get_num_threads()" if routine.work else "0, threads = 1"
        inside.append(f"const int thread = {parallel};")
    buffers = {array: _size(array) for array in (*(total.sums for total in totals), *scratch)}
    if buffers:
        inside.append(f"char *memory = own({' + '.join(buffers.values())});")
    if totals:
        inside.append("sums[thread] = memory;")
    for array, size in buffers.items():
        inside.append(f"{array.type} *{array.name} = ({array.type} *)memory;")
        inside += [f"memset(memory, 0, {size});"] if array.role == "sums" else []
        inside.append(f"memory += {size};")
    if routine.work:
        yield f"#pragma omp parallel if ((double){number(routine.work)} > 50000.0)"
        inside.append(_share_out(routine))
    inside += statements([routine.iterations], GNU)
    for i, total in enumerate(totals):
        first = " + ".join([*buffers.values()][:i]) or "0"
        inside += ["#pragma omp for"] if routine.work else []
        inside += _added_up(total, first)
    yield from block("", inside)


def _size(array: tree.ArrayMemory) -> str:
    return f"ROUND(({number(array.points)}) * sizeof({array.type}))"


def _share_out(routine: tree.Routine) -> str:
    """Return the OpenMP schedule: dynamic for iterations with products, unless sums must be deterministic."""
    body = routine.iterations.body
    flat = all(
        isinstance(statement, tree.Let) or (isinstance(statement, tree.Store) and statement.sign == "=")
        for statement in body
    )
    simple = flat and not routine.totals and routine.iterations.counter != ITERATION
    dynamic = not routine.totals and any(isinstance(part, tree.Dot) for part in routine.parts)
    return f"#pragma omp for {'simd ' if simple else ''}schedule({'dynamic' if dynamic else 'static'})"


def _added_up(total: tree.Total, first: str) -> Iterator[str]:
    """Return the reduction over all threads; their sums begin at an offset of their workspace."""
    kind = total.sums.type
    return block(
        f"for (place i = 0; i < {number(total.sums.points)}; i++)",
        (
            f"{kind} sum = 0;",
            f"for (int one = 0; one < threads; one++) sum += ((const {kind} *)(sums[one] + {first}))[i];",
            f"{total.to.name}[i] = {number(total.value)};",
        ),
    )


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    """Return the call of a product: of tiles for packed factors, else of a library."""
    if isinstance(part, tree.Pack):
        kind = f"{part.to.type}_{part.source.first.array.type}"
        extents = ", ".join(map(number, part.extents))
        source = f"{pointer(part.source)}, {number(part.source.stride)}"
        yield f"{part.form}_{kind}({int(part.source.turned)}, {part.to.name}, {extents}, {source});"
        return
    factors = (part.left, part.right)
    packed = isinstance(part.right, tree.Packed) and part.right.array.type
    name = f"tiled_{packed}" if packed else f"product_{part.to.first.array.type}"
    turned = [str(int(factor.turned)) for factor in factors if isinstance(factor, tree.MatrixBlock)]
    yield f"{name}({', '.join((*turned, *map(number, part.extents)))},"
    yield from (f"              {_factor(factor)}," for factor in factors)
    yield f"              {int(part.add)}, {pointer(part.to)}, {number(part.to.stride)});"


def _factor(factor: tree.MatrixBlock | tree.Packed) -> str:
    if isinstance(factor, tree.MatrixBlock):
        return f"{pointer(factor)}, {number(factor.stride)}"
    form, array, length = factor.form.upper()[:-1], factor.array, number(factor.length)
    first = f" + {form}({array.type}, {length}, {', '.join(map(number, factor.first))})"
    return f"{array.name}{'' if factor.first == (ZERO, ZERO) else first}, {length}"


GNU = Printer(
    BASIS.lstrip() + PRELUDE + PACKED + TILES + "\n",
    _function,
    _product,
    ("#pragma GCC ivdep",),
    tiles=True,
    tile=(16, 128),
)
