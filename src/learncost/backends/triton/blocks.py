"""The two forms of a kernel in Triton: blocks of rows, with sums over rows, and tiles of a matrix product."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from learncost.backends.c import Scratch
from learncost.backends.expression import call
from learncost.backends.triton.values import (
    COMPUTED,
    NEUTRAL,
    TYPES,
    Block,
    BlockValue,
    KernelValues,
    bracketed,
    position,
    reduction,
    summed,
)
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product
from learncost.ir.term import Operand, Term

ELEMENTS = 1024
"""The elements of a block of rows, where one row has fewer."""
LARGEST = 1 << 16
"""The most elements of one row in registers, each axis rounded up to a power of two: 128 of each of 512 threads."""
SPILLED = 2 * LARGEST
"""The most elements of a row that cannot be swept, half of which spill."""
SWEPT = 1 << 14
"""The elements of a longer row that a program takes at a time, once for each reduction that depends on others."""
PARTS = 256
"""The most partial sums over rows, each of one program; a second kernel adds them up."""
TILE, DEPTH = 64, 32
"""Rows and columns of a product's tile, and the summed positions that it takes at a time."""
GROUPED = "group_rows"
"""The helper of an emitted file that sorts rows by experts, with 64 bytes a row."""
ORDER = ("order", "expert_of", "first_of", "begins")
"""Its results: rows by experts, the expert and first row of every tile, and the first row of experts."""
NARROWEST = 8
"""The fewest elements along the axis of such a part."""


@dataclass
class PrintedKernel:
    """One kernel: the statements before its loop, in it and after it, and how it is launched.

    made    the lines whose results are stored, in `outputs` by name
    rank    the dimensions of every block
    added   results whose partial sums a second launch adds up, each with its size
    product of tiles: the number of matrices, their rows and columns, and the length of a sum
    order   of rows by experts: the array of every row's expert, and the number of experts
    shares  pairs of an array that is read and one that is written that may be one and the same memory
    """

    values: KernelValues
    made: list[Line]
    name: str
    rank: int = 1
    head: list[str] = field(default_factory=list)
    loop: str = ""
    inside: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    grid: str = "1"
    warps: int = 4
    scratch: list[Scratch] = field(default_factory=list)
    added: dict[str, int] = field(default_factory=dict)
    product: tuple[int, ...] = ()
    order: tuple[str, int] | None = None
    shares: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.outputs = {line.name: self.values.names.of(line.name) for line in self.made}

    def along(self, dim: int) -> str:
        """Return the index that gives a range its dimension."""
        return "" if self.rank == 1 else f"[{', '.join(':' if at == dim else 'None' for at in range(self.rank))}]"

    def stored(self, line: Line, value: str, at: Mapping[str, BlockValue]) -> str:
        """Return the statement that stores a result."""
        return self.store(self.outputs[line.name], self.offset(line, at), value)

    def offset(self, line: Line, at: Mapping[str, BlockValue]) -> BlockValue:
        return self.values.offset([at[axis] for axis in line.left[0].declared], self.values.axes[line.name])

    def store(self, array: str, offset: BlockValue, value: str) -> str:
        if not offset.blocks:
            zero = f"tl.zeros({[1] * self.rank}, tl.int32)"
            offset = replace(offset, text=f"{offset.text} + {zero}" if offset.text else zero)
        mask = self.values.mask(offset)
        return f"tl.store({array} + {offset.text}, {value}{mask and f', mask={mask}'})"

    def _typed(self) -> dict[str, str]:
        """Return the parameters with their types."""
        values = self.values
        arrays = {array: values.dtypes[name] for name, array in (*values.reads.items(), *self.outputs.items())}
        arrays |= {each.name: each.dtype for each in self.scratch}
        arrays |= dict.fromkeys(ORDER if self.order else (), "int64")
        types = {array: f"*{TYPES[dtype]}" for array, dtype in arrays.items()}
        return types | dict.fromkeys(values.free.values(), "i32")

    def text(self) -> str:
        """Return the kernel."""
        body = [f"{size}: tl.constexpr = {number}" for size, number in self.values.constants.items()]
        body += self.head
        body += [self.loop, *(f"    {line}" for line in self.inside)] if self.loop else self.inside
        parameters = [f'{name}: "{kind}"' for name, kind in self._typed().items()]
        head = f"def {self.name}({', '.join(parameters)}):"
        if len(head) > 118:
            head = f"def {self.name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + "):"
        return f"@triton.jit\n{head}\n" + "\n".join(f"    {line}" for line in _used([*body, *self.after]))

    def launches(self) -> list[str]:
        """Return the statements that launch it, and what follows it."""
        grid = self.grid
        for size, number in self.values.constants.items():
            grid = re.sub(rf"\b{size}\b", number, grid)
        launch = call(f"{self.name}[({grid},)]", [*self._typed(), f"num_warps={self.warps}"])
        grouped = [f"{', '.join(ORDER)} = {GROUPED}({', '.join(map(str, self.order))}, {TILE})"] if self.order else []
        if self.added:
            parts = [each.name for each in self.scratch], self.added, map(str, self.added.values())
            arguments = [f"({', '.join(each)},)" for each in parts]
            launch += "\n" + call(f"add_parts[(triton.cdiv({max(self.added.values())}, 32),)]", [*arguments, grid])
        return [*grouped, *launch.split("\n")]


def _used(body: Sequence[str]) -> list[str]:
    """Return the statements without positions and sizes that none reads."""
    kept: list[str] = []
    read: set[str] = set()
    for line in reversed(body):
        name, _, text = line.strip().partition(" = ")
        name = name.removesuffix(": tl.constexpr")
        if text and name.isidentifier() and name not in read:
            continue
        read |= {*re.findall(r"[A-Za-z_]\w*", text or line)}
        kept.append(line)
    return kept[::-1]


def power(number: int) -> int:
    """Return the least power of two that is no smaller."""
    return 1 << max(number - 1, 0).bit_length()


# Rows.


def rows(kernel: PrintedKernel, wished: Sequence[str]) -> None:
    """Print a kernel of rows in parallel; sums over rows are added up by a second one.

    wished  the axes of rows of the kernel's plan
    """
    values = kernel.values
    points, totals = _divided(values.lines, wished, kernel.outputs)
    every = dict.fromkeys(axis for line in kernel.made for axis in line.left[0].declared)
    every |= dict.fromkeys(axis for line in values.lines for axis in summed(line))
    rest = [axis for axis in every if axis not in points]
    lengths = {axis: power(values.number(axis)) for axis in rest}
    within = [{*line.loops, *line.left[0].declared} for line in values.lines]
    row = max((prod(lengths[axis] for axis in axes if axis in lengths) for axes in within), default=1)
    swept = max(rest, key=lambda axis: lengths[axis]) if row > LARGEST else ""
    swept = "" if any(swept in line.left[0].declared for line in totals) else swept  # a sum over rows has it
    width = SWEPT // (row // lengths[swept]) if swept else 0
    values.swept = swept = swept if width >= NARROWEST else ""
    if row > SPILLED and not swept:
        shown = " ".join(f"{axis}={values.number(axis):,}" for axis in rest)
        raise InputError(f"a row of {shown} is too large for one block in Triton, in line: {kernel.made[0]}")
    kernel.rank = 1 + len(rest)
    known = None if not (rest or totals) else prod(map(values.number, points))
    together = ELEMENTS if known is None else min(power(known), max(1, ELEMENTS // row))
    kernel.warps = min(16, max(4, together * row // 1024))
    count = values.points(points)
    bound = "" if known is not None and known % together == 0 else bracketed(count)
    block = Block("point", 0, together, bound)
    values.body = kernel.head
    for dim, axis in enumerate(rest, 1):
        length = width if axis == swept else lengths[axis]
        limit = "" if values.number(axis) % length == 0 else values.size(axis)
        counter = values.let(position(axis), f"tl.arange(0, {length}){kernel.along(dim)}")
        blocks = frozenset({Block(counter, dim, length, limit)})
        values.canonical[axis] = BlockValue(counter, blocks, "index")
    programs, first = 1, f"tl.program_id(0) * {together}"
    kernel.grid = f"triton.cdiv({count}, {together})"
    if totals:
        assert known is not None
        several = -(-known // together)
        chunk = -(-several // min(several, PARTS)) * together
        programs, first = -(-known // chunk), "first"
        last = f"program * {chunk} + {chunk}"
        last = last if programs * chunk == known else f"tl.minimum({last}, {count})"
        kernel.grid, kernel.loop = str(programs), f"for first in range(program * {chunk}, {last}, {together}):"
        values.body.append("program = tl.program_id(0)")
    values.body = kernel.inside
    values.body.append(f"point = {first} + tl.arange(0, {together}){kernel.along(0)}")
    at = values.canonical
    at |= values.flattened(BlockValue("point", frozenset({block}), "index"), points)
    sweep = SweptRows(kernel, swept, at) if swept else None
    if sweep:
        sweep.reduce(totals, block)
    stores = []
    for line in kernel.made:
        if line in totals:
            _total(kernel, line, block, programs, sweep.parts.get(line.name) if sweep else None)
        elif swept not in line.left[0].declared:
            stores.append(kernel.stored(line, values.value(line.name, at).text, at))
    along = [line for line in kernel.made if swept in line.left[0].declared] if sweep else []
    inside, ends = sweep.stores(along) if sweep else ([], [])
    kernel.shares = _shares(kernel, points, totals, swept)
    barrier = [BARRIER] if kernel.shares else []
    if sweep and ends:
        sweep.loop(values.body, [*inside, *barrier, *ends])
        barrier = []
    values.body += [*barrier, *stores]


BARRIER = "tl.debug_barrier()  # all is read before it is overwritten"


@dataclass
class SweptRows:
    """The loops of a program over parts of its row: for each reduction along it that depends on others, and to store.

    Attributes
    ----------
    parts
        Of sums over rows that are along the row too, what a program adds.
    """

    kernel: PrintedKernel
    axis: str
    at: dict[str, BlockValue]
    parts: dict[str, BlockValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = self.kernel.values
        (self.block,) = values.canonical[self.axis].blocks
        (place,) = (at for at, text in enumerate(self.kernel.head) if text.startswith(f"{self.block.name} = "))
        self.counter = self.kernel.head.pop(place).replace(" = ", " = start + ", 1)
        self.levels: dict[str, int] = {}
        for line in values.lines:
            before = max((self.levels.get(read, 0) for read in line.reads), default=0)
            self.levels[line.name] = before + (self.axis in summed(line))

    def reduce(self, totals: Sequence[Line], point: Block) -> None:
        """Print the reductions along the row, then the values of whole rows."""
        values = self.kernel.values
        for level in range(1, max(self.levels.values()) + 1):
            self._of_rows(level, totals)
            reduced = [line for line in values.lines if self.levels[line.name] == level and self.axis in summed(line)]
            body, known, updates = values.body, dict(values.known), list[str]()
            sums: list[tuple[Line, BlockValue, set[Block]]] = []
            values.body = inside = list[str]()
            for line in reduced:
                over = {block for axis in summed(line) for block in values.canonical[axis].blocks}
                over |= {point} if line in totals else set()
                found = values.masked(line, values.summand(line, self.at), over | {self.block})
                how, name = reduction(line), values.let(f"{values.names.of(line.name)}_all", "")
                values.body.pop()
                shape = [1] * self.kernel.rank
                for block in found.blocks:
                    shape[block.dim] = block.length
                body.append(f"{name} = tl.full({shape}, {NEUTRAL[how]}, {values.computed})")
                updates.append(
                    f"{name} += {found.text}" if how == "sum" else f"{name} = tl.{how}imum({name}, {found.text})"
                )
                sums.append((line, replace(found, text=name), over))
            self.loop(body, [*inside, *updates])
            values.body, values.known = body, known
            for line, found, over in sums:
                made = values.reduced(line, found, over)
                if line in totals:
                    self.parts[line.name] = made
                else:
                    key = (line.name, *(self.at[axis].text for axis in line.left[0].declared))
                    values.known[key] = replace(made, text=values.let(f"{values.names.of(line.name)}_i", made.text))
        self._of_rows(max(self.levels.values()) + 1, totals)

    def stores(self, made: Sequence[Line]) -> tuple[list[str], list[str]]:
        """Return the statements of the loop that stores results along the row: before the stores, and these."""
        values, body, known = self.kernel.values, self.kernel.values.body, dict(self.kernel.values.known)
        values.body = inside = list[str]()
        stores = [self.kernel.stored(line, values.value(line.name, self.at).text, self.at) for line in made]
        values.body, values.known = body, known
        return inside, stores

    def _of_rows(self, level: int, totals: Sequence[Line]) -> None:
        """Print the values of whole rows that depend on reductions of lower levels."""
        for line in self.kernel.values.lines:
            axes = line.left[0].declared
            along = self.axis in axes or self.axis in summed(line) or line in totals
            if not along and self.levels[line.name] < level and all(axis in self.at for axis in axes):
                self.kernel.values.value(line.name, self.at)

    def loop(self, body: list[str], inside: Sequence[str]) -> None:
        body.append(f"for start in range(0, {self.kernel.values.size(self.axis)}, {self.block.length}):")
        body += [f"    {line}" for line in (self.counter, *inside)]


def _total(kernel: PrintedKernel, line: Line, point: Block, programs: int, part: BlockValue | None) -> None:
    """Print a sum over rows: over those of a program, stored after them; `part` is what a sweep has summed."""
    values, left, output = kernel.values, line.left[0], kernel.outputs[line.name]
    blocks = {block for axis in summed(line) for block in values.canonical[axis].blocks} | {point}
    part = part or values.over(line, values.summand(line, values.canonical), blocks)
    shape = [1] * kernel.rank
    for axis in left.declared:
        for block in values.canonical[axis].blocks:
            shape[block.dim] = block.length
    kernel.head.append(f"{output}_total = tl.zeros({shape}, {values.computed})")
    values.body.append(f"{output}_total += {part.text}")
    offset = kernel.offset(line, values.canonical)
    if programs == 1:
        kernel.after.append(kernel.store(output, offset, f"{output}_total"))
        return
    size = prod(map(values.number, left.declared))
    parts = Scratch(f"{output}_parts", "fp64" if values.computed == COMPUTED["fp64"] else "fp32", programs * size)
    place = f"program * {size} + {offset.text}" if offset.text else "program"
    kernel.after.append(kernel.store(parts.name, replace(offset, text=place), f"{output}_total"))
    kernel.scratch.append(parts)
    kernel.added[output] = size


def _divided(
    lines: Sequence[Line], wished: Sequence[str], outputs: Mapping[str, str]
) -> tuple[tuple[str, ...], list[Line]]:
    """Return the axes of a kernel's rows, and the lines that sum over all of them.

    Without sums over rows, the axes of rows are those that all results and reduced values have.
    """
    readers = {name for line in lines for name in line.reads}
    over = {line.name: {*summed(line)} for line in lines if summed(line)}
    sums = [line for line in lines if line.name in over and line.name not in readers and isinstance(line, Product)]
    totals: list[Line] = [line for line in sums if over[line.name] & {*wished}]
    if not totals:
        acted = {axis for line in lines if isinstance(line, Op) for axis in line.axes}
        acted |= {axis.axis for line in lines for axis in line.left[0].axes if not isinstance(axis, str)}
        whole = [line.left[0].declared for line in lines if line.name in outputs or line.name in over]
        first = max((line.left[0].declared for line in lines if line.name in outputs), key=len)
        free = [axis for axis in first if axis not in acted and not any(axis in each for each in over.values())]
        made = [line.left[0].declared for line in lines if line.name in outputs]
        points = tuple(axis for axis in free if all(axis in each for each in whole))
        points = points or tuple(axis for axis in free if all(axis in each for each in made))
        if points or len(sums) < len(outputs):
            return points, []
        totals, wished = [*sums], [axis for axis in sums[0].loops if axis in over[sums[0].name]]
    others = [line for line in lines if line not in totals and (line.name in outputs or line.name in over)]
    along = [axis for axis in totals[0].loops if all(axis in over[line.name] for line in totals)]
    kept = {axis for axis in along if all(axis in line.left[0].declared for line in others)}
    points = tuple(axis for axis in along if axis in kept or axis in wished)
    if not points or not {*points} <= kept:
        raise InputError(f"sums over different rows in one kernel are not supported in Triton, in line: {totals[0]}")
    return points, totals


def _shares(
    kernel: PrintedKernel, points: Sequence[str], totals: Sequence[Line], swept: str
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of an array that is read and one that is written whose rows are the same memory."""
    values, pairs = kernel.values, []
    operands = [operand for line in values.lines for operand in line.right if isinstance(operand, Term)]
    indices = {name for line in values.lines for term in (*line.left, *line.right) for name in term.names[1:]}
    moved = any(term.beyond for term in operands)  # a value may be computed at positions of other rows
    along = [line for line in values.lines if swept in (*line.loops, *line.left[0].declared)]
    # or at those of another part of a row, which may be written already
    moved |= any(isinstance(term, Term) and term.indexed for line in along for term in line.right)
    for line in kernel.made if not moved else ():
        for name in values.reads:
            reads = [term for term in operands if term.name == name]
            rows = all({*points} <= {*term.axes} and term.declared == line.left[0].declared for term in reads)
            same = values.axes[name] == values.axes[line.name] and values.dtypes[name] == values.dtypes[line.name]
            if rows and same and line not in totals and name not in indices:
                pairs.append((name, line.name))
    return tuple(pairs)


# Products.


def tiles(kernel: PrintedKernel, line: Line) -> None:
    """Print a kernel of a product's tiles, with elementwise lines before and after."""
    assert isinstance(line, Product)
    values, found = kernel.values, line.sides
    kernel.rank = 2
    several = {"row": found.rows, "column": found.columns, "inner": (*found.summed, *found.lone)}
    length = {name: prod(map(values.number, axes)) for name, axes in several.items()}
    tile = {name: min(DEPTH if name == "inner" else TILE, max(16, power(length[name]))) for name in several}
    counted = {name: bracketed(values.points(axes)) for name, axes in several.items()}
    many = {name: -(-length[name] // tile[name]) for name in several}

    def block(name: str, of: str, dim: int, start: str) -> tuple[Block, dict[str, BlockValue]]:
        made = Block(name, dim, tile[of], "" if length[of] % tile[of] == 0 else counted[of])
        values.body.append(f"{name} = {start} + tl.arange(0, {tile[of]}){kernel.along(dim)}")
        return made, values.flattened(BlockValue(name, frozenset({made}), "index"), several[of])

    values.body = kernel.head
    values.body.append("program = tl.program_id(0)")
    batch: dict[str, BlockValue] = {}
    if found.batch:
        values.body.append(f"matrix = program // {many['row'] * many['column']}")
        batch = values.flattened(BlockValue("matrix", frozenset(), "index"), found.batch)
    first = f"program % {many['row'] * many['column']} // {many['column']} * {tile['row']}"
    row, rows_at = block("row", "row", 0, first)
    column, columns_at = block("column", "column", 1, f"program % {many['column']} * {tile['column']}")
    values.body.append(f"sums = tl.zeros([{tile['row']}, {tile['column']}], {values.computed})")
    known = dict(values.known)
    values.body = kernel.inside
    kernel.loop = f"for first in range(0, {counted['inner']}, {tile['inner']}):"
    across, across_at = block("across", "inner", 1, "first")
    down, down_at = block("down", "inner", 0, "first")
    left = factor_block(values, line.right[0], {**batch, **rows_at, **across_at}, (row, across))
    right = factor_block(values, line.right[1], {**batch, **columns_at, **down_at}, (down, column))
    product = f'tl.dot({left}, {right}, sums, input_precision="ieee", out_dtype={values.computed})'
    if any(factor.name in values.reads and values.dtypes[factor.name] == "bf16" for factor in line.right):
        product = f"dot_bf16({left}, {right}, sums)"
    values.body.append(f"sums = {product}")
    values.body, values.known = kernel.after, known
    at = {**batch, **rows_at, **columns_at}
    key = (line.name, *(at[axis].text for axis in line.left[0].declared))
    values.known[key] = BlockValue("sums", frozenset({row, column}))
    stores = [kernel.stored(each, values.value(each.name, at).text, at) for each in kernel.made]
    kernel.shares = _shares(kernel, line.left[0].declared, (), "")
    values.body += [*([BARRIER] if kernel.shares else []), *stores]
    matrices = prod(map(values.number, found.batch))
    kernel.grid = str(many["row"] * many["column"] * matrices)
    kernel.product = matrices, length["row"], length["column"], length["inner"]


def factor_block(
    values: KernelValues, factor: Operand, at: Mapping[str, BlockValue], blocks: tuple[Block, Block]
) -> str:
    """Return a factor's block; one that is computed is zero beyond its ends, as one that is loaded."""
    value = values.operand(factor, at)
    if factor.name not in values.makers and {*blocks} <= value.blocks:
        return value.text
    tests = [block.inside or f"({block.name} >= 0)" for block in blocks]
    return f"tl.where({' & '.join(tests)}, {value.text}, 0.0)"
