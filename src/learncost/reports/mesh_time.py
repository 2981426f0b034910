"""The time of a step over many devices: computation of a device, and exposed collectives over the links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from learncost.autoshard.account import PASSES
from learncost.autoshard.step import OVERLAPPED_ROLES, PassTime, exposed
from learncost.cost_models import Book, PricedLine, price
from learncost.devices.cluster import Cluster
from learncost.devices.collective import Transfer, groups, transfer
from learncost.ir.loop import round_rings
from learncost.ir.precision import Precision
from learncost.ir.serializable import Key, Serializable
from learncost.reports.mesh_cost import OverMesh
from learncost.reports.sheet import seconds_of
from learncost.reports.timing import Timing, optimizer_widths, timing
from learncost.sharding.clauses import check_timed
from learncost.sharding.collective import Collective
from learncost.timing import Rates

ASSUMED = (
    "collectives of activations are not overlapped with compute; those of weights and gradients overlap with the "
    "forward pass, or with the backward pass and optimizer step, and the rest is exposed"
)

ASSUMED_OF_RINGS = "ring steps overlap with the compute of their iteration, and the rest is exposed"


SEVERAL = (
    "This is one batch without microbatches. `learncost run-cost --mesh` defaults to microbatches of one sequence "
    "(--microbatch); with equal settings their times differ by less than a part in 100,000 where compared."
)
"""The note on why the times of two commands differ."""


@dataclass(frozen=True)
class CollectiveTime:
    """Collectives of one kind, mesh axis and purpose: their number, seconds per step, and link."""

    op: str
    mesh_axis: str
    role: str
    runs: int
    seconds: float
    link: str
    algorithm: str


@dataclass(frozen=True)
class OverTime(Serializable):
    """The time of a step on a device of a mesh.

    lines    what it computes
    moved    what collectives take, each alone
    waits    seconds of those that do not overlap with compute
    overlapping  seconds of those that overlap with compute; `exposed` is the part that is not hidden
    """

    cluster: str
    lines: Timing = field(metadata=Key(form=attrgetter("seconds")).field)
    moved: tuple[CollectiveTime, ...] = field(metadata=Key("collectives", after="exposed").field)
    waits: float = field(metadata=Key("waiting").field)
    overlapping: float
    exposed: float = field(metadata=Key("beside_not_hidden").field)

    @property
    @Key()
    def assumed(self) -> str:
        """The assumptions of the time."""
        has_ring = any(row.op == "pass_on" for row in self.moved)
        return "; ".join((ASSUMED, ASSUMED_OF_RINGS) if has_ring else (ASSUMED,))

    @property
    @Key(after="cluster")
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.lines.seconds + self.waits + self.exposed

    def notes(self) -> Iterator[str]:
        """Return the notes as sentences."""
        parts = [f"{seconds_of(self.lines.seconds)} of compute"]
        parts += [f"{seconds_of(self.waits)} of collectives without overlap"] if self.waits else []
        rest = seconds_of(self.exposed) if self.exposed else "nothing"
        parts += (
            [f"{rest} exposed of {seconds_of(self.overlapping)} of overlapped collectives"] if self.overlapping else []
        )
        yield f"A step over {self.cluster} takes {seconds_of(self.seconds)}: {', '.join(parts)}."
        if not self.moved:
            return
        several = (
            f"{row.op} over {row.mesh_axis} of {row.role} {seconds_of(row.seconds)} by {row.algorithm} on {row.link}"
            for row in self.moved
        )
        yield f"Collectives, without overlap: {'; '.join(several)}."
        yield f"Assumed: {self.assumed}."
        yield SEVERAL


def over_time(
    rows: Sequence[PricedLine],
    over: OverMesh,
    cluster: Cluster,
    rates: Rates,
    kind: Precision,
    book: Book,
    executed: tuple[OverMesh, str] | None = None,
) -> OverTime:
    """Return the time of the priced rows of a placed table on a device of a cluster.

    executed  the step as it executes, with its plan, where no plan of it is counted
    """
    counted = None
    if executed:
        over, counted = executed[0], (rows, executed[1])
        rows = price(over.placed.table, {}, book).rows
    sizes = {**over.sizes, **over.placed.sizes}
    check_timed(over.placed.clauses, over.placed.mesh.sizes)
    widths = optimizer_widths(over.placed.table, kind, over.placed.whole, over.placed.holds)
    lines = timing(rows, sizes, rates, kind.values, book, widths, counted)
    spent = {name: PassTime(shared=cluster.shared) for name in "FBWO"}
    for collective, takes in _transfers(over, cluster):
        mine = spent[PASSES.get(collective.phase, "F")]
        mine.add(collective.times * takes.seconds, collective.op == "pass_on", collective.role in OVERLAPPED_ROLES)
    iterations = {id(line) for line in round_rings(over.placed.table.lines)}
    for part in lines.time.parts:
        mine = spent[PASSES.get(part.phase, "F")]
        mine.compute += part.total
        mine.rounds += part.total if id(rows[part.main].source) in iterations else 0.0
    waits = sum(each.waits for each in spent.values())
    overlapping = sum(each.overlapping + each.ring_seconds for each in spent.values())
    waiting = sum(exposed_seconds for _, exposed_seconds in exposed(spent).values())
    return OverTime(cluster.name, lines, collective_times(over, cluster), waits, overlapping, waiting - waits)


def collective_times(over: OverMesh, cluster: Cluster) -> tuple[CollectiveTime, ...]:
    """Return the time of the collectives of a step over the links of a cluster, without overlap, the longest first."""
    several = dict[tuple[str, str, str], CollectiveTime]()
    for collective, takes in _transfers(over, cluster):
        key = collective.op, collective.mesh_axis, collective.role
        old = several.get(key, CollectiveTime(*key, 0, 0.0, takes.link, takes.algorithm))
        seconds = old.seconds + collective.times * takes.seconds
        several[key] = replace(old, runs=old.runs + collective.times, seconds=seconds)
    return tuple(sorted(several.values(), key=lambda row: -row.seconds))


def _transfers(over: OverMesh, cluster: Cluster) -> Iterator[tuple[Collective, Transfer]]:
    """Yield each collective with its transfer over the links of a cluster."""
    mesh_groups = groups(over.placed.mesh.sizes, cluster.devices)
    for collective in over.collectives:
        yield (
            collective,
            transfer(collective.op, collective.payload_bytes, mesh_groups[collective.mesh_axis], cluster),
        )
