"""Lines as they are read from a graph: operands are views whose dimensions have letters, as in einsum."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from learncost.importer.axes import AxisClass, AxisSplitError, product, unify_axes
from learncost.importer.constants import Mask
from learncost.importer.views import AxisIndex, Dimension, Index, IndexedAxis, StoredValue, View, ViewAxis, in_one
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Opaque

Letters: TypeAlias = Sequence[Hashable]


@dataclass(frozen=True)
class NumberOperand:
    """A number among operands in the notation: `0.5[]`, `#k^-0.5[]` of the sizes of axes."""

    value: float = 1.0
    axes: tuple[AxisClass, ...] = ()
    power: float = 1.0


@dataclass(frozen=True)
class NamedView:
    """A view with the letters of its dimensions in a line."""

    view: View
    letters: tuple[Hashable, ...]


Operand: TypeAlias = NamedView | NumberOperand


@dataclass(frozen=True)
class WrittenAxis:
    """An axis of a new value that a line writes at an index."""

    axis: AxisClass
    index: AxisIndex | IndexedAxis


@dataclass(frozen=True)
class DimensionCondition:
    """The pairs of two dimensions that are inside, `M' <= M`; or the index, of one dimension, that is inside or
    outside.
    """

    lower: Hashable
    relation: str
    upper: Hashable
    window: int = 0


@dataclass(frozen=True)
class StatisticsUpdate:
    """The update of the running statistics of a normalization.

    statistics  mean, variance and, where batches are counted, their count, as they lie along its result
    momentum    the share of the new ones; None: their cumulative average
    """

    statistics: tuple[NamedView, ...]
    momentum: float | None


@dataclass(eq=False)
class Equation:
    """A line: a product, a signed sum, or an op that acts on letters.

    module, operator   where it comes from
    again              the checkpoints around it
    running            the running statistics that it keeps
    hides              the place of scores among its operands, of which it hides some by a causal mask
    scan               the loop that begins or ends here; no line is written
    """

    kind: str
    left: tuple[NamedView, ...]
    operands: tuple[Operand, ...]
    signs: tuple[int, ...] = ()
    op: str = ""
    acts: tuple[Hashable, ...] = ()
    where: tuple[DimensionCondition, ...] = ()
    module: str = ""
    operator: str = ""
    place: str = ""  # the line of the user's code, for a message
    again: str = ""
    cost: Opaque | None = None  # of a line that is not derived, in the graph's symbols
    call: Any = None  # the operator that it calls
    running: StatisticsUpdate | None = None
    hides: tuple[int, Mask] | None = None
    scan: Fold | None = None

    @property
    def stored(self) -> StoredValue:
        return self.left[0].view.stored

    @property
    def made(self) -> list[StoredValue]:
        """Return the values that it makes."""
        return [read.view.stored for read in self.left]

    @property
    def reads(self) -> list[StoredValue]:
        """Return the values that it reads, also the indices."""
        kept = self.running.statistics if self.running else ()
        return [
            stored
            for read in (*self.left, *self.operands, *kept)
            if isinstance(read, NamedView)
            for stored in (*(() if read in self.left else (read.view.stored,)), *indices_of(read.view))
        ]


@dataclass(eq=False)
class Fold:
    """Lines that run `count` times.

    count   a number, or an axis whose positions it runs over
    carry   the loop-carried values: the initial value, the first iteration's result, the last iteration's result
    each    the per-iteration inputs: that of the first iteration, with those of all
    stacks  the value of one position, with that of all
    keep    a value that an iteration makes, with that of all
    """

    count: int | AxisClass
    body: list[Item]
    carry: list[tuple[StoredValue, StoredValue, StoredValue]]
    each: dict[StoredValue, list[StoredValue]]
    start: dict[StoredValue, StoredValue] = field(default_factory=dict)  # the initial values of the loop-carried names
    stacks: dict[StoredValue, StoredValue] = field(default_factory=dict)
    keep: list[tuple[StoredValue, StoredValue]] = field(default_factory=list)

    @property
    def made(self) -> list[StoredValue]:
        """Return its results: the loop-carried values after the last iteration, and what it stacks."""
        return [*(last for *_, last in self.carry), *(stack for _, stack in self.keep)]

    @property
    def reads(self) -> list[StoredValue]:
        inside = {stored for item in self.body for stored in item.made} | self.stacks.keys()
        first = {before for before, *_ in self.carry}
        of_blocks = [stored for several in self.each.values() for stored in several]
        others = [s for item in self.body for s in item.reads if s not in inside and s not in self.each]
        return list(dict.fromkeys((*first, *of_blocks, *self.stacks.values(), *others)))


Item: TypeAlias = Equation | Fold


def indices_of(view: View) -> list[StoredValue]:
    """Return the index values that a view is read at."""
    inner: list[StoredValue] = []
    for index in view.index:
        if isinstance(index, IndexedAxis):
            inner += [index.view.stored, *indices_of(index.view)]
    return inner


def _named(operand: tuple[View, Letters] | NumberOperand) -> Operand:
    return operand if isinstance(operand, NumberOperand) else NamedView(operand[0], tuple(operand[1]))


@dataclass
class EquationRecorder:
    """Records lines in the order of the graph.

    module, operator   the origin of the next lines
    again              the checkpoints around them
    """

    equations: list[Equation] = field(default_factory=list)
    module: str = ""
    operator: str = ""
    place: str = ""
    name: str = ""
    again: str = ""

    def origin(self) -> tuple[str, ...]:
        """Return where the next lines come from."""
        return self.module, self.operator, self.place, self.name, self.again

    def go_back(self, origin: tuple[str, ...]) -> None:
        """Restore an earlier origin for the next lines."""
        self.module, self.operator, self.place, self.name, self.again = origin

    def stored(self, axes: Sequence[AxisClass], hint: str = "") -> StoredValue:
        """Return a new value with these axes."""
        return StoredValue(hint or self.name, tuple(axes))

    def line(
        self,
        operands: Sequence[tuple[View, Letters] | NumberOperand],
        out: Letters,
        *,
        signs: Sequence[int] = (),
        op: str = "",
        acts: Letters = (),
        where: Sequence[DimensionCondition] = (),
        hint: str = "",
    ) -> View:
        """Record a line: a sum with signs, an op, or else a product; its result has the dimensions `out`.

        Operands that cannot be split into common factors are regrouped first.
        """
        reads = self.bound([_named(operand) for operand in operands])
        reads = [
            NamedView(self.whole_spread(o.view, [p for p, n in enumerate(o.letters) if n in acts]), o.letters)
            if acts and isinstance(o, NamedView)
            else o
            for o in reads
        ]
        reads = self.bound(reads)
        kind = "op" if op else "sum" if signs else "product"
        if kind == "product":
            reads = _with_spread_sums(reads, out)
        result = self.result(reads, out, hint)
        left = (NamedView(result, tuple(out)),)
        self.add(Equation(kind, left, tuple(reads), tuple(signs), op, tuple(acts), tuple(where)))
        return result

    def matmul(
        self,
        operands: Sequence[tuple[View, Letters] | NumberOperand],
        out: Letters,
        *,
        where: Sequence[DimensionCondition] = (),
        hint: str = "",
    ) -> View:
        """Record a product that also loops over dimensions that all operands broadcast, as matrix products do."""
        reads = self._in_full(self.bound([_named(operand) for operand in operands]), out)
        full = [o if isinstance(o, NumberOperand) else (o.view, o.letters) for o in reads]
        return self.line(full, out, where=where, hint=hint)

    def _in_full(self, reads: Sequence[Operand], out: Letters) -> list[Operand]:
        """Materialize broadcast dimensions: of a dimension that all operands broadcast, the first that has it; of a
        summed dimension that only some operands broadcast, each of these: `x @ w.expand(5, 4)`.
        """
        result, of_all = list(reads), set(_only_spread(reads))
        letters = set(of_all)
        for number, read in enumerate(result):
            if isinstance(read, NamedView):
                summed = {letter for letter in read.letters if letter not in out} - of_all
                dims = [dim for dim, letter in enumerate(read.letters) if letter in letters | summed]
                result[number] = NamedView(self.whole_spread(read.view, dims), read.letters)
                letters -= set(read.letters)
        return result

    def add(self, equation: Equation) -> None:
        equation.module, equation.operator, equation.place = self.module, self.operator, self.place
        equation.again = self.again
        self.equations.append(equation)

    def placed(
        self, reads: Sequence[Operand], made: NamedView, dims: Sequence[Dimension | WrittenAxis], hint: str = ""
    ) -> View:
        """Record a product as a new value, of which each dimension has the slots of the product there, or is one axis
        that is written at an index; `made` is the product as it would be without.
        """
        axes: list[AxisClass] = []
        write: list[Index] = []
        read: list[ViewAxis] = []
        rows: list[Dimension] = []
        spread = set[ViewAxis]()
        for dim in dims:
            pairs = [(dim.axis, dim.index)] if isinstance(dim, WrittenAxis) else [(slot.axis, slot) for slot in dim]
            rows.append(tuple(ViewAxis(axis) for axis, _ in pairs))
            for slot, (axis, index) in zip(rows[-1], pairs, strict=True):
                if isinstance(index, ViewAxis) and index in made.view.spread:
                    spread.add(slot)
                else:
                    axes.append(axis)
                    write.append(index)
                    read.append(slot)
        stored = self.stored(axes, hint)
        left = View(stored, tuple(write), made.view.dims, made.view.spread)
        self.add(Equation("product", (NamedView(left, made.letters),), tuple(reads)))
        return View(stored, tuple(read), tuple(rows), frozenset(spread))

    def placed_along(self, view: View, dim: int, axis: WrittenAxis, hint: str) -> View:
        """Record a copy of a view in which a dimension is one axis that is written at an index."""
        read = NamedView(view, tuple(range(len(view.dims))))
        return self.placed([read], read, [*view.dims[:dim], axis, *view.dims[dim + 1 :]], hint)

    def result(self, reads: Sequence[Operand], out: Letters, hint: str = "") -> View:
        """Return the value that a line makes, with the axes that some operand has in memory; a dimension that all
        operands broadcast is a broadcast dimension of the result.
        """
        axes: list[AxisClass] = []
        index: list[Index] = []
        rows = []
        spread = set()
        for letter in out:
            rows_read = [
                (read.view, row)
                for read in reads
                if isinstance(read, NamedView)
                for name, row in zip(read.letters, read.view.dims, strict=True)
                if name == letter and row
            ]
            row = []
            for place in range(len(rows_read[0][1]) if rows_read else 0):
                axis = rows_read[0][1][place].axis
                slot = ViewAxis(axis)
                row.append(slot)
                if any(their_row[place] not in view.spread for view, their_row in rows_read):
                    axes.append(axis)
                    index.append(slot)
                else:
                    spread.add(slot)
            rows.append(tuple(row))
        return View(self.stored(axes, hint), tuple(index), tuple(rows), frozenset(spread))

    def bound(self, reads: Sequence[Operand]) -> list[Operand]:
        """Return the operands after unifying the axes that share a letter."""
        result = list(reads)
        while True:
            first: dict[Hashable, tuple[int, int]] = {}
            again = False
            for number, read in enumerate(result):
                if isinstance(read, NumberOperand):
                    continue
                view = read.view.fresh()
                for dim, (letter, row) in enumerate(zip(read.letters, view.dims, strict=True)):
                    if not row:
                        continue
                    if letter not in first:
                        first[letter] = number, dim
                        continue
                    if again := self._meet(result, first[letter], (number, dim)):
                        break
                if again:
                    break
            if not again:
                return [
                    read if isinstance(read, NumberOperand) else NamedView(read.view.fresh(), read.letters)
                    for read in result
                ]

    def _meet(self, reads: list[Operand], one: tuple[int, int], other: tuple[int, int]) -> bool:
        """Unify the dimensions of two operands; return whether one had to be copied for that."""
        places = one, other
        rows = []
        for number, dim in places:
            read = reads[number]
            assert isinstance(read, NamedView)
            rows.append([slot.axis for slot in read.view.fresh().dims[dim]])
        try:
            unify_axes(*rows)
        except AxisSplitError as error:
            for side, (number, dim) in enumerate(places):
                read = reads[number]
                assert isinstance(read, NamedView)
                if error.side is None:
                    reads[number] = NamedView(self.merged(read.view, dim), read.letters)
                elif error.side == side:
                    reads[number] = NamedView(self.regrouped(read.view), read.letters)
            return True
        return False

    def in_order(self, view: View, hint: str = "", only: Callable[[StoredValue], bool] = lambda stored: True) -> View:
        """Return a view with the memory layout of its dimensions: a copy if the layout differs or `only` is false."""
        view = view.fresh()
        if view.is_plain and list(view.index) == [slot for row in view.dims for slot in row] and only(view.stored):
            return view
        view = self.whole_spread(view, range(len(view.dims)))
        return self.copied(view, hint or view.stored.name)

    def copied(self, view: View, hint: str = "") -> View:
        """Record a copy of a view."""
        letters = tuple(range(len(view.dims)))
        result = self.result([NamedView(view, letters)], letters, hint)
        self.add(Equation("product", (NamedView(result, letters),), (NamedView(view, letters),)))
        return result

    def regrouped(self, view: View) -> View:
        """Return a copy of a view with new axes that may be split; each is an index into the old ones."""
        view = view.fresh()
        taken: dict[ViewAxis, ViewAxis] = {}
        for row in view.dims:
            for slot in row:
                taken[slot] = ViewAxis(AxisClass(slot.axis.root.size, slot.axis.root.letter))

        def moved(index: Index) -> Index:
            if isinstance(index, ViewAxis):
                index.axis.keep_whole()
                return AxisIndex(((1, taken[index]),))
            if isinstance(index, AxisIndex):
                return AxisIndex(tuple((factor, taken[slot]) for factor, slot in index.parts), index.start)
            return IndexedAxis(
                View(index.view.stored, tuple(map(moved, index.view.index)), index.view.dims, index.view.spread)
            )

        index = tuple(map(moved, view.index))
        rows_new = tuple(tuple(taken[slot] for slot in row) for row in view.dims)
        spread = frozenset(taken[slot] for slot in view.spread)
        return self.copied(View(view.stored, index, rows_new, spread), f"{view.stored.name}_moved")

    def regrouped_whole(self, view: View) -> View:
        """Return a copy of a view axis by axis: indexed axes become axes that may be indexed again."""
        view = view.fresh()
        return self.copied(view, f"{view.stored.name}_taken")

    def bounded(self, view: View, dim: int) -> View:
        """Return a copy of a view if a dimension of it is indexed, as a slice is: an index into that dimension would
        not stop at its ends.
        """
        (slot,) = view.dims[dim]
        return view if any(index is slot for index in view.index) else self.regrouped_whole(view)

    def merged(self, view: View, dim: int) -> View:
        """Return a copy of a view in which a dimension is one axis."""
        view = self.whole_spread(view.fresh(), [dim]).fresh()
        row = view.dims[dim]
        if len(row) < 2:
            return view
        size = product([slot.axis.root.size for slot in row])
        whole = AxisClass(size, row[0].axis.root.letter, whole=True)
        axis = WrittenAxis(whole, AxisIndex(in_one(row)))
        return self.placed_along(view, dim, axis, f"{view.stored.name}_merged")

    def whole_spread(self, view: View, dims: Sequence[int]) -> View:
        """Return the view with these dimensions materialized where they are broadcast, by adding zeros along them."""
        if not any(slot in view.spread for dim in dims for slot in view.dims[dim]):
            return view
        letters = tuple(range(len(view.dims)))
        axes = [slot.axis for dim in dims for slot in view.dims[dim] if slot in view.spread]
        zeros = View.of(self.stored(axes, "zeros"))
        self.add(Equation("op", (NamedView(zeros, tuple(range(len(axes)))),), (), op="zeros"))
        rest = iter(zeros.dims)
        spread_rows: list[tuple[ViewAxis, ...]] = []
        for dim, row in enumerate(view.dims):
            spread_rows.append(
                tuple(next(rest)[0] if dim in dims and slot in view.spread else ViewAxis(slot.axis) for slot in row)
            )
        others = frozenset(
            slot for row in spread_rows for slot in row if slot not in {s for r in zeros.dims for s in r}
        )
        reading = View(zeros.stored, zeros.index, tuple(spread_rows), others)
        result = self.result([NamedView(view, letters), NamedView(reading, letters)], letters)
        self.add(
            Equation(
                "sum", (NamedView(result, letters),), (NamedView(view, letters), NamedView(reading, letters)), (1, 1)
            )
        )
        return result


def _only_spread(reads: Sequence[Operand]) -> dict[Hashable, list[AxisClass]]:
    """Return the axes that every operand which has them broadcasts, by the letter of their dimension."""
    rows: dict[Hashable, list[tuple[View, tuple[ViewAxis, ...]]]] = {}
    for read in reads:
        if isinstance(read, NamedView):
            for letter, row in zip(read.letters, read.view.dims, strict=True):
                if row:
                    rows.setdefault(letter, []).append((read.view, row))
    axes = {
        letter: [
            several[0][1][place].axis
            for place in range(len(several[0][1]))
            if all(row[place] in view.spread for view, row in several)
        ]
        for letter, several in rows.items()
    }
    return {letter: spread for letter, spread in axes.items() if spread}


def _with_spread_sums(reads: Sequence[Operand], out: Letters) -> list[Operand]:
    """Return a product times the sizes of summed axes that every operand broadcasts; a mean leaves these axes out."""
    axes = [axis.root for letter, spread in _only_spread(reads).items() if letter not in out for axis in spread]
    result = list(reads)
    for number, read in enumerate(result):
        if isinstance(read, NumberOperand) and read.power == -1.0:
            over = [axis.root for axis in read.axes]
            for axis in [each for each in axes if each in over]:
                if axis in over:
                    over.remove(axis)
                    axes.remove(axis)
            result[number] = replace(read, axes=tuple(over))
    return [*result, *([NumberOperand(axes=tuple(axes))] if axes else [])]
