"""The communication between the devices of a sharded step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learncost.autoshard.cut_sizes import CutSizes
from learncost.autoshard.held import StoredWeight
from learncost.autoshard.placed_step import ShardedStep, Walker
from learncost.ir.line import Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial
from learncost.ir.term import Term
from learncost.ir.value import INDICES
from learncost.ops.collectives import sends
from learncost.sharding.collective import sent_widths, widths_of


@dataclass(frozen=True)
class Sending:
    """A collective in terms of sizes: its op, mesh axis, payload bytes, pass and segment.

    iterations how often it runs each time, from the surrounding loops
    role    what it moves: weights, gradients, states, values or inputs
    rounds  whether it is a ring step that overlaps with the lines of its iteration
    copies  for rows sent to experts and back: the number of copies of each row
    """

    op: str
    mesh_axis: str
    payload: Polynomial
    iterations: Polynomial
    phase: str
    segment: int
    role: str
    line: str
    rounds: bool = False
    copies: Polynomial | None = None


def sendings(step: ShardedStep, sizes: CutSizes, held: Sequence[StoredWeight]) -> tuple[Sending, ...]:
    """Return the collectives of a step of one microbatch, in the order of the lines."""
    placed, table, result = step.placed, step.placed.table, []
    indices = {name for name, value in placed.whole.known.items() if value.role in INDICES}
    walker, width_of = Walker(step.blocks), sent_widths(placed, widths_of(step.kind))
    owners = {each.name: each.segments[0] for each in held}
    for line, nest in walk(table.lines):
        segment = walker.segment(line.meta.phase, nest.counts)
        if not sends(line):
            continue
        name = placed.holds.get(line.name, line.name)
        known = placed.whole.known.get(name)
        role, owner = step.specs.kind(name, known) if known else ("values", name)
        if line.meta.phase == "optimizer_step":
            segment = owners.get(owner, segment)
        sides = [term.declared for term in (line.left[0], line.right[0]) if isinstance(term, Term)]
        result.append(
            Sending(
                line.op,
                line.axes[0],
                Polynomial.of(_larger(sides), width_of(line.name, role)),
                Polynomial.of(nest.counts),
                line.meta.phase,
                segment,
                role,
                line.name,
                bool(sizes.ring_steps.intersection(nest.counts)),
                _copies(line) if role not in INDICES and name not in indices else None,
            )
        )
    return tuple(result)


def _copies(line: Op) -> Polynomial | None:
    """Return the copies of each routed row: the last axis of the routing index."""
    if line.op not in ("dispatch", "combine"):
        return None
    choice = line.right[-1]
    return Polynomial.of(choice.declared[-1:]) if isinstance(choice, Term) else None


def _larger(sides: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the less sharded side of a collective."""
    return min(sides, key=lambda axes: sum(axis.count("/") for axis in axes))
