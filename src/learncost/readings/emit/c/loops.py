"""The loops of a kernel: every node of the schedule as a nest of loops, with the reductions that end with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learncost.equation.errors import InputError
from learncost.readings.emit.c.arrays import Expression, Group, Index
from learncost.readings.emit.c.expressions import Numbers
from learncost.readings.emit.c.schedule import MAIN, Node, Value


@dataclass(frozen=True)
class _Reduction:
    value: Value
    outer: int  # how many loops of the nest go over the result's own axes; -1: the result is added to in memory
    name: str = ""


class Loops(Numbers):
    """Writes the nodes of a schedule."""

    bounds: tuple[str, str, str] | None = None  # an axis whose loops a block bounds, from, to

    def loop(self, group: Group, pragma: str = "") -> None:
        """Open a loop over a group of axes."""
        counter = self.counter(group)
        first, last = "0", self.count(group)
        if self.bounds and self.bounds[0] == group[0] and self.node and self.node.place.phase == MAIN:
            _, first, last = self.bounds
        self.open(f"for (place {counter} = {first}; {counter} < {last}; {counter}++)", pragma)
        self.positions[group] = Index(counter, len(self.blocks) - 1)

    def write_node(self, node: Node) -> None:
        """One loop, or nest of loops, with all that the schedule puts there."""
        self.node = node
        roots = [v for v in self.schedule.values.values() if self._here(v, node)]
        scatters = [v for v in roots if v.kind == "scatter"]
        together = [v for v in roots if v.kind != "scatter"]
        for value in scatters:
            self.zero(value, self.schedule.inner(value.axes))
            self._nest(node, [value], self._order(node, [value]), "")
        if together:
            self._nest(node, together, self._order(node, together), "#pragma GCC ivdep")
        self.node = None

    def _here(self, value: Value, node: Node) -> bool:
        if value.kind == "product":
            return False
        if value.kind == "pointwise":
            return value.stored and value.home == node
        return node == Node(value.at, self.schedule.inner(value.space))

    def _order(self, node: Node, roots: Sequence[Value]) -> list[Group]:
        """The loops from the outermost in: the axes of reductions' results first, else as the arrays lie in memory."""
        space = self.grouped(node.space)
        order: dict[Group, None] = {}
        for value in sorted(roots, key=lambda value: value.kind not in ("sum", "max")):
            own = self.grouped(self.schedule.inner(value.axes))
            if own and (value.kind == "max" or len(own) < len(space)):
                order.update(dict.fromkeys(group for group in own if group in space))
        for value in roots:
            order.update(dict.fromkeys(g for g in self.grouped(self.schedule.inner(value.axes)) if g in space))
            for term in value.line.right:
                order.update(dict.fromkeys(g for g in self.grouped(self.schedule.inner(term.loops)) if g in space))
        order.update(dict.fromkeys(space))
        return list(order)

    def _nest(self, node: Node, roots: Sequence[Value], order: list[Group], pragma: str) -> None:
        reductions = [self._reduction(v, order) for v in roots if v.kind in ("sum", "max")]
        if any(
            reduction.outer < 0 and order and order[-1] not in self._own(reduction.value) for reduction in reductions
        ):
            pragma = ""
        depth = len(self.blocks) - 1
        ready: list[_Reduction] = []
        for i in range(len(order) + 1):
            ready += [self._begin(reduction) for reduction in reductions if reduction.outer == i < len(order)]
            if i < len(order):
                self.loop(order[i], pragma if i == len(order) - 1 else "")
        stores: list[str] = []
        for value in roots:
            found = next((r for r in ready if r.value is value), None)
            stores += self._statement(value, found)
        self.write(*stores)
        for i in reversed(range(len(order))):
            self.close()
            for reduction in ready:
                if reduction.outer == i:
                    self._end(reduction)
        assert len(self.blocks) - 1 == depth

    def _own(self, value: Value) -> tuple[Group, ...]:
        return self.grouped(self.schedule.inner(value.axes))

    def _reduction(self, value: Value, order: list[Group]) -> _Reduction:
        own = self._own(value)
        if len(own) < len(order) and set(order[: len(own)]) == set(own):
            return _Reduction(value, len(own))
        if value.kind == "max":
            raise InputError(f"a kernel cannot take the largest along an outer axis, in line: {value.line}")
        if not (value.added or value.shared):
            self.zero(value, self.schedule.inner(value.axes))
        return _Reduction(value, -1)

    def _begin(self, reduction: _Reduction) -> _Reduction:
        name = self.fresh(self.names.of(reduction.value.name))
        self.blocks[-1].names.add(name)
        self.write(f"{self.real} {name} = {'LOWEST' if reduction.value.kind == 'max' else '0'};")
        return _Reduction(reduction.value, reduction.outer, name)

    def _end(self, reduction: _Reduction) -> None:
        """The loop is over: the result is known, and goes to memory where others read it from there."""
        value = reduction.value
        adding = value.added or value.shared
        if value.stored or adding:
            self.write(self._store(value, reduction.name, adding))
        if not adding:
            at = tuple(self.positions[group].text for group in self.grouped(value.axes))
            self.blocks[-1].memo["made", value.name, at] = Expression(reduction.name, len(self.blocks) - 1)

    def _statement(self, value: Value, reduction: _Reduction | None) -> list[str]:
        """Compute a root in the innermost loop; what has to be written at its end is returned."""
        if value.kind == "pointwise":
            return [self._store(value, self.made(value, self.positions).text)]
        text = " * ".join(self.number(operand, self.positions).text for operand in value.line.right)
        if value.kind == "max":
            assert reduction is not None
            return [f"{reduction.name} = {text} > {reduction.name} ? {text} : {reduction.name};"]
        if value.kind == "scatter":
            env = self.inside(value, value.line.left[0], self.positions)
            return [f"{self.address(value, env)} += {text};"]
        return [f"{reduction.name} += {text};" if reduction else self._store(value, text, adding=True)]

    def _store(self, value: Value, text: str, adding: bool = False) -> str:
        """Put a number where the value lies, at the present position."""
        target = self.address(value, self.positions)
        return f"{target} += {text};" if adding else f"{target} = {self.narrowed(text, self.storage(value).type)};"

    def zero(self, value: Value, axes: Sequence[str]) -> None:
        """Write zeros along these axes of a value, at the present position along the others."""
        order = self.grouped(axes)
        for group in order:
            self.loop(group)
        self.write(f"{self.address(value, self.positions)} = 0;")
        for _ in order:
            self.close()
