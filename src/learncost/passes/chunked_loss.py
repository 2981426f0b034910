"""Apply the plan chunked-loss (chunked cross-entropy): scores, loss and their gradients run sequence by sequence.

Sequences share only the sums of the loss and of the gradients of the head's weights. Forward and backward of a
sequence's head run in one iteration, so that batch x vocabulary is never stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement, defined
from learncost.ir.table import Table
from learncost.ir.term import Operand, Read, Term
from learncost.ir.value import Value
from learncost.layers.spelling import merging
from learncost.ops import applied, is_log_softmax

BATCH = "B"


def chunked_loss(table: Table) -> Table:
    """Return the step with the head and its loss as a loop over the batch; the step itself if this is impossible.

    The loss must be a sum over positions of a log-softmax, and no other lines or outputs may read the scores.
    """
    lines = tuple(_inside(line, table) for line in table.lines)
    table = table if lines == table.lines else replace(table, lines=lines)
    part = _part(table)
    if part is None:
        return table
    begin, end, wide = part
    later = {name for line in table.lines[end:] for name in line.reads} | set(table.outputs)
    try:
        iterations = _ChunkLoop(table, later)
        for line in table.lines[begin:end]:
            iterations.line(line)
        if wide & {name for name, _ in iterations.keep}:
            return table
        middle = iterations.statements()
    except _NotChunkableError:
        return table
    dropped = iterations.made_inside - iterations.stacks - later
    values = {name: value for name, value in table.values.items() if name not in dropped} | iterations.outer
    return replace(table, lines=(*table.lines[:begin], *middle, *table.lines[end:]), values=values)


def _inside(line: Statement, around: Table) -> Statement:
    """Return a loop with the losses in its iterations chunked, as local losses need it; any other line is unchanged."""
    if not isinstance(line, Loop):
        return line
    iteration = replace(around, lines=line.lines, values={**around.values, **line.values}, outputs=line.ends)
    chunked = chunked_loss(iteration)
    if chunked is iteration:
        return line
    line = replace(line, lines=chunked.lines)
    return replace(line, values={name: value for name, value in chunked.values.items() if name in line.inside})


def _part(table: Table) -> tuple[int, int, set[str]] | None:
    """Return the range of lines that define or read values with batch and vocabulary, and the names of these values."""
    acted = [line for line in table.lines if is_log_softmax(line)]
    acted = [line for line in acted if line.part == "body" and line.left[0].axes[0] == BATCH and len(line.loops) > 2]
    if len(acted) != 1:
        return None
    vocabulary = acted[0].axes
    wide = {
        name for name in defined(table.lines) if BATCH in table.axes[name] and set(vocabulary) & set(table.axes[name])
    }
    touching = [
        i for i, line in enumerate(table.lines) if not wide.isdisjoint(line.reads) or not wide.isdisjoint(line.makes)
    ]
    return touching[0], touching[-1] + 1, wide


class _NotChunkableError(Exception):
    """The error of lines that cannot become a loop over the batch."""


@dataclass
class _ChunkLoop:
    """The loop over the batch that the lines of the range become, with the lines before and after it."""

    table: Table
    later: set[str]  # names that later lines read, and outputs
    before: list[Statement] = field(default_factory=list)
    inside: list[Statement] = field(default_factory=list)
    after: list[Line] = field(default_factory=list)
    carry: list[Carry] = field(default_factory=list)
    each: dict[str, str] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)  # of an iteration
    outer: dict[str, Value] = field(default_factory=dict)  # of the accumulators' initial zeros
    made_inside: set[str] = field(default_factory=set)  # of an iteration, without accumulators

    @property
    def totals(self) -> set[str]:
        return {carry.final for carry in self.carry}

    @property
    def stacks(self) -> set[str]:
        return {name for name, _ in self.keep}

    @property
    def keep(self) -> tuple[tuple[str, str], ...]:
        """The values of iterations that later lines read, with their stacks."""
        read = self.later | {name for line in self.after for name in line.reads}
        return tuple((name, name) for name in self.values if name in self.made_inside and name in read)

    def statements(self) -> Sequence[Statement]:
        each = tuple(self.each.items())
        iterations = Loop(BATCH, tuple(self.inside), self.values, tuple(self.carry), each, self.keep)
        return (*self.before, iterations, *self.after)

    def line(self, line: Statement) -> None:
        if isinstance(line, Loop) or any(BATCH in condition.axes for condition in line.where):
            raise _NotChunkableError
        past = self.totals | {name for statement in self.after for name in statement.makes}
        if not past.isdisjoint(line.reads):
            self.after.append(line)
        elif BATCH not in line.loops:
            self.before.append(line)
        else:
            self.iteration(line)

    def iteration(self, line: Line) -> None:
        """Emit a line for one sequence: the line without the batch axis, and an accumulation if the line sums over the
        batch."""
        left, right = tuple(map(self.sliced, line.left)), tuple(map(self.operand, line.right))
        iteration_line = replace(line, left=left, right=right)
        if BATCH in iteration_line.loops or (isinstance(iteration_line, Op) and BATCH in iteration_line.axes):
            raise _NotChunkableError
        self.inside.append(iteration_line)
        for name in line.reads:
            if BATCH in self.table.axes[name] and name not in self.made_inside:
                self.each[name] = name
                self.values[name] = self.table.values[name].along(self.of_iteration(name))
        self.values |= {name: self.table.values[name].along(self.of_iteration(name)) for name in line.makes}
        summed = [term for term in line.left if BATCH not in term.declared]
        if not summed:
            self.made_inside |= {*line.makes}
        elif isinstance(line, Product):
            self.add(line, self.table.axes[line.name])
        else:
            raise _NotChunkableError

    def add(self, line: Line, axes: tuple[str, ...]) -> None:
        """Add a loop-carried accumulator for the result of a line."""
        name = line.name
        start, end, zero = (f"{name}:{part}" for part in ("sum", "sum.2", "zero"))
        meta = merging(line.meta, line.meta.phase)
        self.before.append(applied("zeros", Term(zero, axes), (), meta))
        self.inside.append(Sum((Term(end, axes),), (Term(start, axes), Term(name, axes)), (), meta, (1, 1)))
        total = Value(axes, "part", self.table.values[name].of)
        self.values |= {start: total, end: total}
        self.outer[zero] = total
        self.carry.append(Carry(start, end, zero, name))

    def of_iteration(self, name: str) -> tuple[str, ...]:
        """Return the axes of a value inside an iteration."""
        axes = self.table.axes[name]
        if BATCH not in axes:
            return axes
        if axes[0] != BATCH:
            raise _NotChunkableError
        return axes[1:]

    def operand(self, term: Operand) -> Operand:
        return self.sliced(term) if isinstance(term, Term) else term

    def sliced(self, term: Term) -> Term:
        """Return a term as an iteration reads it: the slice of one sequence, if it has a batch axis."""
        axes = [axis if isinstance(axis, str) else self.read(axis) for axis in term.axes]
        if self.of_iteration(term.name) != self.table.axes[term.name] and axes.pop(0) != BATCH:
            raise _NotChunkableError
        return Term(term.name, tuple(axes))

    def read(self, axis: Read) -> Read:
        return Read(axis.axis, self.sliced(axis.at)) if isinstance(axis.at, Term) else axis
