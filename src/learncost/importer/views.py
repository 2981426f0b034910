"""Operands of rules: stored values and views of them, and other kinds: outside values, selected positions, integers,
complex numbers. A view is not a line: it gives the index of each of its dimensions in the stored value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from learncost.importer.axes import AxisClass, Size, equal, product, quotient
from learncost.importer.nodes import shape_of
from learncost.ir.dataclass import dataclass, field, replace


@dataclass(eq=False)
class StoredValue:
    """A value that a line makes or that is an input: its name and the classes of its axes.

    kind    weight, input, constant, index, value
    target  its source: a parameter's path, or a node of the graph
    reads   the size of the axis that an index reads
    """

    name: str
    axes: tuple[AxisClass, ...]
    kind: str = "value"
    target: str = ""
    reads: AxisClass | None = None


@dataclass(eq=False, slots=True)
class ViewAxis:
    """An axis of a view: a loop index with a class. A slot in no index is a broadcast dimension."""

    axis: AxisClass


@dataclass(frozen=True)
class AxisIndex:
    """The index into a stored axis: factors times slots, and a number. With `outside`, it may be out of bounds."""

    parts: tuple[tuple[Size, ViewAxis], ...]
    start: Size = 0


@dataclass(frozen=True)
class IndexedAxis:
    """A stored axis that is read at an index, which is a view."""

    view: View


Index: TypeAlias = ViewAxis | AxisIndex | IndexedAxis
Dimension: TypeAlias = tuple[ViewAxis, ...]


@dataclass(frozen=True)
class View:
    """A view of a stored value: an index for each leaf of its axes, and its dimensions, each a row of slots.

    A dimension of size one is an empty row.
    """

    stored: StoredValue
    index: tuple[Index, ...]
    dims: tuple[Dimension, ...]
    spread: frozenset[ViewAxis] = field(default_factory=frozenset)

    @staticmethod
    def of(stored: StoredValue, dims: Sequence[int] | None = None) -> View:
        """Return the value as it is stored; `dims` gives the number of axes of each dimension, by default one each."""
        slots = [ViewAxis(axis) for axis in stored.axes]
        index = tuple(slots)
        rest = iter(slots)
        rows = tuple(tuple(next(rest) for _ in range(count)) for count in (dims or [1] * len(slots)))
        return View(stored, index, rows).fresh()

    @staticmethod
    def new(name: str, shape: Sequence[Size], kind: str = "value", target: str = "") -> View:
        """Return a new value of a shape, whose dimensions of size one are no axes."""
        axes = tuple(AxisClass(size) for size in shape if not equal(size, 1))
        return View.of(StoredValue(name, axes, kind, target), [0 if equal(size, 1) else 1 for size in shape])

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(product([slot.axis.root.size for slot in row]) for row in self.dims)

    @property
    def is_plain(self) -> bool:
        """Return whether it reads all of the stored value, axis by axis."""
        return not self.spread and all(isinstance(index, ViewAxis) for index in self.index)

    def fresh(self) -> View:
        """Return the view after all splits of its classes: a slot for each part."""
        split: dict[ViewAxis, tuple[ViewAxis, ...]] = {}
        for slot in {slot: None for row in self.dims for slot in row}:
            parts = slot.axis.leaves
            if len(parts) > 1 or parts[0] is not slot.axis:
                split[slot] = (slot,) if len(parts) == 1 else tuple(ViewAxis(part) for part in parts)
        if not any(len(parts) > 1 for parts in split.values()):
            return self

        return self._split(split)

    def _split(self, split: Mapping[ViewAxis, tuple[ViewAxis, ...]]) -> View:
        def row(slots: Iterable[ViewAxis]) -> tuple[ViewAxis, ...]:
            return tuple(part for slot in slots for part in split.get(slot, (slot,)))

        def renewed(index: Index) -> tuple[Index, ...]:
            if isinstance(index, ViewAxis):
                return row((index,))
            if isinstance(index, IndexedAxis):  # its slots are those of the index view
                return (IndexedAxis(index.view._split(split)),)
            parts: list[tuple[Size, ViewAxis]] = []
            for factor, slot in index.parts:
                inner = split.get(slot, (slot,))
                for place, part in enumerate(inner):
                    times = product([factor, *(later.axis.root.size for later in inner[place + 1 :])])
                    parts.append((times, part))
            return (AxisIndex(tuple(parts), index.start),)

        index = tuple(new for old in self.index for new in renewed(old))
        return View(self.stored, index, tuple(map(row, self.dims)), frozenset(row(self.spread)))

    def swapped(self, slots: Mapping[ViewAxis, ViewAxis]) -> View:
        """Return the view with some slots replaced."""
        return self._split({old: (new,) for old, new in slots.items()})

    def at(self, slot: ViewAxis, parts: tuple[tuple[Size, ViewAxis], ...], start: Size = 0) -> View:
        """Return the view read at an index instead of a slot: factors times new slots, and a number. Raises
        `AxisSplitError`.

        A stored axis that is read so cannot be split; an index of an index is one index.
        """
        index: list[Index] = []
        for each in self.index:
            if each is slot:
                slot.axis.keep_whole()
                index.append(AxisIndex(parts, start))
            elif isinstance(each, AxisIndex):
                here = [factor for factor, part in each.parts if part is slot]
                others = tuple((factor, part) for factor, part in each.parts if part is not slot)
                moved = tuple((product([here[0], factor]), part) for factor, part in parts) if here else ()
                index.append(AxisIndex((*others, *moved), each.start + here[0] * start if here else each.start))
            elif isinstance(each, IndexedAxis):
                index.append(IndexedAxis(each.view.at(slot, parts, start)))
            else:
                index.append(each)
        return replace(self, index=tuple(index))

    def read(self, dim: int, row: Dimension, parts: tuple[tuple[Size, ViewAxis], ...], start: Size = 0) -> View:
        """Return the view with a dimension, which is one axis, read at an index; its slots are then those of `row`."""
        (slot,) = self.dims[dim]
        dim %= len(self.dims)
        return self.at(slot, parts, start).with_dims([*self.dims[:dim], row, *self.dims[dim + 1 :]])

    def permuted(self, order: Sequence[int]) -> View:
        """Return the view with its dimensions in another order."""
        return replace(self, dims=tuple(self.dims[place] for place in order))

    def with_dims(self, dims: Iterable[Dimension]) -> View:
        return replace(self, dims=tuple(dims))

    def expanded(self, shape: Sequence[Size]) -> View:
        """Return the view broadcast to a shape that has as many dimensions or more, in front."""
        rows: list[Dimension] = [() for _ in range(len(shape) - len(self.dims))]
        rows += self.dims
        spread = set(self.spread)
        for place, size in enumerate(shape):
            if not rows[place] and not equal(size, 1):
                slot = ViewAxis(AxisClass(size))
                spread.add(slot)
                rows[place] = (slot,)
        return replace(self, dims=tuple(rows), spread=frozenset(spread))

    def reshaped(self, shape: Sequence[Size]) -> View:
        """Return the elements in order in another shape. Raises `AxisSplitError` if an axis cannot be split."""
        view = self.fresh()
        rows: list[Dimension] = []
        while True:
            rest = [slot for row in view.dims for slot in row]
            rows = []
            split = False
            for size in shape:
                row: list[ViewAxis] = []
                left = size
                while not equal(left, 1):
                    if not rest:
                        raise ShapeError
                    slot = rest[0]
                    within = quotient(left, slot.axis.root.size)
                    if within is not None:
                        row.append(rest.pop(0))
                        left = within
                        continue
                    slot.axis.root.split(left)
                    split = True
                    break
                if split:
                    break
                rows.append(tuple(row))
            if not split:
                break
            view = view.fresh()
        if rest:
            raise ShapeError
        return replace(view, dims=tuple(rows))


def in_one(slots: Sequence[ViewAxis]) -> tuple[tuple[Size, ViewAxis], ...]:
    """Return the index of several axes in one, the first of them the outer one: each slot times the sizes behind."""
    parts: list[tuple[Size, ViewAxis]] = []
    factor: Size = 1
    for slot in reversed(slots):
        parts.insert(0, (factor, slot))
        factor = product([factor, slot.axis.root.size])
    return tuple(parts)


class ShapeError(Exception):
    """A shape with another number of elements than the view."""


@dataclass(frozen=True)
class GivenTensor:
    """A tensor that depends on no weight and no float input, or is of integers: an input of the table.

    source, look   if it is a view: the viewed tensor, and the viewing operation
    """

    node: Any
    source: GivenTensor | None = None
    look: Callable[[View], Any] | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return shape_of(self.node)


@dataclass(frozen=True)
class SelectedPositions:
    """Positions that an op selects: an index of the table if it is indexed with, otherwise an outside tensor."""

    view: View
    node: Any


@dataclass(frozen=True)
class IntegerValue:
    """Integers computed from values of the table: lines if they are used in arithmetic, otherwise outside indices."""

    view: View
    node: Any


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers: views of their real and imaginary parts, or numbers."""

    real: Any
    imaginary: Any


def is_inside(value: Any) -> bool:
    """Return whether an argument contains values of the table."""
    if isinstance(value, list | tuple):
        return any(map(is_inside, value))
    return isinstance(value, View | SelectedPositions | IntegerValue | Complex)


def learns(value: Any) -> bool:
    """Return whether an argument contains values that may have a gradient."""
    if isinstance(value, list | tuple):
        return any(map(learns, value))
    return isinstance(value, View | IntegerValue | Complex)


def is_complex(value: Any) -> bool:
    """Return whether an argument contains complex numbers."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    if isinstance(value, GivenTensor):
        return bool(getattr(value.node.meta.get("val"), "is_complex", bool)())
    return isinstance(value, Complex | complex)
