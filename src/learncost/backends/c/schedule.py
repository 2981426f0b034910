"""Schedule a kernel: the part of an iteration and the loop of every value, and which values are stored.

An iteration has three phases: lines without the sequential axes, the iterations over these axes (with the blocks), and
what follows from sums over them. A phase is a sequence of segments, elementwise loops and then products of a library;
the loops of a segment are nodes: one for each stage and inner space, where a stage ends with the reductions that the
next one needs. A value that is elementwise is computed where it is needed, and stored only where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from learncost.backends.c.common_subexpressions import is_point, is_reduction, needs
from learncost.backends.c.sides import groups, is_library, is_move, joined, sides_within
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product
from learncost.ir.term import Literal, Term
from learncost.ops import entry, is_choice

BEFORE, MAIN, AFTER = range(3)
KINDS = {"int64": "index", "uint8": "index", "bool": "bool"}
"""The contents of arrays without real numbers."""


class SchedulePoint(NamedTuple):
    """A point in the order of an iteration."""

    phase: int
    segment: int
    stage: int


FIRST = SchedulePoint(BEFORE, 0, 0)


class LoopNode(NamedTuple):
    """One loop over the axes of its space; without axes, statements of the iteration or the row."""

    place: SchedulePoint
    space: tuple[str, ...]


@dataclass
class ScheduledValue:
    """The value of one line in normal form.

    kind    pointwise, sum, extreme, product (of a library), scatter, scan, choice
    space   the axes over which it is computed
    at      where in the order it is computed, `ready` from where it can be read
    added   whether it is complete only after all iterations over the sequential axes
    shared  whether it is complete only after all iterations of all threads
    stored  True if it is stored in memory; `spec` is the loop that stores it
    """

    name: str
    axes: tuple[str, ...]
    line: Line
    kind: str
    type: str
    space: tuple[str, ...]
    at: SchedulePoint = FIRST
    ready: SchedulePoint = FIRST
    added: bool = False
    shared: bool = False
    output: bool = False
    cost: int = 0
    loads: frozenset[str] = frozenset()
    stored: bool = False
    reread: bool = True
    spec: LoopNode | None = None
    uses: set[LoopNode] = field(default_factory=set)
    products: list[Line] = field(default_factory=list)

    @property
    def late(self) -> tuple[Literal, ...]:
        """The factor of a sum over iterations, applied once per element at the end, as it is priced."""
        return tuple(term for term in self.line.right if isinstance(term, Literal)) if self.shared else ()


class KernelSchedule:
    """The schedule of a kernel's lines, which are in normal form and in one scope of axes.

    iterations  the axes whose iterations are taken in parallel
    sequence    axes of which an iteration takes one place after another, for a library product has two axes and no more
    block       the axis of which an iteration takes blocks of so many places (0: all), where there are library products
    parts       the axes of a fused axis
    """

    def __init__(
        self,
        lines: Sequence[Line],
        iterations: tuple[str, ...],
        blocks: tuple[str, int] | None,
        outputs: frozenset[str],
        dtypes: Mapping[str, str],
        parts: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        self.iterations = iterations
        self.parts = parts
        self.outputs = outputs
        self.dtypes = dtypes
        self.block = blocks
        self.sequence: tuple[str, ...] = ()
        self._lines = lines
        self._axes_of_products()
        self.values: dict[str, ScheduledValue] = {}
        for line in lines:
            self._place(line)
        for value in reversed(self.values.values()):
            self._store(value)
        self.over = self._over()
        self.nodes = sorted({node for value in self.values.values() for node in self._sites(value)})

    def joined(self) -> KernelSchedule:
        """Return the schedule with adjacent axes merged."""
        products = (self.inner(value.space) for value in self.values.values() if value.kind == "product")
        grouped = groups(self._lines, frozenset(self.steps).union(*products), self.iterations)
        iterations = dict.fromkeys(" ".join(grouped.get(axis, (axis,))) for axis in self.iterations)
        parts = {
            " ".join(group): tuple(part for axis in group for part in self.parts.get(axis, (axis,)))
            for group in grouped.values()
        }
        kept = {axis: several for axis, several in self.parts.items() if axis not in grouped}
        lines = joined(self._lines, grouped)
        return KernelSchedule(lines, tuple(iterations), self.block, self.outputs, self.dtypes, kept | parts)

    # Axes.

    def _axes_of_products(self) -> None:
        """Return the sequential axes, so that every library product has at most two axes per side."""
        sequence: dict[str, None] = {}
        fixed = set(self.iterations)
        for line in self._lines:
            if not self._is_library(line, fixed):
                continue
            sides = sides_within(line, fixed)
            if self.block is None:
                self.block = (sides.rows[-1], 0)
            sequence.update(dict.fromkeys(sides.batch))
            for side in (sides.rows, sides.columns, sides.summed):
                keep = self.block[0] if self.block and self.block[0] in side else side[-1]
                sequence.update(dict.fromkeys(axis for axis in side if axis != keep))
        if self.block and self.block[0] in sequence:
            del sequence[self.block[0]]
        self.sequence = tuple(sequence)
        self.steps = frozenset((*self.sequence, *((self.block[0],) if self.block else ())))
        self.fixed = frozenset((*self.iterations, *self.steps))
        fixed |= set(self.sequence)
        self.library = {line.name for line in self._lines if self._is_library(line, fixed)}

    def _is_library(self, line: Line, fixed: set[str]) -> bool:
        """Return whether it is computed as matrix products; it is by loops if these are not contiguous in memory
        or its result is scattered over other iterations."""
        if not is_library(line, fixed):
            return False
        sides_inside, scratch = sides_within(line, fixed), {value.name for value in self._lines} - self.outputs
        sides = {*sides_inside.rows, *sides_inside.columns, *sides_inside.summed}
        if any(term.loops[-1] not in sides for term in (*line.left, *line.right) if term.names[0] not in scratch):
            return False
        steps = {*sides_inside.batch, *sides_inside.rows, *sides_inside.columns[:-1]}
        scatters = (reader.left[0] for reader in self._lines if line.name in reader.reads and reader.left[0].indexed)
        return all(steps <= {axis for axis in left.axes if isinstance(axis, str)} for left in scatters)

    def inner(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the axes of loops inside of an iteration."""
        return tuple(axis for axis in axes if axis not in self.fixed)

    # Where every line goes.

    def _place(self, line: Line) -> None:
        left = line.left[0]
        value = ScheduledValue(left.name, left.declared, line, self._kind(line), self._type(line), line.loops)
        if is_point(line):
            value.space = left.declared
        value.output = left.name in self.outputs
        lost = set(value.space) - set(left.declared)
        if value.kind == "scatter" and not self.fixed & set(value.space) <= {
            a for a in left.axes if isinstance(a, str)
        }:
            raise InputError(f"a kernel cannot scatter into another iteration, in line: {line}")
        if value.kind in ("scan", "choice") and self.fixed & {*self._along(line)}:
            raise InputError(f"a kernel cannot iterate over an axis that is summed or indexed, in line: {line}")
        value.shared = bool(lost & set(self.iterations))
        value.added = bool(lost & self.steps)
        at = self._begin(value)
        touched = bool(self.steps & set(value.space))
        if at.phase == BEFORE and touched:
            at = SchedulePoint(MAIN, 0, 0)
        if at.phase == AFTER and touched:
            raise InputError(f"a kernel cannot go over its blocks twice, in line: {line}")
        value.at = value.ready = at
        if value.kind == "product":
            value.ready = SchedulePoint(at.phase, at.segment + 1, 0)
        elif value.kind != "pointwise":
            value.ready = at._replace(stage=at.stage + 1)
        if value.added:
            value.ready = SchedulePoint(AFTER, 0, 0)
        self.values[value.name] = value

    def _begin(self, value: ScheduledValue) -> SchedulePoint:
        """Return the point where a line's operands are ready, its cost, and its number of arrays."""
        at = FIRST
        op = value.line.op if isinstance(value.line, Op) else "inside"
        value.cost = 1 if op == "inside" else entry(op).work
        loads: set[str] = set()
        for term, gathered in needs(value.line):
            value_read = self.values.get(term.name)
            inner = self.inner(term.loops if value_read is None else value_read.axes)
            if value_read is None:
                loads |= {term.name} if inner else set()
                continue
            if value_read.shared:
                raise InputError(f"a kernel cannot read {value_read.name} before all iterations have added to it")
            ready = value_read.ready
            foreign = gathered or (inner and set(inner) != set(self.inner(value.space)))
            if value_read.kind == "pointwise" and inner:
                if value.kind == "product":
                    value_read.stored = True
                elif foreign and not self._cheap(value_read):
                    ready, value_read.stored = ready._replace(stage=ready.stage + 1), True
                if self._cheap(value_read):
                    value.cost += value_read.cost
                    loads |= value_read.loads
                else:
                    loads.add(value_read.name)
            elif inner:
                loads.add(value_read.name)
            if value.kind == "product":
                value_read.products.append(value.line)
            at = max(at, ready)
        value.loads = frozenset(loads)
        return at

    def _cheap(self, value: ScheduledValue) -> bool:
        """Return whether recomputing it costs less than loading it."""
        return value.cost <= 6 and len(value.loads) <= (1 if value.output else 2)

    def _kind(self, line: Line) -> str:
        if line.name in self.library:
            return "product"
        if isinstance(line, Op) and (line.op == "append" or line.part != "body"):
            raise InputError(f"a kernel in C cannot compute {line.op}, in line: {line}")
        if isinstance(line, Op) and line.op != "inside" and entry(line.op).kind in ("scan", "choice"):
            return entry(line.op).kind
        if line.left[0].indexed and not is_point(line):
            return "scatter"
        if is_reduction(line):
            return "extreme" if isinstance(line, Op) else "sum"
        return "pointwise"

    @staticmethod
    def _along(line: Line) -> tuple[str, ...]:
        """Return the axes that an op processes as a whole: those that it acts on and the chosen one."""
        assert isinstance(line, Op)
        right = {axis for term in line.right for axis in term.loops}
        return (*line.axes, *(axis for axis in line.left[0].loops if axis not in right))

    def _type(self, line: Line) -> str:
        if isinstance(line, Op) and (line.op in ("inside", "eye") or entry(line.op).truth):
            return "bool"
        if is_choice(line):
            return "index"
        if isinstance(line, Product) and len(line.right) == 1 and isinstance(line.right[0], Term) and is_move(line):
            source = line.right[0].name
            if source in self.values:
                return self.values[source].type
            return KINDS.get(self.dtypes[source], "real")
        return "real"

    # Stored values.

    def _sites(self, value: ScheduledValue) -> set[LoopNode]:
        """Return the loops in which the line is computed."""
        if value.kind == "product":
            return set()
        if value.kind != "pointwise":
            return {LoopNode(value.at, self.inner(value.space))}
        if not value.stored:
            return value.uses
        assert value.spec is not None
        return {value.spec} if value.reread else value.uses | {value.spec}

    def _store(self, value: ScheduledValue) -> None:
        """Decide from its readers whether and where a value is stored; then mark its operands as used there."""
        inner = self.inner(value.space)
        if value.kind == "pointwise":
            early = value.stored
            elsewhere = len(value.uses) != 1 or next(iter(value.uses)).place.phase != value.at.phase
            cheap = self._cheap(value) or not inner
            value.stored = value.stored or value.output or bool(elsewhere and not cheap and value.uses)
            value.reread = not cheap
            specs = [
                node for node in value.uses if set(node.space) == set(inner) and node.place.phase == value.at.phase
            ]
            value.spec = min(specs) if specs and not early else LoopNode(value.at, inner)
        else:
            value.stored = value.kind in ("product", "scatter") or value.output or bool(self.inner(value.axes))
            value.stored = value.stored or any(n.place[:2] != value.at[:2] for n in value.uses) or value.added
        sites = self._sites(value)
        for term, _ in needs(value.line):
            if term.name in self.values:
                self.values[term.name].uses |= sites

    def _over(self) -> dict[str, str]:
        """Reuse the workspace of a block value after all of its elements were read."""
        last: dict[str, str] = {}
        for new in self.values.values():
            free = new.kind == "pointwise" and new.stored and not (new.output or new.added) and self.crosses(new)
            for old in self.values.values() if free and new.type == "real" and new.at.phase == MAIN else ():
                name = last_name = last.get(old.name, old.name)
                scratch = old.stored and not (old.output or old.added) and old.type == "real" and self.crosses(old)
                if scratch and old is not new and old.axes == new.axes and old.at.phase == MAIN:
                    is_occupied = any(
                        last.get(v.name, v.name) == name and v is not old for v in self.values.values() if v.stored
                    )
                    if not is_occupied and self._done(old, new):
                        last[new.name] = last_name
                        break
        return last

    def _done(self, old: ScheduledValue, new: ScheduledValue) -> bool:
        """Return whether a value's last read precedes another one's write, or is at the same element."""
        assert new.spec is not None
        readers = [v.line for v in self.values.values() if old.name in v.line.reads]
        gathered = any(term.name == old.name and at for line in readers for term, at in needs(line))
        products = all(self.values[p.name].at.segment < new.spec.place.segment for p in old.products)
        is_ready = old.ready <= new.spec.place
        return is_ready and not gathered and products and all(node <= new.spec for node in old.uses)

    def moment(self, node: LoopNode, value: ScheduledValue) -> bool:
        """Return whether a stored value is in memory when a node begins."""
        if value.kind != "pointwise":
            return True
        return value.spec is not None and node.place > value.spec.place

    def crosses(self, value: ScheduledValue) -> bool:
        """Return whether it is read outside the segment that computes it, or by a product."""
        return bool(value.products) or any(node.place[:2] != value.at[:2] for node in value.uses)
