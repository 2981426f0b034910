"""A kernel as GNU C: turns in parallel threads (OpenMP), loops that a compiler vectorises, products in tiles.

Sums over the turns are added up thread by thread, so that for a number of threads the result is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from learncost.readings.emit.c import tree
from learncost.readings.emit.c.packed import PACKED
from learncost.readings.emit.c.prelude import PRELUDE
from learncost.readings.emit.c.printer import Printer, block, number, pointer, statements
from learncost.readings.emit.c.tiles import TILES
from learncost.readings.emit.c.tree import ZERO


def _function(routine: tree.Routine, constants: Mapping[str, int]) -> list[str]:
    """The body of the C function."""
    turns, totals = routine.turns, routine.totals
    lines = [f"const place {c} = {constants[axis]};" for axis, c in routine.sizes.items() if axis in constants]
    lines += statements(routine.before, GNU)
    if totals:
        lines.append("static char *sums[THREADS];")
        rooms = [_room(total.sums) for total in totals]
        firsts = (" + ".join(rooms[:i]) or "0" for i in range(len(rooms)))
        lines += [f"const size_t first_{i} = {first};" for i, first in enumerate(firsts)]
    inside = [*_memory(routine)]
    if turns.counters:
        lines.append(f"#pragma omp parallel if ((double){number(routine.work)} > 50000.0)")
        inside.append(_share_out(routine))
    inside += statements([turns], GNU)
    for i, total in enumerate(totals):
        inside += _added_up(i, total, parallel=bool(turns.counters))
    return [*lines, *block("", inside)]


def _room(array: tree.Array) -> str:
    return f"ROUND(({number(array.points)}) * sizeof({array.type}))"


def _memory(routine: tree.Routine) -> Iterator[str]:
    """A thread's own: its sums, and scratch."""
    totals, scratch = routine.totals, routine.arrays("scratch")
    sums, rooms = [_room(total.sums) for total in totals], [_room(array) for array in scratch]
    if totals and routine.turns.counters:
        yield "const int thread = omp_get_thread_num(), threads = omp_get_num_threads();"
    elif totals:
        yield "const int thread = 0, threads = 1;"
    if totals or scratch:
        yield f"char *memory = own({' + '.join((*sums, *rooms))});"
    for i, total in enumerate(totals):
        yield f"{total.sums.type} *{total.sums.name} = ({total.sums.type} *)(memory + {' + '.join(sums[:i]) or '0'});"
    if totals:
        yield f"memset(memory, 0, {' + '.join(sums)});"
        yield "sums[thread] = memory;"
        yield f"memory += {' + '.join(sums)};"
    for array, room in zip(scratch, rooms, strict=True):
        yield f"{array.type} *{array.name} = ({array.type} *)memory;"
        yield f"memory += {room};"


def _share_out(routine: tree.Routine) -> str:
    """How turns go to threads: those with products as threads are free, unless sums have to be the same every time."""
    body = routine.turns.body
    flat = all(isinstance(one, tree.Let) or (isinstance(one, tree.Store) and one.sign == "=") for one in body)
    simple = flat and not routine.totals and len(routine.turns.counters) == 1
    dynamic = not routine.totals and any(isinstance(part, tree.Dot) for part in routine.parts)
    return f"#pragma omp for {'simd ' if simple else ''}schedule({'dynamic' if dynamic else 'static'})"


def _added_up(i: int, total: tree.Total, parallel: bool) -> Iterator[str]:
    """The sums of all threads, one after another."""
    kind, element = total.sums.type, "i" if total.axes else "0"
    if parallel:
        yield "#pragma omp for" if total.axes else "#pragma omp single"
    yield from block(
        f"for (place i = 0; i < {number(total.sums.points)}; i++)" if total.axes else "",
        (
            f"{kind} sum = 0;",
            f"for (int one = 0; one < threads; one++) sum += ((const {kind} *)(sums[one] + first_{i}))[{element}];",
            f"{total.to.name}[{element}] = {number(total.value)};",
        ),
    )


def _product(part: tree.Dot | tree.Pack) -> Iterator[str]:
    """A call: of tiles where a factor is packed, else of a library."""
    if isinstance(part, tree.Pack):
        kind = f"{part.to.type}_{part.source.first.array.type}"
        extents = ", ".join(map(number, part.extents))
        source = f"{pointer(part.source)}, {number(part.source.stride)}"
        yield f"{part.form}_{kind}({int(part.source.turned)}, {part.to.name}, {extents}, {source});"
        return
    factors = (part.left, part.right)
    packed = isinstance(part.right, tree.Packed) and part.right.array.type
    name = f"tiled_{packed}" if packed else f"product_{part.to.first.array.type}"
    turned = [str(int(factor.turned)) for factor in factors if isinstance(factor, tree.Matrix)]
    yield f"{name}({', '.join((*turned, *map(number, part.extents)))},"
    yield from (f"              {_factor(factor)}," for factor in factors)
    yield f"              {int(part.add)}, {pointer(part.to)}, {number(part.to.stride)});"


def _factor(factor: tree.Matrix | tree.Packed) -> str:
    if isinstance(factor, tree.Matrix):
        return f"{pointer(factor)}, {number(factor.stride)}"
    form, array, length = factor.form.upper()[:-1], factor.array, number(factor.length)
    first = f" + {form}({array.type}, {length}, {', '.join(map(number, factor.first))})"
    return f"{array.name}{'' if factor.first == (ZERO, ZERO) else first}, {length}"


GNU = Printer(PRELUDE.lstrip() + PACKED + TILES + "\n", _function, _product, ("#pragma GCC ivdep",), tiles=True)
