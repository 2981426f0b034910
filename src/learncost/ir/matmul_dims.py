"""The sides of a product of two factors: which axes are its rows, its columns, its sum, its batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatmulDims:
    """The axes of a product of two factors by what they do; those of the result in the result's order.

    rows     the first factor has them, and the result
    columns  the second factor has them, and the result
    summed   both factors have them, the result has not, in the first factor's order
    batch    both factors have them, and the result
    lone     one factor alone has them: it is summed before it is multiplied
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    summed: tuple[str, ...]
    batch: tuple[str, ...]
    lone: tuple[str, ...]

    @property
    def are_of_matrices(self) -> bool:
        """Whether it is a product of matrices: each factor keeps an axis that the other lacks, and both sum one."""
        return bool(self.rows and self.columns and self.summed)

    @property
    def sums(self) -> bool:
        """Whether an axis is summed: if none is, it is a product element by element."""
        return bool(self.summed or self.lone)


def sides(left: Sequence[str], right: Sequence[str], result: Collection[str]) -> MatmulDims:
    """The sides of a product, by the axes of its factors and of its result."""
    return MatmulDims(
        rows=tuple(axis for axis in result if axis in left and axis not in right),
        columns=tuple(axis for axis in result if axis in right and axis not in left),
        summed=tuple(axis for axis in left if axis in right and axis not in result),
        batch=tuple(axis for axis in result if axis in left and axis in right),
        lone=tuple(
            axis for axis in dict.fromkeys((*left, *right)) if axis not in result and (axis in left) != (axis in right)
        ),
    )
