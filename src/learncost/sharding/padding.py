"""Sizes that the devices of a mesh do not divide and that a rewriting fills up to the next one, as a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.passes.rewrite_padded import paddable, with_padded
from learncost.sharding.clauses import Clause, parts_of
from learncost.sharding.mesh import Mesh


@dataclass(frozen=True)
class Padded:
    """An axis that was filled up: its size, and the next one of which each device has an equal part."""

    axis: str
    size: int
    filled: int

    def __str__(self) -> str:
        return (
            f"{self.axis} is {self.size:,} and filled up to {self.filled:,}, which the mesh divides: what is added is "
            "computed, and stands outside of the softmax"
        )


def filled_up(
    model: Model, table: Table, mesh: Mesh, chosen: Iterable[Clause], sizes: Mapping[str, int]
) -> tuple[Model, dict[str, int], tuple[Padded, ...]]:
    """The model and the sizes with what does not divide filled up, where it may be; and what was.

    table  the step of the model, whose values the clauses cut
    """
    axes = {axis for clause in chosen for axis in clause.axes} & paddable(model.table)
    parts = parts_of(table, mesh, chosen, sizes) if axes else {}
    padded = padded_of((axis, sizes[axis], parts[axis]) for axis in sorted(axes & parts.keys()))
    return with_filled(model, padded), {**sizes, **sizes_of(padded)}, padded


def padded_of(cut: Iterable[tuple[str, int, int]]) -> tuple[Padded, ...]:
    """What is filled up of axes with their sizes and into how many parts each is cut: what does not divide."""
    return tuple(Padded(axis, size, -(-size // parts) * parts) for axis, size, parts in cut if size % parts)


def sizes_of(padded: Iterable[Padded]) -> dict[str, int]:
    """The sizes of what was filled up."""
    return {each.axis: each.filled for each in padded}


def with_filled(model: Model, padded: Iterable[Padded]) -> Model:
    """The model with what was filled up left out of all that it computes."""
    table, sizes = model.table, sizes_of(padded := tuple(padded))
    for each in padded:
        table = with_padded(table, each.axis, each.size)
    return replace(model, table=table, sizes={**model.sizes, **sizes}) if padded else model
