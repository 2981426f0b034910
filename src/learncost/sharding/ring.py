"""Ring attention and its generalization: shards rotate between devices, one per iteration, instead of being gathered.

A gathered array is then never stored in full: a device has its own shard, and in each of p - 1 iterations it receives
the shard that the previous device had. Sums accumulate over iterations. For a softmax over the rotating axis, a device
carries the running maximum of the scores and the sum of the exponentials below it, by which it rescales its sums
(Milakov & Gimelshein 2018, Online normalizer calculation for softmax; Liu, Zaharia & Abbeel 2023, Ring attention). The
backward pass uses the logarithm of that sum from the forward pass, and the gradients of rotating shards rotate with
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.passes.rematerialization import pairs
from learncost.sharding.clauses import kind_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.ring_regions import RingRegion, regions
from learncost.sharding.ring_rounds import Rounds
from learncost.sharding.ring_step import Normalizer, Ring


def ringed(placed: Table, whole: Table, mesh: Mesh, holds: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """Return a sharded table with its rings, and the values that the results of collectives hold.

    Raises `InputError` if no shard can rotate.
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
    """The lines of a scope while they are rewritten.

    frame     the loop around them; outer, the scope of that loop
    before    the forward iterations that these iterations reverse
    children  the scopes of its loops, by their `id`
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
        """Return the values of the enclosing scopes."""
        return {**self.outer.around, **self.outer.values} if self.outer is not None else {}

    def slice_of(self, name: str) -> None:
        """Pass a value of the forward iterations to the backward iterations."""
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
        """Make a value available here, from these lines or from the forward iterations."""
        if name not in self.values:
            self.slice_of(name)

    def assembled(self) -> tuple[Statement, ...]:
        """Return its lines with the current loops."""
        result: list[Statement] = []
        for line in self.lines:
            child = self.children.get(id(line))
            if child is not None and child.frame is not None:
                result.append(replace(child.frame, lines=child.assembled(), values=child.values))
            else:
                result.append(line)
        return tuple(result)


class _Rings:
    """The rewriting of a sharded table into one with rings.

    gathered  softmaxes whose regions remain gathered, and the reason: their backward pass cannot be a ring
    stays     those that this rewriting found
    """

    def __init__(self, whole: Table, mesh: Mesh, holds: Mapping[str, str], gathered: Mapping[str, str]) -> None:
        self.whole, self.mesh, self.holds, self.gathered = whole, mesh, {**holds}, gathered
        self.stays: dict[str, str] = {}
        self.taken: set[str] = {*whole.known}
        self.number, self.why = 0, ""

    def table(self, placed: Table) -> Table:
        """Return the table with all possible rings. Raises `InputError` if there is none."""
        self.taken |= {*placed.known} | {name for line, _ in walk(placed.lines) for name in line.makes}
        scope = _RingScope([*placed.lines], {**placed.values})
        self.scope(scope)
        is_pass = any(line.meta.phase == "forward" for line, _ in walk(self.whole.lines))
        if not self.number and not self.stays and is_pass and self.mesh.devices > 1:
            raise InputError(
                f"the plan ring finds no sharded sum over {self.mesh}: "
                + (self.why or "no line sums over gathered keys (--placement cp gathers them)")
            )
        return replace(placed, lines=scope.assembled(), values=scope.values)

    def scope(self, scope: _RingScope) -> None:
        """Rewrite the lines of a scope and of its loops."""
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
        """Rewrite the regions of a scope over a mesh axis."""

        def is_value(name: str) -> bool:
            value_name = self.holds.get(name, name)
            return kind_of(self.whole, value_name, self.whole.known.get(value_name, Value(())))[0] == "values"

        for region in regions(scope.lines, mesh_axis, is_value):
            self.region(scope, region)

    def region(self, scope: _RingScope, region: RingRegion) -> None:
        kept = {name for name, _ in scope.frame.keep} if scope.frame else set[str]()
        kept |= {carry.end for carry in scope.frame.carry} if scope.frame else set()
        if left := sorted(kept & {*region.at, *region.rows}):
            region.why = region.why or f"iterations save or carry {left[0]}"
        normalizers = scope.before.normalizers if scope.before else {}
        why = next((self.gathered[name] for line in region.lines for name in line.makes if name in self.gathered), "")
        region.why = region.why or why
        parts = region.split(scope.lines, normalizers) if not region.why else (region,)
        lines, values, holds = [*scope.lines], {**scope.values}, {**self.holds}
        sums = dict(normalizers) if len(parts) == 1 else {}
        for place, part in enumerate(parts):
            others = [line for each in parts[place + 1 :] for line in each.lines]
            if why := self.ring(scope, part, sums, values, others):
                scope.lines[:], scope.values, self.holds = lines, values, holds
                self.stay(why, region, normalizers)
                return
            if others:
                sums = {**normalizers} | {name: scope.normalizers[twin] for name, twin in parts[-1].shares.items()}

    def ring(
        self,
        scope: _RingScope,
        region: RingRegion,
        normalizers: Mapping[str, Normalizer],
        known: Mapping[str, Value],
        others: Sequence[Line],
    ) -> str:
        """Make a ring of a region; return the reason if that is impossible, otherwise "".

        known   the values of the scope before its first ring
        others  lines of a later ring, which computes what they read of this one again
        """
        order = _order(scope.lines, region) if not region.why else None
        if order is None:
            return region.why
        before, after = order
        known = {**known, **scope.values}
        work = Ring(
            region,
            self.mesh.sizes[region.mesh_axis],
            known={**scope.around, **known},
            before={**(scope.before.values if scope.before else {}), **known},
            whole=self.whole.known,
            holds=self.holds,
            fresh=self.fresh,
        )
        lines = Rounds(work, normalizers, scope.have if region.shares else scope.slice_of).lines()
        gone = {*region.at, *region.rows} - work.values.keys()
        for line in (*before, *after):
            if gone & {*line.reads} - region.gathers.keys() and not any(line is each for each in others):
                region.refuse(line, "it reads an array that no device has in full")
        if region.why:
            return region.why
        self.number += 1
        scope.normalizers |= work.normalizers
        scope.lines[:] = [*before, *lines, *after]
        scope.values = {name: value for name, value in scope.values.items() if name not in gone} | work.values
        self.holds |= work.holds
        return ""

    def stay(self, why: str, region: RingRegion, normalizers: Mapping[str, Normalizer]) -> None:
        """Record why a region remains gathered, and which regions of the forward pass must too."""
        self.why = self.why or why
        self.stays |= {name: why for line in region.lines for name in line.makes if name in normalizers}

    def fresh(self, name: str, what: str) -> str:
        """Return a name for a value that a ring derives from another."""
        number, new = 1, f"{name}.{what}"
        while new in self.taken:
            number += 1
            new = f"{name}.{what}.{number}"
        self.taken.add(new)
        return new


def _order(lines: Sequence[Statement], region: RingRegion) -> tuple[list[Statement], list[Statement]] | None:
    """Return the other lines, split into those before the ring and those behind it; None if a line is both."""
    ours: list[Statement] = [*region.gathers.values(), *region.lines, *region.scatters.values()]
    last = max(place for place, line in enumerate(lines) if any(line is each for each in ours))
    before: list[Statement] = []
    after: list[Statement] = []
    made = set(region.makes)
    free = {*region.rows, *(line.name for line in region.scatters.values())}
    for place, line in enumerate(lines):
        if any(line is each for each in ours):
            if not isinstance(line, Loop) and made & {*line.reads} - free:
                region.refuse(line, "it reads totals of all shards, which would need a second rotation")
                return None
        elif place > last or made & {*line.reads}:
            after.append(line)
            made |= {*line.makes}
        else:
            before.append(line)
    return before, after
