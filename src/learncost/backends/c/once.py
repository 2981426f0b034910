"""What a kernel computes once: numbers get names, in the outermost loop that has all that they need."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace

from learncost.backends.c import tree


def computed_once(
    iterations: tree.ForLoop, used_names: Collection[str], numbers: Collection[tree.Expression] = ()
) -> tuple[tuple[tree.CStatement, ...], tree.ForLoop, tuple[tree.Expression, ...]]:
    """What comes before all turns, the turns without `Named` and `Once`, and numbers likewise; empty loops are gone.

    used_names   names that no number gets
    numbers      that are needed after the turns, of what is known before them
    """
    function_scope = _LoopScope(names={*used_names})
    after = tuple(function_scope.number(number)[0] for number in numbers)
    function_scope.add(iterations)
    *before, last = function_scope.body
    assert isinstance(last, tree.ForLoop)
    return tuple(before), last, after


@dataclass
class _LoopScope:
    """The inside of an open loop: what is in it so far."""

    outer: _LoopScope | None = None
    still: tuple[str, ...] = ()
    depth: int = 0
    names: set[str] = field(default_factory=set)
    names_of_values: dict[Hashable, tree.NameExpression] = field(default_factory=dict)
    body: list[tree.CStatement] = field(default_factory=list)

    def _outwards(self) -> Iterator[_LoopScope]:
        yield self
        if self.outer:
            yield from self.outer._outwards()

    def _around(self, counter: str) -> _LoopScope:
        """The innermost loop in which it stands still."""
        return next(scope for scope in self._outwards() if counter in scope.still)

    def add(self, statement: tree.CStatement) -> None:
        if isinstance(statement, tree.ForLoop):
            inside = _LoopScope(self, statement.still, self.depth + 1)
            for part in statement.body:
                inside.add(part)
            if inside.body:
                self.body.append(replace(statement, body=tuple(inside.body)))
        elif isinstance(statement, tree.SimultaneousStores):
            self.body += [self._store(store) for store in statement.stores]
        elif isinstance(statement, tree.Store):
            self.body.append(self._store(statement))
        elif isinstance(statement, tree.Let) and statement.key is not None:
            self._let(statement, self)
        elif isinstance(statement, tree.Once):
            spec = self._around(statement.within)
            if statement.statement not in spec.body:
                spec.body.append(statement.statement)
        else:
            self.body.append(statement)

    def _store(self, store: tree.Store) -> tree.Store:
        value, _ = self.number(store.value)
        return replace(store, value=value, to=self.number(store.to)[0])

    def number(self, number: tree.Expression) -> tuple[tree.Expression, int]:
        """The number with names in it, and the depth of the innermost loop that it needs."""
        if isinstance(number, tree.LoopCounter):
            return number, self._around(number.text).depth
        if isinstance(number, tree.Named):
            return self._named(number)
        if isinstance(number, tree.Element | tree.OperationExpression | tree.CallExpression):
            parts = [self.number(part) for part in number.operands]
            depth = max((depth for _, depth in parts), default=0)
            return replace(number, operands=tuple(part for part, _ in parts)), depth
        return number, 0

    def _named(self, number: tree.Named) -> tuple[tree.Expression, int]:
        for scope in self._outwards():
            if number.key in scope.names_of_values:
                return scope.names_of_values[number.key], scope.depth
        value, depth = self.number(number.value)
        if number.within:
            depth = max(depth, self._around(number.within).depth)
        spec = next(scope for scope in self._outwards() if scope.depth == depth)
        return self._let(tree.Let(number.name, number.type, value, number.key), spec), depth

    def _let(self, let: tree.Let, spec: _LoopScope) -> tree.NameExpression:
        """A name that no open loop has."""
        used_names = set[str]().union(*(scope.names for scope in self._outwards()))
        name, number = let.name, 2
        while name in used_names:
            name, number = f"{let.name}_{number}", number + 1
        spec.names.add(name)
        spec.names_of_values[let.key] = tree.NameExpression(name)
        spec.body.append(replace(let, name=name, key=None))
        return spec.names_of_values[let.key]
