"""The costs of one microbatch of a sharded step on a device, by segments of the model, as polynomials in all sizes.

They are derived once per sharding; the sizes of the mesh and of the stages are substituted afterwards. The
communication between its devices is the list of its collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from learncost.autoshard.passes import MicrobatchPasses, StepWeights, StoredWeight
from learncost.autoshard.placed_step import ShardedSizes, ShardedStep, StagePart, StepConfig, Walker, placed_step
from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import INDICES
from learncost.models.model import Model
from learncost.ops.collectives import is_collective, sends
from learncost.program.checkpoints import RecomputedIterations, fewer_recomputed
from learncost.sharding.collective import sent_widths, widths_of
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed
from learncost.timing.predict import parts as seconds_of
from learncost.timing.rates import Rates
from learncost.timing.work import WorkAxes, works_axes


@dataclass(frozen=True)
class SymbolicCollective:
    """A collective in terms of sizes: its op, mesh axis, payload bytes, pass and segment.

    iterations how often it runs each time, from the surrounding loops
    role    what it moves: weights, gradients, states, values or inputs
    place   the number of the line
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
    place: int
    rounds: bool = False
    copies: Polynomial | None = None


def sendings(step: ShardedStep, sizes: ShardedSizes, held: Sequence[StoredWeight]) -> tuple[SymbolicCollective, ...]:
    """Return the collectives of a step of one microbatch, in the order of the lines."""
    placed, table, result = step.placed, step.placed.table, []
    indices = {name for name, value in placed.whole.known.items() if value.role in INDICES}
    walker, width_of = Walker(step.blocks), sent_widths(placed, widths_of(step.kind))
    owners = {each.name: each.segments[0] for each in held}
    for number, (line, nest) in enumerate(walk(table.lines)):
        segment = walker.segment(line.meta.phase, nest.counts)
        if not sends(line):
            continue
        name = placed.holds.get(line.name, line.name)
        known = placed.whole.known.get(name)
        role, owner = step.specs.kind(name, known) if known else ("values", name)
        if line.meta.phase == "optimizer_step":
            segment = owners.get(owner, segment)
        sides = [term.declared for term in (line.left[0], line.right[0]) if isinstance(term, Term)]
        larger = min(sides, key=lambda axes: sum(axis.count("/") for axis in axes))  # the less sharded one
        result.append(
            SymbolicCollective(
                line.op,
                line.axes[0],
                Polynomial.of(larger, width_of(line.name, role)),
                Polynomial.of(nest.counts),
                line.meta.phase,
                segment,
                role,
                number,
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


PASSES = {"forward": "F", "recomputation": "B", "backward": "B", "weight_update": "W", "optimizer_step": "O"}
"""Phases by pipeline pass; O is the optimizer, once per step."""


class SegmentPass(NamedTuple):
    """The key of a time: the segment, the letter of the pass, whether it is in ring iterations, and the place of a line
    that not all iterations of its segment have; else -1.
    """

    segment: int
    letter: str
    rounds: bool = False
    place: int = -1


class MeshAccount:
    """The costs of a sharded step.

    model      its table is that of one device; `config` says how it is sharded over axes of `mesh`
    sizes      of a step of one microbatch, all devices together
    table      of one device, for a pass of inference; by default that of the step

    Attributes: `sizes`, the sharded sizes; `weights`, the static memory; `passes`, the memory of a microbatch.
    """

    def __init__(
        self, model: Model, sizes: Mapping[str, int], mesh: Mesh, config: StepConfig, table: Table | None = None
    ) -> None:
        self.given = sizes
        self.step = placed_step(model, sizes, mesh, config, table)
        self.sizes = ShardedSizes(self.step)
        self.weights = StepWeights(self.step, self.sizes)
        self.passes = MicrobatchPasses(self.step, self.sizes)
        self._fewer: dict[StagePart | None, dict[int, RecomputedIterations]] = {}
        self._works: dict[tuple[str, bool, tuple[str, ...]], tuple[WorkAxes, ...]] = {}

    @cached_property
    def sendings(self) -> tuple[SymbolicCollective, ...]:
        """Return the collectives of a step of one microbatch, in the order of the lines."""
        return sendings(self.step, self.sizes, self.weights.held)

    @cached_property
    def rows(self) -> tuple[PricedLine, ...]:
        """Return the priced lines of the placed step."""
        return price(self.step.placed.table, {}, book("run")).rows

    def fewer(self, part: StagePart | None = None) -> dict[int, RecomputedIterations]:
        """Return the lines that are recomputed in some blocks alone, by place: of all blocks, or of a stage."""
        if part not in self._fewer:
            model, within = self.step.model, part.iterations if part else {}
            own = (model.table, model.depth), self.step.placed.table, self.given, self.step.config.every
            self._fewer[part] = fewer_recomputed(*own, within)
        return self._fewer[part]

    def computed(
        self, sizes: Mapping[str, Any], rates: Rates, dtype: str
    ) -> tuple[dict[SegmentPass, Any], dict[SegmentPass, Any]]:
        """Return the seconds and the matrix-product FLOPs of one iteration of each segment in each pass."""
        times: dict[SegmentPass, Any] = {}
        products: dict[SegmentPass, Any] = {}
        for where, flops, seconds in self._at(sizes, rates, dtype):
            times[where] = times.get(where, 0.0) + seconds
            products[where] = products.get(where, 0) + flops
        return times, products

    def _at(self, sizes: Mapping[str, Any], rates: Rates, dtype: str) -> Iterator[tuple[SegmentPass, Any, Any]]:
        """Return the kernels: key, matrix-product FLOPs in one iteration of the segment, and seconds."""
        places = self._segments
        key = dtype, rates.operators, tuple(rates.ops)
        if key not in self._works:
            self._works[key] = tuple(works_axes(self.rows, dtype, rates.operators, rates.ops))
        works = [work.at(sizes) for work in self._works[key]]
        for work, seconds in zip(works, seconds_of(works, rates), strict=True):
            segment, line = places[work.main], self.rows[work.main].source
            if is_collective(line):
                continue  # its time is that of the links
            iterations = sizes[self.step.blocks[segment // 2]] if segment % 2 else 1
            where = SegmentPass(
                segment,
                PASSES.get(work.phase, "F"),
                bool(self.sizes.ring_steps & self.rows[work.main].repeat.sizes),
                work.main if work.main in self.fewer() else -1,
            )
            flops = work.iterations * work.share * sum(product.flops for product in work.products)
            yield where, flops / max(1, iterations), seconds.total / max(1, iterations)

    @cached_property
    def _segments(self) -> list[int]:
        """Return the segment of every priced line."""
        return [segments[0] for segments in self.segments_of(self.rows)]

    def segments_of(self, rows: Sequence[PricedLine], placed: Placed | None = None) -> list[tuple[int, ...]]:
        """Return the segment of every priced line; of the optimizer those of its weight, where the table is placed."""
        walker, result = Walker(self.step.blocks), list[tuple[int, ...]]()
        owners = {held.name: held.segments for held in self.weights.held} if placed else {}
        for row in rows:
            counts = [name for term in row.repeat.terms for name in term]
            segments: tuple[int, ...] = (walker.segment(row.macro_operation, counts),)
            if placed and row.macro_operation == "optimizer_step" and isinstance(row.source, Line):
                name = placed.holds.get(row.source.name, row.source.name)
                value = placed.whole.known.get(name) or placed.table.known.get(name)
                owner = self.step.specs.kind(name, value)[1] if value else name
                segments = owners.get(owner, segments)
            result.append(segments)
        return result

    def places_of(self, rows: Sequence[PricedLine], part: StagePart, placed: Placed | None = None) -> frozenset[int]:
        """Return the places of the priced lines of a placed table, by default the step's, that a stage runs."""
        segments = self.segments_of(rows, placed or self.step.placed)
        return frozenset(
            row.place for row, of_row in zip(rows, segments, strict=True) if self.step.within(of_row, part)
        )
