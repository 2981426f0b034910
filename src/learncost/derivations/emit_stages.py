"""The step of a model over the stages of a pipeline, as one program: its tables, its microbatches, its schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from learncost.derivations.asked import Asked, refuse_filled, refuse_zigzag
from learncost.equation.errors import InputError
from learncost.equation.table import Repeat, Statement, Table, defined, walk
from learncost.layers.stages import turns_of
from learncost.models.model import Model
from learncost.placement.mesh import Mesh
from learncost.placement.padding import filled_up
from learncost.placement.stages import Pipeline, place_stages
from learncost.plans.plan import planned
from learncost.procedures.staged import staged
from learncost.readings.emit.stages import StagesProgram, StageTables, stages_program
from learncost.schedule.pipeline import Schedule
from learncost.vocabulary.collectives import is_collective


def pipelined(
    model: Model, procedure: str, optimizer: str, plan: str, whole: Table, asked: Asked
) -> tuple[Callable[[str], str], str]:
    """What writes the program of a model's stages under a title, and what that has to say.

    whole  the step of all stages together
    Raises `InputError` for another procedure than bp, and where something does not divide.
    """
    if procedure != "bp":
        raise InputError(f"a pipeline is of bp: {procedure} cannot be cut into stages")
    if optimizer == "none":
        raise InputError("stages sum the gradients of what they share at the optimizer: give one, such as sgd")
    pipeline = asked.pipeline(model)
    order, batch = asked.schedule(pipeline.stages)
    sizes = asked.sizes(model, batch)
    refuse_filled(model, filled_up(model, whole, pipeline.mesh, pipeline.clauses, sizes)[2])

    def write(title: str) -> str:
        return in_stages(model, whole, optimizer, plan, pipeline, asked.grid, sizes, order, title).text

    number = "1 microbatch" if order.microbatches == 1 else f"{order.microbatches} microbatches"
    said = f"The stages of {asked.grid}, {number} of {sizes['B']} by {sizes['M']:,} of all in the order {order.name}."
    return write, said


def in_stages(
    model: Model,
    whole: Table,
    optimizer: str,
    plan: str,
    pipeline: Pipeline,
    grid: Mesh,
    sizes: Mapping[str, int],
    schedule: Schedule,
    title: str,
) -> StagesProgram:
    """The program of a step over stages, for PyTorch.

    whole  the step of all stages together
    sizes  of one microbatch, all devices but those of the pipeline together
    Raises `InputError` where blocks do not divide.
    """
    over = replace(pipeline, stages=schedule.stages)
    if pipeline.blocks and schedule.chunks > 1:
        raise InputError(f"{pipeline.said} says how many blocks each device has, and {schedule.name} cuts them further")
    layers = over.layers(turns_of(model.table, sizes))
    steps = [replace(each, table=planned(each.table, plan, sizes)) for each in staged(model, sizes, layers, optimizer)]
    placed = place_stages(steps, over, grid, sizes, whole)
    refuse_zigzag(placed[0].table)
    tables = [in_halves(_at_devices(each.table, pipeline.axis, schedule.devices), whole.outputs) for each in placed]
    numbers = [{**sizes, **each.sizes} for each in placed]
    return stages_program(tables, schedule, pipeline.axis, title, numbers)


def in_halves(table: Table, outputs: Collection[str]) -> StageTables:
    """A placed stage as what a microbatch computes, and the update with the sums of its gradients.

    outputs  of the step of all stages together: what a stage sends is none
    """
    last: list[Statement] = []
    if any(turns and line.tag.macro == "optimizer_step" for line, turns in walk(table.lines)):
        raise InputError("stages update with the gradients of all microbatches: leave the plan at-once out")
    for line in table.lines:
        updates = not isinstance(line, Repeat) and line.tag.macro == "optimizer_step"
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
    """A stage whose messages go to the devices of other stages, of which a device may have several."""

    def changed(line: Statement) -> Statement:
        if not is_collective(line) or line.axes[0] != axis:
            return line
        places = tuple(str(int(stage) % devices) for stage in line.axes[1:])
        if len({*places}) < len(places):
            raise InputError(f"one device has several stages that have the same weight: {line.right[0]}")
        every = line.word == "all_reduce" and len(places) == devices
        return replace(line, axes=(axis,) if every else (axis, *places))

    return replace(table, lines=tuple(map(changed, table.lines)))
