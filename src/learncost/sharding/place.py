"""Shard a step's table over a mesh: derive the table of every device, with the collectives that its layouts need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.names import scores
from learncost.ops.collectives import is_collective
from learncost.passes.plan import plan_of
from learncost.passes.rematerialization import joined, pairs
from learncost.sharding.check import check_placed
from learncost.sharding.clauses import Clause, ShardSpecs
from learncost.sharding.layout import ShardLayout
from learncost.sharding.mesh import Mesh
from learncost.sharding.padding import check_filled
from learncost.sharding.ring import with_rings
from learncost.sharding.scope import CollectiveReason, ShardingScope, readers
from learncost.sharding.zigzag import Zigzag, in_zigzag


def keeping(table: Table, ops: tuple[str, ...]) -> tuple[Table, Mapping[str, str]]:
    """Return a sharded table that saves the results of these collectives, and the arrays that its new stacks
    contain."""
    lines, values = list(table.lines), dict(table.values)
    for (before, first), (after, second), elsewhere in pairs(table.lines, table.outputs) if ops else ():
        # The stacks that each loop reads slices from or collects, by the names of the slices.
        sources = [
            {name: stack for name, stack in (*loop.each, *loop.keep) if not loop.part(name, table.known[stack].axes)}
            for loop in (first, second)
        ]
        made = {key: line.makes[0] for line in first.lines if (key := _source(line, ops, sources[0]))}
        again = {line.makes[0]: made[key] for line in second.lines if (key := _source(line, ops, sources[1])) in made}
        left = [line.renamed(again) for line in second.lines if again.keys().isdisjoint(line.makes)]
        lines[before], lines[after] = joined(first, second, first.lines, left, elsewhere, values, {**first.values})
    read = {name for line in lines for name in line.reads} | {*table.outputs}
    thinner = [_without_unread(line, read) for line in lines]
    stacks = {name: value.of for name, value in values.items() if name not in table.values}
    return replace(table, lines=tuple(thinner), values=values), stacks


Source: TypeAlias = "tuple[str, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]"
"""A key of a collective in an iteration: its op, its axes, the stacks that its operands are slices of, its result's
axes."""


def _source(line: Statement, ops: tuple[str, ...], stacks: Mapping[str, str]) -> Source | None:
    """Return the key of a collective in an iteration if all of its operands are slices of stacks; otherwise None."""
    if not is_collective(line) or line.op not in ops:
        return None
    operands = [term for term in line.right if isinstance(term, Term)]
    if any(term.name not in stacks for term in operands):
        return None
    of = tuple((stacks[term.name], term.declared) for term in operands)
    return line.op, line.axes, of, line.left[0].declared


def _without_unread(line: Statement, read: set[str]) -> Statement:
    """Return a loop without outputs that are never read."""
    if not isinstance(line, Loop):
        return line
    return replace(line, keep=tuple(pair for pair in line.keep if pair[1] in read))


@dataclass(frozen=True)
class Placed:
    """The sharded table, which every device of a mesh runs.

    Attributes
    ----------
    table
        Its lines, with axes such as `f/tp` and collectives as ops.
    whole
        The unsharded table.
    mesh, clauses
        The mesh and the clauses that shard it.
    layouts
        The layouts of the arrays of the outermost scope, by name.
    holds
        The value of the unsharded table that each result of a collective holds, in every scope.
    iterations, first
        For a pipeline stage: its number of iterations of each loop, by loop count, and the first of them.
    undivided
        By mesh axis, the weights that it cannot shard, as they are single numbers.
    filled
        The padded sizes of shards that are not divisible, `d/dp`: those of the first device.
    zigzag
        The axes in zigzag order, with the mesh axes that shard them.
    """

    table: Table
    whole: Table
    mesh: Mesh
    clauses: tuple[Clause, ...]
    layouts: Mapping[str, ShardLayout]
    holds: Mapping[str, str]
    iterations: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)
    undivided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    filled: Mapping[str, int] = field(default_factory=dict)
    zigzag: Zigzag = field(default_factory=dict)

    @cached_property
    def scores(self) -> frozenset[str]:
        """Return the operands and results of log-softmax and its gradient over a sharded vocabulary, including values
        of bodies."""
        of_scores = scores(self.whole)
        for line, _ in walk(self.table.lines):
            if not of_scores.isdisjoint(line.reads):
                of_scores |= {name for name in line.makes if name not in self.whole.known and name not in self.holds}
        return frozenset(of_scores)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the additional sizes of its table: of the mesh, of iterations, and of padded shards."""
        return {**self.iterations, **self.mesh.sizes, **self.filled}

    def sizes_at(self, where: Mapping[str, int]) -> dict[str, int]:
        """Return the additional sizes of its table, with the coordinates of a device on the mesh."""
        return {**self.sizes, **self.mesh.sizes_at(where)}


def place(
    table: Table,
    mesh: Mesh,
    chosen: Iterable[Clause],
    sizes: Mapping[str, int],
    part_of: Table | None = None,
    like: ShardSpecs | None = None,
    plan: str = "",
) -> Placed:
    """Return the table of each device of a mesh.

    sizes    global sizes of all axes, which the clauses must divide
    part_of, like  as in `ShardSpecs`
    plan     that of the step, of which `ring`, `keep` and `zigzag` say how it is sharded
    Raises `InputError` if an axis is not divisible, with the next size that is, and if dependent iterations of a
    loop would be sharded.
    """
    chosen = tuple(chosen)
    scope = ShardingScope(ShardSpecs(table, mesh, chosen, sizes, part_of, like), table.values)
    scope.readers = readers(table.lines, table.outputs)
    for name in (*table.inputs, *table.weights):
        scope.give(name, scope.spec(name))
    scope.statements(table.lines)
    results = {name: scope.at(name, scope.spec(name), CollectiveReason(8, None)) for name in table.outputs}
    moved = {name: array for name, array in results.items() if array != name}
    if set(moved.values()) & {*table.inputs, *table.weights}:
        raise InputError("a result of the step is one of its inputs after a collective, and has no name")
    names = {name: scope.fresh(name, "made") for name in moved} | {array: name for name, array in moved.items()}
    placed = replace(
        table,
        lines=tuple(line.renamed(names) for line in scope.out),
        values={names.get(name, name): value for name, value in scope.placed.items()},
    )
    holds = {names.get(array, array): name for array, name in scope.holds.items()}
    plans = {each.name: arguments for each, arguments in plan_of(plan)}
    if "ring" in plans:
        placed, holds = with_rings(placed, table, mesh, holds)
    placed, stacks = keeping(placed, plans.get("keep", ()))
    placed, zigzag = in_zigzag(placed, mesh, sizes) if "zigzag" in plans else (placed, {})
    check_placed(placed, (pair for pair in mesh.axes if pair[1] > 1))
    undivided, filled = scope.specs.undivided(), dict(scope.specs.filled)
    if filled:
        check_filled(placed, filled)
    layouts = {names.get(name, name): held for name, held in scope.layouts.items()}
    holds |= {stack: holds.get(array, array) for stack, array in stacks.items()}
    return Placed(placed, table, mesh, chosen, layouts, holds, undivided=undivided, filled=filled, zigzag=zigzag)
