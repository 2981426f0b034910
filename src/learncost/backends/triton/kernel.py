"""Print the kernels of a step as Triton: rows in parallel, sums over rows in two stages, batched products in tiles.

Choices and scans are written as sums over pairs of positions, which kernels compute like all other sums.

After the kernels of a call stands the function that launches them. Nothing is added by atomics: two runs are bit-equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import prod

from learncost.backends.c import KernelFunction, KernelLines, Launch, Scratch
from learncost.backends.c.common_subexpressions import lowered
from learncost.backends.expression import Identifiers, call
from learncost.backends.placed.kernels import KernelWriter
from learncost.backends.triton.attention import AttentionLines, attention, library
from learncost.backends.triton.blocks import GROUPED, PrintedKernel, rows, tiles
from learncost.backends.triton.experts import by_rows, expert_product, grouped
from learncost.backends.triton.operators import operators
from learncost.backends.triton.values import COMPUTED, FUNCTIONS, RESERVED, TYPES, KernelValues, summed
from learncost.ir.errors import InputError
from learncost.ir.line import Condition, FusedKernel, Line, Op, Product, Sum
from learncost.ir.term import Axis, Literal, Operand, Read, Term
from learncost.ops import applied, entry

ZERO = Literal(0.0)
MARK = "''''"
"""The end of the name of a second axis of the same size, whose positions are compared with those of the first."""


def counted(line: Line, mark: str) -> Iterator[Line]:
    """Yield the lines that a choice or a scan is, whose axes have names with a mark; every other line as it is.

    A cumulative sum adds up the elements at no later positions. A choice counts the elements that come before each one,
    which is its rank, and adds up the positions of the elements that have the rank of the result's place.
    """
    if not isinstance(line, Op) or entry(line.op).kind not in ("choice", "scan") or line.part != "body":
        yield line
        return
    row, numbers = entry(line.op), count(1)
    (x,), left, (axis,) = line.right, line.left[0], line.axes
    assert isinstance(x, Term)
    one, two = axis + mark, axis + mark + "'"
    other = tuple(each for each in x.axes if each != axis)

    def term(*axes: Axis) -> Term:
        return Term(f"{line.name}~c{next(numbers)}", axes)

    def at(place: str) -> Term:
        return Term(x.name, tuple(place if each == axis else each for each in x.axes))

    def compared(of: str) -> str:
        return f"{of}{mark}''" if of.isdigit() else of  # in a condition digits are a number

    def positions(of: str) -> Iterator[Line]:
        """Yield the lines of the positions along an axis: how many there are before each."""
        earlier, here = f"{of.removesuffix(mark)}{mark}'''", compared(of)
        before, place = term(of, earlier), term(of)
        left, condition = before.renamed({}, {of: here}), Condition(earlier, here, "<")
        yield Op((left,), (), (condition,), line.meta, "inside", gives=("Y",))
        yield Product((place,), (before,), (), line.meta)

    def select(made: Term, of: Operand, condition: Condition) -> Line:
        return applied("select", made, (of, ZERO), line.meta, (), (condition,))

    if row.kind == "scan":
        here = compared(axis)
        no_later = Condition(here, one) if row.backwards else Condition(one, here)
        part = term(*left.axes, one)
        yield select(part.renamed({}, {axis: here}), at(one), no_later)
        yield Product((left,), (part,), (), line.meta)
        return
    less, equal, earlier, ahead = (term(*other, one, two) for _ in range(4))
    yield applied("less", less, (at(one), at(two)) if row.largest else (at(two), at(one)), line.meta)
    yield applied("equal", equal, (at(one), at(two)), line.meta)
    yield select(earlier, equal, Condition(two, one, "<"))
    yield Sum((ahead,), (less, earlier), (), line.meta, (1, 1))
    rank = term(*other, one)
    yield Product((rank,), (ahead,), (), line.meta)
    *first, of_element = positions(one)
    yield from (*first, of_element)
    places = [each for each in left.axes if each not in other]
    wanted: Operand = ZERO
    if places:
        *first, of_place = positions(str(places[0]))
        yield from (*first, of_place)
        wanted = of_place.left[0]
    is_chosen = term(*left.axes, one)
    yield applied("equal", is_chosen, (rank, wanted), line.meta)
    yield Product((left,), (is_chosen, of_element.left[0]), (), line.meta)


def writer(known: Mapping[str, AttentionLines]) -> KernelWriter:
    """Return the printer of kernels in Triton or of calls of the library, with the attention of kernels by their names.

    It raises `InputError` for a type that arrays in Triton lack; SizeNeededError where a size must be a constant.
    """

    def kernel(given: KernelLines) -> KernelFunction:
        own = given.lines[0].meta.kernel
        found = known.get(own.name if own else "") or attention(given.lines, given.outputs, given.sizes)
        if found and (function := library(given, found)):
            return function
        try:
            return _printed(given)
        except InputError as error:
            return operators(given, str(error))

    return kernel


@lru_cache(maxsize=1024)  # plans of one step share most of their kernels
def _printed(given: KernelLines) -> KernelFunction:
    """Return the kernels of lines in Triton.

    A kernel of products and other sums is several, with the products' results as its workspace, and one of products of
    experts is one for each of them and for results with the same axes.
    Raises `InputError` with a line that cannot be printed.
    """
    lines, axes, outputs, dtypes, name = given.lines, given.axes, given.outputs, given.dtypes, given.name
    plan = lines[0].meta.kernel or FusedKernel(name, ())
    marks = (MARK * number for number in count(2))  # the first is that of a write
    lines_of = lowered(lines, axes, outputs, plan.axes)
    normal = [_renamed(each) for line in lines_of for each in counted(line, next(marks))]
    arrays = {read for line in normal for read in line.reads} - {line.name for line in normal} | outputs
    for array in sorted(arrays):
        if dtypes.get(array) not in TYPES:
            raise InputError(f"{array} is {dtypes.get(array)}, not one of {', '.join(TYPES)}, in line: {lines[0]}")
    computed = "fp64" if any(dtypes[array] == "fp64" for array in arrays) else "fp32"
    names = Identifiers((*RESERVED, *FUNCTIONS, *FUNCTIONS.values()))
    parts: list[PrintedKernel] = []
    scratch: list[Scratch] = []
    known, types = dict(axes), dict(dtypes)

    def part(made: Sequence[Line]) -> PrintedKernel:
        wish = f"{name}_kernel" + (f"_{len(parts) + 1}" if parts else "")
        values = KernelValues(_needed(made, normal), known, types, given.sizes, COMPUTED[computed], names)
        parts.append(PrintedKernel(values, list(made), wish))
        return parts[-1]

    def stored(made: Sequence[Line]) -> PrintedKernel:
        """Begin a kernel of values that later ones read, as arrays in the call's workspace."""
        for line in made:
            if line.name not in outputs:
                known[line.name], types[line.name] = line.left[0].declared, computed
        begun = part(made)
        for line in made:
            normal.remove(line)
            if line.name not in outputs:
                points = prod(map(begun.values.number, line.left[0].declared))
                scratch.append(Scratch(names.of(line.name), computed, points))
        return begun

    def apart(made: Sequence[Line]) -> None:
        """Print kernels of results, one for those with the same axes."""
        for axes in dict.fromkeys(line.left[0].declared for line in made):
            rows(stored([line for line in made if line.left[0].declared == axes]), ())

    makers = {line.name: line for line in normal}
    normal = [each for line in normal for each in by_rows(line, makers)]
    of_experts = {line.name: found for line in normal if (found := expert_product(line, makers))}
    made = [line for line in normal if line.name in outputs]
    products = [
        line for line in normal if isinstance(line, Product) and not line.left[0].indexed and line.sides.are_of_matrices
    ]
    if not of_experts and len(products) == 1 and _fits_tiles(products[0], normal, made):
        tiles(part(made), products[0])
    else:
        for line in [line for line in normal if line in products or line.name in of_experts]:
            before = [other for other in _needed([line], normal) if other is not line]
            if line.name in of_experts:
                apart([other for other in before if other.name in outputs])
                grouped(stored([line]), line, of_experts[line.name])
                continue
            if over := [other for other in before if summed(other)]:
                rows(stored(over), plan.axes)
            tiles(stored([line]), line)
        remaining = [line for line in made if line in normal]
        if of_experts:
            apart(remaining)
        elif remaining:
            try:
                rows(part(remaining), plan.axes)
            except InputError:
                parts.pop()
                late = _at_indices(normal)
                first, last = ([line for line in remaining if (line.name in late) == ends] for ends in (False, True))
                if first and last:
                    rows(stored(first), plan.axes)
                    rows(part(last), plan.axes)
                else:  # sums over rows that are as large as the rows, as of a batch's positions
                    rows(part(remaining), ())
    return _function(name, lines, parts, scratch)


def _renamed(line: Line) -> Line:
    """Return a write at an index with other names for the axes of what is written than for those of the result."""
    left = line.left[0]
    if not left.indexed:
        return line
    new = {axis: axis + MARK for axis in line.loops if axis not in left.axes}
    axes = (axis if isinstance(axis, str) else Read(axis.axis, axis.at.renamed({}, new)) for axis in left.axes)
    right = tuple(operand.renamed({}, new) for operand in line.right)
    return line.with_changed(left=(Term(left.name, tuple(axes)),), right=right)


def _at_indices(lines: Sequence[Line]) -> set[str]:
    """Return the results of the lines that read another one's at an index, such as one token's, or depend on one."""
    names, late = {line.name for line in lines}, set[str]()
    for line in lines:
        terms = [term for term in line.right if isinstance(term, Term) and term.name in names]
        late |= {line.name for term in terms if term.indexed or term.name in late}
    return late


def _needed(made: Sequence[Line], lines: Sequence[Line]) -> list[Line]:
    """Return the lines that results need, in order."""
    names, needed = {line.name for line in made}, list[Line]()
    for line in reversed(lines):
        if line.name in names:
            needed.append(line)
            names |= {*line.reads}
    return needed[::-1]


def _fits_tiles(product: Line, lines: Sequence[Line], made: Sequence[Line]) -> bool:
    """Return whether a product's tiles are those of all results, and all other lines are elementwise."""
    if any(summed(line) for line in lines if line is not product):
        return False
    axes = {*product.left[0].declared}
    return all({*line.left[0].declared} == axes and product in _needed([line], lines) for line in made)


def _function(
    name: str, lines: Sequence[Line], parts: Sequence[PrintedKernel], workspace: Sequence[Scratch]
) -> KernelFunction:
    """Return kernels that run one after another, with the function that launches them."""
    scratch = (*workspace, *(each for part in parts for each in part.scratch))
    writes = {made: array for part in parts for made, array in part.outputs.items()}
    writes = {made: array for made, array in writes.items() if array not in {each.name for each in scratch}}
    made = {line for part in parts for line in part.outputs}
    reads = {read: array for part in parts for read, array in part.values.reads.items() if read not in made}
    free = {size: text for part in parts for size, text in part.values.free.items()}
    arguments = (*reads.values(), *writes.values(), *(each.name for each in scratch), *free.values())
    launch = call(f"def {name}", arguments, indent=1) + ":"
    launch += "".join(f"\n    {line}" for part in parts for line in part.launches())
    text = "\n".join(f"# {line}" for line in lines) + "\n"
    text += "\n\n\n".join((*(part.text() for part in parts), launch)) + "\n"
    shares = parts[0].shares if len(parts) == 1 else ()
    place = {array: at for at, array in enumerate(arguments)}
    ordered = [64 * part.product[3 if part.made[0].left[0].indexed else 1] for part in parts if part.order]
    launches = [launch for part in parts for launch in _launched(part, place)]
    arrays = tuple(reads), tuple(writes), tuple(free)
    return KernelFunction(name, text, *arrays, shares, scratch, tuple(launches), max(ordered, default=0))


def _launched(part: PrintedKernel, place: Mapping[str, int]) -> Iterator[Launch]:
    """Yield what a kernel launches: itself, and the sums of its partial sums."""
    parts = dict(zip(part.added, (each.name for each in part.scratch), strict=True))
    writes = (place[parts.get(array, array)] for array in part.outputs.values())
    if part.order:
        yield Launch(GROUPED, 0, (place[part.order[0]],), ())
    yield Launch(
        part.name, part.warps, tuple(place[array] for array in part.values.reads.values()), tuple(writes), part.product
    )
    if parts:
        read, written = (tuple(map(place.__getitem__, each)) for each in (parts.values(), parts))
        yield Launch("add_parts", 4, read, written)
