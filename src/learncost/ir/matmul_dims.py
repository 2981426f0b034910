"""The dimensions of a product of two factors: rows, columns, summed and batch axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatmulDims:
    """The axes of a product of two factors by their function, in the order of the result.

    rows     axes of the first factor and the result
    columns  axes of the second factor and the result
    summed   axes of both factors and not of the result, in the first factor's order
    batch    axes of both factors and the result
    lone     axes of one factor only: they are summed before the multiplication
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    batch: tuple[str, ...]
    lone: tuple[str, ...]

    @property
    def are_of_matrices(self) -> bool:
        """Return whether it is a matrix product, with rows, columns and a summed axis."""
        return bool(self.rows and self.columns and self.summed)

    @property
    def sums(self) -> bool:
        """Return whether an axis is summed; without one the product is elementwise."""
        return bool(self.summed or self.lone)


def sides(left: Sequence[str], right: Sequence[str], result: Collection[str]) -> MatmulDims:
    """Return the dimensions of a product, from the axes of its factors and of its result."""
    return MatmulDims(
        rows=tuple(axis for axis in result if axis in left and axis not in right),
        columns=tuple(axis for axis in result if axis in right and axis not in left),
        summed=tuple(axis for axis in left if axis in right and axis not in result),
        batch=tuple(axis for axis in result if axis in left and axis in right),
        lone=tuple(
            axis for axis in dict.fromkeys((*left, *right)) if axis not in result and (axis in left) != (axis in right)
        ),
    )
