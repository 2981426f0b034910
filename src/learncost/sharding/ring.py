"""Ring attention and its generalization: shards rotate between devices, one per iteration, instead of being gathered.

A gathered array is then never stored in full: a device has its own shard, and in each of p - 1 iterations it receives
the shard that the previous device had. Sums accumulate over iterations. For a softmax over the rotating axis, a device
carries the running maximum of the scores and the sum of the exponentials below it, by which it rescales its sums
(Milakov & Gimelshein 2018, Online normalizer calculation for softmax; Liu, Zaharia & Abbeel 2023, Ring attention). The
backward pass uses the logarithm of that sum from the forward pass, and the gradients of rotating shards rotate with
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.ops import is_softmax
from learncost.passes.rematerialization import joined, pairs
from learncost.sharding.clauses import kind_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.ring_lines import Normalizer, RingLines
from learncost.sharding.ring_regions import RingError, RingRegion, refuse, regions
from learncost.sharding.scope import unused


def with_rings(placed: Table, whole: Table, mesh: Mesh, holds: Mapping[str, str]) -> tuple[Table, dict[str, str]]:
    """Return a sharded table with its rings, and the values that the results of collectives hold.

    Raises `InputError` if no shard can rotate.
    """
    gathered: dict[str, str] = {}
    while True:
        rings = _Rings(whole, mesh, holds, gathered)
        table = rings.table(placed)
        if not rings.stays:
            return table, rings.holds
        gathered |= rings.stays


@dataclass(eq=False)
class _RingScope:
    """The lines of a scope while they are rewritten.

    around  the values of the enclosing scopes
    leaves  the names that leave an iteration
    before  the forward iterations that these iterations reverse
    """

    lines: list[Statement]
    values: dict[str, Value]
    around: Mapping[str, Value] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    before: _RingScope | None = None
    normalizers: dict[str, Normalizer] = field(default_factory=dict)


class _Rings:
    """The rewriting of a sharded table into one with rings.

    gathered  softmaxes whose regions remain gathered, and why their backward pass cannot be a ring
    stays     those that this rewriting found
    """

    def __init__(self, whole: Table, mesh: Mesh, holds: Mapping[str, str], gathered: Mapping[str, str]) -> None:
        self.whole, self.mesh, self.holds, self.gathered = whole, mesh, {**holds}, gathered
        self.stays: dict[str, str] = {}
        self.taken = {*whole.known}
        self.number, self.why = 0, ""

    def table(self, placed: Table) -> Table:
        """Return the table with all possible rings. Raises `InputError` if there is none."""
        self.taken |= {*placed.known}
        values = {**placed.values}
        scope = self.scope(_RingScope(self.loops(placed.lines, values, {}, placed.outputs), values))
        is_pass = any(line.meta.phase == "forward" for line, _ in walk(self.whole.lines))
        if not self.number and not self.stays and is_pass and self.mesh.devices > 1:
            raise InputError(
                f"the plan ring finds no sharded sum over {self.mesh}: "
                + (self.why or "no line sums over gathered keys (--placement cp gathers them)")
            )
        return replace(placed, lines=tuple(scope.lines), values=scope.values)

    def loops(
        self, lines: Sequence[Statement], values: dict[str, Value], around: Mapping[str, Value], outputs: Iterable[str]
    ) -> list[Statement]:
        """Return the lines of a scope with rings in its loops; new stacks of its loops are added to `values`."""
        result, inside = [*lines], {**around, **values}
        alone = {place: loop for place, loop in enumerate(lines) if isinstance(loop, Loop)}
        for (before, forward), (after, reverse), elsewhere in pairs(lines, outputs):
            if not {before, after} <= alone.keys():
                continue
            del alone[before], alone[after]
            both, stacks = {**inside, **reverse.values, **forward.values}, dict[str, Value]()
            inner = self.loops((*forward.lines, *reverse.lines), stacks, both, {*forward.ends, *reverse.ends})
            place = len(forward.lines)
            first = self.scope(_RingScope(inner[:place], {**stacks, **forward.values}, inside, forward.ends))
            second = self.scope(_RingScope(inner[place:], {**reverse.values}, inside, reverse.ends, first))
            reverse = replace(reverse, values=second.values)
            result[before], result[after] = joined(
                forward, reverse, tuple(first.lines), second.lines, elsewhere, values, first.values
            )
        for place, loop in alone.items():
            own = {**loop.values}
            scope = _RingScope(self.loops(loop.lines, own, inside, loop.ends), own, inside, loop.ends)
            result[place] = replace(loop, lines=tuple(self.scope(scope).lines), values=scope.values)
        return result

    def scope(self, scope: _RingScope) -> _RingScope:
        """Rewrite the regions of a scope, outside of its loops, over every mesh axis."""

        def is_value(name: str) -> bool:
            value_name = self.holds.get(name, name)
            return kind_of(self.whole, value_name, self.whole.known.get(value_name, Value(())))[0] == "values"

        for mesh_axis in (name for name, size in self.mesh.axes if size > 1):
            for region in regions(scope.lines, mesh_axis, is_value):
                normalizers = scope.before.normalizers if scope.before else {}
                lines, values, holds = [*scope.lines], {**scope.values}, {**self.holds}
                try:
                    self.region(scope, region, normalizers)
                except RingError as reason:
                    scope.lines[:], scope.values, self.holds = lines, values, holds
                    if any(is_softmax(line) and line.axes == (region.axis(line),) for line in region.body):
                        self.why = self.why or str(reason)
                    self.stays |= {n: str(reason) for line in region.lines for n in line.makes if n in normalizers}
        return scope

    def region(self, scope: _RingScope, region: RingRegion, normalizers: Mapping[str, Normalizer]) -> None:
        """Make the rings of a region, if its lines sum over the gathered axis. Raises `RingError`."""
        region.read()
        if not region.totals:
            return
        if left := sorted({*scope.leaves} & {*region.at, *region.rows}):
            raise RingError(f"iterations save or carry {left[0]}")
        for name in (name for line in region.lines for name in line.makes if name in self.gathered):
            raise RingError(f"the gradient of {name} has to be gathered, since {self.gathered[name]}")
        for part in region.split(normalizers):
            twins = {name: scope.normalizers[twin] for name, twin in part.shares.items()}
            self.ring(scope, part, {**normalizers, **twins})

    def ring(self, scope: _RingScope, region: RingRegion, normalizers: Mapping[str, Normalizer]) -> None:
        """Make a ring of a region. Raises `RingError`."""
        before, after = _order(scope.lines, region)
        work = RingLines(
            region,
            self.mesh.sizes[region.mesh_axis],
            known={**scope.around, **scope.values},
            before={**(scope.before.values if scope.before else {}), **scope.values},
            whole=self.whole.known,
            holds=self.holds,
            fresh=self.fresh,
            forward=normalizers,
        )
        lines = work.lines()
        gone = {*region.at, *region.rows} - work.values.keys()
        for line in (*before, *after):
            if gone & {*line.reads} - region.gathers.keys():
                refuse(line, "it reads an array that no device has in full")
        self.number += 1
        scope.normalizers |= work.normalizers
        scope.lines[:] = [*before, *lines, *after]
        scope.values = {name: value for name, value in scope.values.items() if name not in gone} | work.values

    def fresh(self, name: str, what: str) -> str:
        """Return a name for a value that a ring derives from another."""
        new = unused(f"{name}.{what}", self.taken.__contains__)
        self.taken.add(new)
        return new


def _order(lines: Sequence[Statement], region: RingRegion) -> tuple[list[Statement], list[Statement]]:
    """Return the other lines, split into those before the ring and those behind it. Raises `RingError`."""
    ours = {id(line) for line in region.lines}
    last = max(place for place, line in enumerate(lines) if id(line) in ours)
    before: list[Statement] = []
    after: list[Statement] = []
    made = set(region.makes)
    free = {*region.rows, *(line.name for line in region.scatters.values())}
    for place, line in enumerate(lines):
        if id(line) in ours:
            if made & {*line.reads} - free:
                refuse(line, "it reads totals of all shards, which would need a second rotation")
        elif place > last or made & {*line.reads}:
            after.append(line)
            made |= {*line.makes}
        else:
            before.append(line)
    return before, after
