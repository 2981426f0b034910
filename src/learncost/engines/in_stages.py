"""Build the sharded tables and the PyTorch program of a step or a forward pass over pipeline stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from learncost.backends.stages import StagesProgram, StageTables, stages_program
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, defined, walk
from learncost.ir.table import Table
from learncost.models.model import Model
from learncost.ops.collectives import is_collective
from learncost.passes.plan import planned
from learncost.passes.stages import iterations_of
from learncost.procedures.optimizer import with_weight_decay
from learncost.procedures.staged import clipped_together, staged, staged_forward
from learncost.program.pipeline import Schedule
from learncost.sharding.mesh import Mesh
from learncost.sharding.place import Placed
from learncost.sharding.stages import Pipeline, place_stages


@dataclass(frozen=True)
class StageUpdate:
    """The optimizer and the plan of a step over pipeline stages.

    clips   whether gradients are clipped by the norm over all stages
    decays  whether weight decay is added to the gradients, outside of the optimizer's op
    """

    optimizer: str
    plan: str = ""
    clips: bool = False
    decays: bool = False


def step_in_stages(
    model: Model,
    whole: Table,
    update: StageUpdate,
    pipeline: Pipeline,
    grid: Mesh,
    sizes: Mapping[str, int],
    schedule: Schedule,
) -> tuple[Placed, ...]:
    """Return the tables that the devices of each stage run in a step.

    whole  the step of all stages together
    sizes  the global sizes of one microbatch: those of all devices of a stage together
    Raises `InputError` where blocks are not divisible.
    """
    over = replace(pipeline, stages=schedule.stages)
    if pipeline.blocks and schedule.chunks > 1:
        raise InputError(
            f"{pipeline.clause} gives the blocks of each device, which {schedule.name} would split "
            f"further: use another schedule"
        )
    layers = over.layers(iterations_of(model.table, sizes))
    steps = staged(model, sizes, layers, update.optimizer)
    steps = clipped_together(steps) if update.clips else steps
    tables = [with_weight_decay(each.table) if update.decays else each.table for each in steps]
    rewritten = [planned(table, update.plan, sizes) for table in tables]
    steps = tuple(replace(each, table=table) for each, table in zip(steps, rewritten, strict=True))
    return place_stages(steps, over, grid, sizes, whole, update.plan)


def forward_in_stages(
    table: Table, pipeline: Pipeline, grid: Mesh, sizes: Mapping[str, int], schedule: Schedule
) -> tuple[Placed, ...]:
    """Return the tables that the devices of each stage run in a forward pass."""
    over = replace(pipeline, stages=schedule.stages)
    steps = staged_forward(table, sizes, over.layers(iterations_of(table, sizes)))
    return place_stages(steps, over, grid, sizes, table)


def program_in_stages(
    placed: Sequence[Placed],
    outputs: Collection[str],
    schedule: Schedule,
    axis: str,
    sizes: Mapping[str, int],
    title: str,
    dtype: str | None = None,
) -> StagesProgram:
    """Return the program of stages for PyTorch.

    outputs  the outputs of the global step, without the values that stages send to each other
    axis     the mesh axis of the stages
    dtype    the precision, as for `stages_program`
    """
    tables = [in_halves(_at_devices(each.table, axis, schedule.devices), outputs) for each in placed]
    return stages_program(tables, schedule, axis, title, [{**sizes, **each.sizes} for each in placed], dtype)


def in_halves(table: Table, outputs: Collection[str]) -> StageTables:
    """Split a sharded stage into a microbatch's table and the update with the summed gradients.

    outputs  the outputs of the global step, without the values that a stage sends
    """
    last: list[Statement] = []
    if any(nest.loops and line.meta.phase == "optimizer_step" for line, nest in walk(table.lines)):
        raise InputError("stages update with the gradients of all microbatches: remove the plan fused-update")
    for line in table.lines:
        updates = not isinstance(line, Loop) and line.meta.phase == "optimizer_step"
        if updates or {*line.reads} & defined(last):
            last.append(line)
    first = [line for line in table.lines if not any(line is each for each in last)]
    makes, read = defined(first), {name for line in last for name in line.reads}
    gathered = tuple(name for line in first for name in line.makes if name in read)
    shown = tuple(name for name in table.outputs if name in outputs and name in makes and name not in gathered)
    given = {name for line in first for name in line.reads}
    return StageTables(
        replace(
            table,
            lines=tuple(first),
            inputs=tuple(name for name in table.inputs if name in given),
            outputs=(*shown, *gathered),
        ),
        replace(
            table,
            lines=tuple(last),
            inputs=(*(name for name in table.inputs if name in read), *gathered),
            outputs=tuple(name for name in table.outputs if name in outputs and name not in makes),
        ),
    )


def _at_devices(table: Table, axis: str, devices: int) -> Table:
    """Return a stage's table with its messages addressed to devices instead of stages, as a device may have several
    stages."""

    def changed(line: Statement) -> Statement:
        if not is_collective(line) or line.axes[0] != axis:
            return line
        places = tuple(str(int(stage) % devices) for stage in line.axes[1:])
        if len({*places}) < len(places):
            raise InputError(
                f"stages {', '.join(line.axes[1:])} sum {line.right[0].name}, and one device has several of "
                f"them: use --schedule gpipe or 1f1b, with one stage per device"
            )
        every = line.op == "all_reduce" and len(places) == devices
        return replace(line, axes=(axis,) if every else (axis, *places))

    return replace(table, lines=tuple(map(changed, table.lines)))
