"""Dimensions of size one. A view has none of them; a matrix keeps its single row, column or summed dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from learncost.importer.axes import AxisClass, Size, equal, leaves
from learncost.importer.equations import EquationRecorder, Letters, WrittenAxis
from learncost.importer.nodes import operator_name, shape_of
from learncost.importer.rule import RULES, VIEW_RULES
from learncost.importer.views import AxisIndex, StoredValue, View, ViewAxis

PRODUCTS = ("linear", "mm", "addmm", "matmul", "bmm", "baddbmm", "addbmm")


def kept_axes(shape: Sequence[Size], nodes: Iterable[Any]) -> list[int]:
    """Return the dimensions of an input that are axes: those of size one only if a product reads them.

    nodes   the nodes of the input and of its views
    """
    ones = {place for place, size in enumerate(shape) if equal(size, 1)}
    kept = set[int]()
    readers = set(_readers(nodes)) if ones else set[str]()
    if len(shape) > 1 and not readers.isdisjoint(PRODUCTS):
        kept = ones & ({0, 1} if len(shape) == 2 else {len(shape) - 1})  # the column of a stack
    elif len(shape) > 2 and "convolution" in readers:
        kept = ones & ({0, 1} if len(ones - {0}) == len(shape) - 1 else {0})
    return [place for place in range(len(shape)) if place not in ones or place in kept]


def _readers(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the operators that read nodes, also through views; without grouped convolutions, whose weights are not
    matrices.
    """
    left = list(nodes)
    while left:
        node = left.pop()
        for user in node.users:
            name = operator_name(user.target).partition(".")[0]
            look = RULES.get(name)
            if look in VIEW_RULES:
                left.append(user)
            elif name != "convolution" or (
                user.args[1] is node and equal(shape_of(user.args[0])[1 - len(shape_of(node))], shape_of(node)[1])
            ):
                yield name


def as_given(stored: StoredValue, shape: Sequence[Any], kept: Sequence[int]) -> View:
    """Return a view of an input; its axes of size one are read at their only position."""
    view = View.of(stored, [1 if place in kept else 0 for place in range(len(shape))])
    for place in kept:
        if equal(shape[place], 1):
            view = at_only_position(view, place)
    return view


def at_only_position(view: View, dim: int) -> View:
    """Return a view that reads an axis of size one at its only position."""
    return view.read(dim, (), ())


def along(recorder: EquationRecorder, view: View, dim: int, letter: str = "n") -> View:
    """Return a view with a dimension of size one along an axis: a stored one, or one that is written for it."""
    view = view.fresh()
    rows, index = list(view.dims), list(view.index)
    for place, (axis, each) in enumerate(zip(leaves(view.stored.axes), view.index, strict=True)):
        if each == AxisIndex(()) and equal(axis.root.size, 1):
            slot = ViewAxis(axis)
            rows[dim], index[place] = (slot,), slot
            return View(view.stored, tuple(index), tuple(rows), view.spread)
    return written(recorder, view, dim, letter)


def written(recorder: EquationRecorder, view: View, dim: int, letter: str) -> View:
    """Return a view with a dimension of size one as a stored axis, by writing it."""
    axis = WrittenAxis(AxisClass(1, letter, whole=True), AxisIndex((), 0))
    return recorder.placed_along(view.fresh(), dim, axis, f"{view.stored.name}_row")


def matrix_product(recorder: EquationRecorder, x: View, z: View, row_x: Letters, row_z: Letters, out: Letters) -> View:
    """Record a product of matrices, of which one may have one row or one column, and both a summed dimension of size
    one.

    A product of values with one column for each point of a batch is not changed: a matrix with one column for each
    sequence, as a state space reads its states with, is a vector.
    """
    views, letters = [x.fresh(), z.fresh()], [list(row_x), list(row_z)]

    def has(side: int, letter: Any) -> bool:
        return letter in letters[side] and bool(views[side].dims[letters[side].index(letter)])

    def add(side: int, letter: Any) -> None:
        views[side] = along(recorder, views[side], letters[side].index(letter), _name(letter))

    batch = [each for each in row_x if each in row_z and each in out and has(0, each) == has(1, each)]
    added = []
    if not batch or any(view.stored.kind == "weight" for view in views):
        summed = [each for each in row_x if each in row_z and each not in out]
        if summed and not any(has(0, each) for each in summed):
            for side in (0, 1):
                add(side, summed[0])
        for side in (0, 1):
            alone = [each for each in letters[side] if each in out and each not in batch and not has(1 - side, each)]
            if alone and not any(has(side, each) for each in alone):
                add(side, alone[-1])
                added.append(alone[-1])
    result = recorder.matmul(list(zip(views, letters, strict=True)), out)
    for letter in added:
        result = at_only_position(result, list(out).index(letter))
    return result


def _name(letter: Any) -> str:
    return letter if isinstance(letter, str) and letter.isalpha() else "n"
