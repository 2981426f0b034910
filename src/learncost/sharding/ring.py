"""Rings: where lines sum over what is gathered, its parts go round the devices instead, one in every turn.

What a gather brings together lies nowhere as a whole: a device has its own part, and in each of p - 1 turns that of the
device before the one that it had. Sums go on from turn to turn. Of a softmax over what goes round a device carries the
largest score so far and the sum of the exponentials below it, by which it rescales what it has summed (Milakov &
Gimelshein 2018, Online normalizer calculation for softmax; Liu, Zaharia & Abbeel 2023, Ring attention). The backward
pass has the logarithm of that sum from the forward pass, and gradients of what goes round travel with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.passes.rematerialization import pairs
from learncost.sharding.clauses import kind_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.ring_regions import RingRegion, regions
from learncost.sharding.ring_rounds import Rounds
from learncost.sharding.ring_turn import Normalizer, Ring
from learncost.sharding.ring_twice import in_two


def ringed(placed: Table, whole: Table, mesh: Mesh, holds: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """A placed table with its rings, and of the arrays that collectives make the values that they hold.

    Raises `InputError` where nothing can go round.
    """
    gathered: dict[str, str] = {}
    while True:
        rings = _Rings(whole, mesh, holds, gathered)
        table, stays = rings.table(placed), rings.stays
        if not stays:
            return table, rings.holds
        gathered |= stays


@dataclass(eq=False)
class _RingScope:
    """Lines of a scope while it is rewritten.

    frame     the repeat whose turns they are, and outer, the scope that it stands in
    before    the turns of the pass before that these go backwards through
    children  the scopes of its repeats, by what `id` says of these
    """

    lines: list[Statement]
    values: dict[str, Value]
    frame: Loop | None = None
    outer: _RingScope | None = None
    before: _RingScope | None = None
    children: dict[int, _RingScope] = field(default_factory=dict)
    normalizers: dict[str, Normalizer] = field(default_factory=dict)

    @property
    def around(self) -> dict[str, Value]:
        """Values of the scopes that it stands in."""
        return {**self.outer.around, **self.outer.values} if self.outer is not None else {}

    def slice_of(self, name: str) -> None:
        """Have a value of the turns before in the turns backwards."""
        before = self.before
        assert self.frame is not None
        assert before is not None
        assert before.frame is not None
        if name in dict(self.frame.each):
            return
        stack = dict(before.frame.keep).get(name, f"{name}*")
        if name not in dict(before.frame.keep):
            assert before.outer is not None
            before.outer.values[stack] = Value((before.frame.count, *before.values[name].axes), "kept", name)
            before.frame = replace(before.frame, keep=(*before.frame.keep, (name, stack)))
        if self.outer is not None and self.outer is not before.outer:
            self.outer.slice_of(stack)
        self.values[name] = before.values[name]
        self.frame = replace(self.frame, each=(*self.frame.each, (name, stack)))

    def have(self, name: str) -> None:
        """Have a value here, of these lines or of the turns before."""
        if name not in self.values:
            self.slice_of(name)

    def assembled(self) -> tuple[Statement, ...]:
        """Its lines with all repeats as they are now."""
        result: list[Statement] = []
        for line in self.lines:
            child = self.children.get(id(line))
            if child is not None and child.frame is not None:
                result.append(replace(child.frame, lines=child.assembled(), values=child.values))
            else:
                result.append(line)
        return tuple(result)


class _Rings:
    """A placed table while it gets its rings.

    gathered  softmaxes whose regions stay as they are, and why: their backward pass cannot go round
    stays     those that were found to be so
    """

    def __init__(self, whole: Table, mesh: Mesh, holds: Mapping[str, str], gathered: Mapping[str, str]) -> None:
        self.whole, self.mesh, self.holds, self.gathered = whole, mesh, {**holds}, gathered
        self.stays: dict[str, str] = {}
        self.taken: set[str] = {*whole.known}
        self.number, self.why = 0, ""

    def table(self, placed: Table) -> Table:
        """The table with every ring that there is. Raises `InputError` where there is none."""
        self.taken |= {*placed.known} | {name for line, _ in walk(placed.lines) for name in line.makes}
        scope = _RingScope([*placed.lines], {**placed.values})
        self.scope(scope)
        is_pass = any(line.meta.phase == "forward" for line, _ in walk(self.whole.lines))
        if not self.number and not self.stays and is_pass and self.mesh.devices > 1:
            raise InputError(
                f"the plan ring finds nothing over {self.mesh} that can go round: "
                + (self.why or "no line sums over keys that are gathered (--placement cp gathers them)")
            )
        return replace(placed, lines=scope.assembled(), values=scope.values)

    def scope(self, scope: _RingScope) -> None:
        """Rewrite the lines of a scope, and those of its repeats."""
        earlier = scope.before.lines if scope.before else []
        around: list[Statement] = [*earlier, *scope.lines]
        scopes = {**scope.children, **(scope.before.children if scope.before else {})}
        before = {id(second): id(first) for (_, first), (_, second), _ in pairs(around, ())}
        for line in scope.lines:
            if isinstance(line, Loop):
                child = _RingScope([*line.lines], {**line.values}, line, scope, scopes.get(before.get(id(line), 0)))
                scope.children[id(line)] = scopes[id(line)] = child
                self.scope(child)
        for mesh_axis, size in self.mesh.axes:
            if size > 1:
                self.over(scope, mesh_axis)

    def over(self, scope: _RingScope, mesh_axis: str) -> None:
        """Rewrite the regions of a scope over an axis of the mesh."""

        def is_value(name: str) -> bool:
            value_name = self.holds.get(name, name)
            return kind_of(self.whole, value_name, self.whole.known.get(value_name, Value(())))[0] == "values"

        for region in regions(scope.lines, mesh_axis, is_value):
            self.region(scope, region)

    def region(self, scope: _RingScope, region: RingRegion) -> None:
        kept = {name for name, _ in scope.frame.keep} if scope.frame else set[str]()
        kept |= {carry.end for carry in scope.frame.carry} if scope.frame else set()
        if left := sorted(kept & {*region.at, *region.rows}):
            region.why = region.why or f"turns keep {left[0]} or hand it on"
        normalizers = scope.before.normalizers if scope.before else {}
        why = next((self.gathered[name] for line in region.lines for name in line.makes if name in self.gathered), "")
        region.why = region.why or why
        twice = in_two(region, scope.lines, normalizers, self.fresh) if not region.why else None
        if twice is None:
            if why := self.ring(scope, region, normalizers, scope.slice_of):
                self.stay(why, region, normalizers)
            return
        lines, values, holds = [*scope.lines], {**scope.values}, {**self.holds}
        scope.lines[:] = twice.lines
        scope.values |= {copy: scope.values[name] for copy, name in twice.copies.items()}
        self.holds |= {copy: self.holds.get(name, name) for copy, name in twice.copies.items()}
        shared = {name: scope.values[name] for name in twice.second.at}
        if not (why := self.ring(scope, twice.first, {}, scope.slice_of)):
            scope.values |= shared
            sums = {name: scope.normalizers[first] for name, first in twice.shares.items()}
            why = self.ring(scope, twice.second, {**normalizers, **sums}, scope.have)
        if why:
            scope.lines[:], scope.values, self.holds = lines, values, holds
            self.stay(why, region, normalizers)

    def ring(
        self,
        scope: _RingScope,
        region: RingRegion,
        normalizers: Mapping[str, Normalizer],
        slice_of: Callable[[str], None],
    ) -> str:
        """Make a ring of a region; why that cannot be, else nothing."""
        order = _order(scope.lines, region) if not region.why else None
        if order is None:
            return region.why
        before, after = order
        work = Ring(
            region,
            self.mesh.sizes[region.mesh_axis],
            known=scope.values,
            before={**(scope.before.values if scope.before else {}), **scope.values},
            whole=self.whole.known,
            holds=self.holds,
            fresh=self.fresh,
            around=scope.around,
        )
        lines = Rounds(work, normalizers, slice_of).lines()
        gone = {*region.at, *region.rows} - work.values.keys()
        for line in (*before, *after):
            if gone & {*line.reads} - region.gathers.keys():
                work.refuse(line, "it reads what no device has as a whole")
        if work.why:
            return work.why
        self.number += 1
        scope.normalizers |= work.normalizers
        scope.lines[:] = [*before, *lines, *after]
        scope.values = {name: value for name, value in scope.values.items() if name not in gone} | work.values
        self.holds |= work.holds
        return ""

    def stay(self, why: str, region: RingRegion, normalizers: Mapping[str, Normalizer]) -> None:
        """Note why a region stays as it is, and which of the pass before it has to stay with it."""
        self.why = self.why or why
        self.stays |= {name: why for line in region.lines for name in line.makes if name in normalizers}

    def fresh(self, name: str, what: str) -> str:
        """A name for what a ring makes of a value."""
        number, new = 1, f"{name}.{what}"
        while new in self.taken:
            number += 1
            new = f"{name}.{what}.{number}"
        self.taken.add(new)
        return new


def _order(lines: Sequence[Statement], region: RingRegion) -> tuple[list[Statement], list[Statement]] | None:
    """The other lines before the ring, and those behind it, as they read what it makes; None where both are so."""
    ours: list[Statement] = [*region.gathers.values(), *region.lines, *region.scatters.values()]
    last = max(place for place, line in enumerate(lines) if any(line is each for each in ours))
    before: list[Statement] = []
    after: list[Statement] = []
    made = set(region.makes)
    free = {*region.rows, *(line.name for line in region.scatters.values())}
    for place, line in enumerate(lines):
        if any(line is each for each in ours):
            if not isinstance(line, Loop) and made & {*line.reads} - free:
                region.refuse(line, "it reads what all parts make together, so that they would go round twice")
                return None
        elif place > last or made & {*line.reads}:
            after.append(line)
            made |= {*line.makes}
        else:
            before.append(line)
    return before, after
