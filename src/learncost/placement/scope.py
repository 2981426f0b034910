"""The lines of a scope as they are placed, with the arrays that hold each value and the moves between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from learncost.equation.table import Line, Repeat, Statement, Sum, Tag, Term, Word
from learncost.equation.value import Value
from learncost.placement.clauses import Homes
from learncost.placement.layout import Layout, Move, moves


@dataclass(frozen=True)
class Reason:
    """Why a collective is there: by which rule, and for which line; `cut` says over what that line is cut."""

    rule: int
    line: Line | None
    cut: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Scope:
    """Lines of a scope as they are placed; what is not known here is known around it.

    homes    where values live
    values   those of the whole table that this scope declares
    busy     mesh axes whose devices run different turns: here they cut nothing, and nothing goes over them
    """

    homes: Homes
    values: Mapping[str, Value]
    busy: frozenset[str] = frozenset()
    outer: Scope | None = None
    out: list[Statement] = field(default_factory=list)
    placed: dict[str, Value] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)  # of arrays, by their names in the placed table
    arrays: dict[str, dict[Layout, str]] = field(default_factory=dict)  # that hold a value of the whole table
    steps: dict[str, Value] = field(default_factory=dict)  # inside of words
    step_homes: dict[str, Layout] = field(default_factory=dict)
    readers: Counter[str] = field(default_factory=Counter)
    zeros: set[str] = field(default_factory=set)
    made_by: dict[str, Line] = field(default_factory=dict)
    joins: dict[str, dict[str, str]] = field(default_factory=dict)  # why a value is partial, by mesh axis
    taken: set[str] = field(default_factory=set)
    holds: dict[str, str] = field(default_factory=dict)  # of what collectives make, in this scope and inside

    def statements(self, lines: Iterable[Statement]) -> None:
        from learncost.placement.cutting import place_line
        from learncost.placement.turns import place_repeat

        for line in lines:
            if isinstance(line, Repeat):
                place_repeat(self, line)
            else:
                place_line(self, line)

    # What is known of a value.

    def value(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.steps:
                return scope.steps[name]
            scope = scope.outer
        raise KeyError(name)

    def home(self, name: str) -> Layout:
        """Where a value lives: by the clauses; a step inside of a word where its line leaves it."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values:
            if name in scope.step_homes:
                return scope.step_homes[name]
            scope = scope.outer
        return Layout(self.homes.home(name, self.value(name), self.busy))

    def held(self, name: str) -> dict[Layout, str]:
        """The arrays that hold a value, by their layouts; one that is still to be joined goes where it was joined."""
        around = self.outer.held(name) if self.outer is not None and name not in self.values else {}
        own = self.arrays.get(name, {})
        if any(not layout.partial for layout in own):
            around = {layout: array for layout, array in around.items() if not layout.partial}
        return {**around, **own}

    def partial(self, name: str) -> Layout | None:
        """The layout of a value that is still to be joined; None of one that is not."""
        return next((layout for layout in self.held(name) if layout.partial), None)

    def give(self, name: str, layout: Layout, array: str = "") -> None:
        """An array holds a value."""
        array = array or name
        self.arrays.setdefault(name, {})[layout] = array
        self.layouts[array] = layout
        value = self.value(name)
        self.placed[array] = value.along(layout.cut(value.axes))
        self.taken.add(array)

    # Moves.

    def at(self, name: str, goal: Layout, reason: Reason) -> str:
        """The array that holds a value in a layout, made by collectives where there is none yet."""
        held = self.held(name)
        if goal in held:
            return held[goal]
        if name in self.zeros:
            return self.made_zeros(name, goal)
        start, path = min(
            ((layout, [*moves(layout, goal)]) for layout in held if layout.partial >= goal.partial),
            key=lambda pair: [move.word != "shard" for move in pair[1]].count(True),
        )
        array, axes = held[start], self.value(name).axes
        if start.partial - goal.partial:
            self.arrays[name] = {layout: kept for layout, kept in held.items() if not layout.partial}
        line = reason.line or self.line_of(name)
        for move in path:
            left = Term(self.fresh(name, move.word), move.layout.cut(axes))
            why = f"{self.why(name, start, move, reason)} (rule {reason.rule})"
            right = Term(array, start.cut(axes))
            tag = Tag(line.tag.layer, line.tag.block, line.tag.macro, local=left.name, module=line.tag.module, why=why)
            self.out.append(Word((left,), (right,), (), tag, move.word, (move.mesh_axis,), "body", ("X",), ("Y",)))
            self.give(name, move.layout, left.name)
            self.holds[left.name] = name
            start, array = move.layout, left.name
        return array

    def made_zeros(self, name: str, goal: Layout) -> str:
        """Zeros in another layout: they are made, not moved; of a sum they are any device's part."""
        held = self.held(name)
        if goal.whole() in held:
            return held[goal.whole()]
        line, axes = self.line_of(name), goal.cut(self.value(name).axes)
        array = self.fresh(name, "here")
        self.out.append(replace(line, left=(Term(array, axes),)))
        self.give(name, goal.whole(), array)
        return array

    def why(self, name: str, start: Layout, move: Move, reason: Reason) -> str:
        """Why a value is moved, in words."""
        axes, over = self.value(name).axes, move.mesh_axis
        before = next((axis for axis, names in zip(axes, start.split, strict=True) if over in names), "")
        after = next((axis for axis, names in zip(axes, move.layout.split, strict=True) if over in names), "")
        if move.word.startswith("all_reduce") or move.word == "reduce_scatter":
            text = f"{name} is partial over {over}"
            text += f", as {joined}" if (joined := self.join_of(name, over)) else ""
        else:
            text = f"{name} is cut on {before} over {over}" if before else f"{name} is whole over {over}"
        if reason.line is not None:
            wanted = reason.cut.get(over, "")
            text += f", and {reason.line.name} is " + (f"cut {wanted}" if wanted else "not cut")
        elif reason.rule == 5:
            text += ", and what turns hand on is " + (f"cut on {after}" if after else "whole")
        else:
            text += ", and as a result of the step it is " + (f"cut on {after}" if after else "whole")
        return text

    def join_of(self, name: str, over: str) -> str:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.joins:
                return scope.joins[name].get(over, "")
            scope = scope.outer
        return ""

    def line_of(self, name: str) -> Line:
        """The line that makes a value."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.made_by:
                return scope.made_by[name]
            scope = scope.outer
        return Sum((), ())

    def fresh(self, name: str, word: str) -> str:
        """A name for an array that a collective makes of a value."""
        number, new = 1, f"{name}.{word}"
        while self.is_taken(new):
            number += 1
            new = f"{name}.{word}.{number}"
        self.taken.add(new)
        return new

    def is_taken(self, name: str) -> bool:
        around = self.outer is not None and self.outer.is_taken(name)
        return around or name in self.taken or name in self.homes.known


def readers(lines: Iterable[Statement], outputs: Iterable[str]) -> Counter[str]:
    """How many lines read each name, as which a repeat counts once; results are read too."""
    counted = Counter(outputs)
    for line in lines:
        counted.update({*line.reads})
    return counted
