"""The time of a step over many devices: that of the one account of a mesh step, with the kernels of its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.placed_step import StepConfig
from learncost.autoshard.step import (
    ASSUMED,
    OVERLAPPED_ROLES,
    ParallelConfig,
    StepTraffic,
    StepUsage,
    add_traffic,
    step_of,
)
from learncost.cost_models import PricedLine, price
from learncost.devices.cluster import Cluster
from learncost.devices.collective import groups, transfer
from learncost.ir.precision import Precision
from learncost.ir.serializable import HIDDEN, Key, Serializable, attributes
from learncost.ir.table import Table
from learncost.procedures.optimizer import default_optimizer
from learncost.reports.mesh_cost import OverMesh
from learncost.reports.run import PreparedRun
from learncost.reports.sheet import seconds_of
from learncost.reports.timing import Timing, optimizer_widths, timing
from learncost.timing import Rates

SEVERAL = (
    "This is one batch without microbatches. `learncost run-cost --mesh` defaults to microbatches of one sequence "
    "(--microbatch); with equal settings their times are the same."
)
"""The note on why the times of two commands differ."""

TRAFFIC = attributes(
    op="op", mesh_axis="mesh_axis", role="role", runs="calls", seconds="seconds", link="link", algorithm="algorithm"
)
"""The form of traffic as data."""


@dataclass(frozen=True)
class OverTime(Serializable):
    """The time of a step on a device of a mesh.

    lines    what it computes, kernel by kernel
    step     the account of the step, as `search` and `run_cost` have it
    """

    lines: Timing = field(metadata=HIDDEN)
    step: StepUsage = field(metadata=HIDDEN)

    @property
    @Key()
    def cluster(self) -> str:
        """The name of the cluster."""
        return self.step.cluster.name

    @property
    @Key()
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.step.seconds

    @property
    @Key("lines")
    def computing(self) -> float:
        """The seconds of what a device computes."""
        return self.seconds - self.waits - self.exposed

    @property
    @Key("waiting")
    def waits(self) -> float:
        """The seconds of collectives that do not overlap with compute."""
        return sum(row.seconds for row in self.moved if not _overlaps(row))

    @property
    @Key()
    def overlapping(self) -> float:
        """The seconds of those that overlap with compute, each alone; `exposed` is the part that is not hidden."""
        return sum(row.seconds for row in self.moved if _overlaps(row))

    @property
    @Key("beside_not_hidden")
    def exposed(self) -> float:
        """The seconds of overlapped collectives that are not hidden."""
        return self.step.exposed

    @property
    @Key("collectives", form=TRAFFIC)
    def moved(self) -> tuple[StepTraffic, ...]:
        """What collectives take, each alone, the longest first."""
        return tuple(sorted(self.step.sent, key=lambda row: -row.seconds))

    @property
    @Key()
    def assumed(self) -> str:
        """The assumptions of the time."""
        has_ring = any(row.op == "pass_on" for row in self.moved)
        return "; ".join(ASSUMED[name] for name in ("waits", "beside", *(("rings",) if has_ring else ())))

    def notes(self) -> Iterator[str]:
        """Return the notes as sentences."""
        parts = [f"{seconds_of(self.computing)} of compute"]
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


def _overlaps(row: StepTraffic) -> bool:
    return row.role in OVERLAPPED_ROLES or row.op == "pass_on"


def over_time(
    run: PreparedRun,
    procedure: str,
    rows: Sequence[PricedLine],
    over: OverMesh,
    on: tuple[Cluster, Rates, Precision],
    executed: tuple[OverMesh, str] | None = None,
    table: Table | None = None,
) -> OverTime:
    """Return the time of the priced rows of a placed table on a device of a cluster.

    on        with the rates of its devices, and the types
    executed  the step as it executes, with its plan, where no plan of it is counted
    table     of one device, for a pass of inference
    """
    (cluster, rates, kind), counted, plan = on, None, run.plan
    if executed:
        over, plan = executed
        counted, rows = (rows, plan), price(over.placed.table, {}, run.book).rows
    placed, sizes = over.placed, over.of_model
    widths = optimizer_widths(placed.table, kind, placed.whole, placed.holds)
    lines = timing(rows, {**over.sizes, **placed.sizes}, rates, kind.values, run.book, widths, counted)
    optimizer = run.optimizer or default_optimizer(run.book)
    config = StepConfig(placed.clauses, kind, plan, procedure, optimizer)
    account = MeshAccount(run.model, sizes, placed.mesh, config, table)
    shares = prod(placed.mesh.sizes[axis] for axis in account.sizes.batch_axes)
    way = ParallelConfig(placed.mesh.sizes, sizes.get("B", shares) // shares)
    return OverTime(lines, step_of(account, way, sizes, cluster, rates, run.model.tokens(sizes), memory=False))


def collective_times(over: OverMesh, cluster: Cluster) -> tuple[StepTraffic, ...]:
    """Return the time of the collectives of a step over the links of a cluster, without overlap, the longest first."""
    several, mesh_groups = dict[tuple[str, str, str], StepTraffic](), groups(over.placed.mesh.sizes, cluster.devices)
    for each in over.collectives:
        add_traffic(
            several, each, transfer(each.op, each.payload_bytes, mesh_groups[each.mesh_axis], cluster), each.times
        )
    return tuple(sorted(several.values(), key=lambda row: -row.seconds))
