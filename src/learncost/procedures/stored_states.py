"""Compute the bytes of optimizer states, by the shapes that an optimizer sees: a matrix or a vector for each weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from learncost.ir.line import Product, Sum
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.models.model import Model
from learncost.procedures.optimizer import OptimizerState, stepped

MATRIX = 2
"""The axes of a matrix."""


@dataclass(frozen=True, eq=False)
class StoredStates:
    """The weights of a model as its optimizer sees them.

    step  the step of the model, in which projected gradients have other axes than the weights
    """

    model: Model
    step: Table

    @cached_property
    def stacks(self) -> frozenset[str]:
        """Return the weights that are stacked over iterations."""
        return frozenset(outer for line in self.model.table.repeats for _, outer in line.each)

    @cached_property
    def projections(self) -> tuple[str, ...]:
        """Return the trainable projections, such as the separate heads of local losses."""
        gradients = {value.of for value in self.step.known.values() if value.role == "gradient"}
        return tuple(name for name in self.step.projections if name in gradients)

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Return the axes of every weight and projection with a state, as the optimizer sees it."""
        seen, weights = stepped(self.step), {*self.step.weights}  # a decoder's alone in a pass of it
        of_weights = {
            name: tuple(seen.get(name, self.step.axes[name])) for name in self.model.learning if name in weights
        }
        return of_weights | {name: tuple(self.step.axes[name]) for name in self.projections}

    @cached_property
    def rows(self) -> Mapping[str, frozenset[str]]:
        """Return the axes of each weight that are the rows of its matrix, as `rows_of` does."""
        return rows_of(self.model.table)

    def bytes(self, optimizer: OptimizerState, name: str, shape: Sequence[int], kind: str) -> int:
        """Return the bytes of the state of a weight, or of its shard, with this shape along `axes`.

        An optimizer sees the weight of each iteration separately, as a matrix.
        """
        seen, is_stack = [*shape], name in self.stacks or name in self.projections
        if name in self.model.learning:
            seen = self._matrix(name, seen)
        times, one = (seen[0], seen[1:]) if is_stack else (1, seen)
        matrix = [one[0], prod(one[1:])] if len(one) > 1 else one
        return int(times * optimizer.bytes(matrix, kind))

    def _matrix(self, weight: str, shape: list[int]) -> list[int]:
        """Return the shape of a weight as an optimizer sees it: the number of stacked weights, then a matrix or a
        vector."""
        rows, stack, axes = self.rows.get(weight), int(weight in self.stacks), self.axes[weight]
        if rows is None or not rows <= {*axes}:
            return shape
        number = prod(size for axis, size in zip(axes[stack:], shape[stack:], strict=True) if axis in rows)
        points = prod(shape[stack:])
        return [*shape[:stack], *([number, points // number] if rows else [points])]

    def of_a_number(self, optimizer: OptimizerState, name: str, kind: str) -> int | None:
        """Return the bytes of state per element of a weight; None if they depend on the shape."""
        is_stack = name in self.stacks or name in self.projections
        return bytes_of_a_number(optimizer.bytes, len(self.axes[name]) - is_stack > 1, kind)


def rows_of(table: Table) -> dict[str, frozenset[str]]:
    """Return the axes of each weight that are the rows of its matrix, by the lines that read it; none for a vector.

    A product sums over the rows of a matrix, and an embedding reads one of them. Weights that are read in other ways
    are left out, as it is unknown whether they are matrices.
    """
    rows: dict[str, frozenset[str]] = {}
    others: set[str] = set()

    for line, nest in walk(table.lines):
        for term in line.right:
            if isinstance(term, Term) and (weight := nest.stacks.get(term.name, term.name)) in table.weights:
                summed = frozenset(term.loops) - {*line.left[0].loops}
                if any(isinstance(axis, Read) for axis in term.axes):
                    if len(term.axes) == MATRIX:
                        rows[weight] = frozenset(table.axes[weight][-MATRIX:-1])
                elif isinstance(line, Product) and summed and summed < {*term.axes}:
                    rows.setdefault(weight, summed)
                elif isinstance(line, Product | Sum) or len(term.axes) == 1:
                    others.add(weight)
    return {**dict.fromkeys(others, frozenset()), **rows}


def bytes_of_a_number(of: Callable[[Sequence[int], str], Any], matrix: bool, kind: str) -> int | None:
    """Return the bytes of state per element of a matrix or a vector; None if they depend on the shape."""
    # Only states of large weights are quantized.
    shapes = ((7, 11), (13, 17), (257, 511)) if matrix else ((7,), (11,), (131071,))
    per_point = {divmod(of(shape, kind), prod(shape)) for shape in shapes}
    ((each, rest), *others) = per_point
    return None if others or rest else int(each)
