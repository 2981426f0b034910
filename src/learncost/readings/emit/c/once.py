"""What a kernel computes once: numbers get names, in the outermost loop that has all that they need."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace

from learncost.readings.emit.c import tree


@dataclass
class _Scope:
    """The inside of an open loop: what is in it so far."""

    outer: _Scope | None = None
    covers: tuple[str, ...] = ()
    depth: int = 0
    body: list[tree.Statement] = field(default_factory=list)
    known: dict[Hashable, tree.Variable | None] = field(default_factory=dict)

    def outwards(self) -> Iterator[_Scope]:
        yield self
        if self.outer:
            yield from self.outer.outwards()

    def around(self, counter: str) -> _Scope:
        """The innermost loop over it."""
        return next(scope for scope in self.outwards() if counter in scope.covers)


def computed_once(turns: tree.Turns, taken: Collection[str]) -> tuple[tuple[tree.Statement, ...], tree.Turns]:
    """What comes before all turns, and the turns without `Named` and `Once`; empty loops are gone.

    taken   names that no number gets
    """
    whole = _Scope()
    _Body(whole, taken).add(turns)
    *before, last = whole.body
    assert isinstance(last, tree.Turns)
    return tuple(before), last


@dataclass(frozen=True)
class _Body:
    scope: _Scope
    taken: Collection[str]

    def add(self, statement: tree.Statement) -> None:
        scope = self.scope
        if isinstance(statement, tree.Loop | tree.Turns):
            inside = _Scope(scope, statement.covers, scope.depth + 1)
            for one in statement.body:
                _Body(inside, self.taken).add(one)
            if inside.body:
                scope.body.append(replace(statement, body=tuple(inside.body)))
        elif isinstance(statement, tree.Together):
            scope.body += [self._store(store) for store in statement.stores]
        elif isinstance(statement, tree.Store):
            scope.body.append(self._store(statement))
        elif isinstance(statement, tree.Let) and statement.key is not None:
            self._let(scope, statement)
        elif isinstance(statement, tree.Once):
            home = scope.around(statement.within)
            if statement.key not in home.known:
                home.known[statement.key] = None
                home.body.append(statement.statement)
        else:
            scope.body.append(statement)

    def _store(self, store: tree.Store) -> tree.Store:
        value, _ = self._number(store.value)
        return replace(store, value=value, to=self._number(store.to)[0])

    def _number(self, number: tree.Expression) -> tuple[tree.Expression, int]:
        """The number with names in it, and the depth of the innermost loop that it needs."""
        if isinstance(number, tree.Counter):
            return number, self.scope.around(number.text).depth
        if isinstance(number, tree.Named):
            return self._named(number)
        if isinstance(number, tree.Element | tree.Operation | tree.Call):
            parts = [self._number(part) for part in number.operands]
            depth = max((depth for _, depth in parts), default=0)
            return replace(number, operands=tuple(part for part, _ in parts)), depth
        return number, 0

    def _named(self, number: tree.Named) -> tuple[tree.Expression, int]:
        for scope in self.scope.outwards():
            found = scope.known.get(number.key)
            if found:
                return found, scope.depth
        value, depth = self._number(number.value)
        if number.within:
            depth = max(depth, self.scope.around(number.within).depth)
        home = next(scope for scope in self.scope.outwards() if scope.depth == depth)
        return self._let(home, tree.Let(number.name, number.type, value, number.key)), depth

    def _let(self, home: _Scope, let: tree.Let) -> tree.Variable:
        """A name that no open loop has."""
        taken = {found.text for scope in self.scope.outwards() for found in scope.known.values() if found}
        name, number = let.name, 2
        while name in taken or name in self.taken:
            name, number = f"{let.name}_{number}", number + 1
        home.known[let.key] = tree.Variable(name)
        home.body.append(replace(let, name=name, key=None))
        return tree.Variable(name)
