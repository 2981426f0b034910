"""Check a sharded table statically, and refuse it unless it is provably correct.

The check does not depend on the code that sharded the table. Over every mesh axis, an array is sharded (as its axes
state), replicated, or a partial sum, and every line must follow one of a few rules from the states of its operands to
that of its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import is_received_shard, sharded_over, sharding_prefix, whole
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ops import entry
from learncost.ops.collectives import is_collective, place_changed

CUT, SENT, SAME, ZERO, OWN = "cut", "sent", "the same", "zero", "of one iteration"
"""The states of an array over a mesh axis; a partial array has the state `sum`, `max` or `min`. Dispatched rows are
sharded by row.
"""

BEFORE, CAME, NEXT = "of the previous iteration", "received", "of the next iteration"
"""The states of a rotating shard in a ring: to be passed on, received in this iteration, or already passed on."""

PAIRS, PART, OTHERS = "pairs of parts", "the sum over one part", "the sum over the parts of the others"
"""The states of results of a device's own shard and another shard, of sums over one shard, and of sums over the
others."""

_ROUND = frozenset((BEFORE, CAME, NEXT, PAIRS, PART, OTHERS))

States = dict[str, str]

_MAKES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "all_reduce": (("sum",), SAME),
    "all_reduce_max": (("max",), SAME),
    "all_reduce_min": (("min",), SAME),
    "reduce_scatter": (("sum",), CUT),
    "all_gather": ((CUT,), SAME),
    "all_to_all": ((CUT,), CUT),
    "shard": ((SAME, ZERO), CUT),
    "dispatch": ((CUT,), SENT),
    "combine": ((SENT,), CUT),
    "pass_on": ((BEFORE, CAME), CAME),
}
"""The states of operands that each collective accepts, and the state of its result."""


def check_placed(table: Table, mesh_axes: Iterable[tuple[str, int]]) -> None:
    """Refuse a sharded table unless every line and result is provably correct. Raises `InputError`.

    mesh_axes  the mesh axes, each with its number of devices
    """
    for mesh_axis, devices in mesh_axes:
        states = {name: _of(table.axes[name], mesh_axis) for name in (*table.inputs, *table.weights)}
        axes = {name: value.axes for name, value in table.values.items()}
        _LineCheck(mesh_axis, devices, axes).lines(table.lines, states)
        for name in table.outputs:
            if states[name] not in (CUT, SAME, ZERO):
                raise InputError(f"the result {name} would remain a partial sum over {mesh_axis} ({states[name]})")


def _of(axes: Iterable[str], mesh_axis: str) -> str:
    return CUT if any(mesh_axis in sharded_over(axis) for axis in axes) else SAME


class _LineCheck:
    """A check of the lines of a scope over one mesh axis, which records the states of names in `states`."""

    def __init__(self, mesh_axis: str, devices: int, axes: Mapping[str, tuple[str, ...]], busy: bool = False) -> None:
        self.mesh_axis, self.devices, self.axes, self.busy = mesh_axis, devices, axes, busy
        self.zeros: set[str] = set()  # zeros, which are valid in every state
        self.owners: dict[str, str] = {}  # the sharded axis that dispatched rows read

    def lines(self, lines: Iterable[Statement], states: States) -> None:
        for line in lines:
            if isinstance(line, Loop):
                self.repeat(line, states)
            else:
                self.line(line, states)

    def refuse(self, line: Statement, why: str) -> InputError:
        text = str(line).partition("\n")[0]
        return InputError(f"over {self.mesh_axis} {why}, so that it cannot be proved correct: {text}")

    def repeat(self, line: Loop, states: States) -> None:
        mesh_axis, busy = self.mesh_axis, self.busy or self.mesh_axis in sharded_over(line.count)
        inner = _LineCheck(mesh_axis, self.devices, {**self.axes, **line.axes}, busy)
        inner.owners = {**self.owners, **{name: self.owners.get(stack, "") for name, stack in line.each}}
        inner_states = dict(states)
        if line.around == mesh_axis:
            self.ring(line, states, inner)
            return
        if busy and not self.busy and any(states[name] not in (SAME, ZERO) for name in line.shared):
            raise self.refuse(line, "iterations on several devices read values that differ between devices")
        for name, stack in line.each:
            if busy and not self.busy and mesh_axis not in sharded_over(self.axes[stack][0]):
                raise self.refuse(line, f"iterations on several devices read slices of {stack}, which is replicated")
            inner_states[name] = OWN if busy else states[stack]
        for carry in line.carry:
            inner_states[carry.start] = OWN if busy else states[carry.initial]
        self.totals(line, inner_states, inner)
        inner.lines(line.lines, inner_states)
        for carry in line.carry:
            end, start = inner_states[carry.end], inner_states[carry.start]
            if end != start and end != ZERO and not busy:
                raise self.refuse(line, f"{carry.start} is {start}, but {carry.end} is {end}")
            if busy and not self.busy and states[carry.initial] != ZERO:
                raise self.refuse(line, f"iterations on several devices carry {carry.start}")
            states[carry.final] = "sum" if busy and not self.busy else start
        self.owners |= {stack: inner.owners.get(name, "") for name, stack in line.keep}
        for name, stack in line.keep:
            states[stack] = CUT if busy and not self.busy else inner_states[name]

    def ring(self, line: Loop, states: States, inner: _LineCheck) -> None:
        """Check a ring, in which every device receives each of the other shards once, so that sums over them are
        complete.
        """
        if line.count != str(self.devices - 1):
            raise self.refuse(line, f"{line.count} ring iterations do not match {self.devices} devices")
        inner_states = dict(states)
        for carry in line.carry:
            given = ZERO if carry.initial in self.zeros else states[carry.initial]
            is_round = any(map(is_received_shard, line.axes[carry.start]))
            allowed = {CUT: BEFORE, ZERO: CAME} if is_round else {PART: PART, ZERO: ZERO}
            if given not in allowed:
                raise self.refuse(line, f"{carry.initial} cannot rotate as {given}")
            inner_states[carry.start] = allowed[given]
        starts = dict(inner_states)
        inner.lines(line.lines, inner_states)
        for carry in line.carry:
            start, end = starts[carry.start], inner_states[carry.end]
            if end != {BEFORE: CAME, CAME: NEXT, PART: PART, ZERO: PART}[start]:
                raise self.refuse(line, f"{carry.start} is {start}, but {carry.end} is {end}")
            states[carry.final] = {BEFORE: BEFORE, PART: self.summed(carry.final)}.get(start, OTHERS)

    def summed(self, name: str) -> str:
        """Return the state of the sum over all shards: the state of the device's own shard, or partial if that was
        summed over, too.
        """
        return CUT if _of(self.axes[name], self.mesh_axis) == CUT else "sum"

    def round_line(self, line: Line, along: set[str], states: States) -> None:
        """Check a line that reads a received shard, or the device's own shard in another role."""
        read = [states[name] for name in line.reads]
        own = {axis for axis in along if not is_received_shard(axis)}
        known = {CUT, SAME, ZERO, CAME, PAIRS, PART}
        if isinstance(line, Sum) and sorted(read) == sorted((OTHERS, PART)) and min(line.signs) > 0:
            states[line.name] = self.summed(line.name)
            return
        if not {*read} <= known or any(axis.endswith("=") for axis in along) or len(along) > 2:
            raise self.refuse(line, f"it reads {' and '.join(sorted({*read} - {SAME}))}")
        if isinstance(line, Op) and along & {*line.axes}:
            op = entry(line.op)
            if not op.pointwise and (op.kind != "reduction" or line.part != "body"):
                raise self.refuse(line, f"{line.op} acts along the rotating axis")
        for term in line.left:
            left = {axis for axis in along if axis in term.axes}
            if CAME in read and not own and not left:
                raise self.refuse(line, "it sums a rotating shard without a local operand")
            if len(left) == 2:
                states[term.name] = PAIRS
            else:
                states[term.name] = CAME if any(map(is_received_shard, left)) else PART

    def totals(self, line: Loop, inner_states: States, inner: _LineCheck) -> None:
        """Set the states of totals that begin as zeros to their states after an iteration."""
        begun = [carry for carry in line.carry if inner_states[carry.start] == ZERO]
        if not begun:
            return
        inner_states |= {carry.start: CUT for carry in begun if _of(line.axes[carry.start], self.mesh_axis) == CUT}
        iteration = dict(inner_states)
        inner.lines(line.lines, iteration)
        inner_states |= {carry.start: iteration[carry.end] for carry in begun}

    def line(self, line: Line, states: States) -> None:
        for term in (*line.left, *line.terms):
            declared = (self.axes[term.name], term.declared)
            if declared[0] == declared[1]:
                continue
            cut_as = [[(self.mesh_axis in sharded_over(a), is_received_shard(a)) for a in axes] for axes in declared]
            if cut_as[0] != cut_as[1]:
                raise self.refuse(line, f"{term.name} is read as [{' '.join(term.declared)}]")
        if is_collective(line):
            self.collective(line, states)
            return
        if self.busy:
            states.update(dict.fromkeys(line.makes, OWN))
            return
        if isinstance(line, Op) and line.op == "zeros":
            self.zeros.update(line.makes)
        cut_axes = self.cut_axes(line)
        is_pair = len(cut_axes) == 2 and not any("=" in axis for axis in cut_axes)
        if is_pair or not _ROUND.isdisjoint(states[name] for name in line.reads):
            self.round_line(line, cut_axes, states)
            return
        state = self.result(line, cut_axes, states)
        for term in line.left:
            is_cut = _of(term.declared, self.mesh_axis) == CUT
            is_written = term.indexed
            states[term.name] = (SENT if state == SENT and not is_written else CUT) if is_cut else state
            if is_cut and state not in (CUT, SENT, SAME, ZERO):
                raise self.refuse(line, f"{term.name} would be sharded and partial at once")
            if not is_cut and state in (CUT, SENT):
                raise self.refuse(line, f"{term.name} would differ between devices")

    def collective(self, line: Op, states: States) -> None:
        name = line.right[0].name
        if line.axes[0] != self.mesh_axis:
            states[line.name] = states[name]
            self.owners[line.name] = self.owners.get(name, "")
            return
        if self.busy:
            raise self.refuse(line, "the collective joins devices that run different iterations")
        if line.op == "part":
            self.part(line, states)
            return
        given, made = _MAKES[line.op]
        if states[name] not in given:
            raise self.refuse(line, f"{name} is {states[name]}")
        states[line.name] = NEXT if states[name] == CAME else made
        if made == SENT:
            self.owners[line.name] = line.axes[1]
        if line.op == "combine" and self.owners[name] != line.axes[1]:
            raise self.refuse(line, f"{name} was dispatched to the owners of {self.owners[name]}")

    def part(self, line: Op, states: States) -> None:
        """Check a line that takes a shard of a replicated array: the device's own, or a received one."""
        name, place = line.right[0].name, place_changed(line)
        before, after = line.right[0].declared[place], line.left[0].declared[place]
        if states[name] not in (SAME, CUT) or (*sharded_over(before), self.mesh_axis) != sharded_over(after):
            raise self.refuse(line, f"it takes a shard of {name}, which is {states[name]}")
        alone = CAME if is_received_shard(after) else CUT
        states[line.name] = PAIRS if states[name] == CUT else alone

    def cut_axes(self, line: Line) -> set[str]:
        """Return the axes of a line that the mesh axis shards. Raises `InputError` if an axis is both sharded and
        unsharded."""
        plain = {axis for term in (*line.left, *line.terms) for axis in term.axes if isinstance(axis, str)}
        cut = {axis for axis in plain if self.mesh_axis in sharded_over(axis)}
        for axis in cut:
            same = {other for other in plain if whole(other) == whole(axis)}
            if not same <= cut:
                raise self.refuse(line, f"an axis is both sharded and unsharded ({', '.join(sorted(same))})")
        read = {axis.axis for axis in line.indexed_axes}
        return cut | {f"{axis}=" for axis in read if self.mesh_axis in sharded_over(axis)}

    def result(self, line: Line, cut_axes: set[str], states: States) -> str:
        read_states = {term.name: states[term.name] for term in line.terms}
        partial = {state for state in read_states.values() if state in ("sum", "max", "min")}
        if partial:
            return self.of_partial(line, read_states, cut_axes)
        along = {axis for axis in cut_axes if not axis.endswith("=")}
        read = cut_axes - along
        if SENT in read_states.values():
            return self.of_rows(line, read_states, along)
        if len(along) > 1 or (read and along):
            raise self.refuse(line, f"{' and '.join(sorted(cut_axes))} are sharded at once")
        remaining = {axis if isinstance(axis, str) else f"{axis.axis}=" for term in line.left for axis in term.axes}
        if not cut_axes:
            return ZERO if isinstance(line, Op) and line.op == "zeros" else SAME
        (axis,) = cut_axes
        if isinstance(line, Op) and not axis.endswith("=") and axis in line.axes:
            if entry(line.op).kind == "reduction" and line.part == "body":
                return line.op
            if not entry(line.op).pointwise:
                raise self.refuse(line, f"{line.op} acts along {axis}, which is sharded")
        if axis in remaining:
            return CUT
        if not isinstance(line, Product):
            raise self.refuse(line, f"{axis} is not in its result")
        return "sum"

    def of_rows(self, line: Line, read_states: Mapping[str, str], along: set[str]) -> str:
        """Return the state of the result of dispatched rows: all operands with rows must be dispatched, and the result
        must have rows.
        """
        there = {
            term.name
            for term in line.right
            if isinstance(term, Term) and any(self.mesh_axis in sharded_over(axis.axis) for axis in term.indexed_axes)
        }
        for name, state in read_states.items():
            if state == CUT and name not in there:
                raise self.refuse(line, f"{name} is read with dispatched rows, and was not dispatched")
        left = line.left[0]
        is_written = any(self.mesh_axis in sharded_over(axis.axis) for axis in left.indexed_axes)
        if len(along) != 1 or not (is_written or along <= {*left.axes}):
            raise self.refuse(line, "it sums dispatched rows")
        owners = {self.owners[name] for name, state in read_states.items() if state == SENT}
        owners |= {
            sharding_prefix(axis.axis, self.mesh_axis)
            for axis in line.indexed_axes
            if self.mesh_axis in sharded_over(axis.axis)
        }
        if len(owners) > 1:
            raise self.refuse(line, f"it combines rows dispatched to the owners of {' and '.join(sorted(owners))}")
        self.owners |= dict.fromkeys(line.makes, *owners)
        return SENT

    def of_partial(self, line: Line, read_states: Mapping[str, str], cut_axes: set[str]) -> str:
        """Return the state of the result of partial operands: the line must be linear, and nothing else in it
        sharded.
        """
        terms = [term for term in line.right if isinstance(term, Term)]
        states = [read_states[term.name] for term in terms]
        inner = [state for name, state in read_states.items() if name not in {term.name for term in terms}]
        is_linear = isinstance(line, Sum) and all(state in ("sum", ZERO) for state in states)
        is_linear = is_linear and not any(isinstance(operand, Literal) for operand in line.right)
        if isinstance(line, Product):
            is_linear = states.count("sum") == 1 and all(state in ("sum", SAME, ZERO) for state in states)
        if not is_linear or cut_axes or any(state != SAME for state in inner):
            raise self.refuse(line, "a line that is not linear reads a partial sum")
        return "sum"
