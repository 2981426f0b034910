"""The time of a step over many devices: that of the one account of a mesh step, with the kernels of its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from learncost.autoshard.account import MeshAccount
from learncost.autoshard.placed_step import StepConfig, together
from learncost.autoshard.step import (
    ASSUMED,
    ParallelConfig,
    StepTraffic,
    StepUsage,
    add_traffic,
    devices_of,
    sizes_of,
    stages_of,
    step_of,
)
from learncost.cost_models import PricedLine
from learncost.devices.cluster import Cluster
from learncost.devices.collective import groups, transfer
from learncost.ir.dataclass import attributes, replace
from learncost.ir.table import Table
from learncost.procedures.optimizer import default_optimizer
from learncost.reports.mesh_cost import OverMesh
from learncost.reports.run import PreparedRun
from learncost.reports.sheet import seconds_of
from learncost.reports.timing import Timing, optimizer_widths, timing
from learncost.timing.rates import Rates

traffic_of = attributes(
    op="op", mesh_axis="mesh_axis", role="role", runs="calls", seconds="seconds", link="link", algorithm="algorithm"
)
"""The form of the traffic of a step as data."""

_USAGE = attributes("seconds lines", waiting="waits", overlapping="overlapping", beside_not_hidden="exposed")


def data_of(step: StepUsage) -> dict[str, Any]:
    """Return the time of a step as data."""
    moved = traffic_of(step.moved)
    return {"cluster": step.cluster.name, **_USAGE(step), "collectives": moved, "assumed": _assumed(step)}


def _assumed(step: StepUsage) -> str:
    rings = ("rings",) if any(row.op == "pass_on" for row in step.moved) else ()
    return "; ".join(ASSUMED[name] for name in ("waits", "overlaps", *rings))


def notes(step: StepUsage) -> Iterator[str]:
    """Return the notes on the time of a step as sentences."""
    parts = [f"{seconds_of(step.lines)} of compute"]
    parts += [f"{seconds_of(step.waits)} of collectives without overlap"] if step.waits else []
    rest = seconds_of(step.exposed) if step.exposed else "nothing"
    parts += [f"{rest} exposed of {seconds_of(step.overlapping)} of overlapped collectives"] if step.overlapping else []
    if step.parallel.stages > 1:
        parts = [f"{name} {seconds_of(each)}" for name, each in step.causes.items() if each]
    yield f"A step over {step.cluster.name} takes {seconds_of(step.seconds)}: {', '.join(parts)}."
    if step.moved:
        several = (
            f"{row.op} over {row.mesh_axis} of {row.role} {seconds_of(row.seconds)} by {row.algorithm} on {row.link}"
            for row in step.moved
        )
        yield f"Collectives, ignoring overlap: {'; '.join(several)}."
        yield f"Assumed: {_assumed(step)}."


def over_time(
    run: PreparedRun,
    procedure: str,
    rows: Sequence[PricedLine],
    over: OverMesh,
    on: tuple[Cluster, Rates],
    plan: str = "",
    table: Table | None = None,
) -> tuple[Timing, StepUsage]:
    """Return the kernels of the priced rows of a placed table, and their step on a cluster.

    The kernels are those of the account of the step, which masks no padded positions.
    on     with the rates of its devices
    plan   of the step as it executes, where none was given
    table  of one device, for a pass of inference
    """
    (cluster, rates), kind, sizes = on, run.precision, over.of_microbatch(over.of_model)
    optimizer = run.optimizer or default_optimizer(run.book)
    config = StepConfig(over.placed.clauses, kind, plan or run.plan, procedure, optimizer, every=run.every)
    account = MeshAccount(run.model, sizes, over.placed.mesh, config, table)
    shares = prod(over.placed.mesh.sizes[axis] for axis in account.sizes.batch_axes)
    parallel = over.parallel or ParallelConfig(over.placed.mesh.sizes, sizes.get("B", shares) // shares)
    devices = devices_of(stages_of(account, parallel, sizes), parallel)
    part = together(devices) if over.device is None else devices[over.device]
    here, fewer = account.places_of(account.rows, part), account.fewer(part)
    rows_run = (row.with_counts(fewer[row.place].of) if row.place in fewer else row for row in account.rows)
    as_run = [row.times(over.times(row.macro_operation) if row.place in here else 0) for row in rows_run]
    placed = account.step.placed
    widths = optimizer_widths(placed.table, kind, placed.whole, placed.holds)
    widths |= {name: 0 for name, value in placed.whole.known.items() if value.role == "number"}  # are no memory traffic
    filled = {**account.sizes.filled(sizes_of(account, parallel, sizes)), **over.placed.iterations}
    lines = timing(as_run, filled, rates, kind.values, run.book, widths, (rows, plan))
    step = step_of(account, parallel, sizes, cluster, rates, run.model.tokens({**sizes, "B": 1}), memory=False)
    whole = (step.seconds, step.seconds * step.low, step.seconds * step.high)
    return replace(lines, whole=whole), step


def collective_times(over: OverMesh, cluster: Cluster) -> tuple[StepTraffic, ...]:
    """Return the time of the collectives of a step over the links of a cluster, without overlap, the longest first."""
    several, mesh_groups = dict[tuple[str, str, str], StepTraffic](), groups(over.placed.mesh.sizes, cluster.devices)
    for each in over.collectives:
        moved = transfer(each.op, each.payload_bytes, mesh_groups[each.mesh_axis], cluster)
        add_traffic(several, (each.op, each.mesh_axis, each.role), moved, each.times)
    return tuple(sorted(several.values(), key=lambda row: -row.seconds))
