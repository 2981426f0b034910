"""Shard the lines of a scope: record the arrays that hold each value, and emit the moves between layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Op, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, whole
from learncost.ir.term import Axis, Term
from learncost.ir.value import Value
from learncost.ops import applied
from learncost.sharding.clauses import ShardSpecs, Split
from learncost.sharding.layout import LayoutMove, RowChoice, ShardLayout, cut, moves


@dataclass(frozen=True)
class CollectiveReason:
    """The reason for a collective: the number of the rule, the line, and `cut`, the sites of mesh axes in the line."""

    rule: int
    line: Line | None
    cut: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ShardingScope:
    """The sharded lines of a scope; unknown names are looked up in the enclosing one.

    specs    the shard specs of values
    values   the values of the unsharded table that this scope declares
    busy     the mesh axes whose devices run different iterations, which shard nothing here and have no collectives
    """

    specs: ShardSpecs
    values: Mapping[str, Value]
    busy: frozenset[str] = frozenset()
    outer: ShardingScope | None = None
    out: list[Statement] = field(default_factory=list)
    placed: dict[str, Value] = field(default_factory=dict)
    layouts: dict[str, ShardLayout] = field(default_factory=dict)  # of arrays, by their names in the sharded table
    arrays: dict[str, dict[ShardLayout, str]] = field(default_factory=dict)  # the arrays that hold each value
    steps: dict[str, Value] = field(default_factory=dict)  # values inside ops
    step_specs: dict[str, ShardLayout] = field(default_factory=dict)
    of_specs: dict[str, ShardLayout] = field(default_factory=dict)  # of values by name, which every line asks for
    readers: Counter[str] = field(default_factory=Counter)
    zeros: set[str] = field(default_factory=set)
    made_by: dict[str, Line] = field(default_factory=dict)
    joins: dict[str, dict[str, str]] = field(default_factory=dict)  # the reason why a value is partial, by mesh axis
    taken: set[str] = field(default_factory=set)
    choices: dict[str, RowChoice] = field(default_factory=dict)  # the choices of rows, by their keys in layouts
    # for a value without all axes of its rows
    expanded: dict[tuple[str, ShardLayout], str] = field(default_factory=dict)
    holds: dict[str, str] = field(default_factory=dict)  # the value of each collective's result

    def statements(self, lines: Iterable[Statement]) -> None:
        from learncost.sharding.line_sharding import place_line
        from learncost.sharding.loops import place_repeat

        for line in lines:
            if isinstance(line, Loop):
                place_repeat(self, line)
            else:
                place_line(self, line)

    # Lookup of values.

    @property
    def scopes(self) -> tuple[ShardingScope, ...]:
        """The scope and the enclosing ones, from the inside."""
        return (self, *(self.outer.scopes if self.outer else ()))

    def value(self, name: str) -> Value:
        return next(known[name] for scope in self.scopes for known in (scope.values, scope.steps) if name in known)

    def spec(self, name: str) -> ShardLayout:
        """Return the layout of a value's shard spec; for a value inside an op, the layout that its line gave it."""
        scope: ShardingScope | None = self
        while scope is not None and name not in scope.values:
            if name in scope.step_specs:
                return scope.step_specs[name]
            scope = scope.outer
        if name not in self.of_specs:
            self.of_specs[name] = ShardLayout(self.specs.spec(name, self.value(name), self.busy))
        return self.of_specs[name]

    def held(self, name: str) -> dict[ShardLayout, str]:
        """Return the arrays that hold a value, by layout; for a partial value, from the scope in which it was
        reduced."""
        array_layouts = self.arrays.get(name, {})
        if self.outer is None or name in self.values:
            return {**array_layouts}
        around = self.outer.held(name)
        if any(not layout.partial for layout in array_layouts):
            around = {layout: array for layout, array in around.items() if not layout.partial}
        return {**around, **array_layouts}

    def partial(self, name: str) -> ShardLayout | None:
        """Return the layout of a value with pending reductions; None if it has none."""
        return next((layout for layout in self.held(name) if layout.partial), None)

    def pending(self, name: str) -> frozenset[tuple[str, str]]:
        """Return the pending reductions of a value."""
        layout = self.partial(name)
        return layout.partial if layout is not None else frozenset()

    def give(self, name: str, layout: ShardLayout, array: str = "") -> None:
        """Record that an array holds a value."""
        array = array or name
        self.arrays.setdefault(name, {})[layout] = array
        self.layouts[array] = layout
        value = self.value(name)
        self.placed[array] = value.along(layout.cut(value.axes))
        self.taken.add(array)

    # Moves.

    def at(self, name: str, goal: ShardLayout, reason: CollectiveReason) -> str:
        """Return the array that holds a value in a layout, adding collectives if there is none yet."""
        held = self.held(name)
        if goal in held:
            return held[goal]
        if name in self.zeros:
            return self.made_zeros(name, goal)
        if all(layout.sent for layout in held):
            self.combined(name, reason)
            return self.at(name, goal, reason)
        held = {layout: array for layout, array in held.items() if not layout.sent}
        start = min(
            (layout for layout in held if layout.partial >= goal.partial),
            key=lambda layout: [move.op != "shard" for move in moves(layout, goal)].count(True),
        )
        if start.partial - goal.partial:
            self.arrays[name] = {layout: kept for layout, kept in held.items() if not layout.partial}
        return self.moved(name, start, held[start], goal, reason)

    def moved(self, name: str, start: ShardLayout, array: str, goal: ShardLayout, reason: CollectiveReason) -> str:
        """Return the array in a layout that collectives compute from an array that holds a value."""
        axes, line = self.value(name).axes, reason.line or self.line_of(name)
        for move in moves(start, goal):
            left = Term(self.fresh(name, move.op), move.layout.cut(axes))
            right = Term(array, start.cut(axes))
            why = f"{self.why(name, start, move, reason)} (rule {reason.rule}){self.filled_up(left, right)}"
            meta = line.meta.of_step(left.name, why)
            self.out.append(applied(move.op, left, (right,), meta, (move.mesh_axis,)))
            self.give(name, move.layout, left.name)
            self.holds[left.name] = name
            start, array = move.layout, left.name
        return array

    def choice(self, key: str) -> RowChoice:
        """Return the choice of rows with this key."""
        return next(scope.choices[key] for scope in self.scopes if key in scope.choices)

    def dispatched(
        self,
        term: Term,
        layout: ShardLayout,
        choice: RowChoice,
        rows: tuple[str, ...],
        axes: tuple[Axis, ...],
        split: Split,
        reason: CollectiveReason,
    ) -> str:
        """Return the array with an operand's dispatched rows; an operand that lacks axes of the rows is broadcast to
        them.

        rows   the names of the rows' axes in the line
        axes   the axes of the result
        split  the mesh axes that shard each axis of the result
        """
        self.choices[choice.key] = choice
        goal = ShardLayout(split, layout.partial, choice.key)
        held = self.held(term.name) if axes == term.axes else {}
        if goal in held:
            return held[goal]
        for start in held:
            if start.sent == goal.sent and all(
                start.split[place] == split[place] for place, axis in enumerate(axes) if axis in rows
            ):
                return self.moved(term.name, start, held[start], goal, reason)
        key = term.name, goal
        if key in self.expanded:
            return self.expanded[key]
        array = self.at(term.name, layout, reason)
        index = self.at(choice.index, ShardLayout(tuple(split[axes.index(row)] for row in rows)), reason)
        left = Term(self.fresh(term.name, "dispatch"), tuple(cut(str(a), s) for a, s in zip(axes, split, strict=True)))
        right = (
            Term(array, tuple(cut(str(axis), names) for axis, names in zip(term.axes, layout.split, strict=True))),
            Term(index, tuple(cut(row, split[axes.index(row)]) for row in rows)),
        )
        line = reason.line or self.line_of(term.name)
        axis = whole(choice.read)
        why = f"{line.name} reads {axis} at {choice.index}, and {axis} is sharded over {choice.mesh_axis}"
        self.sends("dispatch", left, right, choice, line, f"{why}: rows are sent to its shards (rule 6)")
        value = self.value(term.name)
        self.holds[left.name] = term.name
        if axes == term.axes:
            self.give(term.name, goal, left.name)
        else:
            self.placed[left.name] = value.along(str(axis) for axis in left.axes)
            self.layouts[left.name] = goal
            self.expanded[key] = left.name
        return left.name

    def sends(self, op: str, left: Term, right: tuple[Term, Term], choice: RowChoice, line: Line, why: str) -> None:
        """Add a line that sends rows."""
        acted = (choice.mesh_axis, choice.read)
        self.out.append(
            Op((left,), right, (), line.meta.of_step(left.name, why), op, acted, "body", ("X", "I"), ("Y",))
        )

    def combined(self, name: str, reason: CollectiveReason) -> str:
        """Return the array that holds a value whose dispatched rows were sent back."""
        layout, array = next(iter(self.held(name).items()))
        choice, axes = self.choice(layout.sent), self.value(name).axes
        spec = replace(layout, sent="")
        index_split = tuple(layout.split[axes.index(row)] for row in choice.axes)
        index = self.at(choice.index, ShardLayout(index_split), reason)
        left = Term(self.fresh(name, "combine"), spec.cut(axes))
        right = (
            Term(array, layout.cut(axes)),
            Term(index, tuple(cut(row, names) for row, names in zip(choice.axes, index_split, strict=True))),
        )
        line = reason.line or self.line_of(name)
        why = f"the rows of {name} were sent by {choice.index} over {choice.mesh_axis}, and {line.name} is over others"
        self.sends("combine", left, right, choice, line, f"{why}: they come back (rule 6)")
        self.give(name, spec, left.name)
        self.holds[left.name] = name
        return left.name

    def made_zeros(self, name: str, goal: ShardLayout) -> str:
        """Return zeros in another layout without communication, as zeros are a valid partial sum on every device."""
        held = self.held(name)
        if goal.whole() in held:
            return held[goal.whole()]
        line, axes = self.line_of(name), goal.cut(self.value(name).axes)
        array = self.fresh(name, "here")
        self.out.append(replace(line, left=(Term(array, axes),)))
        self.give(name, goal.whole(), array)
        return array

    def why(self, name: str, start: ShardLayout, move: LayoutMove, reason: CollectiveReason) -> str:
        """Return a sentence that explains a move."""
        axes, over = self.value(name).axes, move.mesh_axis
        before = next((axis for axis, names in zip(axes, start.split, strict=True) if over in names), "")
        after = next((axis for axis, names in zip(axes, move.layout.split, strict=True) if over in names), "")
        if move.op.startswith("all_reduce") or move.op == "reduce_scatter":
            text = f"{name} is partial over {over}"
            joined = self.join_of(name, over)
            text += f", as {joined.replace(f'{name} ', 'it ', 1)}" if joined else ""
        else:
            text = f"{name} is sharded on {before} over {over}" if before else f"{name} is replicated over {over}"
        if reason.line is not None:
            wanted = reason.cut.get(over, "")
            text += f", and {reason.line.name} is " + (f"sharded {wanted}" if wanted else "not sharded")
        elif reason.rule == 5:
            text += ", and the loop-carried values are " + (f"sharded on {after}" if after else "replicated")
        else:
            text += ", and as a result of the step it is " + (f"sharded on {after}" if after else "replicated")
        return text

    def filled_up(self, left: Term, right: Term) -> str:
        """Return a note about the padded axis that a collective shards or gathers; empty without padding."""
        changed = {*left.declared} ^ {*right.declared}
        for part, size in self.specs.filled.items():
            outer, _, mesh_axis = part.rpartition("/")
            if any(base(axis) == part for axis in changed):
                places, full = self.specs.size(outer), size * self.specs.mesh.sizes[mesh_axis]
                return f"; {outer} is {places:,}, padded to {full:,}"
        return ""

    def join_of(self, name: str, over: str) -> str:
        return next((scope.joins[name].get(over, "") for scope in self.scopes if name in scope.joins), "")

    def line_of(self, name: str) -> Line:
        """Return the line that defines a value."""
        return next((scope.made_by[name] for scope in self.scopes if name in scope.made_by), Sum((), ()))

    def fresh(self, name: str, op: str) -> str:
        """Return an unused name for the result of a collective."""
        new = unused(f"{name}.{op}", self.is_taken)
        self.taken.add(new)
        return new

    def is_taken(self, name: str) -> bool:
        around = self.outer is not None and self.outer.is_taken(name)
        return around or name in self.taken or name in self.specs.known


def unused(name: str, is_taken: Callable[[str], bool]) -> str:
    """Return a name that is not taken: this one, or one with a number behind it."""
    return next(new for number in count(1) if not is_taken(new := f"{name}.{number}" if number > 1 else name))


def readers(lines: Iterable[Statement], outputs: Iterable[str]) -> Counter[str]:
    """Return the number of lines that read each name; a loop counts once, and outputs count as reads."""
    counted = Counter(outputs)
    for line in lines:
        counted.update({*line.reads})
    return counted
