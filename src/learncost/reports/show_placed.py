"""Display of a placed step: the traffic of a device, then its lines, each collective with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import dictionary_of
from learncost.ir.line import Op
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import shape_of
from learncost.ops import entry
from learncost.reports.sheet import (
    WIDTH,
    Sheet,
    SheetRow,
    TableColumn,
    batch_text,
    microbatches_text,
    number,
    plan_text,
    seconds_of,
    size_of,
    table,
)
from learncost.sharding.collective import reason_of

if TYPE_CHECKING:
    from learncost.reports.mesh_cost import OverMesh
    from learncost.reports.placed import PlacedStep


def sheets(step: PlacedStep, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the traffic of a device and its table; for a pipeline the stages, and the tables that differ."""
    if not step.stages:
        return _sent(step), *_formulas(step), _table(step, step.over, "The step of each device")
    tables: dict[tuple[object, ...], list[int]] = {}
    for place, over in enumerate(step.stages):
        table = over.placed.table
        kinds = tuple(line.op if isinstance(line, Op) else type(line) for line, _ in walk(table.lines))
        tables.setdefault((table.weights, kinds), []).append(place)
    return _stages(step), *(
        _table(step, step.stages[identical[0]], _of_stages(identical)) for identical in tables.values()
    )


def _of_stages(identical: list[int]) -> str:
    several = "stage" if len(identical) == 1 else "stages"
    more = "" if len(identical) == 1 else ", shown for the first"
    return f"The step of each device of {several} {', '.join(map(str, identical))}{more}"


def _stages(step: PlacedStep) -> Sheet:
    """Return a row for each stage: its blocks, weights and traffic."""
    rows, axis = [], step.over.placed.clauses[0].mesh
    for place, over in enumerate(step.stages):
        table, sizes = over.placed.table, {**over.sizes, **over.placed.sizes}
        weights = sum(prod(shape_of(table.axes[name], sizes)) for name in table.weights)
        sends = [collective for collective in over.collectives if collective.op == "send"]
        tied = sum(
            collective.payload_bytes
            for collective in over.collectives
            if collective.mesh_axis == axis and collective.op != "send"
        )
        inside = sum(row.ring for row in over.sent if row.mesh_axis != axis)
        to = {
            is_forward: sum(each.payload_bytes for each in sends if (each.phase == "forward") == is_forward)
            for is_forward in (True, False)
        }
        blocks = number(sum(over.placed.iterations.values()))
        cells = (str(place), blocks, number(weights), *(size_of(n) if n else "" for n in (*to.values(), tied, inside)))
        time = (seconds_of(sum(each.seconds for each in step.times(over))),) if step.cluster else ()
        rows.append(SheetRow((*cells, *time)))
    notes = (
        f"Sharding: {step.over.cut_by}.",
        "Per device and microbatch: number of weights; bytes sent to other stages forward and backward; gradients of "
        f"weights shared by several stages, which are all-reduced; and bytes sent within the stage, "
        f"{step.over.convention}.",
        *_timed(step),
    )
    columns: tuple[str, ...] = ("stage", "blocks", "weights", "forward", "backward", "tied", "within")
    columns = (*columns, "time") if step.cluster else columns
    return Sheet(title(step), columns, tuple(rows), notes, frozenset({0}))


def records(step: PlacedStep) -> Iterator[dict[str, Any]]:
    """Return a row for each collective."""
    for place, over in enumerate(step.stages or (step.over,)):
        for collective in over.collectives:
            yield {"stage": place, **dictionary_of(collective)} if step.stages else dictionary_of(collective)


def title(step: PlacedStep) -> str:
    """Return the title of a placed step: the model, the mesh, the batch, the precision, and if it does not fit."""
    on = f" of {step.cluster.name}" if step.cluster else ""
    note = step.memory.note if step.memory else ""
    plan = plan_text(step.plan, step.memory.plan if step.memory else "", "memory")
    batch = batch_text(step.batch_size, step.seq_len, step.target_len, length_note=step._length_note)
    batch += microbatches_text(step.over.parallel.microbatches) if step.over.parallel else ""
    over = f"over {step.over.mesh} ({number(step.over.devices)} devices{on})"
    what = f"{step.model}, one step of {step.procedure} with {step.optimizer} in {step.precision}{plan}"
    return f"{what}: {batch}, {over}{note}"


def _sent(step: PlacedStep) -> Sheet:
    over = step.over
    seconds: dict[tuple[str, str], float] = {}
    for each in step.times():
        seconds[each.mesh_axis, each.op] = seconds.get((each.mesh_axis, each.op), 0.0) + each.seconds
    columns = (
        TableColumn("mesh axis", attrgetter("mesh_axis"), words=True),
        TableColumn("collective", attrgetter("op"), words=True),
        TableColumn("runs", lambda row: number(row.runs)),
        TableColumn("payload", lambda row: size_of(row.payload)),
        TableColumn("sent", lambda row: size_of(row.ring)),
        TableColumn("time", lambda row: seconds_of(seconds[row.mesh_axis, row.op]), shown=step.cluster is not None),
    )
    notes = (
        f"Sharding: {over.cut_by}.",
        "payload: the larger of input and output of a collective on one device, over all runs; sent: "
        f"{over.convention}.",
        *_timed(step),
    )
    return table(title(step), columns if over.sent else (), over.sent, notes, over.sentence)


def _timed(step: PlacedStep) -> Iterator[str]:
    """Yield the notes on a cluster: what the time of collectives includes, and why its memory is not known."""
    if step.cluster is not None:
        yield f"time: of all runs over the links of {step.cluster.name}, ignoring overlap."
    if step.memory is not None and step.memory.unavailable:
        yield f"Whether it fits the memory of the device is not known: {step.memory.unavailable}."


def _formulas(step: PlacedStep) -> Iterator[Sheet]:
    """Return the payload as formulas of sizes, as publications print it."""
    notes = ("Elements, not bytes, over all runs of a step; B/dp is a device's shard of B.",)
    names = {"mesh axis": "mesh_axis", "collective": "op", "numbers": "numbers"}
    if step.formulas:
        columns = (TableColumn(heading, itemgetter(name), words=True) for heading, name in names.items())
        yield table("The payload as formulas", columns, step.formulas, notes)


def _table(step: PlacedStep, over: OverMesh, heading: str) -> Sheet:
    rows: list[SheetRow] = []
    phase = ""
    for depth, line, collective in step._statements(over):
        if isinstance(line, Loop):
            rows.append(SheetRow((str(line).partition("\n")[0], ""), depth=depth))
            continue
        if line.meta.phase != phase:
            phase = line.meta.phase
            rows.append(SheetRow((phase.replace("_", " "), ""), "bold", depth))
        is_moved = isinstance(line, Op) and entry(line.op).kind == "collective"
        payload = size_of(collective.payload_bytes) if collective else ""
        rows.append(SheetRow((f"{'> ' if is_moved else ''}{line}", payload), depth=depth))
        if is_moved:
            times = f" {number(collective.times)} times." if collective and collective.times > 1 else ""
            rows.append(SheetRow((f"{reason_of(line)}.{times}", ""), "dim", depth + 2))
    notes = ("> is communication, or takes a device's shard; rules: docs/many-devices.md.",)
    return Sheet(heading, ("line", "payload"), tuple(rows), notes)
