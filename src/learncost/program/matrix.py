"""A line of the notation as a matrix operation of a library: a product of two, or rows added at an index."""

from __future__ import annotations

from dataclasses import dataclass

from learncost.ir.line import Line, Product
from learncost.ir.term import Operand, Read, Term


@dataclass(frozen=True)
class MatrixView:
    """An array read as a matrix: `rows` of its axes are the rows, the others the columns; possibly transposed."""

    name: str
    rows: int
    transposed: bool = False


@dataclass(frozen=True)
class MatrixProduct:
    """The product `out = one @ two` of three arrays in their layouts."""

    left: MatrixView
    right: MatrixView
    out: MatrixView

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.left.name, self.right.name)))


def matrix_product(line: Line) -> MatrixProduct | None:
    """Return a product as a matrix product, if its axes have a suitable order; otherwise None."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return None
    a, b = line.right
    out = line.left[0]
    if not all(isinstance(term, Term) and not term.indexed for term in (a, b, out)):
        return None
    if any(len(term.axes) != len(set(term.axes)) for term in (a, b, out)):
        return None
    sides = line.sides
    if not sides.are_of_matrices or sides.batch or sides.lone:
        return None
    rows, columns = sides.rows, sides.columns
    if out.loops == (*columns, *rows):
        a, b, rows, columns = b, a, columns, rows
    if out.loops != (*rows, *columns):
        return None
    first = _matrix(a, rows, sides.summed)
    second = _matrix(b, sides.summed, columns)
    return MatrixProduct(first, second, MatrixView(out.name, len(rows))) if first and second else None


def _matrix(term: Operand, rows: tuple[str, ...], columns: tuple[str, ...]) -> MatrixView | None:
    if term.loops == (*rows, *columns):
        return MatrixView(term.name, len(rows))
    if term.loops == (*columns, *rows):
        return MatrixView(term.name, len(columns), transposed=True)
    return None


@dataclass(frozen=True)
class Scatter:
    """Rows that are added to those of a table at an index, such as the gradient of an embedding.

    rows     the array that has them, first those axes over which they are summed
    summed   the number of these
    columns  the number of axes of a row
    """

    index: str
    rows: str
    summed: int
    columns: int


def scatter(line: Line) -> Scatter | None:
    """Return the line as rows added at an index; None if it is something else."""
    left = line.left[0]
    if not isinstance(line, Product) or len(line.right) != 1 or line.where or not left.axes:
        return None
    (right,), (first, *columns) = line.right, left.axes
    if not isinstance(right, Term) or right.indexed or not isinstance(first, Read) or not isinstance(first.at, Term):
        return None
    axes = (*first.at.loops, *columns)
    before = len(right.axes) - len(axes)
    if before < 0 or right.axes[before:] != axes or len(first.at.loops) != len(first.at.axes):
        return None
    return Scatter(first.at.name, right.name, before, len(columns))
