"""A line of the notation as an operation of a library on matrices: a product of two, or rows added at an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learncost.equation.table import Line, Product, Read, Term


@dataclass(frozen=True)
class Matrix:
    """An array read as a matrix: so many of its axes are the rows, the others the columns; perhaps transposed."""

    name: str
    rows: int
    transposed: bool = False


@dataclass(frozen=True)
class MatrixProduct:
    """`out = one @ two`, all three of them arrays as they lie."""

    one: Matrix
    two: Matrix
    out: Matrix

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.one.name, self.two.name)))


def matrix_product(line: Line) -> MatrixProduct | None:
    """The product as one of matrices, if its axes lie in such an order; None if not."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.where:
        return None
    a, b = line.right
    out = line.left[0]
    if not all(isinstance(term, Term) and not term.indexed for term in (a, b, out)):
        return None
    left, one, two = out.loops, a.loops, b.loops
    if any(len(term.axes) != len(set(term.axes)) for term in (a, b, out)):
        return None
    summed = [axis for axis in one if axis not in left]
    rows = [axis for axis in one if axis in left]
    columns = [axis for axis in two if axis in left]
    if set(rows) & set(columns) or [axis for axis in two if axis not in left] != summed or not summed:
        return None
    if not rows or not columns:
        return None
    if list(left) == columns + rows:
        a, b, rows, columns, one, two = b, a, columns, rows, two, one
    if list(left) != rows + columns:
        return None
    first = _matrix(a.name, one, rows, summed)
    second = _matrix(b.name, two, summed, columns)
    return MatrixProduct(first, second, Matrix(out.name, len(rows))) if first and second else None


def _matrix(name: str, axes: Sequence[str], rows: list[str], columns: list[str]) -> Matrix | None:
    if list(axes) == rows + columns:
        return Matrix(name, len(rows))
    if list(axes) == columns + rows:
        return Matrix(name, len(columns), transposed=True)
    return None


@dataclass(frozen=True)
class Scatter:
    """Rows that are added to those of a table at an index, as the gradient of an embedding is.

    rows     the array that has them, first those axes over which they are summed
    summed   how many these are
    columns  how many axes a row has
    """

    index: str
    rows: str
    summed: int
    columns: int


def scatter(line: Line) -> Scatter | None:
    """The line as rows added at an index; None if it is something else."""
    left = line.left[0]
    if not isinstance(line, Product) or len(line.right) != 1 or line.where or not left.axes:
        return None
    (right,), (first, *columns) = line.right, left.axes
    if not isinstance(right, Term) or right.indexed or not isinstance(first, Read) or not isinstance(first.at, Term):
        return None
    wanted = (*first.at.loops, *columns)
    before = len(right.axes) - len(wanted)
    if before < 0 or right.axes[before:] != wanted or len(first.at.loops) != len(first.at.axes):
        return None
    return Scatter(first.at.name, right.name, before, len(columns))
