"""Roll the steps of a loop over positions, which an export has unrolled, into a scan: their lines once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from learncost.importer.axes import AxisClass, leaves
from learncost.importer.equations import Equation, Fold, Item, NamedView, Operand
from learncost.importer.fold import LineFacts, ModuleBlock, has_same_sizes, join_blocks
from learncost.importer.rewrites import needed, through
from learncost.importer.views import AxisIndex, Index, IndexedAxis, StoredValue, View, ViewAxis
from learncost.ir.dataclass import dataclass, replace

MINIMUM_STEPS = 3
"""The fewest equal steps of a loop."""

_PLACE = re.compile(r"=\d+\[\]")


def rolled(items: list[Item], outputs: Sequence[StoredValue], learns: Callable[[StoredValue], object]) -> list[Item]:
    """Return the lines with each run of equal steps as a scan.

    A step may read one position of a value, which moves by one from step to step, and what the step before made. What
    is read behind the loop is a last value, or the stack of those of all steps. A first step whose initial value has no
    gradient stays apart: that gradient is not computed.
    """
    looks = LineFacts.at(items, learns)
    while (answer := _with_a_scan(items, {*outputs}, looks)) is not None:
        items = needed(answer, outputs)
    return items


def _with_a_scan(items: list[Item], outputs: set[StoredValue], looks: LineFacts) -> list[Item] | None:
    """Return the lines with one loop as a scan; None if there is none.

    It has most lines, of these the fewest carried values, and then the fewest lines of a part of a step behind it.
    """
    known: dict[str, int] = {}
    labels = [known.setdefault(_label(item, looks), len(known)) for item in items]
    runs = []
    for length in range(1, len(items) // MINIMUM_STEPS + 1):
        start = 0
        for equal, run in groupby(map(int.__eq__, labels, labels[length:])):
            many = sum(1 for _ in run)
            if equal and many >= length * (MINIMUM_STEPS - 1):
                runs.append((-(many // length + 1) * length, length, start, start + many))
            start += many
    for _, length, start, end in sorted(runs):

        def order(begin: int, length: int = length, end: int = end) -> tuple[int, int]:
            first, second = (items[at : at + length] for at in (begin, begin + length))
            carried = {s for item in first for s in item.made} & {s for item in second for s in item.reads}
            return len(carried), (end - begin) % length

        for begin in sorted(range(start, min(start + length, end)), key=order):
            stop = begin + (end - begin) // length * length + length
            rows = [items[at : at + length] for at in range(begin, stop, length)]
            blocks = [ModuleBlock([each for each in row if isinstance(each, Equation)], ()) for row in rows]
            loop = UnrolledLoop.of(blocks, looks) if len(rows) >= MINIMUM_STEPS else None
            if loop and (answer := loop.written(items[:begin], items[stop:], outputs)) is not None:
                return answer
    return None


def _label(item: Item, looks: LineFacts) -> str:
    """Return a line without its values and positions; a loop, or the call of an operator, is like no other line."""
    if isinstance(item, Fold) or item.call or item.running:
        return f"{id(item)}"
    return _signature(ModuleBlock([item], ()), looks)[0]


def _signature(block: ModuleBlock, looks: LineFacts) -> list[str]:
    block.look(looks)
    return [_PLACE.sub("=[]", line) for line in block.signature]


@dataclass(frozen=True)
class MovingRead:
    """The read of one position of an axis in each step, from a first one on, forwards or backwards."""

    stored: StoredValue
    place: int
    first: int
    step: int


_Steps: TypeAlias = Mapping[StoredValue, tuple[StoredValue, int]]
"""The values that steps make: the stack of those of all steps, and the place there."""


@dataclass
class UnrolledLoop:
    """The equal steps of a loop.

    reads    for each view that a step reads or writes, the position that it reads; None if all steps read the same
    carried  the initial values, and the places of the new ones among what a step makes
    """

    blocks: list[ModuleBlock]
    reads: list[MovingRead | None]
    carried: dict[StoredValue, int]

    @classmethod
    def of(cls, blocks: list[ModuleBlock], looks: LineFacts) -> UnrolledLoop | None:
        """Return the loop whose steps these are; None if they differ by more than the positions that they read."""
        if len({(*_signature(block, looks),) for block in blocks}) > 1:
            return None
        made, carried, reads = [block.made for block in blocks], dict[StoredValue, int](), list[MovingRead | None]()
        for initial, *others in zip(*(block.externals for block in blocks), strict=True):
            if {*others} == {initial}:
                continue
            if others[0] not in made[0] or not has_same_sizes(initial, others[0]):
                return None
            carried[initial] = number = made[0].index(others[0])
            if others != [each[number] for each in made[:-1]]:
                return None
        for row in zip(*(_views(block.items) for block in blocks), strict=True):
            moving = list[MovingRead]()
            for place, each in enumerate(row[0].index):
                starts: list[Any] = [getattr(view.index[place], "start", None) for view in row]
                if isinstance(each, AxisIndex) and not each.parts and len({*starts}) > 1:
                    step = starts[1] - starts[0]
                    if step not in (1, -1) or starts != [*range(starts[0], starts[0] + step * len(row), step)]:
                        return None
                    moving.append(MovingRead(row[0].stored, place, starts[0], step))
            if len(moving) > 1 or (moving and len({view.stored for view in row}) > 1):
                return None
            if moving and row[0].stored.reads is not None:  # a stack of indices is no value
                return None
            reads.append(moving[0] if moving else None)
        return cls(blocks, reads, carried) if carried and len({*carried.values()}) == len(carried) else None

    def written(self, before: list[Item], after: list[Item], outputs: set[StoredValue]) -> list[Item] | None:
        """Return all lines with the steps as a scan; None if what is read behind them cannot be read there."""
        first, last = self.blocks[0], self.blocks[-1]
        handed = {last.made[number] for number in self.carried.values()}
        wanted = (outputs | {stored for item in after for stored in item.reads}) - handed
        numbers = {
            number: stored for each in self.blocks for number, stored in enumerate(each.made) if stored in wanted
        }
        fixed = outputs | {stored for item in after if isinstance(item, Fold) for stored in item.reads}
        if any(stored in fixed - handed for block in self.blocks for stored in block.made):
            return None
        join_blocks(self.blocks)
        axis, copies = AxisClass(len(self.blocks)), list[Item]()
        several = {read: self._stack(read, axis, copies) for read in dict.fromkeys(self.reads) if read is not None}
        axis.keep_whole()
        answers = iter(self.reads)

        def now(view: View) -> View:
            if (read := next(answers)) is None:
                return view
            index = (*view.index[: read.place], *view.index[read.place + 1 :])
            return replace(view, stored=several[read][0], index=index)

        body: list[Item] = [_mapped(item, now) for item in first.items]
        for initial, number in self.carried.items():
            for mine, theirs in zip(leaves(initial.axes), leaves(first.made[number].axes), strict=True):
                mine.join(theirs)
        carry = [(initial, first.made[number], last.made[number]) for initial, number in self.carried.items()]
        keep = [
            (first.made[number], StoredValue(f"{first.made[number].name}_all", (axis, *first.made[number].axes)))
            for number in numbers
        ]
        loop = Fold(axis, body, carry, {}, stacks=dict(several.values()), keep=keep)
        stacks = dict(zip(numbers, (stack for _, stack in keep), strict=True))
        steps = {
            block.made[number]: (stack, at) for at, block in enumerate(self.blocks) for number, stack in stacks.items()
        }
        makers = {item.stored: item for item in after if isinstance(item, Equation) and len(item.left) == 1}

        def later(view: View) -> View:
            if view.stored not in steps or view.stored in handed:
                return view
            stack, at = steps[view.stored]
            return replace(view, stored=stack, index=(AxisIndex((), at), *view.index))

        lines = (
            item if isinstance(item, Fold) else _mapped(_with_rows_joined(item, makers, steps), later) for item in after
        )
        return [*before, *copies, loop, *lines]

    def _stack(self, read: MovingRead, axis: AxisClass, copies: list[Item]) -> tuple[StoredValue, StoredValue]:
        """Return the value of one position and that of all, in the order in which the steps read them."""
        along = [*leaves(read.stored.axes)]
        mine = along.pop(read.place)
        one = StoredValue(f"{read.stored.name}_now", tuple(along))
        slots = [ViewAxis(each) for each in (axis, *along)]
        here: Index = AxisIndex(((read.step, slots[0]),), read.first)
        if read.step == 1 and mine.size == axis.size:
            axis.join(mine)
            here = slots[0]
            if not read.place:
                return one, read.stored
        mine.keep_whole()
        whole = View.of(StoredValue(f"{read.stored.name}_steps", (axis, *along)))
        index = (*slots[1 : read.place + 1], here, *slots[read.place + 1 :])
        letters, source = tuple(range(len(slots))), View(read.stored, index, tuple((slot,) for slot in slots))
        pair = (NamedView(whole, letters),), (NamedView(source, letters),)
        copies.append(Equation("product", *pair, module=self.blocks[0].items[0].module, operator="select"))
        return one, whole.stored


def _mapped(item: Equation, change: Callable[[View], View]) -> Equation:
    """Return a line with all views changed, also those that indices are."""

    def moved(view: View) -> View:
        index = tuple(IndexedAxis(moved(each.view)) if isinstance(each, IndexedAxis) else each for each in view.index)
        return change(replace(view, index=index))

    def named(read: NamedView) -> NamedView:
        return NamedView(moved(read.view.fresh()), read.letters)

    operands = tuple(named(each) if isinstance(each, NamedView) else each for each in item.operands)
    return replace(item, left=tuple(map(named, item.left)), operands=operands)


def _views(items: Iterable[Equation]) -> list[View]:
    """Return the views of lines in the order of `_mapped`."""
    views = list[View]()

    def note(view: View) -> View:
        views.append(view)
        return view

    for item in items:
        _mapped(item, note)
    return views


def _with_rows_joined(item: Equation, makers: Mapping[StoredValue, Equation], steps: _Steps) -> Equation:
    """Return a concatenation with one operand for consecutive rows that steps make; other lines as they are."""
    if item.kind != "sum" or {*item.signs} != {1}:
        return item
    rows = [(each, _row(each, makers, steps)) for each in item.operands]

    def grouped(step: int) -> list[tuple[int, tuple[StoredValue, int] | None, list[tuple[Operand, StepRow | None]]]]:
        groups = groupby(rows, lambda pair: pair[1] and (pair[1].stack, pair[1].at - step * pair[1].to))
        return [(step, key, [*group]) for key, group in groups]

    operands = list[Operand]()
    for step, key, group in min(map(grouped, (1, -1)), key=len):
        row = group[0][1]
        if key is None or row is None or len(group) == 1:
            operands += [read for read, _ in group]
            continue
        stack, start = key
        along: Index = AxisIndex(((step, row.slot),), start)
        if len(group) == len(rows) and (step, start) == (1, 0):
            stack.axes[0].join(row.slot.axis)
            along = row.slot
        operands.append(
            NamedView(replace(row.read.view, stored=stack, index=(along, *row.read.view.index)), row.read.letters)
        )
    return replace(item, operands=tuple(operands), signs=item.signs[: len(operands)])


@dataclass(frozen=True)
class StepRow:
    """A row of a concatenation that a step makes.

    read    the value of the step, as the concatenation reads it
    at, to  its place in the stack, and among the rows, along their slot
    """

    read: NamedView
    stack: StoredValue
    at: int
    to: int
    slot: ViewAxis


def _row(read: Operand, makers: Mapping[StoredValue, Equation], steps: _Steps) -> StepRow | None:
    """Return an operand of a concatenation as a row that a step makes; None for any other."""
    line = makers.get(read.view.stored) if isinstance(read, NamedView) else None
    if line is None or line.kind != "product" or len(line.operands) != 1 or line.where:
        return None
    assert isinstance(read, NamedView)
    view, source = read.view.fresh(), line.operands[0]
    places = [each for each in view.index if isinstance(each, AxisIndex)]
    if not isinstance(source, NamedView) or source.view.stored not in steps or len(places) != 1:
        return None
    (here,) = places
    if len(here.parts) != 1 or here.parts[0][0] != 1:
        return None
    seen = NamedView(through(view, line, source), read.letters)
    return StepRow(seen, *steps[source.view.stored], -here.start, here.parts[0][1])
