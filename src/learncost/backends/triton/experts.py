"""Products with a matrix for every row, such as an expert's: rows in the order of their experts, tile by tile.

Each tile has rows of one expert, so that its matrix is read once for them (Gale et al. 2022, MegaBlocks, section 5).
The order is found on the GPU (`group_rows`): what runs does not depend on how many rows an expert has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from learncost.backends.triton.blocks import DEPTH, TILE, PrintedKernel, factor_block, power
from learncost.backends.triton.values import Block, BlockValue
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line, Product
from learncost.ir.term import Operand, Read, Term


@dataclass(frozen=True)
class ExpertProduct:
    """A product with a matrix for every row, or the gradient of the matrices.

    index        the expert of every row, by the axes of rows
    expert       the axis of experts
    sides        axes of the product's rows, columns and sums
    of_matrices  whether it is the gradient: the rows of an expert are summed, and no rows of the product
    """

    index: Term
    expert: str
    sides: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    of_matrices: bool


def expert_product(line: Line, makers: Mapping[str, Line]) -> ExpertProduct | None:
    """Return a line as a product of experts; None for other lines.

    The second factor is made by a line that reads a matrix for every row: `X[B t f] = W[e=chosen[B t] f]`.
    """
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return None
    left, (first, second) = line.left[0], line.right
    if not (isinstance(first, Term) and isinstance(second, Term)) or first.indexed or second.indexed:
        return None
    of_first, of_second = _plain(first), _plain(second)
    if choice := _choice(left):
        (expert, at), features = choice, {*_plain(left)}
        rows = _plain(at)
        columns = [tuple(axis for axis in axes if axis in features) for axes in (of_first, of_second)]
        fits = all((rows, *columns)) and {*of_first, *of_second} == {*rows, *features} and features.isdisjoint(rows)
        fits = fits and {*columns[0]}.isdisjoint(columns[1])
        return ExpertProduct(at, expert, (columns[0], columns[1], rows), True) if fits else None
    choice = _gathered(second, makers)
    if choice is None or left.indexed:
        return None
    expert, at = choice
    rows = _plain(at)
    inner, outer = ([axis for axis in of_second if (axis in left.axes) == kept] for kept in (False, True))
    columns_of = tuple(axis for axis in outer if axis not in rows)
    fits = _plain(left) == (*rows, *columns_of) and of_second[: len(rows)] == rows and bool(inner and columns_of)
    fits = fits and {*inner} <= {*of_first} <= {*rows, *inner}
    return ExpertProduct(at, expert, (rows, columns_of, tuple(inner)), False) if fits else None


def _choice(term: Operand) -> tuple[str, Term] | None:
    """Return the axis of matrices, and the array with the number of each row's; None where no array chooses them."""
    first = term.axes[0] if isinstance(term, Term) and term.axes else ""
    return (first.axis, first.at) if isinstance(first, Read) and isinstance(first.at, Term) else None


def _gathered(factor: Term, makers: Mapping[str, Line]) -> tuple[str, Term] | None:
    """Return the choice of a factor that a line reads for every row; None for other factors."""
    maker = makers.get(factor.name)
    return _choice(maker.right[0]) if maker and len(maker.right) == 1 and maker.left[0].axes == factor.axes else None


def _plain(term: Term) -> tuple[str, ...]:
    return tuple(axis for axis in term.axes if isinstance(axis, str))


def by_rows(line: Line, makers: Mapping[str, Line]) -> Iterator[Line]:
    """Yield a line; a product of experts that is summed over some of its rows' axes as the product and the sum."""
    second = line.right[-1] if isinstance(line, Product) else None
    choice = _gathered(second, makers) if isinstance(second, Term) else None
    if choice:
        rows = _plain(choice[1])
        each = Term(f"{line.name}~rows", (*rows, *(axis for axis in _plain(line.left[0]) if axis not in rows)))
        product = line.with_changed(left=(each,))
        if {*rows} - {*line.left[0].axes} and expert_product(product, makers):
            yield from (product, Product(line.left, (each,), (), line.meta))
            return
    yield line


def grouped(kernel: PrintedKernel, line: Line, found: ExpertProduct) -> None:
    """Print a product's tiles, each with rows of one expert; for the matrices' gradient each sums one expert's rows."""
    assert isinstance(line, Product)
    values, experts = kernel.values, kernel.values.number(found.expert)
    kernel.rank, kernel.warps = 2, 8
    names = ("row", "column", "inner")
    length = {name: prod(map(values.number, axes)) for name, axes in zip(names, found.sides, strict=True)}
    tile = {name: min(DEPTH if name == "inner" else TILE, max(16, power(length[name]))) for name in names}
    tile |= {"inner": DEPTH} if found.of_matrices else {"row": TILE}
    rows, columns, inner = found.sides
    many = -(-length["column"] // tile["column"])
    body = values.body = kernel.head
    body.append("program = tl.program_id(0)")

    def block(name: str, of: str, dim: int, text: str, axes: Sequence[str]) -> tuple[Block, dict[str, BlockValue]]:
        made = Block(name, dim, tile[of], str(length[of]))
        values.body.append(f"{name} = {text}")
        return made, values.flattened(BlockValue(name, frozenset({made}), "index"), axes)

    def along(of: str, dim: int) -> str:
        return f"tl.arange(0, {tile[of]}){kernel.along(dim)}"

    def sorted_rows(start: str, of: str, dim: int) -> str:
        place = f"{start} + {along(of, dim)}"
        return f"tl.load(order + {place}, mask={place} < last, other={length[of]})"

    if found.of_matrices:
        down = -(-length["row"] // tile["row"])
        body.append(f"matrix = program // {down * many}")
        body += ["begin = tl.load(begins + matrix)", "last = tl.load(begins + matrix + 1)"]
        first = f"program % {down * many} // {many} * {tile['row']} + {along('row', 0)}"
        row, rows_at = block("row", "row", 0, first, rows)
        loop = f"for first in range(begin, last, {DEPTH}):"
        programs = down * many * experts
        at_expert: dict[str, BlockValue] = {found.expert: BlockValue("matrix", frozenset(), "index")}
    else:
        body += [f"tile = program // {many}", "matrix = tl.load(expert_of + tile)", "start = tl.load(first_of + tile)"]
        body.append("last = tl.load(begins + matrix + 1)")
        row, rows_at = block("row", "row", 0, sorted_rows("start", "row", 0), rows)
        loop = f"for first in range(0, tl.where(start < last, {length['inner']}, 0), {tile['inner']}):"
        programs = (-(-length["row"] // TILE) + experts) * many
        at_expert = {}
        place = values.offset([rows_at[axis] for axis in rows], values.axes[found.index.name])
        values.known["given", found.index.name, place.text] = BlockValue("matrix", frozenset(), "index")
    text = f"program % {many} * {tile['column']} + {along('column', 1)}"
    column, columns_at = block("column", "column", 1, text, columns)
    body.append(f"sums = tl.zeros([{tile['row']}, {tile['column']}], {values.computed})")
    known = dict(values.known)
    values.body, kernel.loop = kernel.inside, loop
    sides: list[str] = []
    for name, dim, factor, own, at in (
        ("across", 1, line.right[0], row, rows_at),
        ("down", 0, line.right[1], column, columns_at),
    ):
        text = sorted_rows("first", "inner", dim) if found.of_matrices else f"first + {along('inner', dim)}"
        made, inner_at = block(name, "inner", dim, text, inner)
        blocks = (own, made) if dim else (made, own)
        of_rows = {} if found.of_matrices else rows_at
        sides.append(factor_block(values, factor, {**of_rows, **at, **inner_at}, blocks))
    product = f'tl.dot({sides[0]}, {sides[1]}, sums, input_precision="ieee", out_dtype={values.computed})'
    if any(values.dtypes.get(factor.name) == "bf16" for factor in line.right):
        product = f"dot_bf16({sides[0]}, {sides[1]}, sums)"
    values.body.append(f"sums = {product}")
    values.body, values.known = kernel.after, known
    values.body.append(kernel.stored(line, "sums", {**at_expert, **rows_at, **columns_at}))
    kernel.grid, kernel.order = str(programs), (values.array(found.index.name), experts)
    kernel.product = (1, length["row"], length["column"], length["inner"])
